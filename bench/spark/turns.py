"""Timing of alternated plans, as ratios per round."""

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
    """Time every work once per round, so that a slow moment of the machine affects all of them."""
    found: Rounds = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            seconds = work()
            if number:  # the first round warms JVM and worker processes
                found[name].append(seconds)
        last = ", ".join(f"{name} {times[-1]:.2f} s" for name, times in found.items() if times)
        print(f"{title}, round {number}: {last or 'warmed up'}", flush=True)
    return found


def row(ordered: list[float], baseline: list[float], rows: int) -> dict[str, Any]:
    """Return the rates of the best rounds, and the median of the rounds' ratios."""
    ratios = [theirs / mine for mine, theirs in zip(ordered, baseline, strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(one, 3) for one in ratios],
        "ordermq_krows_per_second": round(rows / min(ordered) / 1000),
        "baseline_krows_per_second": round(rows / min(baseline) / 1000),
    }


def timing(plan: DataFrame) -> Callable[[], float]:
    return lambda: timed(plan)


def cached(spark: SparkSession, rows: int, keys: int, **more: int) -> DataFrame:
    """Return the rows of rows.py, cached in the JVM; `more` are options."""
    frame: DataFrame = spark.read.format("bench_rows").options(rows=rows, keys=keys, **more).load()
    frame = frame.cache()
    assert frame.count() == rows
    return frame
