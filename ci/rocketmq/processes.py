"""One part of an instance: a Java process, found again by its folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from jars import class_path
from telling import Trouble
from wire import CLUSTER_INFO, ROUTE, RUNTIME_INFO, ask

START_DEADLINE_S = 90.0
STOP_DEADLINE_S = 30.0
JAVA_ACCESS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
EMPTY_LOGBACK = "<configuration/>\n"  # 4.9 asks for the file; its logs then go nowhere


class Part:
    """A name server or a broker of an instance."""

    def __init__(self, folder: Path, version: str, name: str, facts: dict[str, Any]) -> None:
        self.folder, self.version, self.name, self.facts = folder, version, name, facts
        self.home = folder / name
        self.conf = self.home / "conf"
        self.log = self.home / "output.log"
        self.address = f"127.0.0.1:{facts['port']}"
        self._started: subprocess.Popen[bytes] | None = None

    def pid(self) -> int | None:
        """The process, if it is alive and ours: its command line names our folder."""
        try:
            pid = int((self.home / "pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        command = ["ps", "-o", "stat=,args=", "-ww", "-p", str(pid)]
        shown = subprocess.run(command, capture_output=True, text=True).stdout
        alive = not shown.startswith("Z") and f"-Duser.home={self.home} " in shown
        return pid if alive else None

    def start(self) -> None:
        if self.pid() is not None:
            return
        command = self.command()
        with self.log.open("ab") as log:
            self._started = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home,
                env=os.environ | {"ROCKETMQ_HOME": str(self.home)}, start_new_session=True,
            )  # fmt: skip
        (self.home / "pid").write_text(f"{self._started.pid}\n")

    def command(self) -> list[str]:
        """How it is started; writes the settings it is started with."""
        conf = self.conf
        for logback in ("logback_namesrv.xml", "logback_broker.xml"):
            (conf / logback).write_text(EMPTY_LOGBACK)
        settings = "".join(f"{k}={v}\n" for k, v in self.facts["settings"].items())
        (conf / "settings.conf").write_text(settings)
        return self.java(class_path(self.version), "-c", f"{conf}/settings.conf")

    def java(self, classes: str, *arguments: str) -> list[str]:
        return [
            "java", *JAVA_ACCESS, *self.facts["java"], f"-Duser.home={self.home}",
            f"-Drocketmq.client.logRoot={self.home}/logs", "-cp", classes,
            self.facts["main"], *arguments,
        ]  # fmt: skip

    def wait_until_ready(self, name_server: str) -> None:
        end = time.monotonic() + START_DEADLINE_S
        while not self.is_ready(name_server):
            if self._has_ended():
                raise Trouble(f"{self.name} ended while it started; {self.last_words()}")
            if time.monotonic() > end:
                raise Trouble(
                    f"{self.name} does not answer after {START_DEADLINE_S:.0f} s; "
                    f"{self.last_words()}"
                )
            time.sleep(0.1)  # between two questions

    def _has_ended(self) -> bool:
        # For a moment after its start a process has no command line to know it by.
        return self.pid() is None if self._started is None else self._started.poll() is not None

    def is_ready(self, name_server: str) -> bool:
        """Whether it answers, and a broker's name server tells the default topic's route."""
        try:
            if self.name == "name-server":
                return ask(self.address, CLUSTER_INFO)[0] == 0
            is_asked = not self.speaks_tls_only and not self.asks_for_accounts
            if is_asked and ask(self.address, RUNTIME_INFO)[0] != 0:
                return False
            topic = "TBW102" if self.is_master else "SELF_TEST_TOPIC"
            code, body = ask(name_server, ROUTE, topic=topic, acceptStandardJsonOnly="true")
            if code == 17 and self.facts["settings"].get("autoCreateTopicEnable") == "false":
                code, body = ask(name_server, CLUSTER_INFO)
            return code == 0 and f'"{self.address}"' in body.decode()
        except OSError:
            return False

    @property
    def speaks_tls_only(self) -> bool:
        """Whether it cannot be asked by us, who speak none; the name server tells of it."""
        return "-Dtls.server.mode=enforcing" in self.facts["java"]

    @property
    def asks_for_accounts(self) -> bool:
        """Whether it refuses us, who have none."""
        settings = self.facts["settings"]
        return "true" in (settings.get("aclEnable"), settings.get("authenticationEnabled"))

    @property
    def is_master(self) -> bool:
        return "slave" not in self.name

    def last_words(self) -> str:
        words = self.log.read_text(errors="replace").splitlines()[-8:]
        return "\n".join([f"the end of {self.log}:", *words])

    def signal(self, number: signal.Signals) -> None:
        pid = self.pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_until_gone(self) -> None:
        """After a signal; SIGKILL if that was not enough."""
        for attempt in range(2):
            end = time.monotonic() + STOP_DEADLINE_S
            while self.pid() is not None and time.monotonic() < end:
                time.sleep(0.05)  # between two looks
            if self.pid() is None:
                (self.home / "pid").unlink(missing_ok=True)
                return
            if attempt == 0:
                self.signal(signal.SIGKILL)
        raise Trouble(f"{self.name}: process {self.pid()} does not end")
