"""A driver program on a cluster of two executors: python cluster_process.py NAME_SERVERS FOLDER.

Reads the topic `orders` as a batch, whose every task fails at its first attempt, and as a stream;
a stage behind the source checks the order of what it gets. Prints its counts as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession


def checked(fails_once: bool) -> Any:
    """A stage that passes rows on whose offsets rise queue by queue."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        last: dict[int, int] = {}
        for batch in batches:
            queues, offsets = (batch.column(name).to_pylist() for name in ("queue_id", "offset"))
            for queue, offset in zip(queues, offsets, strict=True):
                assert last.get(queue, -1) < offset, (queue, last, offset)
                last[queue] = offset
            if fails_once and context is not None and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt fails, with rows given out already")
            yield batch

    return work


def counted(frame: DataFrame, *, fails_once: bool = False) -> DataFrame:
    return frame.select("queue_id", "offset").mapInArrow(
        checked(fails_once), "queue_id INT, offset BIGINT"
    )


def main() -> None:
    name_servers, folder = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", sys.path[0] + ":" + sys.path[1])
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    given = {"name_servers": name_servers, "topic": "orders", "arrow_batch_rows": "500"}
    batch = counted(spark.read.format("ordermq").options(**given).load(), fails_once=True)
    rows = [(row.queue_id, row.offset) for row in batch.collect()]
    streamed: list[tuple[int, int]] = []

    def take(one: DataFrame, number: int) -> None:
        streamed.extend((row.queue_id, row.offset) for row in one.collect())

    stream = spark.readStream.format("ordermq").options(**given, max_rows="3000", group="etl")
    query = (
        counted(stream.load())
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    told = {"batch": sorted(rows), "stream": sorted(streamed)}
    sys.stdout.write("\n" + json.dumps(told) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
