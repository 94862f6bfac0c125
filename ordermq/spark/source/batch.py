"""The batch source: a snapshot of offsets that never changes, read by a few tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ordermq.client.session import ClientSession
from ordermq.errors import OrderMQError
from ordermq.spark.options import SourceOptions
from ordermq.spark.source.offsets import Ranges, resolve_snapshot
from ordermq.spark.source.queue_lives import Marks, QueueLives
from ordermq.spark.source.read_task import make_task, read_task
from ordermq.spark.source.task_ranges import pack, split, task_count

_log = logging.getLogger("ordermq.spark")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Ranges of queues that a batch read takes, which never change.

    Args:
        ranges: of the queues.
        marks: by which their lives are known: a topic may be made anew before it is read.
    """

    ranges: Ranges
    marks: Marks


def take_snapshot(options: SourceOptions) -> Snapshot:
    """Ask the brokers for the offsets that a batch read takes.

    Raises: as `offsets.resolve_snapshot`.
    """
    # A session of its own, closed at once: Spark ends the planner process when it likes.
    session = ClientSession(options.name_servers, options.remoting)
    try:
        ranges = session.call(resolve_snapshot(session, options))
        lives = QueueLives(session, options.read_group)
        marks = session.call(lives.mark({queue: end for queue, (_, end) in ranges.items()}))
        return Snapshot(ranges, marks)
    finally:
        session.close()


def try_snapshot(options: SourceOptions) -> Snapshot | None:
    """Take the snapshot while a DataFrame is made; None if the brokers give none.

    Spark asks for a schema without saying whether a batch or a stream is meant. A stream needs
    no snapshot, and one with a checkpoint must start even if its starting offsets have expired.
    """
    try:
        return take_snapshot(options)
    except OrderMQError as error:
        _log.info("no snapshot for a batch read: %s", error)
        return None


class BatchReader(DataSourceReader):
    """Reads a snapshot. Spark makes it in a planner process, and a copy in each task."""

    def __init__(self, options: SourceOptions, snapshot: Snapshot | None) -> None:
        self.options = options
        # Taken while the schema was asked for, as a rule: two actions on one DataFrame must read
        # the same messages, and Spark makes a reader for each. Here an error is raised.
        taken = snapshot if snapshot is not None else take_snapshot(options)
        self.ranges, self.marks = taken.ranges, taken.marks

    def partitions(self) -> list[InputPartition]:
        """Return the tasks: each queue is whole in one, unless `min_partitions` is given."""
        ranges = [(queue, *span) for queue, span in sorted(self.ranges.items())]
        if self.options.min_partitions is not None:
            tasks = [[part] for part in split(ranges, self.options.min_partitions)]
        else:
            tasks = pack(ranges, task_count(ranges, self.options.tasks))
        return [make_task(task, marks=self.marks) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of a task, queue by queue, ascending by offset."""
        return read_task(self.options, partition)
