"""Many batches of a queue at once: the done offset, redelivery, revocation
(docs/internals/semantics.md#concurrent-consumption)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.consumer.listener import CONCURRENT, ConcurrentContext
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    QueueCallbacks,
    QueueState,
)
from ordermq.errors import ConfigError, StateError
from ordermq.leases.lease import UNLOCKED
from ordermq.model.status import ConsumeResult

from .batches import QUEUE, batch
from .claims import NotClaimed, begin_batch, has_more

LATE_MS = 1 << 50  # no clock reading ends the lease of a queue without a lock


def assigned_with(count: int, drained: list[AssignedQueue] | None = None) -> AssignedQueue:
    assigned = AssignedQueue(
        QUEUE,
        "G",
        UNLOCKED,
        0,
        QueueCallbacks(
            on_lease_lost=lambda *_: None,
            on_drained=(drained if drained is not None else []).append,
            on_room=lambda *_: None,
            on_idle=lambda: None,
        ),
    )
    assert assigned.accept(0, batch(range(count)), count)
    return assigned


def claim(assigned: AssignedQueue, limit: int = 1) -> BatchClaim:
    found = begin_batch(assigned, limit, LATE_MS)
    assert isinstance(found, BatchClaim)
    return found


def context(ack_index: Any = None) -> ConcurrentContext:
    """The context of a call with four messages, after the listener has set `ack_index`."""
    assigned = assigned_with(4)
    only = claim(assigned, 4)
    made = ConcurrentContext(assigned, only, only.messages, 0)
    made.ack_index = ack_index
    return made


@given(st.permutations(range(12)))
def test_only_offsets_below_the_smallest_unfinished_one_are_done(order: list[int]) -> None:
    assigned = assigned_with(12)
    claims = [claim(assigned) for _ in range(12)]
    unfinished = set(range(12))
    for offset in order:
        assigned.finish(claims[offset], [offset])
        unfinished.remove(offset)
        assert assigned.done_offset == min(unfinished, default=12)
        assert assigned.unfinished_span == (11 - min(unfinished) if unfinished else 0)
        assigned.process_queue._check()


def test_the_worker_that_claims_the_last_message_submits_the_queue_no_more() -> None:
    assigned = assigned_with(2)
    claim(assigned)
    assert has_more(assigned)
    claim(assigned)
    assert not has_more(assigned)
    assert assigned.accept(0, batch([2]), 3)  # so the next message begins a new one
    claim(assigned)
    assert not assigned.accept(0, batch([3]), 4)  # and none is begun beside it
    assert has_more(assigned)


def test_a_message_that_was_not_sent_back_holds_the_commit_and_is_redelivered() -> None:
    assigned = assigned_with(4)
    first, second = claim(assigned, 2), claim(assigned, 2)
    assert not has_more(assigned)
    assigned.finish(first, [1])
    assigned.finish(second, [2, 3])
    assert assigned.done_offset == 0
    assert assigned.requeue(first, [0])
    again = claim(assigned, 2)
    assert again.messages.offsets() == [0]
    assigned.finish(again, [0])
    assert assigned.done_offset == 4


def test_a_message_that_was_not_sent_back_waits_until_a_paused_queue_is_resumed() -> None:
    assigned = assigned_with(1)
    only = claim(assigned)
    assert not has_more(assigned)
    assigned.finish(only, [])
    assigned.pause()
    assert not assigned.requeue(only, [0])
    assert assigned.resume()
    assert claim(assigned).messages.offsets() == [0]


def test_a_revoked_queue_is_drained_when_the_last_of_its_batches_ends() -> None:
    drained: list[AssignedQueue] = []
    assigned = assigned_with(3, drained)
    claims = [claim(assigned) for _ in range(3)]
    assert not assigned.revoke()
    assigned.finish(claims[2], [2])
    assigned.finish(claims[0], [0])
    assert drained == []
    assigned.finish(claims[1], [1])
    assert drained == [assigned]
    assert assigned.uncommitted(LATE_MS) == (3, UNLOCKED)
    assert begin_batch(assigned, 1, LATE_MS) is NotClaimed.REVOKED
    assert assigned.state is QueueState.DRAINING


def test_a_revoked_queue_requeues_nothing() -> None:
    assigned = assigned_with(2)
    first = claim(assigned)
    assigned.finish(first, [])
    assigned.revoke()
    assert not assigned.requeue(first, [0])
    assigned.discard()
    assert not assigned.requeue(first, [0])
    assert assigned.uncommitted(LATE_MS) is None


@pytest.mark.parametrize(
    ("answer", "ack_index", "done"),
    [
        (None, None, 4),
        (ConsumeResult.SUCCESS, None, 4),
        (None, 1, 2),
        (None, -1, 0),
        (None, -5, 0),
        (None, 99, 4),
        (ConsumeResult.SUSPEND, 3, 0),
        (3, None, 3),
        (0, 2, 0),
    ],
)
def test_a_result_for_four_messages(answer: object, ack_index: int | None, done: int) -> None:
    assert context(ack_index).judge(answer, CONCURRENT).done == done


@pytest.mark.parametrize("answer", [ConsumeResult.COMMIT, ConsumeResult.ROLLBACK, True, 5, -1, "x"])
def test_any_other_result_raises_an_error_that_lists_the_allowed_ones(answer: object) -> None:
    with pytest.raises(ConfigError, match="expected None, SUCCESS, SUSPEND, or how many of the 4"):
        context().judge(answer, CONCURRENT)


@pytest.mark.parametrize("ack_index", [True, "1", 1.0])
def test_an_ack_index_must_be_a_number(ack_index: Any) -> None:
    with pytest.raises(ConfigError, match="expected a number from -1, or None"):
        context(ack_index).judge(None, CONCURRENT)


@pytest.mark.parametrize("level", [None, "4", 1.0, True, 19])
def test_a_delay_level_must_be_one_of_the_brokers(level: Any) -> None:
    """One that is none let a batch be neither done nor sent back, and `close` wait for it."""
    made = context()
    with pytest.raises(ConfigError, match=r"context.delay_level=.*: expected 0 .*1 to 18"):
        made.delay_level = level
    assert made.delay_level == 0


@pytest.mark.parametrize("level", [-1, 0, 18])
def test_a_delay_level_is_what_was_set(level: int) -> None:
    made = context()
    made.delay_level = level
    assert made.delay_level == level


def test_a_group_without_locks_has_no_fence_token() -> None:
    assigned = assigned_with(1)
    only = claim(assigned)
    made = ConcurrentContext(assigned, only, only.messages, 0)
    with pytest.raises(StateError, match="holds no queue locks"):
        _ = made.fence_token
