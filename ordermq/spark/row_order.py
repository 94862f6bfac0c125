"""The order of rows: which queue and offset each row comes from, and the check that offsets rise.

Spark promises no order of rows behind a source: it is how the engine works today. So every
ordered stage and the sink check it while they run, natively, and raise where it is broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ordermq import core
from ordermq.errors import ConfigError, OrderingError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.schema import (
    LEASE_COLUMN,
    ORIGIN_COLUMNS,
    SHARDING_KEY,
    by_own_names,
    is_split_source,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ordermq.core.contract import Texts


def missing_origin_columns(names: Sequence[str]) -> list[str]:
    """Return the origin columns that are not among these names."""
    return [name for name in ORIGIN_COLUMNS if name not in names]


def check_columns(frame: DataFrame, *more: str) -> None:
    """Refuse a DataFrame without the columns that an ordered stage reads.

    Raises: ConfigError: names the missing ones.
    """
    missing = missing_origin_columns(frame.columns)
    missing += [name for name in more if name not in frame.columns]
    # Those that it may lack, too: without key or lease a stage would do less, and not say so.
    check_case(frame, (*ORIGIN_COLUMNS, *more, SHARDING_KEY, LEASE_COLUMN))
    if missing:
        raise ConfigError(
            f"the DataFrame has no column {', '.join(missing)}: keep it until after the stage. "
            "An ordered stage reads topic, broker, queue_id and offset"
            f"{' and its key' if more else ''}; the DataFrame has {', '.join(frame.columns)}"
        )


def check_case(frame: DataFrame, names: Iterable[str]) -> None:
    """Refuse a DataFrame that has one of these columns in another case.

    Raises: ConfigError: names the first one.
    """
    for written, name in zip(frame.columns, by_own_names(frame.columns, names), strict=True):
        if written != name:
            raise ConfigError(
                f"the DataFrame has the column {name} as {written}: rename it, by "
                f'withColumnRenamed("{written}", "{name}"). Spark takes a name in any case; a '
                "stage and its function take it as it is"
            )


def check_not_split(frame: DataFrame) -> None:
    """Refuse a DataFrame whose queues are read by several tasks each.

    Raises: ConfigError: the source has option min_partitions.
    """
    if is_split_source(frame.schema.fields):
        raise ConfigError(
            "the source is read with min_partitions, so several tasks have rows of one queue: "
            "read it without min_partitions, or with tasks=..., or give the stage a key=... by "
            "which it shuffles and sorts"
        )


# Arrow columns as the core takes them. All of these read Arrow's buffers in place: a Python
# object per row would cost more than the check itself.


def row_tokens(first: int, end: int) -> memoryview:
    """Return the row numbers first .. end - 1 as tokens of the core: uint64."""
    return np.arange(first, end, dtype=np.uint64).data


def int_values(column: Any, kind: Any, name: str) -> memoryview:
    """Return the values of an integer column as int32 or int64, without a copy where they are.

    Raises: ConfigError: the column has nulls.
    """
    if column.null_count:
        raise ConfigError(
            f"column {name!r} has nulls: the source gives every row a value, so keep the column "
            "as the source made it until after the stage"
        )
    if column.type != kind:
        column = column.cast(kind)
    size: int = kind.bit_width // 8
    # A slice shares the buffers of the whole column, so its offset has to be applied by hand.
    values = memoryview(column.buffers()[1]).cast("B")
    own = values[column.offset * size : (column.offset + len(column)) * size]
    return own.cast("q") if size == 8 else own.cast("i")


def text_values(column: Any) -> Texts:
    """Return a string or binary column as positions and bytes; a null is an empty text."""
    if column.null_count:
        column = column.fill_null("" if not _is_binary(column.type) else b"")
    if not _has_32_bit_positions(column.type):
        column = column.cast(pa.binary() if _is_binary(column.type) else pa.string())
    _, positions, values = column.buffers()
    begin = column.offset * 4
    own = memoryview(positions).cast("B")[begin : begin + (len(column) + 1) * 4].cast("i")
    # Arrow leaves the data buffer out where every text is empty.
    return own, memoryview(values) if values is not None else b""


def _is_binary(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _has_32_bit_positions(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


class RowOrigins:
    """The queue and offset of each row of a record batch that has rows, read natively."""

    __slots__ = ("_batch", "_has_one_broker", "_names", "_queue_ids", "_queues", "offsets")

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.offsets = int_values(batch.column("offset"), pa.int64(), "offset")
        self._queue_ids = int_values(batch.column("queue_id"), pa.int32(), "queue_id")
        self._names = [text_values(batch.column("topic")), text_values(batch.column("broker"))]
        self._has_one_broker: bool | None = None  # one topic and one broker; computed once
        self._queues: dict[int, MessageQueue] = {}  # by queue id, if there is only one broker

    def run_end(self, first: int, end: int) -> int:
        """Return the end of the run of one queue that begins at `first`, offsets rising.

        See core.contract.OrderedRows.
        """
        return core.ordered_rows(self.offsets, self._queue_ids, self._names, first, end)

    def queue(self, row: int) -> MessageQueue:
        """Return the queue of a row."""
        if self._has_one_broker is None:
            self._has_one_broker = self._is_of_one_broker()
        queue_id = self._queue_ids[row]
        known = self._queues.get(queue_id)
        if known is None:
            topic, broker = (self._batch.column(name)[row].as_py() for name in ("topic", "broker"))
            known = MessageQueue(topic or "", broker or "", queue_id)
            if self._has_one_broker:
                self._queues[queue_id] = known
        return known

    def queues_of(self, ends: Sequence[int]) -> list[MessageQueue | None]:
        """Return the queue of each of the adjacent runs of rows that end there.

        None where its rows are of several queues or their offsets do not rise, and for all runs if
        the batch is of several topics or brokers.  O(rows), native but for a look-up per run.
        """
        if self._has_one_broker is None:
            self._has_one_broker = self._is_of_one_broker()
        if not self._has_one_broker:
            return [None] * len(ends)
        offsets = np.frombuffer(self.offsets, np.int64)
        ids = np.frombuffer(self._queue_ids, np.int32)
        breaks = (offsets[1:] <= offsets[:-1]) | (ids[1:] != ids[:-1])
        inner = np.asarray(ends[:-1], np.int64)
        breaks[inner - 1] = False  # between two runs anything may change
        firsts = np.concatenate((np.zeros(1, np.int64), inner))
        _, rows, places = np.unique(ids[firsts], return_index=True, return_inverse=True)
        of_id = [self.queue(int(firsts[at])) for at in rows]
        queues: list[MessageQueue | None] = [of_id[place] for place in places.tolist()]
        for run in np.searchsorted(ends, np.flatnonzero(breaks) + 1, side="right").tolist():
            queues[run] = None
        return queues

    def _is_of_one_broker(self) -> bool:
        # The run finder compares the names of neighbouring rows natively. With offsets that rise
        # and queue ids that are equal, only a change of topic or broker can end its run.
        count = len(self.offsets)
        rising, same = np.arange(count), np.zeros(count, np.int32)
        return core.ordered_rows(rising.data, same.data, self._names, 0, count) == count


class OrderCheck:
    """Follows the offsets of each queue and raises where one does not rise.

    Args: remedy: advice for the user, the end of the error's text.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._last: dict[MessageQueue, int] = {}

    def restart(self) -> None:
        """Forget the offsets seen so far: the rows of another key begin."""
        self._last.clear()

    def runs(
        self, origins: RowOrigins, first: int, end: int
    ) -> Iterator[tuple[MessageQueue, int, int]]:
        """Cut rows into checked runs of one queue each: (queue, first row, end).

        Raises: OrderingError: an offset is not greater than the one before it in its queue.
        """
        while first < end:
            run_end = origins.run_end(first, end)
            queue = origins.queue(first)
            # The core has compared the rows inside the run, so only its first row is left to
            # compare with the run before of the same queue.
            self._check_rises(queue, origins.offsets[first])
            self._last[queue] = origins.offsets[run_end - 1]
            yield queue, first, run_end
            first = run_end

    def _check_rises(self, queue: MessageQueue, offset: int) -> None:
        last = self._last.get(queue, -1)
        if offset > last:
            return
        what = "arrives twice" if offset == last else f"arrives after offset {last}"
        raise OrderingError(
            f"rows are out of order: offset {offset} {what}. Something between the source and "
            f"this stage moved or repeated rows: {self._remedy}",
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            offset=offset,
        )
