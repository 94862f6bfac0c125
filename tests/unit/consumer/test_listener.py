"""Listener results (docs/internals/semantics.md#listener-results) and the listener's context."""

from __future__ import annotations

from typing import Any

import pytest

from ordermq.consumer.listener import (
    AUTO_COMMIT,
    MANUAL_COMMIT,
    ConsumeContext,
    Settlement,
    Verdict,
    judge,
    require_listener,
)
from ordermq.consumer.queue.assigned_queue import AssignedQueue, BatchClaim, QueueCallbacks
from ordermq.errors import ConfigError
from ordermq.leases.lease import Lease
from ordermq.model.status import ConsumeResult

from .batches import QUEUE, batch
from .claims import begin_batch

DONE, HOLD = Settlement.DONE, Settlement.HOLD
RETRY, ROLLBACK = Settlement.RETRY, Settlement.ROLLBACK


def forgets_the_context(messages: object) -> None:
    """Take too little."""


class Biller:
    """Takes too much, and too little."""

    def bill(self, messages: object, context: object, more: object) -> None:
        """Take too much."""

    def __call__(self) -> None:
        """Take nothing."""


@pytest.mark.parametrize(
    ("listener", "told"),
    [
        (forgets_the_context, r"forgets_the_context\(messages\), \S*test_listener.py:\d+"),
        (Biller().bill, r"Biller.bill\(messages, context, more\), \S*listener.py:\d+"),
        (Biller(), r"Biller object at .*\(\)"),
    ],
)
def test_a_listener_that_cannot_be_called_is_told_with_its_place(
    listener: object, told: str
) -> None:
    with pytest.raises(ConfigError, match=f"{told}: .* accept \\(messages, context\\)"):
        require_listener(listener, "g")


@pytest.mark.parametrize(
    ("answer", "auto", "manual"),
    [
        (None, Verdict(DONE, 3), Verdict(HOLD, 3)),
        (ConsumeResult.SUCCESS, Verdict(DONE, 3), Verdict(HOLD, 3)),
        (ConsumeResult.COMMIT, Verdict(DONE, 3), Verdict(DONE, 3)),
        (ConsumeResult.ROLLBACK, Verdict(DONE, 3), Verdict(ROLLBACK, 0)),
        (ConsumeResult.SUSPEND, Verdict(RETRY, 0), Verdict(RETRY, 0)),
        (0, Verdict(RETRY, 0), Verdict(RETRY, 0)),
        (2, Verdict(RETRY, 2), Verdict(RETRY, 2)),
        (3, Verdict(DONE, 3), Verdict(HOLD, 3)),
    ],
)
def test_a_result_for_three_messages(answer: object, auto: Verdict, manual: Verdict) -> None:
    assert judge(answer, 3, AUTO_COMMIT) == auto
    assert judge(answer, 3, MANUAL_COMMIT) == manual


@pytest.mark.parametrize("answer", [True, False, -1, 4, 1.0, "SUCCESS", [], object()])
@pytest.mark.parametrize("auto_commit", [True, False])
def test_any_other_result_raises_an_error_that_lists_the_allowed_ones(
    answer: object, auto_commit: bool
) -> None:
    with pytest.raises(ConfigError, match="expected None, a ConsumeResult, or how many of the 3"):
        judge(answer, 3, AUTO_COMMIT if auto_commit else MANUAL_COMMIT)


@pytest.fixture
def assigned() -> AssignedQueue:
    def ignore(*_: object) -> None:
        return None

    return AssignedQueue(
        QUEUE,
        "G",
        Lease(7, 2_000, True),
        0,
        QueueCallbacks(on_lease_lost=ignore, on_drained=ignore, on_room=ignore, on_idle=ignore),
    )


def context_of(assigned: AssignedQueue) -> ConsumeContext:
    assigned.accept(assigned.generation, batch([4, 5]), 6)
    claim = begin_batch(assigned, 32, 1_000)
    assert isinstance(claim, BatchClaim)
    return ConsumeContext(assigned, claim, claim.messages, attempt=2)


def test_a_context_has_queue_attempt_and_fence_token(assigned: AssignedQueue) -> None:
    context = context_of(assigned)
    assert context.message_queue == QUEUE
    assert (context.attempt, context.suspend_ms) == (2, -1)
    assert context.fence_token == (7, 4)


@pytest.mark.parametrize(("pause", "ms"), [(-1, -1), (0, 0), ("2s", 2_000), (50, 50)])
def test_the_pause_of_a_failed_batch_may_be_given_in_any_unit(
    assigned: AssignedQueue, pause: Any, ms: int
) -> None:
    context = context_of(assigned)
    context.suspend_ms = pause
    assert context.suspend_ms == ms


@pytest.mark.parametrize("pause", [None, 1.5, "soon", -2, True])
def test_a_pause_that_is_none_is_refused(assigned: AssignedQueue, pause: Any) -> None:
    context = context_of(assigned)
    with pytest.raises(ConfigError, match=r"context\.suspend_ms="):
        context.suspend_ms = pause
    assert context.suspend_ms == -1


def test_the_fence_token_stays_that_of_the_batch_when_the_lease_is_renewed(
    assigned: AssignedQueue,
) -> None:
    context = context_of(assigned)
    assigned.renew(0, Lease(7, 9_000, True))
    assert context.fence_token == (7, 4)


def test_a_context_is_revoked_by_a_rebalance_and_by_a_lost_lease_even_after_it_was_regained(
    assigned: AssignedQueue,
) -> None:
    context = context_of(assigned)
    assert not context.is_revoked()
    assigned.abandon_batch("lost")
    assert context.is_revoked()
    assigned.regain(Lease(8, 2_000, True), 0)
    assert context.is_revoked()
    later = context_of(assigned)
    assert not later.is_revoked()
    assigned.revoke()
    assert later.is_revoked()
