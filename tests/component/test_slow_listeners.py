"""A listener that does not return: logged once with its stack; its queue keeps its lock."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ordermq import Producer, PushConsumer
from ordermq.config import BrokerConfig
from tests.component.conftest import Seen, assert_in_order, eventually, numbered
from tests.component.test_key_ordered_consumer import orders_queue
from tests.component.test_orderly_consumer import send_all

MakeConsumer = Callable[..., PushConsumer]
LOCK_MS = 3_000


@pytest.fixture
def broker_config() -> BrokerConfig:
    """Locks that end while the listener hangs, unless they are renewed."""
    return BrokerConfig(broker_name="b", durability="os", lock_max_live_ms=LOCK_MS)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "listener has not returned" in text]


@pytest.mark.parametrize("kind", ["orderly", "by key", "async", "async by key"])
def test_a_hanging_listener_is_logged_once_with_offset_and_stack_and_keeps_its_lock(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    caplog.set_level(logging.ERROR, logger="ordermq.consumer")
    send_all(producer, numbered(20, keys=1))
    let_go = threading.Event()

    def where_it_hangs() -> None:
        assert let_go.wait(20)

    async def where_it_hangs_too() -> None:
        while not let_go.is_set():
            await asyncio.sleep(0.001)

    def listen(messages: Any, context: Any) -> None:
        if messages[0].queue_offset == 7:
            where_it_hangs()
        seen.take(messages, context)

    async def listen_async(messages: Any, context: Any) -> None:
        if messages[0].queue_offset == 7:
            await where_it_hangs_too()
        seen.take(messages, context)

    is_async = kind.startswith("async")
    consumer = make_consumer(
        listen_async if is_async else listen,
        consume_timeout_ms=50,
        order_by_key=kind.endswith("key"),
    )
    with consumer:
        eventually(lambda: consumer.statistics["slow_listeners"] == 1, "the slow call is counted")
        told_ms = consumer._clock.now_ms()
        # Renewed after many looks, by when a lock that was not renewed would near its end.
        held = orders_queue(consumer)
        eventually(lambda: held.lease.deadline_ms > told_ms + LOCK_MS, "the lock is renewed")
        assert consumer.statistics["slow_listeners"] == 1
        let_go.set()
        seen.wait_for_count(20)
    assert consumer.statistics["leases_lost"] == 0
    assert_in_order(seen, 20, keys=1)
    assert seen.duplicates() == 0
    (text,) = logged(caplog)
    assert "at offsets 7-7;" in text
    assert ("where_it_hangs_too" if is_async else "where_it_hangs") in text


def test_a_batch_whose_concurrent_listener_hangs_is_sent_back_and_its_stack_logged(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, logger="ordermq.consumer")
    send_all(producer, numbered(1))
    let_go = threading.Event()

    def where_it_hangs() -> None:
        assert let_go.wait(20)

    def listen(messages: Any, context: Any) -> None:
        where_it_hangs()
        seen.take(messages, context)

    with make_consumer(listen, concurrent=True, consume_timeout_ms=50) as consumer:
        eventually(lambda: consumer.statistics["sent_back"] == 1, "it is sent back")
        let_go.set()
        seen.wait_for_count(1)
    (text,) = logged(caplog)
    assert "where_it_hangs" in text
