"""A real RocketMQ for tests and benchmarks: see `ci/rocketmq.sh --help`.

An instance is a folder: cluster.json says what runs in it and where, each part (name-server,
broker-a, ...) has a folder with its settings, data, logs and pid. Ports are chosen once, so a
part that is stopped and started again is found where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("5.3.3", "5.4.0", "4.9.7")
ARTIFACTS = ("rocketmq-namesrv", "rocketmq-broker", "rocketmq-client", "rocketmq-tools")
START_DEADLINE_S = 90.0
STOP_DEADLINE_S = 30.0
ASK_TIMEOUT_S = 2.0
PORTS = range(20_000, 32_000)  # below what systems hand out to outgoing connections
JAVA_ACCESS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
BROKER_SETTINGS = {  # a laptop's sizes; --set and --properties override them
    "brokerClusterName": "DefaultCluster",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": "67108864",
    "maxHashSlotNum": "100000",
    "maxIndexNum": "400000",
    "diskMaxUsedSpaceRatio": "99",
}
EMPTY_LOGBACK = "<configuration/>\n"  # 4.9 asks for the file; its logs then go nowhere
CLUSTER_INFO, ROUTE, RUNTIME_INFO = 106, 105, 28  # request codes
EPILOG = f"""\
versions known to start: {", ".join(VERSIONS)}

example:
  ci/rocketmq.sh up 5.3.3 --brokers 2 --set autoCreateTopicEnable=false
  source build/rocketmq/5.3.3/env             # ROCKETMQ_NAME_SERVERS and more
  ci/rocketmq.sh kill 5.3.3 broker-a          # as kill -9 does
  ci/rocketmq.sh start 5.3.3 broker-a         # on its old port, with its old data
  ci/rocketmq.sh down 5.3.3
"""


class Trouble(Exception):
    """Told to the user, without a traceback."""


def say(text: str) -> None:
    print(f"ordermq: {text}", file=sys.stderr, flush=True)


# The jars.


def class_path(version: str) -> str:
    """Fetch the jars of a version unless they are there; where they are, as java -cp wants it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ordermq"
    jars = cache / f"rocketmq-{version}"
    if not (jars / "done").exists():
        say(f"fetching RocketMQ {version} into {jars}")
        jars.mkdir(parents=True, exist_ok=True)
        pom = jars / "pom.xml"
        pom.write_text(project_of(version))
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        maven = subprocess.run(["mvn", "-q", "-B", "-f", pom, *goal], stdout=sys.stderr)
        if maven.returncode:
            raise Trouble(f"Maven could not fetch RocketMQ {version}; its own words are above")
        (jars / "done").touch()
    return f"{jars}/*"


def project_of(version: str) -> str:
    dependencies = "".join(
        f"<dependency><groupId>org.apache.rocketmq</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>\n"
        for artifact in ARTIFACTS
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>ordermq</groupId>"
        "<artifactId>rocketmq</artifactId><version>1</version>\n"
        f"<dependencies>\n{dependencies}</dependencies></project>\n"
    )


# Asking: one request of the remoting protocol over a new connection (protocol 1).


def ask(address: str, code: int, **fields: str) -> tuple[int, bytes]:
    """The response code and body of a request; OSError if nobody answers."""
    host, port = address.rsplit(":", 1)
    header = json.dumps({"code": code, "extFields": fields, "opaque": 1, "version": 479}).encode()
    with socket.create_connection((host, int(port)), ASK_TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">ii", 4 + len(header), len(header)) + header)
        with connection.makefile("rb") as stream:
            size, mark = struct.unpack(">iI", exactly(stream, 8))
            answer = exactly(stream, mark & 0xFFFFFF)
            binary = mark >> 24 == 1
            code = struct.unpack_from(">h", answer)[0] if binary else json.loads(answer)["code"]
            return int(code), exactly(stream, size - 4 - len(answer))


def exactly(stream: Any, size: int) -> bytes:
    data: bytes = stream.read(size)
    if len(data) < size:
        raise ConnectionError("the connection was closed within an answer")
    return data


# One part: a Java process.


class Part:
    """A name server or a broker of an instance."""

    def __init__(self, folder: Path, version: str, name: str, facts: dict[str, Any]) -> None:
        self.folder, self.version, self.name, self.facts = folder, version, name, facts
        self.home = folder / name
        self.log = self.home / "output.log"
        self.address = f"127.0.0.1:{facts['port']}"

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
        self.home.mkdir(parents=True, exist_ok=True)
        conf = self.home / "conf"
        conf.mkdir(exist_ok=True)
        for logback in ("logback_namesrv.xml", "logback_broker.xml"):
            (conf / logback).write_text(EMPTY_LOGBACK)
        settings = "".join(f"{k}={v}\n" for k, v in self.facts["settings"].items())
        (conf / "settings.conf").write_text(settings)
        command = [
            "java", *JAVA_ACCESS, *self.facts["java"], f"-Duser.home={self.home}",
            f"-Drocketmq.client.logRoot={self.home}/logs", "-cp", class_path(self.version),
            self.facts["main"], "-c", f"{conf}/settings.conf",
        ]  # fmt: skip
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home,
                env=os.environ | {"ROCKETMQ_HOME": str(self.home)}, start_new_session=True,
            )  # fmt: skip
        (self.home / "pid").write_text(f"{process.pid}\n")

    def wait_until_ready(self, name_server: str) -> None:
        end = time.monotonic() + START_DEADLINE_S
        while not self.is_ready(name_server):
            if self.pid() is None:
                raise Trouble(f"{self.name} ended while it started; {self.last_words()}")
            if time.monotonic() > end:
                raise Trouble(
                    f"{self.name} does not answer after {START_DEADLINE_S:.0f} s; "
                    f"{self.last_words()}"
                )
            time.sleep(0.1)  # between two questions

    def is_ready(self, name_server: str) -> bool:
        """Whether it answers, and a broker's name server tells the default topic's route."""
        try:
            if self.name == "name-server":
                return ask(self.address, CLUSTER_INFO)[0] == 0
            if ask(self.address, RUNTIME_INFO)[0] != 0:
                return False
            topic = "TBW102" if self.is_master else "SELF_TEST_TOPIC"
            code, body = ask(name_server, ROUTE, topic=topic, acceptStandardJsonOnly="true")
            if code == 17 and self.facts["settings"].get("autoCreateTopicEnable") == "false":
                code, body = ask(name_server, CLUSTER_INFO)
            return code == 0 and f'"{self.address}"' in body.decode()
        except OSError:
            return False

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


# An instance: a name server and its brokers.


class Instance:
    """What runs in one folder."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder, self.version = folder, version
        self.file = folder / "cluster.json"
        self.parts: dict[str, Part] = {}

    def load(self) -> None:
        if not self.file.exists():
            raise Trouble(f"nothing was ever started in {self.folder}: ci/rocketmq.sh up first")
        facts = json.loads(self.file.read_text())
        self.version = facts["version"]
        self.parts = {
            name: Part(self.folder, self.version, name, part)
            for name, part in facts["parts"].items()
        }

    def plan(self, options: argparse.Namespace) -> None:
        """Choose ports and settings, and write them down."""
        ports = free_ports()
        heap = options.heap
        broker_java = [f"-Xms{heap // 2}m", f"-Xmx{heap}m", f"-XX:MaxDirectMemorySize={heap}m"]
        name_server_port = next(ports)
        facts: dict[str, Any] = {
            "name-server": {
                "main": "org.apache.rocketmq.namesrv.NamesrvStartup",
                "port": name_server_port,
                "java": ["-Xms64m", "-Xmx128m"],
                "settings": {"listenPort": str(name_server_port)},
            }
        }
        for letter in "abcdefgh"[: options.brokers]:
            for slave in (False, True) if options.slave else (False,):
                port = next(ports)
                name = f"broker-{letter}"
                part = f"{name}-slave" if slave else name
                role = "SLAVE" if slave else "ASYNC_MASTER"
                settings = {
                    **BROKER_SETTINGS,
                    "brokerName": name,
                    "brokerId": "1" if slave else "0",
                    "brokerRole": role,
                    "listenPort": str(port),
                    "haListenPort": str(port + 1),
                    "namesrvAddr": f"127.0.0.1:{name_server_port}",
                    "storePathRootDir": str(self.folder / part / "store"),
                    "storePathCommitLog": str(self.folder / part / "store" / "commitlog"),
                    **settings_of(options),
                }
                facts[part] = {
                    "main": "org.apache.rocketmq.broker.BrokerStartup",
                    "port": port,
                    "java": broker_java,
                    "settings": settings,
                }
        for name, facts_of_part in facts.items():
            own = [option_for(name, option) for option in options.java]
            facts_of_part["java"] = [*facts_of_part["java"], *filter(None, own)]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(
            json.dumps({"version": self.version, "parts": facts}, indent=1, sort_keys=True) + "\n"
        )
        self.load()

    @property
    def name_server(self) -> str:
        return self.parts["name-server"].address

    def write_environment(self) -> None:
        brokers = ";".join(p.address for n, p in self.parts.items() if n != "name-server")
        (self.folder / "env").write_text(
            f"ROCKETMQ_VERSION={self.version}\n"
            f"ROCKETMQ_NAME_SERVERS={self.name_server}\n"
            f"ROCKETMQ_BROKERS='{brokers}'\n"
            f"ROCKETMQ_FOLDER='{self.folder}'\n"
            f"ROCKETMQ_CLASS_PATH='{class_path(self.version)}'\n"
        )

    def chosen(self, names: list[str]) -> list[Part]:
        """The parts of these names, all if there are none; name server first, slaves last."""
        for name in names:
            if name not in self.parts:
                known = ", ".join(sorted(self.parts))
                raise Trouble(f"{name!r} is no part of this instance: it has {known}")
        chosen = [self.parts[name] for name in names or self.parts]
        return sorted(chosen, key=lambda p: (p.name != "name-server", not p.is_master, p.name))

    def start(self, parts: list[Part]) -> None:
        for part in parts:
            part.start()
            if part.name == "name-server":  # a broker that does not find it tries every 30 s
                part.wait_until_ready(self.name_server)
        for part in parts:
            part.wait_until_ready(self.name_server)

    def stop(self, parts: list[Part], number: signal.Signals) -> None:
        for part in parts:
            part.signal(number)
        for part in parts:
            part.wait_until_gone()


def settings_of(options: argparse.Namespace) -> dict[str, str]:
    lines = [line for file in options.properties for line in file.read_text().splitlines()]
    found = {}
    for line in [*lines, *options.set]:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise Trouble(f"{line!r}: expected a broker's setting, as autoCreateTopicEnable=false")
        found[name.strip()] = value.strip()
    return found


def option_for(part: str, option: str) -> str:
    """A --java option as this part takes it; empty if it is for another."""
    if option.startswith("-"):
        return option
    name, _, own = option.partition(":")
    return own if name == part else ""


def free_ports() -> Iterator[int]:
    """Ports p of which p-2 (a broker's VIP port), p and p+1 (its replicas') are free."""
    taken: set[int] = set()
    while True:
        port = random.choice(PORTS)
        wanted = {port - 2, port - 1, port, port + 1}
        if taken.isdisjoint(wanted) and all(is_free(number) for number in wanted):
            taken |= wanted
            yield port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


# The commands.


def up(instance: Instance, options: argparse.Namespace) -> None:
    if instance.file.exists():
        instance.load()
        if any(part.pid() is not None for part in instance.parts.values()):
            raise Trouble(f"an instance runs in {instance.folder}: take it down first")
        shutil.rmtree(instance.folder)
    elif instance.folder.exists() and any(instance.folder.iterdir()):
        raise Trouble(f"{instance.folder} holds other things: name a folder that `down` may remove")
    instance.plan(options)
    parts = instance.chosen([])
    try:
        instance.start(parts)
    except BaseException:
        instance.stop(parts, signal.SIGKILL)
        raise
    instance.write_environment()
    print(instance.name_server)


def down(instance: Instance, options: argparse.Namespace) -> None:
    if not instance.file.exists():
        return
    instance.load()
    # A broker takes ten seconds to end in order; data that is thrown away need not be in order.
    instance.stop(instance.chosen([]), signal.SIGTERM if options.keep else signal.SIGKILL)
    if not options.keep:
        shutil.rmtree(instance.folder)


def status(instance: Instance, options: argparse.Namespace) -> None:
    instance.load()
    ready = True
    for part in instance.chosen([]):
        pid = part.pid()
        answers = pid is not None and part.is_ready(instance.name_server)
        ready = ready and answers
        told = "down" if pid is None else f"pid {pid}, {'ready' if answers else 'not ready'}"
        print(f"{part.name}\t{part.address}\t{told}")
    if not ready:
        sys.exit(3)


def one_part(instance: Instance, options: argparse.Namespace) -> None:
    instance.load()
    parts = instance.chosen(options.parts)
    if options.command == "start":
        instance.start(parts)
    else:
        number = {"stop": signal.SIGTERM, "kill": signal.SIGKILL}[options.command]
        instance.stop(parts, number)


def jars(instance: Instance, options: argparse.Namespace) -> None:
    print(class_path(instance.version))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ci/rocketmq.sh",
        description="Starts and stops a real RocketMQ on 127.0.0.1. Needs Java 17 and Maven.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("version", metavar="VERSION", help="as 5.3.3")
    shared.add_argument(
        "--folder", type=Path, help="where the instance lives (default: build/rocketmq/VERSION)"
    )

    def command(name: str, run: Any, told: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, parents=[shared], help=told, description=told)
        added.set_defaults(run=run)
        return added

    starting = command("up", up, "start a name server and brokers, wait until they answer")
    starting.add_argument("--brokers", type=int, default=1, metavar="N", help="masters (1)")
    starting.add_argument("--slave", action="store_true", help="each master gets a slave")
    starting.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a broker's setting"
    )
    starting.add_argument(
        "--properties", action="append", default=[], type=Path, metavar="FILE",
        help="brokers' settings from a file",
    )  # fmt: skip
    starting.add_argument("--heap", type=int, default=384, metavar="MIB", help="a broker's (384)")
    starting.add_argument(
        "--java", action="append", default=[], metavar="[PART:]OPTION",
        help="for java, as --java=-Da=b or --java=broker-b:-Da=b",
    )  # fmt: skip
    ending = command("down", down, "end what `up` started, and remove its data")
    ending.add_argument("--keep", action="store_true", help="end in order, leave data and logs")
    command("status", status, "what runs; exit code 3 unless all of it answers")
    for name, told in (
        ("start", "start parts again, on their ports, with their data"),
        ("stop", "end parts in order"),
        ("kill", "end parts as a crash would"),
    ):
        added = command(name, one_part, told)
        added.add_argument("parts", nargs="+", metavar="PART", help="name-server, broker-a, ...")
    command("jars", jars, "fetch the jars, and print the class path")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    folder = options.folder or ROOT / "build" / "rocketmq" / options.version
    try:
        for tool, what in (("java", "a JDK 17 or later"), ("mvn", "Maven")):
            if shutil.which(tool) is None:
                raise Trouble(
                    f"{tool} not found: install {what} (Debian: apt install openjdk-17-jdk maven)"
                )
        options.run(Instance(folder.resolve(), options.version), options)
    except Trouble as trouble:
        say(str(trouble))
        sys.exit(1)


if __name__ == "__main__":
    main()
