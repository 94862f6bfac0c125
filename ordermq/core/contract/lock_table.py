"""The lock table of a broker."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


# A queue is whatever names it: the broker uses MessageQueue tuples, tests use strings.
Queue = TypeVar("Queue", bound=Hashable)
# (group, queue, owner, epoch, granted_ms)
LockEntry: TypeAlias = tuple[str, Queue, str, int, int]


class LockTable(Protocol[Queue]):
    """The queue locks of consumer groups: holder, lease and epoch of each
    (docs/internals/semantics.md#broker-lock-table).

    A lock expires when now_ms - granted_ms > lease_ms. One mutex makes test and grant atomic, also
    of a whole batch; any thread may call anything. A new holder, and a grant after expiry, get a
    new epoch; a renewal keeps its own.

    A queue is named by anything hashable except None, and equal names are one queue: a string, a
    `MessageQueue`. Hash and equality of a name must not run Python code (those of strings, numbers
    and tuples do not), or a call may use an id that another thread's sweep has just forgotten. A
    name can be interned: its id then stands for it.
    """

    # Epochs are the broker's fence tokens: they only ever grow, so a write with an old one is
    # known to come from a member that lost the lock.

    def __init__(self, lease_ms: int = 60_000, first_epoch: int = 1) -> None:
        """Make an empty table.

        Args:
            lease_ms: how long a grant lasts, >= 0.
            first_epoch: >= 1; seed it so that epochs grow over restarts.
        Raises: ValueError: out of range.
        """

    def intern(self, name: Hashable) -> int:
        """Return the id of a group, a queue or an owner, and pin it once more.

        The id is valid until each intern had its `release`, and after that as long as a lock uses
        it: a `sweep` that finds neither pin nor lock forgets it. An id belongs to one table and is
        given out once. Groups, queues and owners share the ids: equal names have one id.

        Raises: TypeError: the name is None or cannot be hashed.
        """

    def release(self, number: int) -> None:
        """Take back one intern of an id.

        Raises: ValueError: the id is unknown, or it is not pinned.
        """

    def name_of(self, number: int) -> Hashable:
        """Return the name that an id stands for.

        Raises: ValueError: the id is unknown.
        """

    def try_lock(self, group: str, queue: Queue, owner: str, now_ms: int) -> int:
        """Grant or renew a lock; return its epoch (>= 1), or 0 if another owner holds it."""

    def try_lock_batch(
        self, group: str, queues: Sequence[Queue], owner: str, now_ms: int
    ) -> list[int]:
        """Try each queue, one after the other under one lock; return an epoch or 0 for each."""

    def try_lock_ids(
        self, group: int, queues: ReadableBuffer, owner: int, now_ms: int
    ) -> memoryview:
        """Try each queue of a column of interned ids, without an object per queue.  O(n).

        Args:
            queues: ids, a contiguous buffer of uint64 (Q or L).
        Returns: an epoch or 0 for each, a fresh memoryview of uint64 (Q).
        Raises:
            ValueError: an id is unknown; nothing was done.
            TypeError: `queues` is another kind of buffer.
        """

    def unlock(self, group: str, queue: Queue, owner: str, epoch: int = 0) -> bool:
        """Delete a lock if this owner holds it, in this epoch unless that is 0; return whether."""

    def unlock_batch(
        self,
        group: str,
        queues: Sequence[Queue],
        owner: str,
        epochs: Sequence[int] | None = None,
    ) -> list[bool]:
        """Unlock each queue as `unlock`; return whether each was deleted.

        Raises: ValueError: epochs is given and its length differs.
        """

    def unlock_ids(
        self,
        group: int,
        queues: ReadableBuffer,
        owner: int,
        epochs: ReadableBuffer | None = None,
    ) -> memoryview:
        """Unlock each queue of a column of interned ids.  O(n).

        Args:
            queues: ids, a contiguous buffer of uint64 (Q or L).
            epochs: as many, uint64; 0 is any epoch.
        Returns: whether each was deleted, a fresh memoryview of bytes 0 and 1 (B).
        Raises:
            ValueError: an id is unknown, or the lengths differ; nothing was done.
            TypeError: `queues` or `epochs` is another kind of buffer.
        """

    def holder(self, group: str, queue: Queue) -> tuple[str, int, int] | None:
        """Return (owner, epoch, granted_ms) of a lock, expired or not; None if there is none."""

    def is_current(self, group: str, queue: Queue, owner: str, epoch: int, now_ms: int) -> bool:
        """Return whether this owner holds the queue in exactly this epoch, not expired
        (docs/internals/semantics.md#fencing)."""

    def is_all_expired(self, group: str, now_ms: int) -> bool:
        """Return whether every lock of the group has expired.  O(locks of the group)."""

    def sweep(self, now_ms: int) -> list[tuple[str, Queue, str, int]]:
        """Delete expired locks; return them as (group, queue, owner, epoch).

        Forgets each name that is not pinned and that no lock uses any more.
        O(groups + locks of the groups that may have an expired one + names that fell out of use).
        """

    def snapshot(self) -> list[LockEntry[Queue]]:
        """Return every lock, expired ones too, in no particular order.  O(n)."""

    def restore(self, entries: Iterable[LockEntry[Queue]], next_epoch: int) -> None:
        """Replace every lock; next_epoch is raised to the given one, never lowered.

        Pins stay as they are.

        Raises: ValueError: a queue occurs twice, or an epoch is not in 1 .. next_epoch - 1, or
            next_epoch is over 2**63 - 1; no lock was changed.
        """

    @property
    def lease_ms(self) -> int: ...

    @property
    def next_epoch(self) -> int:
        """The epoch that the next new holder gets."""

    def __len__(self) -> int: ...

    def _check(self) -> None:
        """Assert every invariant; for tests.  O(n)."""
