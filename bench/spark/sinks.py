"""The sink, compared with a minimal Arrow writer: one large micro-batch from memory into each."""

from __future__ import annotations

import tempfile

from pyspark.sql import SparkSession

from bench.spark.rows import CountingSink, DiscardingSink, Rows

SINKS = {
    "ordermq, sender that discards": "bench_discard",
    "Arrow writer that counts": "bench_count",
}


def register(spark: SparkSession) -> None:
    for source in (Rows, CountingSink, DiscardingSink):
        spark.dataSource.register(source)


def add_batch_seconds(spark: SparkSession, sink: str, rows: int, keys: int) -> float:
    """Return the duration of the micro-batch as Spark reports it, reading included."""
    stream = spark.readStream.format("bench_rows").options(rows=rows, keys=keys).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            stream.writeStream.format(sink)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            query.processAllAvailable()
            found = [one for one in query.recentProgress if one["numInputRows"]]
        finally:
            query.stop()
    assert [one["numInputRows"] for one in found] == [rows], found
    return int(found[0]["durationMs"]["addBatch"]) / 1000
