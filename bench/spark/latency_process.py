"""A streaming query whose micro-batches print when they began and when their messages were sent.

python -m bench.spark.latency_process FORMAT CHECKPOINT OPTIONS: a JSON line per micro-batch with
rows, until it is killed. Times are ms since 1970; see kafka_latency.py.
"""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import DataFrame

import ordermq.spark
from bench.peers.kafka import connector_jars
from bench.spark.session import session

BODY = {"kafka": "value", "ordermq": "body"}


def main() -> None:
    kind, checkpoint, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    spark = session(jars=connector_jars() if kind == "kafka" else "")
    ordermq.spark.register(spark)

    def note(batch: DataFrame, number: int) -> None:
        began = time.time() * 1e3
        sent = [int(row[0]) for row in batch.selectExpr(f"CAST({BODY[kind]} AS STRING)").collect()]
        if sent:
            print(json.dumps({"began": began, "sent": sent}), flush=True)

    frame = spark.readStream.format(kind).options(**options).load()
    query = frame.writeStream.foreachBatch(note).option("checkpointLocation", checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
