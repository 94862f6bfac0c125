"""A driver program with a keyed state, to be killed: NAME_SERVERS FOLDER MASTER.

Adds up the numbers of `orders` by key and writes the running sums as JSON files. In the batches of
`HELD` the function, once it has processed a first queue of its task, leaves its process id in the
folder and waits: for the end of its process, or of the batch's file.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession

from ordermq.spark import apply_with_keyed_state

HELD = (2, 4, 6)
ROWS = 600  # of a micro-batch
OUT = "key string, queue_id int, offset bigint, total bigint"
DEADLINE_S = 240.0


def adding(folder: Path) -> Any:
    """The stage's function. Spark unpickles it anew for every task."""
    queues: list[Any] = []

    def add(rows: pd.DataFrame, states: pd.DataFrame, context: Any) -> Any:
        queues.append(context.queue)
        if context.queue != queues[0]:
            hold(folder, context.batch_id)
        key = rows["sharding_key"]
        number = rows["body"].map(int)
        of_key = number.groupby(key, sort=False)
        out = {"key": key, "queue_id": rows["queue_id"], "offset": rows["offset"]}
        total = of_key.cumsum() + key.map(states["total"])
        states["total"] += of_key.sum()
        return pd.DataFrame(out | {"total": total}), states

    return add


def hold(folder: Path, batch: int) -> None:
    """Wait in a batch of HELD until the test has killed something, once."""
    if batch not in HELD or (folder / f"passed-{batch}").exists():
        return
    (folder / f"{batch}.draft").write_text(str(os.getpid()))
    (folder / f"{batch}.draft").replace(folder / f"held-{batch}")
    end = time.monotonic() + DEADLINE_S
    while not (folder / f"passed-{batch}").exists():
        assert time.monotonic() < end, "the test killed nothing"
        threading.Event().wait(0.02)


def main() -> None:
    name_servers, text, master = sys.argv[1:]
    folder = Path(text)
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    given = {"name_servers": name_servers, "topic": "orders", "max_rows": str(ROWS)}
    given |= {"group": "etl", "starting_offsets": "earliest", "tasks": "2"}
    orders = spark.readStream.format("ordermq").options(**given).load()
    sums = apply_with_keyed_state(
        orders,
        adding(folder),
        OUT,
        "total bigint",
        initial={"total": 0},
        directory=str(folder / "states"),
    )
    query = (
        sums.writeStream.format("json")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
