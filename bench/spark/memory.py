"""Measure the memory of one query over millions of messages: python -m bench.spark.memory.

Source, ordered stage under the broker's locks, and sink, on an embedded broker in a process of
its own. Writes bench/results/spark_memory.json; with --out FOLDER a JSON and a picture there
instead. Needs a Java 17 runtime, the extra `spark-test`, and one kilobyte of disk per message.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from bench import workloads
from bench.machine import RESULTS, broker_process, save
from bench.spark.processes import Tree, Usage, resident_mib
from bench.spark.rows import BODY_BYTES
from bench.spark.session import session
from ordermq import PullConsumer
from ordermq.spark import apply_in_order
from ordermq.spark.options import SinkOptions
from ordermq.spark.sink.block_sender import block_sender
from ordermq.spark.sink.row_encoder import RowEncoder

FROM, TO = "orders", "priced"
KEYS = 10_000
MICRO_BATCHES = 40
LOAD_ROWS = 10_000
JVM_MEMORY = "1g"  # small, so that a leak shows early
WARM = 0.2  # of the rows: before that, processes start and pools fill
_LOOK_S = 1.0
_PRINT_S = 10.0


def load(name_servers: str, rows: int) -> None:
    """Send the messages, packed as the sink packs rows."""
    given = {"name_servers": name_servers, "topic": FROM, "max_batch_bytes": str(1 << 20)}
    options = SinkOptions.of(given, dict.fromkeys(("sharding_key", "body")))
    sender = block_sender(name_servers, options.config, options.group, options.selector)
    encoder = RowEncoder(options, ("sharding_key", "body"), sender.queues, ("bench", 0), 0)
    begun = printed = time.monotonic()
    body = pa.scalar(b"x" * BODY_BYTES, pa.binary())
    for first in range(0, rows, LOAD_ROWS):
        numbers = np.arange(first, min(first + LOAD_ROWS, rows))
        keys = pa.array(np.char.mod("order-%08d", numbers * 7_919 % KEYS))
        bodies = pa.repeat(body, len(numbers))
        batch = pa.RecordBatch.from_pydict({"sharding_key": keys, "body": bodies})
        with sender.stream(is_bulk=encoder.is_bulk) as stream:
            stream.send(encoder.encode(batch))
        if time.monotonic() - printed > _PRINT_S:
            printed = time.monotonic()
            print(
                f"sent {first:,} of {rows:,}: {first / (printed - begun):,.0f} per second",
                flush=True,
            )


def priced(rows: Any) -> Any:
    """The stage: a body of key and old body."""
    joined = pc.binary_join_element_wise(
        rows.column("sharding_key").cast(pa.binary()), rows.column("body"), b"="
    )
    return rows.set_column(rows.schema.get_field_index("body"), "body", joined)


def started(spark: SparkSession, name_servers: str, rows: int, checkpoint: Path) -> Any:
    source = (
        spark.readStream.format("ordermq")
        .option("name_servers", name_servers)
        .option("topic", FROM)
        .option("group", "bench")
        .option("max_rows", rows // MICRO_BATCHES)
        .option("starting_offsets", "earliest")
        .option("columns", "topic,broker,queue_id,offset,sharding_key,body")
        .load()
    )
    return (
        apply_in_order(source, priced, source.schema, engine="arrow")
        .writeStream.format("ordermq")
        .option("name_servers", name_servers)
        .option("topic", TO)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def watched(query: Any, tree: Tree, broker: int, rows: int) -> Iterator[dict[str, Any]]:
    """Sample progress and memory once per second, and at the end."""
    begun = printed = time.monotonic()
    is_over = False
    while not is_over:
        is_over = query.awaitTermination(_LOOK_S)
        progress = [one for one in query.recentProgress if one["numInputRows"]]
        if not progress:
            continue
        done = sum(one["numInputRows"] for one in progress)
        now = time.monotonic()
        usage = tree.usage()
        if not is_over:
            yield {"seconds": round(now - begun, 1), "rows": done, "lag": lag_of(progress[-1]),
                   "broker": resident_mib(broker), **usage.to_dict()}  # fmt: skip
        if now - printed > _PRINT_S or is_over:
            printed = now
            print(progress_line(done, rows, now - begun, usage), flush=True)


def progress_line(done: int, rows: int, seconds: float, usage: Usage) -> str:
    used = ", ".join(f"{name} {mib:,.0f}" for name, mib in usage.to_dict().items())
    return f"{done:,} of {rows:,} rows, {done / seconds:,.0f} per second; MiB: {used}"


def lag_of(progress: Any) -> int:
    """Return the number of messages after the end of the micro-batch."""
    (source,) = progress["sources"]
    end, latest = json.loads(source["endOffset"]), json.loads(source["latestOffset"] or "{}")
    return sum(max(latest[name] - end.get(name, 0), 0) for name in latest if ":" in name)


def stored(name_servers: str, topic: str) -> int:
    with PullConsumer("counting", name_servers=name_servers) as consumer:
        queues = consumer.fetch_subscribe_message_queues(topic)
        return sum(consumer.max_offset(queue) for queue in queues)


def summary(samples: list[dict[str, Any]], rows: int) -> dict[str, dict[str, float]]:
    """Return per process: MiB early and late (medians), maximum, and growth by a linear fit."""
    warm = [one for one in samples if one["rows"] >= WARM * rows]
    early = [one for one in warm if one["rows"] < (WARM + 0.2) * rows]
    late = [one for one in warm if one["rows"] >= 0.8 * rows]
    found = {}
    for name in (*Usage.__slots__, "broker"):
        slope = np.polyfit([one["rows"] / 1e6 for one in warm], [one[name] for one in warm], 1)[0]
        found[name] = {
            "early_mib": round(statistics.median(one[name] for one in early), 1),
            "late_mib": round(statistics.median(one[name] for one in late), 1),
            "most_mib": round(max(one[name] for one in samples), 1),
            "mib_per_million_rows": round(float(slope), 2),
        }
    return found


def measure(rows: int, folder: Path) -> dict[str, Any]:
    with broker_process(folder / "broker", durability="os") as (broker, name_servers):
        load(name_servers, rows)
        assert stored(name_servers, FROM) == rows
        spark = session(JVM_MEMORY)
        try:
            # Every micro-batch's progress is kept: they are what the rows are counted by.
            spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(rows))
            begun = time.monotonic()
            query = started(spark, name_servers, rows, folder / "checkpoint")
            samples = list(watched(query, Tree(spark), broker.pid, rows))
            seconds = time.monotonic() - begun
            progress = [one for one in query.recentProgress if one["numInputRows"]]
        finally:
            spark.stop()
        assert sum(one["numInputRows"] for one in progress) == rows
        assert stored(name_servers, TO) == rows, "rows lost, or sent twice without a failure"
    return {
        "command": f"python -m bench.spark.memory --rows {rows}",
        "workload": {"rows": rows, "body_bytes": BODY_BYTES, "max_rows": rows // MICRO_BATCHES,
                     "keys": KEYS, "jvm_memory": JVM_MEMORY},
        "seconds": round(seconds, 1),
        "rows_per_second": round(rows / seconds),
        "micro_batches": len(progress),
        "last_lag": lag_of(progress[-1]),
        "memory": summary(samples, rows),
        "samples": thinned(samples),
    }  # fmt: skip


def thinned(samples: list[dict[str, Any]], most: int = 300) -> list[dict[str, Any]]:
    step = len(samples) // most + 1
    return samples[::step]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=workloads.SPARK_MEMORY_ROWS)
    parser.add_argument("--out", type=Path, help="a folder, instead of bench/results")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        result = measure(asked.rows, Path(folder))
    for name, figures in result["memory"].items():
        print(f"{name}: {figures}")
    print(f"{result['rows_per_second']:,} rows per second, lag at the end {result['last_lag']}")
    print(save("spark_memory", result, asked.out or RESULTS))
    if asked.out is not None:
        from bench.spark import pictures

        print(pictures.draw_memory(result, asked.out))


if __name__ == "__main__":
    main()
