"""The contract of the lock table."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Queue = TypeVar("Queue", bound=Hashable)
# (group, queue, owner, epoch, granted_ms)
LockEntry: TypeAlias = tuple[str, Queue, str, int, int]


class LockTable(Protocol[Queue]):
    """Which member of a group holds which queue, until when, in which epoch
    (docs/internals/semantics.md#broker-lock-table).

    A grant expires when now_ms - granted_ms > lease_ms. One mutex makes test and grant
    atomic, of a whole batch too; any thread may call anything. A new holder, and a grant after
    expiry, take a new epoch; a live renewal keeps its own.

    A queue is named by anything hashable but None, and equal names are one queue: a string, a
    `MessageQueue`. Its hash and equality must not run Python code of their own (those of
    strings, numbers and tuples do not), or a call may be refused an id that a sweep beside it
    took away. A name can be interned, and stand in as an id.
    """

    def __init__(self, lease_ms: int = 60_000, first_epoch: int = 1) -> None:
        """Make an empty table.

        Args:
            lease_ms: how long a grant lasts, >= 0.
            first_epoch: >= 1; seed it so that epochs grow over restarts.
        Raises: ValueError: out of range.
        """

    def intern(self, name: Hashable) -> int:
        """Return the id of a group, a queue or an owner, and pin it once more.

        The id is valid until each intern had its `release`, and beyond as long as a lock uses
        it: the `sweep` that finds neither pin nor lock forgets it. An id is of one table and
        is given out once. Groups, queues and owners share the ids: equal names are one.

        Raises: TypeError: the name is None or cannot be hashed.
        """

    def release(self, number: int) -> None:
        """Take back one intern of an id.

        Raises: ValueError: the id is unknown, or it is not pinned.
        """

    def name_of(self, number: int) -> Hashable:
        """Return what an id stands for.

        Raises: ValueError: the id is unknown.
        """

    def try_lock(self, group: str, queue: Queue, owner: str, now_ms: int) -> int:
        """Grant or renew; return the epoch (>= 1), or 0 if another owner holds it live."""

    def try_lock_batch(
        self, group: str, queues: Sequence[Queue], owner: str, now_ms: int
    ) -> list[int]:
        """Try each queue, one after the other under one lock; return an epoch or 0 for each."""

    def try_lock_ids(
        self, group: int, queues: ReadableBuffer, owner: int, now_ms: int
    ) -> memoryview:
        """Do `try_lock_batch` of interned ids, with no object a queue.  O(len(queues)).

        Args:
            queues: ids, a contiguous buffer of uint64 (Q or L).
        Returns: an epoch or 0 for each, a fresh memoryview of uint64 (Q).
        Raises:
            ValueError: an id is unknown; nothing was done.
            TypeError: `queues` is another kind of buffer.
        """

    def unlock(self, group: str, queue: Queue, owner: str, epoch: int = 0) -> bool:
        """Delete the entry if it is this owner's, and of this epoch unless that is 0."""

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
        """Do `unlock_batch` of interned ids.  O(len(queues)).

        Args:
            queues: ids, a contiguous buffer of uint64 (Q or L).
            epochs: as many, uint64; 0 is any epoch.
        Returns: whether each was deleted, a fresh memoryview of bytes 0 and 1 (B).
        Raises:
            ValueError: an id is unknown, or the lengths differ; nothing was done.
            TypeError: `queues` or `epochs` is another kind of buffer.
        """

    def holder(self, group: str, queue: Queue) -> tuple[str, int, int] | None:
        """Return (owner, epoch, granted_ms), of an expired entry too, or None."""

    def is_current(self, group: str, queue: Queue, owner: str, epoch: int, now_ms: int) -> bool:
        """Whether this owner holds the queue live in exactly this epoch
        (docs/internals/semantics.md#fencing)."""

    def is_all_expired(self, group: str, now_ms: int) -> bool:
        """Whether the group holds nothing live.  O(entries of the group)."""

    def sweep(self, now_ms: int) -> list[tuple[str, Queue, str, int]]:
        """Delete expired entries; return them as (group, queue, owner, epoch).

        Forgets each name that is not pinned and that no lock uses any more.
        O(groups + entries of the groups that had one expired, or that were last swept a
        lease ago + names that fell out of use).
        """

    def snapshot(self) -> list[LockEntry[Queue]]:
        """Return every entry, expired ones too, in no particular order.  O(n)."""

    def restore(self, entries: Iterable[LockEntry[Queue]], next_epoch: int) -> None:
        """Replace every entry; next_epoch is raised to the given one, never lowered.

        Pins stay as they are.

        Raises: ValueError: a queue comes twice, or an epoch is not in 1 .. next_epoch - 1;
            no entry was changed.
        """

    @property
    def lease_ms(self) -> int: ...

    @property
    def next_epoch(self) -> int:
        """The epoch that the next new holder gets."""

    def __len__(self) -> int: ...

    def _check(self) -> None:
        """Assert every invariant; for tests.  O(n)."""
