"""An exception of a signal handler anywhere in a public call: the call raises, and nothing hangs.

Each case is run again and again, interrupted one place later each time, until it comes to its end.
After each, the same client works, another client of the process does, and `close` ends in time.
ORDERMQ_INTERRUPTS_STRIDE says how many places to go on by: ci/interrupts.sh tries them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from ordermq import (
    AsyncConsumer,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    Retry,
    TransactionProducer,
    TransactionState,
)
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.consumer.queue import poll_receiver
from ordermq.consumer.queue.poll_buffer import PolledBatch
from ordermq.errors import BrokerError, StateError
from tests.component.broker.wire_client import WireClient
from tests.component.certificates import Authority, Certificate
from tests.component.conftest import eventually
from tests.component.grpc_server import grpc_server_thread
from tests.component.interruption import HandledCall, InterruptedCall
from tests.component.test_grpc_sends import Proxy

# An interrupt may come between making a coroutine and handing it over, or in a finalizer.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
STRIDE = int(os.environ.get("ORDERMQ_INTERRUPTS_STRIDE", "11"))
LIMIT_S = 10.0  # far beyond what a call takes; only a hang reaches it
CLOSE_S = 5.0
TOPIC = "orders"
MESSAGES = 8  # in the queue that is polled


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
    "send_nowait, and wait for it": lambda producer: producer.send_nowait(
        message(), sharding_key="k"
    ).result(CLOSE_S),
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


def test_an_interrupted_send_with_tls_hangs_nothing(
    server_certificate: Certificate, authority: Authority
) -> None:
    config = BrokerConfig(
        tls_certificate=server_certificate.certificate, tls_key=server_certificate.key
    )
    with EmbeddedBroker(config=config) as broker:
        settings = {"name_servers": broker.name_servers, "tls": True}
        settings |= {"tls_ca_file": authority.file, "retry_delay_ms": 10, "reconnect_delay_ms": 10}

        def make() -> Producer:
            producer = Producer("shop", **settings).start()
            producer.send(message(), sharding_key="k")
            return producer

        def again(producer: Producer) -> None:
            producer.send(message(), sharding_key="k")
            producer.send(message())

        with Producer("other", **settings) as other:
            sweep = Sweep(other, make, again, lambda producer: producer.close(CLOSE_S))
            assert sweep.run(SENDS["send"], KeyboardInterrupt) > 10


GRPC_SENDS = {
    **{name: call for name, call in SENDS.items() if name not in ("queues", "send_batch")},
    "send_batch without key": lambda producer: producer.send_batch([message()] * 5),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", GRPC_SENDS)
def test_an_interrupted_send_over_grpc_hangs_nothing(name: str, error: type[BaseException]) -> None:
    with grpc_server_thread(Proxy(refusals=0)) as address:

        def make() -> Producer:
            producer = Producer("shop", name_servers=f"grpc://{address}").start()
            producer.send(message(), sharding_key="k")
            return producer

        def again(producer: Producer) -> None:
            producer.send(message(), sharding_key="k")
            producer.send(message())

        with contextlib.closing(make()) as other:
            sweep = Sweep(other, make, again, lambda producer: producer.close(CLOSE_S))
            assert sweep.run(GRPC_SENDS[name], error) > 10


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
            producer.close(0.1)  # noqa: B023
            took.append(time.monotonic() - begun)

        with contextlib.suppress(StateError), HandledCall(at, close) as handled:
            SENDS[name](producer)
        where = f"handled at {handled.raised_at}"
        assert took or not handled.raised_at
        assert all(each < CLOSE_S for each in took), f"{where}: close took {took} s"
        producer.close(0.1)
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

    read = other.send(message(), sharding_key="k").message_queue

    def call(consumer: PullConsumer) -> None:
        consumer.pull(read, "*", 0, 32)

    sweep = Sweep(other, make, call, lambda consumer: consumer.close())
    assert sweep.run(call, KeyboardInterrupt) > 10


def not_started(broker: EmbeddedBroker, kind: str) -> Any:
    """Return a client of a kind, to be started."""
    at = broker.name_servers
    if kind == "push":
        consumer = PushConsumer("starting", name_servers=at)
        consumer.subscribe(TOPIC)
        return consumer.orderly(lambda *_: None) and consumer
    if kind == "lite":
        lite = LitePullConsumer("starting", name_servers=at)
        lite.subscribe(TOPIC)
        return lite
    if kind == "pull":
        return PullConsumer("starting", name_servers=at)
    return Producer("starting", name_servers=at)


@pytest.mark.parametrize("kind", ["push", "lite", "pull", "producer"])
def test_an_interrupted_start_hangs_nothing_and_leaves_nothing(
    broker: EmbeddedBroker, other: Producer, kind: str
) -> None:
    with not_started(broker, kind):  # imports what a first start does
        pass
    sweep = Sweep(other, partial(not_started, broker, kind), lambda _: None, lambda it: it.close())
    assert sweep.run(lambda client: client.start(), KeyboardInterrupt) > 10
    # None goes on without its program, which holds what `start` made and can close it.
    with WireClient(broker.port) as direct:
        eventually(lambda: direct.members("starting") == [], "every member has left")


class Polls:
    """Lite pull consumers that read one queue of a few messages from its beginning."""

    def __init__(self, broker: EmbeddedBroker, *, is_ordered: bool, pops: bool = False) -> None:
        self._at = broker.name_servers
        self._is_ordered = is_ordered
        self._settings: dict[str, Any] = {"consume_mode": "pop", "pop_poll_ms": 100} if pops else {}
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
            # A batch that its task left behind is tried again after so long.
            on_failure=Retry(backoff_ms=10) if self._is_ordered else None,
            **self._settings,
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
        while len(self.seen) < MESSAGES:
            self.poll(consumer)
            assert time.monotonic() < end, (
                f"not delivered: {MESSAGES - len(self.seen)} of {MESSAGES} messages"
            )
        consumer.commit()


LITE_CALLS: dict[str, Callable[[LitePullConsumer], object]] = {
    "commit": lambda consumer: consumer.commit(),
    "committed": lambda consumer: consumer.committed(consumer.assignment()[0]),
    "pause and resume": lambda consumer: (
        consumer.pause(consumer.assignment()),
        consumer.resume(consumer.assignment()),
    ),
    "seek": lambda consumer: consumer.seek(
        consumer.assignment()[0], consumer.position(consumer.assignment()[0])
    ),
    "subscribe": lambda consumer: (consumer.subscribe("other"), consumer.unsubscribe("other")),
}


def interrupted_polls(
    broker: EmbeddedBroker, other: Producer, name: str, *, is_ordered: bool, pops: bool = False
) -> None:
    for number in range(MESSAGES):
        other.send(Message("polled", str(number).encode()), sharding_key="k")
    other.send(Message("other", b"makes the topic"))
    polls = Polls(broker, is_ordered=is_ordered, pops=pops)
    taken: list[PolledBatch] = []

    def call(consumer: LitePullConsumer) -> None:
        if name == "poll":
            taken.append(consumer.poll(500))
        elif name == "batches":
            taken.append(next(iter(consumer.batches(500))))
        else:
            LITE_CALLS[name](consumer)

    def rest(consumer: LitePullConsumer) -> None:
        for batch in taken:  # which the call has returned
            polls.seen.update(bytes(each.body) for each in batch)
        taken.clear()
        consumer.resume(consumer.assignment())  # an interrupted call may have left it paused
        polls.rest(consumer)

    sweep = Sweep(
        other, polls.make, rest, lambda consumer: consumer.close(CLOSE_S), is_own_thread=True
    )
    assert sweep.run(call, KeyboardInterrupt) > 10


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("name", ["poll", "batches", *LITE_CALLS])
def test_an_interrupted_call_of_a_lite_pull_consumer_loses_nothing(
    broker: EmbeddedBroker, other: Producer, name: str, is_ordered: bool
) -> None:
    interrupted_polls(broker, other, name, is_ordered=is_ordered)


@pytest.mark.parametrize("name", ["poll", "batches", "commit", "pause and resume", "subscribe"])
def test_an_interrupted_call_of_a_lite_pull_consumer_that_pops_loses_nothing(
    broker: EmbeddedBroker, other: Producer, name: str
) -> None:
    interrupted_polls(broker, other, name, is_ordered=True, pops=True)


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_signal_handler_may_stop_the_lite_pull_consumer_whose_poll_it_interrupts(
    broker: EmbeddedBroker, other: Producer, is_ordered: bool
) -> None:
    for number in range(MESSAGES):
        other.send(Message("polled", str(number).encode()), sharding_key="k")
    polls = Polls(broker, is_ordered=is_ordered)
    at, raised_at = 1, "begun"
    while raised_at:

        def loop() -> None:
            nonlocal raised_at
            consumer = polls.make()
            with HandledCall(at, consumer.stop) as handled:  # noqa: B023
                for batch in consumer.batches(500):
                    assert batch
            raised_at = handled.raised_at
            assert consumer.close(CLOSE_S), f"stopped at {raised_at}: not handed over"

        in_time(f"a loop that is stopped at place {at}", loop)  # a poller is a thread
        at += STRIDE
    assert at > 10


PUSH_CALLS: dict[str, Callable[[PushConsumer], object]] = {
    "pause and resume": lambda consumer: (
        consumer.pause(consumer.assigned_queues()[0]),
        consumer.resume(consumer.assigned_queues()[0]),
    ),
    "release and resume": lambda consumer: (consumer.pause(release=True), consumer.resume()),
    "seek": lambda consumer: consumer.seek(consumer.assigned_queues()[0], 0).result(CLOSE_S),
    "seek_to_time": lambda consumer: consumer.seek_to_time(
        consumer.assigned_queues()[0], 1_700_000_000_000
    ).result(CLOSE_S),
    "resize": lambda consumer: (consumer.resize(4), consumer.resize(2)),
    "lag": lambda consumer: consumer.lag(),
    "health": lambda consumer: consumer.health(),
    "unsubscribe": lambda consumer: (consumer.unsubscribe(TOPIC), consumer.subscribe(TOPIC)),
    "close": lambda consumer: consumer.close(CLOSE_S),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", PUSH_CALLS)
def test_an_interrupted_call_of_a_push_consumer_stops_no_listener(
    broker: EmbeddedBroker, other: Producer, name: str, error: type[BaseException]
) -> None:
    arrived: set[bytes] = set()
    made: list[str] = []
    sent = [0]

    def make() -> PushConsumer:
        made.append(f"pushed-{len(made)}")  # each in a group of its own: none waits for locks
        consumer = PushConsumer(made[-1], name_servers=broker.name_servers)
        consumer.subscribe(TOPIC)
        consumer.orderly(lambda messages, _: arrived.update(bytes(each.body) for each in messages))
        consumer.start()
        eventually(lambda: bool(consumer.assigned_queues()), "it holds its queues")
        return consumer

    def again(consumer: PushConsumer) -> None:
        if name == "close":
            return
        consumer.subscribe(TOPIC)  # an interrupted call may have left it undone, and paused
        consumer.resume()
        sent[0] += 1
        body = str(sent[0]).encode()
        other.send(Message(TOPIC, body), sharding_key="k")
        eventually(lambda: body in arrived, "the message arrives", LIMIT_S / 2)

    sweep = Sweep(other, make, again, lambda consumer: consumer.close(CLOSE_S))
    assert sweep.run(PUSH_CALLS[name], error) > 5


def test_a_listener_whose_send_is_interrupted_gets_its_message_again(
    broker: EmbeddedBroker, other: Producer
) -> None:
    at, is_over = 1, False
    calls: list[bytes] = []
    consumer = PushConsumer(
        "forwarders",
        name_servers=broker.name_servers,
        consume_from_where="first_offset",
        suspend_current_queue_time_ms=10,
        consume_message_batch_max_size=1,
    )
    consumer.subscribe("forwarded")

    @consumer.orderly
    def forward(messages: Any, _: Any) -> None:
        nonlocal at, is_over
        body = bytes(messages[0].body)
        calls.append(body)
        if calls.count(body) > 1 or is_over:
            return
        interruption = InterruptedCall(at, TimeoutError)
        try:
            with interruption:
                other.send(message(), sharding_key="k")
        finally:
            at += STRIDE
            is_over = not interruption.raised_at

    number = 0
    with consumer:
        while not is_over:
            number += 1
            body = str(number).encode()
            other.send(Message("forwarded", body), sharding_key="k")
            eventually(
                lambda: is_over or calls.count(body) > 1,  # noqa: B023
                "the listener is called again",
                LIMIT_S,
            )
    assert at > 10


def answering(broker: EmbeddedBroker, other: Producer) -> tuple[PushConsumer, queue.Queue[Any]]:
    """Return a consumer of questions, not started, and where it puts them."""
    requests: queue.Queue[Any] = queue.Queue()
    other.send(Message("questions", b"makes the topic"))
    consumer = PushConsumer("answers", name_servers=broker.name_servers)
    consumer.subscribe("questions")

    @consumer.concurrently
    def keep(messages: Any, _: Any) -> None:
        for each in messages:
            if each.body == b"q":
                requests.put(each)

    return consumer, requests


def test_an_interrupted_reply_hangs_nothing(broker: EmbeddedBroker, other: Producer) -> None:
    answered: list[bytes] = []
    consumer, requests = answering(broker, other)
    with consumer, Producer("asking", name_servers=broker.name_servers) as asking:

        def ask() -> tuple[Any, threading.Thread]:
            def wait_for_answer() -> None:
                answer = asking.request(Message("questions", b"q"), 20_000)
                answered.append(bytes(answer.body))

            thread = threading.Thread(target=wait_for_answer, daemon=True)
            thread.start()
            return requests.get(timeout=LIMIT_S), thread

        def again(asked: tuple[Any, threading.Thread]) -> None:
            with contextlib.suppress(BrokerError):  # it was answered before the interrupt
                other.reply(asked[0], b"yes")

        sweep = Sweep(other, ask, again, lambda asked: asked[1].join(LIMIT_S))
        assert sweep.run(lambda asked: other.reply(asked[0], b"yes"), KeyboardInterrupt) > 10
    assert set(answered) == {b"yes"}


def test_an_interrupted_recall_hangs_nothing(broker: EmbeddedBroker, other: Producer) -> None:
    def make() -> str:
        receipt = other.send(Message(TOPIC, b"late", delay_ms=600_000))
        assert receipt.recall_handle
        return receipt.recall_handle

    def again(handle: str) -> None:
        with contextlib.suppress(BrokerError):  # it was recalled before the interrupt
            other.recall(TOPIC, handle)

    sweep = Sweep(other, make, again, lambda _: None)
    assert sweep.run(lambda handle: other.recall(TOPIC, handle), KeyboardInterrupt) > 10


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
    "arequest": lambda producer: producer.arequest(Message("questions", b"q"), 20_000),
}
STEPS = range(0, 20, 1 if STRIDE == 1 else 4)  # turns of the loop until the cancellation


async def cancel_after(call: Coroutine[Any, Any, object], steps: int) -> None:
    """Run a call, cancelled after some turns of the loop."""
    task = asyncio.ensure_future(call)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, LIMIT_S)


@pytest.mark.parametrize("name", CANCELLED)
def test_a_call_that_is_cancelled_at_any_step_hangs_nothing(
    broker: EmbeddedBroker, other: Producer, name: str
) -> None:
    async def cancel(producer: Producer, steps: int) -> None:
        await cancel_after(CANCELLED[name](producer), steps)
        await asyncio.wait_for(producer.asend(message(), sharding_key="k"), LIMIT_S)

    other.send(Message("questions", b"makes the topic"))
    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send(message(), sharding_key="k")
        for steps in STEPS:
            asyncio.run(cancel(producer, steps))
        in_time("another client", lambda: other.send(message(), sharding_key="k"))


GRPC_CANCELLED: dict[str, Callable[[Producer], Any]] = {
    "asend": CANCELLED["asend"],
    "asend without key": lambda producer: producer.asend(message()),
    "asend_batch without key": lambda producer: producer.asend_batch([message()] * 3),
    "aflush": CANCELLED["aflush"],
}


@pytest.mark.parametrize("name", GRPC_CANCELLED)
def test_a_call_over_grpc_that_is_cancelled_at_any_step_hangs_nothing(name: str) -> None:
    async def cancel(producer: Producer, steps: int) -> None:
        await cancel_after(GRPC_CANCELLED[name](producer), steps)
        await asyncio.wait_for(producer.asend(message(), sharding_key="k"), LIMIT_S)

    with (
        grpc_server_thread(Proxy(refusals=0)) as address,
        Producer("shop", name_servers=f"grpc://{address}") as producer,
    ):
        for steps in STEPS:
            asyncio.run(cancel(producer, steps))


def test_a_reply_that_is_cancelled_at_any_step_hangs_nothing(
    broker: EmbeddedBroker, other: Producer
) -> None:
    async def answer(request: Any, steps: int) -> None:
        await cancel_after(other.areply(request, b"yes"), steps)
        with contextlib.suppress(BrokerError):  # it was answered before
            await asyncio.wait_for(other.areply(request, b"yes"), LIMIT_S)

    consumer, requests = answering(broker, other)
    with (
        consumer,
        Producer("asking", name_servers=broker.name_servers) as asking,
        ThreadPoolExecutor(1) as pool,
    ):
        for steps in STEPS:
            asked = pool.submit(asking.request, Message("questions", b"q"), 20_000)
            asyncio.run(answer(requests.get(timeout=LIMIT_S), steps))
            assert asked.result(LIMIT_S).body == b"yes"


LITE_AWAITS: dict[str, Callable[[LitePullConsumer], Any]] = {
    "apoll": lambda consumer: consumer.apoll(500),
    "acommit": lambda consumer: consumer.acommit(),
    "aseek": lambda consumer: consumer.aseek(
        consumer.assignment()[0], consumer.position(consumer.assignment()[0])
    ),
}


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("name", ["batches", *LITE_AWAITS])
def test_a_lite_pull_consumer_whose_call_is_cancelled_at_any_step_loses_nothing(
    broker: EmbeddedBroker,
    other: Producer,
    name: str,
    is_ordered: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poll_receiver, "_WATCH_INTERVAL_MS", 20)  # each case waits for a watch

    async def poll(consumer: LitePullConsumer, bodies: list[bytes]) -> None:
        if name == "batches":
            async for batch in consumer.batches(500):
                bodies.extend(bytes(each.body) for each in batch)
                break
        else:
            batch = await LITE_AWAITS[name](consumer)
            bodies.extend(bytes(each.body) for each in batch or ())

    async def cancel(consumer: LitePullConsumer, seen: set[bytes], steps: int) -> None:
        bodies: list[bytes] = []
        await cancel_after(poll(consumer, bodies), steps)
        seen.update(bodies)
        end = time.monotonic() + LIMIT_S
        while len(seen) < MESSAGES:
            seen.update(bytes(each.body) for each in await consumer.apoll(500))
            assert time.monotonic() < end, f"cancelled after {steps} steps: {seen}"
        await asyncio.wait_for(consumer.acommit(), LIMIT_S)

    for number in range(MESSAGES):
        other.send(Message("polled", str(number).encode()), sharding_key="k")
    polls = Polls(broker, is_ordered=is_ordered)
    for steps in STEPS:
        consumer = polls.make()
        consumer.commit()  # the batch of this thread, which would block the queue for tasks
        asyncio.run(cancel(consumer, set(polls.seen), steps))
        in_time("close", lambda: consumer.close(CLOSE_S))  # noqa: B023
    in_time("another client", lambda: other.send(message(), sharding_key="k"))


ASYNC_CALLS: dict[str, Callable[[AsyncConsumer], Any]] = {
    "pause": lambda consumer: consumer.pause(consumer.assigned_queues()[0]),
    "resume": lambda consumer: consumer.resume(consumer.assigned_queues()[0]),
    "seek": lambda consumer: consumer.seek(consumer.assigned_queues()[0], 0),
    "lag": lambda consumer: consumer.lag(),
    "health": lambda consumer: consumer.health(),
    "start": lambda consumer: consumer.start(),
    "close": lambda consumer: consumer.close(CLOSE_S),
}


@pytest.mark.parametrize("name", ASYNC_CALLS)
def test_an_async_consumer_whose_call_is_cancelled_at_any_step_goes_on_or_leaves(
    broker: EmbeddedBroker, other: Producer, name: str
) -> None:
    async def consume(number: int, steps: int) -> None:
        arrived = asyncio.Event()
        body = str(number).encode()
        consumer = AsyncConsumer("tasks", name_servers=broker.name_servers)
        consumer.subscribe(TOPIC)

        @consumer.orderly
        async def listen(messages: Any, _: Any) -> None:
            if any(each.body == body for each in messages):
                arrived.set()

        if name == "start":
            await cancel_after(consumer.start(), steps)
            await asyncio.wait_for(consumer.close(CLOSE_S), LIMIT_S)
            return
        await consumer.start()
        await cancel_after(ASYNC_CALLS[name](consumer), steps)
        if name != "close":
            for held in consumer.assigned_queues():  # a cancelled call may have paused it
                await consumer.resume(held)
            await asyncio.to_thread(other.send, Message(TOPIC, body), sharding_key="k")
            await asyncio.wait_for(arrived.wait(), LIMIT_S)
        await asyncio.wait_for(consumer.close(CLOSE_S), LIMIT_S)

    before = broker.statistics.connections
    for number, steps in enumerate(STEPS):
        asyncio.run(consume(number, steps))
    eventually(lambda: broker.statistics.connections == before, "its connections are closed")
