"""Rows sorted by a key, cut into runs of one key each, across the batches they come in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ordermq.model.message_queue import MessageQueue
from ordermq.spark.row_order import OrderCheck, Places


@dataclass(frozen=True, slots=True)
class KeyRun:
    """Rows of one key in order.

    Args:
        key: a value, or a tuple of several columns' values.
        queue: the rows' message queue; None if they are of several, or it is not looked at.
        is_continued: the run before this one was of the same key.
    """

    key: Any
    rows: Any
    queue: MessageQueue | None
    is_continued: bool


def run_ends(columns: Sequence[Any]) -> list[int]:
    """Where a batch's runs of equal values end; two nulls are equal.  O(rows), native."""
    if len(columns) == 1 and not pa.types.is_floating(columns[0].type):
        ends: list[int] = pc.run_end_encode(columns[0]).run_ends.to_pylist()
        return ends
    count = len(columns[0])
    changes = np.zeros(max(count - 1, 0), dtype=bool)
    for column in columns:
        before, here = column.slice(0, count - 1), column.slice(1)
        differ = pc.not_equal(before, here)
        if column.null_count:
            one_null = pc.not_equal(before.is_null(), here.is_null())
            differ = pc.if_else(one_null, True, pc.fill_null(differ, False))
        changes |= differ.to_numpy(zero_copy_only=False)
    return [*(np.flatnonzero(changes) + 1).tolist(), count]


class KeyRuns:
    """Holds the last run of a batch until the next batch shows where it ends.

    Args:
        names: the key's columns.
        most_rows: a longer run is handed out in parts, so that memory is bounded.
        check: raises where a queue's offsets do not rise within a run; None looks at none.
    """

    def __init__(self, names: Sequence[str], most_rows: int, check: OrderCheck | None) -> None:
        self._names = names
        self._most_rows = most_rows
        self._check = check
        self._held: list[Any] = []
        self._held_rows = 0
        self._key: Any = None
        self._is_continued = False
        self._queues: set[MessageQueue] = set()

    def of(self, batches: Iterable[Any]) -> Iterator[KeyRun]:
        """Cut batches, sorted by the key, into runs."""
        for batch in batches:
            if batch.num_rows:
                yield from self._cut(batch)
        yield from self._hand_out()

    def _cut(self, batch: Any) -> Iterator[KeyRun]:
        columns = [batch.column(name) for name in self._names]
        places = Places(batch) if self._check is not None else None
        first = 0
        for end in run_ends(columns):
            values = tuple(column[first].as_py() for column in columns)
            key = values[0] if len(values) == 1 else values
            if self._key != key or not (self._held or self._is_continued):
                yield from self._hand_out()
                self._begin(key)
            if places is not None:
                self._follow(places, first, end)
            self._held.append(batch.slice(first, end - first))
            self._held_rows += end - first
            if self._held_rows >= self._most_rows:
                yield from self._hand_out()
                self._is_continued = True
            first = end

    def _begin(self, key: Any) -> None:
        self._key = key
        self._is_continued = False
        self._queues.clear()
        if self._check is not None:
            self._check.restart()

    def _follow(self, places: Places, first: int, end: int) -> None:
        assert self._check is not None
        for queue, _, _ in self._check.runs(places, first, end):
            self._queues.add(queue)

    def _hand_out(self) -> Iterator[KeyRun]:
        held, self._held, self._held_rows = self._held, [], 0
        if not held:
            return
        rows = held[0]
        if len(held) > 1:
            rows = pa.Table.from_batches(held).combine_chunks().to_batches()[0]
        queue = next(iter(self._queues)) if len(self._queues) == 1 else None
        yield KeyRun(self._key, rows, queue, self._is_continued)


def regrouped(batch: Any, names: Sequence[str]) -> Any:
    """A batch with each key's rows together, in their order; keys as they first come."""
    codes = [batch.column(name).dictionary_encode(null_encoding="encode") for name in names]
    order = codes[0].indices.to_numpy()
    for code in codes[1:]:
        order = order.astype(np.int64) * (len(code.dictionary) + 1) + code.indices.to_numpy()
    return batch.take(pa.array(np.argsort(order, kind="stable")))
