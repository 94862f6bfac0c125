"""Namespaces: Java and ordermq share names within a namespace and none across."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ordermq import ConsumeResult, DeadLetter, Message, Producer, PushConsumer
from ordermq.model.names import wrapped
from ordermq.remoting.codes import RequestCode
from tests.interop.cluster import Cluster, eventually
from tests.interop.java_process import JavaProcess
from tests.interop.run import Run

TENANT = "MQ_INST_shop"
NAMED = {"namespace": TENANT}
Make = Callable[..., PushConsumer]


class Seen:
    """Bodies that listeners got, with the topic they were delivered under."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.taken: list[tuple[bytes, str]] = []

    def take(self, messages: Any, context: Any) -> None:
        with self._lock:
            self.taken += [(bytes(message.body), message.topic) for message in messages]

    def bodies(self) -> list[int]:
        with self._lock:
            return [int(body) for body, _ in self.taken]


@pytest.fixture
def make(run: Run) -> Iterator[Make]:
    made: list[PushConsumer] = []

    def start(
        listener: Any, group: str = "", topic: str = "", way: str = "orderly", **settings: Any
    ) -> PushConsumer:
        consumer = PushConsumer(
            group or run.group,
            name_servers=run.cluster.name_servers,
            **({"consume_from_where": "first_offset", "commit_interval_ms": 100} | settings),
        )
        consumer.subscribe(topic or run.topic)
        getattr(consumer, way)(listener)
        consumer.start()
        made.append(consumer)
        return consumer

    yield start
    for consumer in made:
        consumer.close(10.0)


def send(run: Run, count: int, **settings: Any) -> None:
    with Producer("p", name_servers=run.cluster.name_servers, **settings) as producer:
        for number in range(count):
            producer.send(Message(run.topic, str(number).encode()), sharding_key="k")


def members(cluster: Cluster, group: str) -> bytes:
    ext = {"consumerGroup": group}
    return cluster.ask("broker-a", RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext).body


def test_topics_and_groups_of_namespaces_are_separate(run: Run, make: Make) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1})
    run.cluster.put_topic(wrapped(TENANT, run.topic), {"broker-a": 2})
    send(run, 30, **NAMED)
    send(run, 5)
    tenants, others = Seen(), Seen()
    member = make(tenants.take, **NAMED)
    make(others.take)
    eventually(lambda: len(tenants.bodies()) == 30 and len(others.bodies()) == 5, "everything")
    assert tenants.bodies() == list(range(30))
    assert {topic for _, topic in tenants.taken} == {run.topic}
    assert {queue.topic for queue in member.assigned_queues()} == {run.topic}
    assert {each.queue.topic for each in member.held_queues()} == {
        run.topic,
        f"%RETRY%{run.group}",
    }
    assert member.client_id.encode() in members(run.cluster, f"{TENANT}%{run.group}")
    assert member.client_id.encode() not in members(run.cluster, run.group)
    member.close()

    def is_committed() -> bool:
        saved = run.cluster.saved_offsets("broker-a", f"{TENANT}%{run.group}")
        offsets = saved.get(f"{TENANT}%{run.topic}", {})  # and the epochs of the two queues
        return offsets.get(0, 0) + offsets.get(1, 0) == 30

    eventually(is_committed, "the commits lie in the namespace")


def test_retries_and_dead_letters_stay_within_the_namespace(run: Run, make: Make) -> None:
    run.cluster.put_topic(wrapped(TENANT, run.topic), {"broker-a": 1})
    send(run, 3, **NAMED)
    seen, dead = Seen(), Seen()
    attempts: list[tuple[int, str]] = []

    def listen(messages: Any, context: Any) -> ConsumeResult:
        number = int(bytes(messages[0].body))
        if number:
            attempts.append((number, messages[0].topic))
            context.delay_level = 1 if number == 1 else -1
            if number == 2 or context.attempt == 0:
                return ConsumeResult.SUSPEND
        seen.take(messages, context)
        return ConsumeResult.SUCCESS

    make(listen, way="concurrently", **NAMED)
    eventually(lambda: sorted(seen.bodies()) == [0, 1], "the one that was sent back")
    make(dead.take, group=f"{run.group}-dead", topic=f"%DLQ%{run.group}", **NAMED)
    eventually(lambda: dead.bodies() == [2], "the buried one")
    assert attempts.count((1, run.topic)) == 2, "it came back under the name it was sent to"


def test_dead_letters_of_an_orderly_group_stay_within_its_namespace(run: Run, make: Make) -> None:
    run.cluster.put_topic(wrapped(TENANT, run.topic), {"broker-a": 1})
    send(run, 3, **NAMED)
    seen, dead = Seen(), Seen()

    def listen(messages: Any, context: Any) -> None:
        if bytes(messages[0].body) == b"1":
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    make(
        listen,
        on_failure=DeadLetter(),
        max_attempts=2,
        suspend_current_queue_time_ms=10,
        **NAMED,
    )
    eventually(lambda: seen.bodies() == [0, 2], "the others")
    make(dead.take, group=f"{run.group}-dead", topic=f"%DLQ%{run.group}", **NAMED)
    eventually(lambda: dead.bodies() == [1], "the buried one")


def java_member(run: Run, group: str) -> JavaProcess:
    return run.java(group=group, **NAMED)


def test_java_and_ordermq_read_each_others_messages_within_a_namespace(
    run: Run, make: Make
) -> None:
    run.cluster.put_topic(wrapped(TENANT, run.topic), {"broker-a": 2})
    send(run, 10, **NAMED)
    java = java_member(run, f"{run.group}-java")
    sender = JavaProcess(
        run.cluster.version, "Sender", run.folder, name_servers=run.cluster.name_servers, **NAMED
    )
    try:
        received = [java.read() for _ in range(10)]
        assert [int(line["body"]) for line in received] == list(range(10))
        assert {line["topic"] for line in received} == {run.topic}
        assert {line["properties"]["INSTANCE_ID"] for line in received} == {TENANT}
        assert len(sender.ask(f"ordered {run.topic} 10 10 1")["sent"]) == 10
        seen = Seen()
        make(seen.take, **NAMED)
        eventually(lambda: sorted(seen.bodies()) == list(range(20)), "what both sent")
        assert {topic for _, topic in seen.taken} == {run.topic}
    finally:
        java.kill()
        sender.kill()


def test_java_and_ordermq_share_a_group_within_a_namespace(run: Run, make: Make) -> None:
    run.cluster.put_topic(wrapped(TENANT, run.topic), {"broker-a": 4})
    ours = make(Seen().take, **NAMED)
    java = java_member(run, run.group)
    try:
        eventually(
            lambda: sum(q.topic == run.topic for q in ours.assigned_queues()) == 2, "half each"
        )
    finally:
        java.kill()


def test_namespace_v2_and_unit_name_are_sent_and_change_nothing_else(run: Run, make: Make) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1})
    told = {"namespace_v2": "tenant", "unit_name": "east", "unit_mode": True}
    send(run, 3, **told)
    seen = Seen()
    member = make(seen.take, instance_name="till-1", **told)
    eventually(lambda: seen.bodies() == [0, 1, 2], "all")
    assert re.search("@till-1#.*@east$", member.client_id)
    assert member.client_id.encode() in members(run.cluster, run.group)
