"""A real RocketMQ for tests and benchmarks: see `ci/rocketmq.sh --help`.

An instance is a folder: cluster.json names its parts and their ports; each part (name-server,
broker-a, ...) has a folder with its settings, data, logs and pid. Ports are chosen once, so a
part that is restarted has its old address.

| file | holds |
|---|---|
| here | the commands |
| instance.py | one folder with a name server and brokers |
| ports, settings, options of each part | plan.py |
| processes.py | one Java process |
| proxy.py | the proxy of RocketMQ 5: for gRPC clients, and its port for others |
| elections.py | replicas that choose their master |
| jars.py | the jars of a version, from Maven |
| remoting.py | one request of the remoting protocol, to ask whether a part runs |
| console.py | messages to the user, and the error that ends a command |
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from console import CommandError, report
from elections import KINDS
from instance import Instance
from jars import ARTIFACTS, GRPC_CLIENT, PROXY, VERSIONS, class_path
from proxy import MODES

ROOT = Path(__file__).resolve().parents[2]
EPILOG = f"""\
versions known to start: {", ".join(VERSIONS)}

example:
  ci/rocketmq.sh up 5.3.3 --brokers 2 --set autoCreateTopicEnable=false
  source build/rocketmq/5.3.3/env             # ROCKETMQ_NAME_SERVERS and more
  ci/rocketmq.sh kill 5.3.3 broker-a          # like kill -9
  ci/rocketmq.sh start 5.3.3 broker-a         # on its old port, with its old data
  ci/rocketmq.sh down 5.3.3
"""


def up(instance: Instance, options: argparse.Namespace) -> None:
    if instance.file.exists():
        instance.load()
        if any(part.pid() is not None for part in instance.parts.values()):
            raise CommandError(
                f"an instance runs in {instance.folder}: run ci/rocketmq.sh down first"
            )
        shutil.rmtree(instance.folder)
    elif instance.folder.exists() and any(instance.folder.iterdir()):
        raise CommandError(
            f"{instance.folder} is not empty: choose a folder that `down` may delete"
        )
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
    # A clean shutdown takes a broker ten seconds; data that is deleted needs none.
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
    print(class_path(instance.version, options.artifacts))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ci/rocketmq.sh",
        description="Start and stop RocketMQ on 127.0.0.1. Needs Java 17 and Maven.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("version", metavar="VERSION", help="for example 5.3.3")
    shared.add_argument(
        "--folder", type=Path, help="where the instance lives (default: build/rocketmq/VERSION)"
    )

    def command(name: str, run: Any, told: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, parents=[shared], help=told, description=told)
        added.set_defaults(run=run)
        return added

    starting = command("up", up, "start a name server and brokers, wait until they answer")
    starting.add_argument("--brokers", type=int, default=1, metavar="N", help="masters (1)")
    starting.add_argument("--slave", action="store_true", help="one slave per master")
    starting.add_argument(
        "--elections", choices=KINDS,
        help="three replicas of a broker that choose their master: by a controller or DLedger",
    )  # fmt: skip
    starting.add_argument(
        "--proxy", nargs="?", const="cluster", choices=MODES, metavar="MODE",
        help="also start a proxy (5.x): cluster, the default, or local: around each broker",
    )  # fmt: skip
    starting.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the brokers"
    )
    starting.add_argument(
        "--proxy-set", action="append", default=[], metavar="KEY=VALUE",
        help="a setting of the proxies, for example enableBatchAck=true",
    )  # fmt: skip
    starting.add_argument(
        "--properties", action="append", default=[], type=Path, metavar="FILE",
        help="settings of the brokers, from a file",
    )  # fmt: skip
    starting.add_argument(
        "--conf", action="append", default=[], type=Path, metavar="FILE",
        help="a file for ROCKETMQ_HOME/conf, for example plain_acl.yml",
    )  # fmt: skip
    starting.add_argument(
        "--heap", type=int, default=384, metavar="MIB", help="heap of each broker (384)"
    )
    starting.add_argument(
        "--java", action="append", default=[], metavar="[PART:]OPTION",
        help="a Java option, for example --java=-Da=b or --java=broker-b:-Da=b",
    )  # fmt: skip
    starting.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE",
        help="a variable of the Java processes, for example LD_PRELOAD=/lib/libfaketime.so.1",
    )  # fmt: skip
    ending = command("down", down, "stop all parts and delete their data")
    ending.add_argument("--keep", action="store_true", help="shut down cleanly, keep data and logs")
    command("status", status, "show the parts; exit code 3 unless all are ready")
    for name, told in (
        ("start", "start parts again, with their ports and data"),
        ("stop", "shut parts down cleanly"),
        ("kill", "kill parts (SIGKILL)"),
    ):
        added = command(name, one_part, told)
        added.add_argument("parts", nargs="+", metavar="PART", help="name-server, broker-a, ...")
    fetching = command("jars", jars, "fetch the jars and print the class path")
    fetching.set_defaults(artifacts=ARTIFACTS)
    for name, artifacts, told in (
        ("--proxy", PROXY, "those of the proxy"),
        ("--grpc-client", GRPC_CLIENT, "those of RocketMQ 5's own client; VERSION is the client's"),
    ):
        fetching.add_argument(
            name, action="store_const", dest="artifacts", const=artifacts, help=told
        )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    folder = options.folder or ROOT / "build" / "rocketmq" / options.version
    try:
        for tool, what in (("java", "a JDK 17 or later"), ("mvn", "Maven")):
            if shutil.which(tool) is None:
                raise CommandError(
                    f"{tool} not found: install {what} (Debian: apt install openjdk-17-jdk maven)"
                )
        options.run(Instance(folder.resolve(), options.version), options)
    except CommandError as error:
        report(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
