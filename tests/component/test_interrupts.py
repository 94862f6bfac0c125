"""An exception of a signal handler anywhere in a public call: the call raises, and nothing hangs.

Each case is run again and again, interrupted one place later each time, until it comes to its end.
After each, the same client works, another client of the process does, and `close` ends in time.
ORDERMQ_INTERRUPTS_STRIDE says how many places to go on by: ci/interrupts.sh tries them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ordermq import (
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.queue.poll_buffer import PolledBatch
from ordermq.errors import StateError
from tests.component.conftest import eventually
from tests.component.interruption import HandledCall, InterruptedCall

# An interrupt may come between making a coroutine and handing it over, or in a finalizer.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
STRIDE = int(os.environ.get("ORDERMQ_INTERRUPTS_STRIDE", "11"))
LIMIT_S = 10.0  # far beyond what a call takes; only a hang reaches it
CLOSE_S = 5.0
TOPIC = "orders"


def message() -> Message:
    return Message(TOPIC, b"x")


def in_time(what: str, action: Callable[[], object]) -> None:
    """Run an action on another thread, which may hang."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive(), f"{what} hangs"
    if errors:
        raise AssertionError(f"{what} failed") from errors[0]


class Sweep:
    """Interrupts one call of new clients at one place after the other."""

    def __init__(
        self,
        other: Producer,
        make: Callable[[], Any],
        again: Callable[[Any], object],
        close: Callable[[Any], object],
        *,
        is_own_thread: bool = False,
    ) -> None:
        self._other = other
        self._make = make
        self._again = again
        self._close = close
        self._is_own_thread = is_own_thread  # `again` belongs to the thread that was interrupted

    def run(self, call: Callable[[Any], object], error: type[BaseException]) -> int:
        """Return the number of places; the last call was not interrupted."""
        at = 1
        while True:
            client = self._make()
            interruption = InterruptedCall(at, error)
            raised: BaseException | None = None
            try:
                with interruption:
                    call(client)
            except BaseException as caught:  # noqa: BLE001 - looked at below
                raised = caught
            where = f"interrupted at {interruption.raised_at}"
            if interruption.raised_at:
                assert type(raised) is error, f"{where}: the call raised {raised!r}"
            elif raised is not None:
                raise raised
            if self._is_own_thread:
                self._again(client)
            else:
                in_time(f"{where}: the same client", lambda: self._again(client))  # noqa: B023
            in_time(f"{where}: another client", self._send_with_other)
            begun = time.monotonic()
            in_time(f"{where}: close", lambda: self._close(client))  # noqa: B023
            assert time.monotonic() - begun < CLOSE_S, f"{where}: close took its whole time"
            if not interruption.raised_at:
                return interruption.places
            at += STRIDE

    def _send_with_other(self) -> None:
        self._other.send(message(), sharding_key="k")


@pytest.fixture
def other(broker: EmbeddedBroker) -> Iterator[Producer]:
    with Producer("other", name_servers=broker.name_servers) as producer:
        for _ in range(2):  # the first one makes the topic
            producer.send(message(), sharding_key="k")
        yield producer


ERRORS = [KeyboardInterrupt, TimeoutError]

SENDS: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: producer.send(message(), sharding_key="k"),
    "send without key": lambda producer: producer.send(message()),
    "send_batch": lambda producer: producer.send_batch([message()] * 5, sharding_key="k"),
    "send_many": lambda producer: producer.send_many([(message(), f"k{i % 3}") for i in range(6)]),
    "send_nowait": lambda producer: (
        producer.send_nowait(message(), sharding_key="k"),
        producer.flush(CLOSE_S),
    ),
    "send_oneway": lambda producer: (
        producer.send_oneway(message()),
        producer.send_oneway(message(), sharding_key="k"),
    ),
    "queues": lambda producer: (producer.queues(TOPIC), producer.resolve(TOPIC, "k")),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", SENDS)
def test_an_interrupted_send_hangs_nothing(
    broker: EmbeddedBroker, other: Producer, name: str, error: type[BaseException]
) -> None:
    def make() -> Producer:
        producer = Producer("shop", name_servers=broker.name_servers).start()
        producer.send(message(), sharding_key="k")
        return producer

    def again(producer: Producer) -> None:
        producer.send(message(), sharding_key="k")
        producer.send(message())

    sweep = Sweep(other, make, again, lambda producer: producer.close(CLOSE_S))
    assert sweep.run(SENDS[name], error) > 10


@pytest.mark.parametrize("name", ["send", "send without key", "send_batch", "send_nowait"])
def test_a_signal_handler_may_close_the_producer_whose_call_it_interrupts(
    broker: EmbeddedBroker, other: Producer, name: str
) -> None:
    at, took = 1, [0.0]
    before = broker.statistics.connections
    while took:
        took.clear()
        producer = Producer("shop", name_servers=broker.name_servers).start()
        producer.send(message(), sharding_key="k")

        def close() -> None:
            begun = time.monotonic()
            producer.close(1.0)  # noqa: B023
            took.append(time.monotonic() - begun)

        with contextlib.suppress(StateError), HandledCall(at, close) as handled:
            SENDS[name](producer)
        where = f"handled at {handled.raised_at}"
        assert took or not handled.raised_at
        assert all(each < CLOSE_S for each in took), f"{where}: close took {took} s"
        producer.close(1.0)
        other.send(message(), sharding_key="k")
        at += STRIDE
    assert at > 10
    eventually(lambda: broker.statistics.connections == before, "its connections are closed")


def test_an_interrupted_first_send_hangs_nothing(broker: EmbeddedBroker, other: Producer) -> None:
    def make() -> Producer:
        return Producer("shop", name_servers=broker.name_servers).start()

    sweep = Sweep(other, make, SENDS["send"], lambda producer: producer.close(CLOSE_S))
    assert sweep.run(SENDS["send"], KeyboardInterrupt) > 10


def test_an_interrupted_transaction_hangs_nothing(broker: EmbeddedBroker, other: Producer) -> None:
    def make() -> TransactionProducer:
        producer = TransactionProducer(
            "pay",
            check=lambda _: None,
            execute=lambda *_: TransactionState.COMMIT,
            name_servers=broker.name_servers,
        ).start()
        producer.send_in_transaction(message(), sharding_key="k")
        return producer

    def call(producer: TransactionProducer) -> None:
        producer.send_in_transaction(message(), sharding_key="k")

    sweep = Sweep(other, make, call, lambda producer: producer.close(CLOSE_S))
    assert sweep.run(call, KeyboardInterrupt) > 10


def test_an_interrupted_request_hangs_nothing(broker: EmbeddedBroker, other: Producer) -> None:
    def make() -> Producer:
        producer = Producer("shop", name_servers=broker.name_servers).start()
        producer.request(Message("questions", b"q"), 20_000)
        return producer

    def call(producer: Producer) -> None:
        producer.request(Message("questions", b"q"), 20_000)

    def reply(messages: Any, _: Any) -> None:
        for each in messages:
            with contextlib.suppress(Exception):  # an interrupted requester is gone
                other.reply(each, b"yes")

    other.send(Message("questions", b"makes the topic"))
    consumer = PushConsumer("answers", name_servers=broker.name_servers)
    consumer.subscribe("questions")
    consumer.concurrently(reply)
    with consumer:
        sweep = Sweep(other, make, call, lambda producer: producer.close(CLOSE_S))
        assert sweep.run(call, KeyboardInterrupt) > 10


def test_an_interrupted_call_of_a_pull_consumer_hangs_nothing(
    broker: EmbeddedBroker, other: Producer
) -> None:
    def make() -> PullConsumer:
        return PullConsumer("pulling", name_servers=broker.name_servers).start()

    queue = other.send(message(), sharding_key="k").message_queue

    def call(consumer: PullConsumer) -> None:
        consumer.pull(queue, "*", 0, 32)

    sweep = Sweep(other, make, call, lambda consumer: consumer.close())
    assert sweep.run(call, KeyboardInterrupt) > 10


def test_an_interrupted_start_hangs_nothing(broker: EmbeddedBroker, other: Producer) -> None:
    def make() -> PushConsumer:
        consumer = PushConsumer("starting", name_servers=broker.name_servers)
        consumer.subscribe(TOPIC)
        consumer.orderly(lambda *_: None)
        return consumer

    with make():  # imports what a first start does
        pass
    sweep = Sweep(other, make, lambda _: None, lambda consumer: consumer.close(CLOSE_S))
    assert sweep.run(lambda consumer: consumer.start(), KeyboardInterrupt) > 10


class Polls:
    """Lite pull consumers that read one queue of eight messages from its beginning."""

    def __init__(self, broker: EmbeddedBroker, *, is_ordered: bool) -> None:
        self._at = broker.name_servers
        self._is_ordered = is_ordered
        self._made = 0
        self.seen: set[bytes] = set()

    def make(self) -> LitePullConsumer:
        self._made += 1
        consumer = LitePullConsumer(
            f"polling-{self._made}",
            name_servers=self._at,
            ordered=self._is_ordered,
            consume_from_where="first_offset",
            poll_batch_size=2,
        )
        consumer.subscribe("polled")
        consumer.start()
        self.seen.clear()
        while not self.seen:
            self.poll(consumer, 10_000)
        return consumer

    def poll(self, consumer: LitePullConsumer, timeout_ms: int = 500) -> None:
        batch = consumer.poll(timeout_ms)
        self.seen.update(bytes(each.body) for each in batch)

    def rest(self, consumer: LitePullConsumer) -> None:
        """Read what is left: an interrupted poll has lost nothing."""
        end = time.monotonic() + LIMIT_S / 2
        while len(self.seen) < 8:
            self.poll(consumer)
            assert time.monotonic() < end, f"not delivered: {8 - len(self.seen)} of 8 messages"
        consumer.commit()


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("name", ["poll", "commit"])
def test_an_interrupted_poll_or_commit_loses_nothing(
    broker: EmbeddedBroker, other: Producer, name: str, is_ordered: bool
) -> None:
    for number in range(8):
        other.send(Message("polled", str(number).encode()), sharding_key="k")
    polls = Polls(broker, is_ordered=is_ordered)
    taken: list[PolledBatch] = []

    def call(consumer: LitePullConsumer) -> None:
        if name == "poll":
            taken.append(consumer.poll(500))
        else:
            consumer.commit()

    def rest(consumer: LitePullConsumer) -> None:
        for batch in taken:  # which the call has returned
            polls.seen.update(bytes(each.body) for each in batch)
        taken.clear()
        polls.rest(consumer)

    sweep = Sweep(
        other, polls.make, rest, lambda consumer: consumer.close(CLOSE_S), is_own_thread=True
    )
    assert sweep.run(call, KeyboardInterrupt) > 10


def test_an_interrupted_call_of_an_admin_hangs_nothing(
    broker: EmbeddedBroker, other: Producer
) -> None:
    def call(admin: Admin) -> None:
        admin.topics()

    sweep = Sweep(other, lambda: Admin(broker.name_servers), call, lambda admin: admin.close())
    assert sweep.run(call, KeyboardInterrupt) > 10


CANCELLED: dict[str, Callable[[Producer], Any]] = {
    "asend": lambda producer: producer.asend(message(), sharding_key="k"),
    "asend_batch": lambda producer: producer.asend_batch([message()] * 3, sharding_key="k"),
    "aflush": lambda producer: producer.aflush(CLOSE_S),
}


@pytest.mark.parametrize("name", CANCELLED)
def test_a_call_that_is_cancelled_at_any_step_hangs_nothing(
    broker: EmbeddedBroker, other: Producer, name: str
) -> None:
    async def cancel_after(producer: Producer, steps: int) -> bool:
        task = asyncio.ensure_future(CANCELLED[name](producer))
        for _ in range(steps):
            await asyncio.sleep(0)
        is_cancelled = task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await asyncio.wait_for(producer.asend(message(), sharding_key="k"), LIMIT_S)
        return is_cancelled

    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send(message(), sharding_key="k")
        for steps in range(20):
            asyncio.run(cancel_after(producer, steps))
        in_time("another client", lambda: other.send(message(), sharding_key="k"))
