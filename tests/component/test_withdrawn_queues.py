"""Queues that an admin takes from their topic while messages in them are unread
(docs/internals/semantics.md#refusals)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ordermq import Admin, LitePullConsumer, Message, MessageQueue, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import DEADLINE_S, eventually

SOON: dict[str, Any] = {
    "route_interval_ms": 50,
    "rebalance_interval_ms": 100,
    "consume_from_where": "first_offset",
}
POP = {"consume_mode": "pop", "pop_invisible_ms": 2_000}
EACH = 5  # messages of each of four queues
DEADLINE_MS = int(DEADLINE_S * 1_000)


def set_queues(broker: EmbeddedBroker, count: int) -> None:
    with WireClient(broker.port) as client:
        client.create_topic("orders", count)


class Held:
    """A listener that waits with each message until the test opens the gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.bodies: list[bytes] = []

    def __call__(self, messages: Any, context: object) -> None:
        assert self.gate.wait(DEADLINE_S)
        self.bodies += [bytes(message.body) for message in messages]


@pytest.fixture
def full(broker: EmbeddedBroker) -> EmbeddedBroker:
    """Four queues with messages."""
    set_queues(broker, 4)
    with Producer("shop", name_servers=broker.name_servers) as producer:
        queues = producer.queues("orders")
        for number in range(4 * EACH):
            producer.send(Message("orders", b"%d" % number), queue=queues[number % 4])
    return broker


def problem_of(consumer: PushConsumer | LitePullConsumer) -> str:
    found = [each for each in consumer.health().reasons if "withdrawn queues" in each]
    return found[0] if found else ""


def queues_of(consumer: PushConsumer | LitePullConsumer) -> list[MessageQueue]:
    held = (
        consumer.assigned_queues() if isinstance(consumer, PushConsumer) else consumer.assignment()
    )
    return [each for each in held if each.topic == "orders"]


@pytest.mark.parametrize("kind", ["orderly", "by key", "concurrent", "pop"])
def test_what_is_unread_in_queues_that_a_topic_loses_is_told_and_comes_with_them_again(
    full: EmbeddedBroker, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = SOON | (POP if kind == "pop" else {})
    consumer = PushConsumer(
        "g",
        name_servers=full.name_servers,
        order_by_key=kind == "by key",
        consume_thread_count=2,  # so that a listener does not have them all at once
        **settings,
    )
    consumer.subscribe("orders")
    listener = Held()
    (consumer.concurrently if kind == "concurrent" else consumer.orderly)(listener)
    with consumer:
        eventually(lambda: len(queues_of(consumer)) == 4, "it has all queues")
        set_queues(full, 1)
        eventually(lambda: len(queues_of(consumer)) < 4, "it gives them up")
        listener.gate.set()  # two of them may have waited for their listeners
        eventually(lambda: "queues: 3, with " in problem_of(consumer), "it is not ready")
        assert not consumer.health().is_ready
        assert "mqadmin updateTopic -r" in problem_of(consumer)
        eventually(lambda: problem_of(consumer) in caplog.text, "it is told")
        assert caplog.text.count("withdrawn queues") == 1
        set_queues(full, 4)
        wanted = {b"%d" % number for number in range(4 * EACH)}
        eventually(lambda: set(listener.bodies) == wanted, "every message comes")
        eventually(lambda: not problem_of(consumer), "nothing is withdrawn")


def test_queues_that_were_read_empty_leave_without_a_word(
    full: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = LitePullConsumer("g", name_servers=full.name_servers, ordered=True, **SOON)
    consumer.subscribe("orders")
    left = 4 * EACH
    with consumer:
        while left:
            left -= len(consumer.poll(DEADLINE_MS))
        assert not consumer.poll(0)  # ends the last batch, or its queue would be kept
        set_queues(full, 1)
        eventually(lambda: len(queues_of(consumer)) == 1, "it gives three up")
        # Behind the look at them, which the pass after their release takes.
        set_queues(full, 2)
        eventually(lambda: len(queues_of(consumer)) == 2, "it takes one of them again")
        assert not problem_of(consumer)
    assert "withdrawn" not in caplog.text


@pytest.mark.parametrize("kind", ["orderly", "concurrent", "lite", "pop"])
def test_a_group_that_starts_behind_the_change_is_told_of_queues_it_had(
    full: EmbeddedBroker, kind: str
) -> None:
    settings = SOON | (POP if kind == "pop" else {})

    def member() -> PushConsumer | LitePullConsumer:
        if kind == "lite":
            poller = LitePullConsumer("g", name_servers=full.name_servers, **settings)
            poller.subscribe("orders")
            return poller
        consumer = PushConsumer("g", name_servers=full.name_servers, **settings)
        consumer.subscribe("orders")
        (consumer.concurrently if kind == "concurrent" else consumer.orderly)(
            lambda messages, context: bodies.extend(bytes(each.body) for each in messages)
        )
        return consumer

    bodies: list[bytes] = []
    with member() as before:
        eventually(lambda: len(queues_of(before)) == 4, "it has all queues")
        if isinstance(before, LitePullConsumer):
            while len(bodies) < 4 * EACH:
                bodies += [bytes(each.body) for each in before.poll(DEADLINE_MS)]
            before.poll(0)  # says that the last batch is done
        eventually(lambda: len(bodies) == 4 * EACH, "it consumes all messages")
    with Producer("shop", name_servers=full.name_servers) as producer:
        for number in range(4):
            producer.send(Message("orders", b"x"), queue=producer.queues("orders")[number])
    set_queues(full, 1)
    with member() as after, Admin(full.name_servers) as admin:
        eventually(lambda: "queues: 3, with 3 unread" in problem_of(after), "it is not ready")
        assert f"orders@b/1 from offset {EACH} on" in problem_of(after)
        state = admin.group("g")
        assert {queue.queue_id for queue in state.withdrawn} == {1, 2, 3}
        assert {each.offset for each in state.withdrawn.values()} == {EACH}
        set_queues(full, 4)
        eventually(lambda: not problem_of(after), "nothing is withdrawn")
        assert not admin.group("g").withdrawn


def test_a_new_group_is_told_of_no_queue_that_it_never_had(full: EmbeddedBroker) -> None:
    set_queues(full, 1)
    consumer = LitePullConsumer("new", name_servers=full.name_servers, **SOON)
    consumer.subscribe("orders")
    with consumer, Admin(full.name_servers) as admin:
        assert consumer.poll(DEADLINE_MS)
        assert not admin.group("new", ["orders"]).withdrawn
        assert not problem_of(consumer)
