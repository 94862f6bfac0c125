"""Runs of equal keys: sorted rows cut into runs of one key each, across record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ordermq.model.message_queue import MessageQueue
from ordermq.spark.row_order import OrderCheck, RowOrigins


@dataclass(frozen=True, slots=True)
class KeyRun:
    """Rows of one key in order.

    Args:
        key: a value, or a tuple of the values of several columns.
        queue: the rows' message queue; None if there are several, or order is not checked.
        is_continued: the run before this one had the same key.
    """

    key: Any
    rows: Any
    queue: MessageQueue | None
    is_continued: bool


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
        self._held: list[Any] = []
        self._held_rows = 0
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
        first = 0
        for end in run_ends(columns):
            values = tuple(column[first].as_py() for column in columns)
            key = values[0] if len(values) == 1 else values
            # The second half: None is a key like any other, and the first key there is.
            if self._key != key or not (self._held or self._is_continued):
                yield from self._take_held()
                self._begin(key)
            if origins is not None:
                self._check_order(origins, first, end)
            self._held.append(batch.slice(first, end - first))
            self._held_rows += end - first
            if self._held_rows >= self._max_rows:
                yield from self._take_held()
                self._is_continued = True
            first = end

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
        held, self._held, self._held_rows = self._held, [], 0
        if not held:
            return
        rows = held[0]
        if len(held) > 1:
            rows = pa.Table.from_batches(held).combine_chunks().to_batches()[0]
        queue = next(iter(self._queues)) if len(self._queues) == 1 else None
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
