"""Kafka and Spark's connector to it as peers: fetched by Maven once, outside of the checkout.

One broker in KRaft mode on loopback, its data in a folder that goes with it. Needs a Java 17
runtime and Maven.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VERSION = "4.1.1"
# Spark's connector appears on Maven Central later than PySpark on PyPI: the newest one there runs
# on every Spark of the same major version and Scala.
CONNECTOR_VERSION = "4.2.0"
# The second one has the command that creates topics.
_SERVER = (f"org.apache.kafka:kafka_2.13:{VERSION}", f"org.apache.kafka:kafka-tools:{VERSION}")
_CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}"
# The rest of what Maven brings is in Spark's own folder, and two of a kind do not go together.
_CONNECTOR_JARS = (
    "spark-sql-kafka",
    "spark-token-provider-kafka",
    "kafka-clients",
    "commons-pool2",
)
_START_S = 90.0


def _jars(*artifacts: str) -> Path:
    """Fetch artifacts and what they need unless they are there; return the folder.

    Raises: subprocess.CalledProcessError: Maven failed, and printed the reason.
    """
    parts = [one.split(":") for one in artifacts]
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, name, version in parts
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ordermq"
    folder = cache / "-".join((*(name for _, name, _ in parts), parts[0][2]))
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        pom = folder / "pom.xml"
        pom.write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>ordermq</groupId>"
            f"<artifactId>peer</artifactId><version>1</version><dependencies>{dependencies}"
            "</dependencies></project>\n"
        )
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        subprocess.run(
            ["mvn", "-q", "-B", "-f", pom, *goal, "-DincludeScope=runtime"],
            check=True,
            stdout=sys.stderr,
        )
        (folder / "done").touch()
    return folder


def connector_jars() -> str:
    """Return Spark's connector to Kafka as `spark.jars` wants it."""
    found = sorted(_jars(_CONNECTOR).glob("*.jar"))
    return ",".join(str(one) for one in found if one.name.startswith(_CONNECTOR_JARS))


@dataclass(frozen=True, slots=True)
class Kafka:
    """A running broker."""

    address: str
    pid: int

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic. Spark's sink does not wait until one that it creates has leaders."""
        command = ["java", "-Xmx256m", "-cp", f"{_jars(*_SERVER)}/*"]
        command += ["org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.address]
        command += ["--create", "--topic", name, "--partitions", str(partitions)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def send_stamps(address: str, topic: str, rate: int, count: int) -> None:
    """Send messages at a rate; each is the time at which it was sent, in ms since 1970."""
    source = Path(__file__).parent / "kafka_sender" / "Sender.java"
    command = ["java", "-Xmx256m", "-cp", f"{_jars(*_SERVER)}/*", str(source), address, topic]
    subprocess.run([*command, str(rate), str(count)], check=True, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def kafka(folder: Path) -> Iterator[Kafka]:
    """Run a broker; its log is `folder/log`.

    Raises: RuntimeError: it did not start; the text has the end of its log.
    """
    class_path = f"{_jars(*_SERVER)}/*"
    client, controller = _free_ports()
    address = f"127.0.0.1:{client}"
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "server.properties"
    settings.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"listeners=PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller}\n"
        f"advertised.listeners=PLAINTEXT://{address}\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={folder / 'data'}\noffsets.topic.replication.factor=1\n"
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
        "share.coordinator.state.topic.replication.factor=1\n"
        "share.coordinator.state.topic.min.isr=1\ngroup.initial.rebalance.delay.ms=0\n"
    )
    java = ["java", "-Xmx1g", "-cp", class_path]
    made = ["format", "-t", "b3JkZXJtcS1iZW5jaC0wMQ", "-c", str(settings)]
    with (folder / "log").open("wb") as log:
        subprocess.run([*java, "kafka.tools.StorageTool", *made], check=True, stdout=log)
        process = subprocess.Popen([*java, "kafka.Kafka", settings], stdout=log, stderr=log)
    try:
        _await(process, client, folder / "log")
        yield Kafka(address, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"Kafka did not start: {log.read_text()[-2_000:]}")
        time.sleep(0.2)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
