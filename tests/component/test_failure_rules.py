"""Failure policies by exception, and the stop of a consumer whose listener is broken
(docs/failures.md)."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ordermq import (
    Admin,
    AsyncConsumer,
    ConsumeResult,
    DeadLetter,
    FailureStory,
    Producer,
    PushConsumer,
    Retry,
    Stop,
)
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.listener import ConcurrentContext
from ordermq.errors import ConfigError
from tests.component.conftest import Seen, eventually, numbered
from tests.component.docs_examples import DOCS, examples
from tests.component.test_failing_messages import KINDS, of_kind
from tests.component.test_orderly_consumer import committed, send_all

MakeConsumer = Callable[..., PushConsumer]
MODES = pytest.mark.parametrize(
    "mode", [{}, {"order_by_key": True}, {"concurrent": True}], ids=["orderly", "by key", "beside"]
)
QUICK = Retry(backoff_ms=10, factor=2, max_ms=40, jitter=0.5)


def dead_letters(broker: EmbeddedBroker) -> list[str]:
    with Admin(name_servers=broker.name_servers) as admin:
        if not admin.dead_letters():
            return []
        return sorted(letter.text() for letter in admin.peek("%DLQ%g", count=100))


def choose_level(context: Any, level: int) -> None:
    """In a concurrent group: have a failed message back after 1 s, or as a dead letter."""
    if isinstance(context, ConcurrentContext):
        context.delay_level = level


@MODES
@KINDS
@pytest.mark.parametrize("batch", [1, 4])
def test_an_exception_that_no_retry_mends_moves_its_message_and_no_other(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    broker: EmbeddedBroker,
    mode: dict[str, bool],
    kind: str,
    batch: int,
) -> None:
    send_all(producer, numbered(40, keys=4))
    tries: Counter[bytes] = Counter()

    def listen(messages: Any, context: Any) -> None:
        bodies = [bytes(message.body) for message in messages]
        tries.update(bodies)
        choose_level(context, 1)
        if b"17" in bodies:
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    with make_consumer(
        of_kind(listen, kind),
        on_failure=DeadLetter(9, dead_letter_on=(KeyError, ValueError)),
        consume_message_batch_max_size=batch,
        suspend_current_queue_time_ms=10,
        **mode,
    ):
        seen.wait_for_count(39)
        eventually(lambda: dead_letters(broker) == ["17"], "the message is a dead letter")
    # A failed batch is taken apart first.
    assert tries[b"17"] == 1 if batch == 1 else tries[b"17"] <= 2


@pytest.mark.parametrize("is_group", [False, True], ids=["alone", "in a group"])
@MODES
@KINDS
def test_an_exception_that_is_no_fault_of_the_message_is_retried_beyond_the_limit(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    broker: EmbeddedBroker,
    mode: dict[str, bool],
    kind: str,
    is_group: bool,
) -> None:
    send_all(producer, numbered(10, keys=2))
    tries: Counter[bytes] = Counter()
    error: Exception = ConnectionError("a test's own outage")
    retry_on: Any = lambda error: isinstance(error, ConnectionError)  # noqa: E731 - one of two
    if is_group:  # as asyncio.TaskGroup raises it
        error, retry_on = ExceptionGroup("of tasks", [error, ValueError(1)]), ConnectionError

    def listen(messages: Any, context: Any) -> None:
        tries.update(bytes(message.body) for message in messages)
        if tries[b"3"] < 7 and bytes(messages[0].body) == b"3":
            raise error
        seen.take(messages, context)

    with make_consumer(
        of_kind(listen, kind),
        on_failure=DeadLetter(2, retry=QUICK, retry_on=retry_on, dead_letter_on=ValueError),
        **mode,
    ) as consumer:
        seen.wait_for_count(10)
        assert consumer.statistics["sent_back"] == 0
    assert tries[b"3"] == 7
    assert dead_letters(broker) == []


def test_other_policies_move_what_their_exceptions_name(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(20, keys=1))

    def listen(messages: Any, context: Any) -> None:
        if bytes(messages[0].body) == b"5":
            raise ValueError("a test's own failure")
        if bytes(messages[0].body) == b"12":
            raise KeyError("a test's own failure")
        seen.take(messages, context)

    with make_consumer(listen, on_failure=Stop(1, dead_letter_on=ValueError)) as consumer:
        eventually(
            lambda: any(each.is_paused for each in consumer.held_queues()), "the queue is stopped"
        )
        assert len(seen.deliveries) == 11
    assert dead_letters(broker) == ["5"]


@KINDS
@pytest.mark.parametrize("raised", [LookupError, SystemExit, GeneratorExit, BaseException])
def test_a_predicate_that_raises_moves_no_message(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    broker: EmbeddedBroker,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    raised: type[BaseException],
) -> None:
    send_all(producer, numbered(3, keys=1))
    tries: Counter[bytes] = Counter()

    def listen(messages: Any, context: Any) -> None:
        tries.update(bytes(message.body) for message in messages)
        if tries[b"1"] == 1 and bytes(messages[0].body) == b"1":
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    def judge(error: BaseException) -> bool:
        raise raised("a test's own predicate")

    with make_consumer(
        of_kind(listen, kind), on_failure=DeadLetter(1, dead_letter_on=judge, retry=QUICK)
    ) as consumer:
        seen.wait_for_count(3)
        assert consumer.statistics["hook_errors"] == 1
        assert consumer.statistics["internal_errors"] == 0
    assert "a predicate of DeadLetter raised; the message is retried" in caplog.text
    assert dead_letters(broker) == []


@MODES
@KINDS
def test_a_broken_listener_stops_after_some_dead_letters_and_goes_on_when_it_is_mended(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    broker: EmbeddedBroker,
    mode: dict[str, bool],
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    send_all(producer, numbered(60, keys=8))
    mended = False

    def listen(messages: Any, context: Any) -> None:
        if not mended:
            choose_level(context, -1)
            raise NameError("a test's own typo")
        seen.take(messages, context)

    with make_consumer(
        of_kind(listen, kind),
        on_failure=DeadLetter(1, retry_on=OSError, retry=QUICK),
        pause_after_dead_letters=3,
        suspend_current_queue_time_ms=10,
        send_back_retry_ms=10,
        **mode,
    ) as consumer:
        eventually(lambda: consumer.statistics["dead_letter_stops"] == 1, "the consumer stops")
        health = consumer.health()
        assert (health.is_alive, health.is_ready) == (True, False)
        (reason,) = health.reasons
        assert "3 dead letters among 3 messages of orders, the last because listener rais" in reason
        assert all(held.is_paused for held in consumer.held_queues())
        mended = True
        consumer.resume()
        assert consumer.health().is_ready
        seen.wait_for_count(57)
        assert consumer.statistics["dead_letters"] == 3
    assert caplog.text.count("then call resume(). Nothing is consumed until then") == 1
    moved = set(dead_letters(broker))
    assert len(moved) == 3
    assert {body.decode() for *_, body in seen.deliveries} == {str(n) for n in range(60)} - moved


def test_each_start_with_the_same_fault_moves_as_many_letters_and_stops_again(
    producer: Producer, make_consumer: MakeConsumer, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(20, keys=1))

    def listen(messages: Any, context: Any) -> None:
        raise NameError("a test's own typo")

    for start in (1, 2):
        with make_consumer(
            listen, on_failure=DeadLetter(1), pause_after_dead_letters=3
        ) as consumer:
            eventually(lambda: consumer.statistics["dead_letter_stops"] == 1, "it stops")
            health = consumer.health()
            assert (health.is_alive, health.is_ready) == (True, False)
        assert dead_letters(broker) == [str(n) for n in range(3 * start)]


def test_messages_that_fail_now_and_then_stop_nobody(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(60, keys=1))

    def listen(messages: Any, context: Any) -> ConsumeResult:
        if int(messages[0].body) % 4 == 1:  # 15 of 60, one of four
            return ConsumeResult.SUSPEND
        seen.take(messages, context)
        return ConsumeResult.SUCCESS

    with make_consumer(
        listen, on_failure=DeadLetter(1), pause_after_dead_letters=5, dead_letter_window=10
    ) as consumer:
        seen.wait_for_count(45)
        assert consumer.statistics["dead_letter_stops"] == 0
        assert consumer.health().is_ready


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Retry(backoff_ms=100), r"on_failure=Retry\(.*for @consumer.orderly only"),
        (Stop(), r"on_failure=Stop\(.*for @consumer.orderly only"),
        (DeadLetter(retry=QUICK), "`retry` is for what `retry_on` names"),
    ],
)
def test_a_concurrent_group_refuses_what_could_not_act(policy: Any, said: str) -> None:
    consumer = PushConsumer("g", name_servers="127.0.0.1:1", on_failure=policy)
    with pytest.raises(ConfigError, match=said):
        consumer.concurrently(lambda messages, context: None)


def test_the_window_must_hold_as_many_letters_as_stop() -> None:
    with pytest.raises(ConfigError, match="dead_letter_window=5: expected at least pause_after_d"):
        PushConsumer("g", name_servers="127.0.0.1:1", dead_letter_window=5)


def test_the_example_of_the_page_makes_a_consumer() -> None:
    names: dict[str, Any] = {}
    exec(examples((DOCS / "failures.md").read_text())[0], names)
    assert names["consumer"].group == "billing"
    exec(examples((DOCS / "failures.md").read_text())[2], names)
    assert names["consumer"].config.lite.ordered


def test_a_stopped_async_consumer_goes_on_by_resume(
    producer: Producer, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(20, keys=1))
    asyncio.run(stop_and_resume(broker))
    assert len(dead_letters(broker)) == 2


async def stop_and_resume(broker: EmbeddedBroker) -> None:
    seen, mended = Seen(), False
    consumer = AsyncConsumer(
        "g",
        "orders",
        name_servers=broker.name_servers,
        consume_from_where="first_offset",
        on_failure=DeadLetter(1),
        pause_after_dead_letters=2,
        suspend_current_queue_time_ms=10,
    )

    @consumer.orderly
    async def listen(messages: Any, context: Any) -> None:
        if not mended:
            raise NameError("a test's own typo")
        seen.take(messages, context)

    async with consumer:
        while not consumer.statistics["dead_letter_stops"]:
            await consumer.health()
        mended = True
        await consumer.resume()
        while len(seen.deliveries) < 18:
            await consumer.health()


def moving_consumer(
    make_consumer: MakeConsumer, listener: Any, mode: dict[str, bool]
) -> tuple[PushConsumer, int]:
    """Return a consumer that soon moves what fails, and after how many attempts it does."""
    attempts = 2 if "concurrent" not in mode else 1
    consumer = make_consumer(
        listener, on_failure=DeadLetter(attempts), suspend_current_queue_time_ms=10, **mode
    )
    return consumer, attempts


@MODES
@KINDS
def test_an_exception_without_a_text_moves_its_message_like_any_other(
    producer: Producer,
    make_consumer: MakeConsumer,
    broker: EmbeddedBroker,
    mode: dict[str, bool],
    kind: str,
) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise AttributeError("a test's own: no such field")

    send_all(producer, numbered(3, keys=1))
    tries: Counter[bytes] = Counter()

    def listen(messages: Any, context: Any) -> None:
        tries.update(bytes(message.body) for message in messages)
        choose_level(context, -1)
        if bytes(messages[0].body) == b"1":
            raise Unspeakable

    moving, attempts = moving_consumer(make_consumer, of_kind(listen, kind), mode)
    with moving as consumer, Admin(name_servers=broker.name_servers) as admin:
        eventually(lambda: bool(admin.dead_letters()), "there is a dead letter")
        eventually(lambda: tries[b"2"] == 1, "its queue goes on")
        (letter,) = admin.peek("%DLQ%g")
        story = FailureStory.of(letter)
        assert story is not None
        assert story.error == "Unspeakable: <no text: its __str__ raised AttributeError>"
        assert consumer.statistics["internal_errors"] == 0
    assert tries == {b"0": 1, b"1": attempts, b"2": 1}


@MODES
@KINDS
def test_a_dead_letter_carries_its_story(
    producer: Producer,
    make_consumer: MakeConsumer,
    broker: EmbeddedBroker,
    caplog: pytest.LogCaptureFixture,
    mode: dict[str, bool],
    kind: str,
) -> None:
    # A log with a lone surrogate cannot be passed on between pytest's processes.
    caplog.set_level(logging.CRITICAL + 1, "ordermq.consumer")
    send_all(producer, numbered(1, keys=1))
    begun_ms = time.time_ns() // 1_000_000

    def listen(messages: Any, context: Any) -> None:
        choose_level(context, 1)
        raise ValueError("no\x01amount\x02 here: \ud800" + "x" * 5_000)

    moving, attempts = moving_consumer(make_consumer, of_kind(listen, kind), mode)
    with moving as consumer, Admin(name_servers=broker.name_servers) as admin:
        eventually(lambda: bool(admin.dead_letters()), "there is a dead letter")
        (letter,) = admin.peek("%DLQ%g")
        story = FailureStory.of(letter)
        assert story is not None
        assert story.error.startswith("ValueError: no amount  here: ?xxx")
        assert len(story.error) == 1_000
        assert begun_ms - 1_000 <= story.first_failed_ms <= time.time_ns() // 1_000_000 + 1_000
        (queue,) = (q for q, ends in admin.topic("orders").queues.items() if ends.end)
        assert story == FailureStory(
            story.error, attempts, story.first_failed_ms, str(queue), 0, "g", consumer.client_id
        )
        assert (letter.topic, letter.sharding_key) == ("orders", "k0")


def test_a_letter_that_is_sent_again_has_no_story_and_says_what_was_stored_behind_it(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, broker: EmbeddedBroker
) -> None:
    send_all(producer, numbered(10, keys=1))

    def listen(messages: Any, context: Any) -> None:
        if bytes(messages[0].body) in (b"3", b"5"):
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    with make_consumer(listen, on_failure=DeadLetter(1)) as consumer:
        seen.wait_for_count(8)
        eventually(lambda: consumer.statistics["dead_letters"] == 2, "two are given up")
    with Admin(name_servers=broker.name_servers) as admin:
        done = admin.redrive("g")
        assert (done.sent, done.overtaken_by) == (2, 6), "behind 4..9"
        newest = admin.peek("orders", 2)
        assert {each.text() for each in newest} == {"3", "5"}
        assert all(FailureStory.of(each) is None for each in newest)


def test_a_story_leaves_a_message_without_room_as_it_is() -> None:
    properties = {"a": "x" * 32_000}
    FailureStory("ValueError: " + "x" * 900).add_to(properties)
    assert list(properties) == ["a"]


@pytest.mark.parametrize("junk", ["", "x", "1" * 40, "--1", "\u0661"])
def test_a_story_that_somebody_made_up_is_read(junk: str) -> None:
    letter = SimpleNamespace(properties={"omq_error": "E", "omq_attempts": junk})
    story = FailureStory.of(letter)
    assert story is not None
    assert story.error == "E"


def blocked_behind_a_letter() -> tuple[Any, threading.Event, threading.Event]:
    """A listener whose first message is a dead letter, and whose second one does not end."""
    began, end = threading.Event(), threading.Event()

    def listen(messages: Any, context: Any) -> None:
        if bytes(messages[0].body) == b"0":
            raise ValueError("a test's own failure")
        began.set()
        assert end.wait(30)

    return listen, began, end


@pytest.mark.parametrize("mode", [{}, {"order_by_key": True}], ids=["orderly", "by key"])
def test_a_letter_is_committed_at_once_so_that_a_crash_stores_no_second_one(
    producer: Producer, make_consumer: MakeConsumer, broker: EmbeddedBroker, mode: dict[str, bool]
) -> None:
    send_all(producer, numbered(2, keys=1))
    listen, began, end = blocked_behind_a_letter()
    with make_consumer(
        listen,
        on_failure=DeadLetter(9, dead_letter_on=(ValueError,)),
        commit_interval_ms=600_000,
        **mode,
    ):
        assert began.wait(30)
        # The second message keeps the queue busy: no commit of an idle queue can be the reason.
        eventually(lambda: committed(broker) == 1, "the letter is committed")
        end.set()
