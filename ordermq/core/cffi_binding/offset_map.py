"""The offset map through cffi."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, final

from ordermq.core._cffi import ffi, lib
from ordermq.core.cffi_binding.arguments import (
    INT64_MAX,
    UINT64_MAX,
    Lent,
    at_least_one,
    clamped,
    raise_unless_ok,
)
from ordermq.threads import Lock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_CHUNK: Final = 256  # entries per native call: few calls, and 2 KiB wasted by a short loop


def _entry(found: bool, entry: Any) -> tuple[int, int] | None:
    return (entry.offset, entry.token) if found else None


@final
class OffsetMap:
    """See contract.OffsetMap."""

    def __init__(self) -> None:
        # The C map has no mutex of its own, and cffi releases the GIL in every call.
        self._lock = Lock()
        # ffi.gc frees it with the last reference, also of a thread that is inside a call.
        map_ = lib.omq_offset_map_new()
        if not map_:
            raise MemoryError("no memory for an offset map")
        self._map = ffi.gc(map_, lib.omq_offset_map_free)

    def put(self, offset: int, token: int) -> bool:
        is_new = ffi.new("bool *")
        # C cannot see a token out of range; an offset of -1 makes it refuse the call.
        key = clamped(offset) if 0 <= token <= UINT64_MAX else -1
        with self._lock:
            code = lib.omq_offset_map_put(self._map, key, token & UINT64_MAX, is_new)
        raise_unless_ok(code, f"put of offset {offset}")
        return bool(is_new[0])

    def put_columns(self, offsets: ReadableBuffer, tokens: ReadableBuffer) -> int:
        with Lent() as lent:
            keys = lent.column(offsets, "ql", "int64_t", "offsets")
            values = lent.column(tokens, "QL", "uint64_t", "tokens")
            if len(keys) != len(values):
                raise ValueError(f"offset map: {len(keys)} offsets, {len(values)} tokens")
            added = ffi.new("size_t *")
            with self._lock:
                code = lib.omq_offset_map_put_columns(self._map, keys, values, len(keys), added)
            raise_unless_ok(code, "put_columns")
            return int(added[0])

    def remove_columns(self, offsets: ReadableBuffer) -> int:
        with Lent() as lent:
            keys = lent.column(offsets, "ql", "int64_t", "offsets")
            with self._lock:
                return int(lib.omq_offset_map_remove_columns(self._map, keys, len(keys)))

    def columns(self, start: int = 0, n: int = INT64_MAX) -> tuple[memoryview, memoryview]:
        n = at_least_one(n, "offset map", "columns")
        # Count and read under one lock: between them no other thread may add entries.
        with self._lock:
            limit = min(n, lib.omq_offset_map_count(self._map))
            offsets = array("q", bytes(8 * limit))
            tokens = array("Q", bytes(8 * limit))
            copied = lib.omq_offset_map_read(
                self._map,
                clamped(start),
                ffi.from_buffer("int64_t[]", offsets),
                ffi.from_buffer("uint64_t[]", tokens),
                limit,
            )
        return memoryview(offsets)[:copied], memoryview(tokens)[:copied]

    def get(self, offset: int) -> int | None:
        token = ffi.new("uint64_t *")
        with self._lock:
            found = lib.omq_offset_map_get(self._map, clamped(offset), token)
        return int(token[0]) if found else None

    def __setitem__(self, offset: int, token: int) -> None:
        self.put(offset, token)

    def __getitem__(self, offset: int) -> int:
        token = self.get(offset)
        if token is None:
            raise KeyError(offset)
        return token

    def __delitem__(self, offset: int) -> None:
        if not self.remove(offset):
            raise KeyError(offset)

    def remove(self, offset: int) -> bool:
        with self._lock:
            return bool(lib.omq_offset_map_remove(self._map, clamped(offset)))

    def pop_first(self, n: int) -> list[tuple[int, int]]:
        n = at_least_one(n, "offset map", "pop_first")
        with self._lock:
            limit = min(n, lib.omq_offset_map_count(self._map))
            # Room for what there is: the caller may have asked for any number.
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
            return _entry(lib.omq_offset_map_floor(self._map, clamped(offset), entry), entry)

    def ceiling(self, offset: int) -> tuple[int, int] | None:
        entry = ffi.new("omq_entry *")
        with self._lock:
            return _entry(lib.omq_offset_map_ceiling(self._map, clamped(offset), entry), entry)

    def clear(self) -> None:
        with self._lock:
            lib.omq_offset_map_clear(self._map)

    def __len__(self) -> int:
        with self._lock:
            return int(lib.omq_offset_map_count(self._map))

    def __contains__(self, offset: object) -> bool:
        # Another type is absent, as in a dict, and no error.
        return isinstance(offset, int) and self.get(offset) is not None

    def __iter__(self) -> Iterator[int]:
        offsets = ffi.new("int64_t[]", _CHUNK)
        start, count = 0, _CHUNK
        while count == _CHUNK:
            # Not locked while the caller runs: each portion starts behind the last offset seen.
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
