"""Messages that keep failing in an ordered group: what a listener is told, and limits that act."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ordermq import (
    Admin,
    ConsumeCall,
    ConsumeResult,
    ConsumeReturn,
    DeadLetter,
    Message,
    Producer,
    PushConsumer,
    Retry,
)
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.listener import ConcurrentContext
from ordermq.errors import ConfigError, StateError
from ordermq.model.names import dead_letter_topic
from tests.component.conftest import Seen, assert_in_order, eventually, numbered
from tests.component.docs_examples import DOCS, examples
from tests.component.test_orderly_consumer import committed, send_all

MakeConsumer = Callable[..., PushConsumer]
KINDS = pytest.mark.parametrize("kind", ["plain", "async"])


def of_kind(listen: Callable[[Any, Any], Any], kind: str) -> Any:
    async def listen_async(messages: Any, context: Any) -> Any:
        return listen(messages, context)

    return listen if kind == "plain" else listen_async


@KINDS
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("by_key", [False, True])
def test_a_listener_can_let_a_message_pass_once_its_reconsume_times_are_high(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    kind: str,
    batch: int,
    by_key: bool,
) -> None:
    send_all(producer, numbered(60, keys=6))
    told: list[tuple[int, int]] = []

    def listen(messages: Any, context: Any) -> ConsumeResult:
        assert context.attempt == messages[0].reconsume_times
        for message in messages:
            if bytes(message.body) == b"17":
                told.append((context.attempt, message.reconsume_times))
                if message.reconsume_times < 3:
                    return ConsumeResult.SUSPEND
        seen.take(messages, context)
        return ConsumeResult.SUCCESS

    with make_consumer(
        of_kind(listen, kind),
        consume_message_batch_max_size=batch,
        order_by_key=by_key,
        suspend_current_queue_time_ms=10,
    ) as consumer:
        seen.wait_for_count(60)
        eventually(lambda: consumer.statistics["oldest_blocked_ms"] == 0, "nothing is blocked")
    assert [times for _, times in told] == [0, 1, 2, 3]
    assert_in_order(seen, 60, keys=6)
    assert seen.duplicates() == 0


def test_the_times_start_again_when_the_queue_moves_to_another_member(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(1))
    failures = threading.Semaphore(0)
    times: list[int] = []

    def fail(messages: Any, context: Any) -> ConsumeResult:
        times.append(messages[0].reconsume_times)
        failures.release()
        return ConsumeResult.SUSPEND

    with make_consumer(fail, suspend_current_queue_time_ms=10) as consumer:
        for _ in range(3):
            assert failures.acquire(timeout=20)
        (blocked,) = consumer.statistics.blocked()
        assert (blocked.queue.topic, blocked.offset) == ("orders", 0)
        assert blocked.attempts >= 2
    assert times[:3] == [0, 1, 2]
    times.clear()

    def listen(messages: Any, context: Any) -> None:
        times.append(messages[0].reconsume_times)
        seen.take(messages, context)

    with make_consumer(listen):
        seen.wait_for_count(1)
    assert times == [0]


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize(
    ("settings", "calls"),
    [
        ({"max_attempts": 1}, 1),
        ({"max_attempts": 2}, 2),
        ({"max_attempts": 3}, 3),
        ({"max_reconsume_times": 2}, 3),
        ({"on_failure": DeadLetter(max_attempts=3)}, 3),
        ({"on_failure": DeadLetter(), "max_attempts": 3}, 3),
        ({"on_failure": DeadLetter()}, 16),
    ],
)
def test_a_limit_alone_acts_and_each_message_has_exactly_its_attempts(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    broker: EmbeddedBroker,
    settings: dict[str, Any],
    calls: int,
    by_key: bool,
) -> None:
    send_all(producer, numbered(40, keys=4))
    tries: Counter[bytes] = Counter()

    def listen(messages: Any, context: Any) -> None:
        bodies = [bytes(message.body) for message in messages]
        tries.update(bodies)
        if b"17" in bodies:
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    dead = Seen()
    with make_consumer(
        listen,
        consume_message_batch_max_size=4,
        order_by_key=by_key,
        suspend_current_queue_time_ms=10,
        **settings,
    ):
        seen.wait_for_count(39)
        eventually(lambda: committed(broker) == 40, "all is committed")
    assert tries[b"17"] == calls
    grave = PushConsumer(
        "gravedigger", name_servers=broker.name_servers, consume_from_where="first_offset"
    )
    grave.subscribe(dead_letter_topic("g"))
    grave.orderly(dead.take)
    with grave:
        dead.wait_for_count(1)
    assert dead.bodies_of("k1") == [b"17"]


@KINDS
@pytest.mark.parametrize("by_key", [False, True])
def test_a_call_that_fails_after_its_lease_has_ended_moves_nothing_to_the_dead_letters(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    broker: EmbeddedBroker,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    by_key: bool,
) -> None:
    send_all(producer, numbered(1))
    calls: list[int] = []

    def listen(messages: Any, context: Any) -> None:
        calls.append(context.attempt)
        if len(calls) == 1:
            context.give_up("a test's own reason")
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    with make_consumer(
        of_kind(listen, kind), order_by_key=by_key, max_attempts=1, lock_retry_ms=20
    ) as consumer:
        seen.wait_for_count(1)  # by the next owner of the queue, which is the same member here
        eventually(lambda: committed(broker) == 1, "it is committed")
        assert consumer.statistics["dead_letters"] == 0
    assert calls == [0, 0]
    assert "offset 0 not moved to the dead-letter topic" in caplog.text
    with Admin(broker.name_servers) as admin:
        assert dead_letter_topic("g") not in [
            each.name for each in admin.topics(with_internal=True)
        ]


def test_settings_that_could_not_act_are_refused_where_they_are_given() -> None:
    def given(**settings: Any) -> PushConsumer:
        return PushConsumer("g", name_servers="localhost:1", **settings)

    with pytest.raises(ConfigError, match=r"on_failure=Retry\(\).*leave one out"):
        given(on_failure=Retry(), max_attempts=3)
    with pytest.raises(ConfigError, match="two limits"):
        given(max_attempts=3, max_reconsume_times=3)
    with pytest.raises(ConfigError, match="max_reconsume_times=3: a broadcasting group has no"):
        given(message_model="broadcasting", max_reconsume_times=3).concurrently(lambda *_: None)
    given(max_reconsume_times=3).concurrently(lambda *_: None)


def test_auto_commit_of_a_call_is_refused_where_a_listener_holds_nothing_back(
    producer: Producer, make_consumer: MakeConsumer
) -> None:
    send_all(producer, numbered(4))
    raised: list[BaseException] = []
    called = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        try:
            context.auto_commit = False
        except (ConfigError, StateError) as error:
            raised.append(error)
        called.set()

    with make_consumer(listen, order_by_key=True):
        assert called.wait(20)
    assert "order_by_key" in str(raised[0])
    raised.clear()
    called.clear()
    send_all(producer, numbered(4))
    with make_consumer(listen, concurrent=True):
        assert called.wait(20)
    assert "context.ack_index" in str(raised[0])


@KINDS
def test_a_call_holds_back_until_another_call_commits(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, broker: EmbeddedBroker, kind: str
) -> None:
    send_all(producer, numbered(40, keys=1))
    rolled_back = threading.Event()

    def listen(messages: Any, context: Any) -> ConsumeResult:
        seen.take(messages, context)
        last = messages[-1].queue_offset
        context.auto_commit = not 10 <= last < 30
        if last == 19 and not rolled_back.is_set():
            rolled_back.set()
            return ConsumeResult.ROLLBACK
        return ConsumeResult.COMMIT if last == 25 else ConsumeResult.SUCCESS

    with make_consumer(of_kind(listen, kind), suspend_current_queue_time_ms=10):
        seen.wait_for_count(50)
        eventually(lambda: committed(broker) == 40, "offset 40 committed")
    assert [int(body) for body in seen.bodies_of("k0")] == [*range(20), *range(10, 40)]


@KINDS
@pytest.mark.parametrize("how", ["orderly", "by key", "concurrent"])
def test_with_strict_results_none_suspends_and_hooks_are_told_so(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    broker: EmbeddedBroker,
    kind: str,
    how: str,
) -> None:
    send_all(producer, numbered(3, keys=1))
    outcomes: list[tuple[ConsumeReturn | None, bool]] = []
    forgot = threading.Event()

    def listen(messages: Any, context: Any) -> ConsumeResult | None:
        if not forgot.is_set():
            forgot.set()
            if isinstance(context, ConcurrentContext):
                context.delay_level = 1
            return None
        seen.take(messages, context)
        return ConsumeResult.SUCCESS

    class Notes:
        def before(self, call: ConsumeCall) -> None:
            pass

        def after(self, call: ConsumeCall) -> None:
            outcomes.append((call.outcome, call.is_success))

    settings: dict[str, Any] = {"concurrent": True}
    if how != "concurrent":
        settings = {"order_by_key": how == "by key", "suspend_current_queue_time_ms": 10}
    consumer = make_consumer(of_kind(listen, kind), strict_results=True, **settings)
    consumer.add_hook(Notes())
    consumer.add_filter(lambda message: bytes(message.body) != b"2")
    with consumer:
        eventually(lambda: len({body for *_, body in seen.deliveries}) == 2, "both arrive")
        eventually(lambda: committed(broker) == 3, "a batch that was filtered away is done")
    assert outcomes[0] == (ConsumeReturn.RETURN_NULL, False)
    assert outcomes.count((ConsumeReturn.RETURN_NULL, False)) == 1
    assert set(outcomes[1:]) == {(ConsumeReturn.SUCCESS, True)}


def listener_of_the_page(word: str, **names: Any) -> Any:
    """Return the listener in docs/order.md whose code has this word."""
    page = (DOCS / "order.md").read_text()
    (code,) = (part for part in examples(page) if word in part)
    consumer = SimpleNamespace(orderly=lambda listener: listener)
    space: dict[str, Any] = {"consumer": consumer, "ConsumeResult": ConsumeResult, **names}
    exec(code.replace("100_000", "50"), space)
    return space["listen"]


def test_a_listener_that_is_far_behind_drops_what_is_unimportant(
    producer: Producer, make_consumer: MakeConsumer, broker: EmbeddedBroker
) -> None:
    events = [
        (Message("orders", str(n).encode(), properties={"level": "low" if n % 2 else "high"}), "k")
        for n in range(100)
    ]
    send_all(producer, events)
    handled: list[int] = []
    listen = listener_of_the_page(
        "context.behind", handle=lambda message: handled.append(int(bytes(message.body)))
    )
    with make_consumer(listen) as consumer:
        eventually(lambda: committed(broker) == 100, "all is committed")
        eventually(lambda: consumer.statistics["behind"] == 0, "it has caught up")
        assert set(consumer.statistics.behind().values()) == {0}
    assert handled == [n for n in range(100) if n % 2 == 0 or 100 - n <= 50]


def test_the_page_lets_a_message_pass_once_it_has_failed_often_enough(
    producer: Producer, make_consumer: MakeConsumer, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(10, keys=1))
    handled: list[bytes] = []
    reported: list[int] = []

    def handle(message: Any) -> None:
        handled.append(bytes(message.body))
        if handled[-1] == b"4":
            raise ValueError("a test's own failure")

    listen = listener_of_the_page(
        "reconsume_times",
        handle=handle,
        report=lambda message: reported.append(message.reconsume_times),
    )
    with make_consumer(listen, suspend_current_queue_time_ms=10):
        eventually(lambda: committed(broker) == 10, "all is committed")
    assert reported == [5]
    assert handled == [str(n).encode() for n in (0, 1, 2, 3, *[4] * 6, 5, 6, 7, 8, 9)]
