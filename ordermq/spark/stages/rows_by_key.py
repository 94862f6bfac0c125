"""Rows by key: sorted rows cut into runs of one key, and concurrent calls for different keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import datetime
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ordermq.core import LaneMap
from ordermq.errors import FunctionFailed
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.row_order import OrderCheck, RowOrigins, row_tokens, text_values
from ordermq.spark.stages.failure_policy import ParkKey
from ordermq.spark.stages.stage_invocation import StageContext, StageInvocation, lease_of

# A column of Arrow's has 2 GiB of texts or bytes at most, and pyarrow makes several batches of
# what has more. This much of a key's rows is joined.
_MOST_BYTES: Final = 1 << 30


# Not a frozen dataclass: there is one per key, and that takes three times as long to make.
class KeyRun(NamedTuple):
    """Rows of one key in order.

    Attributes:
        key: a value, or a tuple of the values of several columns.
        queue: the rows' message queue; None if there are several, or order is not checked.
        is_continued: the run before this one had the same key.
        batch, first: the record batch that the rows are a slice of, and where they begin there;
            None and 0 if they were joined from several.
    """

    key: Any
    rows: Any
    queue: MessageQueue | None
    is_continued: bool
    batch: Any = None
    first: int = 0


def run_ends(columns: Sequence[Any]) -> list[int]:
    """Return the ends of a batch's runs of equal values; two nulls are equal.  O(rows), native."""
    # Run-end encoding compares bits, and would part 0.0 from -0.0, which Spark shuffles and sorts
    # as one key. So floats take the general way.
    if len(columns) == 1 and not pa.types.is_floating(columns[0].type):
        ends: list[int] = pc.run_end_encode(columns[0]).run_ends.to_pylist()
        return ends
    count = len(columns[0])
    changes = np.zeros(max(count - 1, 0), dtype=bool)
    for column in columns:
        before, here = column.slice(0, count - 1), column.slice(1)
        differ = pc.not_equal(before, here)
        if column.null_count:
            # Comparing with a null gives a null, so nulls are compared as such.
            one_null = pc.not_equal(before.is_null(), here.is_null())
            differ = pc.if_else(one_null, True, pc.fill_null(differ, False))
        changes |= differ.to_numpy(zero_copy_only=False)
    return [*(np.flatnonzero(changes) + 1).tolist(), count]


def _values_at(columns: Sequence[Any], rows: list[int]) -> list[Any]:
    """Return the key of each of these rows: a value, or a tuple of those of several columns."""
    at = pa.array(rows, pa.int32())
    values = [column.take(at).to_pylist() for column in columns]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


def key_name(key: Any) -> Any:
    """Return what is equal only where keys are; the key itself, but for times."""
    # Two times of a zone are equal in Python where its clocks show the same, as in the hour that
    # comes twice when summer ends.
    if isinstance(key, tuple):
        return tuple(map(key_name, key))
    return (key, key.utcoffset()) if isinstance(key, datetime) else key


class KeyRuns:
    """Cuts record batches, sorted by the key, into runs.

    The last run of a batch is kept until the next batch shows where it ends.

    Args:
        names: the key's columns.
        max_rows: a longer run is returned in parts, so that memory is bounded.
        check: raises where a queue's offsets do not rise within a run; None checks nothing.
    """

    def __init__(self, names: Sequence[str], max_rows: int, check: OrderCheck | None) -> None:
        self._names = names
        self._max_rows = max_rows
        self._check = check
        self._held: list[tuple[Any, int, int]] = []  # batch, first row, end
        self._held_rows = 0
        self._held_bytes = 0
        self._key: Any = None
        self._is_continued = False
        self._queues: set[MessageQueue] = set()

    def of(self, batches: Iterable[Any]) -> Iterator[KeyRun]:
        """Return the runs of these batches."""
        for batch in batches:
            if batch.num_rows:
                yield from self._cut(batch)
        yield from self._take_held()

    def _cut(self, batch: Any) -> Iterator[KeyRun]:
        columns = [batch.column(name) for name in self._names]
        origins = RowOrigins(batch) if self._check is not None else None
        ends = run_ends(columns)
        firsts = [0, *ends[:-1]]
        # The usual case, checked together: the rows of a key are of one queue and in order.
        queues = origins.queues_of(ends) if origins is not None else [None] * len(ends)
        runs = zip(_values_at(columns, firsts), firsts, ends, queues, strict=True)
        # Only the first run and the last can go on in another batch.
        key, first, end, _ = next(runs)
        yield from self._add(batch, origins, key, first, end)
        for key, first, end, queue in islice(runs, max(len(ends) - 2, 0)):
            if self._held or self._is_continued:
                yield from self._take_held()
                self._begin(key)
            if end - first < self._max_rows:
                if queue is None and origins is not None:
                    queue = self._check_whole(origins, first, end)
                yield KeyRun(key, batch.slice(first, end - first), queue, False, batch, first)
            else:
                yield from self._add(batch, origins, key, first, end)
        for key, first, end, _ in runs:
            yield from self._add(batch, origins, key, first, end)

    def _add(
        self, batch: Any, origins: RowOrigins | None, key: Any, first: int, end: int
    ) -> Iterator[KeyRun]:
        """Add rows to the run that may go on; return it if another key's begin, or it is long."""
        # The second half: None is a key like any other, and the first key there is.
        if key_name(self._key) != key_name(key) or not (self._held or self._is_continued):
            yield from self._take_held()
            self._begin(key)
        size = batch.slice(first, end - first).nbytes
        if self._held and self._held_bytes + size > _MOST_BYTES:
            yield from self._take_held()
            self._is_continued = True
        if origins is not None:
            self._check_order(origins, first, end)
        self._held.append((batch, first, end))
        self._held_rows += end - first
        self._held_bytes += size
        if self._held_rows >= self._max_rows:
            yield from self._take_held()
            self._is_continued = True

    def _check_whole(self, origins: RowOrigins, first: int, end: int) -> MessageQueue | None:
        """Check the order of a run that lies within a batch; return its queue if it has one."""
        assert self._check is not None
        self._check.restart()
        queues = {queue for queue, _, _ in self._check.runs(origins, first, end)}
        return queues.pop() if len(queues) == 1 else None

    def _begin(self, key: Any) -> None:
        self._key = key
        self._is_continued = False
        self._queues.clear()
        # Offsets rise within a key. Between keys they begin anew.
        if self._check is not None:
            self._check.restart()

    def _check_order(self, origins: RowOrigins, first: int, end: int) -> None:
        assert self._check is not None
        for queue, _, _ in self._check.runs(origins, first, end):
            self._queues.add(queue)

    def _take_held(self) -> Iterator[KeyRun]:
        held, self._held, self._held_rows, self._held_bytes = self._held, [], 0, 0
        if not held:
            return
        queue = next(iter(self._queues)) if len(self._queues) == 1 else None
        parts = [batch.slice(first, end - first) for batch, first, end in held]
        if len(parts) == 1:
            batch, first, _ = held[0]
            yield KeyRun(self._key, parts[0], queue, self._is_continued, batch, first)
            return
        rows = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        yield KeyRun(self._key, rows, queue, self._is_continued)


def grouped_by_key(batch: Any, names: Sequence[str]) -> Any:
    """Return a batch with the rows of each key together, in their order."""
    codes = [batch.column(name).dictionary_encode(null_encoding="encode") for name in names]
    order = codes[0].indices.to_numpy()
    for code in codes[1:]:
        order = order.astype(np.int64) * (len(code.dictionary) + 1) + code.indices.to_numpy()
    # A stable sort of small integers, not of the keys themselves: keys need no order, only to
    # be together.
    return batch.take(pa.array(np.argsort(order, kind="stable")))


class ConcurrentKeys:
    """Calls a function row by row: keys concurrently, each key in order
    (docs/internals/semantics.md#key-lanes).

    All rows of a batch are done before the next batch begins, so no row is processed that a
    replay would not bring again.

    Args:
        key: the column of the key. A row without one waits for all earlier rows and blocks all
            later ones.
        max_in_flight: maximum number of concurrent calls.
    """

    def __init__(self, invocation: StageInvocation, key: str, max_in_flight: int) -> None:
        self._invocation = invocation
        self._key = key
        self._max_in_flight = max_in_flight
        self._pool = ThreadPoolExecutor(max_in_flight, thread_name_prefix="ordermq-key")

    def close(self) -> None:
        """Wait for the running calls; no further one starts."""
        self._pool.shutdown(cancel_futures=True)

    def call_queue(
        self, rows: Any, queue: MessageQueue, offsets: memoryview, first: int, end: int
    ) -> Iterator[Any]:
        """Call with each row of a queue's run; yield the batches of the results in row order."""
        # No limit ahead: the rows are in memory already, unlike those of a consumer's queue.
        lanes = LaneMap(str(queue), max_in_flight=self._max_in_flight, max_ahead=2**62)
        lanes.reset(offsets[first])
        part = rows.slice(first, end - first)
        keys = part.column(self._key).cast(pa.string())
        positions, values = text_values(keys)
        begins = np.frombuffer(memoryview(positions), dtype=np.int32)
        sizes = np.diff(begins).astype(np.int32)
        # The core takes -1 for "no key"; an empty text is a key.
        if keys.null_count:
            sizes[keys.is_null().to_numpy(zero_copy_only=False)] = -1
        lanes.add_columns(
            offsets[first:end],
            row_tokens(0, end - first),
            values,
            begins[:-1].data,
            sizes.data,
        )
        context = self._invocation.context(queue, lease_of(rows, first))
        results = self._run(lanes, part, offsets[first:end], context)
        for row in sorted(results):
            yield from results[row]

    def _run(
        self, lanes: Any, rows: Any, offsets: memoryview, context: StageContext
    ) -> dict[int, list[Any]]:
        results: dict[int, list[Any]] = {}
        running: dict[Future[list[Any]], int] = {}
        failure: Exception | None = None
        while True:
            if failure is None:
                _, tokens = lanes.take_columns(self._max_in_flight)
                for row in tokens:
                    running[self._pool.submit(self._call_row, rows.slice(row, 1), context)] = row
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                row = running.pop(future)
                error = future.exception()
                if error is None:
                    results[row] = future.result()
                # The first error fails the batch, but only after the running calls have ended:
                # Spark may run the task again at once, and the same row must not run twice at
                # the same time.
                elif failure is None:
                    failure = error if isinstance(error, Exception) else RuntimeError(error)
                lanes.done(offsets[row])
        if failure is not None:
            raise failure
        return results

    def _call_row(self, row: Any, context: StageContext) -> list[Any]:
        invocation, failures = self._invocation, self._invocation.failures
        if failures is None:
            return invocation.call(row, context)
        _, parked = failures.parted(row, context.queue)
        if parked:
            failures.divert_parked(parked)
            return []
        attempts = 0
        while True:
            try:
                return invocation.call(row, context)
            except FunctionFailed as error:
                attempts += 1
                if attempts >= failures.policy.max_attempts:
                    # On this key's thread: its next row is called only after this one is stored.
                    failures.give_up(row, context.queue, error)
                    return []


def concurrency_key(policy: object, key: str | None) -> str:
    """Return the column whose rows must wait for each other: a policy's key, or the stage's."""
    # A parked key diverts its later rows, so these must not run before the failure is known.
    if isinstance(policy, ParkKey):
        return policy.key
    return key or "sharding_key"
