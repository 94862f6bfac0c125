"""The checker's state of each queue: arrays indexed by offset, no object per message.

`StoredQueue` has the messages that exist, and the order within each key. `DeliveredOffsets` has
what one group started, finished and committed. `Ownership` is one process that holds the queue
under one lock epoch.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ordermq.audit.report import Cause
from ordermq.errors import OrderMQError

QueueName = tuple[str, str, str, int]  # group, topic, broker, queue

# StoredQueue.flags
EXISTS = 1  # seen in a STORE or a START
FOREIGN = 2  # its tags are not subscribed to: it need not be consumed
# DeliveredOffsets.flags
STARTED = 1
DONE = 2  # successful END
DIVERTED = 4
PARKED = 8  # diverted for a later retry: its key waits for it
TOLD = 32  # done by what the user's database told its next owner: the END may be missing
DROPPED = 16  # a copy that was sent again: the message that it repeats counts for it

_GRAIN = 4_096
_WIDEST = 1 << 28  # offsets between the lowest and the highest of a queue


class _Columns:
    """A span of offsets that grows at both ends; index = offset - base."""

    def __init__(self) -> None:
        self.base = 0
        self.flags = bytearray()

    def cover(self, low: int, high: int) -> None:
        """Make room for offsets low..high. Amortised O(1) per offset."""
        if not self.flags:
            self.base = low // _GRAIN * _GRAIN if low >= 1 << 16 else 0
        front = max(self.base - low, 0)
        back = high + 1 - self.base - len(self.flags)
        if front == 0 and back <= 0:
            return
        if front + len(self.flags) + max(back, 0) > _WIDEST or low < 0:
            raise OrderMQError(f"offsets {low}..{high} are too far from {self.base}")
        if front:
            front = min(-(-front // _GRAIN) * _GRAIN, self.base)
            self.base -= front
        back = max(back, len(self.flags) // 2, _GRAIN) if back > 0 else 0
        self._grow(front, back)

    def _grow(self, front: int, back: int) -> None:
        self.flags[:0] = bytes(front)
        self.flags.extend(bytes(back))


class StoredQueue(_Columns):
    """The messages of one message queue that the history mentions."""

    def __init__(self) -> None:
        super().__init__()
        self.refs = array("q")  # the STORE, or the first START that mentions it
        self.before = array("q")  # the offset before it with the same key, -1 if none
        self.stored = 0
        self._last_of_key: dict[str, int] = {}

    def _grow(self, front: int, back: int) -> None:
        super()._grow(front, back)
        for column in (self.refs, self.before):
            column[:0] = array("q", [-1]) * front
            column.extend(array("q", [-1]) * back)

    def add(
        self,
        offsets: Sequence[int],
        keys: Sequence[str | None],
        ref: int,
        foreign: Sequence[bool] | None = None,
    ) -> None:
        """Note that messages exist; known ones do not change."""
        self.cover(offsets[0], max(offsets))
        base, flags, last = self.base, self.flags, self._last_of_key
        for place, offset in enumerate(offsets):
            i = offset - base
            if flags[i] & EXISTS:
                continue
            self.refs[i] = ref
            if foreign is not None and foreign[place]:
                flags[i] = EXISTS | FOREIGN
                continue
            flags[i] = EXISTS
            key = keys[place] if place < len(keys) else None
            if key:
                before = last.get(key, -1)
                if before < offset:
                    self.before[i] = before
                    last[key] = offset

    def forget(self) -> None:
        """Note that the messages are gone; a topic that is made anew has others."""
        self.flags[:] = bytes(len(self.flags))
        self.before[:] = array("q", [-1]) * len(self.before)
        self._last_of_key.clear()


class Ownership:
    """One process that holds one queue under one epoch."""

    __slots__ = (
        "acked",
        "client",
        "commits",
        "done_next",
        "ended",
        "ended_at",
        "ended_by",
        "epoch",
        "failed",
        "first_start",
        "generation",
        "granted_by",
        "held",
        "last_active",
        "lease_end",
        "lease_ns",
        "loss",
        "open",
        "released_by_commit",
        "reopened",
        "since",
        "started",
        "started_first",
        "started_by",
        "tells_renewals",
        "unlocked",
    )

    def __init__(self, client: str, epoch: int, generation: int, ref: int, t: int) -> None:
        self.client = client
        self.epoch = epoch
        self.generation = generation  # of the progress; frozen once another ownership begins
        self.granted_by = ref
        self.since = t
        self.lease_end: int | None = None  # ns; None before any LOCK_OK
        self.lease_ns = 0
        self.released_by_commit = False  # so its acknowledgement comes after the release
        # For a member that records no renewals, those that the broker recorded count.
        self.tells_renewals = False
        self.open: dict[int, tuple[int, Sequence[int], Sequence[str | None]]] = {}
        self.failed: set[int] = set()  # started and failed, to be retried
        self.started = -1  # first offset of the next START must not lie below it
        self.started_by = ref
        self.started_first = -1  # highest first offset of a first attempt
        self.reopened: int | None = None  # STARTs may go back to here
        self.held = False  # finished batches wait for a COMMIT of the listener
        self.done_next = -1  # highest finished offset + 1
        self.acked = -1
        self.commits: dict[int, tuple[int, int, int]] = {}  # off -> SENT ref, lost, newer
        self.first_start: int | None = None
        self.last_active: int | None = None
        self.unlocked: int | None = None
        self.ended = Cause.NONE  # how it lost the queue; NONE while it holds it
        self.ended_by = ref
        self.ended_at: int | None = None
        self.loss = 0  # broker incarnation under which it was last granted

    @property
    def waits_for_release(self) -> bool:
        """True while the commit that releases the queue is not known to have reached the broker."""
        return self.released_by_commit and self.acked < max(self.commits, default=-1)

    def reopen(self, offset: int) -> None:
        """Start again from `offset` on: earlier starts and failures no longer count."""
        self.reopened = 0
        self.started = self.started_first = -1
        self.failed.clear()
        self.done_next = offset

    def watermark(self) -> int:
        """Return the offset that a graceful release must commit, -1 if it finished nothing."""
        if self.failed:
            return min(self.done_next, *self.failed)
        return self.done_next


class DeliveredOffsets(_Columns):
    """Messages of one queue that one group started, finished and committed."""

    def __init__(self, name: QueueName) -> None:
        super().__init__()
        self.name = name
        self.done_by = array("q")  # ref of the newest successful END
        self.done_in = array("I")  # generation of it
        self.causes: list[Cause] = [Cause.NONE]  # what began each generation
        self.start: int | None = None  # first offset that must be consumed
        self.floor = 0  # everything required below it is done
        self.skipped_to = -1  # a RESET went forward to here
        self.acked = -1
        self.acked_by = -1
        self.ownerships: dict[tuple[str, int], Ownership] = {}
        self.current: Ownership | None = None
        self.running: set[Ownership] = set()  # ownership with an open START
        self.started_any = False
        self.by_key = False
        self.is_unlocked = False  # of a concurrent group
        self.delivered = 0
        self.deliveries = 0
        self.diverted = 0
        self.dropped = 0
        # The broker's own view of the lock, from its history if there is one.
        self.broker_seen = False
        self.holder = ""
        self.holder_epoch = 0
        self.holder_until = 0
        self.holder_ref = -1
        self.holder_of = 0  # broker incarnation that granted it
        self.epoch = 0  # highest granted
        self.epoch_ref = -1
        self._strongest: dict[tuple[int, int], Cause] = {}

    def _grow(self, front: int, back: int) -> None:
        super()._grow(front, back)
        self.done_by[:0] = array("q", [-1]) * front
        self.done_by.extend(array("q", [-1]) * back)
        self.done_in[:0] = array("I", [0]) * front
        self.done_in.extend(array("I", [0]) * back)

    def begin_generation(self, cause: Cause) -> int:
        """Begin a generation: from now on a repeated START has this cause."""
        self.causes.append(cause)
        return len(self.causes) - 1

    def cause_between(self, one: int, other: int) -> Cause:
        """Return the strongest cause among the generations after the older, up to the newer."""
        if one == other:
            return Cause.NONE
        pair = (one, other) if one < other else (other, one)
        if pair not in self._strongest:
            seen = set(self.causes[pair[0] + 1 : pair[1] + 1])
            self._strongest[pair] = next((each for each in _STRENGTH if each in seen), Cause.NONE)
        return self._strongest[pair]

    def first_missing(self, stored: StoredQueue, end: int) -> int:
        """Return the first required message below `end` that is not finished, -1 if none."""
        low = max(self.floor, self.start or 0, stored.base)
        for offset in range(low, min(end, stored.base + len(stored.flags))):
            if stored.flags[offset - stored.base] == EXISTS and not self.is_settled(offset):
                self.floor = offset
                return offset
        self.floor = max(self.floor, end)
        return -1

    def before_in_key(self, stored: StoredQueue, offset: int) -> int:
        """Return the message before an offset in its key that is no dropped copy, -1 if none."""
        earlier = stored.before[offset - stored.base]
        while earlier >= self.base and self.flags[earlier - self.base] & DROPPED:
            earlier = stored.before[earlier - stored.base]
        return earlier

    def is_settled(self, offset: int) -> bool:
        """Return True if a message needs no more processing."""
        if offset < (self.start or 0) or offset < self.skipped_to:
            return True
        i = offset - self.base
        return 0 <= i < len(self.flags) and self.flags[i] & (DONE | DIVERTED | DROPPED) != 0

    def is_passed(self, stored: StoredQueue, offset: int, generation: int) -> bool:
        """Return True if an owner may commit past an offset: it finished it, or need not."""
        i = offset - self.base
        flags = self.flags[i] if 0 <= i < len(self.flags) else 0
        if flags & DROPPED or (flags & DONE and self.done_in[i] == generation):
            return True
        if offset < self.skipped_to:
            return True
        # Without the broker's history, a gap may be a message that still waits.
        place = offset - stored.base
        is_known = stored.stored > 0 and 0 <= place < len(stored.flags)
        return is_known and stored.flags[place] != EXISTS


_STRENGTH = (Cause.RESET, Cause.ROLLBACK, Cause.CRASH, Cause.BROKER, Cause.LEASE, Cause.HAND_OFF)
