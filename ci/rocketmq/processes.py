"""One part of an instance: a Java process, recognised by its folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from console import CommandError
from jars import class_path
from remoting import CLUSTER_INFO, ROUTE, RUNTIME_INFO, request

START_DEADLINE_S = 300.0  # a proxy takes 8 s of CPU: 41 s were seen on a busy machine
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

    def __init__(self, folder: Path, version: str, name: str, plan: dict[str, Any]) -> None:
        self.folder, self.version, self.name, self.plan = folder, version, name, plan
        self.home = folder / name
        self.conf = self.home / "conf"
        self.log = self.home / "output.log"
        self.address = f"127.0.0.1:{plan['port']}"
        self._started: subprocess.Popen[bytes] | None = None

    def pid(self) -> int | None:
        """Return the process id if the part runs: its command line names this folder."""
        try:
            pid = int((self.home / "pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        command = ["ps", "-o", "stat=,args=", "-ww", "-p", str(pid)]
        shown = subprocess.run(command, capture_output=True, text=True).stdout
        alive = not shown.startswith("Z") and f"-Duser.home={self.home} " in shown
        return pid if alive else None

    def start(self) -> None:
        if not self._has_ended():
            return
        command = self.command()
        with self.log.open("ab") as log:
            self._started = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home,
                env=os.environ | self.plan["env"] | {"ROCKETMQ_HOME": str(self.home)},
                start_new_session=True,
            )  # fmt: skip
        (self.home / "pid").write_text(f"{self._started.pid}\n")

    def command(self) -> list[str]:
        """Write the settings and return the command that starts the part."""
        conf = self.conf
        for logback in ("logback_namesrv.xml", "logback_broker.xml"):
            (conf / logback).write_text(EMPTY_LOGBACK)
        settings = "".join(f"{k}={v}\n" for k, v in self.plan["settings"].items())
        (conf / "settings.conf").write_text(settings)
        return self.java(class_path(self.version), "-c", f"{conf}/settings.conf")

    def java(self, classes: str, *arguments: str) -> list[str]:
        return [
            "java", *JAVA_ACCESS, *self.plan["java"], f"-Duser.home={self.home}",
            f"-Drocketmq.client.logRoot={self.home}/logs", "-cp", classes,
            self.plan["main"], *arguments,
        ]  # fmt: skip

    def wait_until_ready(self, name_server: str) -> None:
        end = time.monotonic() + START_DEADLINE_S
        while not self.is_ready(name_server):
            if self._has_ended():
                raise CommandError(f"{self.name} ended while it started; {self.end_of_log()}")
            if time.monotonic() > end:
                raise CommandError(
                    f"{self.name} does not answer after {START_DEADLINE_S:.0f} s; "
                    f"{self.end_of_log()}"
                )
            time.sleep(0.1)  # between two requests

    def _has_ended(self) -> bool:
        # For a moment after its start a process has no command line to know it by: a second one
        # would be started then.
        return self.pid() is None if self._started is None else self._started.poll() is not None

    def is_ready(self, name_server: str) -> bool:
        """Ask the part; a broker must also be in the name server's route of the default topic."""
        try:
            if self.name == "name-server":
                return request(self.address, CLUSTER_INFO)[0] == 0
            accepts_requests = not self.speaks_tls_only and not self.asks_for_accounts
            if accepts_requests and request(self.address, RUNTIME_INFO)[0] != 0:
                return False
            topic = "TBW102" if self.is_master else "SELF_TEST_TOPIC"
            code, body = request(name_server, ROUTE, topic=topic, acceptStandardJsonOnly="true")
            if code == 17 and self.plan["settings"].get("autoCreateTopicEnable") == "false":
                code, body = request(name_server, CLUSTER_INFO)
            return code == 0 and f'"{self.address}"' in body.decode()
        except OSError:
            return False

    @property
    def speaks_tls_only(self) -> bool:
        """True if requests without TLS are refused; then only the name server is asked."""
        return "-Dtls.server.mode=enforcing" in self.plan["java"]

    @property
    def asks_for_accounts(self) -> bool:
        """True if requests without an account are refused."""
        settings = self.plan["settings"]
        return "true" in (settings.get("aclEnable"), settings.get("authenticationEnabled"))

    @property
    def is_master(self) -> bool:
        return "slave" not in self.name

    def end_of_log(self) -> str:
        words = self.log.read_text(errors="replace").splitlines()[-8:]
        return "\n".join([f"the end of {self.log}:", *words])

    def signal(self, number: signal.Signals) -> None:
        pid = self.pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_until_gone(self) -> None:
        """Wait for the end after a signal; send SIGKILL if it does not come."""
        for attempt in range(2):
            end = time.monotonic() + STOP_DEADLINE_S
            while self.pid() is not None and time.monotonic() < end:
                time.sleep(0.05)  # between two checks
            if self.pid() is None:
                (self.home / "pid").unlink(missing_ok=True)
                return
            if attempt == 0:
                self.signal(signal.SIGKILL)
        raise CommandError(f"{self.name}: process {self.pid()} does not end, even after SIGKILL")
