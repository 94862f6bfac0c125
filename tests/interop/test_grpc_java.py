"""Members and producers of RocketMQ 5's own client for Java beside ordermq's, in one group and with
the same keys, at one proxy."""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq import Admin, Message, Producer, PushConsumer
from tests.interop.cluster import ROOT, Cluster, eventually
from tests.interop.line_process import LineProcess
from tests.interop.own_cluster import own_cluster
from tests.interop.test_grpc_keys import queues_of_keys

JAVA_CLIENT = "5.0.8"
SOURCES = Path(__file__).parent / "java" / "grpc"
TOPIC, GROUP = "orders-of-both", "billing-of-both"
KEYS = [f"customer-{number}" for number in range(16)]
ROUNDS = range(30, 300)  # a message of each key; at least so many, and until both have had some


@pytest.fixture
def proxied(cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    if cluster.version.startswith("4."):
        pytest.skip("the proxy came with RocketMQ 5")
    mixed = {"enableMixedMessageType": "true"}
    place = tmp_path / "rocketmq"
    with own_cluster(cluster.version, place, "--proxy=cluster", "--brokers=2", **mixed) as running:
        running.put_topic(TOPIC, {"broker-a": 4, "broker-b": 4}, message_type="MIXED")
        with Admin(running.name_servers) as admin:
            admin.create_group(GROUP, is_orderly=True)
        yield running


class JavaClients:
    """Programs with RocketMQ's own client, at one proxy."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        script = ["ci/rocketmq.sh", "jars", JAVA_CLIENT, "--grpc-client"]
        jars = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        self._start = ["java", "-Xmx200m", "-XX:TieredStopAtLevel=1", "-cp", jars.strip()]
        self._port = cluster.grpc.rpartition(":")[2]
        self._folder = folder

    def run(self, program: str, *arguments: str, **options: Any) -> LineProcess:
        # Its logs go to the home folder.
        home = f"-Duser.home={self._folder}"
        source = str(SOURCES / f"{program}.java")
        line = [*self._start[:1], home, *self._start[1:], source, self._port, *arguments]
        return LineProcess(line, self._folder, **options)


class Received:
    """Messages of one group, by the member that got them and by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.by_member: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))

    def add(self, member: str, key: str, number: int) -> None:
        with self._lock:
            self.by_member[member][key].append(number)

    def count(self) -> int:
        with self._lock:
            return sum(len(own) for keys in self.by_member.values() for own in keys.values())


@pytest.mark.timeout(300)
def test_java_and_python_share_a_group_and_the_queues_of_keys(
    proxied: Cluster, tmp_path: Path
) -> None:
    clients, received = JavaClients(proxied, tmp_path), Received()
    java = clients.run(
        "GrpcMember", TOPIC, GROUP,
        on_line=lambda line: received.add("java", line["key"], int(line["body"])),
    )  # fmt: skip
    sender = clients.run("GrpcProducer", TOPIC)
    member = PushConsumer(GROUP, name_servers=proxied.grpc, pop_invisible_ms=10_000)
    member.subscribe(TOPIC)

    @member.orderly
    def listen(messages: Any, context: Any) -> None:
        for each in messages:
            received.add("python", each.sharding_key, int(bytes(each.body)))

    by_proxy = Producer("shop", name_servers=proxied.grpc)
    by_brokers = Producer("shop", name_servers=proxied.name_servers, selector="grpc")
    try:
        with member, by_proxy, by_brokers:
            ways, rounds = itertools.cycle(("java", "proxy", "brokers")), 0
            for number in range(ROUNDS.stop):
                if number >= ROUNDS.start and len(received.by_member) == 2:
                    break
                rounds += 1
                for key in KEYS:
                    way = next(ways)
                    if way == "java":
                        sender.ask(f"{key} {number}")
                    else:
                        producer = by_proxy if way == "proxy" else by_brokers
                        message = Message(TOPIC, str(number).encode())
                        producer.send(message, sharding_key=key)
            eventually(lambda: received.count() >= rounds * len(KEYS), "all that was sent")
        sender.leave()
    finally:
        sender.kill()
        java.kill()  # its own close waits for receives of 20 s and more
    assert set(received.by_member) == {"java", "python"}, "both have had a share"
    for member_name, keys in received.by_member.items():
        for key, numbers in keys.items():
            assert numbers == sorted(set(numbers)), f"{key} at {member_name}"
    for key in KEYS:
        numbers = [n for keys in received.by_member.values() for n in keys[key]]
        assert sorted(numbers) == list(range(rounds)), key
    places = queues_of_keys(proxied, TOPIC)
    assert {key for key, found in places.items() if len(found) != 1} == set()
