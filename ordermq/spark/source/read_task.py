"""A task of the source: the ranges that it reads, as they travel from the driver to an executor."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ordermq.client.queue_life import QueueMark
from ordermq.errors import StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.frozen_imports import freeze_imports
from ordermq.spark.options import SourceOptions
from ordermq.spark.session import shared_session
from ordermq.spark.shown_errors import text_first
from ordermq.spark.source.queue_reader import QueueRange, read_ranges
from ordermq.spark.source.task_ranges import Range

_NO_MARKS: Final[Mapping[MessageQueue, QueueMark]] = {}


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """The ranges that one task reads, one after the other.

    Nothing else the driver knows reaches `read`.

    Args:
        lease: lease id of the run that holds the queues; None in a batch read, or without locks.
    """

    ranges: tuple[QueueRange, ...]
    lease: int | None = None


def make_task(
    ranges: Sequence[Range],
    lease: int | None = None,
    marks: Mapping[MessageQueue, QueueMark] = _NO_MARKS,
) -> ReadTask:
    """Make a task and try to pickle it.

    Args: marks: of the queues, where the task is to find out whether they are still the same.
    Raises: StateError: it cannot be pickled.
    """
    made = ReadTask(
        tuple(
            QueueRange(
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                start,
                end,
                str(marks[queue]) if queue in marks else "",
            )
            for queue, start, end in ranges
        ),
        lease,
    )
    # Spark reports a pickling failure of its own as a bare number, so it is tried here first.
    try:
        pickle.dumps(made)
    except Exception as error:
        raise StateError(f"{made} cannot be sent to executors: {error}") from error
    return made


def read_task(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read one task's ranges; raises as `read_ranges`."""
    # With no partitions at all, Spark calls `read` once with an empty partition of its own.
    if not isinstance(partition, ReadTask):
        return
    with text_first():
        session = shared_session(options.name_servers, options.remoting)
        yield from read_ranges(session, options, partition.ranges, partition.lease)
    freeze_imports()
