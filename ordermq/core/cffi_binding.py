"""The C core through cffi, for PyPy and for callers with C of their own.

Contracts: interface.py. cffi lets go of the GIL in every call, so each object here has a lock
of its own beside the C mutex: it ties a native call to the change of Python state with it.
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, final

from ordermq.core import status
from ordermq.core._cffi import ffi, lib
from ordermq.core.interface import Batch, LockEntry, Segment

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_UINT64_MAX: Final = 2**64 - 1
_INT32_MAX: Final = 2**31 - 1
_NO_SLOT: Final = 2**32 - 1
_CHUNK: Final = 256  # entries a native call copies at once


def _raise_unless_ok(code: int, where: str) -> None:
    if code != status.OK:
        raise status.failure(code, where)


def _clamped(offset: int) -> int:
    """The nearest int64, which is no offset, where it does not fit."""
    return min(max(offset, _INT64_MIN), _INT64_MAX)


def _at_least_one(n: int, owner: str, operation: str) -> int:
    if n < 1:
        raise status.failure(status.OUT_OF_RANGE, f"{owner}: {operation} of {n}")
    return min(n, _INT64_MAX)


def _entry(found: bool, entry: Any) -> tuple[int, int] | None:
    return (entry.offset, entry.token) if found else None


@final
class OffsetMap:
    """See interface.OffsetMap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        map_ = lib.omq_offset_map_new()
        if not map_:
            raise MemoryError("no memory for an offset map")
        self._map = ffi.gc(map_, lib.omq_offset_map_free)

    def put(self, offset: int, token: int) -> bool:
        is_new = ffi.new("bool *")
        key = _clamped(offset) if 0 <= token <= _UINT64_MAX else -1
        with self._lock:
            code = lib.omq_offset_map_put(self._map, key, token & _UINT64_MAX, is_new)
        _raise_unless_ok(code, f"put of offset {offset}")
        return bool(is_new[0])

    def put_columns(self, offsets: ReadableBuffer, tokens: ReadableBuffer) -> int:
        keys = _column(offsets, "ql", "int64_t", "offsets")
        values = _column(tokens, "QL", "uint64_t", "tokens")
        if len(keys) != len(values):
            raise ValueError(f"offset map: {len(keys)} offsets, {len(values)} tokens")
        added = ffi.new("size_t *")
        with self._lock:
            code = lib.omq_offset_map_put_columns(self._map, keys, values, len(keys), added)
        _raise_unless_ok(code, "put_columns")
        return int(added[0])

    def remove_columns(self, offsets: ReadableBuffer) -> int:
        keys = _column(offsets, "ql", "int64_t", "offsets")
        with self._lock:
            return int(lib.omq_offset_map_remove_columns(self._map, keys, len(keys)))

    def columns(self, start: int = 0, n: int = _INT64_MAX) -> tuple[memoryview, memoryview]:
        n = _at_least_one(n, "offset map", "columns")
        with self._lock:
            limit = min(n, lib.omq_offset_map_count(self._map))
            offsets = array("q", bytes(8 * limit))
            tokens = array("Q", bytes(8 * limit))
            copied = lib.omq_offset_map_read(
                self._map,
                _clamped(start),
                ffi.from_buffer("int64_t[]", offsets),
                ffi.from_buffer("uint64_t[]", tokens),
                limit,
            )
        return memoryview(offsets)[:copied], memoryview(tokens)[:copied]

    def get(self, offset: int) -> int | None:
        token = ffi.new("uint64_t *")
        with self._lock:
            found = lib.omq_offset_map_get(self._map, _clamped(offset), token)
        return int(token[0]) if found else None

    def remove(self, offset: int) -> bool:
        with self._lock:
            return bool(lib.omq_offset_map_remove(self._map, _clamped(offset)))

    def pop_first(self, n: int) -> list[tuple[int, int]]:
        n = _at_least_one(n, "offset map", "pop_first")
        with self._lock:
            limit = min(n, lib.omq_offset_map_count(self._map))
            entries = ffi.new("omq_entry[]", limit)
            count = lib.omq_offset_map_pop_first(self._map, entries, limit)
        return [(entries[i].offset, entries[i].token) for i in range(count)]

    def first(self) -> tuple[int, int] | None:
        entry = ffi.new("omq_entry *")
        with self._lock:
            return _entry(lib.omq_offset_map_first(self._map, entry), entry)

    def last(self) -> tuple[int, int] | None:
        entry = ffi.new("omq_entry *")
        with self._lock:
            return _entry(lib.omq_offset_map_last(self._map, entry), entry)

    def floor(self, offset: int) -> tuple[int, int] | None:
        entry = ffi.new("omq_entry *")
        with self._lock:
            return _entry(lib.omq_offset_map_floor(self._map, _clamped(offset), entry), entry)

    def ceiling(self, offset: int) -> tuple[int, int] | None:
        entry = ffi.new("omq_entry *")
        with self._lock:
            return _entry(lib.omq_offset_map_ceiling(self._map, _clamped(offset), entry), entry)

    def clear(self) -> None:
        with self._lock:
            lib.omq_offset_map_clear(self._map)

    def __len__(self) -> int:
        with self._lock:
            return int(lib.omq_offset_map_count(self._map))

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.get(offset) is not None

    def __iter__(self) -> Iterator[int]:
        offsets = ffi.new("int64_t[]", _CHUNK)
        start, count = 0, _CHUNK
        while count == _CHUNK:
            with self._lock:
                count = lib.omq_offset_map_read(self._map, start, offsets, ffi.NULL, _CHUNK)
            found = ffi.unpack(offsets, count)
            yield from found
            start = found[-1] + 1 if found else 0

    def _check(self) -> None:
        with self._lock:
            broken = lib.omq_offset_map_check(self._map)
        if broken:
            text = ffi.string(broken).decode()
            raise AssertionError(f"{text}: {len(self)} entries, {list(self)[:1000]}")


def _column(column: ReadableBuffer, formats: str, ctype: str, what: str) -> Any:
    """The buffer as a C array; the caller keeps the result while C reads it."""
    view = memoryview(column)
    size = ffi.sizeof(ctype)
    is_right = view.ndim == 1 and view.contiguous and view.itemsize == size
    if not is_right or view.format not in tuple(formats):
        raise TypeError(
            f"{what}: expected a contiguous buffer of {size}-byte integers "
            f"({'/'.join(formats)}), got format {view.format!r}, {view.itemsize} bytes an item"
        )
    return ffi.from_buffer(f"{ctype}[]", view)


@final
class ProcessQueue:
    """See interface.ProcessQueue."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._lock = threading.RLock()  # a finalizer of a dropped batch may come back in
        self._batches: dict[int, Any] = {}  # by slot, until C hands the slot back
        queue = lib.omq_process_queue_new()
        if not queue:
            raise MemoryError(f"{name}: no memory for a process queue")
        self._queue = ffi.gc(queue, lib.omq_process_queue_free)

    def __repr__(self) -> str:
        return f"ProcessQueue({self.name!r}, messages={self.message_count})"

    def put(
        self, messages: Iterable[tuple[int, object]], sizes: Sequence[int] | None = None
    ) -> bool:
        pairs = list(messages)
        offsets = array("q", [_clamped(offset) for offset, _ in pairs])
        lengths: Any = ffi.NULL
        if sizes is not None:
            if len(sizes) != len(pairs):
                raise ValueError(f"{self.name}: {len(pairs)} messages, {len(sizes)} sizes")
            bounded = [size if 0 <= size <= _INT32_MAX else _NO_SLOT for size in sizes]
            lengths = ffi.new("uint32_t[]", bounded)
        batch = [message for _, message in pairs]
        return self._put(batch, ffi.from_buffer("int64_t[]", offsets), lengths, len(pairs))

    def put_batch(self, batch: Batch) -> bool:
        offsets = _column(batch.offsets, "ql", "int64_t", "offsets")
        sizes = _column(batch.body_sizes, "IiLl", "uint32_t", "body_sizes")
        if len(offsets) != len(sizes):
            raise ValueError(f"{self.name}: {len(offsets)} offsets, {len(sizes)} sizes")
        return self._put(batch, offsets, sizes, len(offsets))

    def _put(self, batch: Any, offsets: Any, sizes: Any, count: int) -> bool:
        slot = ffi.new("uint32_t *")
        dispatch = ffi.new("bool *")
        with self._lock:
            code = lib.omq_process_queue_put_batch(
                self._queue, offsets, sizes, count, slot, dispatch
            )
            if slot[0] != _NO_SLOT:
                self._batches[slot[0]] = batch
        _raise_unless_ok(code, f"{self.name}: put")
        return bool(dispatch[0])

    def put_columns(
        self,
        offsets: ReadableBuffer,
        tokens: ReadableBuffer,
        sizes: ReadableBuffer | None = None,
    ) -> bool:
        offset_column = _column(offsets, "ql", "int64_t", "offsets")
        token_column = _column(tokens, "QL", "uint64_t", "tokens")
        size_column: Any = ffi.NULL
        count = size_count = len(offset_column)
        if sizes is not None:
            size_column = _column(sizes, "IiLl", "uint32_t", "sizes")
            size_count = len(size_column)
        if not len(token_column) == size_count == count:
            raise ValueError(
                f"{self.name}: {count} offsets, {len(token_column)} tokens, {size_count} sizes"
            )
        dispatch = ffi.new("bool *")
        with self._lock:
            code = lib.omq_process_queue_put_columns(
                self._queue, offset_column, token_column, size_column, count, dispatch
            )
        _raise_unless_ok(code, f"{self.name}: put_columns")
        return bool(dispatch[0])

    def take(self, n: int) -> list[Any]:
        taken: list[Any] = []
        for batch, first, count in self.take_segments(n):
            taken.extend(batch[i] for i in range(first, first + count))
        return taken

    def take_segments(self, n: int) -> list[Segment]:
        n = _at_least_one(n, self.name, "take")
        count = ffi.new("size_t *")
        with self._lock:
            limit = max(1, min(n, self.pending_count))
            segments = ffi.new("omq_segment[]", limit)
            code = lib.omq_process_queue_take_segments(self._queue, segments, limit, count)
            _raise_unless_ok(code, f"{self.name}: take")
            return [
                (self._batches[segments[i].slot], segments[i].first, segments[i].count)
                for i in range(count[0])
            ]

    def take_columns(self, n: int) -> tuple[memoryview, memoryview]:
        n = _at_least_one(n, self.name, "take_columns")
        taken = ffi.new("size_t *")
        with self._lock:
            limit = max(1, min(n, self.pending_count))
            offsets = array("q", bytes(8 * limit))
            tokens = array("Q", bytes(8 * limit))
            code = lib.omq_process_queue_take_columns(
                self._queue,
                ffi.from_buffer("int64_t[]", offsets),
                ffi.from_buffer("uint64_t[]", tokens),
                limit,
                taken,
            )
        _raise_unless_ok(code, f"{self.name}: take_columns")
        return memoryview(offsets)[: taken[0]], memoryview(tokens)[: taken[0]]

    def commit(self) -> int:
        with self._lock:
            next_offset = int(lib.omq_process_queue_commit(self._queue))
            self._forget()
        return next_offset

    def _forget(self) -> None:
        """Drop the batches that have no message left, one by one; see collect in ordermq.h."""
        slot = ffi.new("uint32_t *")
        while lib.omq_process_queue_collect(self._queue, slot):
            # A finalizer run by this may put again, and then may be given the slot.
            del self._batches[slot[0]]

    def _make_again_from(self, offset: int, operation: str) -> int:
        moved = ffi.new("size_t *")
        with self._lock:
            code = lib.omq_process_queue_make_again_from(self._queue, offset, moved)
        _raise_unless_ok(code, f"{self.name}: {operation}")
        return int(moved[0])

    def rollback(self) -> None:
        self._make_again_from(_INT64_MIN, "rollback")

    def make_again_from(self, offset: int) -> int:
        return self._make_again_from(_clamped(offset), "make_again_from")

    def make_again(self, offsets: Iterable[int]) -> int:
        wanted = array("q", [_clamped(offset) for offset in offsets])
        moved = ffi.new("size_t *")
        with self._lock:
            code = lib.omq_process_queue_make_again(
                self._queue, ffi.from_buffer("int64_t[]", wanted), len(wanted), moved
            )
        _raise_unless_ok(code, f"{self.name}: make_again")
        return int(moved[0])

    def remove(self, offsets: Iterable[int]) -> int:
        done = array("q", [_clamped(offset) for offset in offsets])
        watermark = ffi.new("int64_t *")
        with self._lock:
            code = lib.omq_process_queue_remove(
                self._queue, ffi.from_buffer("int64_t[]", done), len(done), watermark
            )
            self._forget()
        _raise_unless_ok(code, f"{self.name}: remove")
        return int(watermark[0])

    def clear(self) -> None:
        with self._lock:
            lib.omq_process_queue_clear(self._queue)
            self._forget()

    def reset(self, next_offset: int) -> None:
        with self._lock:
            code = lib.omq_process_queue_reset(
                self._queue, next_offset if 0 <= next_offset <= _INT64_MAX else -1
            )
            _raise_unless_ok(code, f"{self.name}: reset to {next_offset}")
            self._forget()

    def begin_dispatch(self) -> bool:
        return bool(lib.omq_process_queue_begin_dispatch(self._queue))

    def end_dispatch(self) -> None:
        lib.omq_process_queue_end_dispatch(self._queue)

    def _state(self) -> Any:
        state = ffi.new("omq_process_queue_state *")
        lib.omq_process_queue_read(self._queue, state)
        return state

    @property
    def message_count(self) -> int:
        state = self._state()
        return int(state.pending + state.consuming)

    @property
    def size_bytes(self) -> int:
        return int(self._state().size_bytes)

    @property
    def pending_count(self) -> int:
        return int(self._state().pending)

    @property
    def consuming_count(self) -> int:
        return int(self._state().consuming)

    @property
    def max_span(self) -> int:
        state = self._state()
        return int(state.last_pending - state.first_pending)

    @property
    def max_offset(self) -> int:
        return int(self._state().max_offset)

    @property
    def first_pending(self) -> int:
        return int(self._state().first_pending)

    @property
    def last_pending(self) -> int:
        return int(self._state().last_pending)

    @property
    def first_consuming(self) -> int:
        return int(self._state().first_consuming)

    @property
    def last_consuming(self) -> int:
        return int(self._state().last_consuming)

    @property
    def is_dispatched(self) -> bool:
        return bool(self._state().is_dispatched)

    @property
    def duplicates_ignored(self) -> int:
        return int(self._state().duplicates_ignored)

    @property
    def next_uncommitted(self) -> int:
        return int(self._state().floor)

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and bool(
            lib.omq_process_queue_is_pending(self._queue, _clamped(offset))
        )

    def _check(self) -> None:
        with self._lock:
            broken = lib.omq_process_queue_check(self._queue)
        if broken:
            state = self._state()
            fields = {name: getattr(state, name) for name, _ in ffi.typeof(state[0]).fields}
            raise AssertionError(f"{self!r}: {ffi.string(broken).decode()}: {fields}")


@final
class LockTable:
    """See interface.LockTable."""

    def __init__(self, lease_ms: int = 60_000, first_epoch: int = 1) -> None:
        if not (0 <= lease_ms <= _INT64_MAX and 1 <= first_epoch <= _INT64_MAX):
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
        _raise_unless_ok(code, f"try_lock_batch of group {group}")
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
        _raise_unless_ok(code, f"restore of {len(rows)} locks")

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


@final
class MessageIndex:
    """See interface.MessageIndex."""

    def __init__(self, columns: dict[str, Any], rows: int, last_offset: int) -> None:
        self._columns = columns
        self._rows = rows
        self.last_offset = last_offset

    def _column(self, name: str, code: Literal["q", "I"]) -> memoryview:
        size = self._rows * struct.calcsize(code)
        values = ffi.buffer(self._columns[name], size)  # keeps the memory alive
        return memoryview(values).cast(code).toreadonly()

    @property
    def offsets(self) -> memoryview:
        return self._column("offsets", "q")

    @property
    def positions(self) -> memoryview:
        return self._column("positions", "I")

    @property
    def body_positions(self) -> memoryview:
        return self._column("body_positions", "I")

    @property
    def body_sizes(self) -> memoryview:
        return self._column("body_sizes", "I")

    @property
    def property_positions(self) -> memoryview:
        return self._column("property_positions", "I")

    @property
    def property_sizes(self) -> memoryview:
        return self._column("property_sizes", "I")

    def __len__(self) -> int:
        return self._rows


_COLUMN_TYPES: Final = {
    "offsets": "int64_t[]",
    "positions": "uint32_t[]",
    "body_positions": "uint32_t[]",
    "body_sizes": "uint32_t[]",
    "property_positions": "uint32_t[]",
    "property_sizes": "uint32_t[]",
}


def index_messages(body: ReadableBuffer, tags: Sequence[bytes] = ()) -> MessageIndex:
    """See interface.IndexMessages."""
    if not all(isinstance(tag, bytes) for tag in tags):
        raise TypeError("tags: expected a sequence of bytes objects")
    data = ffi.from_buffer("uint8_t[]", body)
    tag_bytes = [ffi.from_buffer("uint8_t[]", tag) for tag in tags]  # alive during the call
    wanted = ffi.new("omq_tag[]", [(tag, len(tag)) for tag in tag_bytes])
    room = lib.omq_message_count(data, len(data))
    columns = {name: ffi.new(ctype, room) for name, ctype in _COLUMN_TYPES.items()}
    rows = ffi.new("size_t *")
    last_offset = ffi.new("int64_t *")
    fault = ffi.new("omq_message_fault *")
    code = lib.omq_message_index(
        data,
        len(data),
        wanted,
        len(wanted),
        ffi.new("omq_message_columns *", columns),
        rows,
        last_offset,
        fault,
    )
    if code == status.MALFORMED:
        raise status.malformed(fault.fault, fault.record, fault.position)
    _raise_unless_ok(code, f"index_messages of {len(data)} bytes")
    return MessageIndex(columns, rows[0], last_offset[0])
