"""The reader of a batch query or of a stream that fits the options and this version of Spark.

What a version lacks is imported by what needs it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ordermq.spark.versions import ADMISSION, PUSHDOWN, is_before, require

if TYPE_CHECKING:
    from ordermq.spark.options import SourceOptions
    from ordermq.spark.source.batch import BatchReader, Snapshot
    from ordermq.spark.source.stream import StreamReader


def batch_reader(options: SourceOptions, snapshot: Snapshot | None) -> BatchReader:
    """Return the reader that the options select."""
    # Chosen by an option: this process cannot see whether Spark's setting is on.
    if not options.pushdown:
        from ordermq.spark.source.batch import BatchReader

        return BatchReader(options, snapshot)
    require(PUSHDOWN)  # Spark 4.0 has no filters
    from ordermq.spark.source.pushdown import PushdownReader

    return PushdownReader(options, snapshot)


def stream_reader(options: SourceOptions) -> StreamReader:
    """Return the reader that this version of Spark can call."""
    if is_before(ADMISSION):
        from ordermq.spark.source.self_limited_stream import SelfLimitedStream

        return SelfLimitedStream(options)
    from ordermq.spark.source.admission_stream import AdmissionStream

    return AdmissionStream(options)
