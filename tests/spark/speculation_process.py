"""A driver program whose cluster runs two attempts of one task: MASTER NAME_SERVERS FOLDER.

Writes the topic `orders` to `copied` by a plain stage. The first attempt at queue 0 hands out
some rows, then waits for the second one's end, as a task on a slow host does. Prints as JSON what
the ordered stage said to such a session, and the attempts that were seen.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from ordermq.errors import ConfigError
from ordermq.spark import apply_in_order

COLUMNS = "topic,broker,queue_id,offset,sharding_key,body"
DEADLINE_S = 240.0


def session(master: str) -> SparkSession:
    made: SparkSession = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        # What mapInArrow gets is cut by this, whatever the source gave.
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "50ms")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.quantile", "0.5")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    return made


def dawdling(folder: Path) -> Any:
    """Passes rows on; leaves a file for each attempt that began, and one for each that ended."""

    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        attempt = TaskContext.get().attemptNumber()  # type: ignore[union-attr]
        for number, batch in enumerate(batches):
            queue = batch.column("queue_id")[0].as_py()
            (folder / f"{queue}-{attempt}-begun").touch()
            if queue == 0 and attempt == 0 and number == 2:
                end = time.monotonic() + DEADLINE_S
                while not (folder / "0-1-ended").exists():
                    assert time.monotonic() < end, "Spark made no second attempt"
                    threading.Event().wait(0.02)
            yield batch
        (folder / f"{queue}-{attempt}-ended").touch()

    return stage


def main() -> None:
    master, name_servers, text = sys.argv[1:]
    spark, folder = session(master), Path(text)
    to = {"name_servers": name_servers}
    rows = spark.read.format("ordermq").options(**to, topic="orders", columns=COLUMNS).load()
    try:
        apply_in_order(rows, lambda one: one, rows.schema)
        said = ""
    except ConfigError as error:
        said = str(error)
    copied = rows.mapInArrow(dawdling(folder), rows.schema)
    copied.write.format("ordermq").options(**to, topic="copied").mode("append").save()
    told = {"refused": said, "attempts": sorted(path.name for path in folder.iterdir())}
    sys.stdout.write("\n" + json.dumps(told) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
