"""Where rows come from: a batch's columns as the core reads them, and the check of their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ordermq import core
from ordermq.errors import ConfigError, OrderingError
from ordermq.model.message_queue import MessageQueue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ordermq.core.interface import Texts

PLACE_COLUMNS = ("topic", "broker", "queue_id", "offset")


def row_tokens(first: int, end: int) -> memoryview:
    """The rows first .. end - 1 as tokens for the core: uint64."""
    return np.arange(first, end, dtype=np.uint64).data


def missing_places(names: Sequence[str]) -> list[str]:
    """The columns that say where a row comes from and are not there."""
    return [name for name in PLACE_COLUMNS if name not in names]


def numbers_of(column: Any, kind: Any, what: str) -> memoryview:
    """An int32 or int64 column's values, not copied if they are of that type.

    Raises: ConfigError: there are nulls.
    """
    if column.null_count:
        raise ConfigError(f"column {what!r} has nulls: every row of the source has one")
    if column.type != kind:
        column = column.cast(kind)
    size: int = kind.bit_width // 8
    values = memoryview(column.buffers()[1]).cast("B")
    kept = values[column.offset * size : (column.offset + len(column)) * size]
    return kept.cast("q") if size == 8 else kept.cast("i")


def texts_of(column: Any) -> Texts:
    """A string or binary column as the core takes it, not copied; a null is an empty text."""
    if column.null_count:
        column = column.fill_null("" if not _is_binary(column.type) else b"")
    if not _is_plain(column.type):
        column = column.cast(pa.binary() if _is_binary(column.type) else pa.string())
    _, positions, values = column.buffers()
    begin = column.offset * 4
    kept = memoryview(positions).cast("B")[begin : begin + (len(column) + 1) * 4].cast("i")
    return kept, memoryview(values) if values is not None else b""


def _is_binary(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_plain(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


class Places:
    """Where each row of a batch comes from, read natively; the batch has rows."""

    __slots__ = ("_batch", "_is_plain", "_names", "_queue_ids", "_queues", "offsets")

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.offsets = numbers_of(batch.column("offset"), pa.int64(), "offset")
        self._queue_ids = numbers_of(batch.column("queue_id"), pa.int32(), "queue_id")
        self._names = [texts_of(batch.column("topic")), texts_of(batch.column("broker"))]
        self._is_plain: bool | None = None  # one topic and one broker; asked for once
        self._queues: dict[int, MessageQueue] = {}  # by id, if so

    def run_end(self, first: int, end: int) -> int:
        """How far rows from `first` go on in order; see core.interface.OrderedRows."""
        return core.ordered_rows(self.offsets, self._queue_ids, self._names, first, end)

    def queue(self, row: int) -> MessageQueue:
        """The queue of a row."""
        if self._is_plain is None:
            self._is_plain = self._is_of_one_broker()
        number = self._queue_ids[row]
        known = self._queues.get(number)
        if known is None:
            topic, broker = (self._batch.column(name)[row].as_py() for name in ("topic", "broker"))
            known = MessageQueue(topic or "", broker or "", number)
            if self._is_plain:
                self._queues[number] = known
        return known

    def _is_of_one_broker(self) -> bool:
        """Whether topic and broker are the same in all rows, as nearly always.  Native."""
        count = len(self.offsets)
        rising, same = np.arange(count), np.zeros(count, np.int32)
        return core.ordered_rows(rising.data, same.data, self._names, 0, count) == count


class OrderCheck:
    """Follows each queue's offsets, and raises where one does not rise.

    Args: remedy: what to call instead, the end of the error's text.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._last: dict[MessageQueue, int] = {}

    def restart(self) -> None:
        """Forget what was seen: another key's rows begin."""
        self._last.clear()

    def runs(self, places: Places, first: int, end: int) -> Iterator[tuple[MessageQueue, int, int]]:
        """Cut rows into runs of one queue each, checked: (queue, first row, end).

        Raises: OrderingError: an offset is not greater than the one before it in its queue.
        """
        while first < end:
            run_end = places.run_end(first, end)
            queue = places.queue(first)
            self._follow(queue, places.offsets[first])
            self._last[queue] = places.offsets[run_end - 1]
            yield queue, first, run_end
            first = run_end

    def _follow(self, queue: MessageQueue, offset: int) -> None:
        last = self._last.get(queue, -1)
        if offset > last:
            return
        what = "comes again" if offset == last else f"comes after offset {last}"
        raise OrderingError(
            f"rows are out of order: offset {offset} {what}. Something between the source and "
            f"this stage moved or repeated rows: {self._remedy}",
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            offset=offset,
        )


def check_columns(frame: DataFrame, *more: str) -> None:
    """Refuse a DataFrame without the columns an ordered stage reads.

    Raises: ConfigError: names them.
    """
    missing = missing_places(frame.columns)
    missing += [name for name in more if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"the DataFrame has no column {', '.join(missing)}: an ordered stage reads topic, "
            f"broker, queue_id and offset{' and its key' if more else ''}. Keep them until "
            f"behind the stage; it has {', '.join(frame.columns)}"
        )
