"""Messages that a broker has stored as one record (docs/internals/protocol.md#batch-topics) fail.

The embedded broker has no batch topics: a proxy makes an inner batch of each record of a pull.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from ordermq import Admin, ParkKey, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker, message_routing
from ordermq.errors import RouteError
from ordermq.model.message import INNER_BATCH
from ordermq.model.stored_message import StoredMessage, split_records
from ordermq.remoting.command import Command
from tests.component.conftest import Seen, eventually, numbered
from tests.component.damaging_proxy import DamagingProxy
from tests.component.test_orderly_consumer import send_all

COUNT, POISON = 60, {7, 8, 31}


def batched(command: Command) -> None:
    """Make each record of an answer to a pull of topic `orders` one that holds its message."""
    if "nextBeginOffset" not in command.ext or not command.body:
        return
    records = []
    for record in split_records(command.body):
        stored = StoredMessage.read(record)
        if stored.topic != "orders":
            return
        size = 22 + len(stored.body) + len(stored.properties)
        head = struct.pack(">iiiii", size, 0, 0, stored.flag, len(stored.body))
        body = head + stored.body + struct.pack(">h", len(stored.properties)) + stored.properties
        holding = replace(stored, body=body, sys_flag=stored.sys_flag | INNER_BATCH)
        records.append(holding.rewritten("orders", b""))
    command.body = b"".join(records)


@pytest.fixture
def consumer_of(broker: EmbeddedBroker, producer: Producer) -> Iterator[Callable[..., Any]]:
    send_all(producer, numbered(COUNT, keys=6))
    with DamagingProxy(broker.address, batched) as proxy:
        made: list[PushConsumer] = []

        def make(**settings: Any) -> PushConsumer:
            given = {"consume_from_where": "first_offset", "pause_after_dead_letters": 0}
            consumer = PushConsumer("g", name_servers=proxy.address, **given | settings)
            consumer.subscribe("orders")
            made.append(consumer)
            return consumer

        yield make
        for consumer in made:
            consumer.close(10)


class Listener:
    """Fails at each message of POISON."""

    def __init__(self) -> None:
        self.tries: Counter[int] = Counter()
        self.done = Seen()

    def __call__(self, messages: Any, context: Any) -> None:
        for message in messages:
            self.tries[int(bytes(message.body))] += 1
        if any(int(bytes(message.body)) in POISON for message in messages):
            raise ValueError("a test's own failure")
        self.done.take(messages, context)


def stored_in(broker: EmbeddedBroker, topic: str) -> list[int]:
    with Admin(broker.name_servers) as admin:
        try:
            found = admin.peek(topic, COUNT, start="first")
        except RouteError:
            return []  # the first copy makes it
    return sorted(int(bytes(each.body)) for each in found)


@pytest.mark.parametrize("is_concurrent", [False, True])
def test_a_dead_letter_has_the_message_alone(
    broker: EmbeddedBroker, consumer_of: Callable[..., PushConsumer], is_concurrent: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    levels = len(message_routing.DELAY_LEVELS_MS)
    monkeypatch.setattr(message_routing, "DELAY_LEVELS_MS", (1,) * levels)
    listener = Listener()
    limit = {"max_reconsume_times": 1} if is_concurrent else {"max_attempts": 2}
    consumer = consumer_of(suspend_current_queue_time_ms=10, **limit)
    (consumer.concurrently if is_concurrent else consumer.orderly)(listener)
    consumer.start()
    listener.done.wait_for_count(COUNT - len(POISON))
    eventually(lambda: consumer.statistics["dead_letters"] == len(POISON), "its dead letters")
    assert {number: listener.tries[number] for number in POISON} == dict.fromkeys(POISON, 2)
    assert stored_in(broker, "%DLQ%g") == sorted(POISON)
    assert consumer.health().is_ready


def test_a_parked_key_has_each_message_alone(
    broker: EmbeddedBroker, consumer_of: Callable[..., PushConsumer]
) -> None:
    listener = Listener()
    consumer = consumer_of(
        order_by_key=True, max_attempts=1, on_failure=ParkKey("parked"), pull_batch_size=8
    )
    consumer.orderly(listener)
    consumer.start()
    parked = [each for each in range(COUNT) if each % 6 in {1, 2} and each >= 7]
    listener.done.wait_for_count(COUNT - len(parked))
    eventually(lambda: stored_in(broker, "parked") == parked, "the messages of the keys")
    assert consumer.health().is_ready
