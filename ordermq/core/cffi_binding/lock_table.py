"""The lock table through cffi."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, final

from ordermq.core import status
from ordermq.core._cffi import ffi, lib
from ordermq.core.cffi_binding.arguments import (
    INT64_MAX,
    UINT64_MAX,
    Lent,
    clamped,
    epoch_of,
    raise_unless_ok,
)
from ordermq.core.contract import LockEntry, Queue
from ordermq.threads import RLock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_CHUNK: Final = 256  # ids that one native call forgets
_SLOT: Final = 2**32 - 1  # the low half of an id: its place among the names
# A sweep allocates room for every lock and fills little of it: do not clear it first.
_uninitialized: Final = ffi.new_allocator(should_clear_after_alloc=False)


@final
class LockTable(Generic[Queue]):
    """See contract.LockTable."""

    def __init__(self, lease_ms: int = 60_000, first_epoch: int = 1) -> None:
        if not (0 <= lease_ms <= INT64_MAX and 1 <= first_epoch <= INT64_MAX):
            raise status.failure(
                status.OUT_OF_RANGE, f"lock table: lease_ms={lease_ms}, first_epoch={first_epoch}"
            )
        self._lease_ms = lease_ms
        self._lock = RLock()
        # Names and the ids that C gives out, one space for groups, queues and owners. The lock
        # keeps both in step with C: an id must not be forgotten between its look-up and its use.
        self._ids: dict[Hashable, int] = {}
        self._names: list[Any] = []
        table = lib.omq_lock_table_new(lease_ms, first_epoch)
        if not table:
            raise MemoryError("no memory for a lock table")
        self._table = ffi.gc(table, lib.omq_lock_table_free)

    def _id_of(self, name: Hashable) -> int:
        known = self._ids.get(name)
        if known is not None:
            return known
        if name is None:
            raise TypeError("expected a name, got None")
        added = ffi.new("uint64_t *")
        raise_unless_ok(lib.omq_lock_table_add_id(self._table, added), f"id of {name!r}")
        # C uses free slots again before it takes the next new one.
        if added[0] & _SLOT == len(self._names):
            self._names.append(None)
        self._names[added[0] & _SLOT] = name
        self._ids[name] = added[0]
        return int(added[0])

    def _find(self, name: Hashable) -> int:
        """Return the id of a name, or 0, which no name has and C never knows."""
        # Asking about a name must not remember it: anybody may send any name.
        return self._ids.get(name, 0)

    def intern(self, name: Hashable) -> int:
        with self._lock:
            number = self._id_of(name)
            raise_unless_ok(lib.omq_lock_table_pin(self._table, number), f"intern of {name!r}")
            return number

    def release(self, number: int) -> None:
        with self._lock:
            code = lib.omq_lock_table_unpin(self._table, number)
        raise_unless_ok(code, f"release of id {number}")

    def name_of(self, number: int) -> Any:
        with self._lock:
            if lib.omq_lock_table_known(self._table, ffi.new("uint64_t *", number), 1) == 0:
                raise status.failure(status.UNKNOWN_ID, f"name_of id {number}")
            return self._names[number & _SLOT]

    def try_lock(self, group: str, queue: Queue, owner: str, now_ms: int) -> int:
        return self.try_lock_batch(group, [queue], owner, now_ms)[0]

    def try_lock_batch(
        self, group: str, queues: Sequence[Queue], owner: str, now_ms: int
    ) -> list[int]:
        names = list(queues)
        epochs = ffi.new("uint64_t[]", len(names))
        with self._lock:
            # Ids and grant under one lock: a sweep between them could forget a new id.
            ids = ffi.new("uint64_t[]", [self._id_of(name) for name in names])
            code = lib.omq_lock_table_try_lock(
                self._table,
                self._id_of(group),
                ids,
                len(names),
                self._id_of(owner),
                now_ms,
                epochs,
            )
        raise_unless_ok(code, f"try_lock_batch of group {group}")
        return list(ffi.unpack(epochs, len(names)))

    def try_lock_ids(
        self, group: int, queues: ReadableBuffer, owner: int, now_ms: int
    ) -> memoryview:
        with Lent() as lent:
            ids = lent.column(queues, "QL", "uint64_t", "queues")
            epochs = array("Q", bytes(8 * len(ids)))
            with self._lock:
                code = lib.omq_lock_table_try_lock(
                    self._table,
                    group,
                    ids,
                    len(ids),
                    owner,
                    now_ms,
                    ffi.from_buffer("uint64_t[]", epochs),
                )
            raise_unless_ok(code, f"try_lock_ids of group id {group}")
            return memoryview(epochs)

    def unlock(self, group: str, queue: Queue, owner: str, epoch: int = 0) -> bool:
        return self.unlock_batch(group, [queue], owner, [epoch])[0]

    def unlock_batch(
        self,
        group: str,
        queues: Sequence[Queue],
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
                ffi.new("uint64_t[]", [epoch_of(epoch) for epoch in asked]),
                unlocked,
            )
        return [bool(unlocked[i]) for i in range(len(names))]

    def unlock_ids(
        self,
        group: int,
        queues: ReadableBuffer,
        owner: int,
        epochs: ReadableBuffer | None = None,
    ) -> memoryview:
        with Lent() as lent:
            ids = lent.column(queues, "QL", "uint64_t", "queues")
            asked = ffi.NULL if epochs is None else lent.column(epochs, "QL", "uint64_t", "epochs")
            if epochs is not None and len(asked) != len(ids):
                raise ValueError(f"unlock_ids: {len(ids)} queues, {len(asked)} epochs")
            others = ffi.new("uint64_t[]", [group, owner])
            unlocked = array("B", bytes(len(ids)))
            with self._lock:
                # C takes an unknown id for one without a lock; the contract wants an error.
                known = lib.omq_lock_table_known(self._table, ids, len(ids))
                if known < len(ids) or lib.omq_lock_table_known(self._table, others, 2) < 2:
                    raise status.failure(status.UNKNOWN_ID, f"unlock_ids of group id {group}")
                lib.omq_lock_table_unlock(
                    self._table,
                    group,
                    ids,
                    len(ids),
                    owner,
                    asked,
                    ffi.from_buffer("bool[]", unlocked),
                )
            return memoryview(unlocked)

    def holder(self, group: str, queue: Queue) -> tuple[str, int, int] | None:
        lock = ffi.new("omq_lock *")
        with self._lock:
            if lib.omq_lock_table_holder(self._table, self._find(group), self._find(queue), lock):
                return self._names[lock.owner & _SLOT], lock.epoch, lock.granted_ms
        return None

    def is_current(self, group: str, queue: Queue, owner: str, epoch: int, now_ms: int) -> bool:
        with self._lock:
            group_id, queue_id, owner_id = map(self._find, (group, queue, owner))
            return bool(
                lib.omq_lock_table_is_current(
                    self._table, group_id, queue_id, owner_id, epoch_of(epoch), now_ms
                )
            )

    def is_all_expired(self, group: str, now_ms: int) -> bool:
        with self._lock:
            return bool(lib.omq_lock_table_is_all_expired(self._table, self._find(group), now_ms))

    def sweep(self, now_ms: int) -> list[tuple[str, Queue, str, int]]:
        with self._lock:
            # Room for all of them, so that one call sweeps the whole table.
            capacity = len(self)
            locks = _uninitialized("omq_lock[]", capacity)
            count = lib.omq_lock_table_sweep(self._table, now_ms, locks, capacity)
            swept = [self._named(locks[i]) for i in range(count)]
            self._forget_names()
        return [(group, queue, owner, epoch) for group, queue, owner, epoch, _ in swept]

    def _named(self, lock: Any) -> LockEntry[Queue]:
        names = self._names
        group, queue = names[lock.group & _SLOT], names[lock.queue & _SLOT]
        return group, queue, names[lock.owner & _SLOT], lock.epoch, lock.granted_ms

    def _forget_names(self) -> None:
        """Forget names that nothing uses: a long-lived broker sees new client ids for ever."""
        ids = ffi.new("uint64_t[]", _CHUNK)
        count = _CHUNK
        while count == _CHUNK:
            count = lib.omq_lock_table_forget(self._table, ids, _CHUNK)
            for number in ffi.unpack(ids, count):
                del self._ids[self._names[number & _SLOT]]
                self._names[number & _SLOT] = None

    def snapshot(self) -> list[LockEntry[Queue]]:
        with self._lock:
            count = len(self)
            locks = _uninitialized("omq_lock[]", count)
            # The count is exact: every change of the table needs this lock.
            lib.omq_lock_table_snapshot(self._table, locks, count)
            return [self._named(locks[i]) for i in range(count)]

    def restore(self, entries: Iterable[LockEntry[Queue]], next_epoch: int) -> None:
        rows = list(entries)
        locks = ffi.new("omq_lock[]", len(rows))
        with self._lock:
            for lock, (group, queue, owner, epoch, granted_ms) in zip(locks, rows, strict=True):
                lock.group = self._id_of(group)
                lock.queue = self._id_of(queue)
                lock.owner = self._id_of(owner)
                lock.epoch = epoch_of(epoch)  # C refuses one that is none
                lock.granted_ms = clamped(granted_ms)
            least = min(max(next_epoch, 0), UINT64_MAX)
            code = lib.omq_lock_table_restore(self._table, locks, len(rows), least)
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
            for name, number in self._ids.items():
                assert self.name_of(number) == name
            assert len(self._ids) == sum(name is not None for name in self._names)
