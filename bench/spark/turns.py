"""Plans timed in turns, as ratios of each round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

Rounds = dict[str, list[float]]


def timed(frame: DataFrame) -> float:
    start = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def in_turns(works: dict[str, Callable[[], float]], rounds: int, title: str) -> Rounds:
    """Every work once a round, so that what slows the machine slows all of them."""
    found: Rounds = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            seconds = work()
            if number:  # the first round warms JVM and worker processes
                found[name].append(seconds)
        told = ", ".join(f"{name} {times[-1]:.2f} s" for name, times in found.items() if times)
        print(f"{title}, round {number}: {told or 'warmed up'}", flush=True)
    return found


def row(ours: list[float], floor: list[float], rows: int) -> dict[str, Any]:
    """Rates of the best rounds; the ratio is the median of the rounds' own."""
    ratios = [theirs / mine for mine, theirs in zip(ours, floor, strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(one, 3) for one in ratios],
        "ours_krows_per_second": round(rows / min(ours) / 1000),
        "floor_krows_per_second": round(rows / min(floor) / 1000),
    }


def timing(plan: DataFrame) -> Callable[[], float]:
    return lambda: timed(plan)


def cached(spark: SparkSession, rows: int, keys: int, **more: int) -> DataFrame:
    """The rows of rows.py in the JVM's memory; `more` are options."""
    frame: DataFrame = spark.read.format("bench_rows").options(rows=rows, keys=keys, **more).load()
    frame = frame.cache()
    assert frame.count() == rows
    return frame
