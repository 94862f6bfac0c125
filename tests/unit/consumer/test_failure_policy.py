"""Messages that fail again and again (docs/internals/semantics.md#failures-and-dead-letters,
docs/internals/semantics.md#failure-policies)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ordermq.clock import ManualClock
from ordermq.config import ConsumeConfig
from ordermq.consumer.dispatch.failure_policy import (
    DeadLetter,
    FailurePolicy,
    NextStep,
    ParkKey,
    Retry,
    Stop,
    backoff_ms,
    decide,
    matches,
    policy_for,
    resume_delay_ms,
)
from ordermq.consumer.queue.dead_letter_guard import DeadLetterGuard
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.errors import ConfigError
from ordermq.model.message_queue import MessageQueue

from .batches import QUEUE


@pytest.mark.parametrize(
    ("policy", "at_the_limit"),
    [(Retry(), NextStep.RETRY), (DeadLetter(), NextStep.DEAD_LETTER), (Stop(), NextStep.STOP)],
)
def test_a_policy_applies_at_the_limit_and_not_before(
    policy: FailurePolicy, at_the_limit: NextStep
) -> None:
    assert decide(policy, attempts=2, max_attempts=3) is NextStep.RETRY
    assert decide(policy, attempts=3, max_attempts=3) is at_the_limit
    assert decide(policy, attempts=4, max_attempts=3) is at_the_limit


@pytest.mark.parametrize("policy", [Retry(), DeadLetter(), Stop()])
def test_without_a_limit_every_message_is_retried(policy: FailurePolicy) -> None:
    assert decide(policy, attempts=1_000_000, max_attempts=0) is NextStep.RETRY


@pytest.mark.parametrize(
    ("asked_ms", "default_ms", "pause_ms"),
    [
        (-1, 1_000, 1_000),
        (500, 1_000, 500),
        (0, 1_000, 10),
        (9, 1_000, 10),
        (-2, 1_000, 10),
        (30_001, 1_000, 30_000),
        (-1, 5, 10),
        (-1, 60_000, 30_000),
    ],
)
def test_a_retry_delay_is_the_requested_one_within_its_bounds(
    asked_ms: int, default_ms: int, pause_ms: int
) -> None:
    assert resume_delay_ms(asked_ms, default_ms) == pause_ms


@pytest.mark.parametrize(
    ("given", "config", "expected"),
    [
        (None, {}, Retry()),
        (Retry(), {}, Retry()),
        (DeadLetter(), {}, DeadLetter(16)),
        (DeadLetter(3), {}, DeadLetter(3)),
        (None, {"max_attempts": 3}, DeadLetter(3)),
        (DeadLetter(), {"max_attempts": 3}, DeadLetter(3)),
        (DeadLetter(3), {"max_attempts": 3}, DeadLetter(3)),
        (Stop(), {"max_attempts": 3}, Stop(3)),
        (ParkKey("parked"), {}, ParkKey("parked", 16)),
        (ParkKey("parked"), {"max_attempts": 3}, ParkKey("parked", 3)),
        (None, {"max_reconsume_times": 2}, DeadLetter(3)),
        (None, {"max_reconsume_times": 0}, DeadLetter(1)),
    ],
)
def test_a_limit_is_the_policys_and_alone_it_means_the_dead_letter_topic(
    given: FailurePolicy | None, config: dict[str, int], expected: FailurePolicy
) -> None:
    assert policy_for(given, ConsumeConfig(**config), "G") == expected


@pytest.mark.parametrize(
    ("given", "config", "said"),
    [
        (Retry(), {"max_attempts": 3}, r"max_attempts=3 with on_failure=Retry\(\).*DeadLetter\(\)"),
        (Retry(), {"max_reconsume_times": 3}, "max_reconsume_times=3 with on_failure=Retry"),
        (DeadLetter(4), {"max_attempts": 3}, "two limits.*leave max_attempts=3 out"),
        (None, {"max_attempts": 3, "max_reconsume_times": 3}, "two limits.*leave one out"),
    ],
)
def test_a_limit_that_could_not_act_is_refused(
    given: FailurePolicy | None, config: dict[str, int], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        policy_for(given, ConsumeConfig(**config), "G")


@pytest.mark.parametrize("policy", [DeadLetter, Stop, lambda most: ParkKey("", most)])
@pytest.mark.parametrize("most", [0, -1, True, 1.0, "3", None])
def test_a_policy_refuses_a_number_of_attempts_below_one(
    policy: Callable[[Any], object], most: object
) -> None:
    with pytest.raises(ConfigError, match=r"max_attempts=.*expected 1\.\."):
        policy(most)


@pytest.mark.parametrize(
    ("retry", "pauses"),
    [
        (Retry(), [1_000, 1_000, 1_000]),
        (Retry(factor=2), [1_000, 2_000, 4_000]),
        (Retry(backoff_ms=100, factor=2, max_ms=350), [100, 200, 350]),
        (Retry(backoff_ms=1), [10, 10, 10]),
        (Retry(max_ms=1), [1_000, 1_000, 1_000]),
    ],
)
def test_a_backoff_grows_by_its_factor_up_to_its_limit(retry: Retry, pauses: list[int]) -> None:
    assert [backoff_ms(retry, count, 1_000, 0.9) for count in (1, 2, 3)] == pauses


def test_a_backoff_of_many_failures_is_the_longest_one() -> None:
    retry = Retry(backoff_ms=100, factor=1_000, max_ms=60_000)
    assert backoff_ms(retry, 1_000_000, 1_000, 0.0) == 60_000


@pytest.mark.parametrize(("chance", "pause_ms"), [(0.0, 800), (0.5, 1_000), (0.999999, 1_200)])
def test_jitter_leaves_a_part_of_each_pause_to_chance(chance: float, pause_ms: int) -> None:
    assert backoff_ms(Retry(backoff_ms=1_000, jitter=0.2), 1, 5, chance) == pause_ms


@pytest.mark.parametrize(
    ("errors", "error", "is_one"),
    [
        (ValueError, ValueError(), True),
        (ValueError, UnicodeError(), True),
        ([KeyError, ValueError], TypeError(), False),
        ((), ValueError(), False),
        (lambda error: "late" in str(error), OSError("too late"), True),
        (lambda error: "late" in str(error), OSError("early"), False),
        (Exception, None, False),
    ],
)
def test_an_error_filter_is_a_class_several_or_a_predicate(
    errors: Any, error: BaseException | None, is_one: bool
) -> None:
    assert matches(DeadLetter(dead_letter_on=errors).dead_letter_on, error) is is_one


async def judge(error: BaseException) -> bool:
    return True


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: DeadLetter(retry_on=1), "DeadLetter.retry_on=1: expected exception classes"),
        (lambda: Stop(dead_letter_on=[str]), "Stop.dead_letter_on=.*expected exception classes"),
        (lambda: ParkKey(dead_letter_on=judge), "ParkKey.dead_letter_on .*is asynchronous"),
        (lambda: DeadLetter(retry=3), "DeadLetter.retry=3: expected a back-off"),
        (lambda: DeadLetter(retry=Retry(dead_letter_on=ValueError)), "belongs to the policy"),
        (lambda: Retry(factor=0.5), r"factor=0.5: expected a number, 1..1000"),
        (lambda: Retry(jitter=2), r"jitter=2: expected a number, 0..1"),
        (lambda: Retry(jitter=float("nan")), r"jitter=nan"),
        (lambda: Retry(backoff_ms=-1), "backoff_ms=-1"),
        (lambda: Retry(backoff_ms=2_000, max_ms=1_000), "at most max_ms=1000"),
    ],
)
def test_a_wrong_argument_of_a_policy_is_refused(made: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made()


class Done:
    """Statistics of a topic whose messages a test counts."""

    def __init__(self) -> None:
        self.statistics = ConsumerStatistics(ManualClock(1_000))
        self.pauses = 0

    def guard(self, most: int, window: int) -> DeadLetterGuard:
        guard = DeadLetterGuard("G", most, window, self.statistics)
        guard.follow(self.pause)
        return guard

    def pause(self) -> None:
        self.pauses += 1

    def succeed(self, count: int, topic: str = "T") -> None:
        self.statistics.consumed(MessageQueue(topic, "b", 0), count, 0, 1, 0)


@pytest.mark.parametrize(("between", "stops"), [(0, True), (1, False)])
def test_letters_in_a_row_stop_and_one_success_between_them_does_not(
    between: int, stops: bool
) -> None:
    done = Done()
    guard = done.guard(3, 3)
    for _ in range(3):
        guard.note(QUEUE, "listener raised NameError")
        done.succeed(between)
    assert (bool(guard.reason), done.pauses) == (stops, int(stops))


@pytest.mark.parametrize(("between", "stops"), [(3, True), (4, False)])
def test_a_share_of_the_last_messages_stops(between: int, stops: bool) -> None:
    done = Done()
    guard = done.guard(4, 13)
    done.succeed(1_000)
    for _ in range(8):
        guard.note(QUEUE, "listener raised NameError")
        done.succeed(between)
    assert bool(guard.reason) is stops


def test_successes_of_another_topic_hide_nothing() -> None:
    done = Done()
    guard = done.guard(3, 3)
    for _ in range(3):
        guard.note(QUEUE, "listener raised NameError")
        done.succeed(9, topic="another")
    assert guard.reason


def test_a_resumed_guard_counts_anew_and_pauses_once_per_stop() -> None:
    done = Done()
    guard = done.guard(2, 2)
    for _ in range(5):
        guard.note(QUEUE, "listener raised NameError")
    assert done.pauses == 1
    guard.resume(5)
    assert guard.reason == ""
    guard.note(QUEUE, "listener raised NameError")
    assert guard.reason == ""
    guard.note(QUEUE, "listener raised NameError")
    assert done.pauses == 2


def test_what_failed_before_a_stop_is_not_moved_after_it() -> None:
    guard = Done().guard(2, 2)

    async def may_move(*calls: int) -> list[bool]:
        found = []
        for since_ms in calls:
            async with guard.moving(since_ms) as may_move:
                found.append(may_move)
        return found

    async def check() -> None:
        assert await may_move(0) == [True]
        guard.note(QUEUE, "listener raised NameError")
        guard.note(QUEUE, "listener raised NameError")
        assert await may_move(4) == [False]
        guard.resume(5)
        assert await may_move(4, 5, 6) == [False, False, True]

    asyncio.run(check())


def test_a_guard_of_no_letters_never_stops() -> None:
    done = Done()
    guard = done.guard(0, 0)
    for _ in range(100):
        guard.note(QUEUE, "listener raised NameError")
    assert not guard.reason
