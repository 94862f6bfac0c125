"""Any interleaving of puller, worker and I/O thread on one assigned queue, against a model.

The model is two sets and a word for the one consume request; what it checks after each step:

* the dispatch flag is set exactly while one request exists, queued, running or scheduled,
* nothing that could be consumed waits without a request (no lost wake-up),
* one batch runs at most, and takes what is due, ascending,
* a result, an answer or a commit of an older generation changes nothing,
* every offset below the done offset is finished.
"""

from __future__ import annotations

from enum import Enum, auto

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    QueueCallbacks,
    QueueState,
)
from ordermq.leases.lease import Lease

from .batches import QUEUE, batch
from .claims import NotClaimed, begin_batch

LEASE_MS = 100


class Request(Enum):
    """Place of the one consume request."""

    NONE = auto()
    QUEUED = auto()
    RUNNING = auto()
    SCHEDULED = auto()


class AssignedQueueMachine(RuleBasedStateMachine):
    """Drives one queue through a life or a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.lost_leases = self.drained = self.room = 0
        self.queue = AssignedQueue(
            QUEUE,
            "G",
            self.lease(1),
            0,
            QueueCallbacks(
                on_lease_lost=lambda _, __: self.lease_lost(),
                on_drained=lambda _: self.was_drained(),
                on_room=lambda _: self.has_room(),
                on_idle=lambda: None,
            ),
        )
        self.state = QueueState.ACTIVE
        self.epoch: int | None = 1
        self.deadline_ms = self.now_ms + LEASE_MS
        self.paused = False
        self.request = Request.NONE
        self.claim: BatchClaim | None = None
        self.claim_counts = False
        self.waiting_below = 0
        self.restart(0)
        self.committed = 0
        self.last_read: int | None = None
        # Pull answers and commits on their way: what they were asked under.
        self.pulls: list[tuple[int, int]] = []
        self.commit: tuple[int, Lease, int] | None = None
        self.stored = 0  # the broker's offset

    # What the queue tells.

    def lease_lost(self) -> None:
        self.lost_leases += 1

    def was_drained(self) -> None:
        assert self.state is QueueState.DRAINING
        self.drained += 1

    def has_room(self) -> None:
        assert self.waiting_below > self.queue.process_queue.message_count
        self.waiting_below = 0
        self.room += 1

    # The model.

    def lease(self, epoch: int) -> Lease:
        return Lease(epoch, self.now_ms + LEASE_MS, True)

    def restart(self, offset: int) -> None:
        self.generation = self.queue.generation
        self.next_pull = self.done = offset
        self.pending: set[int] = set()
        self.consuming: set[int] = set()
        self.waiting_below = 0

    def lose(self) -> None:
        """The lease is gone: what is buffered and done without a commit counts no more."""
        self.epoch = None
        self.generation = self.queue.generation
        self.pending, self.consuming = set(), set()
        self.claim_counts = False
        self.done = self.committed

    def is_valid(self) -> bool:
        return self.epoch is not None and self.now_ms < self.deadline_ms

    # The puller.

    # One pull is in flight at a time; others are left over from older generations.
    @precondition(lambda self: all(asked != self.generation for asked, _ in self.pulls))
    @rule()
    def ask(self) -> None:
        self.pulls.append((self.queue.generation, self.queue.next_pull_offset))

    @precondition(lambda self: self.pulls)
    @rule(
        which=st.integers(0, 5),
        gaps=st.lists(st.integers(0, 3), max_size=4),
        tail=st.integers(0, 2),
    )
    def answer(self, which: int, gaps: list[int], tail: int) -> None:
        generation, offset = self.pulls.pop(which % len(self.pulls))
        offsets = []
        for gap in gaps:
            offsets.append(offset + gap)
            offset += gap + 1
        next_offset = offset + tail
        counts = generation == self.generation and self.state is QueueState.ACTIVE
        if not offsets:
            self.queue.skip_to(generation, next_offset)
            if counts and not self.pending | self.consuming:
                self.done = max(self.done, next_offset)
        else:
            submit = self.queue.accept(generation, batch(offsets), next_offset)
            if counts:
                self.last_read = offsets[-1]
                floor = max(self.done, self.queue.process_queue.next_uncommitted)
                self.pending |= {o for o in offsets if o >= floor} - self.consuming
            due = counts and self.pending and not self.paused and self.request is Request.NONE
            assert submit == bool(due)
            if submit:
                self.request = Request.QUEUED
        if counts:
            self.next_pull = next_offset

    @rule(below=st.integers(1, 5))
    def wait_for_room(self, below: int) -> None:
        is_waiting = self.queue.wait_for_room(below)
        assert is_waiting == (len(self.pending | self.consuming) >= below)
        if is_waiting:
            self.waiting_below = below

    # The worker.

    @precondition(lambda self: self.request is Request.QUEUED)
    @rule(limit=st.integers(1, 4))
    def begin(self, limit: int) -> None:
        claim = begin_batch(self.queue, limit, self.now_ms)
        if self.state is not QueueState.ACTIVE:
            expected: NotClaimed | None = NotClaimed.REVOKED
        elif not self.is_valid():
            expected = NotClaimed.LEASE_LOST
            if self.epoch is not None:
                self.lose()
        elif self.paused:
            expected = NotClaimed.PAUSED
        else:
            expected = None if self.pending else NotClaimed.EMPTY
        if expected is not None:
            assert claim is expected
            self.request = Request.NONE
            return
        assert isinstance(claim, BatchClaim)
        taken = sorted(self.pending)[:limit]
        assert claim.messages.offsets() == taken
        assert claim.lease.epoch == self.epoch
        self.pending -= set(taken)
        self.consuming |= set(taken)
        self.request, self.claim, self.claim_counts = Request.RUNNING, claim, True

    @precondition(lambda self: self.request is Request.RUNNING)
    @rule(share=st.integers(0, 4), hold=st.integers(0, 4))
    def end(self, share: int, hold: int) -> None:
        drained = self.drained
        claim = self.settle()
        size = len(claim.messages)
        done = min(share, size)
        held = min(hold, done)
        counts = self.queue.end_batch(claim, done, self.now_ms, held=held)
        assert self.drained - drained == (self.state is QueueState.DRAINING)
        if self.judge(counts):
            again = set(claim.messages.offsets()[done:])
            self.consuming -= again
            self.pending |= again
            if done > held:
                kept = set(claim.messages.offsets()[done - held : done])
                # What a filter left out behind the last finished message is done as well.
                self.done = min(self.pending | kept, default=self.next_pull)
                self.consuming = kept
            self.request = Request.QUEUED if done == size else Request.SCHEDULED

    @precondition(lambda self: self.request is Request.RUNNING)
    @rule(share=st.integers(0, 4))
    def roll_back(self, share: int) -> None:
        counts = self.claim_counts
        claim = self.settle()
        # What earlier calls of the claim have finished is committed; the last one rolls back.
        before = min(share, len(claim.messages) - 1)
        assert self.queue.rollback_held(claim, before) == counts
        self.request = Request.NONE
        if counts:  # its lease may be over; that is for the next batch to find out
            if before:
                self.consuming = set(claim.messages.offsets()[before:])
                self.done = claim.messages.offsets()[before]
            self.pending |= self.consuming
            self.consuming = set()
            self.request = Request.SCHEDULED

    @precondition(lambda self: self.request is Request.RUNNING)
    @rule()
    def break_down(self) -> None:
        self.settle()
        self.queue.abandon_batch("a defect")
        if self.epoch is not None:
            self.lose()
        self.request = Request.NONE

    def settle(self) -> BatchClaim:
        claim, self.claim = self.claim, None
        assert claim is not None
        return claim

    def judge(self, counts: bool) -> bool:
        assert counts == (self.claim_counts and self.is_valid())
        if self.claim_counts and not counts:
            self.lose()
        self.request = Request.NONE
        return counts

    @precondition(lambda self: self.request is Request.SCHEDULED)
    @rule()
    def timer(self) -> None:
        self.request = Request.QUEUED

    # The I/O thread.

    @rule(delta_ms=st.sampled_from([1, 40, LEASE_MS]))
    def time_passes(self, delta_ms: int) -> None:
        self.now_ms += delta_ms

    @rule(is_stale=st.booleans(), is_other_epoch=st.booleans())
    def renew(self, is_stale: bool, is_other_epoch: bool) -> None:
        if self.epoch is not None and not self.is_valid():
            return  # the driver loses the lease first
        generation = self.generation - is_stale
        epoch = (self.epoch or 0) + is_other_epoch
        renewed = self.queue.renew(generation, self.lease(epoch))
        assert renewed == (self.epoch is not None and not is_stale and not is_other_epoch)
        if renewed:
            self.deadline_ms = self.now_ms + LEASE_MS

    @rule(is_stale=st.booleans())
    def lose_lease(self, is_stale: bool) -> None:
        before = self.lost_leases
        self.queue.lose_lease("refused", self.generation - is_stale)
        happened = self.epoch is not None and not is_stale and self.state is not QueueState.GONE
        assert self.lost_leases - before == happened
        if happened:
            self.lose()

    # A commit under way is awaited before the offset is read, or the old one would be.
    @precondition(lambda self: self.commit is None)
    @rule(is_other_epoch=st.booleans())
    def regain(self, is_other_epoch: bool) -> None:
        wanted = (
            self.state is QueueState.ACTIVE
            and self.epoch is None
            and self.request is not Request.RUNNING
        )
        epoch = self.last_epoch + is_other_epoch
        assert self.queue.regain(self.lease(epoch), self.stored) == wanted
        if wanted:
            self.epoch = epoch
            self.deadline_ms = self.now_ms + LEASE_MS
            self.restart(self.stored)
            self.committed = self.stored

    @property
    def last_epoch(self) -> int:
        self._last = max(getattr(self, "_last", 1), self.epoch or 1)
        return self._last

    @precondition(lambda self: self.commit is None)
    @rule()
    def send_commit(self) -> None:
        found = self.queue.uncommitted(self.now_ms)
        if not self.is_valid() or self.done == self.committed:
            assert found is None
            return
        assert found is not None
        offset, lease = found
        assert (offset, lease.epoch) == (self.done, self.epoch)
        self.commit = (offset, lease, self.generation)

    @precondition(lambda self: self.commit is not None)
    @rule(is_stored=st.booleans())
    def commit_answered(self, is_stored: bool) -> None:
        assert self.commit is not None
        (offset, lease, _), self.commit = self.commit, None
        if is_stored:
            self.stored = offset
            self.queue.committed(offset, lease)
            if self.epoch == lease.epoch:
                self.committed = offset

    @precondition(lambda self: self.commit is None and self.is_valid())
    @rule(offset=st.integers(0, 20))
    def reposition(self, offset: int) -> None:
        lease = self.queue.lease
        moved = self.queue.reposition(self.generation, offset)
        assert moved == (self.state is QueueState.ACTIVE and self.request is not Request.RUNNING)
        if moved:
            assert lease is not None
            self.restart(offset)
            self.queue.committed(offset, lease)
            self.committed = self.stored = offset

    @rule()
    def pause(self) -> None:
        self.queue.pause()
        self.paused = True

    @rule()
    def resume(self) -> None:
        self.paused = False
        due = self.state is QueueState.ACTIVE and self.pending and self.request is Request.NONE
        assert self.queue.resume() == bool(due)
        if due:
            self.request = Request.QUEUED

    @precondition(lambda self: self.steps > 20)
    @rule()
    def revoke(self) -> None:
        is_drained = self.queue.revoke()
        assert is_drained == (self.request is not Request.RUNNING)
        if self.state is QueueState.ACTIVE:
            self.state = QueueState.DRAINING

    @precondition(lambda self: self.state is QueueState.DRAINING)
    @rule()
    def discard(self) -> None:
        self.queue.discard()
        self.state = QueueState.GONE
        self.lose()

    # What holds at any time.

    steps = 0

    @invariant()
    def the_queue_is_as_the_model(self) -> None:
        self.steps += 1
        queue, buffered = self.queue, self.queue.process_queue
        buffered._check()
        assert queue.generation == self.generation
        assert queue.state is self.state
        assert (queue.lease.epoch if queue.lease else None) == self.epoch
        assert queue.is_running == (self.request is Request.RUNNING)
        assert buffered.pending_count == len(self.pending)
        assert buffered.consuming_count == len(self.consuming)
        assert queue.done_offset == self.done
        assert queue.committed_offset == self.committed
        assert (queue.last_read or [None])[0] == self.last_read

    @invariant()
    def the_dispatch_flag_means_one_request(self) -> None:
        assert self.queue.process_queue.is_dispatched == (self.request is not Request.NONE)

    @invariant()
    def nothing_to_consume_waits_without_a_request(self) -> None:
        if self.state is QueueState.ACTIVE and self.is_valid() and not self.paused:
            assert self.request is not Request.NONE or not self.pending

    @invariant()
    def everything_below_the_done_offset_is_finished(self) -> None:
        assert self.done <= min(self.pending | self.consuming, default=self.done)


TestAssignedQueue = AssignedQueueMachine.TestCase
TestAssignedQueue.settings = settings(max_examples=200, stateful_step_count=60)
