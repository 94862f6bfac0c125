"""Run ordered stages with spilling shuffles, retries and two hosts.

A process of its own, because a process has one Spark: ordered_run.py MASTER prints one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from memory_source import MemorySource
from pyspark.sql import DataFrame, SparkSession

from ordermq.spark import apply_in_order

ROOT = Path(__file__).resolve().parents[2]
OUT = "queue_id int, offset bigint, key string, call string, place bigint, attempt int"
ROWS = 1_200


def session(master: str) -> SparkSession:
    paths = [str(ROOT), str(Path(__file__).parent)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(paths))
        .config("spark.sql.shuffle.partitions", "3")
        # A sort that spills merges runs, and so must any order it is to keep.
        .config("spark.shuffle.spill.numElementsForceSpillThreshold", "100")
        .config("spark.shuffle.sort.bypassMergeThreshold", "1")
    )
    made: SparkSession = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    made.dataSource.register(MemorySource)
    return made


def noted(rows: Any, context: Any) -> Any:
    import uuid

    import pyarrow as pa

    count = rows.num_rows
    return pa.RecordBatch.from_pydict({
        "queue_id": rows.column("queue_id"),
        "offset": rows.column("offset"),
        "key": [str(context.key)] * count,
        "call": [uuid.uuid4().hex] * count,
        "place": range(count),
        "attempt": [context.attempt] * count,
    })  # fmt: skip


def breaks(rows: list[Any]) -> int:
    """Rows that come before one they should follow, within a call and a queue."""
    calls: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        calls[row.call, row.queue_id].append((row.place, row.offset))
    found = 0
    for places in calls.values():
        offsets = [offset for _, offset in sorted(places)]
        found += sum(a >= b for a, b in pairwise(offsets))
    return found


def by_key(source: DataFrame) -> list[Any]:
    return apply_in_order(source, noted, OUT, key="plane", engine="arrow").collect()


def unordered(source: DataFrame) -> list[Any]:
    """The same groups through Spark alone: the proof that there is something to keep."""

    def stage(table: Any) -> Any:
        import uuid

        import pyarrow as pa

        count = table.num_rows
        return pa.table({
            "queue_id": table.column("queue_id"),
            "offset": table.column("offset"),
            "key": [""] * count,
            "call": [uuid.uuid4().hex] * count,
            "place": pa.array(range(count), pa.int64()),
            "attempt": pa.array([0] * count, pa.int32()),
        })  # fmt: skip

    return source.groupBy("plane").applyInArrow(stage, OUT).collect()


def streamed(source: DataFrame) -> list[Any]:
    stage = apply_in_order(source, noted, OUT, key="plane", engine="arrow")
    with tempfile.TemporaryDirectory() as folder:
        query = (
            stage.writeStream.format("json")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start(f"{folder}/rows")
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        rows: list[Any] = source.sparkSession.read.schema(OUT).json(f"{folder}/rows").collect()
        return rows


def retried(source: DataFrame) -> list[Any]:
    """The first attempt of queue 1's task fails after half of its rows."""

    def function(rows: Any, context: Any) -> Any:
        first = rows.column("offset")[0].as_py()
        if context.queue.queue_id == 1 and context.attempt == 0 and first >= ROWS // 2:
            raise RuntimeError("this attempt fails")
        return noted(rows, context)

    stage = apply_in_order(source, function, OUT, engine="arrow", rows_per_call=100)
    return stage.collect()


def main(master: str) -> None:
    spark = session(master)

    def source(**options: int) -> DataFrame:
        settings = {"rows": ROWS, "batch_rows": 100, "parts": 3, "step": ROWS} | options
        return spark.read.format("omq_memory").options(**settings).load()

    def stream() -> DataFrame:
        options = {"rows": ROWS, "batch_rows": 100, "parts": 3, "step": ROWS}
        return spark.readStream.format("omq_memory").options(**options).load()

    ways = {
        "by_key": by_key(source()),
        "unordered": unordered(source()),
        "streamed": streamed(stream()),
        "retried": retried(source(parts=1)),
    }
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    ways["without AQE"] = by_key(source())
    told = {
        name: {
            "rows": len(rows),
            "distinct": len({(row.queue_id, row.offset) for row in rows}),
            "breaks": breaks(rows),
            "attempts": sorted({(row.queue_id, row.attempt) for row in rows}),
        }
        for name, rows in ways.items()
    }
    spark.stop()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
