"""AssignedQueue: one message queue while this member holds it, with its lease, its state and its
process queue.

The fetcher, the dispatcher and the group member meet here and nowhere else. Everything that may
race about a queue is decided here:

* a batch starts only while the queue is ACTIVE and its lease is valid
  (docs/internals/semantics.md#fencing),
* a finished batch counts only if the lease it started under still stands,
* a revoked queue is drained when its last running batch has ended
  (docs/internals/semantics.md#hand-off),
* a pull answer counts only in the generation that asked for it.

Locks. `AssignedQueue._lock`, one per queue, protects the state, the lease, the generation, the
offsets, the pauses and the number of running batches, and makes each of them change together with
the process queue. Attributes marked "worker only" need no lock: they are touched by whoever holds
the dispatch flag. The lock order is `AssignedQueue._lock`, then the process queue's own native
mutex; the second is never held while Python code runs. No request, callback, listener or log call
happens under either, so no other lock can be taken inside.

The dispatch flag, kept by the process queue, says that a consume request for the queue waits in
the pool or runs. Who sets it (`accept`, `resume`, `requeue`) must submit the queue; who ends a
run clears it in the same critical section in which it saw that nothing is pending
(`has_more`). So messages that arrive meanwhile either find the flag set and a worker that will see
them, or set it again (docs/internals/semantics.md#process-queue, no lost wake-up).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import NamedTuple, Protocol

from ordermq import core
from ordermq.core import Claim, ProcessQueue, QueueFields
from ordermq.errors import ConfigError, StateError
from ordermq.model.message import MessageBatch, MessageRun
from ordermq.model.message_queue import MessageQueue
from ordermq.value import Value


class QueueState(Enum):
    """The stages of a queue, from assignment to release (docs/internals/semantics.md#hand-off)."""

    ACTIVE = auto()
    DRAINING = auto()  # no new batch, no new pull; running batches may finish and commit
    GONE = auto()  # terminal; a new assignment creates a new object


class Pause(Enum):
    """Reasons to start no batch; each is ended by itself."""

    USER = auto()  # pause(), or a failure policy, until resume()
    SEEK = auto()  # until the running batch has ended and the offset is set
    DIRECT = auto()  # until a message consumed directly has ended


class Lease(NamedTuple):
    """The right to consume a queue: an epoch, and a deadline on the monotonic clock.

    Args:
        epoch: grows with each change of owner; the first half of the fence token. 0 until it is
            known.
        deadline_ms: counted from the *send* of the request that was granted: the broker counts
            from its receipt, which is later (docs/internals/semantics.md#leases-and-renewal).
        is_fenced: the broker knows epochs and refuses commits of older ones.
        token_problem: why the epoch must not fence the user's writes, and what to do; empty where
            it may.
    """

    epoch: int
    deadline_ms: int
    is_fenced: bool
    token_problem: str = ""

    def is_valid(self, now_ms: int) -> bool:
        return now_ms < self.deadline_ms

    @property
    def wire_epoch(self) -> int:
        """The epoch to put into requests: 0 for a broker that knows none."""
        return self.epoch if self.is_fenced else 0

    @property
    def is_lock(self) -> bool:
        """True if a broker granted it; False for a queue that is held without a lock."""
        return self.epoch > 0

    def fence_epoch(self, queue: MessageQueue) -> int:
        """Return the epoch for conditional writes of the user's own.

        Raises: StateError: it would fence nobody; says why, and what to do.
        """
        if self.token_problem:
            raise StateError(
                f"there is no fence token: {self.token_problem}",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
            )
        return self.epoch


UNLOCKED = Lease(
    epoch=0,  # brokers start at epoch 1
    deadline_ms=1 << 62,
    is_fenced=False,
    token_problem="this consumer holds no queue locks, so nothing fences its members; use an "
    "orderly listener of a clustering group, or LitePullConsumer(ordered=True), where a late "
    "writer must be refused",
)


class NotClaimed(Enum):
    """Reasons why a queue hands out no batch; each leaves the dispatch flag cleared."""

    EMPTY = auto()  # nothing pending
    REVOKED = auto()  # draining or gone
    PAUSED = auto()
    LEASE_LOST = auto()  # the buffer was dropped, too


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

    def oldest_stored_ms(self) -> int | None:
        """Return when the broker stored the oldest message that is buffered; None: `accept` put
        it, or there is none.
        """

    def lane_batch(self, number: int) -> core.contract.MessageIndex:
        """Make the batch that the tokens of its messages in lanes name."""


class AssignedQueue(QueueFields):
    """The state of one queue while this member holds it; each assignment makes a new object.

    What each claim and each settlement touches is a field of the base class, a native one: native
    code reads it without looking an attribute up.
    """

    process_queue: core.contract.ProcessQueue
    lanes: core.contract.LaneMap | None = None  # of keys
    attempts: dict[int, int]  # failed attempts by buffered offset; worker only
    _failed_ms: dict[int, int]  # first failure of unfinished offsets
    _paused: set[Pause]
    _lease: Lease | None
    _state: QueueState
    _counts_running_batches = True  # False where a revocation, or a seek, waits for no batch

    def __init__(
        self,
        queue: MessageQueue,
        group: str,
        lease: Lease,
        start_offset: int,
        callbacks: QueueCallbacks,
    ) -> None:
        self.queue = queue
        self.group = group
        self.process_queue = ProcessQueue(str(queue))
        self.process_queue.reset(start_offset)
        self.process_queue.advance(start_offset, start_offset)
        self.attempts = {}
        self.outages: dict[int, int] = {}  # those that were no fault of the message; worker only
        self._failed_ms = {}
        self.isolate_until = -1  # up to this offset, one message per batch; worker only
        self.auto_commit = True  # of the running call, which may change it; worker only
        self.may_hold_back = True  # a listener may leave messages uncommitted and get more
        # Ends the running claim at its current batch. Written under the lock, read without: a
        # worker that reads it a moment too early starts one batch more, and a revocation waits
        # for that batch anyway.
        self.should_end_claim = False
        self.batches_per_claim = 1  # batches to claim at once; worker only
        self.internal_errors = 0  # internal errors in a row while consuming; worker only
        self.calling: MessageRun | None = None  # the listener's current batch; worker only
        self.worker = 0  # the thread of the last claim
        self.last_claim_ms = -1  # time of the last claim, on the monotonic clock
        self.bad_answer_at = -1  # the offset that is pulled again after a bad answer; -1: none
        self.try_unlock_times = 0  # how often its revocation found a batch still running
        self.resets = 0  # how often an admin moved it; I/O thread only
        # The dispatcher's native runs of it that rest. One is enough, but the next one may begin
        # before a worker that has just cleared the dispatch flag has ended its own.
        self.resting_runs: list[object] = []
        self._on_lease_lost = callbacks.on_lease_lost
        self._on_drained = callbacks.on_drained
        self._on_room = callbacks.on_room
        self._on_idle = callbacks.on_idle
        self._lock = threading.Lock()
        self._state = QueueState.ACTIVE
        self._lease = lease
        self._generation = 0
        self._running = 0  # claims with listeners; at most one if the group is ordered by queue
        self._paused = set()
        self._room_below = 0  # a fetcher waits until fewer messages than this are buffered
        self._permit: FillPermit | None = None  # of who fills the process queue by itself
        self._oldest_lost_ms: int | None = None  # of what it had filled when the lease was lost
        self._done_offset = start_offset
        self._committed_offset = start_offset
        self._life_start: int | None = None  # of a new life, until the queue is moved there
        # What was pulled and is not done, each with the offset behind its last message, for the
        # age of the oldest. Kept when the lease is lost, though nothing of it counts any more:
        # its age goes on.
        self._pulled: deque[tuple[int, MessageBatch]] = deque()

    def __repr__(self) -> str:
        epoch = self._lease.epoch if self._lease else None
        return f"<AssignedQueue {self.queue} {self._state.name} epoch={epoch}>"

    # Reading. Single attribute reads need no lock; each is true at its moment, and decisions
    # that need two of them at once are methods below.

    @property
    def state(self) -> QueueState:
        return self._state

    @property
    def lease(self) -> Lease | None:
        """The current lease, valid or not; None after it was lost."""
        return self._lease

    @property
    def generation(self) -> int:
        """A number that grows whenever buffered messages and pending answers become void."""
        return self._generation

    @property
    def next_pull_offset(self) -> int:
        return self.process_queue.next_pull_offset

    @property
    def max_offset(self) -> int:
        """The end of the queue at the broker, as of the last answer."""
        return self.process_queue.queue_end

    @max_offset.setter
    def max_offset(self, offset: int) -> None:
        self.process_queue.advance(queue_end=offset)

    @property
    def done_offset(self) -> int:
        """The offset to commit: every message before it is done."""
        return self._done_offset

    @property
    def committed_offset(self) -> int:
        """The last offset the broker has acknowledged."""
        return self._committed_offset

    @property
    def behind(self) -> int:
        """Messages of the queue at the broker that are not done."""
        return max(self.max_offset - self._done_offset, 0)

    def oldest_stored_ms(self) -> int | None:
        """Return when the broker stored the oldest message that is not done, ms since 1970.

        None if it was not pulled yet.
        """
        with self._lock:
            self._forget_done()
            pulled, done = list(self._pulled), self._done_offset
            filled_ms = self._oldest_filled_ms()
        if filled_ms is not None:
            return filled_ms
        from bisect import bisect_left  # here, as metrics alone ask

        for _, batch in pulled:
            place = bisect_left(range(len(batch)), done, key=lambda at: batch[at].queue_offset)
            if place < len(batch):  # else what is left of it was dropped, as copies are
                return batch[place].store_timestamp_ms
        return None

    def _oldest_filled_ms(self) -> int | None:
        if self._permit is None:
            return None
        found = self._permit.oldest_stored_ms()
        return self._oldest_lost_ms if found is None else found

    def _forget_done(self) -> None:
        while self._pulled and self._pulled[0][0] <= self._done_offset:
            self._pulled.popleft()

    @property
    def is_up_to_date(self) -> bool:
        """True while every message that the broker has told of is done."""
        return not self._running and not self.process_queue.message_count and not self.behind

    @property
    def unfinished_span(self) -> int:
        """Offsets from the oldest unfinished message to the newest pulled one; 0 if none."""
        # Messages done above the oldest unfinished one cannot be committed yet: this many are
        # redelivered after a crash (docs/internals/semantics.md#concurrent-consumption).
        queue = self.process_queue
        oldest = [first for first in (queue.first_pending, queue.first_consuming) if first >= 0]
        return max(queue.max_offset - min(oldest), 0) if oldest else 0

    @property
    def is_paused(self) -> bool:
        return bool(self._paused)

    @property
    def is_running(self) -> bool:
        """True while a listener has a batch of this queue."""
        return self._running > 0

    def running_calls(self) -> list[RunningCall]:
        """Return the listener calls in progress; a concurrent dispatcher knows its own."""
        run = self.calling
        if run is None or not self._running:
            return []
        return [RunningCall(self, run, self.last_claim_ms, self.worker)]

    def parked_keys(self) -> list[bytes]:
        """Return the keys that wait for `unpark`; only a key-ordered queue has any."""
        return []

    def blocked(self) -> Blocked | None:
        """Return the message that has been failing for the longest time; None if none is."""
        with self._lock:
            if not self._failed_ms:
                return None
            offset = min(self._failed_ms, key=lambda each: (self._failed_ms[each], each))
            attempts = self.attempts.get(offset, 0) + self.outages.get(offset, 0)
            return Blocked(self.queue, offset, attempts, self._failed_ms[offset])

    def is_revoked(self) -> bool:
        """Return True once the queue is being revoked or its lease is lost."""
        return self._state is not QueueState.ACTIVE or self._lease is None

    # Worker: claim a batch, settle it.

    def begin_batch(self, limit: int, now_ms: int) -> BatchClaim | NotClaimed:
        """Claim the next messages for a listener; the only way to start a batch.

        `OrderlyRun` and `ConcurrentRun` of ext/cython do the same where nothing but a claim
        follows, and call this where something else does.

        Args:
            limit: maximum number of messages, >= 1.
        """
        with self._lock:
            lease = self._lease
            if self._state is not QueueState.ACTIVE:
                self.process_queue.end_dispatch()
                return NotClaimed.REVOKED
            if lease is None:
                self.process_queue.end_dispatch()
                return NotClaimed.LEASE_LOST
            if not lease.is_valid(now_ms):
                self._drop_lease()
                self.process_queue.end_dispatch()
            elif self._paused:
                self.process_queue.end_dispatch()
                return NotClaimed.PAUSED
            else:
                if self.isolate_until >= 0:
                    limit = self._isolating(limit)
                segments = self.process_queue.take_segments(limit)
                if not segments:
                    return NotClaimed.EMPTY
                if self._counts_running_batches:
                    self._running += 1
                self.should_end_claim = False
                self.last_claim_ms = now_ms
                self.worker = threading.get_ident()
                return BatchClaim(MessageRun(segments), lease, self._generation)
        self._on_lease_lost(self, "the lease ended before a batch could start")
        return NotClaimed.LEASE_LOST

    def _isolating(self, limit: int) -> int:
        if self.process_queue.first_pending <= self.isolate_until:
            return 1
        self.isolate_until = -1
        return limit

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
        with self._lock:
            self.should_end_claim = True

    def count_failures(
        self, run: MessageRun, places: range, now_ms: int, *, is_outage: bool = False
    ) -> None:
        """Count a failed attempt of these messages of a claim, before it is settled.

        Args:
            is_outage: no fault of theirs, so no failure policy may hold it against them.
        """
        with self._lock:
            for place in places:
                view = run[place]
                offset = view.queue_offset
                if is_outage:
                    self.outages[offset] = self.outages.get(offset, 0) + 1
                    self._failed_ms.setdefault(offset, now_ms)
                    continue
                attempts = self.attempts[offset] = self.attempts.get(offset, 0) + 1
                self._failed_ms.setdefault(offset, now_ms)
                # Views read it from their batch: it lives as long as they do, and a batch of
                # which nothing failed carries nothing.
                view.index.set_attempts(offset, attempts)

    def end_batch(self, claim: BatchClaim, done: int, now_ms: int, *, held: int = 0) -> bool:
        """Settle a claim: its first `done` messages are finished, the rest are redelivered.

        `OrderlyRun` of ext/cython/consume_loop.pyx does the same where all of them are.

        Args:
            held: manual commit: the last so many of the finished messages stay uncommitted until
                a claim ends with fewer held than finished.
        Returns: False if the lease it started under is over. The results are discarded, and the
            queue restarts from the committed offset (docs/internals/semantics.md#fencing).
        """
        is_lost = False
        with self._lock:
            # Compare generations, not leases: a renewal replaces the lease, and only a lost one
            # ends the generation.
            counts = claim.generation == self._generation and self._lease is not None
            if counts and not self._is_valid(now_ms):
                self._drop_lease()
                counts, is_lost = False, True
            if counts:
                if done < len(claim.messages):
                    self.process_queue.make_again_from(claim.messages.offsets()[done])
                if done > held:
                    # The process queue commits all that is consuming, so the held part is put
                    # back for that moment. It is the smallest of what is pending, which makes the
                    # take get just it again.
                    if held:
                        first_held = claim.messages.offsets()[done - held]
                        self.process_queue.make_again_from(first_held)
                    self._done_offset = self._done_after(self.process_queue.commit())
                    if held:
                        self.process_queue.take_segments(held)
                if self._failed_ms or self.attempts:
                    self._forget_failures(claim.messages.offsets()[:done])
            if not counts:
                self.process_queue.end_dispatch()  # this run ends here and submits no other
            drained = self._leave_batch()
            room = self._has_room()
        self._notify(is_lost, drained, room)
        return counts

    def _forget_failures(self, finished: Collection[int]) -> None:
        for offset in finished:
            self._failed_ms.pop(offset, None)
            self.outages.pop(offset, None)
        # The attempts of held messages are kept: a rollback delivers them again.
        for offset in [each for each in self.attempts if each < self._done_offset]:
            del self.attempts[offset]

    def holds(self, claim: BatchClaim, now_ms: int) -> bool:
        """Return whether the lease of a claim still stands, so that what it does elsewhere, as
        moving a message, is not done beside the next owner."""
        with self._lock:
            return claim.generation == self._generation and self._is_valid(now_ms)

    def rollback_held(self, claim: BatchClaim, before: int = 0) -> bool:
        """Manual ROLLBACK: redeliver everything uncommitted. False as in `end_batch`.

        Args:
            before: messages of the claim that earlier calls have finished with auto commit.
        """
        with self._lock:
            counts = claim.generation == self._generation and self._lease is not None
            if counts and before:
                self.process_queue.make_again_from(claim.messages.offsets()[before])
                self._done_offset = self._done_after(self.process_queue.commit())
            elif counts:
                self.process_queue.rollback()
            else:
                self.process_queue.end_dispatch()
            drained = self._leave_batch()
        self._notify(False, drained, False)
        return counts

    def abandon_batch(self, reason: str) -> None:
        """End a run that an internal error broke: give the lease up, so that the queue restarts."""
        with self._lock:
            is_lost = self._lease is not None
            if is_lost:
                self._drop_lease()
            self.process_queue.end_dispatch()
            drained = self._leave_batch()
        if is_lost:
            self._on_lease_lost(self, reason)
        self._notify(False, drained, False)

    def has_more(self) -> bool:
        """Return True if the worker must submit the queue again; False clears the flag."""
        with self._lock:
            # Cleared first: the pull engine puts without this lock. What it put before, this run
            # still has to serve; what it puts from here on sets the flag itself.
            self.process_queue.end_dispatch()
            if self.process_queue.begin_dispatch():
                return True
        self._on_idle()
        return False

    def _done_after(self, watermark: int) -> int:
        # With nothing left, what the filter left out behind the last message is done, too.
        return self.process_queue.done_after(watermark)

    def _is_valid(self, now_ms: int) -> bool:
        return self._lease is not None and self._lease.is_valid(now_ms)

    def _leave_batch(self) -> bool:
        # Never below 0: a run may also be abandoned before it has claimed anything.
        self._running = max(self._running - 1, 0)
        return self._state is QueueState.DRAINING and self._running == 0

    def _has_room(self) -> bool:
        if self._room_below and self.process_queue.message_count < self._room_below:
            self._room_below = 0
            return True
        return False

    def _notify(self, is_lost: bool, drained: bool, room: bool) -> None:
        if is_lost:
            self._on_lease_lost(self, "the lease ended while a batch ran")
        if drained:
            self._on_drained(self)
        if room:
            self._on_room(self)

    def _drop_lease(self) -> None:
        # Another owner may have continued from the committed offset, so neither the buffered
        # messages nor the running batches may count any more
        # (docs/internals/semantics.md#stale-buffers). The dispatch flag stays: a request that
        # waits or runs clears it itself. Clearing it here would let a second worker run in
        # parallel once the lease is regained.
        self._lease = None
        self.should_end_claim = True
        self._generation += 1
        self._done_offset = self._committed_offset
        self._oldest_lost_ms = self._oldest_filled_ms()  # its age goes on, as that of `_pulled`
        self.process_queue.clear()

    # A call outside of the order, for an admin tool; on the I/O thread.

    def begin_alone(self, run: MessageRun, now_ms: int) -> BatchClaim | None:
        """Claim the queue for one call with messages that were not taken from it.

        A revocation, a seek and a regained lease wait for it, as they do for a batch. The caller
        has paused the queue, so no batch begins beside it.

        Returns: None while a batch runs, or without a valid lease.
        """
        with self._lock:
            lease = self._lease
            if self._running or lease is None or self._state is not QueueState.ACTIVE:
                return None
            if not lease.is_valid(now_ms):
                return None
            self._running = 1
            self.calling, self.worker, self.last_claim_ms = run, 0, now_ms
            return BatchClaim(run, lease, self._generation)

    def end_alone(self) -> None:
        """End a call with messages that were not taken from the queue: nothing of it is done."""
        with self._lock:
            self.calling = None
            drained = self._leave_batch()
        self._notify(False, drained, False)

    # Worker of a concurrent group: many claims at once, finished in any order.

    def finish(self, claim: BatchClaim, offsets: Collection[int]) -> None:
        """Settle a claim: these of its offsets are done; the others stay out until `requeue`.

        `ConcurrentRun` of ext/cython/concurrent_run.pyx does the same where all of them are.
        """
        with self._lock:
            if claim.generation == self._generation:
                watermark = self.process_queue.remove(offsets)
                self._done_offset = max(self._done_offset, self._done_after(watermark))
            drained = self._leave_batch()
            room = self._has_room()
        self._notify(False, drained, room)
        self._on_idle()

    def requeue(self, claim: BatchClaim, offsets: Collection[int]) -> bool:
        """Make unfinished offsets of a settled claim pending again.

        Returns: True if the caller must submit the queue.
        """
        with self._lock:
            if claim.generation != self._generation or self._state is not QueueState.ACTIVE:
                return False
            self.process_queue.make_again(offsets)
            return not self._paused and self.process_queue.begin_dispatch()

    # Fetcher.

    def accept(self, generation: int, batch: MessageBatch, next_offset: int) -> bool:
        """Buffer a pull answer and move the cursor; an answer of an old generation is dropped.

        Returns: True if the caller must submit the queue.
        """
        with self._lock:
            if generation != self._generation or self._state is not QueueState.ACTIVE:
                return False
            self.process_queue.advance(next_offset)
            submit = False
            if len(batch):
                self._forget_done()
                self._pulled.append((batch.last_offset + 1, batch))
                submit = self._put(batch)
            if submit and self._paused:
                self.process_queue.end_dispatch()  # resume() sets it again
                return False
            return submit

    def _put(self, batch: MessageBatch) -> bool:
        return self.process_queue.put_batch(batch)

    def skip_to(self, generation: int, next_offset: int) -> None:
        """Move the cursor over offsets that hold no message of the subscription
        (docs/internals/semantics.md#pull-loop, tag correction)."""
        with self._lock:
            if generation != self._generation or self._state is not QueueState.ACTIVE:
                return
            self.process_queue.advance(next_offset)
            # With nothing buffered the skipped offsets are done. Without this, a queue whose
            # tail is filtered out would show a lag that never shrinks.
            if self.process_queue.message_count == 0:
                self._done_offset = max(self._done_offset, next_offset)
                # Empty: this only raises its lowest offset.
                self.process_queue.reset(self._done_offset)
        self._on_idle()

    def permit(self, generation: int, permit: FillPermit) -> bool:
        """Let answers fill the process queue without `accept`, in this generation alone.

        The native core takes the permit back itself where it clears or resets the process queue,
        which is what ends a generation.
        """
        with self._lock:
            if generation != self._generation or self._state is not QueueState.ACTIVE:
                return False
            self._permit = permit
            permit.permit()
            return True

    def wait_for_room(self, below: int) -> bool:
        """Request an `on_room` call once fewer than `below` messages are buffered.

        Returns: False if that is so already; then no call follows.
        """
        with self._lock:
            if self.process_queue.message_count < below:
                return False
            self._room_below = below
            return True

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
        with self._lock:
            if generation != self._generation or self._lease is None:
                return False
            if self._lease.epoch != lease.epoch:
                return False
            record()
            # Answers may overtake each other; an older grant must not shorten the lease.
            if lease.deadline_ms > self._lease.deadline_ms:
                self._lease = lease
            return True

    def lose_lease(self, reason: str, generation: int | None = None) -> None:
        """Give the lease up now and drop what is buffered; does nothing if it is lost already.

        Args:
            generation: do it only in this generation; for answers that may arrive late.
        """
        with self._lock:
            if self._lease is None or self._state is QueueState.GONE:
                return
            if generation is not None and generation != self._generation:
                return
            self._drop_lease()
        self._on_lease_lost(self, reason)

    def regain(self, lease: Lease, start_offset: int) -> bool:
        """Restart under a new lease, from the offset that was read after it was granted.

        Returns: False if the queue was revoked meanwhile, is locked, or a listener of the old lease
            still runs: the same message must not run twice at once.
        """
        with self._lock:
            if self._state is not QueueState.ACTIVE or self._running:
                return False
            if self._lease is not None and self._lease.is_lock:
                return False
            self._lease = lease
            self._restart(start_offset)
            self._committed_offset = start_offset
            return True

    def rest(self, lease: Lease, epoch: int) -> bool:
        """Hold the queue under `lease`, which is no lock, once all of an epoch's work is committed.

        Returns: False if it is not, or the epoch is over.
        """
        with self._lock:
            before = self._lease
            if (
                before is None
                or before.epoch != epoch
                or self._done_offset != self._committed_offset
            ):
                return False
            if self._running or self.process_queue.message_count:
                return False
            self._lease = lease
            return True

    def reposition(self, generation: int, offset: int) -> bool:
        """Continue from `offset`, forwards or backwards; drops what is buffered.

        Returns: False if a batch is running, or the queue was lost or revoked meanwhile.
        """
        with self._lock:
            if generation != self._generation or self._state is not QueueState.ACTIVE:
                return False
            if self._running:
                return False
            self._restart(offset)
            return True

    def _restart(self, offset: int) -> None:
        self._generation += 1
        self._done_offset = offset
        self._life_start = None
        self.process_queue.reset(offset)
        self.process_queue.advance(offset)
        self._pulled.clear()
        self._oldest_lost_ms = None
        self._room_below = 0
        # Another member may have had the queue in between, so attempts start again, as after
        # any take-over. No call runs: nothing of the old generation is counted any more.
        self.attempts.clear()
        self.outages.clear()
        self._failed_ms.clear()
        self.isolate_until = -1

    # Group member, on the I/O thread: commits, pauses, revocation.

    def uncommitted(self, now_ms: int) -> tuple[int, Lease] | None:
        """Return the offset to commit and the lease to commit it under; None if there is none."""
        with self._lock:
            lease = self._lease
            if lease is None or not lease.is_valid(now_ms):
                return None
            # What is done is of a life that is over, until the queue is moved to its new one.
            offset = self._done_offset if self._life_start is None else self._life_start
            return None if offset == self._committed_offset else (offset, lease)

    def committed(self, offset: int, lease: Lease) -> None:
        """Note that the broker acknowledged `offset` under `lease`."""
        with self._lock:
            if self._lease is not None and self._lease.epoch == lease.epoch:
                self._committed_offset = offset

    def set_done_offset(self, generation: int, offset: int) -> None:
        """Count everything before `offset`, and nothing behind it, as done: a poller says so."""
        with self._lock:
            if generation == self._generation:
                self._done_offset = offset

    @property
    def begins_life(self) -> bool:
        """True while the queue began a new life and is not moved there yet."""
        return self._life_start is not None

    def begin_life(self, offset: int) -> bool:
        """Commit nothing but `offset` until the queue is moved there: it began a new life.

        Returns: False if it need not be moved: it is being given up.
        """
        with self._lock:
            if self._lease is not None and self._life_start is None:
                self._life_start = offset
            return self._lease is not None and self._state is QueueState.ACTIVE

    def pause(self, by: Pause = Pause.USER) -> None:
        """Start no batch until `resume`; pulling stops by flow control, the lease is kept."""
        with self._lock:
            self._paused.add(by)
            self.should_end_claim = True

    def stop(self) -> None:
        """Pause from within a run that ends here; a later `resume` submits the queue anew."""
        # One critical section: were the flag cleared after the pause, a resume() in between
        # would find it set, submit nothing, and the queue would stand still for ever.
        with self._lock:
            self._paused.add(Pause.USER)
            self.should_end_claim = True
            self.process_queue.end_dispatch()

    def resume(self, by: Pause = Pause.USER) -> bool:
        """End one kind of pause; True if the caller must submit the queue."""
        with self._lock:
            self._paused.discard(by)
            is_on = self._state is QueueState.ACTIVE and not self._paused
            return is_on and self.process_queue.begin_dispatch()

    def revoke(self) -> bool:
        """Start no batch from here on; True if none is running, else `on_drained` follows."""
        with self._lock:
            if self._state is QueueState.ACTIVE:
                self._state = QueueState.DRAINING
                self.should_end_claim = True
                if self._permit is not None:
                    self._permit.forbid()
            return self._running == 0

    def discard(self) -> None:
        """Release the queue: no result of it counts any more."""
        with self._lock:
            self._state = QueueState.GONE
            self._drop_lease()
