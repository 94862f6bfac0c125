"""The lane map as a dict of messages, searched for the next one that may start."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ordermq.core import status
from ordermq.core.contract import LaneKey
from ordermq.core.reference.arguments import column_of, out_of_range
from ordermq.core.status import NO_KEY
from ordermq.threads import RLock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Flight = Literal["taken", "diverted"]


@dataclass
class _Message:
    key: bytes | None
    content: Any  # the message, or its token
    flight: Flight | None = None


def name_of(key: LaneKey) -> bytes:
    """Return a key's bytes; a str is the same key as its UTF-8."""
    if isinstance(key, str):
        return key.encode()
    if not isinstance(key, bytes):
        raise TypeError(f"expected a key, str or bytes, got {type(key).__name__}")
    return key


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
        if not (1 <= max_in_flight < 2**31 and 1 <= max_ahead < 2**63):
            raise out_of_range(f"{name}: max_in_flight={max_in_flight}, max_ahead={max_ahead}")
        if keyless not in ("barrier", "lane"):
            raise out_of_range(f"{name}: keyless={keyless!r}")
        self.name = name
        self.max_in_flight = max_in_flight
        self.max_ahead = max_ahead
        self._has_barriers = keyless == "barrier"
        # Reentrant, because methods call others that take it, too.
        self._lock = RLock()
        self._messages: dict[int, _Message] = {}  # by offset, ascending: delivered, not done
        self._old: dict[int, bytes | None] = {}  # offset -> key of flights from before a reset
        self._parked: set[bytes] = set()
        self._last_diverted: dict[bytes, int] = {}  # of keys with a message in flight
        self._shape: Literal["objects", "columns"] | None = None
        self._next_offset = 0
        self._duplicates_ignored = 0

    def __repr__(self) -> str:
        return f"LaneMap({self.name!r}, messages={self.message_count})"

    def add(self, messages: Iterable[tuple[int, LaneKey | None, object]]) -> int:
        triples = [(offset, key, message) for offset, key, message in messages]
        keys = [None if key is None else name_of(key) for _, key, _ in triples]
        contents = [message for _, _, message in triples]
        return self._add("objects", [offset for offset, _, _ in triples], keys, contents)

    def add_columns(
        self,
        offsets: ReadableBuffer,
        tokens: ReadableBuffer,
        keys: ReadableBuffer,
        key_positions: ReadableBuffer,
        key_sizes: ReadableBuffer,
    ) -> int:
        offset_column = column_of(offsets, "ql", "offsets")
        token_column = column_of(tokens, "QL", "tokens")
        starts = column_of(key_positions, "IiLl", "key_positions")
        sizes = column_of(key_sizes, "IiLl", "key_sizes")
        count = len(offset_column)
        if not count == len(token_column) == len(starts) == len(sizes):
            raise ValueError(
                f"{self.name}: {count} offsets, {len(token_column)} tokens, "
                f"{len(starts)} key positions, {len(sizes)} key sizes"
            )
        known = memoryview(keys).cast("B").tobytes()
        names: list[bytes | None] = []
        for start, size in zip(starts, sizes, strict=True):
            # Modulo 2**32: the columns may be int32, where NO_KEY is -1.
            if size % 2**32 == NO_KEY:
                names.append(None)
            elif start % 2**32 + size % 2**32 > len(known):
                raise out_of_range(f"{self.name}: add")
            else:
                names.append(known[start : start + size])
        return self._add("columns", offset_column, names, token_column)

    def _add(
        self,
        shape: Literal["objects", "columns"],
        offsets: Sequence[int],
        keys: Sequence[bytes | None],
        contents: Sequence[Any],
    ) -> int:
        if not all(0 <= offset <= status.MAX_OFFSET for offset in offsets):
            raise out_of_range(f"{self.name}: add")
        if any(later <= offset for offset, later in itertools.pairwise(offsets)):
            raise out_of_range(f"{self.name}: add")
        with self._lock:
            self._need_shape(shape, "add")
            self._shape = shape
            added = 0
            for offset, key, content in zip(offsets, keys, contents, strict=True):
                # Delivered before: a pull was repeated. Not an error.
                if offset < self._next_offset:
                    self._duplicates_ignored += 1
                    continue
                self._messages[offset] = _Message(key, content)
                self._next_offset = offset + 1
                added += 1
            return added

    def _need_shape(self, shape: Literal["objects", "columns"], operation: str) -> None:
        if self._shape not in (None, shape):
            raise status.failure(status.WRONG_SHAPE, f"{self.name}: {operation}")

    def _in_flight(self, key: bytes | None) -> bool:
        """Return whether a message of the key is in flight, old flights included."""
        is_own = any(m.flight and m.key == key for m in self._messages.values())
        return is_own or key in self._old.values()

    def _is_barrier(self, key: bytes | None) -> bool:
        return self._has_barriers and key is None

    def _heads(self) -> list[int]:
        """Return the first message of each key without a flight, if it may be taken; ascending."""
        held = {message.key for message in self._messages.values() if message.flight}
        # A key with an old flight waits: its listener may still run, and order is per key.
        held |= {*self._old.values(), *self._parked}
        heads = []
        for offset, message in self._messages.items():
            if message.key not in held:
                held.add(message.key)
                # A message delivered again at the offset of an old flight waits for it, or done()
                # could not tell the two apart.
                if offset not in self._old:
                    heads.append(offset)
        return heads

    def _may_fly(self, offset: int) -> bool:
        """Return whether the limits of the whole queue let a message start."""
        if self.in_flight_count >= self.max_in_flight:
            return False
        if offset - self.watermark > self.max_ahead:
            return False
        # Nothing runs beside a barrier, and nothing behind a waiting one starts.
        if self._has_barriers and self._in_flight(None):
            return False
        barriers = [o for o, message in self._messages.items() if self._is_barrier(message.key)]
        return not barriers or offset <= barriers[0]

    def _next_to_take(self) -> int | None:
        heads = self._heads()
        if not heads or not self._may_fly(heads[0]):
            return None
        if self._is_barrier(self._messages[heads[0]].key):
            # It waits for all earlier messages, and for old flights.
            is_alone = heads[0] == self.watermark and self.in_flight_count == 0
            return heads[0] if is_alone else None
        return heads[0]

    def _take(
        self, shape: Literal["objects", "columns"], n: int, operation: str
    ) -> list[tuple[int, Any]]:
        if n < 1:
            raise out_of_range(f"{self.name}: {operation} of {n}")
        with self._lock:
            self._need_shape(shape, operation)
            taken: list[tuple[int, Any]] = []
            # Searched anew each time: what has just started decides what may start next.
            while len(taken) < n and (offset := self._next_to_take()) is not None:
                taken.append(self._start(offset, "taken"))
            return taken

    def _start(self, offset: int, flight: Flight) -> tuple[int, Any]:
        self._messages[offset].flight = flight
        return offset, self._messages[offset].content

    def take(self, n: int) -> list[tuple[int, Any]]:
        return self._take("objects", n, "take")

    def take_columns(self, n: int) -> tuple[memoryview, memoryview]:
        return columns_of(self._take("columns", n, "take_columns"))

    def _next_to_divert(self, key: bytes) -> int | None:
        own = {o: message for o, message in self._messages.items() if message.key == key}
        waiting = [offset for offset, message in own.items() if not message.flight]
        is_running = any(message.flight == "taken" for message in own.values())
        # A taken message of the key may fail, and would then have been overtaken by this one.
        if key not in self._parked or not waiting or is_running or key in self._old.values():
            return None
        # A diverted message that failed waits below the last diverted one, which has overtaken it:
        # no more are diverted until all flights of the key have ended.
        if waiting[0] in self._old or waiting[0] <= self._last_diverted.get(key, -1):
            return None
        return waiting[0] if self._may_fly(waiting[0]) else None

    def _divert(
        self, shape: Literal["objects", "columns"], key: LaneKey, n: int, operation: str
    ) -> list[tuple[int, Any]]:
        if n < 1:
            raise out_of_range(f"{self.name}: {operation} of {n}")
        name = name_of(key)
        with self._lock:
            self._need_shape(shape, operation)
            taken: list[tuple[int, Any]] = []
            while len(taken) < n and (offset := self._next_to_divert(name)) is not None:
                taken.append(self._start(offset, "diverted"))
                self._last_diverted[name] = offset
            return taken

    def divert(self, key: LaneKey, n: int) -> list[tuple[int, Any]]:
        return self._divert("objects", key, n, "divert")

    def divert_columns(self, key: LaneKey, n: int) -> tuple[memoryview, memoryview]:
        return columns_of(self._divert("columns", key, n, "divert_columns"))

    def _end(self, offset: int, is_done: bool) -> bool:
        with self._lock:
            # Old flights first: until they end, their offsets cannot be in flight again.
            if offset in self._old:
                del self._old[offset]
                return True
            message = self._messages.get(offset)
            if message is None or not message.flight:
                return False
            # A failed message keeps its place, so it is again the first of its key.
            message.flight = None
            if is_done:
                del self._messages[offset]
            if message.key is not None and not self._in_flight(message.key):
                self._last_diverted.pop(message.key, None)
            return True

    def done(self, offset: int) -> bool:
        return self._end(offset, is_done=True)

    def done_columns(self, offsets: ReadableBuffer) -> int:
        with self._lock:
            self._need_shape("columns", "done_columns")
            return sum(self.done(offset) for offset in column_of(offsets, "ql", "offsets"))

    def failed(self, offset: int) -> bool:
        return self._end(offset, is_done=False)

    def park(self, key: LaneKey) -> bool:
        name = name_of(key)
        with self._lock:
            is_new = name not in self._parked
            self._parked.add(name)
            return is_new

    def unpark(self, key: LaneKey) -> bool:
        name = name_of(key)
        with self._lock:
            was_parked = name in self._parked
            self._parked.discard(name)
            return was_parked

    def is_parked(self, key: LaneKey) -> bool:
        return name_of(key) in self._parked

    def reset(self, next_offset: int) -> None:
        if not 0 <= next_offset <= status.MAX_OFFSET + 1:
            raise out_of_range(f"{self.name}: reset to {next_offset}")
        with self._lock:
            # Parked keys stay: their earlier messages may be in a parking topic already.
            self._old |= {o: m.key for o, m in self._messages.items() if m.flight}
            self._messages.clear()
            self._last_diverted.clear()
            self._next_offset = next_offset

    @property
    def watermark(self) -> int:
        with self._lock:
            return min(self._messages, default=self._next_offset)

    @property
    def next_offset(self) -> int:
        return self._next_offset

    @property
    def is_full(self) -> bool:
        with self._lock:
            # The span, not the count: one slow key holds the watermark while the others finish.
            return self._next_offset - 1 - self.watermark >= self.max_ahead

    @property
    def message_count(self) -> int:
        return len(self._messages)

    @property
    def in_flight_count(self) -> int:
        with self._lock:
            return sum(bool(m.flight) for m in self._messages.values()) + len(self._old)

    @property
    def old_flight_count(self) -> int:
        return len(self._old)

    @property
    def ready_count(self) -> int:
        with self._lock:
            return sum(not self._is_barrier(self._messages[o].key) for o in self._heads())

    @property
    def key_count(self) -> int:
        with self._lock:
            known = {message.key for message in self._messages.values()}
            return len((known | set(self._old.values()) | self._parked) - {None})

    @property
    def parked_count(self) -> int:
        return len(self._parked)

    @property
    def duplicates_ignored(self) -> int:
        return self._duplicates_ignored

    def _check(self) -> None:
        with self._lock:
            state = f"{self.name}: messages={self._messages} old={self._old}"
            offsets = list(self._messages)
            assert offsets == sorted(offsets), state
            assert max(offsets, default=-1) < self._next_offset, state
            assert self.in_flight_count <= self.max_in_flight, state
            flights = [m for m in self._messages.values() if m.flight]
            keys = [*(m.key for m in flights), *self._old.values()]
            # Several diverted messages of a parked key may fly; a taken one is alone.
            assert all(keys.count(m.key) == 1 for m in flights if m.flight == "taken"), state


def columns_of(taken: list[tuple[int, Any]]) -> tuple[memoryview, memoryview]:
    offsets = array("q", [offset for offset, _ in taken])
    return memoryview(offsets), memoryview(array("Q", [token for _, token in taken]))
