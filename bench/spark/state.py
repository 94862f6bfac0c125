"""Measure stages with state: python -m bench.spark.state [--keys N] [--rows-per-key N].

A stream in which each micro-batch has one row per key, or as many as --rows-per-key says; a count
and a sum are kept per key, and each row gets the sum so far. `apply_with_keyed_state`, by column
and with a call per key, `apply_with_state` with DataFrames and with rows, and Spark's own
`transformWithState` by row, by turns in one session; figures are medians of the rounds behind one
that warms the JVM. The ways with a call per key are given fewer keys: at Spark's pace all would
take it an hour.
Writes bench/results/spark_state.json, or with several rows per key spark_state_rows.json.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from bench.machine import command_line, save
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
QUEUES = 4
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
    totals = rows["offset"].to_numpy().cumsum() + total
    out = {"sharding_key": rows["sharding_key"].to_numpy(), "total": totals}
    return out, {"seen": seen + len(rows), "total": int(totals[-1])}


def by_key_of_series(rows: pd.DataFrame, state: Any) -> Any:
    seen, total = (state["seen"], state["total"]) if state else (0, 0)
    totals = rows["offset"].cumsum() + total
    out = pd.DataFrame({"sharding_key": rows["sharding_key"], "total": totals})
    return out, {"seen": seen + len(rows), "total": int(totals.iloc[-1])}


OUT_ARROW = pa.schema([("sharding_key", pa.string()), ("total", pa.int64())])


def by_key_of_arrow(rows: Any, state: Any) -> Any:
    seen, total = (state["seen"], state["total"]) if state else (0, 0)
    totals = list(accumulate(rows["offset"].to_pylist(), initial=total))[1:]
    columns = [rows["sharding_key"], pa.array(totals)]
    out = pa.RecordBatch.from_arrays(columns, schema=OUT_ARROW)
    return out, {"seen": seen + len(totals), "total": totals[-1]}


class Sums(StatefulProcessor):
    """The same by Spark's rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._kept = handle.getValueState("kept", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        seen, total = self._kept.get() or (0, 0)
        for row in sorted(rows, key=lambda row: row.offset):
            seen, total = seen + 1, total + row.offset
            yield Row(sharding_key=row.sharding_key, total=total)
        self._kept.update((seen, total))

    def close(self) -> None:
        return None


Way = Callable[[DataFrame, str], DataFrame]
NEW = {"seen": 0, "total": 0}


def keyed(frame: DataFrame, folder: str) -> DataFrame:
    return apply_with_keyed_state(frame, by_column, OUT, STATE, initial=NEW, directory=folder)


def keyed_per_key_of_arrow(frame: DataFrame, folder: str) -> DataFrame:
    return apply_with_keyed_state(
        frame, by_key_of_arrow, OUT, STATE, per_key=True, engine="arrow", directory=folder
    )


def keyed_per_key(frame: DataFrame, folder: str) -> DataFrame:
    return apply_with_keyed_state(frame, by_key, OUT, STATE, per_key=True, directory=folder)


def keyed_per_key_of_series(frame: DataFrame, folder: str) -> DataFrame:
    return apply_with_keyed_state(
        frame, by_key_of_series, OUT, STATE, per_key=True, directory=folder
    )


def shuffled(frame: DataFrame, folder: str) -> DataFrame:
    return apply_with_state(frame, by_key, OUT, STATE)


def by_key_of_rows(rows: list[Row], state: Any) -> Any:
    seen, total = (state["seen"], state["total"]) if state else (0, 0)
    out = []
    for row in rows:
        seen, total = seen + 1, total + row.offset
        out.append((row.sharding_key, total))
    return out, {"seen": seen, "total": total}


def shuffled_rows(frame: DataFrame, folder: str) -> DataFrame:
    return apply_with_state(frame, by_key_of_rows, OUT, STATE, engine="rows")


def sparks(frame: DataFrame, folder: str) -> DataFrame:
    return frame.groupBy("sharding_key").transformWithState(Sums(), OUT, "append", "none")


SHUFFLED = "apply_with_state"
SHUFFLED_ROWS = 'apply_with_state, engine="rows"'
SPARKS = "Spark's transformWithState, by row"
# How it is made, micro-batches, share of the keys. All micro-batches but the first are measured.
WAYS: Mapping[str, tuple[Way, int, float]] = {
    "apply_with_keyed_state": (keyed, 6, 1.0),
    'apply_with_keyed_state, per_key=True, engine="arrow"': (keyed_per_key_of_arrow, 4, 1.0),
    "apply_with_keyed_state, per_key=True": (keyed_per_key, 4, 1.0),
    "apply_with_keyed_state, per_key=True, by Series": (keyed_per_key_of_series, 4, 1.0),
    SHUFFLED: (shuffled, 6, 0.05),
    SHUFFLED_ROWS: (shuffled_rows, 6, 0.05),
    SPARKS: (sparks, 6, 0.05),
}


def measure(spark: SparkSession, name: str, all_keys: int, rows_per_key: int) -> dict[str, Any]:
    way, micro_batches, share = WAYS[name]
    keys = int(all_keys * share) // QUEUES * QUEUES
    rows = keys * rows_per_key * micro_batches
    options = {"rows": rows, "keys": keys, "queues": QUEUES, "micro_batches": micro_batches}
    source = spark.readStream.format("bench_rows").options(**options).load()
    tree, seconds, used = Tree(spark), [], []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        stage = way(source, str(folder / "states"))
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
        if name not in (SHUFFLED, SHUFFLED_ROWS, SPARKS):
            found = checked(folder / "states", rows, keys)
    measured = rows // micro_batches * (micro_batches - 1)
    assert len(seconds) == micro_batches, seconds
    return {
        "keys": keys,
        "rows": measured,
        "rows_per_second": round(measured / sum(seconds[1:])),
        "cpu_ms_per_thousand_rows": round(sum(used[1:]) * 1e6 / measured, 1),
        **found,
    }


def middle(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last round's figures, with the medians of those that depend on time."""
    timed = ("rows_per_second", "cpu_ms_per_thousand_rows")
    return rows[-1] | {name: round(median(row[name] for row in rows), 1) for name in timed}


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
    parser.add_argument("--rows-per-key", type=int, default=1, help="in each micro-batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=WAYS, help="measure one way only; no result is saved")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    spark = session()
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _PROVIDER)
    spark.dataSource.register(Rows)
    rounds: dict[str, list[dict[str, Any]]] = {}
    for turn in range(asked.rounds + 1):
        ways = [asked.only] if asked.only else list(WAYS)
        for name in ways[:: 1 if turn % 2 else -1]:  # or each would have the same one before it
            row = measure(spark, name, asked.keys, asked.rows_per_key)
            print("warm-up" if turn == 0 else f"round {turn}", name, row, flush=True)
            if turn:
                rounds.setdefault(name, []).append(row)
    spark.stop()
    found = {name: middle(rows) for name, rows in rounds.items()}
    if asked.only:
        return
    sparks_own = found[SPARKS]
    for row in found.values():
        row["rate_ratio"] = round(row["rows_per_second"] / sparks_own["rows_per_second"], 1)
        cpu = sparks_own["cpu_ms_per_thousand_rows"] / row["cpu_ms_per_thousand_rows"]
        row["cpu_ratio"] = round(cpu, 1)
    workload = {
        "keys": asked.keys, "rows_per_key": asked.rows_per_key, "queues": QUEUES,
        "rounds": asked.rounds,
        "body_bytes": 100, "load_before": round(load, 1),
    }  # fmt: skip
    kind = "spark_state" if asked.rows_per_key == 1 else "spark_state_rows"
    print(save(kind, {"command": command_line("bench.spark.state"),
                               "workload": workload, "relative_to": SPARKS,
                               "ways": found}))  # fmt: skip


if __name__ == "__main__":
    main()
