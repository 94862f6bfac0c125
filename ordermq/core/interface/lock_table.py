"""The contract of the lock table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

# (group, queue, owner, epoch, granted_ms)
LockEntry: TypeAlias = tuple[str, str, str, int, int]


class LockTable(Protocol):
    """Which member of a group holds which queue, until when, in which epoch (semantics 3.1).

    A grant expires when now_ms - granted_ms > lease_ms. One mutex makes test and grant
    atomic; any thread may call. A new holder, and a grant after expiry, take a new epoch; a
    live renewal keeps its own. Queues are opaque strings; names are forgotten by `sweep`
    once nothing uses them.
    """

    def __init__(self, lease_ms: int = 60_000, first_epoch: int = 1) -> None:
        """Make an empty table.

        Args:
            lease_ms: how long a grant lasts, >= 0.
            first_epoch: >= 1; seed it so that epochs grow over restarts.
        Raises: ValueError: out of range.
        """

    def try_lock(self, group: str, queue: str, owner: str, now_ms: int) -> int:
        """Grant or renew; return the epoch (>= 1), or 0 if another owner holds it live."""

    def try_lock_batch(
        self, group: str, queues: Sequence[str], owner: str, now_ms: int
    ) -> list[int]:
        """Try each queue, one after the other under one lock; return an epoch or 0 for each."""

    def unlock(self, group: str, queue: str, owner: str, epoch: int = 0) -> bool:
        """Delete the entry if it is this owner's, and of this epoch unless that is 0."""

    def unlock_batch(
        self,
        group: str,
        queues: Sequence[str],
        owner: str,
        epochs: Sequence[int] | None = None,
    ) -> list[bool]:
        """Unlock each queue as `unlock`; return whether each was deleted.

        Raises: ValueError: epochs is given and its length differs.
        """

    def holder(self, group: str, queue: str) -> tuple[str, int, int] | None:
        """Return (owner, epoch, granted_ms), of an expired entry too, or None."""

    def is_current(self, group: str, queue: str, owner: str, epoch: int, now_ms: int) -> bool:
        """Whether this owner holds the queue live in exactly this epoch (semantics 10.3)."""

    def is_all_expired(self, group: str, now_ms: int) -> bool:
        """Whether the group holds nothing live.  O(entries of the group)."""

    def sweep(self, now_ms: int) -> list[tuple[str, str, str, int]]:
        """Delete expired entries; return them as (group, queue, owner, epoch).  O(n)."""

    def snapshot(self) -> list[LockEntry]:
        """Return every entry, expired ones too, in no particular order.  O(n)."""

    def restore(self, entries: Iterable[LockEntry], next_epoch: int) -> None:
        """Replace every entry; next_epoch is raised to the given one, never lowered.

        Raises: ValueError: a queue comes twice, or an epoch is not in 1 .. next_epoch - 1;
            nothing was changed.
        """

    @property
    def lease_ms(self) -> int: ...

    @property
    def next_epoch(self) -> int:
        """The epoch that the next new holder gets."""

    def __len__(self) -> int: ...

    def _check(self) -> None:
        """Assert every invariant; for tests.  O(n)."""
