"""The streaming source as Spark calls it; `StreamDriver` does the work on the driver.

Spark makes a reader in one Python process per query run and calls its driver-side methods there,
one after the other. It makes other readers only to pickle them, and calls `read` on executors.
Which end a micro-batch has is asked differently from Spark 4.2 on: see readers.py.
"""

from __future__ import annotations

import atexit
import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ordermq.errors import ConfigError
from ordermq.spark.options import Boundary, Edge, SourceOptions
from ordermq.spark.shown_errors import text_first
from ordermq.spark.source.offsets import OffsetJson, StreamOffset
from ordermq.spark.source.read_task import make_task, read_task
from ordermq.spark.source.stream_driver import StreamDriver
from ordermq.spark.source.task_ranges import pack


class StreamReader(DataSourceStreamReader):
    """Reads a stream, each queue in the order of its offsets; all but the ends of its batches."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        # Not opened here: Spark makes readers which it only pickles, and they must not connect,
        # take locks or start threads.
        self._opened: StreamDriver | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options,)

    def _driver(self) -> StreamDriver:
        if self._opened is None:
            _refuse_options_of_batches(self.options)
            install_sigterm_handler()
            self._opened = StreamDriver(self.options)
            # Spark closes the connection and then sends SIGTERM. Where that comes as `stop` begins,
            # which the closed connection has called, the run ends when the process does.
            atexit.register(self._opened.close)
        return self._opened

    def _next_end(self, start: StreamOffset, limit: int | None) -> StreamOffset | None:
        driver = self._driver()
        end = driver.next_end(start, limit)
        # Spark asks again after 10 ms where nothing is to read, which costs it and this process a
        # part of a core. So the answer takes its time, unless messages arrive.
        if end is None and driver.wait_for_messages():
            end = driver.next_end(start, limit)
        return end

    def _tasks(self, start: StreamOffset, end: StreamOffset) -> list[InputPartition]:
        driver = self._driver()
        ranges = driver.begin_batch(start, end)
        # One at least, which reads nothing: a stage with state makes its folder in a first batch.
        return [make_task(task, driver.run_id) for task in pack(ranges, end.tasks) or [[]]]

    # On the driver. The names are Spark's.

    @text_first()
    def initialOffset(self) -> OffsetJson:
        """Return the offset at which a query without a checkpoint begins."""
        return self._driver().initial().to_json()

    @text_first()
    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        """Return the tasks of the batch, each queue whole in one."""
        return self._tasks(StreamOffset.of(start), StreamOffset.of(end))

    @text_first()
    def commit(self, end: OffsetJson) -> None:
        """Commit the offsets of a finished batch for the group, for tools that show lag."""
        self._driver().finish(StreamOffset.of(end))

    def stop(self) -> None:
        """End the run."""
        if self._opened is not None:
            with _sigterm_ignored():
                self._opened.close()
                atexit.unregister(self._opened.close)

    # On executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of a task, queue by queue, ascending by offset."""
        return read_task(self.options, partition)


def _refuse_options_of_batches(options: SourceOptions) -> None:
    # At the first call: PySpark fails once more after an error in `streamReader`, and then shows a
    # traceback with our text somewhere in it.
    if options.end != Boundary(Edge.LATEST):
        raise ConfigError(
            "options ending_offsets and ending_timestamp are for batch reads: remove them, or use "
            "spark.read"
        )
    if options.min_partitions is not None:
        raise ConfigError(
            "option min_partitions is for batch reads: remove it, or give tasks instead, which "
            "keeps the order of each queue"
        )


def install_sigterm_handler() -> None:
    """Let `stop` run when Spark ends this process.

    Spark sends SIGTERM and does not wait. Without a handler Python dies at once: for most ways a
    query can end, `stop` is not called.
    """
    # Only the main thread may set a handler; elsewhere, as in tests, `stop` is called by hand.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit_once)


def _exit_once(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not cut the exit short
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _sigterm_ignored() -> Iterator[None]:
    """Ignore SIGTERM during the block, which would be cut short by `_exit_once`.

    Not longer: programs that are started later would ignore it, too.
    """
    is_handled = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is _exit_once
    )
    if is_handled:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        if is_handled:
            signal.signal(signal.SIGTERM, _exit_once)
