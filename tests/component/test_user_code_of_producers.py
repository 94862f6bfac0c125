"""Selectors and hooks are the user's: whatever they do, the producer goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from ordermq import Message, Producer, SendCall, SendReceipt
from ordermq.broker import EmbeddedBroker
from ordermq.errors import StateError
from ordermq.model.message_queue import MessageQueue


@pytest.mark.parametrize("is_route_known", [False, True])
def test_a_selector_that_sends_with_its_own_producer_raises(
    broker: EmbeddedBroker, is_route_known: bool
) -> None:
    def select(queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
        if key == "sends":
            producer.send(Message("orders", b"from the selector"))
        return queues[0]

    with Producer("p", name_servers=broker.name_servers, selector=select) as producer:
        if is_route_known:
            producer.send(Message("orders", b"warm"))
            producer.queues("orders")
        with pytest.raises(StateError, match="selector sent"):
            producer.send(Message("orders", b"x"), sharding_key="sends")
        assert producer.send(Message("orders", b"y"), sharding_key="k").queue_offset >= 0


def test_a_selector_never_runs_on_the_io_thread(broker: EmbeddedBroker) -> None:
    ran_on: list[str] = []

    def select(queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
        ran_on.append(threading.current_thread().name)
        return queues[0]

    with Producer("p", name_servers=broker.name_servers, selector=select) as producer:
        events = [(Message("orders", str(n).encode()), "k") for n in range(20)]
        offsets = [receipt.queue_offset for receipt in producer.send_many(events)]
        assert offsets == list(range(20))  # in order, although the first wait for the route
        producer.queues("orders")
        producer.send(Message("orders", b"last"), sharding_key="k")
    assert len(ran_on) == 21
    assert "ordermq-io" not in ran_on
    assert ran_on[-1] == threading.current_thread().name


def test_a_selector_may_send_with_another_producer(broker: EmbeddedBroker) -> None:
    with Producer("other", name_servers=broker.name_servers) as other:

        def select(queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
            other.send(Message("audit", message.body))
            return queues[0]

        with Producer("p", name_servers=broker.name_servers, selector=select) as producer:
            for number in range(3):
                producer.send(Message("orders", str(number).encode()), sharding_key="k")


RAISED = [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]


@pytest.mark.parametrize("raised", RAISED)
def test_a_hook_that_raises_leaves_nobody_waiting(
    broker: EmbeddedBroker, raised: type[BaseException]
) -> None:
    class Hook:
        def before(self, call: SendCall) -> None: ...

        def after(self, call: SendCall) -> None:
            raise raised("a test's own")

    producer = Producer("p", name_servers=broker.name_servers)
    producer.add_hook(Hook())
    with producer:
        events = [(Message("orders", str(n).encode()), f"k{n % 3}") for n in range(30)]
        assert len(producer.send_many(events)) == 30
        batch = [Message("orders", b"x")] * 5
        assert len(producer.send_batch(batch, sharding_key="k0")) == 5
    assert producer.hook_errors == 35


@pytest.mark.parametrize("raised", RAISED)
def test_a_callback_that_raises_leaves_nobody_waiting(
    broker: EmbeddedBroker, raised: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def callback(sent: Future[SendReceipt]) -> None:
        raise raised("a test's own")

    told: list[Future[SendReceipt]] = []
    are_added = threading.Event()
    with Producer("p", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"the route is known"))
        # A callback that is added to a future that is done runs at once, on this thread.
        producer._live().runtime.post(are_added.wait, 30)
        sent = [producer.send_nowait(Message("orders", b"x"), sharding_key="k") for _ in range(50)]
        for each in sent:
            each.add_done_callback(callback)
            each.add_done_callback(told.append)
        are_added.set()
        offsets = [each.result(10).queue_offset for each in sent]
        producer.flush()
    assert offsets == list(range(offsets[0], offsets[0] + 50))
    assert sorted(map(id, told)) == sorted(map(id, sent))
    assert "a test's own" in caplog.text


@pytest.mark.parametrize("is_route_known", [False, True])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
def test_whatever_a_selector_raises_is_raised_by_its_send(
    broker: EmbeddedBroker, error: type[BaseException], is_route_known: bool
) -> None:
    """It was called again and again while the route was unknown, and `send` did not return."""
    calls: list[object] = []

    def select(queues: Sequence[MessageQueue], message: Message, key: object) -> MessageQueue:
        if key == "raises":
            calls.append(key)
            raise error
        return queues[0]

    with Producer("p", name_servers=broker.name_servers, selector=select) as producer:
        if is_route_known:
            producer.send(Message("orders", b"warm"))
            producer.queues("orders")
        with pytest.raises(error):
            producer.send(Message("orders", b"x"), sharding_key="raises")
        assert producer.send(Message("orders", b"y"), sharding_key="k").queue_offset >= 0
    assert calls == ["raises"]
