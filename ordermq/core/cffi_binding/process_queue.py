"""The process queue through cffi."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from ordermq.core._cffi import ffi, lib
from ordermq.core.cffi_binding.arguments import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    Lent,
    at_least_one,
    clamped,
    raise_unless_ok,
)
from ordermq.core.cffi_binding.message_codec import MessageIndex
from ordermq.core.contract import Batch, Segment
from ordermq.threads import RLock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NO_SLOT: Final = 2**32 - 1


@final
class ProcessQueue:
    """See contract.ProcessQueue."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        # Ties each native call to the change of _batches that goes with it. Reentrant, for
        # dropping a batch may run a finalizer that calls this queue again.
        self._lock = RLock()
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
        offsets = array("q", [clamped(offset) for offset, _ in pairs])
        lengths: Any = ffi.NULL
        if sizes is not None:
            if len(sizes) != len(pairs):
                raise ValueError(f"{self.name}: {len(pairs)} messages, {len(sizes)} sizes")
            # UINT32_MAX is a size that C refuses: then nothing is put.
            bounded = [size if 0 <= size <= INT32_MAX else _NO_SLOT for size in sizes]
            lengths = ffi.new("uint32_t[]", bounded)
        batch = [message for _, message in pairs]
        return self._put(batch, ffi.from_buffer("int64_t[]", offsets), lengths, len(pairs))

    def put_batch(self, batch: Batch) -> bool:
        if isinstance(batch, MessageIndex):
            return self._put_index(batch)
        with Lent() as lent:
            offsets = lent.column(batch.offsets, "ql", "int64_t", "offsets")
            sizes = lent.column(batch.body_sizes, "IiLl", "uint32_t", "body_sizes")
            if len(offsets) != len(sizes):
                raise ValueError(f"{self.name}: {len(offsets)} offsets, {len(sizes)} sizes")
            return self._put(batch, offsets, sizes, len(offsets))

    def _put_index(self, index: MessageIndex) -> bool:
        rows = index._rows
        if not rows.is_run:
            return self._put(index, index._offsets(), rows.body_sizes, rows.count)
        # C keeps a pointer to the index's sizes; _batches holds the index as long as the slot.
        run = (rows.first_offset, rows.body_sizes, rows.count, rows.size_bytes)
        return self._keep(index, lib.omq_process_queue_put_run, *run)

    def _put(self, batch: Any, offsets: Any, sizes: Any, count: int) -> bool:
        return self._keep(batch, lib.omq_process_queue_put_batch, offsets, sizes, count)

    def _keep(self, batch: Any, put: Callable[..., int], *arguments: Any) -> bool:
        slot = ffi.new("uint32_t *")
        dispatch = ffi.new("bool *")
        with self._lock:
            code = put(self._queue, *arguments, slot, dispatch)
            # Before the status is looked at: without memory a prefix may be buffered.
            if slot[0] != _NO_SLOT:
                self._batches[slot[0]] = batch
        raise_unless_ok(code, f"{self.name}: put")
        return bool(dispatch[0])

    def put_columns(
        self,
        offsets: ReadableBuffer,
        tokens: ReadableBuffer,
        sizes: ReadableBuffer | None = None,
    ) -> bool:
        with Lent() as lent:
            offset_column = lent.column(offsets, "ql", "int64_t", "offsets")
            token_column = lent.column(tokens, "QL", "uint64_t", "tokens")
            size_column: Any = ffi.NULL
            count = size_count = len(offset_column)
            if sizes is not None:
                size_column = lent.column(sizes, "IiLl", "uint32_t", "sizes")
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
            raise_unless_ok(code, f"{self.name}: put_columns")
            return bool(dispatch[0])

    def take(self, n: int) -> list[Any]:
        taken: list[Any] = []
        # Read outside the lock: a batch may be any sequence, and run code of its own.
        for batch, first, count in self.take_segments(n):
            taken.extend(batch[i] for i in range(first, first + count))
        return taken

    def take_segments(self, n: int) -> list[Segment]:
        n = at_least_one(n, self.name, "take")
        count = ffi.new("size_t *")
        with self._lock:
            # At least 1 also of an empty queue: that take is what clears the dispatch flag.
            limit = max(1, min(n, self.pending_count))
            segments = ffi.new("omq_segment[]", limit)
            code = lib.omq_process_queue_take_segments(self._queue, segments, limit, count)
            raise_unless_ok(code, f"{self.name}: take")
            return [
                (self._batches[segments[i].slot], segments[i].first, segments[i].count)
                for i in range(count[0])
            ]

    def take_columns(self, n: int) -> tuple[memoryview, memoryview]:
        n = at_least_one(n, self.name, "take_columns")
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
        raise_unless_ok(code, f"{self.name}: take_columns")
        return memoryview(offsets)[: taken[0]], memoryview(tokens)[: taken[0]]

    def commit(self) -> int:
        slot = ffi.new("uint32_t *")
        with self._lock:
            next_offset = int(lib.omq_process_queue_commit(self._queue, slot))
            if slot[0] != _NO_SLOT:
                del self._batches[slot[0]]
                self._forget()
        return next_offset

    def _forget(self) -> None:
        """Drop the batches without messages, one by one; see omq_process_queue_collect."""
        slot = ffi.new("uint32_t *")
        while lib.omq_process_queue_collect(self._queue, slot):
            # A finalizer that this runs may put again, and be given this slot: so drop the batch
            # before the next slot is asked for.
            del self._batches[slot[0]]

    def _make_again_from(self, offset: int, operation: str) -> int:
        moved = ffi.new("size_t *")
        with self._lock:
            code = lib.omq_process_queue_make_again_from(self._queue, offset, moved)
        raise_unless_ok(code, f"{self.name}: {operation}")
        return int(moved[0])

    def rollback(self) -> None:
        self._make_again_from(INT64_MIN, "rollback")

    def make_again_from(self, offset: int) -> int:
        return self._make_again_from(clamped(offset), "make_again_from")

    def make_again(self, offsets: Iterable[int]) -> int:
        wanted = array("q", [clamped(offset) for offset in offsets])
        moved = ffi.new("size_t *")
        with self._lock:
            code = lib.omq_process_queue_make_again(
                self._queue, ffi.from_buffer("int64_t[]", wanted), len(wanted), moved
            )
        raise_unless_ok(code, f"{self.name}: make_again")
        return int(moved[0])

    def remove(self, offsets: Iterable[int]) -> int:
        done = array("q", [clamped(offset) for offset in offsets])
        watermark = ffi.new("int64_t *")
        with self._lock:
            code = lib.omq_process_queue_remove(
                self._queue, ffi.from_buffer("int64_t[]", done), len(done), watermark
            )
            self._forget()  # also after an error: a prefix was removed
        raise_unless_ok(code, f"{self.name}: remove")
        return int(watermark[0])

    def clear(self) -> None:
        with self._lock:
            lib.omq_process_queue_clear(self._queue)
            self._forget()

    def reset(self, next_offset: int) -> None:
        with self._lock:
            # C refuses -1; cffi would raise OverflowError, which the other cores do not.
            code = lib.omq_process_queue_reset(
                self._queue, next_offset if 0 <= next_offset <= INT64_MAX else -1
            )
            raise_unless_ok(code, f"{self.name}: reset to {next_offset}")
            self._forget()

    # No lock here or below: these calls touch C only, whose mutex makes them atomic.
    def advance(self, next_pull_offset: int | None = None, queue_end: int | None = None) -> None:
        lib.omq_process_queue_advance(
            self._queue,
            -1 if next_pull_offset is None else clamped(next_pull_offset),
            -1 if queue_end is None else clamped(queue_end),
        )

    @property
    def next_pull_offset(self) -> int:
        return int(self._state().next_pull)

    @property
    def queue_end(self) -> int:
        return int(self._state().queue_end)

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
        # Both from one snapshot: another thread may take messages between two calls.
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
            lib.omq_process_queue_is_pending(self._queue, clamped(offset))
        )

    def _check(self) -> None:
        with self._lock:
            broken = lib.omq_process_queue_check(self._queue)
        if broken:
            state = self._state()
            fields = {name: getattr(state, name) for name, _ in ffi.typeof(state[0]).fields}
            raise AssertionError(f"{self!r}: {ffi.string(broken).decode()}: {fields}")
