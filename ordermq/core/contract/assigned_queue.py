"""The assigned queue: what may be done with a queue that a member holds, and when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from ordermq.core.status import CLAIM_ALONE

if TYPE_CHECKING:
    from ordermq.core.contract.lane_map import LaneMap
    from ordermq.core.contract.message_codec import MessageIndex
    from ordermq.core.contract.process_queue import ProcessQueue


class Claim(Protocol):
    """The messages that a worker has claimed, and under what; never changed."""

    def __init__(self, messages: Any, lease: Any, generation: int) -> None: ...

    @property
    def messages(self) -> Any: ...
    @property
    def lease(self) -> Any: ...
    @property
    def generation(self) -> int: ...


class AssignedQueue(Protocol):
    """The state of one queue while a member holds it: its stage, lease, pauses, running claims,
    what is done and committed; any thread.

    One mutex makes each call atomic, together with the process queue and the lanes; nothing is
    called back under it. What a call causes it returns as flags, those of `ordermq.core.status`
    from COUNTS on, and its caller acts on them afterwards. So does native code that claims and
    settles: it calls `follow`, which a subclass defines.

    A *generation* ends whenever what is buffered, claimed or asked for becomes void: with the
    lease, at a restart, at a seek. What is reported of an older one changes nothing.

    Fields that say "worker only" are touched by whoever holds the dispatch flag.
    """

    def __init__(
        self,
        name: str,
        lease: Any,
        start_offset: int,
        *,
        claim: type,
        run: type,
        lanes: LaneMap | None = None,
        counts_running: bool = True,
    ) -> None:
        """Make the state of a queue that was just assigned.

        Args:
            name: "topic@broker/queueId", for errors.
            lease: an object with `epoch` and `deadline_ms`; claims get it as it is.
            claim, run: classes of what is claimed, derived from Claim and MessageRun.
            lanes: an empty map, to claim by key; claims are then settled by `finish_lanes`.
            counts_running: a revocation, and a restart, wait for claims that run.
        """

    @property
    def process_queue(self) -> ProcessQueue: ...
    @property
    def lanes(self) -> LaneMap | None: ...
    @property
    def stage(self) -> int:
        """STAGE_ACTIVE, STAGE_DRAINING: no new claim or answer, or STAGE_GONE."""

    @property
    def lease(self) -> Any:
        """The current lease, valid or not; None after it was lost."""

    @property
    def generation(self) -> int: ...
    @property
    def done_offset(self) -> int:
        """The offset to commit: every message before it is done."""

    @property
    def committed_offset(self) -> int:
        """The last offset that the broker has acknowledged."""

    @property
    def position(self) -> int:
        """The offset of the lowest pending message, or of the next pull."""

    @property
    def running_count(self) -> int:
        """Claims that are not settled."""

    @property
    def is_paused(self) -> bool: ...
    @property
    def begins_life(self) -> bool:
        """True while the queue began a new life and is not moved there yet."""

    @property
    def should_end_claim(self) -> bool:
        """True once the running claim should begin no further batch.

        Read without the mutex: a worker that reads it a moment too early begins one batch more,
        and a revocation waits for that batch anyway.
        """

    @property
    def isolate_until(self) -> int:
        """Up to this offset a claim has one message; -1: not isolating. Worker only."""

    @property
    def calling(self) -> Any:
        """The listener's current batch, or None; worker only."""

    @property
    def attempts(self) -> dict[int, int]:
        """Failed attempts by buffered offset; worker only."""

    @property
    def outages(self) -> dict[int, int]:
        """Those that were no fault of the message; worker only."""

    @property
    def failed_ms(self) -> dict[int, int]:
        """First failure of unfinished offsets."""

    @property
    def lane_calls(self) -> dict[int, tuple[Any, int, int]]:
        """Claims by key that run, by first offset: messages, time of the claim, thread."""

    @property
    def last_claim_ms(self) -> int:
        """Time of the last claim; -1 before the first."""

    @property
    def worker(self) -> int:
        """The thread of the last claim."""

    @property
    def batches_per_claim(self) -> int:
        """Batches to claim at once; worker only."""

    @property
    def internal_errors(self) -> int:
        """Internal errors in a row while consuming; worker only."""

    @property
    def auto_commit(self) -> bool:
        """Of the running call, which may change it; worker only."""

    def oldest_filled_ms(self) -> int | None:
        """Return when the broker stored the oldest message that the pull engine has put and that is
        not done, ms since 1970; it goes on with a lost lease. None if there is none.
        """

    @property
    def first_read(self) -> tuple[int, int, int, int] | None:
        """The queue offset, store time in ms since 1970, physical offset and birth time of the last
        message of the first answer that was buffered; it goes on with a lost lease, and after a
        seek. None before the first, and from `begin_life` on until one of that life was.
        """

    @property
    def last_read(self) -> tuple[int, int, int, int] | None:
        """The same of the last answer."""

    def follow(self, flags: int) -> None:
        """Do what follows from a call of native code; a subclass defines it.

        Args: flags: what the call returned, without COUNTS.
        """

    # Claims.

    def claim(self, limit: int, now_ms: int, *, kind: int = CLAIM_ALONE) -> tuple[Any, int]:
        """Claim the lowest pending messages; by key, one call's: each message of another key, one
        that failed before alone.

        Args:
            kind: CLAIM_ALONE: the queue has one claim at a time. CLAIM_SHARED: others may be made
                beside it; DISPATCH says that one more can be, by another worker. CLAIM_FURTHER:
                made behind a shared one; the dispatch flag is of a request that waits.
        Returns: the claim, or CLAIM_EMPTY, CLAIM_REVOKED, CLAIM_PAUSED or CLAIM_LEASE_LOST, and
            flags: LEASE_OVER, and of a shared claim DISPATCH, or IDLE. Without a claim the
            dispatch flag is cleared, but not by a further one, and not by key, where who serves a
            request has cleared it.
        Raises: ValueError: a limit below 1. MemoryError: nothing was claimed.
        """

    def divert(self, key: bytes, most: int, now_ms: int) -> tuple[Any, int]:
        """Claim messages of a parked key. Returns: the claim, or None, and flags: DRAINED."""

    def enter(self, messages: Any, now_ms: int, *, alone: bool) -> Any:
        """Claim the queue for messages that were not taken from it.

        Args: alone: only while no claim runs, though paused; else beside others, while not paused.
        Returns: None if that is not so, or without a valid lease.
        """

    def leave(self) -> int:
        """End such a claim: nothing of it is settled. Returns: DRAINED, or 0."""

    def holds(self, claim: Any, now_ms: int) -> bool:
        """Return whether the lease of a claim still stands."""

    # Settlements.

    def settle(self, claim: Any, done: int, now_ms: int, *, held: int = 0) -> int:
        """Settle a claim: its first `done` messages are finished, the others become pending again.

        Args: held: the last so many of the finished ones stay uncommitted until a claim ends with
            fewer held than finished.
        Returns: COUNTS, unless the lease that it began under is over: then nothing counts, and the
            dispatch flag is cleared. With LEASE_OVER, DRAINED, HAS_ROOM.
        """

    def roll_back(self, claim: Any, before: int) -> int:
        """End a claim: its first `before` messages are finished, all else that is uncommitted
        becomes pending again. Returns: as `settle`, without LEASE_OVER and HAS_ROOM.
        """

    def finish_offsets(self, claim: Any, offsets: Iterable[int], *, leaves: bool = True) -> int:
        """Finish these offsets of a claim, in any order; the others stay out. The lease is not
        looked at.

        Args: leaves: the claim ends with it.
        Returns: COUNTS, DRAINED, HAS_ROOM, IDLE.
        """

    def finish_lanes(self, claim: Any, done: int, now_ms: int, *, leaves: bool) -> int:
        """Finish the first `done` messages of a claim by key. The lanes of the others stay as they
        are; without COUNTS their flights are over, and nothing was finished.

        Returns: as `settle`, and IDLE.
        """

    def make_again(self, claim: Any, offsets: Iterable[int]) -> int:
        """Make unfinished offsets of a settled claim pending again. Returns: DISPATCH, or 0."""

    def abandon(self) -> int:
        """End a run that an error broke, with the lease. Returns: LEASE_OVER, DRAINED."""

    def recount(self, running: int) -> int:
        """Correct the number of running claims, and let the dispatch flag say what is due.

        Returns: DRAINED, DISPATCH.
        """

    def end_run(self) -> int:
        """Clear the dispatch flag, unless more is pending. Returns: DISPATCH, or IDLE."""

    def begin_run(self, *, only_startable: bool = False) -> int:
        """Set the dispatch flag of an active queue that is not paused, and due.

        Args: only_startable: by key: only if another lane may start now.
        Returns: DISPATCH, or 0.
        """

    # Answers.

    def accept_batch(self, generation: int, batch: MessageIndex, next_offset: int) -> int:
        """Buffer an answer and note where the next pull begins; by key into the lanes, too.

        Returns: COUNTS, unless it is of an old generation or the queue is revoked; DISPATCH.
        """

    def skip(self, generation: int, next_offset: int) -> None:
        """Note that no message lies before `next_offset`; with nothing buffered that is done."""

    def wait_for_room(self, below: int) -> bool:
        """Have a settlement return HAS_ROOM once fewer than `below` messages are buffered.

        Returns: False if that is so already; then none does.
        """

    # Leases and offsets.

    def renew_lease(self, generation: int, lease: Any) -> bool:
        """Extend the lease by a newer grant. Returns: False for another epoch or generation."""

    def lose(self, generation: int | None = None) -> int:
        """Give the lease up and drop what is buffered; in this generation alone, if one is given.

        Returns: LEASE_OVER, or 0 if it is lost already.
        """

    def regain(self, lease: Any, start_offset: int) -> bool:
        """Restart under a new lease, from the offset that was read after it was granted.

        Returns: False if the queue was revoked meanwhile, is locked (its lease has an epoch above
            0), or a claim of the old lease still runs: the same message must not run twice at once.
        """

    def rest(self, lease: Any, epoch: int) -> bool:
        """Hold the queue under `lease`, which is no lock, once all of an epoch's work is committed.

        Returns: False if it is not, or the epoch is over.
        """

    def reposition(self, generation: int, offset: int) -> bool:
        """Continue from `offset`, forwards or backwards; drops what is buffered.

        Returns: False if a claim runs, or the queue was lost or revoked meanwhile.
        """

    def uncommitted(self, now_ms: int) -> tuple[int, Any] | None:
        """Return the offset to commit and the lease to commit it under; None if there is none."""

    def committed(self, offset: int, lease: Any) -> None:
        """Note that the broker acknowledged `offset` under `lease`."""

    def set_done_offset(self, generation: int, offset: int) -> None:
        """Count everything before `offset`, and nothing behind it, as done."""

    def begin_life(self, offset: int) -> bool:
        """Commit nothing but `offset` until the queue is moved there: it began a new life.

        Returns: False if it need not be moved: it is being given up.
        """

    # Pauses, revocation.

    def pause_for(self, reasons: int, *, ends_run: bool = False) -> None:
        """Claim nothing until each of these reasons, bits of the caller's, is ended.

        Args: ends_run: clear the dispatch flag with it, for a run that ends here.
        """

    def resume_from(self, reasons: int) -> int:
        """End these reasons. Returns: DISPATCH, or 0."""

    def end_claim(self) -> None:
        """Have the running claim begin no further batch."""

    def revoke(self) -> bool:
        """Claim and buffer nothing from here on. Returns: True if no claim runs, else DRAINED
        follows.
        """

    def discard(self) -> None:
        """Release the queue: no result of it counts any more."""

    def _check(self) -> None:
        """Assert every invariant; for tests."""
