"""The lane map through cffi."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, final

from ordermq.core import status
from ordermq.core._cffi import ffi, lib
from ordermq.core.cffi_binding.arguments import (
    INT32_MAX,
    INT64_MAX,
    Lent,
    at_least_one,
    clamped,
    raise_unless_ok,
)
from ordermq.core.contract import LaneKey
from ordermq.threads import RLock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# From the system, so that a sender cannot guess it and choose keys that collide.
_random_seed = random.SystemRandom().getrandbits


def _bytes_of(key: LaneKey) -> bytes:
    """Return a key's bytes; a str is the same key as its UTF-8."""
    if isinstance(key, str):
        return key.encode()
    if not isinstance(key, bytes):
        raise TypeError(f"expected a key, str or bytes, got {type(key).__name__}")
    return key


class _Key:
    """An omq_key, with the bytes that it points at kept alive."""

    def __init__(self, key: LaneKey) -> None:
        name = _bytes_of(key)
        self._bytes = ffi.from_buffer("uint8_t[]", name)
        self.pointer = ffi.new("omq_key *", {"bytes": self._bytes, "size": len(name)})


@final
class LaneMap:
    """See contract.LaneMap."""

    def __init__(
        self,
        name: str = "",
        *,
        max_in_flight: int = 20,
        max_ahead: int = 2_000,
        keyless: Literal["barrier", "lane"] = "barrier",
    ) -> None:
        if not (1 <= max_in_flight <= INT32_MAX and 1 <= max_ahead <= INT64_MAX):
            raise status.failure(
                status.OUT_OF_RANGE,
                f"{name}: max_in_flight={max_in_flight}, max_ahead={max_ahead}",
            )
        if keyless not in ("barrier", "lane"):
            raise status.failure(status.OUT_OF_RANGE, f"{name}: keyless={keyless!r}")
        self.name = name
        self.max_in_flight = max_in_flight
        self.max_ahead = max_ahead
        # Reentrant: dropping a message may run a finalizer that calls this map again.
        self._lock = RLock()
        self._messages: dict[int, Any] = {}  # offset -> message, in a map of objects
        lanes = lib.omq_lane_map_new(
            max_in_flight, max_ahead, keyless == "barrier", _random_seed(64)
        )
        if not lanes:
            raise MemoryError(f"{name}: no memory for a lane map")
        self._map = ffi.gc(lanes, lib.omq_lane_map_free)

    def __repr__(self) -> str:
        return f"LaneMap({self.name!r}, messages={self.message_count})"

    def add(self, messages: Iterable[tuple[int, LaneKey | None, object]]) -> int:
        triples = [(clamped(offset), key, message) for offset, key, message in messages]
        count = len(triples)
        offsets = array("q", [offset for offset, _, _ in triples])
        names = [None if key is None else _bytes_of(key) for _, key, _ in triples]
        # `held` keeps the pointers valid during the call; C copies the keys that are new.
        held = [None if name is None else ffi.from_buffer("uint8_t[]", name) for name in names]
        keys = ffi.new("omq_key[]", count)
        for key, name, pointer in zip(keys, names, held, strict=True):
            if name is not None:
                key.bytes = pointer
                key.size = len(name)
        ignored, added = ffi.new("size_t *"), ffi.new("size_t *")
        with self._lock:
            code = lib.omq_lane_map_add(
                self._map, ffi.from_buffer("int64_t[]", offsets), keys, count, ignored, added
            )
            # Before raising: without memory a prefix was added.
            for offset, _, message in triples[ignored[0] : ignored[0] + added[0]]:
                self._messages[offset] = message
        raise_unless_ok(code, f"{self.name}: add")
        return int(added[0])

    def add_columns(
        self,
        offsets: ReadableBuffer,
        tokens: ReadableBuffer,
        keys: ReadableBuffer,
        key_positions: ReadableBuffer,
        key_sizes: ReadableBuffer,
    ) -> int:
        with Lent() as lent:
            offset_column = lent.column(offsets, "ql", "int64_t", "offsets")
            token_column = lent.column(tokens, "QL", "uint64_t", "tokens")
            positions = lent.column(key_positions, "IiLl", "uint32_t", "key_positions")
            sizes = lent.column(key_sizes, "IiLl", "uint32_t", "key_sizes")
            count = len(offset_column)
            if not count == len(token_column) == len(positions) == len(sizes):
                raise ValueError(
                    f"{self.name}: {count} offsets, {len(token_column)} tokens, "
                    f"{len(positions)} key positions, {len(sizes)} key sizes"
                )
            known = lent.bytes_of(keys)
            column = ffi.new("omq_key_column *", (known, len(known), positions, sizes))
            ignored, added = ffi.new("size_t *"), ffi.new("size_t *")
            with self._lock:
                code = lib.omq_lane_map_add_columns(
                    self._map, offset_column, token_column, column, count, ignored, added
                )
            raise_unless_ok(code, f"{self.name}: add_columns")
            return int(added[0])

    def take(self, n: int) -> list[tuple[int, Any]]:
        return self._objects(lib.omq_lane_map_take, (), n, "take")

    def divert(self, key: LaneKey, n: int) -> list[tuple[int, Any]]:
        name = _Key(key)
        return self._objects(lib.omq_lane_map_divert, (name.pointer,), n, "divert")

    def take_columns(self, n: int) -> tuple[memoryview, memoryview]:
        return self._columns(lib.omq_lane_map_take, (), n, "take_columns")

    def divert_columns(self, key: LaneKey, n: int) -> tuple[memoryview, memoryview]:
        name = _Key(key)
        return self._columns(lib.omq_lane_map_divert, (name.pointer,), n, "divert_columns")

    def _limit(self, n: int, operation: str) -> int:
        """Return n, or less where not so many can be in flight: the room to allocate."""
        n = at_least_one(n, self.name, operation)
        return max(1, min(n, self.message_count, self.max_in_flight))

    def _objects(
        self, start: Any, key: tuple[Any, ...], n: int, operation: str
    ) -> list[tuple[int, Any]]:
        taken = ffi.new("size_t *")
        with self._lock:
            limit = self._limit(n, operation)
            offsets = ffi.new("int64_t[]", limit)
            code = start(self._map, *key, offsets, ffi.NULL, limit, taken)
            raise_unless_ok(code, f"{self.name}: {operation}")
            return [(offset, self._messages[offset]) for offset in offsets[0 : taken[0]]]

    def _columns(
        self, start: Any, key: tuple[Any, ...], n: int, operation: str
    ) -> tuple[memoryview, memoryview]:
        taken = ffi.new("size_t *")
        with self._lock:
            limit = self._limit(n, operation)
            offsets = array("q", bytes(8 * limit))
            tokens = array("Q", bytes(8 * limit))
            code = start(
                self._map,
                *key,
                ffi.from_buffer("int64_t[]", offsets),
                ffi.from_buffer("uint64_t[]", tokens),
                limit,
                taken,
            )
        raise_unless_ok(code, f"{self.name}: {operation}")
        return memoryview(offsets)[: taken[0]], memoryview(tokens)[: taken[0]]

    def done(self, offset: int) -> bool:
        ended = clamped(offset)
        with self._lock:
            flight = lib.omq_lane_map_done(self._map, ended)
            # Not for an old flight: its message is dropped, and the offset may be buffered again.
            if flight == lib.OMQ_FLIGHT_OWN:
                self._messages.pop(ended, None)  # columns have none
        return bool(flight != lib.OMQ_FLIGHT_NONE)

    def done_columns(self, offsets: ReadableBuffer) -> int:
        with Lent() as lent:
            column = lent.column(offsets, "ql", "int64_t", "offsets")
            ended = ffi.new("size_t *")
            with self._lock:
                code = lib.omq_lane_map_done_columns(self._map, column, len(column), ended)
            raise_unless_ok(code, f"{self.name}: done_columns")
            return int(ended[0])

    # The message stays in _messages: it waits in its lane again.
    def failed(self, offset: int) -> bool:
        with self._lock:
            flight = lib.omq_lane_map_failed(self._map, clamped(offset))
        return bool(flight != lib.OMQ_FLIGHT_NONE)

    # No lock for parking: it touches C only, whose mutex makes each call atomic.
    def park(self, key: LaneKey) -> bool:
        name, changed = _Key(key), ffi.new("bool *")
        code = lib.omq_lane_map_park(self._map, name.pointer, changed)
        raise_unless_ok(code, f"{self.name}: park")
        return bool(changed[0])

    def unpark(self, key: LaneKey) -> bool:
        name = _Key(key)
        return bool(lib.omq_lane_map_unpark(self._map, name.pointer))

    def is_parked(self, key: LaneKey) -> bool:
        name = _Key(key)
        return bool(lib.omq_lane_map_is_parked(self._map, name.pointer))

    def reset(self, next_offset: int) -> None:
        with self._lock:
            # C refuses -1; cffi would raise OverflowError, which the other cores do not.
            code = lib.omq_lane_map_reset(
                self._map, next_offset if 0 <= next_offset <= INT64_MAX else -1
            )
            raise_unless_ok(code, f"{self.name}: reset to {next_offset}")
            dropped, self._messages = self._messages, {}
        # Outside the lock, for the messages' finalizers run here.
        del dropped

    def _state(self) -> Any:
        state = ffi.new("omq_lane_map_state *")
        lib.omq_lane_map_read(self._map, state)
        return state

    @property
    def watermark(self) -> int:
        return int(self._state().watermark)

    @property
    def next_offset(self) -> int:
        return int(self._state().next_offset)

    @property
    def is_full(self) -> bool:
        return bool(self._state().is_full)

    @property
    def message_count(self) -> int:
        return int(self._state().messages)

    @property
    def in_flight_count(self) -> int:
        return int(self._state().in_flight)

    @property
    def old_flight_count(self) -> int:
        return int(self._state().old_flights)

    @property
    def ready_count(self) -> int:
        return int(self._state().ready)

    @property
    def key_count(self) -> int:
        return int(self._state().keys)

    @property
    def parked_count(self) -> int:
        return int(self._state().parked)

    @property
    def duplicates_ignored(self) -> int:
        return int(self._state().duplicates_ignored)

    def _check(self) -> None:
        with self._lock:
            broken = lib.omq_lane_map_check(self._map)
            kept, state = len(self._messages), self._state()
        if broken:
            fields = {name: getattr(state, name) for name, _ in ffi.typeof(state[0]).fields}
            raise AssertionError(f"{self!r}: {ffi.string(broken).decode()}: {fields}")
        assert kept in (0, state.messages), f"{self!r}: {kept} objects kept"
