"""A real RocketMQ for tests and benchmarks: see `ci/rocketmq.sh --help`.

An instance is a folder: cluster.json says what runs in it and where, each part (name-server,
broker-a, ...) has a folder with its settings, data, logs and pid. Ports are chosen once, so a
part that is stopped and started again is found where it was.

| question | file |
|---|---|
| the commands | here |
| a folder with a name server and brokers | instance.py |
| ports, settings, options of each part | facts.py |
| a Java process | processes.py |
| the proxy that gRPC clients need | proxy.py |
| where the classes come from | jars.py |
| asking a part whether it runs | wire.py |
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from instance import Instance
from jars import VERSIONS, class_path
from telling import Trouble, say

ROOT = Path(__file__).resolve().parents[2]
EPILOG = f"""\
versions known to start: {", ".join(VERSIONS)}

example:
  ci/rocketmq.sh up 5.3.3 --brokers 2 --set autoCreateTopicEnable=false
  source build/rocketmq/5.3.3/env             # ROCKETMQ_NAME_SERVERS and more
  ci/rocketmq.sh kill 5.3.3 broker-a          # as kill -9 does
  ci/rocketmq.sh start 5.3.3 broker-a         # on its old port, with its old data
  ci/rocketmq.sh down 5.3.3
"""


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
    starting.add_argument("--proxy", action="store_true", help="a proxy for gRPC clients (5.x)")
    starting.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a broker's setting"
    )
    starting.add_argument(
        "--properties", action="append", default=[], type=Path, metavar="FILE",
        help="brokers' settings from a file",
    )  # fmt: skip
    starting.add_argument(
        "--conf", action="append", default=[], type=Path, metavar="FILE",
        help="a file for ROCKETMQ_HOME/conf, as plain_acl.yml",
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
