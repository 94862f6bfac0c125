"""The streaming source, as Spark calls it.

Spark makes a reader in one process a query run and calls its driver-side methods there; others
are made only to be pickled, and read on executors. So a reader keeps its options, and opens
nothing before the first call that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from ordermq.spark.source.offsets import StreamOffset
from ordermq.spark.source.queue_reader import range_of, read_range
from ordermq.spark.stream_driver import StreamDriver, end_in_order


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream, each queue in the order of its offsets."""

    def __init__(self, options: SourceOptions) -> None:
        if options.end != Boundary(Edge.LATEST):
            raise ConfigError("options ending_offsets and ending_timestamp are for batch reads")
        self.options = options
        self._opened: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_opened": None}

    def _driver(self) -> StreamDriver:
        if self._opened is None:
            end_in_order()
            self._opened = StreamDriver(self.options)
        return self._opened

    # On the driver. The names are Spark's.

    def initialOffset(self) -> dict[str, int]:
        """Where a query without a checkpoint begins."""
        return self._driver().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """`max_rows` of a micro-batch."""
        most = self.options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends with what there is now."""
        self._driver().freeze()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The end of the next batch; the very `start` if there is nothing to read."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = self._driver().latest(StreamOffset.of(start), most)
        return start if end is None else end.to_json()

    def reportLatestOffset(self) -> dict[str, int]:
        """Where the queues end, for the query's progress."""
        return self._driver().report().to_json()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One for each queue that has messages in the batch."""
        driver = self._driver()
        ranges = driver.begin(StreamOffset.of(start), StreamOffset.of(end))
        return [range_of(*one, driver.lease_id) for one in ranges]

    def commit(self, end: dict[str, int]) -> None:
        """A batch is finished; the group's offset follows, for tools that show lag."""
        self._driver().commit(StreamOffset.of(end))

    def stop(self) -> None:
        """The run ends."""
        if self._opened is not None:
            self._opened.close()

    # On executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a queue's range, ascending in offset."""
        return read_range(self.options, partition, is_ordered=self.options.is_ordered)
