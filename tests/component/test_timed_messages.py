"""Messages due at a time, and their recall: our producer and consumer on an embedded broker."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.errors import BrokerError, ConfigError
from tests.component.conftest import Seen

HOUR_MS = 3_600_000


def later(body: bytes, **when: int) -> Message:
    return Message("orders", body, **when)


def test_timed_messages_come_in_the_order_of_their_times(
    producer: Producer, make_consumer: Callable[..., PushConsumer], seen: Seen
) -> None:
    now_ms = time.time_ns() // 1_000_000
    queue = producer.queues("orders")[0]
    producer.send(later(b"third", deliver_at_ms=now_ms + 2_000), queue=queue)
    producer.send(later(b"second", delay_ms=500), queue=queue)
    producer.send(later(b"first"), queue=queue)
    with make_consumer(seen.take):
        seen.wait_for_count(3)
    assert [body for *_, body in seen.deliveries] == [b"first", b"second", b"third"]
    assert time.time_ns() // 1_000_000 >= now_ms + 2_000


def test_a_timed_message_is_recalled_by_its_receipt(
    producer: Producer, broker: EmbeddedBroker
) -> None:
    receipt = producer.send(later(b"x", delay_ms=HOUR_MS), sharding_key="k")
    assert receipt.recall_handle is not None
    assert producer.recall("orders", receipt.recall_handle) == receipt.message_id
    assert broker.statistics.timed_messages == 0
    with pytest.raises(BrokerError, match="delivered or recalled before"):
        producer.recall("orders", receipt.recall_handle)


def test_a_message_that_is_not_timed_has_no_recall_handle(producer: Producer) -> None:
    receipt = producer.send(later(b"x"))
    assert receipt.recall_handle is None
    with pytest.raises(ConfigError, match="None for a message that is not timed"):
        producer.recall("orders", receipt.recall_handle)  # type: ignore[arg-type]
    assert producer.send(later(b"x", delay_level=1)).recall_handle is None


@pytest.mark.parametrize("namespace", ["", "shop"])
def test_a_recall_says_what_is_wrong_with_its_handle(
    broker: EmbeddedBroker, namespace: str
) -> None:
    with Producer("p", name_servers=broker.name_servers, namespace=namespace) as producer:
        receipt = producer.send(later(b"x", delay_ms=HOUR_MS))
        assert receipt.recall_handle is not None
        with pytest.raises(ConfigError, match="belongs to topic 'orders'"):
            producer.recall("other", receipt.recall_handle)
        with pytest.raises(ConfigError, match="recall handle"):
            producer.recall("orders", "junk")


def test_a_timed_message_is_never_part_of_a_batch(
    producer: Producer, broker: EmbeddedBroker
) -> None:
    messages = [later(b"1"), later(b"2", delay_ms=HOUR_MS), later(b"3")]
    receipts = producer.send_batch(messages)
    assert [receipt.recall_handle is not None for receipt in receipts] == [False, True, False]
    assert broker.statistics.timed_messages == 1


def test_a_time_too_far_ahead_is_refused_with_the_limit(producer: Producer) -> None:
    with pytest.raises(BrokerError, match="259200000 ms ahead"):
        producer.send(later(b"x", delay_ms=3 * 24 * HOUR_MS + 60_000))
