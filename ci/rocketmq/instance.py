"""An instance: a name server and its brokers, in one folder."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
from pathlib import Path
from typing import Any

from cluster_plan import plan_parts
from console import CommandError
from jars import class_path
from processes import Part
from proxy import PROXY, BrokerInProxy, Proxy, remoting_address


class Instance:
    """The parts that run in one folder: a name server, brokers, perhaps a proxy."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder, self.version = folder, version
        self.file = folder / "cluster.json"
        self.parts: dict[str, Part] = {}

    def load(self) -> None:
        if not self.file.exists():
            raise CommandError(
                f"no instance was started in {self.folder}: run ci/rocketmq.sh up first"
            )
        plan = json.loads(self.file.read_text())
        self.version = plan["version"]
        self.parts = {
            name: self._kind(name, part)(self.folder, self.version, name, part)
            for name, part in plan["parts"].items()
        }

    @staticmethod
    def _kind(name: str, plan: dict[str, Any]) -> type[Part]:
        if name == PROXY:
            return Proxy
        return BrokerInProxy if PROXY in plan else Part

    def plan(self, options: argparse.Namespace) -> None:
        """Choose ports and settings, and write them down."""
        parts = plan_parts(self.folder, options)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(
            json.dumps({"version": self.version, "parts": parts}, indent=1, sort_keys=True) + "\n"
        )
        self.load()
        for part in self.parts.values():
            part.conf.mkdir(parents=True)
            for file in options.conf:
                shutil.copy(file, part.conf)

    @property
    def name_server(self) -> str:
        return self.parts["name-server"].address

    def write_environment(self) -> None:
        brokers = ";".join(p.address for n, p in self.parts.items() if n.startswith("broker"))
        proxies = ";".join(filter(None, (remoting_address(p.plan) for p in self.parts.values())))
        (self.folder / "env").write_text(
            f"ROCKETMQ_VERSION={self.version}\n"
            f"ROCKETMQ_NAME_SERVERS={self.name_server}\n"
            f"ROCKETMQ_BROKERS='{brokers}'\n"
            f"ROCKETMQ_PROXIES='{proxies}'\n"
            f"ROCKETMQ_FOLDER='{self.folder}'\n"
            f"ROCKETMQ_CLASS_PATH='{class_path(self.version)}'\n"
        )

    def chosen(self, names: list[str]) -> list[Part]:
        """Return the named parts, or all of them; name server first, slaves last."""
        for name in names:
            if name not in self.parts:
                known = ", ".join(sorted(self.parts))
                raise CommandError(
                    f"{name!r} is not a part of this instance; its parts are {known}"
                )
        chosen = [self.parts[name] for name in names or self.parts]
        return sorted(chosen, key=lambda p: (p.name != "name-server", not p.is_master, p.name))

    def start(self, parts: list[Part]) -> None:
        for part in parts:
            if part.name == PROXY:  # makes a topic on the brokers, and ends if it cannot
                continue
            part.start()
            if part.name == "name-server":  # a broker that does not find it tries every 30 s
                part.wait_until_ready(self.name_server)
        for part in sorted(parts, key=lambda part: part.name == PROXY):
            part.start()
            part.wait_until_ready(self.name_server)

    def stop(self, parts: list[Part], number: signal.Signals) -> None:
        for part in parts:
            part.signal(number)
        for part in parts:
            part.wait_until_gone()
