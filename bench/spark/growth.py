"""Measure growth with queues, keys and batch sizes: python -m bench.spark.growth [--rows N].

Each point is the throughput relative to the baseline, both alternated in one process. Writes
bench/results/spark_growth.json. Needs a Java 17 runtime and the extra `spark`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench import workloads
from bench.machine import RESULTS, save
from bench.spark import keyed, sources, stages
from bench.spark.rows import QUEUES, Rows
from bench.spark.session import session
from bench.spark.turns import cached, in_turns, row, timing

ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
READ = "read from memory compared with ready batches"
STAGE = "ordered stage compared with mapInArrow"
SORTED = "stage by key compared with explicit sort, mapInArrow"
GROUPED = "stage by key compared with sort, groupBy.applyInArrow"
_KEYS = 1_000  # where keys are not what grows

Points = dict[str, dict[str, Any]]
Ways = Mapping[str, DataFrame]


def compared(ways: Ways, pairs: Mapping[str, tuple[str, str]], rows: int, title: str) -> Points:
    """Time the ways alternately; return the ratio of each pair by name, ordermq first."""
    for frame in ways.values():
        assert frame.count() == rows, title
    works = {name: timing(frame) for name, frame in ways.items()}
    times = in_turns(works, workloads.SPARK_GROWTH_ROUNDS, title)
    return {
        name: row(times[ordermq], times[baseline], rows)
        for name, (ordermq, baseline) in pairs.items()
    }


def reading(spark: SparkSession, rows: int, **more: int) -> tuple[DataFrame, DataFrame]:
    """Return the decoding source and its baseline."""
    given = {"rows": str(rows), "columns": ",".join(sources.SIX)} | more
    made = spark.read.format("bench_stored").options(**given)
    return made.option("way", "decode").load(), made.option("way", "memory").load()


def unshuffled(spark: SparkSession, rows: int, title: str, **more: int) -> Points:
    """Measure the source, and a stage over cached rows."""
    queues = more.get("queues", QUEUES)
    frame = cached(spark, rows, max(_KEYS, queues), queues=queues)
    decoded, there = reading(spark, rows, **more)
    ways = {
        "decode": decoded,
        "batches": there,
        "stage": stages.ordered_identity(frame),
        "mapInArrow": stages.baseline_identity(frame),
    }
    pairs = {READ: ("decode", "batches"), STAGE: ("stage", "mapInArrow")}
    found = compared(ways, pairs, rows, title)
    frame.unpersist(blocking=True)
    return found


def by_queues(spark: SparkSession, rows: int, queues: int) -> Points:
    return unshuffled(spark, rows, f"{queues} queues", queues=queues)


def by_batch_rows(spark: SparkSession, rows: int, batch_rows: int) -> Points:
    before = spark.conf.get(ARROW_ROWS)
    spark.conf.set(ARROW_ROWS, str(batch_rows))
    try:
        return unshuffled(spark, rows, f"batches of {batch_rows}", batch_rows=batch_rows)
    finally:
        spark.conf.set(ARROW_ROWS, before)


def by_keys(spark: SparkSession, rows: int, keys: int) -> Points:
    frame = cached(spark, rows, keys)
    ways = {"ordermq": keyed.ordered_stage(frame), "sorted": keyed.explicit_sort(frame)}
    pairs = {SORTED: ("ordermq", "sorted")}
    if keys <= workloads.SPARK_MOST_ARROW_GROUPS:
        ways["grouped"] = keyed.grouped_arrow(frame)
        pairs[GROUPED] = ("ordermq", "grouped")
    found = compared(ways, pairs, rows, f"{keys} keys")
    frame.unpersist(blocking=True)
    return found


AXES: dict[str, tuple[Callable[[SparkSession, int, int], Points], tuple[int, ...]]] = {
    "queues": (by_queues, workloads.SPARK_GROWTH_QUEUES),
    "keys": (by_keys, workloads.SPARK_GROWTH_KEYS),
    "rows per batch": (by_batch_rows, workloads.SPARK_GROWTH_BATCH_ROWS),
}


def measure(rows: int) -> dict[str, Any]:
    """Return a point per size, by axis and pair."""
    spark = session()
    for source in (Rows, sources.Stored):
        spark.dataSource.register(source)
    found: dict[str, Any] = {}
    try:
        for axis, (work, sizes) in AXES.items():
            lines: dict[str, dict[str, Any]] = {}
            for size in sizes:
                for name, point in work(spark, rows, size).items():
                    lines.setdefault(name, {})[str(size)] = point
            found[axis] = lines
    finally:
        spark.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=workloads.SPARK_GROWTH_ROWS)
    parser.add_argument("--out", type=Path, help="a folder, instead of bench/results")
    asked = parser.parse_args()
    result = {
        "command": "python -m bench.spark.growth",
        "workload": {"rows": asked.rows, "rounds": workloads.SPARK_GROWTH_ROUNDS},
        "axes": measure(asked.rows),
    }
    print(save("spark_growth", result, asked.out or RESULTS))
    if asked.out is not None:
        from bench.spark import pictures

        print(pictures.draw_growth(result, asked.out))


if __name__ == "__main__":
    main()
