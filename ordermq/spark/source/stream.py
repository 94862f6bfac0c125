"""The streaming source as Spark calls it; `StreamDriver` does the work on the driver.

Spark makes a reader in one Python process per query run and calls its driver-side methods there,
one after the other. It makes other readers only to pickle them, and calls `read` on executors.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ordermq.errors import ConfigError
from ordermq.spark.options import Boundary, Edge, SourceOptions
from ordermq.spark.shown_errors import text_first
from ordermq.spark.source.offsets import OffsetJson, StreamOffset
from ordermq.spark.source.read_task import make_task, read_task
from ordermq.spark.source.stream_driver import StreamDriver
from ordermq.spark.source.task_ranges import pack


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream, each queue in the order of its offsets."""

    def __init__(self, options: SourceOptions) -> None:
        if options.end != Boundary(Edge.LATEST):
            raise ConfigError(
                "options ending_offsets and ending_timestamp are for batch reads: remove them, "
                "or use spark.read"
            )
        if options.min_partitions is not None:
            raise ConfigError(
                "option min_partitions is for batch reads: remove it, or give tasks instead, "
                "which keeps the order of each queue"
            )
        self.options = options
        # Not opened here: Spark makes readers which it only pickles, and they must not connect,
        # take locks or start threads.
        self._opened: StreamDriver | None = None
        # As Spark gave it last, and as it was read: it asks many times per second with the same.
        self._start: tuple[OffsetJson, StreamOffset] | None = None
        self._ends: tuple[int, OffsetJson] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_opened": None, "_start": None, "_ends": None}

    def _driver(self) -> StreamDriver:
        if self._opened is None:
            install_sigterm_handler()
            self._opened = StreamDriver(self.options)
        return self._opened

    # On the driver. The names are Spark's.

    @text_first()
    def initialOffset(self) -> OffsetJson:
        """Return the offset at which a query without a checkpoint begins."""
        return self._driver().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `max_rows` as the limit of a micro-batch."""
        max_rows = self.options.max_rows
        return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)

    @text_first()
    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end with the messages that exist now."""
        self._driver().freeze_end()

    @text_first()
    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:
        """Return the end of the next batch; `start` itself if there is nothing to read."""
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        driver = self._driver()
        if self._start is None or self._start[0] != start:
            self._start = start, StreamOffset.of(start)
        since = self._start[1]
        end = driver.next_end(since, max_rows)
        # Spark asks again after 10 ms where nothing is to read, which costs it and this process a
        # part of a core. So the answer takes its time, unless messages arrive.
        if end is None and driver.wait_for_messages():
            end = driver.next_end(since, max_rows)
        return start if end is None else end.to_json()

    @text_first()
    def reportLatestOffset(self) -> OffsetJson:
        """Return the ends of the queues, for the query's progress."""
        version = self._driver().ends_version
        if self._ends is None or self._ends[0] != version:
            self._ends = version, self._driver().queue_ends().to_json()
        return self._ends[1]

    @text_first()
    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        """Return the tasks of the batch, each queue whole in one."""
        driver, until = self._driver(), StreamOffset.of(end)
        ranges = driver.begin_batch(StreamOffset.of(start), until)
        return [make_task(task, driver.run_id) for task in pack(ranges, until.tasks)]

    @text_first()
    def commit(self, end: OffsetJson) -> None:
        """Commit the offsets of a finished batch for the group, for tools that show lag."""
        self._driver().finish(StreamOffset.of(end))

    def stop(self) -> None:
        """End the run."""
        if self._opened is not None:
            self._opened.close()

    # On executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of a task, queue by queue, ascending by offset."""
        return read_task(self.options, partition)


def install_sigterm_handler() -> None:
    """Let `stop` run when Spark ends this process.

    Spark sends SIGTERM and does not wait. Without a handler Python dies at once: for most ways a
    query can end, `stop` is not called.
    """
    # Only the main thread may set a handler; elsewhere, as in tests, `stop` is called by hand.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit_once)


def _exit_once(number: int, frame: FrameType | None) -> None:
    # A second SIGTERM must not cut the release of the locks short.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)
