"""What our driver methods add to a micro-batch: python -m bench.spark.driver.

The calls Spark makes of a stream's reader for one batch (latestOffset, reportLatestOffset, commit
of the batch before, partitions), on an ordered query's driver half and a broker process of its
own; Spark itself is not there. The engine's own floor is some 150 ms a batch (spark.md).
Writes bench/results/spark_driver.json.
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
from ordermq.spark.source.stream import StreamDriver

QUEUES = 8
ROWS_A_BATCH = 100
BETWEEN_S = 0.02  # a batch's own work, during which leases are renewed


def measure(batches: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, broker_process(Path(folder)) as (_, address):
        fill(address, batches * ROWS_A_BATCH)
        options = {"name_servers": address, "topic": "orders", "group": "bench"}
        driver = StreamDriver(SourceOptions.of(options | {"starting_offsets": "earliest"}))
        began = time.perf_counter()
        start = driver.initial()
        first_ms = (time.perf_counter() - began) * 1e3
        times = []
        while True:
            began = time.perf_counter()
            end = driver.latest(start, ROWS_A_BATCH)
            if end is None:
                break
            driver.report()
            driver.commit(start)
            driver.begin(start, end)
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
        producer.send(Message("orders", b"first"))  # makes the topic, and counts
        for queue in producer.queues("orders"):
            here = count // QUEUES - (queue.queue_id == 0)
            producer.send_batch([Message("orders", b"x" * 100)] * here, queue=queue)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=400)
    asked = parser.parse_args()
    row = measure(asked.batches)
    print(row)
    workload = {"batches": asked.batches, "rows_a_batch": ROWS_A_BATCH, "queues": QUEUES}
    result = {"command": "python -m bench.spark.driver", "workload": workload, "row": row}
    print(save("spark_driver", result))


if __name__ == "__main__":
    main()
