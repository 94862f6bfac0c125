"""Messages that fail again and again (docs/internals/semantics.md#failures-and-dead-letters,
docs/internals/semantics.md#failure-policies)."""

from __future__ import annotations

import pytest

from ordermq.consumer.dispatch.failure_policy import (
    DeadLetter,
    FailurePolicy,
    NextStep,
    Retry,
    Stop,
    decide,
    resume_delay_ms,
)


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
