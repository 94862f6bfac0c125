"""Ctrl-C in `close`, at each of its lines: no lock is renewed, and a later `close` finishes."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ordermq import (
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.client.runtime import Runtime
from ordermq.clock import SystemClock
from ordermq.config import BrokerConfig
from ordermq.errors import StateError
from ordermq.model.message_queue import MessageQueue
from tests.component.conftest import Seen, eventually
from tests.component.interruption import InterruptedAt
from tests.component.test_traces import traces

# An interrupt may come between making a coroutine and handing it over.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
    pytest.mark.usefixtures("ctrl_c"),
]
LEASE_MS = 600


@pytest.fixture
def broker_config() -> BrokerConfig:
    return BrokerConfig(broker_name="b", durability="os", lock_max_live_ms=LEASE_MS)


Make = Callable[..., Any]


@pytest.fixture
def makers(broker: EmbeddedBroker, tmp_path: Path, seen: Seen) -> dict[str, Make]:
    at: dict[str, Any] = {"name_servers": broker.name_servers}

    def push(**settings: Any) -> PushConsumer:
        made = PushConsumer("g", instance_name="one", enable_msg_trace=True, **at, **settings)
        made.subscribe("orders")
        made.orderly(seen.take)
        return made

    def lite(**settings: Any) -> LitePullConsumer:
        made = LitePullConsumer("g", instance_name="one", **at, **settings)
        made.subscribe("orders")
        return made

    def producer(**settings: Any) -> Producer:
        return Producer("shop", enable_msg_trace=True, **at, **settings)

    return {
        "push": push,
        "push with history": lambda: push(history=tmp_path / "push.jsonl"),
        "push by key": lambda: push(order_by_key=True),
        "lite": lite,
        "lite in order": lambda: lite(ordered=True),
        "lite broadcasting": lambda: lite(
            message_model="broadcasting", local_offset_store_dir=str(tmp_path)
        ),
        "pull": lambda: PullConsumer("g", **at),
        "producer": producer,
        "transactions": lambda: TransactionProducer("shop", check=lambda _: None, **at),
    }


def io_threads() -> set[threading.Thread]:
    names = ("ordermq-io", "ordermq-g")
    return {thread for thread in threading.enumerate() if thread.name.startswith(names)}


def has_begun(closed: Any) -> bool:
    shutdown = getattr(closed, "_shutdown", None)
    if (member := getattr(closed, "_member", None)) is not None:
        shutdown = member._shutdown
    return shutdown is not None and shutdown._task is not None


KINDS = [
    "push", "push with history", "push by key", "lite", "lite in order", "lite broadcasting",
    "pull", "producer", "transactions",
]  # fmt: skip


@pytest.mark.parametrize("again", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_at_any_line_of_close_ends_it_all_the_same(
    broker: EmbeddedBroker, makers: dict[str, Make], kind: str, again: int
) -> None:
    with Producer("first", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"x"))
    eventually(lambda: not broker.statistics.connections, "nobody is connected")
    gc.collect()
    others = io_threads()  # of a client that an earlier test has left
    at, interrupted, disconnected = 0, True, 0
    while interrupted:
        at += 1
        thing = makers[kind]()  # with a fixed name: the one before has released it
        thing.start()
        interruption = InterruptedAt(at, again)
        try:
            with interruption:
                thing.close()
        except KeyboardInterrupt:
            pass
        interrupted = interruption.raised > 0
        if interrupted and not again and has_begun(thing):
            # Without any further call: who is not connected renews no lock.
            eventually(lambda: not broker.statistics.connections, f"disconnected, line {at}")
            disconnected += 1
        for _ in range(2):
            assert thing.close() in (True, False, None)
        eventually(lambda: not broker.statistics.connections, f"closed at last, line {at}")
        # A hurried end tells its workers to end, and waits for none of them.
        eventually(lambda: io_threads() <= others, f"its threads have ended, line {at}")
    assert at > 10, "close has more lines than that"
    assert again or kind == "pull" or disconnected > 10


def has_traces(broker: EmbeddedBroker, count: int) -> bool:
    return len(traces(broker)) >= count


@pytest.mark.parametrize("kind", ["push", "producer"])
def test_an_interrupt_at_any_line_of_close_disconnects_the_traces_too(
    broker: EmbeddedBroker, makers: dict[str, Make], kind: str
) -> None:
    at, interrupted = 10, True  # before these the end has hardly begun
    while interrupted:
        at += 1
        more = len(traces(broker)) + 1
        thing = makers[kind](trace_interval_ms=5)
        thing.start()
        with Producer("other", name_servers=broker.name_servers) as producer:
            producer.send(Message("orders", b"x"))
        if kind == "producer":
            thing.send(Message("orders", b"x"))
        eventually(partial(has_traces, broker, more), "a trace is sent")
        interruption = InterruptedAt(at)
        try:
            with interruption:
                thing.close()
        except KeyboardInterrupt:
            pass
        interrupted = interruption.raised > 0
        if interrupted and has_begun(thing):
            eventually(lambda: not broker.statistics.connections, f"disconnected, line {at}")
        thing.close()
    assert at > 20, "close has more lines than that"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_inspector_and_a_broker_close_after_an_interrupt(error: type[BaseException]) -> None:
    before = set(threading.enumerate())
    at, interrupted = 0, True
    while interrupted:
        at += 1
        broker = EmbeddedBroker().start()
        admin = Admin(broker.name_servers)
        things: list[Any] = [admin, broker]
        interrupted = False
        for thing in things:
            interruption = InterruptedAt(at, error=error)
            try:
                with interruption:
                    thing.close()
            except error:
                pass
            interrupted = interrupted or interruption.raised > 0
            thing.close()
        more = set(threading.enumerate()) - before
        assert not [t for t in more if t.name.startswith("ordermq")]
    assert at > 5


def started(kind: str, name_servers: str) -> Any:
    if kind == "inspector":
        return Admin(name_servers)
    if kind == "producer":
        return Producer("shop", name_servers=name_servers).start()
    return PullConsumer("g", name_servers=name_servers).start()


@pytest.mark.parametrize("kind", ["inspector", "producer", "pull"])
def test_a_close_that_comes_as_an_interrupted_one_lets_the_thread_go_does_nothing(
    broker: EmbeddedBroker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runtime, "_shared", None)  # one that no other client keeps
    thing, complete = started(kind, broker.name_servers), Runtime.complete
    client = thing._client

    def complete_late(runtime: Runtime, begin: Callable[[], Any]) -> Any:
        complete(runtime, client.end)  # that of the call before, which goes on by itself
        runtime._thread.join(20)
        return complete(runtime, begin)

    monkeypatch.setattr(Runtime, "complete", complete_late)
    thing.close()
    assert client.is_closed
    assert not client.runtime._thread.is_alive()
    thing.close()


def with_one_message(
    broker: EmbeddedBroker,
    listener: Callable[[Any, Any], Any],
    on_assigned: Callable[[MessageQueue], None] | None = None,
) -> PushConsumer:
    """A consumer, not started, to whom a message waits."""
    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"x"))
    consumer = PushConsumer(
        "g",
        name_servers=broker.name_servers,
        consume_from_where="first_offset",
        on_assigned=on_assigned,
    )
    consumer.subscribe("orders")
    consumer.orderly(listener)
    return consumer


class Stuck:
    """A consumer whose listener does not return until it may."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.consumer = with_one_message(broker, self._listen)

    def _listen(self, messages: Any, context: Any) -> None:
        self.begun.set()
        self.may_end.wait(60)

    def is_leaving(self) -> bool:
        return self.consumer._member is not None and self.consumer._member.parts.is_leaving


@pytest.fixture
def stuck(broker: EmbeddedBroker) -> Iterator[Stuck]:
    made = Stuck(broker)
    yield made
    made.may_end.set()
    made.consumer.close(5.0)


# The system gives a signal to any thread; Python calls its handler on the main one.
RECEIVERS: dict[str, Callable[[], threading.Thread]] = {
    "main thread": threading.main_thread,
    "another thread": threading.current_thread,
}


def send_signal(number: signal.Signals, receiver: str) -> None:
    ident = RECEIVERS[receiver]().ident
    assert ident is not None
    signal.pthread_kill(ident, number)


@pytest.mark.parametrize("receiver", RECEIVERS)
def test_no_lock_is_renewed_after_ctrl_c_in_close(
    broker: EmbeddedBroker, stuck: Stuck, seen: Seen, receiver: str
) -> None:
    stuck.consumer.start()
    assert stuck.begun.wait(20)

    def press() -> None:
        eventually(stuck.is_leaving, "it closes")
        send_signal(signal.SIGINT, receiver)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        stuck.consumer.close()
    pressing.join()
    eventually(lambda: not broker.statistics.connections, "it is disconnected")
    # The listener is still at its message. Its lock expires, and the next member gets it.
    other = PushConsumer("g", name_servers=broker.name_servers, consume_from_where="first_offset")
    other.subscribe("orders")
    other.orderly(seen.take)
    with other:
        seen.wait_for_count(1)
    assert stuck.consumer.close() is False


def test_close_remembers_its_outcome(stuck: Stuck) -> None:
    stuck.consumer.start()
    assert stuck.begun.wait(20)
    assert stuck.consumer.close(0.05) is False
    stuck.may_end.set()
    assert stuck.consumer.close() is False
    assert stuck.consumer.close(0.0) is False


class LateClock(SystemClock):
    """The system's time, some ms later."""

    later_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.later_ms


def test_who_waits_long_for_a_lock_that_was_left_to_expire_says_so_once(
    broker: EmbeddedBroker, stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    stuck.consumer.start()
    assert stuck.begun.wait(20)
    assert stuck.consumer.close(0.0) is False

    def told() -> list[str]:
        return [text for text in caplog.messages if "waiting for the locks of" in text]

    clock = LateClock()
    waiting = PushConsumer("g", name_servers=broker.name_servers, clock=clock)
    waiting.subscribe("orders")
    waiting.orderly(lambda messages, context: None)
    with waiting:
        retries = waiting._member._rebalancer._lock_retries  # type: ignore[union-attr]
        eventually(lambda: bool(retries["orders"]._since_ms), "a lock was refused")
        assert told() == []
        clock.later_ms = 5_000
        eventually(lambda: bool(told()), "it says that it waits")
        clock.later_ms = 20_000
    (text,) = told()
    assert text.startswith("group g: waiting for the locks of ")
    assert "`ordermq locks g` shows who" in text


def test_a_close_that_is_hurried_before_it_begins_waits_for_no_listener(
    broker: EmbeddedBroker, stuck: Stuck
) -> None:
    stuck.consumer.hurry_close()  # not started: nothing to hurry
    stuck.consumer.start()
    assert stuck.begun.wait(20)
    stuck.consumer.hurry_close()
    assert stuck.consumer.close(600.0) is False
    eventually(lambda: not broker.statistics.connections, "it is disconnected")


def test_a_close_that_is_hurried_waits_for_no_poller(broker: EmbeddedBroker) -> None:
    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"x"))
    consumer = LitePullConsumer(
        "g", name_servers=broker.name_servers, ordered=True, consume_from_where="first_offset"
    )
    consumer.subscribe("orders")
    consumer.start()
    with ThreadPoolExecutor(1) as poller:
        assert poller.submit(consumer.poll, 20_000).result()
        consumer.hurry_close()
        assert consumer.close(600.0) is False


def test_close_that_succeeded_says_so_again(
    broker: EmbeddedBroker, makers: dict[str, Make]
) -> None:
    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"x"))
    for kind in ("push", "lite", "lite in order"):
        consumer = makers[kind]()
        consumer.start()
        assert [consumer.close() for _ in range(3)] == [True, True, True]


def test_a_listener_that_closes_its_consumer_while_it_closes_does_not_wait_for_itself(
    broker: EmbeddedBroker,
) -> None:
    said: list[bool] = []
    begun = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        begun.set()
        eventually(context.is_revoked, "somebody closes")
        said.append(consumer.close())

    consumer = with_one_message(broker, listen)
    consumer.start()
    assert begun.wait(20)
    assert consumer.close(30.0) is False
    eventually(lambda: said == [False], "the listener's close returned")


def test_a_listener_or_callback_that_closes_its_consumer_first_is_refused(
    broker: EmbeddedBroker,
) -> None:
    refused: dict[str, str] = {}
    one_by_one = threading.Lock()

    def close(kind: str) -> None:
        with pytest.raises(StateError, match="would wait for itself") as caught:
            consumer.close()
        refused[kind] = str(caught.value)

    def assigned(queue: Any) -> None:
        # Once for five queues: behind the stop it would be the second close, which is allowed.
        with one_by_one:
            if not refused:
                close("callback")

    def listen(messages: Any, context: Any) -> None:
        close("listener")
        consumer.stop()

    consumer = with_one_message(broker, listen, on_assigned=assigned)
    assert consumer.run() is True
    assert refused.keys() == {"callback", "listener"}
    assert "call stop() there [group='g']" in refused["listener"]
    assert consumer.close() is True


def test_an_async_listener_of_a_push_consumer_that_closes_it_is_refused(
    broker: EmbeddedBroker,
) -> None:
    async def listen(messages: Any, context: Any) -> None:
        with pytest.raises(StateError, match="would wait for itself"):
            consumer.close()
        consumer.stop()

    consumer = with_one_message(broker, listen)
    assert consumer.run() is True


@pytest.mark.parametrize("receiver", RECEIVERS)
def test_run_ends_at_a_second_signal_and_renews_nothing(
    broker: EmbeddedBroker, stuck: Stuck, receiver: str
) -> None:
    def press() -> None:
        assert stuck.begun.wait(20)
        send_signal(signal.SIGTERM, receiver)
        eventually(stuck.is_leaving, "it closes")
        send_signal(signal.SIGTERM, receiver)

    pressing = threading.Thread(target=press)
    pressing.start()
    assert stuck.consumer.run() is False
    pressing.join()
    eventually(lambda: not broker.statistics.connections, "it is disconnected")
    assert stuck.consumer.close() is False
