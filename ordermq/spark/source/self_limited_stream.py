"""A stream on Spark 4.0 and 4.1, which tell neither where a batch begins nor its limit."""

from __future__ import annotations

import contextlib

from pyspark.sql.datasource import InputPartition

from ordermq.errors import StateError
from ordermq.spark.options import SourceOptions
from ordermq.spark.shown_errors import text_first
from ordermq.spark.source.offsets import OffsetJson, StreamOffset
from ordermq.spark.source.stream import StreamReader


class SelfLimitedStream(StreamReader):
    """Keeps the offset of the stream itself, and limits its own answers.

    Spark calls in this order:

        new query    latestOffset, initialOffset, partitions(initial, end), latestOffset, ...
        restarted    partitions(last, last), latestOffset, partitions(last, end), latestOffset, ...

    An unfinished batch comes straight after `partitions(last, last)`. Trigger.AvailableNow makes
    one batch and does not ask again. That it is the trigger is not told, so the first answer of
    each run is planned as the last one, which must know what all brokers have.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        # Where the next batch begins, and as Spark has it; None before Spark has told.
        self._at: tuple[StreamOffset, OffsetJson] | None = None
        self._first_end: OffsetJson | None = None  # the answer given while that was unknown
        self._has_answered = False

    @text_first()
    def latestOffset(self) -> OffsetJson:
        """Return the end of the next batch, or where the stream is if there is nothing to read."""
        if self._at is None:
            if self._first_end is not None:
                raise _wrapped()
            self._first_end = self._driver().first_end(self.options.max_rows).to_json()
            self._has_answered = True
            return self._first_end
        expected = contextlib.nullcontext() if self._has_answered else self._driver().last_answer()
        with expected:
            end = self._next_end(self._at[0], self.options.max_rows)
        self._has_answered = True
        return self._at[1] if end is None else end.to_json()

    @text_first()
    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        """Return the tasks of the batch; none where Spark tells the last offset of a checkpoint."""
        if self._at is None and start == end and self._first_end not in (None, end):
            raise _wrapped()
        until = StreamOffset.of(end)
        self._at = until, end
        return [] if start == end else self._tasks(StreamOffset.of(start), until)


def _wrapped() -> StateError:
    # Its order of calls is another one: it takes the first answer, which is given without knowing
    # the checkpoint, for the end of the run. That end may be before what was read.
    return StateError(
        "Spark's wrapper of Trigger.AvailableNow loses messages: set "
        "spark.sql.streaming.triggerAvailableNowWrapper.enabled=false, its default"
    )
