"""The core in plain dicts and sorted(): the oracle the native cores are tested against.

Written from the semantics, never optimised. Contracts: interface.py.
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ordermq.core import status
from ordermq.core.interface import Batch, LockEntry, Segment

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_MAX_TOKEN = 2**64 - 1
_MAX_SIZE = 2**31 - 1


def _out_of_range(where: str) -> Exception:
    return status.failure(status.OUT_OF_RANGE, where)


class OffsetMap:
    """See interface.OffsetMap."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}
        self._lock = threading.RLock()

    def put(self, offset: int, token: int) -> bool:
        if not 0 <= offset <= status.MAX_OFFSET or not 0 <= token <= _MAX_TOKEN:
            raise _out_of_range(f"put of offset {offset}")
        with self._lock:
            is_new = offset not in self._tokens
            self._tokens[offset] = token
            return is_new

    def put_columns(self, offsets: ReadableBuffer, tokens: ReadableBuffer) -> int:
        keys = _column(offsets, "ql", "offsets")
        values = _column(tokens, "QL", "tokens")
        if len(keys) != len(values):
            raise ValueError(f"offset map: {len(keys)} offsets, {len(values)} tokens")
        if not all(0 <= key <= status.MAX_OFFSET for key in keys):
            raise _out_of_range("put_columns")
        with self._lock:
            before = len(self._tokens)
            self._tokens.update(zip(keys, values, strict=True))
            return len(self._tokens) - before

    def remove_columns(self, offsets: ReadableBuffer) -> int:
        with self._lock:
            return sum(self.remove(key) for key in _column(offsets, "ql", "offsets"))

    def columns(self, start: int = 0, n: int = _MAX_TOKEN) -> tuple[memoryview, memoryview]:
        if n < 1:
            raise _out_of_range(f"columns of {n}")
        with self._lock:
            keys = [key for key in sorted(self._tokens) if key >= start][:n]
            values = [self._tokens[key] for key in keys]
        return memoryview(array("q", keys)), memoryview(array("Q", values))

    def get(self, offset: int) -> int | None:
        return self._tokens.get(offset)

    def remove(self, offset: int) -> bool:
        return self._tokens.pop(offset, None) is not None

    def pop_first(self, n: int) -> list[tuple[int, int]]:
        if n < 1:
            raise _out_of_range(f"pop_first of {n}")
        with self._lock:
            return [(o, self._tokens.pop(o)) for o in sorted(self._tokens)[:n]]

    def first(self) -> tuple[int, int] | None:
        return self.ceiling(0)

    def last(self) -> tuple[int, int] | None:
        return self.floor(status.MAX_OFFSET)

    def floor(self, offset: int) -> tuple[int, int] | None:
        with self._lock:
            found = max((o for o in self._tokens if o <= offset), default=None)
            return None if found is None else (found, self._tokens[found])

    def ceiling(self, offset: int) -> tuple[int, int] | None:
        with self._lock:
            found = min((o for o in self._tokens if o >= offset), default=None)
            return None if found is None else (found, self._tokens[found])

    def clear(self) -> None:
        self._tokens.clear()

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, offset: object) -> bool:
        return offset in self._tokens

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._tokens))

    def _check(self) -> None:
        assert all(0 <= offset <= status.MAX_OFFSET for offset in self._tokens), self._tokens


class _Entry(NamedTuple):
    put_number: int  # of the put that brought it; 0 in the columns shape
    batch: Any  # what that put brought; None in the columns shape
    token: int  # index in the batch, or the caller's token
    size: int  # bytes, as told at put


class ProcessQueue:
    """See interface.ProcessQueue."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._lock = threading.RLock()
        self._pending: dict[int, _Entry] = {}
        self._consuming: dict[int, _Entry] = {}
        self._shape: Literal["batches", "columns"] | None = None
        self._puts = 0
        self._max_offset = -1
        self._floor = 0
        self._is_dispatched = False
        self._duplicates_ignored = 0

    def __repr__(self) -> str:
        return f"ProcessQueue({self.name!r}, messages={self.message_count})"

    def put(
        self, messages: Iterable[tuple[int, object]], sizes: Sequence[int] | None = None
    ) -> bool:
        pairs = list(messages)
        batch = [message for _, message in pairs]
        tokens = range(len(pairs))
        return self._put("batches", [offset for offset, _ in pairs], tokens, sizes, batch)

    def put_batch(self, batch: Batch) -> bool:
        offsets = _column(batch.offsets, "ql", "offsets")
        sizes = _column(batch.body_sizes, "IiLl", "body_sizes")
        return self._put("batches", offsets, range(len(offsets)), sizes, batch)

    def put_columns(
        self,
        offsets: ReadableBuffer,
        tokens: ReadableBuffer,
        sizes: ReadableBuffer | None = None,
    ) -> bool:
        return self._put(
            "columns",
            _column(offsets, "ql", "offsets"),
            _column(tokens, "QL", "tokens"),
            None if sizes is None else _column(sizes, "IiLl", "sizes"),
            None,
        )

    def _put(
        self,
        shape: Literal["batches", "columns"],
        offsets: Sequence[int],
        tokens: Sequence[int],
        sizes: Sequence[int] | None,
        batch: object,
    ) -> bool:
        if sizes is None:
            sizes = [0] * len(offsets)
        if not len(offsets) == len(tokens) == len(sizes):
            raise ValueError(
                f"{self.name}: {len(offsets)} offsets, {len(tokens)} tokens, {len(sizes)} sizes"
            )
        if not all(0 <= o <= status.MAX_OFFSET for o in offsets):
            raise _out_of_range(f"{self.name}: put")
        if not all(0 <= size <= _MAX_SIZE for size in sizes):
            raise _out_of_range(f"{self.name}: put")
        with self._lock:
            self._need_shape(shape, "put")
            self._shape = shape
            self._puts += 1
            for offset, token, size in zip(offsets, tokens, sizes, strict=True):
                known = offset in self._pending or offset in self._consuming
                if known or offset < self._floor:
                    self._duplicates_ignored += 1
                    continue
                number = self._puts if shape == "batches" else 0
                self._pending[offset] = _Entry(number, batch, token, size)
                self._max_offset = max(self._max_offset, offset)
            return self.begin_dispatch()

    def take(self, n: int) -> list[Any]:
        return [entry.batch[entry.token] for _, entry in self._take("batches", n)]

    def take_segments(self, n: int) -> list[Segment]:
        segments: list[Segment] = []
        before: _Entry | None = None
        for _, entry in self._take("batches", n):
            if before and entry[:3] == (before.put_number, before.batch, before.token + 1):
                batch, first, count = segments[-1]
                segments[-1] = (batch, first, count + 1)
            else:
                segments.append((entry.batch, entry.token, 1))
            before = entry
        return segments

    def take_columns(self, n: int) -> tuple[memoryview, memoryview]:
        taken = self._take("columns", n)
        offsets = array("q", [offset for offset, _ in taken])
        return memoryview(offsets), memoryview(array("Q", [entry.token for _, entry in taken]))

    def _take(self, shape: Literal["batches", "columns"], n: int) -> list[tuple[int, _Entry]]:
        if n < 1:
            raise _out_of_range(f"{self.name}: take of {n}")
        with self._lock:
            self._need_shape(shape, "take")
            taken = [(o, self._pending.pop(o)) for o in sorted(self._pending)[:n]]
            self._consuming.update(taken)
            if not taken:
                self._is_dispatched = False
            return taken

    def _need_shape(self, shape: Literal["batches", "columns"], operation: str) -> None:
        if self._shape not in (None, shape):
            raise status.failure(status.WRONG_SHAPE, f"{self.name}: {operation}")

    def commit(self) -> int:
        with self._lock:
            if not self._consuming:
                return -1
            next_offset = max(self._consuming) + 1
            self._consuming.clear()
            self._floor = max(self._floor, next_offset)
            return next_offset

    def rollback(self) -> None:
        with self._lock:
            self._pending.update(self._consuming)
            self._consuming.clear()

    def make_again(self, offsets: Iterable[int]) -> int:
        wanted = list(offsets)
        with self._lock:
            found = set(wanted) & set(self._consuming)
            for offset in found:
                self._pending[offset] = self._consuming.pop(offset)
            return len(found)

    def make_again_from(self, offset: int) -> int:
        with self._lock:
            return self.make_again([o for o in self._consuming if o >= offset])

    def remove(self, offsets: Iterable[int]) -> int:
        wanted = list(offsets)
        with self._lock:
            if not self._pending and not self._consuming:
                return -1
            for offset in wanted:
                self._pending.pop(offset, None)
                self._consuming.pop(offset, None)
            left = [*self._pending, *self._consuming]
            watermark = min(left, default=self._max_offset + 1)
            self._floor = max(self._floor, watermark)
            return watermark

    def clear(self) -> None:
        with self._lock:
            self._pending.clear()
            self._consuming.clear()
            self._max_offset = -1

    def reset(self, next_offset: int) -> None:
        if not 0 <= next_offset <= status.MAX_OFFSET + 1:
            raise _out_of_range(f"{self.name}: reset to {next_offset}")
        with self._lock:
            self.clear()
            self._floor = next_offset

    def begin_dispatch(self) -> bool:
        with self._lock:
            begins = bool(self._pending) and not self._is_dispatched
            self._is_dispatched = self._is_dispatched or begins
            return begins

    def end_dispatch(self) -> None:
        self._is_dispatched = False

    @property
    def message_count(self) -> int:
        return len(self._pending) + len(self._consuming)

    @property
    def size_bytes(self) -> int:
        with self._lock:
            entries = [*self._pending.values(), *self._consuming.values()]
            return sum(entry.size for entry in entries)

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def consuming_count(self) -> int:
        return len(self._consuming)

    @property
    def max_span(self) -> int:
        return self.last_pending - self.first_pending

    @property
    def max_offset(self) -> int:
        return self._max_offset

    @property
    def first_pending(self) -> int:
        with self._lock:
            return min(self._pending, default=-1)

    @property
    def last_pending(self) -> int:
        with self._lock:
            return max(self._pending, default=-1)

    @property
    def first_consuming(self) -> int:
        with self._lock:
            return min(self._consuming, default=-1)

    @property
    def last_consuming(self) -> int:
        with self._lock:
            return max(self._consuming, default=-1)

    @property
    def is_dispatched(self) -> bool:
        return self._is_dispatched

    @property
    def duplicates_ignored(self) -> int:
        return self._duplicates_ignored

    @property
    def next_uncommitted(self) -> int:
        return self._floor

    def __contains__(self, offset: object) -> bool:
        return offset in self._pending

    def _check(self) -> None:
        with self._lock:
            state = f"{self.name}: P={self._pending} C={self._consuming} max={self._max_offset}"
            assert not set(self._pending) & set(self._consuming), state
            assert max([*self._pending, *self._consuming], default=-1) <= self._max_offset, state


class LockTable:
    """See interface.LockTable."""

    def __init__(self, lease_ms: int = 60_000, first_epoch: int = 1) -> None:
        if lease_ms < 0 or first_epoch < 1:
            raise _out_of_range(f"lock table: lease_ms={lease_ms}, first_epoch={first_epoch}")
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
                raise _out_of_range("restore: epoch")
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


class MessageIndex:
    """See interface.MessageIndex."""

    def __init__(self, rows: list[tuple[int, int, int, int, int, int]], last_offset: int) -> None:
        columns = [
            memoryview(array(code, [row[i] for row in rows])).toreadonly()
            for i, code in enumerate("qIIIII")
        ]
        self.offsets, self.positions, self.body_positions, self.body_sizes = columns[:4]
        self.property_positions, self.property_sizes = columns[4:]
        self.last_offset = last_offset

    def __len__(self) -> int:
        return len(self.offsets)


def index_messages(body: ReadableBuffer, tags: Sequence[bytes] = ()) -> MessageIndex:
    """See interface.IndexMessages."""
    data = bytes(body)
    wanted = _tags(tags)
    rows: list[tuple[int, int, int, int, int, int]] = []
    position = record = 0
    last_offset = -1
    while position < len(data):
        size, row = _index_record(data, position, record)
        last_offset = row[0]
        if not wanted or _tag(data[row[4] : row[4] + row[5]]) in wanted:
            rows.append(row)
        position += size
        record += 1
    return MessageIndex(rows, last_offset)


def _tags(tags: Sequence[bytes]) -> set[bytes]:
    if not all(isinstance(tag, bytes) for tag in tags):
        raise TypeError("tags: expected a sequence of bytes objects")
    return set(tags)


def _index_record(
    data: bytes, start: int, record: int
) -> tuple[int, tuple[int, int, int, int, int, int]]:
    """Return (record size, row) of the record at `start` (protocol 2.1)."""

    def need(holds: bool, fault: int, at: int) -> None:
        if not holds:
            raise status.malformed(fault, record, at)

    need(len(data) - start >= 4, status.TRAILING, start)
    (size,) = struct.unpack_from(">i", data, start)
    need(size >= 91, status.RECORD_SIZE, start)
    need(size <= len(data) - start, status.TRUNCATED, start)
    end = start + size
    (magic,) = struct.unpack_from(">I", data, start + 4)
    need(magic in (0xDAA320A7, 0xDAA320AB), status.MAGIC, start + 4)
    (offset,) = struct.unpack_from(">q", data, start + 20)
    need(0 <= offset <= status.MAX_OFFSET, status.QUEUE_OFFSET, start + 20)
    (flags,) = struct.unpack_from(">i", data, start + 36)
    body = start + 88 + (12 if flags & 0x10 else 0) + (12 if flags & 0x20 else 0)
    need(body <= end, status.FIXED_PART, start + 36)
    (body_size,) = struct.unpack_from(">i", data, body - 4)
    need(0 <= body_size <= end - body, status.BODY_SIZE, body - 4)
    at = body + body_size
    code = ">B" if magic == 0xDAA320A7 else ">h"
    need(at + struct.calcsize(code) <= end, status.TOPIC_SIZE, at)
    (topic_size,) = struct.unpack_from(code, data, at)
    topic = at + struct.calcsize(code)
    is_in_range = 0 <= topic_size <= (127 if code == ">B" else 32767)
    need(is_in_range and topic_size <= end - topic, status.TOPIC_SIZE, at)
    at = topic + topic_size
    need(at + 2 <= end, status.PROPERTY_SIZE, at)
    (property_size,) = struct.unpack_from(">h", data, at)
    need(0 <= property_size <= end - at - 2, status.PROPERTY_SIZE, at)
    need(at + 2 + property_size == end, status.RECORD_END, at + 2 + property_size)
    return size, (offset, start, body, body_size, at + 2, property_size)


def _tag(properties: bytes) -> bytes | None:
    """Return the value of TAGS; empty names and values do not count, the last entry wins."""
    found = None
    for piece in properties.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        if name == b"TAGS" and value:
            found = value
    return found


def _column(column: ReadableBuffer, formats: str, what: str) -> list[int]:
    view = memoryview(column)
    size = 4 if formats == "IiLl" else 8
    is_right = view.ndim == 1 and view.contiguous and view.itemsize == size
    if not is_right or view.format not in tuple(formats):
        raise TypeError(
            f"{what}: expected a contiguous buffer of {size}-byte integers ({'/'.join(formats)}), "
            f"got format {view.format!r}, {view.itemsize} bytes an item"
        )
    return view.tolist()
