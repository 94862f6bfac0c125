"""The Spark program that ci/spark.sh --faults breaks: python query.py SETTINGS, which are JSON.

Numbers each key's messages by a keyed state and writes them as Parquet files. In a batch with a
fault a task leaves the id of its process in the folder and waits until run.py has broken something.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession

from ordermq.spark import apply_with_keyed_state

COLUMNS = "topic,broker,queue_id,offset,sharding_key,body"
OUT = "broker STRING, queue_id INT, offset BIGINT, sharding_key STRING, nth BIGINT, seen BIGINT"
SECOND_ATTEMPT = "second attempt"
DEADLINE_S = 300.0


def numbering(folder: Path, faults: dict[int, str]) -> Any:
    """The stage's function. Spark unpickles it anew for every task."""
    queues: list[Any] = []

    def number(rows: pd.DataFrame, states: pd.DataFrame, context: Any) -> Any:
        if context.queue not in queues:
            queues.append(context.queue)
        told = {
            "batch": context.batch_id,
            "task": context.partition,
            "attempt": context.attempt,
            "queue": str(context.queue),
            "first": int(rows["offset"].iloc[0]),
            "rows": len(rows),
            "process": os.getpid(),
        }
        with (folder / "calls.jsonl").open("a") as log:  # one write each: lines stay whole
            log.write(json.dumps(told) + "\n")
        await_fault(folder, faults.get(context.batch_id), context, len(queues))
        key = rows["sharding_key"]
        columns = ["broker", "queue_id", "offset", "sharding_key"]
        seen = rows.groupby("sharding_key", sort=False).cumcount() + key.map(states["seen"]) + 1
        states["seen"] += key.value_counts()
        return rows[columns].assign(nth=rows["body"].map(int), seen=seen), states

    return number


def await_fault(folder: Path, fault: str | None, context: Any, queues: int) -> None:
    """Wait until the batch's fault has come: the first task for another attempt of it, or any task
    in its second queue for run.py."""
    batch, passed = context.batch_id, folder / f"passed-{context.batch_id}"
    if fault is None or passed.exists():
        return
    if fault == SECOND_ATTEMPT:
        if context.partition != 0:
            return  # these end soon, so that Spark finds the first one slow
        (folder / f"slow-{batch}-{context.attempt}").touch()
        if len(list(folder.glob(f"slow-{batch}-*"))) > 1:
            passed.touch()
    elif queues < 2:
        return
    else:
        draft = folder / f"{batch}.{os.getpid()}"
        draft.write_text(str(os.getpid()))
        draft.replace(folder / f"held-{batch}")
    end = time.monotonic() + DEADLINE_S
    while not passed.exists():
        assert time.monotonic() < end, f"no {fault}"
        threading.Event().wait(0.02)


def session(given: dict[str, Any]) -> SparkSession:
    builder = (
        SparkSession.builder.master(given["master"])
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "512m")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.sql.session.timeZone", "UTC")
        # A busy machine takes longer than 15 s to start a Python process.
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
    )
    if given["speculation"]:
        builder = (
            builder.config("spark.speculation", "true")
            .config("spark.speculation.interval", "50ms")
            .config("spark.speculation.multiplier", "1.5")
            .config("spark.speculation.quantile", "0.5")
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> None:
    given = json.loads(sys.argv[1])
    folder = Path(given["folder"])
    spark = session(given)
    rows = (
        spark.readStream.format("ordermq")
        .options(**given["source"], columns=COLUMNS, starting_offsets="earliest")
        .load()
    )
    numbered = apply_with_keyed_state(
        rows,
        numbering(folder, {int(batch): fault for batch, fault in given["faults"].items()}),
        OUT,
        "seen BIGINT",
        initial={"seen": 0},
        directory=str(folder / "states"),
        allow_speculation=given["speculation"],
    )
    query = (
        numbered.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    query.awaitTermination()
    # Spark reads the files that its log names: a failed attempt leaves others.
    spark.read.parquet(str(folder / "rows")).toPandas().to_parquet(folder / "result.parquet")
    spark.stop()


if __name__ == "__main__":
    main()
