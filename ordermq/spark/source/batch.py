"""The batch source: a snapshot of offsets that never changes, read by a few tasks."""

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

from ordermq.client.session import ClientSession
from ordermq.errors import OrderMQError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import SourceOptions
from ordermq.spark.source.offsets import Ranges, resolve_snapshot
from ordermq.spark.source.read_task import make_task, read_task
from ordermq.spark.source.task_ranges import pack, split, task_count

_log = logging.getLogger("ordermq.spark")


def take_snapshot(options: SourceOptions) -> Ranges:
    """Ask the brokers for the offsets that a batch read takes.

    Raises: as `offsets.resolve_snapshot`.
    """
    # A session of its own, closed at once: Spark ends the planner process when it likes.
    session = ClientSession(options.name_servers, options.remoting)
    try:
        return session.call(resolve_snapshot(session, options))
    finally:
        session.close()


def try_snapshot(options: SourceOptions) -> Ranges | None:
    """Take the snapshot while a DataFrame is made; None if the brokers give none.

    Spark asks for a schema without saying whether a batch or a stream is meant. A stream needs
    no snapshot, and one with a checkpoint must start even if its starting offsets have expired.
    """
    try:
        return take_snapshot(options)
    except OrderMQError as error:
        _log.info("no snapshot for a batch read: %s", error)
        return None


def batch_reader(options: SourceOptions, snapshot: Ranges | None) -> BatchReader:
    """Return the reader that the options select."""
    # Chosen by an option: this process cannot see whether Spark's setting is on.
    kind = PushdownReader if options.pushdown else BatchReader
    return kind(options, snapshot)


class BatchReader(DataSourceReader):
    """Reads a snapshot. Spark makes it in a planner process, and a copy in each task."""

    def __init__(self, options: SourceOptions, snapshot: Ranges | None) -> None:
        self.options = options
        # Taken while the schema was asked for, as a rule: two actions on one DataFrame must read
        # the same messages, and Spark makes a reader for each. Here an error is raised.
        self.snapshot = snapshot if snapshot is not None else take_snapshot(options)

    def partitions(self) -> list[InputPartition]:
        """Return the tasks: each queue is whole in one, unless `min_partitions` is given."""
        ranges = [(queue, *span) for queue, span in sorted(self.snapshot.items())]
        if self.options.min_partitions is not None:
            return [make_task([part]) for part in split(ranges, self.options.min_partitions)]
        return [make_task(task) for task in pack(ranges, task_count(ranges, self.options.tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of a task, queue by queue, ascending by offset."""
        return read_task(self.options, partition)


_QUEUE_FIELDS: dict[str, Callable[[MessageQueue], Any]] = {
    "topic": lambda queue: queue.topic,
    "broker": lambda queue: queue.broker_name,
    "queue_id": lambda queue: queue.queue_id,
}
# Filters of other kinds (or, like, null tests) go back to Spark, which applies them to the rows.
_COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda own, wanted: own == wanted,
    In: lambda own, wanted: own in wanted,
    GreaterThan: lambda own, wanted: own > wanted,
    GreaterThanOrEqual: lambda own, wanted: own >= wanted,
    LessThan: lambda own, wanted: own < wanted,
    LessThanOrEqual: lambda own, wanted: own <= wanted,
}


class PushdownReader(BatchReader):
    """A batch reader that skips the queues and offsets which a filter excludes.

    A class of its own: Spark refuses any reader that has `pushFilters` while
    spark.sql.python.filterPushdown.enabled is false, its default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Apply filters on topic, broker, queue_id and offset; return the others to Spark."""
        # Spark does not check a filter again which is not returned, so `_apply` must be exact.
        return [one for one in filters if not self._apply(one)]

    def _apply(self, one: Filter) -> bool:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        name = attribute[0] if len(attribute) == 1 else None
        if name not in (*_QUEUE_FIELDS, "offset"):
            return False
        if isinstance(one, IsNotNull):
            return True  # these columns are never null
        compare = _COMPARISONS.get(type(one))
        wanted = one.value if hasattr(one, "value") else None
        if compare is None or wanted is None:
            return False
        if name in _QUEUE_FIELDS:
            field_of = _QUEUE_FIELDS[name]
            self.snapshot = {
                queue: span
                for queue, span in self.snapshot.items()
                if compare(field_of(queue), wanted)
            }
            return True
        span = _offset_range(one)
        if span is None:
            return False
        # Ranges only shrink, so the order in which Spark pushes filters does not matter.
        self.snapshot = {
            queue: part
            for queue, (start, end) in self.snapshot.items()
            if (part := (max(start, span[0]), min(end, span[1])))[0] < part[1]
        }
        return True


def _offset_range(one: Filter) -> tuple[int, int] | None:
    """Return the offsets that a filter selects, end exclusive; None if not one range."""
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
