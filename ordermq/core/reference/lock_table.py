"""A lock table as a dict of entries."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ordermq.core import status
from ordermq.core.interface import LockEntry
from ordermq.core.reference.arguments import out_of_range

if TYPE_CHECKING:
    pass


class LockTable:
    """See interface.LockTable."""

    def __init__(self, lease_ms: int = 60_000, first_epoch: int = 1) -> None:
        if lease_ms < 0 or first_epoch < 1:
            raise out_of_range(f"lock table: lease_ms={lease_ms}, first_epoch={first_epoch}")
        self.lease_ms = lease_ms
        self._next_epoch = first_epoch
        self._lock = threading.RLock()
        self._entries: dict[tuple[str, str], tuple[str, int, int]] = {}

    def try_lock(self, group: str, queue: str, owner: str, now_ms: int) -> int:
        with self._lock:
            holder, epoch, granted_ms = self._entries.get((group, queue), ("", 0, 0))
            is_live = epoch > 0 and now_ms - granted_ms <= self.lease_ms
            if is_live and holder != owner:
                return 0
            if not is_live:
                epoch = self._next_epoch
                self._next_epoch += 1
            self._entries[group, queue] = (owner, epoch, now_ms)
            return epoch

    def try_lock_batch(
        self, group: str, queues: Sequence[str], owner: str, now_ms: int
    ) -> list[int]:
        with self._lock:
            return [self.try_lock(group, queue, owner, now_ms) for queue in queues]

    def unlock(self, group: str, queue: str, owner: str, epoch: int = 0) -> bool:
        with self._lock:
            holder, held_epoch, _ = self._entries.get((group, queue), ("", 0, 0))
            if held_epoch == 0 or holder != owner or epoch not in (0, held_epoch):
                return False
            del self._entries[group, queue]
            return True

    def unlock_batch(
        self,
        group: str,
        queues: Sequence[str],
        owner: str,
        epochs: Sequence[int] | None = None,
    ) -> list[bool]:
        if epochs is None:
            epochs = [0] * len(queues)
        if len(epochs) != len(queues):
            raise ValueError(f"unlock_batch: {len(queues)} queues, {len(epochs)} epochs")
        with self._lock:
            return [
                self.unlock(group, queue, owner, epoch)
                for queue, epoch in zip(queues, epochs, strict=True)
            ]

    def holder(self, group: str, queue: str) -> tuple[str, int, int] | None:
        return self._entries.get((group, queue))

    def is_current(self, group: str, queue: str, owner: str, epoch: int, now_ms: int) -> bool:
        entry = self._entries.get((group, queue))
        return (
            entry is not None and entry[:2] == (owner, epoch) and now_ms - entry[2] <= self.lease_ms
        )

    def is_all_expired(self, group: str, now_ms: int) -> bool:
        with self._lock:
            return not any(
                held_group == group and now_ms - granted_ms <= self.lease_ms
                for (held_group, _), (_, _, granted_ms) in self._entries.items()
            )

    def sweep(self, now_ms: int) -> list[tuple[str, str, str, int]]:
        with self._lock:
            expired = [
                (group, queue, owner, epoch)
                for (group, queue), (owner, epoch, granted_ms) in self._entries.items()
                if now_ms - granted_ms > self.lease_ms
            ]
            for group, queue, _, _ in expired:
                del self._entries[group, queue]
            return expired

    def snapshot(self) -> list[LockEntry]:
        with self._lock:
            return [(*where, *entry) for where, entry in self._entries.items()]

    def restore(self, entries: Iterable[LockEntry], next_epoch: int) -> None:
        rows = list(entries)
        restored = {(group, queue): (o, e, g) for group, queue, o, e, g in rows}
        if len(restored) != len(rows):
            raise status.failure(status.DUPLICATE, "restore")
        with self._lock:
            next_epoch = max(next_epoch, self._next_epoch)
            if not all(1 <= epoch < next_epoch for _, epoch, _ in restored.values()):
                raise out_of_range("restore: epoch")
            self._entries = restored
            self._next_epoch = next_epoch

    @property
    def next_epoch(self) -> int:
        return self._next_epoch

    def __len__(self) -> int:
        return len(self._entries)

    def _check(self) -> None:
        with self._lock:
            epochs = [epoch for _, epoch, _ in self._entries.values()]
            assert all(1 <= epoch < self._next_epoch for epoch in epochs), self._entries
