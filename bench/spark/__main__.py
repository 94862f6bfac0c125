"""Measure ordermq and Spark's own ways, alternated: python -m bench.spark [--rows N].

Writes bench/results/spark.json. Needs a Java 17 runtime and the extra `spark`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import pandas  # type: ignore[import-untyped]
import pyarrow
import pyspark
from pyspark.sql import SparkSession

from bench import workloads
from bench.machine import describe, save
from bench.spark import keyed, sinks, sources, stages
from bench.spark.session import session
from bench.spark.turns import cached, in_turns, row, timing
from ordermq.core import IMPLEMENTATION


def measure_stages(spark: SparkSession, rows: int, rounds: int) -> dict[str, Any]:
    frame = cached(spark, rows, 1_000)
    found = {}
    for name, (baseline, ordered) in stages.CASES.items():
        for way in (baseline, ordered):
            assert way(frame).count() == rows, name
        works = {"ordermq": ordered(frame), "baseline": baseline(frame)}
        times = in_turns({key: timing(plan) for key, plan in works.items()}, rounds, name)
        found[name] = {"baseline": stages.BASELINES[name]} | row(
            times["ordermq"], times["baseline"], rows
        )
    frame.unpersist(blocking=True)
    return found


def measure_keyed(spark: SparkSession, rows: int, rounds: int) -> dict[str, Any]:
    found = {}
    for keys in workloads.SPARK_KEYS:
        frame = cached(spark, rows, keys)
        ways = dict(keyed.WAYS)
        if keys > workloads.SPARK_MOST_PANDAS_GROUPS:  # half a millisecond per group
            ways.pop("groupBy.applyInPandas, no order")
        for name, way in ways.items():
            assert way(frame).count() == rows, name
        works = {name: timing(way(frame)) for name, way in ways.items()}
        times = in_turns(works, rounds, f"{keys} keys")
        for name in times:
            if name != "ordermq":
                found[f"{keys} keys, {name}"] = row(times["ordermq"], times[name], rows)
        frame.unpersist(blocking=True)
    return found


def measure_sinks(spark: SparkSession, rows: int, rounds: int) -> dict[str, Any]:
    def into(sink: str) -> Callable[[], float]:
        return lambda: sinks.add_batch_seconds(spark, sink, rows, 1_000)

    times = in_turns({name: into(sink) for name, sink in sinks.SINKS.items()}, rounds, "sink")
    ordered, baseline = times.values()
    baseline_name = {"baseline": "DataSourceStreamArrowWriter that counts"}
    return {"stream sink": baseline_name | row(ordered, baseline, rows)}


PARTS = {
    "sources": sources.measure,
    "stages": measure_stages,
    "keyed": measure_keyed,
    "sinks": measure_sinks,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=workloads.SPARK_ROWS)
    parser.add_argument("--rounds", type=int, default=workloads.SPARK_ROUNDS)
    parser.add_argument("--only", choices=PARTS, help="measure one part only; no result is saved")
    arguments = parser.parse_args()
    if IMPLEMENTATION == "reference":
        sys.exit("ordermq: the reference core is too slow to measure: build the native one")
    spark = session()
    sinks.register(spark)
    chosen = [arguments.only] if arguments.only else list(PARTS)
    try:
        parts = {name: PARTS[name](spark, arguments.rows, arguments.rounds) for name in chosen}
    finally:
        spark.stop()
    for name, part in parts.items():
        for case, figures in part.items():
            print(f"{name}: {case}: {figures}")
    if arguments.only:
        return
    result = {
        "command": "python -m bench.spark",
        "workload": {"rows": arguments.rows, "rounds": arguments.rounds, "body_bytes": 100},
        "versions": {
            "pyspark": pyspark.__version__,
            "pyarrow": pyarrow.__version__,
            "pandas": pandas.__version__,
        },
        **parts,
    }
    print(save("spark", result), describe()["core"])


if __name__ == "__main__":
    main()
