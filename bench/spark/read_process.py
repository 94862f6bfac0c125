"""A program that reads topics with Spark, as often as it is told to; its standard input has a JSON
line per read. It runs in the environment of any checkout of ordermq: see queues.py.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F

from bench.spark.session import session


def read_batch(spark: SparkSession, options: dict[str, str]) -> int:
    """Read the whole topic in a batch; return the number of rows."""
    seen = Observation()
    frame = spark.read.format("ordermq").options(**options).load()
    counted = frame.observe(seen, F.count(F.lit(1)).alias("rows"))
    counted.write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def read_stream(spark: SparkSession, options: dict[str, str]) -> int:
    """Read what the topic has in micro-batches; return the number of rows."""
    with tempfile.TemporaryDirectory() as folder:
        query = (
            spark.readStream.format("ordermq")
            .options(**options, starting_offsets="earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(Path(folder) / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)


def main() -> None:
    spark = session()
    ways = {"batch": read_batch, "stream": read_stream}
    print("ready", flush=True)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        began = time.perf_counter()
        rows = ways[asked["way"]](spark, asked["options"])
        print(json.dumps({"rows": rows, "seconds": time.perf_counter() - began}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
