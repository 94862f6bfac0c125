"""Messages that fail again and again (docs/internals/semantics.md#failures-and-dead-letters,
docs/internals/semantics.md#failure-policies)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ordermq.config import ConsumeConfig
from ordermq.consumer.dispatch.failure_policy import (
    DeadLetter,
    FailurePolicy,
    NextStep,
    ParkKey,
    Retry,
    Stop,
    decide,
    policy_for,
    resume_delay_ms,
)
from ordermq.errors import ConfigError


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
