"""A driver program in its own process, with its own JVM, to test every kind of end.

    python query_process.py NAME_SERVERS CHECKPOINT idle|busy

Prints `ready` when the query is idle after its first batch, or in the middle of it; then obeys
lines on stdin: `exit` (ends without stopping anything), `stop` (spark.stop()).
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from pyspark.sql import SparkSession


def main() -> None:
    name_servers, checkpoint, state = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    in_batch, may_end = threading.Event(), threading.Event()

    def take(batch: Any, number: int) -> None:
        batch.count()
        in_batch.set()
        if state == "busy":
            may_end.wait()

    frame = spark.readStream.format("ordermq").options(
        name_servers=name_servers, topic="orders", group="etl"
    )
    query = (
        frame.load().writeStream.foreachBatch(take).option("checkpointLocation", checkpoint).start()
    )
    assert in_batch.wait(120), query.exception()
    if state == "idle":
        query.processAllAvailable()
    tell(f"ready {jvm_pid(spark)}")
    order = sys.stdin.readline().strip()
    if order == "stop":
        spark.stop()
    os._exit(0) if state == "busy" else sys.exit(0)


def jvm_pid(spark: SparkSession) -> int:
    """The process the driver's JVM is."""
    return int(spark.sparkContext._jvm.ProcessHandle.current().pid())


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
