"""The poll buffer: what it hands out, and what of it may be committed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

import pytest

from ordermq import MessageQueue
from ordermq.clock import ManualClock
from ordermq.config import PullConfig
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    Pause,
    QueueCallbacks,
)
from ordermq.consumer.queue.poll_buffer import NOTHING, PollBuffer, PolledBatch
from ordermq.consumer.queue.poll_receiver import PollReceiver
from ordermq.consumer.queue.polled_queue import PolledQueue, PollRoom
from ordermq.consumer.queue.receiver import Flow
from ordermq.errors import StateError
from ordermq.leases.lease import UNLOCKED, Lease
from tests.unit.consumer.batches import batch

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))
ME, OTHER = "this thread", "another thread"


class Held:
    """A poll buffer, and the queues made by it."""

    def __init__(self, threshold: int = 10_000, *, is_ordered: bool = False) -> None:
        self.clock = ManualClock()
        self.buffer = PollBuffer(self.clock, PollRoom(threshold), is_ordered=is_ordered)
        self.receiver = PollReceiver(self.clock, "G", self.buffer)
        self.roomy: list[AssignedQueue] = []
        self.drained: list[AssignedQueue] = []
        self.lost: list[AssignedQueue] = []

    def hold(self, queue: MessageQueue, offset: int, lease: Lease | None = None) -> PolledQueue:
        callbacks = QueueCallbacks(
            lambda item, reason: self.lost.append(item),
            self.drained.append,
            self.roomy.append,
            lambda: None,
        )
        if lease is None:
            lease = self.lease() if self.buffer.is_ordered else UNLOCKED
        return self.receiver.make_queue(queue, lease, offset, callbacks)

    def lease(self, epoch: int = 7) -> Lease:
        return Lease(epoch, self.clock.now_ms() + 1_000, True)

    def put(self, queue: PolledQueue, offsets: Iterable[int], end: int, body: bytes = b"x") -> None:
        found = batch(offsets, body=body)
        if not len(found):
            queue.skip_to(queue.generation, end)
        elif queue.accept(queue.generation, found, end):
            self.buffer.submit(queue)
        self.buffer._check()

    def take(self, poller: str, limit: int) -> list[int] | None:
        found = self.buffer.take(poller, limit)
        self.buffer._check()
        return None if found is None else found.offsets()

    def done(self) -> dict[MessageQueue, int]:
        """Offset that a periodic commit would store."""
        return {
            queue.queue: found[0]
            for queue in self.buffer.room.queues
            if (found := queue.uncommitted(self.clock.now_ms())) is not None
        }

    def polled(self, poller: str) -> dict[MessageQueue, int]:
        return {queue.queue: offset for queue, offset in self.buffer.polled(poller).items()}

    def commit(self, poller: str) -> dict[MessageQueue, int]:
        """Commit everything polled, as a consumer does once a broker has acknowledged it."""
        offsets = self.buffer.polled(poller)
        for queue, offset in offsets.items():
            lease = queue.lease
            assert lease is not None
            queue.set_done_offset(queue.generation, offset)
            queue.committed(offset, lease)
        self.buffer.finish_up_to(offsets)
        self.buffer._check()
        return {queue.queue: offset for queue, offset in offsets.items()}

    def may_pull(self, queue: PolledQueue, **settings: int) -> bool:
        flow = self.receiver.flow(queue, PullConfig(**settings))
        assert flow in (Flow.PULL, Flow.WAIT_FOR_ROOM)
        return flow is Flow.PULL

    def resume(self, queue: PolledQueue) -> None:
        if queue.resume():
            self.buffer.submit(queue)
        self.buffer._check()


def test_queues_take_turns() -> None:
    held = Held()
    queues = [held.hold(queue, 0) for queue in (A, B, C)]
    for queue in queues:
        held.put(queue, range(4), 4)
    turns = [held.buffer.take(ME, 2) for _ in range(6)]
    assert [turn.message_queue for turn in turns if turn] == [A, B, C, A, B, C]
    assert [turn and turn.offsets() for turn in turns] == [[0, 1]] * 3 + [[2, 3]] * 3
    assert held.take(ME, 2) is None


def test_several_pulls_are_handed_out_together() -> None:
    held = Held()
    queue = held.hold(A, 5)
    held.put(queue, (5, 6), 7)
    held.put(queue, (8, 9), 12)
    found = held.buffer.take(ME, 100)
    assert found is not None
    assert found.offsets() == [5, 6, 8, 9]
    assert found.next_offset == 12  # 10 and 11 have other tags


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_finished_batch_covers_what_the_filter_left_out_behind_it(is_ordered: bool) -> None:
    held = Held(is_ordered=is_ordered)
    held.put(held.hold(A, 0), (0, 1, 5), 6)  # 2 to 4 have other tags
    found = held.buffer.take(ME, 2)
    assert found is not None
    assert found.next_offset == 5
    held.buffer.finish(ME)
    assert held.done() == {A: 5}


def test_a_batch_may_end_within_a_pull() -> None:
    held = Held()
    queue = held.hold(A, 0)
    held.put(queue, (0, 3, 6), 9)
    found = held.buffer.take(ME, 2)
    assert found is not None
    assert (found.offsets(), found.next_offset, queue.position) == ([0, 3], 6, 6)
    assert held.take(ME, 2) == [6]
    assert queue.position == 9


def test_a_batch_is_done_when_its_poller_comes_back() -> None:
    held = Held()
    queue = held.hold(A, 0)
    held.put(queue, range(4), 4)
    assert held.take(ME, 2) == [0, 1]
    assert held.done() == {}
    assert held.take(OTHER, 2) == [2, 3]
    assert held.take(OTHER, 2) is None  # done with 2 and 3, but the first half is still out
    assert held.done() == {}
    assert list(held.buffer._out) == [ME]
    assert held.take(ME, 2) is None
    assert held.done() == {A: 4}


def test_a_commit_of_everything_polled_vouches_for_what_is_handed_out() -> None:
    held = Held()
    one, two = held.hold(A, 0), held.hold(B, 7)
    held.put(one, range(4), 4)
    held.put(two, range(7, 9), 9)
    held.take(ME, 2)
    assert held.polled(OTHER) == {A: 2}
    assert held.commit(OTHER) == {A: 2}
    assert one.done_offset == one.committed_offset == 2
    assert held.polled(ME) == {}
    assert held.buffer._out == {}


def test_a_commit_behind_which_a_batch_is_out_leaves_it_out() -> None:
    held = Held()
    queue = held.hold(A, 0)
    held.put(queue, range(4), 4)
    held.take(ME, 4)
    queue.set_done_offset(queue.generation, 2)
    queue.committed(2, UNLOCKED)
    held.buffer.finish_up_to({queue: 2})
    assert held.done() == {}
    assert held.take(ME, 4) is None
    assert held.done() == {A: 4}


def test_offsets_that_were_filtered_out_are_committed_without_a_message() -> None:
    held = Held()
    queue = held.hold(A, 0)
    held.put(queue, (), 800)
    assert held.done() == {A: 800}
    held.put(queue, (805,), 810)
    assert held.done() == {A: 800}
    held.put(queue, (), 900)  # behind a message that is buffered: only with it
    assert held.done() == {A: 800}
    held.take(ME, 9)
    held.buffer.finish(ME)
    assert held.done() == {A: 900}


def test_a_seek_forgets_what_was_buffered_handed_out_and_under_way() -> None:
    held = Held()
    queue = held.hold(A, 0)
    held.put(queue, range(4), 4)
    before = queue.generation
    held.take(ME, 2)
    assert queue.reposition(queue.generation, 100)
    assert held.take(ME, 2) is None
    assert not queue.accept(before, batch((4, 5)), 6)
    assert held.done() == {A: 100}
    held.put(queue, (100,), 101)
    assert held.take(OTHER, 2) == [100]
    held.buffer.finish(ME)  # comes back with a batch from before the seek
    assert held.done() == {A: 100}
    held.buffer.finish(OTHER)
    assert held.done() == {A: 101}


def test_a_batch_from_before_a_seek_finishes_none_that_begins_where_it_did() -> None:
    held = Held()
    queue = held.hold(A, 0)
    held.put(queue, range(4), 4)
    held.take(ME, 2)
    assert queue.reposition(queue.generation, 0)
    held.put(queue, range(4), 4)
    held.take(OTHER, 2)
    held.buffer.finish(ME)
    assert held.done() == {}


def test_a_queue_that_is_lost_is_neither_handed_out_nor_committed() -> None:
    held = Held()
    queue, other = held.hold(A, 0), held.hold(B, 0)
    held.put(queue, range(4), 4)
    held.put(other, range(4), 4)
    held.take(ME, 2)
    assert queue.revoke(), "out of order a revocation waits for no batch"
    queue.discard()
    held.buffer._check()
    assert not queue.accept(queue.generation, batch((4,)), 5)
    found = held.buffer.take(ME, 9)
    assert found is not None
    assert found.message_queue == B
    assert held.polled(ME) == {B: 4}
    assert held.buffer.find(A) is None
    again = held.hold(A, 0)
    queue.discard()  # the end of the old one takes nothing from the new one
    assert held.buffer.find(A) is again


def test_a_paused_queue_keeps_its_messages() -> None:
    held = Held()
    queue = held.hold(A, 0)
    held.put(queue, (0, 1), 2)
    queue.pause()
    assert held.take(ME, 9) is None
    assert not held.may_pull(queue)
    held.put(queue, (2,), 3)  # was under way
    assert held.take(ME, 9) is None
    held.resume(queue)
    assert held.roomy == [queue]
    assert held.take(ME, 9) == [0, 1, 2]
    assert held.may_pull(queue)


def test_pulling_pauses_strictly_above_each_threshold() -> None:
    held = Held(threshold=5)
    one, two = held.hold(A, 0), held.hold(B, 0)
    held.put(one, range(3), 3)
    assert held.may_pull(one, pull_threshold_for_queue=3)
    held.put(one, (3,), 4)
    assert not held.may_pull(one, pull_threshold_for_queue=3)
    assert held.may_pull(two, pull_threshold_for_queue=3)
    held.put(two, range(2), 2)
    assert not held.may_pull(two, pull_threshold_for_queue=3)  # six in all
    held.take(ME, 1)
    assert held.may_pull(two, pull_threshold_for_queue=3)


def test_pulling_pauses_strictly_above_the_threshold_of_bodies() -> None:
    full = Held()
    settings = {"pull_threshold_size_for_queue_mib": 1}
    big = full.hold(A, 0)
    full.put(big, range(4), 4, bytes(1 << 18))
    assert full.may_pull(big, **settings)
    full.put(big, (4,), 5)
    assert not full.may_pull(big, **settings)


def test_who_waits_for_room_is_notified() -> None:
    held = Held(threshold=1)
    queue, other = held.hold(A, 0), held.hold(B, 0)
    held.put(queue, (0, 1, 2), 3)
    held.put(other, (0,), 1)
    held.take(ME, 1)
    assert held.roomy == []  # nobody waited
    assert not held.may_pull(queue)
    assert not held.may_pull(other)
    held.take(ME, 9)
    assert held.roomy == []  # two are still too many in all
    held.take(ME, 1)
    assert sorted(item.queue for item in held.roomy) == [A, B]
    held.put(queue, (3, 4, 5), 6)
    assert not held.may_pull(other)
    queue.reposition(queue.generation, 0)
    assert held.roomy[2:] == [other]
    held.put(other, (1, 2), 3)
    assert not held.may_pull(other)
    other.discard()
    assert held.roomy[3:] == []


def test_a_waiting_poller_wakes_for_a_message_a_resume_and_the_end() -> None:
    held = Held()
    queue = held.hold(A, 0)
    first = held.buffer.wait()
    assert first is not None
    held.put(queue, (), 5)
    assert not first.is_set
    held.put(queue, (5,), 6)
    assert first.is_set
    assert held.buffer.wait() is None
    queue.pause()
    assert held.take(ME, 9) is None
    second = held.buffer.wait()
    assert second is not None
    held.resume(queue)
    assert second.is_set
    held.take(ME, 9)
    cancelled, third = held.buffer.wait(), held.buffer.wait()
    assert cancelled is not None
    assert third is not None
    held.buffer.give_up(cancelled)
    held.buffer.stop()
    assert third.is_set
    assert held.buffer.wait() is None
    assert held.take(ME, 9) is None


def test_takers_on_many_threads_get_every_message_once() -> None:
    held = Held()
    queues = [held.hold(queue, 0) for queue in (A, B, C)]
    for start in range(0, 900, 30):
        for queue in queues:
            held.put(queue, range(start, start + 30), start + 30)
    taken: list[tuple[MessageQueue, int]] = []

    def work() -> None:
        while (found := held.buffer.take(threading.current_thread(), 7)) is not None:
            taken.extend((found.message_queue, offset) for offset in found.offsets())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [(queue.queue, n) for queue in queues for n in range(900)]
    held.buffer._check()
    assert held.done() == dict.fromkeys((A, B, C), 900)


def test_an_empty_batch_has_no_queue() -> None:
    assert not NOTHING
    assert list(NOTHING) == []
    assert repr(NOTHING) == "<PolledBatch, empty>"
    with pytest.raises(StateError, match="of no queue"):
        _ = NOTHING.message_queue


# In order, under queue locks.


def polled(held: Held, poller: object, limit: int = 2) -> PolledBatch:
    found = held.buffer.take(poller, limit)
    held.buffer._check()
    assert found is not None
    return found


def test_in_order_one_batch_of_a_queue_is_out_at_a_time() -> None:
    held = Held(is_ordered=True)
    one, two = held.hold(A, 0), held.hold(B, 0)
    held.put(one, range(4), 4)
    held.put(two, range(4), 4)
    assert polled(held, ME).message_queue == A
    assert polled(held, OTHER).message_queue == B
    assert held.take("a third thread", 2) is None
    found = polled(held, ME)
    assert (found.message_queue, found.offsets()) == (A, [2, 3])
    assert held.done() == {A: 2}


def test_in_order_a_batch_carries_its_fence_token_and_tells_of_a_revocation() -> None:
    held = Held(is_ordered=True)
    queue = held.hold(A, 5)
    held.put(queue, range(5, 9), 9)
    found = polled(held, ME)
    assert found.fence_token == (7, 5)
    assert not found.is_revoked()
    assert not queue.revoke(), "a batch is out"
    assert found.is_revoked()
    held.buffer.finish(ME)
    assert held.drained == [queue]
    assert held.take(ME, 2) is None
    plain = Held()
    held_plain = plain.hold(A, 0)
    plain.put(held_plain, (0,), 1)
    with pytest.raises(StateError, match="ordered=True"):
        _ = polled(plain, ME).fence_token


def test_in_order_a_batch_whose_lease_was_lost_counts_for_nothing() -> None:
    held = Held(is_ordered=True)
    queue = held.hold(A, 0)
    held.put(queue, range(4), 4)
    found = polled(held, ME)
    held.clock.advance(1_000)
    assert held.take(ME, 2) is None
    assert held.lost == [queue]
    assert found.is_revoked()
    assert held.polled(ME) == {}
    assert queue.regain(held.lease(8), 0)
    held.put(queue, range(4), 4)
    again = polled(held, ME)
    assert (again.offsets(), again.fence_token) == ([0, 1], (8, 0))


def test_in_order_a_lost_queue_starts_again_when_its_poller_has_come_back() -> None:
    held = Held(is_ordered=True)
    queue = held.hold(A, 0)
    held.put(queue, range(4), 4)
    polled(held, ME)
    queue.lose_lease("a test's own")
    assert not queue.regain(held.lease(8), 0), "the poller may still work on its batch"
    held.buffer.finish(ME)
    assert queue.regain(held.lease(8), 0)


def test_in_order_a_commit_leaves_out_the_batches_of_other_pollers() -> None:
    held = Held(is_ordered=True)
    one, two = held.hold(A, 0), held.hold(B, 0)
    held.put(one, range(2), 2)
    held.put(two, range(2), 2)
    polled(held, ME)
    polled(held, OTHER)
    assert held.commit(ME) == {A: 2}
    assert list(held.buffer._out) == [OTHER]
    assert held.commit(OTHER) == {B: 2}


def test_in_order_a_batch_that_is_given_back_is_handed_out_again_in_order() -> None:
    held = Held(is_ordered=True)
    queue = held.hold(A, 0)
    held.put(queue, range(4), 4)
    polled(held, ME)
    held.buffer.give_back(ME, B)
    assert held.take(OTHER, 9) is None, "another queue's batch stays out"
    held.buffer.give_back(ME, A)
    assert held.take(OTHER, 9) == [0, 1, 2, 3]


class RedeliversAtOnce:
    """Treatment of failed batches without a policy or a pause."""

    def __init__(self, buffer: PollBuffer) -> None:
        self.buffer = buffer

    def failed(self, assigned: PolledQueue, claim: BatchClaim, error: BaseException | None) -> None:
        assert assigned.end_batch(claim, 0, 0)
        self.buffer.settled(claim)
        self.buffer.submit_again(assigned)


def test_in_order_a_batch_of_a_thread_that_ended_is_redelivered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = Held(is_ordered=True)
    held.buffer.fail_with(RedeliversAtOnce(held.buffer))
    queue = held.hold(A, 0)
    held.put(queue, range(4), 4)
    thread = threading.Thread(
        target=lambda: held.buffer.take(threading.current_thread(), 2), name="worker-7"
    )
    thread.start()
    thread.join()
    asyncio.run(held.buffer.watch())
    assert "thread worker-7 ended without polling again" in caplog.text
    assert held.take(ME, 9) == [0, 1, 2, 3]


def test_in_order_the_end_gives_back_what_the_closing_thread_has() -> None:
    held = Held(is_ordered=True)
    mine, theirs = held.hold(A, 0), held.hold(B, 0)
    held.put(mine, range(2), 2)
    held.put(theirs, range(2), 2)
    polled(held, ME)
    other = threading.Thread(target=lambda: held.buffer.take(OTHER, 2))
    other.start()
    other.join()
    held.buffer.stop()
    held.buffer.give_back_of_thread(threading.get_ident())
    assert mine.revoke(), "nobody has it any more"
    assert not theirs.revoke()
    held.buffer.finish(OTHER)
    assert held.drained == [theirs]
    assert held.done() == {B: 2}


class Permit:
    """A right to fill a queue, and whether it holds."""

    is_valid = False

    def permit(self) -> None:
        self.is_valid = True

    def forbid(self) -> None:
        self.is_valid = False


@pytest.mark.parametrize("reason", [Pause.USER, Pause.SEEK])
def test_nobody_may_fill_a_queue_that_is_paused(reason: Pause) -> None:
    held = Held()
    queue = held.hold(A, 0)
    first, second = Permit(), Permit()
    assert queue.permit(queue.generation, first)
    queue.pause(reason)
    assert not first.is_valid
    assert not queue.permit(queue.generation, second)
    assert not second.is_valid
    queue.resume(reason)
    assert queue.permit(queue.generation, second)
    assert second.is_valid
    queue.stop()  # as a failure policy does
    assert not second.is_valid


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_queue_that_a_repair_has_put_in_the_line_is_there_once(is_ordered: bool) -> None:
    held = Held(is_ordered=is_ordered)
    queue = held.hold(A, 0)
    assert queue.accept(queue.generation, batch(range(4)), 4)
    held.buffer.undo(ME, None)  # an exception ended a poll, before who buffered has submitted it
    held.buffer.submit(queue)
    held.buffer._check()
    assert held.take(ME, 2) == [0, 1]
    if is_ordered:
        held.buffer.submit(queue)  # later still: a batch of it is out
        assert held.take(OTHER, 2) is None
    assert held.take(ME, 2) == [2, 3]
