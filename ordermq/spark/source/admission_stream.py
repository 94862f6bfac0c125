"""A stream on Spark 4.2 and later, which tells where a batch begins, and its limit."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ordermq.spark.options import SourceOptions
from ordermq.spark.shown_errors import text_first
from ordermq.spark.source.offsets import OffsetJson, StreamOffset
from ordermq.spark.source.stream import StreamReader


class AdmissionStream(StreamReader, SupportsTriggerAvailableNow):
    """Lets Spark control the admission of messages to a micro-batch, as Spark calls it."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        # As Spark gave it last, and as it was read: it asks many times per second with the same.
        self._start: tuple[OffsetJson, StreamOffset] | None = None
        self._ends: tuple[int, OffsetJson] | None = None

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
        if self._start is None or self._start[0] != start:
            self._start = start, StreamOffset.of(start)
        end = self._next_end(self._start[1], max_rows)
        return start if end is None else end.to_json()

    @text_first()
    def reportLatestOffset(self) -> OffsetJson:
        """Return the ends of the queues, for the query's progress."""
        version = self._driver().ends_version
        if self._ends is None or self._ends[0] != version:
            self._ends = version, self._driver().queue_ends().to_json()
        return self._ends[1]
