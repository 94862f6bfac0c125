"""The lock table as a dict (group, queue) -> (owner, epoch, granted_ms)."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic

from ordermq.core import status
from ordermq.core.contract import LockEntry, Queue
from ordermq.core.reference.arguments import MAX_EPOCH, column_of, out_of_range
from ordermq.threads import RLock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class LockTable(Generic[Queue]):
    """See contract.LockTable."""

    def __init__(self, lease_ms: int = 60_000, first_epoch: int = 1) -> None:
        if lease_ms < 0 or first_epoch < 1:
            raise out_of_range(f"lock table: lease_ms={lease_ms}, first_epoch={first_epoch}")
        self.lease_ms = lease_ms
        self._next_epoch = first_epoch
        # Reentrant: a batch is locked as a whole, and each of its queues by `try_lock`.
        self._lock = RLock()
        self._entries: dict[tuple[str, Queue], tuple[str, int, int]] = {}
        self._names: dict[int, Hashable] = {}
        self._numbers: dict[Hashable, int] = {}
        self._pins: dict[int, int] = {}
        # Never lowered: an id is given out once, so that a stale one is unknown.
        self._last_number = 0

    def intern(self, name: Hashable) -> int:
        with self._lock:
            if name is None:
                raise TypeError("expected a name, got None")
            if name not in self._numbers:
                self._last_number += 1
                self._numbers[name] = self._last_number
                self._names[self._last_number] = name
                self._pins[self._last_number] = 0
            number = self._numbers[name]
            self._pins[number] += 1
            return number

    def release(self, number: int) -> None:
        with self._lock:
            self.name_of(number)
            if self._pins[number] == 0:
                raise out_of_range(f"release of id {number}, which is not pinned")
            self._pins[number] -= 1

    def name_of(self, number: int) -> Any:
        if number not in self._names:
            raise status.failure(status.UNKNOWN_ID, f"name_of id {number}")
        return self._names[number]

    def try_lock(self, group: str, queue: Queue, owner: str, now_ms: int) -> int:
        # None is what a look-up of a missing name gives: never let it name a queue.
        if queue is None:
            raise TypeError("expected a name, got None")
        with self._lock:
            holder, epoch, granted_ms = self._entries.get((group, queue), ("", 0, 0))
            # Expired only after more than lease_ms: at exactly lease_ms the holder may still work.
            is_live = epoch > 0 and now_ms - granted_ms <= self.lease_ms
            if is_live and holder != owner:
                return 0
            # Also for the same owner after expiry: another one may have held it in between.
            if not is_live:
                epoch = self._next_epoch
                self._next_epoch += 1
            self._entries[group, queue] = (owner, epoch, now_ms)
            return epoch

    def try_lock_batch(
        self, group: str, queues: Sequence[Queue], owner: str, now_ms: int
    ) -> list[int]:
        # One lock over the batch: two members asking at once never share out the queues by half.
        with self._lock:
            return [self.try_lock(group, queue, owner, now_ms) for queue in queues]

    def try_lock_ids(
        self, group: int, queues: ReadableBuffer, owner: int, now_ms: int
    ) -> memoryview:
        with self._lock:
            # All names first: an unknown id raises before anything is granted.
            names = [self.name_of(number) for number in column_of(queues, "QL", "queues")]
            epochs = self.try_lock_batch(self.name_of(group), names, self.name_of(owner), now_ms)
            return memoryview(array("Q", epochs))

    def unlock(self, group: str, queue: Queue, owner: str, epoch: int = 0) -> bool:
        with self._lock:
            holder, held_epoch, _ = self._entries.get((group, queue), ("", 0, 0))
            # Epoch 0 is any: members of Java send none.
            if held_epoch == 0 or holder != owner or epoch not in (0, held_epoch):
                return False
            del self._entries[group, queue]
            return True

    def unlock_batch(
        self,
        group: str,
        queues: Sequence[Queue],
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

    def unlock_ids(
        self,
        group: int,
        queues: ReadableBuffer,
        owner: int,
        epochs: ReadableBuffer | None = None,
    ) -> memoryview:
        with self._lock:
            names = [self.name_of(number) for number in column_of(queues, "QL", "queues")]
            wanted = None if epochs is None else column_of(epochs, "QL", "epochs")
            unlocked = self.unlock_batch(self.name_of(group), names, self.name_of(owner), wanted)
            return memoryview(array("B", unlocked))

    def holder(self, group: str, queue: Queue) -> tuple[str, int, int] | None:
        return self._entries.get((group, queue))

    def is_current(self, group: str, queue: Queue, owner: str, epoch: int, now_ms: int) -> bool:
        # One look-up in a dict is atomic, so the lock is not needed.
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

    def sweep(self, now_ms: int) -> list[tuple[str, Queue, str, int]]:
        with self._lock:
            expired = [
                (group, queue, owner, epoch)
                for (group, queue), (owner, epoch, granted_ms) in self._entries.items()
                if now_ms - granted_ms > self.lease_ms
            ]
            for group, queue, _, _ in expired:
                del self._entries[group, queue]
            self._forget_names()
            return expired

    def _forget_names(self) -> None:
        """Forget names that nothing uses: a long-lived broker sees new client ids for ever."""
        used = {name for where, entry in self._entries.items() for name in (*where, entry[0])}
        for name, number in list(self._numbers.items()):
            if name not in used and self._pins[number] == 0:
                del self._numbers[name], self._names[number], self._pins[number]

    def snapshot(self) -> list[LockEntry[Queue]]:
        with self._lock:
            return [(*where, *entry) for where, entry in self._entries.items()]

    def restore(self, entries: Iterable[LockEntry[Queue]], next_epoch: int) -> None:
        # Build and check first: a bad entry leaves the table as it was.
        rows = list(entries)
        restored = {(group, queue): (o, e, g) for group, queue, o, e, g in rows}
        if len(restored) != len(rows):
            raise status.failure(status.DUPLICATE, "restore")
        with self._lock:
            # Never lowered, or an epoch could be given out twice.
            next_epoch = max(next_epoch, self._next_epoch)
            if next_epoch > MAX_EPOCH or not all(
                1 <= epoch < next_epoch for _, epoch, _ in restored.values()
            ):
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
            assert {number: name for name, number in self._numbers.items()} == self._names
            assert self._pins.keys() == self._names.keys()
