"""The lock table through cffi."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from ordermq.core import status
from ordermq.core._cffi import ffi, lib
from ordermq.core.cffi_binding.arguments import (
    INT64_MAX,
    raise_unless_ok,
)
from ordermq.core.interface import LockEntry

if TYPE_CHECKING:
    pass

_CHUNK: Final = 256  # entries a native call copies at once


@final
class LockTable:
    """See interface.LockTable."""

    def __init__(self, lease_ms: int = 60_000, first_epoch: int = 1) -> None:
        if not (0 <= lease_ms <= INT64_MAX and 1 <= first_epoch <= INT64_MAX):
            raise status.failure(
                status.OUT_OF_RANGE, f"lock table: lease_ms={lease_ms}, first_epoch={first_epoch}"
            )
        self._lease_ms = lease_ms
        self._lock = threading.RLock()
        # Names <-> the ids that C sees, one space for groups, queues and owners.
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._last_id = 0
        table = lib.omq_lock_table_new(lease_ms, first_epoch)
        if not table:
            raise MemoryError("no memory for a lock table")
        self._table = ffi.gc(table, lib.omq_lock_table_free)

    def _intern(self, name: str) -> int:
        known = self._ids.get(name)
        if known is None:
            if not isinstance(name, str):
                raise TypeError(f"expected a name, got {name!r}")
            known = self._last_id = self._last_id + 1
            self._ids[name] = known
            self._names[known] = name
        return known

    def _find(self, name: str) -> int:
        """The id of a name, or 0, which no name has."""
        return self._ids.get(name, 0)

    def try_lock(self, group: str, queue: str, owner: str, now_ms: int) -> int:
        return self.try_lock_batch(group, [queue], owner, now_ms)[0]

    def try_lock_batch(
        self, group: str, queues: Sequence[str], owner: str, now_ms: int
    ) -> list[int]:
        names = list(queues)
        epochs = ffi.new("uint64_t[]", len(names))
        with self._lock:
            ids = ffi.new("uint64_t[]", [self._intern(name) for name in names])
            code = lib.omq_lock_table_try_lock(
                self._table,
                self._intern(group),
                ids,
                len(names),
                self._intern(owner),
                now_ms,
                epochs,
            )
        raise_unless_ok(code, f"try_lock_batch of group {group}")
        return list(ffi.unpack(epochs, len(names)))

    def unlock(self, group: str, queue: str, owner: str, epoch: int = 0) -> bool:
        return self.unlock_batch(group, [queue], owner, [epoch])[0]

    def unlock_batch(
        self,
        group: str,
        queues: Sequence[str],
        owner: str,
        epochs: Sequence[int] | None = None,
    ) -> list[bool]:
        names = list(queues)
        asked = [0] * len(names) if epochs is None else list(epochs)
        if len(asked) != len(names):
            raise ValueError(f"unlock_batch: {len(names)} queues, {len(asked)} epochs")
        unlocked = ffi.new("bool[]", len(names))
        with self._lock:
            lib.omq_lock_table_unlock(
                self._table,
                self._find(group),
                ffi.new("uint64_t[]", [self._find(name) for name in names]),
                len(names),
                self._find(owner),
                ffi.new("uint64_t[]", asked),
                unlocked,
            )
        return [bool(unlocked[i]) for i in range(len(names))]

    def holder(self, group: str, queue: str) -> tuple[str, int, int] | None:
        lock = ffi.new("omq_lock *")
        with self._lock:
            if lib.omq_lock_table_holder(self._table, self._find(group), self._find(queue), lock):
                return self._names[lock.owner], lock.epoch, lock.granted_ms
        return None

    def is_current(self, group: str, queue: str, owner: str, epoch: int, now_ms: int) -> bool:
        with self._lock:
            group_id, queue_id, owner_id = map(self._find, (group, queue, owner))
            return bool(
                lib.omq_lock_table_is_current(
                    self._table, group_id, queue_id, owner_id, epoch, now_ms
                )
            )

    def is_all_expired(self, group: str, now_ms: int) -> bool:
        with self._lock:
            return bool(lib.omq_lock_table_is_all_expired(self._table, self._find(group), now_ms))

    def sweep(self, now_ms: int) -> list[tuple[str, str, str, int]]:
        locks = ffi.new("omq_lock[]", _CHUNK)
        swept = []
        count = _CHUNK
        with self._lock:
            while count == _CHUNK:
                count = lib.omq_lock_table_sweep(self._table, now_ms, locks, _CHUNK)
                for i in range(count):
                    group, queue, owner, epoch, _ = self._named(locks[i])
                    swept.append((group, queue, owner, epoch))
            self._forget_names()
        return swept

    def _named(self, lock: Any) -> LockEntry:
        names = self._names
        group, queue, owner = names[lock.group], names[lock.queue], names[lock.owner]
        return group, queue, owner, lock.epoch, lock.granted_ms

    def _forget_names(self) -> None:
        """Forget the names without a lock: client ids never end in a long-lived broker."""
        used = {name for entry in self.snapshot() for name in entry[:3]}
        self._ids = {name: number for name, number in self._ids.items() if name in used}
        self._names = {number: name for name, number in self._ids.items()}

    def snapshot(self) -> list[LockEntry]:
        with self._lock:
            count = len(self)
            locks = ffi.new("omq_lock[]", count)
            lib.omq_lock_table_snapshot(self._table, locks, count)
            return [self._named(locks[i]) for i in range(count)]

    def restore(self, entries: Iterable[LockEntry], next_epoch: int) -> None:
        rows = list(entries)
        locks = ffi.new("omq_lock[]", len(rows))
        with self._lock:
            for lock, (group, queue, owner, epoch, granted_ms) in zip(locks, rows, strict=True):
                lock.group = self._intern(group)
                lock.queue = self._intern(queue)
                lock.owner = self._intern(owner)
                lock.epoch = max(epoch, 0)  # 0 is refused
                lock.granted_ms = granted_ms
            code = lib.omq_lock_table_restore(self._table, locks, len(rows), max(next_epoch, 0))
        raise_unless_ok(code, f"restore of {len(rows)} locks")

    @property
    def lease_ms(self) -> int:
        return self._lease_ms

    @property
    def next_epoch(self) -> int:
        return int(lib.omq_lock_table_next_epoch(self._table))

    def __len__(self) -> int:
        return int(lib.omq_lock_table_count(self._table))

    def _check(self) -> None:
        with self._lock:
            broken = lib.omq_lock_table_check(self._table)
            if broken:
                raise AssertionError(f"{ffi.string(broken).decode()}: {self.snapshot()}")
