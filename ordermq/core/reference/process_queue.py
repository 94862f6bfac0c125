"""The process queue as two dicts, pending and consuming."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ordermq.core import status
from ordermq.core.contract import Batch, Segment
from ordermq.core.reference.arguments import MAX_SIZE, column_of, out_of_range
from ordermq.threads import RLock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Entry(NamedTuple):
    put_number: int  # of the put that brought it; 0 in a queue of columns
    batch: Any  # what that put brought; None in a queue of columns
    token: int  # index in the batch, or the caller's token
    size: int  # bytes, as told at put


class ProcessQueue:
    """See contract.ProcessQueue."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        # Reentrant, because methods call others that take it, too.
        self._lock = RLock()
        self._pending: dict[int, _Entry] = {}
        self._consuming: dict[int, _Entry] = {}
        self._shape: Literal["batches", "columns"] | None = None  # what the first put chose
        self._puts = 0
        self._max_offset = -1
        # Offsets below it were committed. It outlives clear(): a pull that was under way at a
        # commit may bring them once more, and they must not be consumed twice.
        self._floor = 0
        self._is_dispatched = False
        self._duplicates_ignored = 0
        self._next_pull_offset = 0
        self._queue_end = 0

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
        offsets = column_of(batch.offsets, "ql", "offsets")
        sizes = column_of(batch.body_sizes, "IiLl", "body_sizes")
        return self._put("batches", offsets, range(len(offsets)), sizes, batch)

    def put_columns(
        self,
        offsets: ReadableBuffer,
        tokens: ReadableBuffer,
        sizes: ReadableBuffer | None = None,
    ) -> bool:
        return self._put(
            "columns",
            column_of(offsets, "ql", "offsets"),
            column_of(tokens, "QL", "tokens"),
            None if sizes is None else column_of(sizes, "IiLl", "sizes"),
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
        # All arguments before any change: a bad one puts nothing.
        if not all(0 <= o <= status.MAX_OFFSET for o in offsets):
            raise out_of_range(f"{self.name}: put")
        if not all(0 <= size <= MAX_SIZE for size in sizes):
            raise out_of_range(f"{self.name}: put")
        with self._lock:
            self._need_shape(shape, "put")
            self._shape = shape
            self._puts += 1
            for offset, token, size in zip(offsets, tokens, sizes, strict=True):
                known = offset in self._pending or offset in self._consuming
                if known or offset < self._floor:
                    self._duplicates_ignored += 1
                    continue
                # Two puts of one batch object are two batches: their runs must not join.
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
            raise out_of_range(f"{self.name}: take of {n}")
        with self._lock:
            self._need_shape(shape, "take")
            taken = [(o, self._pending.pop(o)) for o in sorted(self._pending)[:n]]
            self._consuming.update(taken)
            if not taken:
                # Under the lock of put, or a put between the look and this line would not submit a
                # consume request, and its messages would wait for ever.
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
            # A retry of lower offsets may be committed after higher ones: never lower the floor.
            self._floor = max(self._floor, next_offset)
            return next_offset

    def rollback(self) -> None:
        with self._lock:
            # Behind newer messages in the dict; `take` sorts.
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
            # Concurrent consumption commits this: all below the lowest message left is done.
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
            raise out_of_range(f"{self.name}: reset to {next_offset}")
        with self._lock:
            self.clear()
            self._floor = next_offset  # a seek backwards: the only way to lower it

    def advance(self, next_pull_offset: int | None = None, queue_end: int | None = None) -> None:
        with self._lock:
            if next_pull_offset is not None:
                self._next_pull_offset = next_pull_offset
            if queue_end is not None:
                self._queue_end = queue_end

    @property
    def next_pull_offset(self) -> int:
        return self._next_pull_offset

    @property
    def queue_end(self) -> int:
        return self._queue_end

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
            state = (
                f"{self.name}: pending={self._pending} consuming={self._consuming} "
                f"max_offset={self._max_offset}"
            )
            assert not set(self._pending) & set(self._consuming), state
            assert max([*self._pending, *self._consuming], default=-1) <= self._max_offset, state
