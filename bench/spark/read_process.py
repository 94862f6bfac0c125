"""A program that reads topics with Spark, as often as it is told to; its standard input has the
options of a read per line. It runs in the environment of any checkout of ordermq: see queues.py.
"""

from __future__ import annotations

import json
import sys
import time

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


def main() -> None:
    spark = session()
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        rows = read_batch(spark, json.loads(line))
        print(json.dumps({"rows": rows, "seconds": time.perf_counter() - began}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
