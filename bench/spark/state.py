"""Measure stages with state: python -m bench.spark.state [--keys N].

A stream in which each micro-batch has one row per key; a count and a sum are kept per key, and
each row gets the sum so far. `apply_with_keyed_state`, by column and with a call per key, and
`apply_with_state`, in one session, one after the other. The ways with a call per key are given
fewer keys: at Spark's pace all would take it an hour. Writes bench/results/spark_state.json.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from bench.machine import save
from bench.spark.processes import Tree
from bench.spark.rows import Rows
from bench.spark.session import session
from ordermq.spark import (
    apply_with_keyed_state,
    apply_with_state,
    state_statistics,
    stored_states,
)

KEYS = 100_000
QUEUES = 8
OUT = "sharding_key string, total bigint"
STATE = "seen bigint, total bigint"
_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def by_column(rows: pd.DataFrame, states: pd.DataFrame) -> Any:
    key = rows["sharding_key"]
    of_key = rows.groupby("sharding_key", sort=False)["offset"]
    total = of_key.cumsum() + key.map(states["total"])
    states["seen"] += of_key.size()
    states["total"] += of_key.sum()
    return pd.DataFrame({"sharding_key": key, "total": total}), states


def by_key(rows: pd.DataFrame, state: Any) -> Any:
    seen, total = (state["seen"], state["total"]) if state else (0, 0)
    totals = rows["offset"].cumsum() + total
    out = pd.DataFrame({"sharding_key": rows["sharding_key"], "total": totals})
    return out, {"seen": seen + len(rows), "total": int(totals.iloc[-1])}


Way = Callable[[DataFrame, Path], DataFrame]


def keyed(frame: DataFrame, folder: Path) -> DataFrame:
    return apply_with_keyed_state(
        frame, by_column, OUT, STATE, initial={"seen": 0, "total": 0}, directory=str(folder)
    )


def keyed_per_key(frame: DataFrame, folder: Path) -> DataFrame:
    return apply_with_keyed_state(frame, by_key, OUT, STATE, per_key=True, directory=str(folder))


def sparks(frame: DataFrame, folder: Path) -> DataFrame:
    return apply_with_state(frame, by_key, OUT, STATE)


WAYS: Mapping[str, Way] = {
    "apply_with_keyed_state": keyed,
    "apply_with_keyed_state, per_key": keyed_per_key,
    "apply_with_state": sparks,
}
# Micro-batches, and rows of each; all but the first are measured.
SIZES = {
    "apply_with_keyed_state": (6, 1.0),
    "apply_with_keyed_state, per_key": (3, 0.08),
    "apply_with_state": (3, 0.01),
}


def measure(spark: SparkSession, name: str, keys: int) -> dict[str, Any]:
    micro_batches, share = SIZES[name]
    rows = int(keys * share) // QUEUES * QUEUES * micro_batches
    options = {"rows": rows, "keys": keys, "queues": QUEUES, "micro_batches": micro_batches}
    source = spark.readStream.format("bench_rows").options(**options).load()
    tree, seconds, used = Tree(spark), [], []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        stage = WAYS[name](source, folder / "states")
        writer = stage.writeStream.option("checkpointLocation", str(folder / "checkpoint"))

        # At its begin a batch's own work is still to come: a count of it is its whole work.
        def count(batch: DataFrame, number: int) -> None:
            before = tree.cpu_seconds()
            batch.write.format("noop").mode("overwrite").save()
            used.append(tree.cpu_seconds() - before)

        query = writer.foreachBatch(count).start()
        query.processAllAvailable()
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                seconds.append(progress["durationMs"]["triggerExecution"] / 1e3)
        query.stop()
        found: dict[str, Any] = {}
        if name != "apply_with_state":
            found = checked(folder / "states", rows, keys)
    measured = rows // micro_batches * (micro_batches - 1)
    assert len(seconds) == micro_batches, seconds
    return {
        "rows": measured,
        "rows_per_second": round(measured / sum(seconds[1:])),
        "cpu_ms_per_thousand_rows": round(sum(used[1:]) * 1e6 / measured, 1),
        **found,
    }


def checked(folder: Path, rows: int, keys: int) -> dict[str, Any]:
    """Compare the states with NumPy's sums; return figures of them."""
    states = stored_states(str(folder)).to_pandas()
    offsets = np.arange(rows // QUEUES, dtype=np.int64)
    wanted: dict[str, int] = {}
    for queue in range(QUEUES):
        places, at = np.unique(offsets * 7_919 % (keys // QUEUES), return_inverse=True)
        sums = np.bincount(at, weights=offsets).astype(np.int64)
        names = (f"order-{place * QUEUES + queue:08d}" for place in places)
        wanted.update(zip(names, sums.tolist(), strict=True))
    assert dict(zip(states["sharding_key"], states["total"], strict=True)) == wanted
    figures = state_statistics(str(folder))
    return {
        "keys": sum(one["keys"] for one in figures),
        "state_mib": round(sum(one["state_bytes"] for one in figures) / 2**20, 1),
        "stored_mib": round(sum(one["stored_bytes"] for one in figures) / 2**20, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--only", choices=WAYS, help="measure one way only; no result is saved")
    asked = parser.parse_args()
    spark = session()
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _PROVIDER)
    spark.dataSource.register(Rows)
    found = {}
    for name in [asked.only] if asked.only else WAYS:
        found[name] = measure(spark, name, asked.keys)
        print(name, found[name], flush=True)
    spark.stop()
    if asked.only:
        return
    sparks_own = found["apply_with_state"]
    for row in found.values():
        row["rate_ratio"] = round(row["rows_per_second"] / sparks_own["rows_per_second"], 1)
        cpu = sparks_own["cpu_ms_per_thousand_rows"] / row["cpu_ms_per_thousand_rows"]
        row["cpu_ratio"] = round(cpu, 1)
    workload = {"keys": asked.keys, "queues": QUEUES, "body_bytes": 100}
    print(save("spark_state", {"command": "python -m bench.spark.state", "workload": workload,
                               "ways": found}))  # fmt: skip


if __name__ == "__main__":
    main()
