"""The end of `close`: whatever does not answer or return, it comes when the time that was given is
over (docs/internals/semantics.md#graceful-shutdown)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ordermq import LitePullConsumer, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker, server
from ordermq.remoting.codes import RequestCode
from tests.component.conftest import Seen, eventually

# For requests that nothing answers: longer than a test may take.
PATIENT = {"request_timeout_ms": 600_000, "offset_timeout_ms": 600_000, "lock_timeout_ms": 600_000}


def push(broker: EmbeddedBroker, seen: Seen, mode: str, **settings: Any) -> PushConsumer:
    consumer = PushConsumer(
        "g", name_servers=broker.name_servers, consume_from_where="first_offset", **settings
    )
    consumer.subscribe("orders")
    (consumer.concurrently if mode == "concurrent" else consumer.orderly)(seen.take)
    return consumer


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """Set at the end of the test: what user code waits for."""
    is_over = threading.Event()
    yield is_over
    is_over.set()


@pytest.mark.parametrize("mode", ["orderly", "concurrent"])
def test_a_callback_that_hangs_does_not_hold_up_close(
    broker: EmbeddedBroker,
    producer: Producer,
    seen: Seen,
    hanging: threading.Event,
    caplog: pytest.LogCaptureFixture,
    mode: str,
) -> None:
    consumer = push(broker, seen, mode, on_revoked=lambda queue: hanging.wait())
    producer.send(Message("orders", b"1"), sharding_key="k")
    consumer.start()
    seen.wait_for_count(1)
    assert not consumer.close(0.2)
    assert not consumer.close()  # likewise later
    assert "closed while a callback (on_revoked or the like) still runs" in caplog.text
    with push(broker, seen, mode):  # the queues were handed over all the same
        producer.send(Message("orders", b"2"), sharding_key="k")
        seen.wait_for_count(2)


def test_a_callback_that_takes_its_time_is_waited_for(
    broker: EmbeddedBroker, producer: Producer, seen: Seen
) -> None:
    revoked: list[Any] = []
    consumer = push(broker, seen, "orderly", on_revoked=revoked.append)
    producer.send(Message("orders", b"1"), sharding_key="k")
    consumer.start()
    seen.wait_for_count(1)
    assert consumer.close()
    assert revoked


Close = Callable[[], object]


def make(kind: str, broker: EmbeddedBroker, seen: Seen) -> Close:
    """Start a client; return its `close`."""
    if kind == "producer":
        producer = Producer("p", name_servers=broker.name_servers, **PATIENT).start()
        producer.send(Message("orders", b"x"))
        return lambda: producer.close(0.2)
    if kind == "lite":
        poller = LitePullConsumer("g", name_servers=broker.name_servers, **PATIENT)
        poller.subscribe("orders")
        poller.start()
        return lambda: poller.close(0.2)
    consumer = push(broker, seen, kind, **PATIENT).start()
    eventually(lambda: bool(consumer.assigned_queues()), "it has queues")
    return lambda: consumer.close(0.2)


@pytest.mark.parametrize("kind", ["orderly", "concurrent", "lite", "producer"])
def test_a_broker_that_does_not_answer_does_not_hold_up_close(
    broker: EmbeddedBroker,
    producer: Producer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    producer.send(Message("orders", b"1"), sharding_key="k")
    close = make(kind, broker, seen)
    for code in (
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.HEART_BEAT,
    ):
        monkeypatch.setitem(server.HANDLERS, code, lambda *arguments: None)
    close()


def test_an_async_listener_that_blocks_its_loop_does_not_hold_up_close(
    broker: EmbeddedBroker, producer: Producer, hanging: threading.Event
) -> None:
    begun = threading.Event()
    consumer = PushConsumer(
        "g", name_servers=broker.name_servers, consume_from_where="first_offset"
    )
    consumer.subscribe("orders")

    @consumer.orderly
    async def listen(messages: Any, context: Any) -> None:
        begun.set()
        hanging.wait()  # where it should await

    producer.send(Message("orders", b"1"), sharding_key="k")
    consumer.start()
    assert begun.wait(30)
    assert not consumer.close(0.2)


def test_a_listener_that_fails_after_the_end_of_close_is_no_internal_error(
    broker: EmbeddedBroker,
    producer: Producer,
    seen: Seen,
    hanging: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "ordermq.consumer")
    begun = threading.Event()
    consumer = PushConsumer(
        "g", name_servers=broker.name_servers, consume_from_where="first_offset"
    )
    consumer.subscribe("orders")

    @consumer.concurrently
    def listen(messages: Any, context: Any) -> None:
        begun.set()
        hanging.wait()
        raise ValueError("a test's own failure")

    producer.send(Message("orders", b"1"), sharding_key="k")
    consumer.start()
    assert begun.wait(30)
    assert not consumer.close(0.2)
    hanging.set()
    eventually(lambda: "whoever has the queue next gets it again" in caplog.text, "it is told")
    assert "internal error" not in caplog.text
    assert consumer.statistics["internal_errors"] == 0
    with push(broker, seen, "concurrent"):
        seen.wait_for_count(1)
