"""A Spark program on a cluster of two executors, from one topic to another.

    python -m tests.interop.spark_query NAME_SERVERS GROUP FROM TO FOLDER

A streaming query under the broker's locks, an ordered stage whose fence asks the broker before
every call, and the sink. Says as JSON lines how many rows are through, once a second; stops the
query when it is told a line. FOLDER/calls.jsonl gets a line for each call of the stage's function.
Where FOLDER/pause exists, the second call of broker-a's queue 0 waits for FOLDER/go.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from tests.interop.cluster import DEADLINE_S, LOCK_INTERVAL_MS, LOCK_MAX_LIVE_MS, ROOT

ROWS_PER_CALL = 10
MAX_ROWS = 150


def say(**members: object) -> None:
    os.write(1, b"\n" + json.dumps(members).encode() + b"\n")


def stage(folder: Path) -> Any:
    """Return the function for executors, which have this folder but not this module."""
    deadline_s = DEADLINE_S

    def called(rows: Any, context: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        assert context.lease is not None  # or there was no fence
        first = rows.column("offset")[0].as_py()
        queue, pause = context.queue, threading.Event()
        told = {
            "queue": f"{queue.broker_name}:{queue.queue_id}",
            "first": first,
            "rows": rows.num_rows,
            "lease": context.lease,
            "attempt": context.attempt,
            "executor": str(Path.cwd()),
        }
        with (folder / "calls.jsonl").open("a") as log:
            log.write(json.dumps(told) + "\n")
        is_chosen = told["queue"] == "broker-a:0" and first > 0
        if is_chosen and (folder / "pause").exists() and not (folder / "go").exists():
            (folder / "pausing").touch()
            for _ in range(int(deadline_s / 0.02)):
                if pause.wait(0.02) or (folder / "go").exists():
                    break
        body = pc.binary_join_element_wise(
            rows.column("body"), pa.scalar(b"done", pa.binary()), pa.scalar(b" ", pa.binary())
        )
        return rows.set_column(rows.schema.get_field_index("body"), "body", body)

    return called


def say_no_rows_until(started: threading.Event) -> None:
    # Spark takes a minute to start on a busy machine, and a silent program is taken for a hung one.
    while not started.wait(1):
        say(rows=0)


def main() -> None:
    name_servers, group, source, target, folder = sys.argv[1:]
    say(ready=os.getpid())
    started = threading.Event()
    threading.Thread(target=say_no_rows_until, args=(started,), daemon=True).start()
    os.environ["PYTHONPATH"] = str(ROOT)  # of its workers, which start in other folders
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from ordermq.spark import apply_in_order

    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.executorEnv.PYTHONPATH", str(ROOT))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    rows = (
        spark.readStream.format("ordermq")
        .options(name_servers=name_servers, topic=source, group=group, max_rows=str(MAX_ROWS))
        .options(starting_offsets="earliest", lock_wait_ms="60000")
        .options(lock_max_live_ms=str(LOCK_MAX_LIVE_MS), lock_interval_ms=str(LOCK_INTERVAL_MS))
        .options(columns="topic,broker,queue_id,offset,sharding_key,body")
        .load()
    )
    done = apply_in_order(
        rows,
        stage(Path(folder)),
        rows.schema,
        engine="arrow",
        rows_per_call=ROWS_PER_CALL,
        fence_interval_ms=0,
    )
    query = (
        done.writeStream.format("ordermq")
        .options(name_servers=name_servers, topic=target)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )
    started.set()
    told = threading.Thread(target=sys.stdin.readline, daemon=True)
    told.start()
    while told.is_alive() and query.isActive:
        told.join(1)
        say(rows=sum(one["numInputRows"] for one in query.recentProgress))
    if query.isActive:
        query.stop()
    failure = query.exception()
    say(rows=sum(one["numInputRows"] for one in query.recentProgress),
        failed=failure and str(failure))  # fmt: skip
    spark.stop()


if __name__ == "__main__":
    main()
