"""Calls of callbacks on the I/O thread: what would wait for that thread is refused, not hung."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from ordermq import (
    Admin,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from ordermq import TransactionState as State
from ordermq.broker import EmbeddedBroker
from ordermq.errors import StateError
from ordermq.model.recall_handle import RecallHandle
from tests.component.conftest import DEADLINE_S

QUEUE = MessageQueue("orders", "b", 0)
_HANDLE = RecallHandle("orders", "b", 1, "id").to_text()


class Clients:
    """One client of each kind, started."""

    def __init__(self, stack: contextlib.ExitStack, name_servers: str) -> None:
        begin = stack.enter_context
        self.producer = begin(Producer("p", name_servers=name_servers))
        self.transactions = begin(
            TransactionProducer("t", check=lambda _: State.COMMIT, name_servers=name_servers)
        )
        self.unstarted = Producer("later", name_servers=name_servers)
        consumer = PushConsumer("g", name_servers=name_servers)
        consumer.subscribe("orders")
        consumer.orderly(lambda messages, context: None)
        self.consumer = begin(consumer)
        poller = LitePullConsumer("polls", name_servers=name_servers)
        poller.subscribe("orders")
        self.poller = begin(poller)
        self.puller = begin(PullConsumer("pulls", name_servers=name_servers))
        self.admin = begin(contextlib.closing(Admin(name_servers=name_servers)))


@pytest.fixture
def clients(broker: EmbeddedBroker) -> Iterator[Clients]:
    with contextlib.ExitStack() as stack:
        yield Clients(stack, broker.name_servers)


CALLS: dict[str, Callable[[Clients], object]] = {
    "Producer.close": lambda own: own.producer.close(),
    "Producer.start": lambda own: own.unstarted.start(),
    "Producer.recall": lambda own: own.producer.recall("orders", _HANDLE),
    "Producer.flush": lambda own: own.producer.flush(),
    "Producer.request": lambda own: own.producer.request(Message("orders", b"?")),
    "TransactionProducer.close": lambda own: own.transactions.close(),
    "Future.result": lambda own: own.producer.send_nowait(Message("orders", b"2")).result(),
    "Future.exception": lambda own: own.producer.send_nowait(Message("orders", b"2")).exception(60),
    "PushConsumer.close": lambda own: own.consumer.close(),
    "PushConsumer.pause": lambda own: own.consumer.pause(release=True),
    "PushConsumer.resume": lambda own: own.consumer.resume(),
    "PushConsumer.lag": lambda own: own.consumer.lag(),
    "LitePullConsumer.close": lambda own: own.poller.close(),
    "LitePullConsumer.poll": lambda own: own.poller.poll(),
    "LitePullConsumer.batches": lambda own: next(iter(own.poller.batches())),
    "LitePullConsumer.commit": lambda own: own.poller.commit(),
    "PullConsumer.close": lambda own: own.puller.close(),
    "PullConsumer.max_offset": lambda own: own.puller.max_offset(QUEUE),
    "Admin.close": lambda own: own.admin.close(),
    "Admin.topics": lambda own: own.admin.topics(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_blocking_call_of_a_callback_is_refused_and_hangs_nobody(
    clients: Clients, name: str
) -> None:
    raised: list[BaseException | None] = []
    called = threading.Event()

    def call(_: object) -> None:
        try:
            CALLS[name](clients)
            raised.append(None)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)
        called.set()

    clients.producer.send_nowait(Message("orders", b"1")).add_done_callback(call)
    assert called.wait(DEADLINE_S), f"{name} hangs on the I/O thread"
    assert isinstance(raised[0], StateError)
    assert "on the I/O thread" in str(raised[0])
    # It has changed nothing: all go on, and close in order.
    assert clients.producer.send(Message("orders", b"3")).queue_offset >= 0
    assert clients.transactions.send(Message("orders", b"4")).queue_offset >= 0
    assert clients.admin.topics()
    assert clients.puller.max_offset(QUEUE) >= 0
    assert clients.consumer.close(10.0)
    assert clients.poller.close(10.0)


def test_a_callback_may_ask_for_an_outcome_that_is_there_or_look_without_waiting(
    producer: Producer,
) -> None:
    seen: list[object] = []
    called = threading.Event()

    def look(future: object) -> None:
        seen.append(first.result().queue_offset)
        try:
            producer.send_nowait(Message("orders", b"2")).result(0)
        except TimeoutError as error:
            seen.append(type(error))
        called.set()

    first = producer.send_nowait(Message("orders", b"1"))
    first.add_done_callback(look)
    assert called.wait(DEADLINE_S)
    assert seen == [first.result().queue_offset, TimeoutError]
