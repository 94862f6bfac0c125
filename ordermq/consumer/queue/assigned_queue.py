"""AssignedQueue: one message queue while this member holds it, with its lease, its state and its
process queue.

The fetcher, the dispatcher and the group member meet here and nowhere else. Everything that may
race about a queue is decided by the base class, which is the core's, under one mutex:

* a batch starts only while the queue is ACTIVE and its lease is valid
  (docs/internals/semantics.md#fencing),
* a finished batch counts only if the lease it started under still stands,
* a revoked queue is drained when its last running batch has ended
  (docs/internals/semantics.md#hand-off),
* a pull answer counts only in the generation that asked for it.

Here is what follows: a call of the base class returns flags, `follow` tells callbacks of them, and
no lock is held. So no request, callback, listener or log call happens under the mutex.

The dispatch flag, kept by the process queue, says that a consume request for the queue waits in
the pool or runs. Who sets it (`accept`, `resume`, `requeue`) must submit the queue; who ends a
run clears it in the same critical section in which it saw that nothing is pending
(`end_run`). So messages that arrive meanwhile either find the flag set and a worker that will see
them, or set it again (docs/internals/semantics.md#process-queue, no lost wake-up).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from enum import Enum, IntFlag
from typing import NamedTuple, Protocol

from ordermq import core
from ordermq.core import Claim, status
from ordermq.errors import ConfigError
from ordermq.leases.lease import Lease
from ordermq.model.message import MessageBatch, MessageRun
from ordermq.model.message_queue import MessageQueue
from ordermq.threads import Lock
from ordermq.value import Value


class QueueState(Enum):
    """The stages of a queue, from assignment to release (docs/internals/semantics.md#hand-off)."""

    ACTIVE = status.STAGE_ACTIVE
    DRAINING = (
        status.STAGE_DRAINING
    )  # no new batch, no new pull; running batches may finish and commit
    GONE = status.STAGE_GONE  # terminal; a new assignment creates a new object


class Pause(IntFlag):
    """Reasons to start no batch; each is ended by itself."""

    USER = 1  # pause(), or a failure policy, until resume()
    SEEK = 2  # until the running batch has ended and the offset is set
    DIRECT = 4  # until a message consumed directly has ended


_STATES = {state.value: state for state in QueueState}
_ENDED_BEFORE = "the lease ended before a batch could start"
_ENDED_MEANWHILE = "the lease ended while a batch ran"


class BatchClaim(Claim):
    """The messages a worker has claimed, and the lease it claimed them under. Never changed.

    Args:
        messages: one batch, or several that are called one after the other.
        generation: the queue's generation at that time; in another one the claim is void.
    """

    __slots__ = ()

    messages: MessageRun
    lease: Lease
    generation: int


class RunningCall(NamedTuple):
    """A listener call in progress."""

    assigned: AssignedQueue
    messages: MessageRun
    since_ms: int  # start of the claim it belongs to, on the monotonic clock
    thread: int


class Blocked(NamedTuple):
    """A message that keeps failing, and the queue or key behind it waiting.

    Args:
        attempts: failed attempts in this process.
        since_ms: its first failure, on the monotonic clock.
    """

    queue: MessageQueue
    offset: int
    attempts: int
    since_ms: int


class QueueCallbacks(Value):
    """Notifications of a queue; called on any thread, with no lock held.

    Args:
        on_lease_lost: the lease is over, with the reason; once per generation.
        on_drained: the running batches of a revoked queue have ended.
        on_room: a fetcher that waits for room may pull again.
        on_idle: nothing pending is left, for now; often, so it must be quick.
    """

    on_lease_lost: Callable[[AssignedQueue, str], None]
    on_drained: Callable[[AssignedQueue], None]
    on_room: Callable[[AssignedQueue], None]
    on_idle: Callable[[], object]


class FillPermit(Protocol):
    """The right to fill a process queue, checked under its own mutex for each answer."""

    def permit(self) -> None:
        """Give it out."""

    def forbid(self) -> None:
        """Take it back: when this returns, no further answer is buffered."""


class AssignedQueue(core.AssignedQueue):
    """One queue while this member holds it; each assignment makes a new object."""

    def __init__(
        self,
        queue: MessageQueue,
        group: str,
        lease: Lease,
        start_offset: int,
        callbacks: QueueCallbacks,
        *,
        lanes: core.contract.LaneMap | None = None,
        counts_running: bool = True,
    ) -> None:
        super().__init__(
            str(queue),
            lease,
            start_offset,
            claim=BatchClaim,
            run=MessageRun,
            lanes=lanes,
            counts_running=counts_running,
        )
        self.queue = queue
        # The queue of its messages. Another one than `queue` while a popped batch of a retry topic
        # is consumed in the place of the queue whose pop has brought it.
        self.source = queue
        self.group = group
        self.may_hold_back = True  # a listener may leave messages uncommitted and get more
        self.bad_answer_at = -1  # the offset that is asked for again after a bad answer; -1: none
        self.bad_answer = ""  # what was wrong with it
        self.try_unlock_times = 0  # how often its revocation found a batch still running
        self.resets = 0  # how often an admin moved it; I/O thread only
        # The dispatcher's native runs of it that rest. One is enough, but the next one may begin
        # before a worker that has just cleared the dispatch flag has ended its own.
        self.resting_runs: list[object] = []
        self._on_lease_lost = callbacks.on_lease_lost
        self._on_drained = callbacks.on_drained
        self._on_room = callbacks.on_room
        self._on_idle = callbacks.on_idle
        # What was pulled and is not done, each with the offset behind its last message, for the
        # age of the oldest. Kept when the lease is lost, though nothing of it counts any more:
        # its age goes on. Its own lock: those who pull, and those who ask.
        self._pulled: deque[tuple[int, MessageBatch]] = deque()
        self._pulled_lock = Lock()

    def __repr__(self) -> str:
        lease = self.lease
        epoch = lease.epoch if lease else None
        return f"<AssignedQueue {self.queue} {self.state.name} epoch={epoch}>"

    def follow(self, flags: int, reason: str = "") -> None:
        """Tell what a call of the base class, or native code, has caused.

        Args: reason: why a lease was given up; else it ended.
        """
        if flags & status.LEASE_OVER:
            if not reason:
                reason = _ENDED_MEANWHILE if flags & status.WHILE_CLAIMED else _ENDED_BEFORE
            self._on_lease_lost(self, reason)
        if flags & status.DRAINED:
            self._on_drained(self)
        if flags & status.HAS_ROOM:
            self._on_room(self)
        if flags & status.IDLE:
            self._on_idle()

    # Reading. Each is true at its moment; decisions that need two of them at once are methods of
    # the base class.

    @property
    def state(self) -> QueueState:
        return _STATES[self.stage]

    @property
    def next_pull_offset(self) -> int:
        return int(self.process_queue.next_pull_offset)

    @property
    def max_offset(self) -> int:
        """The end of the queue at the broker, as of the last answer."""
        return int(self.process_queue.queue_end)

    @max_offset.setter
    def max_offset(self, offset: int) -> None:
        self.process_queue.advance(queue_end=offset)

    @property
    def behind(self) -> int:
        """Messages of the queue at the broker that are not done."""
        if self.source != self.queue:
            return int(self.process_queue.message_count)
        return max(self.max_offset - self.done_offset, 0)

    def oldest_stored_ms(self) -> int | None:
        """Return when the broker stored the oldest message that is not done, ms since 1970.

        None if it was not pulled yet.
        """
        filled_ms = self.oldest_filled_ms()
        if filled_ms is not None:
            return filled_ms
        with self._pulled_lock:
            self._forget_done()
            pulled, done = list(self._pulled), self.done_offset
        from bisect import bisect_left  # here, as metrics alone ask

        for _, batch in pulled:
            place = bisect_left(range(len(batch)), done, key=lambda at: batch[at].queue_offset)
            if place < len(batch):  # else what is left of it was dropped, as copies are
                return batch[place].store_timestamp_ms
        return None

    def _forget_done(self) -> None:
        done = self.done_offset
        while self._pulled and self._pulled[0][0] <= done:
            self._pulled.popleft()

    @property
    def is_up_to_date(self) -> bool:
        """True while every message that the broker has told of is done."""
        return not self.is_running and not self.process_queue.message_count and not self.behind

    @property
    def unfinished_span(self) -> int:
        """Offsets from the oldest unfinished message to the newest pulled one; 0 if none."""
        # Messages done above the oldest unfinished one cannot be committed yet: this many are
        # redelivered after a crash (docs/internals/semantics.md#concurrent-consumption).
        queue = self.process_queue
        oldest = [first for first in (queue.first_pending, queue.first_consuming) if first >= 0]
        return max(queue.max_offset - min(oldest), 0) if oldest else 0

    @property
    def is_running(self) -> bool:
        """True while a listener has a batch of this queue."""
        return self.running_count > 0

    def running_calls(self) -> list[RunningCall]:
        """Return the listener calls in progress; a concurrent dispatcher knows its own."""
        run = self.calling
        if run is None or not self.is_running:
            return []
        return [RunningCall(self, run, self.last_claim_ms, self.worker)]

    def parked_keys(self) -> list[bytes]:
        """Return the keys that wait for `unpark`; only a key-ordered queue has any."""
        return []

    def blocked(self) -> Blocked | None:
        """Return the message that has been failing for the longest time; None if none is."""
        failed_ms = self.failed_ms.copy()  # one atomic step: workers change it
        if not failed_ms:
            return None
        offset = min(failed_ms, key=lambda each: (failed_ms[each], each))
        attempts = self.attempts.get(offset, 0) + self.outages.get(offset, 0)
        return Blocked(self.queue, offset, attempts, failed_ms[offset])

    def claimed_ms(self, claim: BatchClaim) -> int:
        """Return when a claim that is not settled was made, on the monotonic clock."""
        return self.last_claim_ms

    def first_failed_ms(self, offset: int) -> int | None:
        """Return when an unfinished message failed first, on the monotonic clock; None: never."""
        return self.failed_ms.get(offset)

    def is_revoked(self) -> bool:
        """Return True once the queue is being revoked or its lease is lost."""
        return self.stage != status.STAGE_ACTIVE or self.lease is None

    # Worker: settle a claim. `core.ConsumeRun` makes it, and settles it itself where it succeeded.

    def set_auto_commit(self, is_on: bool) -> None:
        """Commit the running call by its result, or only when a listener says so; worker only.

        Raises: ConfigError: off, in a key-ordered queue, or one that is popped.
        """
        if not is_on and not self.may_hold_back:
            raise ConfigError(
                "auto_commit=False with consume_mode='pop': the messages that are held back would "
                "keep their queue from handing out the next ones",
                topic=self.queue.topic,
                group=self.group,
            )
        self.auto_commit = is_on
        # The call becomes the last of its claim: what is held is told apart by where it ends.
        self.end_claim()

    def count_failures(
        self, run: MessageRun, places: range, now_ms: int, *, is_outage: bool = False
    ) -> None:
        """Count a failed attempt of these messages of a claim, before it is settled.

        Args:
            is_outage: no fault of theirs, so no failure policy may hold it against them.
        """
        # No lock: a restart, which forgets them, waits for the claim.
        for place in places:
            view = run[place]
            offset = view.queue_offset
            if is_outage:
                self.outages[offset] = self.outages.get(offset, 0) + 1
                self.failed_ms.setdefault(offset, now_ms)
                continue
            attempts = self.attempts[offset] = self.attempts.get(offset, 0) + 1
            self.failed_ms.setdefault(offset, now_ms)
            # Views read it from their batch: it lives as long as they do, and a batch of
            # which nothing failed carries nothing.
            view.index.set_attempts(offset, attempts)

    def end_batch(self, claim: BatchClaim, done: int, now_ms: int, *, held: int = 0) -> bool:
        """Settle a claim; see `settle`.

        Returns: False if the lease it started under is over. The results are discarded, and the
            queue restarts from the committed offset (docs/internals/semantics.md#fencing).
        """
        flags = self.settle(claim, done, now_ms, held=held)
        self.follow(flags)
        return bool(flags & status.COUNTS)

    def rollback_held(self, claim: BatchClaim, before: int = 0) -> bool:
        """Manual ROLLBACK: redeliver everything uncommitted. False as in `end_batch`.

        Args:
            before: messages of the claim that earlier calls have finished with auto commit.
        """
        flags = self.roll_back(claim, before)
        self.follow(flags)
        return bool(flags & status.COUNTS)

    def abandon_batch(self, reason: str) -> None:
        """End a run that an internal error broke: give the lease up, so that the queue restarts."""
        self.follow(self.abandon(), reason)

    def tell_drained(self) -> None:
        """Tell again that a revoked queue is drained, which an exception may have kept untold."""
        if self.state is QueueState.DRAINING and self.revoke():
            self._on_drained(self)

    # A call outside of the order, for an admin tool; on the I/O thread.

    def begin_alone(self, run: MessageRun, now_ms: int) -> BatchClaim | None:
        """Claim the queue for one call with messages that were not taken from it.

        A revocation, a seek and a regained lease wait for it, as they do for a batch. The caller
        has paused the queue, so no batch begins beside it.

        Returns: None while a batch runs, or without a valid lease.
        """
        claim: BatchClaim | None = self.enter(run, now_ms, alone=True)
        return claim

    def end_alone(self) -> None:
        """End a call with messages that were not taken from the queue: nothing of it is done."""
        self.follow(self.leave())

    # Worker of a concurrent group: many claims at once, finished in any order.

    def finish(self, claim: BatchClaim, offsets: Collection[int]) -> None:
        """Settle a claim: these of its offsets are done; the others stay out until `requeue`."""
        self.follow(self.finish_offsets(claim, offsets))

    def requeue(self, claim: BatchClaim, offsets: Collection[int]) -> bool:
        """Make unfinished offsets of a settled claim pending again.

        Returns: True if the caller must submit the queue.
        """
        return bool(self.make_again(claim, offsets))

    # Fetcher.

    def accept(self, generation: int, batch: MessageBatch, next_offset: int) -> bool:
        """Buffer a pull answer and move the cursor; an answer of an old generation is dropped.

        Returns: True if the caller must submit the queue.
        """
        flags = self.accept_batch(generation, batch, next_offset)
        if flags & status.COUNTS and len(batch):
            with self._pulled_lock:
                self._forget_done()
                self._pulled.append((batch.last_offset + 1, batch))
        return bool(flags & status.DISPATCH)

    def skip_to(self, generation: int, next_offset: int) -> None:
        """Move the cursor over offsets that hold no message of the subscription
        (docs/internals/semantics.md#pull-loop, tag correction)."""
        self.skip(generation, next_offset)
        self._on_idle()

    def permit(self, generation: int, permit: FillPermit) -> bool:
        """Let answers fill the process queue without `accept`, in this generation alone.

        The native core takes the permit back itself where it clears or resets the process queue,
        which is what ends a generation, and at a revocation.
        """
        if not self._may_fill(generation):
            return False
        permit.permit()
        # Looked at again: what has ended it meanwhile has not seen this permit.
        if not self._may_fill(generation):
            permit.forbid()
            return False
        return True

    def _may_fill(self, generation: int) -> bool:
        return generation == self.generation and self.stage == status.STAGE_ACTIVE

    # Group member, on the I/O thread: leases.

    def renew(
        self, generation: int, lease: Lease, record: Callable[[], object] = lambda: None
    ) -> bool:
        """Extend the lease by a newer grant of the same epoch.

        Args:
            record: called before anything can begin under the new lease, unless False is returned:
                else a history may tell of a listener's start before the grant that allowed it.
        Returns: False if the epoch differs: another member may have owned the queue in between,
            so the caller must treat the lease as lost.
        """
        held = self.lease
        if held is None or generation != self.generation or held.epoch != lease.epoch:
            return False
        record()
        return self.renew_lease(generation, lease)

    def lose_lease(self, reason: str, generation: int | None = None) -> None:
        """Give the lease up now and drop what is buffered; does nothing if it is lost already.

        Args:
            generation: do it only in this generation; for answers that may arrive late.
        """
        self.follow(self.lose(generation), reason)

    def regain(self, lease: Lease, start_offset: int) -> bool:
        regained = super().regain(lease, start_offset)
        if regained:
            self._forget_pulled()
        return regained

    def reposition(self, generation: int, offset: int) -> bool:
        moved = super().reposition(generation, offset)
        if moved:
            self._forget_pulled()
        return moved

    def _forget_pulled(self) -> None:
        with self._pulled_lock:
            self._pulled.clear()

    # Group member, on the I/O thread: pauses, revocation.

    def pause(self, by: Pause = Pause.USER) -> None:
        """Start no batch until `resume`; pulling stops by flow control, the lease is kept."""
        self.pause_for(by)

    def stop(self) -> None:
        """Pause from within a run that ends here; a later `resume` submits the queue anew."""
        self.pause_for(Pause.USER, ends_run=True)

    def resume(self, by: Pause = Pause.USER) -> bool:
        """End one kind of pause; True if the caller must submit the queue."""
        return bool(self.resume_from(by))
