"""The races of one assigned queue, each by its name (docs/internals/semantics.md#process-queue,
docs/internals/semantics.md#leases-and-renewal, docs/internals/semantics.md#hand-off,
docs/internals/semantics.md#fencing)."""

from __future__ import annotations

import pytest

from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    Pause,
    QueueCallbacks,
    QueueState,
)
from ordermq.leases.lease import Lease
from ordermq.model.message import MessageRun

from .batches import QUEUE, batch
from .claims import NotClaimed, begin_batch, has_more

NOW, DEADLINE = 1_000, 2_000
LEASE = Lease(7, DEADLINE, True)


class Orders:
    """An assigned queue and the notifications it gave."""

    def __init__(self, start_offset: int = 0) -> None:
        self.lost_leases: list[str] = []
        self.drained = 0
        self.room = 0
        self.queue = AssignedQueue(
            QUEUE,
            "G",
            LEASE,
            start_offset,
            QueueCallbacks(
                on_lease_lost=lambda _, reason: self.lost_leases.append(reason),
                on_drained=lambda _: self._count("drained"),
                on_room=lambda _: self._count("room"),
                on_idle=lambda: None,
            ),
        )

    def _count(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)

    def pulled(self, *offsets: int) -> bool:
        return self.queue.accept(self.queue.generation, batch(offsets), offsets[-1] + 1)

    def begin(self, limit: int = 32, now_ms: int = NOW) -> BatchClaim:
        claim = begin_batch(self.queue, limit, now_ms)
        assert isinstance(claim, BatchClaim), claim
        return claim

    @property
    def has_request(self) -> bool:
        return self.queue.process_queue.is_dispatched


@pytest.fixture
def orders() -> Orders:
    return Orders()


def offsets(claim: BatchClaim) -> list[int]:
    return claim.messages.offsets()


# -- a batch -------------------------------------------------------------------------------


def test_a_message_that_the_engine_puts_while_a_run_ends_is_served_by_that_run(
    orders: Orders,
) -> None:
    orders.pulled(0)
    orders.begin()
    # The engine takes the mutex that `has_more` takes: it puts before it or after it.
    assert not orders.queue.process_queue.put_batch(batch([1])), "it found the flag set"
    assert has_more(orders.queue)
    assert orders.has_request
    assert offsets(orders.begin()) == [1]
    assert not has_more(orders.queue)
    assert orders.queue.process_queue.put_batch(batch([2])), "it must submit the queue"


def test_the_first_pull_submits_the_queue_and_the_second_does_not(orders: Orders) -> None:
    assert orders.pulled(0, 1, 2)
    assert not orders.pulled(3)
    claim = orders.begin(2)
    assert offsets(claim) == [0, 1]
    assert not orders.pulled(4)
    assert orders.queue.end_batch(claim, 2, NOW)
    assert orders.queue.done_offset == 2
    assert offsets(orders.begin()) == [2, 3, 4]


def test_an_empty_queue_clears_the_dispatch_flag_and_the_next_pull_submits_again(
    orders: Orders,
) -> None:
    orders.pulled(0)
    orders.queue.end_batch(orders.begin(), 1, NOW)
    assert orders.has_request
    assert begin_batch(orders.queue, 1, NOW) is NotClaimed.EMPTY
    assert not orders.has_request
    assert orders.pulled(1)


def test_a_partial_batch_commits_its_prefix_and_redelivers_the_rest(orders: Orders) -> None:
    orders.pulled(0, 1, 5, 6)
    assert orders.queue.end_batch(orders.begin(), 2, NOW)
    assert orders.queue.done_offset == 5, "what a filter left out behind them is done, too"
    assert orders.has_request, "a successor is due"
    assert offsets(orders.begin()) == [5, 6]


def test_a_batch_of_which_nothing_is_done_moves_nothing(orders: Orders) -> None:
    orders.pulled(3, 4)
    assert orders.queue.end_batch(orders.begin(), 0, NOW)
    assert orders.queue.done_offset == 0
    assert orders.queue.uncommitted(NOW) is None
    assert offsets(orders.begin()) == [3, 4]


def test_a_message_pulled_again_while_it_is_consumed_is_not_delivered_twice(orders: Orders) -> None:
    orders.pulled(0, 1)
    claim = orders.begin()
    orders.pulled(0, 1, 2)
    orders.queue.end_batch(claim, 2, NOW)
    orders.pulled(0, 1)
    assert offsets(orders.begin()) == [2]


def test_after_a_failed_batch_its_messages_are_claimed_one_by_one(
    orders: Orders,
) -> None:
    orders.pulled(0, 1, 2, 3)
    orders.queue.end_batch(orders.begin(2), 0, NOW)
    orders.queue.isolate_until = 1
    for expected in ([0], [1], [2, 3]):
        claim = orders.begin()
        assert offsets(claim) == expected
        orders.queue.end_batch(claim, len(expected), NOW)


# -- manual mode ---------------------------------------------------------------------------


def test_held_batches_are_committed_together(orders: Orders) -> None:
    orders.pulled(0, 1, 2)
    orders.queue.end_batch(orders.begin(1), 1, NOW, held=1)
    assert orders.queue.done_offset == 0
    assert orders.queue.end_batch(orders.begin(1), 1, NOW)
    assert orders.queue.done_offset == 2


def test_a_rollback_redelivers_everything_held(orders: Orders) -> None:
    orders.pulled(0, 1, 2)
    orders.queue.end_batch(orders.begin(1), 1, NOW, held=1)
    assert orders.queue.rollback_held(orders.begin(1))
    assert orders.has_request
    assert orders.queue.done_offset == 0
    assert offsets(orders.begin()) == [0, 1, 2]


def test_a_rollback_under_a_lost_lease_redelivers_nothing(orders: Orders) -> None:
    orders.pulled(0)
    claim = orders.begin()
    orders.queue.lose_lease("lost")
    assert not orders.queue.rollback_held(claim)
    assert not orders.has_request
    assert orders.queue.process_queue.message_count == 0


# -- the lease -----------------------------------------------------------------------------


def test_no_batch_starts_at_or_after_the_end_of_the_lease(orders: Orders) -> None:
    orders.pulled(0)
    claim = orders.begin(now_ms=DEADLINE - 1)
    orders.queue.end_batch(claim, 0, DEADLINE - 1)
    assert begin_batch(orders.queue, 1, DEADLINE) is NotClaimed.LEASE_LOST
    assert orders.lost_leases == ["the lease ended before a batch could start"]
    assert not orders.has_request
    assert begin_batch(orders.queue, 1, DEADLINE) is NotClaimed.LEASE_LOST
    assert len(orders.lost_leases) == 1


def test_the_results_of_a_batch_that_outlives_its_lease_are_discarded(orders: Orders) -> None:
    orders.pulled(0, 1)
    claim = orders.begin(1)
    assert not orders.queue.end_batch(claim, 1, DEADLINE)
    assert orders.lost_leases == ["the lease ended while a batch ran"]
    assert (orders.queue.done_offset, orders.queue.lease) == (0, None)
    assert orders.queue.process_queue.message_count == 0
    assert not orders.has_request


def test_a_batch_counts_if_its_lease_was_renewed_while_it_ran(orders: Orders) -> None:
    orders.pulled(0)
    claim = orders.begin()
    assert orders.queue.renew(0, Lease(7, DEADLINE + 500, True))
    assert orders.queue.end_batch(claim, 1, DEADLINE + 499)
    assert orders.queue.uncommitted(DEADLINE + 499) == (1, Lease(7, DEADLINE + 500, True))


def test_a_renewal_never_shortens_a_lease(orders: Orders) -> None:
    assert orders.queue.renew(0, Lease(7, DEADLINE - 500, True))
    assert orders.queue.lease == LEASE


def test_a_renewal_is_recorded_before_a_claim_may_use_it(orders: Orders) -> None:
    at_record: list[Lease | None] = []
    renewed = Lease(7, DEADLINE + 500, True)
    assert orders.queue.renew(0, renewed, lambda: at_record.append(orders.queue.lease))
    assert (at_record, orders.queue.lease) == ([LEASE], renewed)


def test_a_grant_of_another_epoch_or_generation_is_no_renewal(orders: Orders) -> None:
    assert not orders.queue.renew(0, Lease(8, DEADLINE + 1, True), pytest.fail)
    assert not orders.queue.renew(1, Lease(7, DEADLINE + 1, True))
    orders.queue.lose_lease("lost")
    assert not orders.queue.renew(orders.queue.generation, Lease(7, DEADLINE + 1, True))


def test_a_lost_lease_reported_late_does_not_end_its_successor(orders: Orders) -> None:
    before = orders.queue.generation
    orders.queue.lose_lease("lost")
    orders.queue.regain(Lease(8, DEADLINE, True), 0)
    orders.queue.lose_lease("an answer from before", before)
    assert orders.queue.lease == Lease(8, DEADLINE, True)
    assert orders.lost_leases == ["lost"]


def test_a_lease_lost_twice_is_notified_once(orders: Orders) -> None:
    orders.queue.lose_lease("first")
    orders.queue.lose_lease("second")
    assert orders.lost_leases == ["first"]


def test_a_claim_of_an_old_generation_never_counts(orders: Orders) -> None:
    # rmq section 9 #10: a lease lost and regained while a listener runs; another member may have
    # gone on from the committed offset, so the result of the old batch is moot.
    orders.pulled(0, 1)
    claim = orders.begin(1)
    orders.queue.lose_lease("lost")
    assert not orders.queue.end_batch(claim, 1, NOW)
    assert orders.queue.regain(Lease(8, DEADLINE, True), 0)
    assert orders.pulled(0, 1)
    assert not orders.queue.end_batch(claim, 1, NOW), "settled twice"
    assert orders.queue.done_offset == 0


def test_a_queue_is_not_regained_while_its_old_batch_runs(orders: Orders) -> None:
    orders.pulled(0)
    claim = orders.begin()
    orders.queue.lose_lease("lost")
    assert orders.queue.is_running
    assert not orders.queue.regain(Lease(8, DEADLINE, True), 0)
    assert not orders.queue.end_batch(claim, 1, NOW)
    assert orders.queue.regain(Lease(8, DEADLINE, True), 0)


def test_a_regained_queue_starts_from_the_offset_read_under_the_new_lease(orders: Orders) -> None:
    orders.pulled(0, 1, 2)
    orders.queue.end_batch(orders.begin(2), 2, NOW)
    orders.queue.lose_lease("lost")
    assert orders.queue.done_offset == orders.queue.committed_offset == 0
    assert orders.queue.uncommitted(NOW) is None
    assert orders.queue.regain(Lease(8, DEADLINE, True), 1)
    assert orders.queue.next_pull_offset == 1
    assert orders.queue.committed_offset == orders.queue.done_offset == 1
    orders.pulled(0, 1)
    assert offsets(orders.begin()) == [1]


def test_a_request_that_waits_while_the_lease_is_lost_and_regained_stays_the_only_one(
    orders: Orders,
) -> None:
    assert orders.pulled(0)
    orders.queue.lose_lease("lost")
    assert orders.queue.regain(Lease(8, DEADLINE, True), 0)
    assert not orders.pulled(0), "the first request is still queued"
    assert offsets(orders.begin()) == [0]


def test_an_abandoned_batch_loses_the_lease_and_clears_the_dispatch_flag(orders: Orders) -> None:
    orders.pulled(0)
    orders.begin()
    orders.queue.abandon_batch("a defect")
    assert orders.lost_leases == ["a defect"]
    assert not orders.has_request
    assert not orders.queue.is_running
    assert orders.queue.regain(Lease(8, DEADLINE, True), 0)


# -- pulls ---------------------------------------------------------------------------------


def test_a_pull_answer_of_an_old_generation_changes_nothing(orders: Orders) -> None:
    asked_in = orders.queue.generation
    orders.queue.lose_lease("lost")
    orders.queue.regain(Lease(8, DEADLINE, True), 5)
    assert not orders.queue.accept(asked_in, batch([0, 1]), 2)
    orders.queue.skip_to(asked_in, 9)
    assert orders.queue.process_queue.message_count == 0
    assert (orders.queue.next_pull_offset, orders.queue.done_offset) == (5, 5)


def test_skipped_offsets_are_done_only_when_nothing_is_buffered(orders: Orders) -> None:
    generation = orders.queue.generation
    orders.queue.skip_to(generation, 4)
    assert (orders.queue.done_offset, orders.queue.next_pull_offset) == (4, 4)
    orders.pulled(4)
    orders.queue.skip_to(generation, 9)
    assert (orders.queue.done_offset, orders.queue.next_pull_offset) == (4, 9)
    claim = orders.begin()
    orders.queue.skip_to(generation, 10)
    assert orders.queue.done_offset == 4, "a running batch is buffered too"
    orders.queue.end_batch(claim, 1, NOW)
    orders.queue.skip_to(generation, 11)
    assert orders.queue.done_offset == 11


def test_a_waiting_fetcher_is_notified_once_there_is_room(orders: Orders) -> None:
    assert not orders.queue.wait_for_room(1)
    orders.pulled(0, 1, 2)
    assert orders.queue.wait_for_room(2)
    orders.queue.end_batch(orders.begin(1), 1, NOW)
    assert orders.room == 0
    orders.queue.end_batch(orders.begin(1), 1, NOW)
    assert orders.room == 1
    orders.queue.end_batch(orders.begin(1), 1, NOW)
    assert orders.room == 1


# -- pausing, moving -----------------------------------------------------------------------


def test_a_paused_queue_starts_no_batch_and_continues_where_it_was(orders: Orders) -> None:
    orders.pulled(0)
    orders.queue.pause()
    assert begin_batch(orders.queue, 1, NOW) is NotClaimed.PAUSED
    assert not orders.has_request
    assert not orders.pulled(1)
    assert not orders.has_request
    assert orders.queue.resume()
    assert offsets(orders.begin()) == [0, 1]


def test_resuming_submits_no_second_time(orders: Orders) -> None:
    assert not orders.queue.resume(), "nothing is pending"
    orders.pulled(0)
    orders.queue.pause()
    assert not orders.queue.resume(), "the request from before the pause still exists"
    orders.queue.pause()
    begin_batch(orders.queue, 1, NOW)
    assert orders.queue.resume()
    assert not orders.queue.resume()


def test_a_pause_lets_the_running_batch_end(orders: Orders) -> None:
    orders.pulled(0, 1)
    claim = orders.begin(1)
    orders.queue.pause()
    assert orders.queue.end_batch(claim, 1, NOW)
    assert orders.queue.done_offset == 1
    assert begin_batch(orders.queue, 1, NOW) is NotClaimed.PAUSED


def test_a_stopped_queue_has_no_request_and_resumes_at_the_failed_message(
    orders: Orders,
) -> None:
    orders.pulled(0, 1)
    orders.queue.end_batch(orders.begin(), 1, NOW)
    orders.queue.stop()
    assert not orders.has_request
    assert orders.queue.is_paused
    assert orders.queue.resume()
    assert offsets(orders.begin()) == [1]


@pytest.mark.parametrize("target", [0, 9])
def test_a_queue_is_repositioned_either_way(target: int) -> None:
    orders = Orders(start_offset=4)
    orders.pulled(4, 5)
    generation = orders.queue.generation
    assert orders.queue.reposition(generation, target)
    assert orders.queue.generation > generation
    assert orders.queue.next_pull_offset == orders.queue.done_offset == target
    orders.pulled(target)
    assert offsets(orders.begin()) == [target]


def test_a_queue_is_not_repositioned_under_a_running_batch_or_after_a_loss(
    orders: Orders,
) -> None:
    orders.pulled(0)
    claim = orders.begin()
    assert not orders.queue.reposition(orders.queue.generation, 9)
    orders.queue.end_batch(claim, 1, NOW)
    before = orders.queue.generation
    orders.queue.lose_lease("lost")
    assert not orders.queue.reposition(before, 9)


# -- giving it up --------------------------------------------------------------------------


def test_a_revoked_queue_with_no_batch_is_drained_at_once(orders: Orders) -> None:
    orders.pulled(0)
    assert orders.queue.revoke()
    assert orders.queue.state is QueueState.DRAINING
    assert begin_batch(orders.queue, 1, NOW) is NotClaimed.REVOKED
    assert not orders.has_request
    assert orders.drained == 0
    assert not orders.pulled(1)


def test_a_revoked_queue_lets_its_running_batch_end_and_commit(orders: Orders) -> None:
    orders.pulled(0, 1)
    claim = orders.begin(1)
    assert not orders.queue.revoke()
    assert orders.queue.is_revoked()
    assert orders.drained == 0
    assert orders.queue.end_batch(claim, 1, NOW)
    assert orders.drained == 1
    assert orders.queue.uncommitted(NOW) == (1, LEASE)
    assert begin_batch(orders.queue, 1, NOW) is NotClaimed.REVOKED


def test_a_lease_lost_while_draining_ends_the_drain_with_nothing_to_commit(orders: Orders) -> None:
    orders.pulled(0)
    claim = orders.begin()
    orders.queue.revoke()
    orders.queue.lose_lease("lost")
    assert orders.drained == 0
    assert not orders.queue.end_batch(claim, 1, NOW)
    assert orders.drained == 1
    assert orders.queue.uncommitted(NOW) is None
    assert not orders.queue.regain(Lease(8, DEADLINE, True), 0)


def test_a_discarded_queue_ignores_everything_that_arrives_late(orders: Orders) -> None:
    orders.pulled(0)
    claim = orders.begin()
    generation = orders.queue.generation
    orders.queue.discard()
    orders.queue.lose_lease("late")
    assert orders.lost_leases == []
    assert not orders.queue.end_batch(claim, 1, NOW)
    assert not orders.queue.accept(generation, batch([1]), 2)
    assert not orders.queue.regain(LEASE, 0)
    assert not orders.queue.resume()
    assert begin_batch(orders.queue, 1, NOW) is NotClaimed.REVOKED
    assert orders.queue.uncommitted(NOW) is None
    assert orders.queue.state is QueueState.GONE


# -- commits -------------------------------------------------------------------------------


def test_done_messages_are_committed_only_under_a_valid_lease(orders: Orders) -> None:
    assert orders.queue.uncommitted(NOW) is None
    orders.pulled(0)
    orders.queue.end_batch(orders.begin(), 1, NOW)
    assert orders.queue.uncommitted(DEADLINE - 1) == (1, LEASE)
    assert orders.queue.uncommitted(DEADLINE) is None


def test_an_acknowledged_commit_is_not_sent_again(orders: Orders) -> None:
    orders.pulled(0)
    orders.queue.end_batch(orders.begin(), 1, NOW)
    orders.queue.committed(1, LEASE)
    assert orders.queue.committed_offset == 1
    assert orders.queue.uncommitted(NOW) is None


def test_an_acknowledgement_of_another_epoch_is_ignored(orders: Orders) -> None:
    orders.queue.lose_lease("lost")
    orders.queue.committed(5, LEASE)
    orders.queue.regain(Lease(8, DEADLINE, True), 3)
    orders.queue.committed(5, LEASE)
    assert orders.queue.committed_offset == 3


# -- a call outside of the order -------------------------------------------------------------


def test_a_call_outside_of_the_order_waits_for_the_running_batch(orders: Orders) -> None:
    orders.pulled(0, 1, 2)
    run = MessageRun([(batch([1]), 0, 1)])
    claim = orders.begin(1)
    orders.queue.pause(Pause.DIRECT)
    assert orders.queue.begin_alone(run, NOW) is None
    assert orders.queue.end_batch(claim, 1, NOW)
    alone = orders.queue.begin_alone(run, NOW)
    assert alone is not None
    assert alone.messages is run
    assert orders.queue.is_running
    assert [call.messages for call in orders.queue.running_calls()] == [run], "the watch sees it"
    assert begin_batch(orders.queue, 1, NOW) is NotClaimed.PAUSED
    assert orders.queue.begin_alone(run, NOW) is None, "one at a time"
    orders.queue.end_alone()
    assert orders.queue.resume(Pause.DIRECT), "the next batch must be submitted"
    assert orders.queue.done_offset == 1, "nothing is done by it"
    assert offsets(orders.begin()) == [1, 2]


def test_a_revocation_and_a_seek_wait_for_a_call_outside_of_the_order(orders: Orders) -> None:
    run = MessageRun([(batch([1]), 0, 1)])
    orders.queue.pause(Pause.DIRECT)
    assert orders.queue.begin_alone(run, NOW) is not None
    assert not orders.queue.reposition(orders.queue.generation, 5)
    assert not orders.queue.revoke()
    assert orders.drained == 0
    orders.queue.end_alone()
    assert orders.drained == 1
    assert not orders.queue.resume(Pause.DIRECT), "nothing of it starts any more"
    assert orders.queue.begin_alone(run, NOW) is None


def test_a_call_outside_of_the_order_needs_a_valid_lease(orders: Orders) -> None:
    run = MessageRun([(batch([1]), 0, 1)])
    assert orders.queue.begin_alone(run, DEADLINE) is None
    assert orders.queue.begin_alone(run, DEADLINE - 1) is not None
    orders.queue.lose_lease("a test's")
    assert not orders.queue.regain(LEASE, 0), "not while it runs"
    orders.queue.end_alone()
    assert orders.queue.begin_alone(run, NOW) is None
    assert orders.queue.regain(LEASE, 0)


# -- the last message that was read ---------------------------------------------------------


def test_the_last_message_that_was_read_is_known_until_the_queue_begins_a_new_life(
    orders: Orders,
) -> None:
    queue = orders.queue
    assert queue.first_read is queue.last_read is None
    queue.accept(queue.generation, batch([0, 1]), 2)
    queue.accept(queue.generation, batch([2, 5], apart_ms=1_000), 7)
    assert queue.first_read == (1, 2, 0, 1)
    assert queue.last_read == (5, 5_002, 0, 1)
    assert queue.skip_to(queue.generation, 9) is None
    queue.accept(queue.generation - 1, batch([9]), 10)
    queue.lose_lease("a test's")
    assert queue.regain(LEASE, 0)
    assert queue.last_read == (5, 5_002, 0, 1), "its messages are read again, of the same queue"
    assert queue.begin_life(2)
    queue.accept(queue.generation, batch([6]), 7)
    assert queue.last_read is None, "of which life it is, is not known"
    assert queue.reposition(queue.generation, 2)
    assert queue.first_read is queue.last_read is None
    queue.accept(queue.generation, batch([2]), 3)
    assert queue.first_read == queue.last_read == (2, 2, 0, 1)


# -- the age of the oldest message ---------------------------------------------------------


def test_the_oldest_message_that_is_not_done_has_the_age(orders: Orders) -> None:
    queue = orders.queue
    assert queue.oldest_stored_ms() is None, "nothing was pulled"
    for pulled in (0, 1, 5), (9, 10):
        # A filter leaves out what lies between.
        queue.accept(queue.generation, batch(pulled, apart_ms=1_000), pulled[-1] + 4)
    assert queue.oldest_stored_ms() == 2
    queue.end_batch(orders.begin(2), 2, NOW)
    assert queue.oldest_stored_ms() == 5_002
    claim = orders.begin(2)
    assert queue.oldest_stored_ms() == 5_002, "in a listener, and not done"
    queue.end_batch(claim, 2, NOW)
    queue.committed(10, LEASE)
    assert queue.oldest_stored_ms() == 10_002
    queue.lose_lease("a test's own reason")
    assert queue.oldest_stored_ms() == 10_002, "dropped, and as old as it was"
    assert queue.regain(LEASE, 0)
    assert queue.oldest_stored_ms() is None, "it will be pulled again"
