"""One assigned message queue: its lease, its state and its process queue, kept together.

Everything that may race about a queue is decided here, under one lock a queue:

* a batch starts only while the queue is ACTIVE and its lease is valid
* (docs/internals/semantics.md#fencing),
* a finished batch counts only if the lease it started under still stands (10.3 b),
* a revoked queue is drained exactly when no batch runs, of the many that may (10.1),
* a pull answer counts only in the generation that asked for it (I14).

Locks are taken in this order: `AssignedQueue._lock`, then the process queue's own mutex.
No request, hook, listener or log call happens under either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from ordermq.core import ProcessQueue
from ordermq.model.message import MessageBatch, MessageRun
from ordermq.model.message_queue import MessageQueue


class QueueState(Enum):
    """Where a queue is between being ours and not (docs/internals/semantics.md#hand-off)."""

    ACTIVE = auto()
    DRAINING = auto()  # no new batch, no new pull; the running batch may finish and commit
    GONE = auto()


class Pause(Enum):
    """Who holds a queue's batches back; each kind ends by itself."""

    USER = auto()  # asked for, or by a failure policy, until somebody resumes
    SEEK = auto()  # until the running batch has ended and the queue is moved


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work a queue: an epoch and an end on the monotonic clock.

    Args:
        epoch: grows with each change of owner; the fence token's first half.
        deadline_ms: counted from the *send* of the granting request
        (docs/internals/semantics.md#leases-and-renewal).
        is_fenced: the broker knows epochs and refuses commits of older ones.
    """

    epoch: int
    deadline_ms: int
    is_fenced: bool

    def is_valid(self, now_ms: int) -> bool:
        return now_ms < self.deadline_ms

    @property
    def wire_epoch(self) -> int:
        """The epoch a request carries: 0 to a broker that knows none."""
        return self.epoch if self.is_fenced else 0

    @property
    def is_lock(self) -> bool:
        """A broker granted it; False for a queue held without a lock."""
        return self.epoch > 0


UNLOCKED = Lease(epoch=0, deadline_ms=1 << 62, is_fenced=False)  # no lock is ever epoch 0


class NotClaimed(Enum):
    """Why no batch was handed out; each leaves the dispatch flag cleared."""

    EMPTY = auto()  # nothing pending
    REVOKED = auto()  # draining or gone
    PAUSED = auto()
    LEASE_LOST = auto()  # the lease is over; the buffer was dropped


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A listener call under way: with what, since when, on which thread."""

    messages: MessageRun
    since_ms: int  # of the claim it belongs to
    thread: int


@dataclass(slots=True)
class BatchClaim:
    """What is being consumed, one batch or several in turn, with the lease it started under.

    Never changed.
    """

    messages: MessageRun
    lease: Lease
    generation: int


class QueueCallbacks(NamedTuple):
    """Notifications of a queue; called on any thread, with no lock held.

    Args:
        on_lease_lost: the lease is over, with the reason; once per generation.
        on_drained: the running batches of a revoked queue have ended.
        on_room: a fetcher that waits for room may pull again.
    """

    on_lease_lost: Callable[[AssignedQueue, str], None]
    on_drained: Callable[[AssignedQueue], None]
    on_room: Callable[[AssignedQueue], None]


class AssignedQueue:
    """The state of one queue while this member holds it; each assignment makes a new object."""

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
        self.attempts: dict[int, int] = {}  # failed tries of buffered offsets; worker only
        self.isolate_until = -1  # up to this offset, one message a batch; worker only
        # The claim that runs ends with its batch: written under the lock, read without. What
        # sets it right after has one batch more, for whose end a hand-off waits anyway.
        self.ends_claim = False
        self.burst = 1  # batches to claim at once; worker only
        self.defects = 0  # turns that broke by an error of ours, one after the other; worker only
        self.calling: MessageRun | None = None  # what the listener has; worker only
        self.worker = 0  # the thread of the last claim
        self.last_claim_ms = -1  # when a listener last got a batch, on the monotonic clock
        self._on_lease_lost, self._on_drained, self._on_room = callbacks
        self._lock = threading.Lock()
        self._state = QueueState.ACTIVE
        self._lease: Lease | None = lease
        self._generation = 0
        self._running = 0  # batches with listeners; at most one but in concurrent groups
        self._paused: set[Pause] = set()
        self._room_below = 0  # a puller waits until fewer messages than this are buffered
        self._next_pull_offset = start_offset
        self._done_offset = start_offset
        self._committed_offset = start_offset

    def __repr__(self) -> str:
        epoch = self._lease.epoch if self._lease else None
        return f"<AssignedQueue {self.queue} {self._state.name} epoch={epoch}>"

    # What others may look at; single reads, true at the moment of reading.

    @property
    def state(self) -> QueueState:
        return self._state

    @property
    def lease(self) -> Lease | None:
        """The current lease, valid or not; None after it was lost."""
        return self._lease

    @property
    def generation(self) -> int:
        """Grows whenever what is buffered or in flight stops counting."""
        return self._generation

    @property
    def next_pull_offset(self) -> int:
        return self._next_pull_offset

    @property
    def done_offset(self) -> int:
        """Every offset below it is done; what a commit would store."""
        return self._done_offset

    @property
    def committed_offset(self) -> int:
        """What the broker has acknowledged."""
        return self._committed_offset

    @property
    def unfinished_span(self) -> int:
        """From the smallest offset buffered or with a listener to the greatest pulled; 0 if none.

        What is done above the smallest is not committed yet
        (docs/internals/semantics.md#concurrent-consumption).
        """
        queue = self.process_queue
        oldest = [first for first in (queue.first_pending, queue.first_consuming) if first >= 0]
        return max(queue.max_offset - min(oldest), 0) if oldest else 0

    @property
    def is_paused(self) -> bool:
        return bool(self._paused)

    @property
    def is_running(self) -> bool:
        """A listener has a batch of this queue right now."""
        return self._running > 0

    def running_calls(self) -> list[RunningCall]:
        """The listener calls under way; [] in a concurrent group, whose service knows."""
        run = self.calling
        if run is None or not self._running:
            return []
        return [RunningCall(run, self.last_claim_ms, self.worker)]

    def parked_keys(self) -> list[bytes]:
        """Return the keys that wait for `unpark`; only a key-ordered queue has any."""
        return []

    def is_revoked(self) -> bool:
        """True as soon as the queue is to move away, or its lease is lost."""
        return self._state is not QueueState.ACTIVE or self._lease is None

    # The worker's side.

    def begin_batch(self, limit: int, now_ms: int) -> BatchClaim | NotClaimed:
        """Claim the next batch for a listener; the only way to start one.

        Args:
            limit: most messages wanted, >= 1.
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
                self._running += 1
                self.ends_claim = False
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

    def end_batch(self, claim: BatchClaim, done: int, now_ms: int, *, hold: bool = False) -> bool:
        """Settle a claimed batch: its first `done` messages are finished, the rest come again.

        Args:
            hold: manual mode: finished ones stay uncommitted until a batch ends without it.
        Returns: False if the lease it started under is over: then nothing counts, the queue
            starts again from the committed offset (docs/internals/semantics.md#fencing).
        """
        lapsed = False
        with self._lock:
            # The same generation is the same epoch; its lease may have been renewed meanwhile.
            counts = claim.generation == self._generation and self._lease is not None
            if counts and not self._is_valid(now_ms):
                self._drop_lease()
                counts, lapsed = False, True
            if counts:
                if done < len(claim.messages):
                    self.process_queue.make_again_from(claim.messages[done].queue_offset)
                if done and not hold:
                    self._done_offset = self.process_queue.commit()
            if not counts:
                self.process_queue.end_dispatch()  # the turn ends here, without a successor
            drained = self._leave_batch()
            room = self._has_room()
        self._tell(lapsed, drained, room)
        return counts

    def rollback_held(self, claim: BatchClaim) -> bool:
        """Manual ROLLBACK: everything not committed comes again. False as in `end_batch`."""
        with self._lock:
            counts = claim.generation == self._generation and self._lease is not None
            if counts:
                self.process_queue.rollback()
            else:
                self.process_queue.end_dispatch()
            drained = self._leave_batch()
        self._tell(False, drained, False)
        return counts

    def abandon_turn(self, reason: str) -> None:
        """End a turn that broke: the lease is given up, so that the queue starts again."""
        with self._lock:
            lapsed = self._lease is not None
            if lapsed:
                self._drop_lease()
            self.process_queue.end_dispatch()
            drained = self._leave_batch()
        if lapsed:
            self._on_lease_lost(self, reason)
        self._tell(False, drained, False)

    def has_more(self) -> bool:
        """Whether the request that claimed last must have a successor; else it was the last."""
        with self._lock:
            if self.process_queue.pending_count:
                return True
            self.process_queue.end_dispatch()
            return False

    def _is_valid(self, now_ms: int) -> bool:
        return self._lease is not None and self._lease.is_valid(now_ms)

    def _leave_batch(self) -> bool:
        self._running = max(self._running - 1, 0)
        return self._state is QueueState.DRAINING and self._running == 0

    def _has_room(self) -> bool:
        if self._room_below and self.process_queue.message_count < self._room_below:
            self._room_below = 0
            return True
        return False

    def _tell(self, lapsed: bool, drained: bool, room: bool) -> None:
        if lapsed:
            self._on_lease_lost(self, "the lease ended while a batch ran")
        if drained:
            self._on_drained(self)
        if room:
            self._on_room(self)

    def _drop_lease(self) -> None:
        # Another owner may have gone on from the committed offset: neither what is buffered
        # nor what is being consumed may count any more
        # (docs/internals/semantics.md#stale-buffers). The dispatch flag
        # stays: a request that is queued or running clears it itself, or a second one could
        # run beside it after the lease is regained.
        self._lease = None
        self.ends_claim = True
        self._generation += 1
        self._done_offset = self._committed_offset
        self.process_queue.clear()

    # The worker's side in a concurrent group: many claims at once, finished in any order.

    def finish(self, claim: BatchClaim, offsets: Collection[int]) -> None:
        """End a claim: these offsets of it are done, all others stay out (`bring_back`)."""
        with self._lock:
            if claim.generation == self._generation:
                watermark = self.process_queue.remove(offsets)
                self._done_offset = max(self._done_offset, watermark)
            drained = self._leave_batch()
            room = self._has_room()
        self._tell(False, drained, room)

    def bring_back(self, claim: BatchClaim, offsets: Collection[int]) -> bool:
        """Make unfinished offsets of an ended claim pending again.

        Returns: True if a consume request must now be submitted.
        """
        with self._lock:
            if claim.generation != self._generation or self._state is not QueueState.ACTIVE:
                return False
            self.process_queue.make_again(offsets)
            return not self._paused and self.process_queue.begin_dispatch()

    # The puller's side.

    def accept(self, generation: int, batch: MessageBatch, next_offset: int) -> bool:
        """Buffer a pull answer and move the cursor; stale answers change nothing.

        Returns: True if a consume request must now be submitted.
        """
        with self._lock:
            if generation != self._generation or self._state is not QueueState.ACTIVE:
                return False
            self._next_pull_offset = next_offset
            submit = len(batch) > 0 and self._put(batch)
            if submit and self._paused:
                self.process_queue.end_dispatch()  # resume() begins it again
                return False
            return submit

    def _put(self, batch: MessageBatch) -> bool:
        return self.process_queue.put_batch(batch)

    def skip_to(self, generation: int, next_offset: int) -> None:
        """Move the cursor over offsets that hold nothing for us
        (docs/internals/semantics.md#pull-loop, tag correction).

        With nothing buffered they are done, so that filtered tails do not show as lag.
        """
        with self._lock:
            if generation != self._generation or self._state is not QueueState.ACTIVE:
                return
            self._next_pull_offset = next_offset
            if self.process_queue.message_count == 0:
                self._done_offset = max(self._done_offset, next_offset)
                self.process_queue.reset(self._done_offset)  # empty: this only raises its floor

    def wait_for_room(self, below: int) -> bool:
        """Ask to be told by `on_room` when fewer than `below` messages are buffered.

        Returns: False if that is so already, and nothing will be told.
        """
        with self._lock:
            if self.process_queue.message_count < below:
                return False
            self._room_below = below
            return True

    # The I/O thread's side: leases.

    def renew(self, generation: int, lease: Lease) -> bool:
        """Prolong the lease by a newer grant of the same epoch.

        Returns: False if the grant is of another epoch: someone may have owned the queue in
            between, so the lease is lost all the same.
        """
        with self._lock:
            if generation != self._generation or self._lease is None:
                return False
            if self._lease.epoch != lease.epoch:
                return False
            if lease.deadline_ms > self._lease.deadline_ms:
                self._lease = lease
            return True

    def lose_lease(self, reason: str, generation: int | None = None) -> None:
        """Lose the lease now; drops what is buffered. Nothing happens if it is lost already.

        Args:
            generation: do it only if nothing was lost since that generation.
        """
        with self._lock:
            if self._lease is None or self._state is QueueState.GONE:
                return
            if generation is not None and generation != self._generation:
                return
            self._drop_lease()
        self._on_lease_lost(self, reason)

    def regain(self, lease: Lease, start_offset: int) -> bool:
        """Begin again under a new lease, from the offset read after it was granted.

        Returns: False if the queue was revoked meanwhile.
        """
        with self._lock:
            if self._state is not QueueState.ACTIVE or self._lease is not None or self._running:
                return False
            self._lease = lease
            self._restart(start_offset)
            self._committed_offset = start_offset
            return True

    def reposition(self, generation: int, offset: int) -> bool:
        """Go on from `offset`, either way; what is buffered is dropped.

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
        self._next_pull_offset = self._done_offset = offset
        self.process_queue.reset(offset)
        self._room_below = 0

    # The I/O thread's side: commits, pausing, moving away.

    def uncommitted(self, now_ms: int) -> tuple[int, Lease] | None:
        """What to commit and under which lease; None if there is nothing, or no right to."""
        with self._lock:
            lease = self._lease
            if lease is None or not lease.is_valid(now_ms):
                return None
            if self._done_offset == self._committed_offset:
                return None
            return self._done_offset, lease

    def committed(self, offset: int, lease: Lease) -> None:
        """The broker acknowledged `offset` under `lease`."""
        with self._lock:
            if self._lease is not None and self._lease.epoch == lease.epoch:
                self._committed_offset = offset

    def pause(self, by: Pause = Pause.USER) -> None:
        """No new batch until `resume`; pulling stops by flow control, the lease is kept."""
        with self._lock:
            self._paused.add(by)
            self.ends_claim = True

    def stop(self) -> None:
        """Pause from within a turn that ends here; a `resume` at any time submits anew."""
        with self._lock:
            self._paused.add(Pause.USER)
            self.ends_claim = True
            self.process_queue.end_dispatch()

    def resume(self, by: Pause = Pause.USER) -> bool:
        """End one kind of pause; True if a consume request must now be submitted."""
        with self._lock:
            self._paused.discard(by)
            is_on = self._state is QueueState.ACTIVE and not self._paused
            return is_on and self.process_queue.begin_dispatch()

    def revoke(self) -> bool:
        """No new batch from here on; True if none is running, else `on_drained` will tell."""
        with self._lock:
            if self._state is QueueState.ACTIVE:
                self._state = QueueState.DRAINING
                self.ends_claim = True
            return self._running == 0

    def discard(self) -> None:
        """The queue is no longer ours; nothing of it counts any more."""
        with self._lock:
            self._state = QueueState.GONE
            self._drop_lease()
