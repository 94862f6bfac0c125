"""Measure the driver half of a stream per micro-batch: python -m bench.spark.driver.

The calls Spark makes of a stream's reader for one batch (latestOffset, reportLatestOffset, commit
of the batch before, partitions), on the driver half of an ordered query and a broker in its own
process, without Spark. Spark itself takes some 150 ms per micro-batch. Writes
bench/results/spark_driver.json.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.machine import broker_process, save
from ordermq import Message, Producer
from ordermq.spark.options import SourceOptions
from ordermq.spark.source.stream_driver import StreamDriver

QUEUES = 8
ROWS_PER_BATCH = 100
BETWEEN_S = 0.02  # a batch's own work, during which leases are renewed


def measure(batches: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, broker_process(Path(folder)) as (_, address):
        fill(address, batches * ROWS_PER_BATCH)
        options = {"name_servers": address, "topic": "orders", "group": "bench"}
        driver = StreamDriver(SourceOptions.of(options | {"starting_offsets": "earliest"}))
        began = time.perf_counter()
        start = driver.initial()
        first_ms = (time.perf_counter() - began) * 1e3
        times = []
        while True:
            began = time.perf_counter()
            end = driver.next_end(start, ROWS_PER_BATCH)
            if end is None:
                break
            driver.queue_ends()
            driver.finish(start)
            driver.begin_batch(start, end)
            times.append((time.perf_counter() - began) * 1e3)
            start = end
            time.sleep(BETWEEN_S)
        began = time.perf_counter()
        driver.close()
        close_ms = (time.perf_counter() - began) * 1e3
    assert len(times) == batches, f"{len(times)} batches of {batches}"
    return {
        "first_ms": round(first_ms, 1),
        "batch_median_ms": round(statistics.median(times), 2),
        "batch_p99_ms": round(sorted(times)[int(len(times) * 0.99)], 2),
        "close_ms": round(close_ms, 1),
    }


def fill(address: str, count: int) -> None:
    with Producer("fill", name_servers=address, default_topic_queue_nums=QUEUES) as producer:
        producer.send(Message("orders", b"first"))  # creates the topic; it counts, too
        for queue in producer.queues("orders"):
            here = count // QUEUES - (queue.queue_id == 0)
            producer.send_batch([Message("orders", b"x" * 100)] * here, queue=queue)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=400)
    asked = parser.parse_args()
    row = measure(asked.batches)
    print(row)
    workload = {"batches": asked.batches, "rows_per_batch": ROWS_PER_BATCH, "queues": QUEUES}
    result = {"command": "python -m bench.spark.driver", "workload": workload, "row": row}
    print(save("spark_driver", result))


if __name__ == "__main__":
    main()
