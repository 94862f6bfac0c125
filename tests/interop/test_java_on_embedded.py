"""RocketMQ's client on the embedded broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.boot_time import to_boot_time_ns
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.remoting.codes import RequestCode
from tests.component.broker.wire_client import WireClient, queue_table
from tests.interop.cluster import Cluster, eventually
from tests.interop.java_process import JavaProcess

Line = dict[str, Any]
StartJava = Callable[..., JavaProcess]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    config = BrokerConfig(broker_name="embedded", durability="os")
    folder = tmp_path_factory.mktemp("embedded")
    with EmbeddedBroker(folder / "broker.db", config=config) as running:
        yield running


@pytest.fixture(scope="module")
def sender(
    broker: EmbeddedBroker, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaProcess]:
    folder = tmp_path_factory.mktemp("sender")
    process = JavaProcess(cluster.version, "Sender", folder, name_servers=broker.name_servers)
    yield process
    process.kill()


@pytest.fixture
def java(
    broker: EmbeddedBroker, cluster: Cluster, tmp_path: Path
) -> Iterator[Callable[..., JavaProcess]]:
    """Start Java programs; those that still run are killed after the test."""
    started: list[JavaProcess] = []

    def start(program: str, options: Sequence[str] = (), **arguments: object) -> JavaProcess:
        if program == "Member":
            number = len(started)
            arguments |= {
                "history": tmp_path / f"java-{number}.jsonl",
                "to_boot_time_ns": to_boot_time_ns(),
            }
        arguments |= {"name_servers": broker.name_servers}
        started.append(
            JavaProcess(cluster.version, program, tmp_path, options=options, **arguments)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()


def send(sender: JavaProcess, way: str, topic: str, count: int, *, first: int = 0) -> list[Line]:
    receipts: list[Line] = sender.ask(f"{way} {topic} {first} {count} 8 paid")["sent"]
    return receipts


def collect(process: JavaProcess, count: int) -> list[Line]:
    return [process.read() for _ in range(count)]


def committed(broker: EmbeddedBroker, group: str, topic: str) -> int:
    """Return the sum of the group's committed offsets."""
    port = int(broker.name_servers.rsplit(":", 1)[1])
    with WireClient(port) as client:
        ext = {"consumerGroup": group, "topic": topic}
        answer = client.wait(client.start(RequestCode.GET_CONSUME_STATS, ext))
    table = queue_table(answer.body)["offsetTable"]
    return sum(queue["consumerOffset"] for queue in table.values())


def numbers_by(lines: list[Line], name: str) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for line in lines:
        found.setdefault(line[name], []).append(int(line["body"]))
    return found


def test_every_send_method_of_javas_producer_is_stored_and_consumed(
    sender: JavaProcess, java: StartJava
) -> None:
    topic, sent = "ways", 0
    for way, count in (("ordered", 40), ("sync", 20), ("async", 20), ("oneway", 20), ("batch", 30)):
        receipts = send(sender, way, topic, count, first=sent)
        sent += count
        assert {receipt["status"] for receipt in receipts} <= {"SEND_OK"}
        assert len(receipts) == {"oneway": 0, "batch": 1}.get(way, count)
    member = java("Member", mode="orderly", group="ways", topic=topic)
    lines = collect(member, sent)
    member.leave()
    assert sorted(int(line["body"]) for line in lines) == list(range(sent))
    for line in lines:
        number = int(line["body"])
        assert line["flag"] == number
        assert line["tags"] == "paid"
        assert line["keys"] == f"word-{number} all"
        assert line["properties"]["名"] == "订单 😀"


@pytest.mark.parametrize("mode", ["orderly", "concurrent"])
def test_javas_push_consumer_gets_every_message_and_commits(
    sender: JavaProcess, java: StartJava, broker: EmbeddedBroker, mode: str
) -> None:
    topic = f"push-{mode}"
    send(sender, "ordered", topic, 200)
    member = java("Member", mode=mode, group=f"push-{mode}", topic=topic)
    lines = collect(member, 200)
    send(sender, "ordered", topic, 50, first=200)  # while it waits in a long poll
    lines += collect(member, 50)
    member.leave()
    if mode == "orderly":
        for key, numbers in numbers_by(lines, "key").items():
            assert numbers == sorted(numbers), f"key {key}"
    assert sorted(int(line["body"]) for line in lines) == list(range(250))
    assert committed(broker, f"push-{mode}", topic) == 250


def test_two_orderly_java_members_share_the_queues_and_keep_the_order(
    sender: JavaProcess, java: StartJava
) -> None:
    send(sender, "ordered", "shared", 8)
    one = java("Member", mode="orderly", group="shared", topic="shared")
    lines = collect(one, 8)
    two = java("Member", mode="orderly", group="shared", topic="shared")
    sent = 8
    seen: dict[str, list[Line]] = {"one": lines, "two": []}

    def both_work() -> bool:
        nonlocal sent
        send(sender, "ordered", "shared", 32, first=sent)
        sent += 32
        while len(seen["one"]) + len(seen["two"]) < sent:
            for name, process in (("one", one), ("two", two)):
                while (line := process.poll()) is not None:
                    seen[name].append(line)
        return bool(seen["two"])

    eventually(both_work, "the second member gets its share")
    one.leave()
    two.leave()
    by_place = {(line["queue"], line["offset"]): line for line in seen["one"] + seen["two"]}
    assert len(by_place) == sent


def test_a_message_that_a_concurrent_java_consumer_rejects_is_redelivered(
    sender: JavaProcess, java: StartJava
) -> None:
    send(sender, "sync", "again", 3)
    # Java looks for the route of the retry topic only when it rebalances, by default every 20 s.
    often = ["-Drocketmq.client.rebalance.waitInterval=1000"]
    member = java("Member", often, mode="concurrent", group="again", topic="again", fails=1)
    lines = collect(member, 3)
    member.leave()
    assert sorted(line["body"] for line in lines) == ["0", "1", "2"]
    assert {line["reconsumed"] for line in lines} == {1}
    assert {line["topic"] for line in lines} == {"again"}


def test_an_orderly_java_consumer_that_suspends_gets_the_same_message_next(
    sender: JavaProcess, java: StartJava
) -> None:
    send(sender, "ordered", "suspended", 40)
    member = java("Member", mode="orderly", group="suspended", topic="suspended", fails=1, batch=1)
    lines = collect(member, 40)
    member.leave()
    for key, numbers in numbers_by(lines, "key").items():
        assert numbers == sorted(numbers), f"key {key}"
    assert {line["reconsumed"] for line in lines} == {1}


def test_javas_lite_pull_consumer_polls_everything(
    sender: JavaProcess, java: StartJava, broker: EmbeddedBroker
) -> None:
    send(sender, "ordered", "pulled", 120)
    puller = java("Puller", group="pulled", topic="pulled", count=120)
    lines = collect(puller, 120)
    assert puller.read() == {"left": True}
    assert sorted(int(line["body"]) for line in lines) == list(range(120))
    assert committed(broker, "pulled", "pulled") == 120


def test_compressed_and_delayed_messages_of_java_arrive_unchanged(
    sender: JavaProcess, java: StartJava
) -> None:
    send(sender, "large", "special", 2)
    member = java("Member", mode="orderly", group="special", topic="special")
    lines = collect(member, 2)
    assert all(line["body"] == "x" * (1 << 20) for line in lines)
    send(sender, "delayed", "special", 2)
    assert sorted(line["body"] for line in collect(member, 2)) == ["0", "1"]
    member.leave()
