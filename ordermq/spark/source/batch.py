"""The batch source: one partition a queue, over a snapshot of offsets that stays as it is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from ordermq.errors import OrderMQError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import SourceOptions
from ordermq.spark.session import Link
from ordermq.spark.source.offsets import snapshot
from ordermq.spark.source.queue_reader import QueueRange, range_of, read_range

_log = logging.getLogger("ordermq.spark")
Snapshot = dict[MessageQueue, tuple[int, int]]


def take_snapshot(options: SourceOptions) -> Snapshot:
    """Ask the brokers which offsets a batch read takes.

    Raises: as `positions.snapshot`.
    """
    link = Link(options.name_servers, options.remoting)
    try:
        return link.call(snapshot(link, options))
    finally:
        link.close()


def try_snapshot(options: SourceOptions) -> Snapshot | None:
    """The snapshot of the moment a DataFrame is made; None if it cannot be had yet.

    Spark asks for a schema without saying whether a batch or a stream is meant. A stream needs
    no snapshot, and one with a checkpoint must start also when its options have grown old.
    """
    try:
        return take_snapshot(options)
    except OrderMQError as error:
        _log.info("no snapshot yet: %s", error)
        return None


class BatchReader(DataSourceReader):
    """Reads a snapshot. Spark makes it in a planner process, and a copy in each task."""

    def __init__(self, options: SourceOptions, taken: Snapshot | None) -> None:
        self.options = options
        self.taken = taken if taken is not None else take_snapshot(options)

    def partitions(self) -> list[InputPartition]:
        """One for each queue that has messages in the snapshot."""
        return [range_of(queue, *span) for queue, span in sorted(self.taken.items())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a queue's range, ascending in offset."""
        return read_range(self.options, partition, is_ordered=self.options.is_ordered)


_QUEUE_FIELDS: dict[str, Callable[[MessageQueue], Any]] = {
    "topic": lambda queue: queue.topic,
    "broker": lambda queue: queue.broker_name,
    "queue_id": lambda queue: queue.queue_id,
}
_TESTS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda mine, wanted: mine == wanted,
    In: lambda mine, wanted: mine in wanted,
    GreaterThan: lambda mine, wanted: mine > wanted,
    GreaterThanOrEqual: lambda mine, wanted: mine >= wanted,
    LessThan: lambda mine, wanted: mine < wanted,
    LessThanOrEqual: lambda mine, wanted: mine <= wanted,
}


class PushdownReader(BatchReader):
    """Also leaves out queues and offsets that a filter does not want.

    A class of its own: a reader that has `pushFilters` cannot be used at all while Spark's
    spark.sql.python.filterPushdown.enabled is false, its default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters on topic, broker, queue_id and offset; give the others back."""
        return [one for one in filters if not self._is_taken(one)]

    def _is_taken(self, one: Filter) -> bool:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        name = attribute[0] if len(attribute) == 1 else None
        if name not in (*_QUEUE_FIELDS, "offset"):
            return False
        if isinstance(one, IsNotNull):
            return True  # none of these ever is
        test = _TESTS.get(type(one))
        wanted = one.value if hasattr(one, "value") else None
        if test is None or wanted is None:
            return False
        if name in _QUEUE_FIELDS:
            mine = _QUEUE_FIELDS[name]
            self.taken = {q: span for q, span in self.taken.items() if test(mine(q), wanted)}
            return True
        span = _span(one)
        if span is None:
            return False
        self.taken = {
            queue: cut
            for queue, (start, end) in self.taken.items()
            if (cut := (max(start, span[0]), min(end, span[1])))[0] < cut[1]
        }
        return True


def _span(one: Filter) -> tuple[int, int] | None:
    """The offsets a filter lets through, as first and end; None if they are no single range."""
    everything, value = 1 << 62, getattr(one, "value", None)
    if not isinstance(value, int):
        return None
    return {
        EqualTo: (value, value + 1),
        GreaterThan: (value + 1, everything),
        GreaterThanOrEqual: (value, everything),
        LessThan: (0, value),
        LessThanOrEqual: (0, value + 1),
    }.get(type(one))


def batch_reader(options: SourceOptions, taken: Snapshot | None) -> BatchReader:
    """The reader the options ask for."""
    kind = PushdownReader if options.pushdown else BatchReader
    return kind(options, taken)


__all__ = ["BatchReader", "PushdownReader", "QueueRange", "batch_reader", "try_snapshot"]
