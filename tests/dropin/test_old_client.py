"""The C++ client in the wheel of 0.4.4 beside ours on a real RocketMQ: while programs move over.

The wheel is installed by the benchmarks' peer, in an environment of its own; it is for Linux.
"""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers.environments import python_with
from bench.peers.rocketmq_044 import PACKAGE
from ordermq.rocketmq.client import Message, Producer, PullConsumer, PushConsumer, ReceivedMessage
from tests.dropin.conftest import INSTANCE
from tests.dropin.old_programs import Program
from tests.interop.cluster import Cluster, eventually

pytestmark = pytest.mark.timeout(300)
NUMBERS = [*range(8), -3, 13]
SENDER = """
import os, sys
from rocketmq.client import Message, Producer
producer = Producer("old")
producer.set_namesrv_addr(sys.argv[1])
producer.start()
for word in sys.argv[3:]:
    message = Message(sys.argv[2])
    message.set_body("old " + word)
    producer.send_orderly(message, int(word))
os._exit(0)
"""
MEMBER = """
import os, sys, threading
from rocketmq.client import PushConsumer
def take(message):
    os.write(1, b"got " + message.body + bytes([10]))  # whole: its threads print at once
consumer = PushConsumer(sys.argv[3], orderly=True)
consumer.set_namesrv_addr(sys.argv[1])
consumer.subscribe(sys.argv[2], take)
consumer.start()
print("started")
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster(Path(INSTANCE))


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"mixed-{uuid.uuid4().hex[:8]}"
    cluster.put_topic(name, {"broker-a": 4, "broker-b": 4})
    return name


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    old = python_with(PACKAGE)
    monkeypatch.setenv("HOME", str(tmp_path))  # its logs
    monkeypatch.setattr("sys.executable", str(old))
    return tmp_path


def message(topic: str, body: str) -> Message:
    made = Message(topic)
    made.set_body(body)
    return made


def test_an_orderly_argument_goes_to_the_queue_the_old_client_chooses(
    cluster: Cluster, topic: str, home: Path
) -> None:
    words = [str(number) for number in NUMBERS]
    (home / "sender.py").write_text(SENDER)
    Program(home, "sender.py", cluster.name_servers, topic, *words).finish()
    producer = Producer("new")
    producer.set_namesrv_addr(cluster.name_servers)
    with producer:
        for word in words:
            producer.send_orderly(message(topic, f"new {word}"), int(word))
    places: dict[str, dict[str, object]] = defaultdict(dict)
    reader = PullConsumer("reader")
    reader.set_namesrv_addr(cluster.name_servers)
    with reader:
        for got in reader.pull(topic):
            who, _, word = str(got).partition(" ")
            places[word][who] = got._view.message_queue
    assert set(places) == set(words)
    for word, found in places.items():
        assert found["old"] == found["new"], word


@pytest.fixture
def old_member(cluster: Cluster, topic: str, home: Path) -> Iterator[Program]:
    (home / "member.py").write_text(MEMBER)
    program = Program(home, "member.py", cluster.name_servers, topic, f"group-{topic}")
    yield program
    program.end()


def test_an_old_and_a_new_member_share_an_ordered_group(
    cluster: Cluster, topic: str, old_member: Program
) -> None:
    old_member.wait_for(lambda lines: "started" in lines)
    lock = threading.Lock()
    mine: list[tuple[int, str]] = []

    def take(got: ReceivedMessage) -> None:
        with lock:
            mine.append((int(got["number"]), got["key"].decode()))

    member = PushConsumer(f"group-{topic}", orderly=True)
    member.set_namesrv_addr(cluster.name_servers)
    member.subscribe(topic, take)
    producer = Producer("new")
    producer.set_namesrv_addr(cluster.name_servers)
    with member, producer:
        eventually(lambda: share(member, topic) == 4, "ours has half of the eight queues")
        for number in range(400):
            sent = message(topic, str(number))
            sent.set_property("number", str(number))
            sent.set_property("key", f"k{number % 16}")
            producer.send_orderly(sent, number % 16)
        eventually(lambda: len(mine) >= 200, "ours got its half")
        old_member.wait_for(lambda lines: len(deliveries(lines)) >= 200)
    theirs = deliveries(old_member.lines)
    assert {number for number, _ in mine} | set(theirs) == set(range(400))
    assert mine != []
    assert theirs != []
    for key in range(16):
        for numbers in (
            [n for n, _ in mine if n % 16 == key],
            [n for n in theirs if n % 16 == key],
        ):
            assert numbers == sorted(numbers), f"key {key} out of order"


def share(member: PushConsumer, topic: str) -> int:
    assert member._engine is not None
    return sum(queue.topic == topic for queue in member._engine.assigned_queues())


def deliveries(lines: list[str]) -> list[int]:
    """The numbers the old member printed."""
    return [int(line.split()[1]) for line in lines if line.startswith("got ")]
