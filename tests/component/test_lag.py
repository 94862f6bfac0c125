"""`lag()` and `held_queues()`: how far a member is behind, from what it has done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ordermq import LitePullConsumer, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.queue.statistics import HeldQueue, Lag
from tests.component.conftest import Seen, eventually, numbered
from tests.component.test_orderly_consumer import send_all

MakeConsumer = Callable[..., PushConsumer]


def lags(consumer: PushConsumer | LitePullConsumer) -> list[Lag]:
    """The queues that are behind, or whose broker does not answer."""
    return [lag for lag in consumer.lag().values() if lag.messages or not lag.is_current]


def holding(consumer: PushConsumer) -> HeldQueue:
    (found,) = (queue for queue in consumer.held_queues() if queue.buffered_messages)
    return found


@pytest.mark.parametrize("concurrent", [False, True])
def test_what_waits_at_the_broker_behind_a_full_buffer_counts(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, concurrent: bool
) -> None:
    free = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        free.wait(60)
        seen.take(messages, context)

    send_all(producer, numbered(20, keys=1))
    consumer = make_consumer(
        listen, concurrent=concurrent, pull_threshold_for_queue=4, pull_batch_size=4
    )
    assert consumer.lag() == {}
    assert consumer.held_queues() == []
    consumer.start()
    try:
        eventually(lambda: [lag.messages for lag in lags(consumer)] == [20], "20 are behind")
        (lag,) = lags(consumer)
        assert lag.is_current
        eventually(lambda: lags(consumer)[0].seconds is not None, "the oldest was pulled")
        send_all(producer, numbered(5, keys=1, start=20))
        assert [lag.messages for lag in lags(consumer)] == [25], "nobody has pulled the last 5"
        held = holding(consumer)
        assert 0 < held.buffered_messages <= 8
        assert held.buffered_bytes > 0
        assert (held.lease_left_ms is None) is concurrent
        assert not held.is_paused
    finally:
        free.set()
    seen.wait_for_count(25)
    eventually(lambda: not lags(consumer), "nothing is behind")
    assert {lag.seconds for lag in consumer.lag().values()} == {0.0}
    consumer.pause()
    assert all(queue.is_paused for queue in consumer.held_queues())
    consumer.close()
    assert consumer.lag() == {}


def test_a_message_that_keeps_failing_is_behind_and_grows_older(
    producer: Producer, make_consumer: MakeConsumer
) -> None:
    def fail(messages: Any, context: Any) -> None:
        raise ValueError("a test's own failure")

    producer.send(Message("orders", b"poison"), sharding_key="k")
    consumer = make_consumer(fail, suspend_current_queue_time_ms=10)
    with consumer:
        eventually(lambda: bool(lags(consumer)), "it is behind")
        eventually(lambda: (lags(consumer)[0].seconds or 0.0) > 0.05, "it gets older")
        assert lags(consumer)[0].messages == 1


def test_a_broker_that_is_away_leaves_the_last_known_lag(
    broker: EmbeddedBroker, producer: Producer, make_consumer: MakeConsumer
) -> None:
    free = threading.Event()
    send_all(producer, numbered(9, keys=1))
    consumer = make_consumer(
        lambda messages, context: free.wait(60) and None,
        pull_threshold_for_queue=4,
        pull_batch_size=4,
    )
    consumer.start()
    try:
        eventually(lambda: [lag.messages for lag in lags(consumer)] == [9], "9 are behind")
        producer.close()
        broker.close()
        eventually(lambda: any(not lag.is_current for lag in lags(consumer)), "it is not current")
        assert max(lag.messages for lag in lags(consumer)) == 9
    finally:
        free.set()
        consumer.close(0.0)


def test_a_poller_is_behind_until_it_asks_for_more(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    consumer = LitePullConsumer(
        "g", name_servers=broker.name_servers, consume_from_where="first_offset", ordered=True
    )
    consumer.subscribe("orders")
    assert consumer.lag() == {}
    send_all(producer, numbered(3, keys=1))
    with consumer:
        assert len(consumer.poll(20_000)) == 3
        assert [lag.messages for lag in lags(consumer)] == [3]
        consumer.commit()
        eventually(lambda: not lags(consumer), "all is done")
    assert consumer.held_queues() == []
