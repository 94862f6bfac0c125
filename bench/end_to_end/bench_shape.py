"""Effect of the batch shape on catch-up: the same work with a process queue of objects.

One consumer process on the embedded broker, alternating: batches as the product hands them
from socket to listener, and a process queue of objects (object_queue.py), views or decoded on
arrival. The listener only counts, or reads body, tags and keys of every message.
Writes bench/results/shape_embedded.json.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from bench import workloads
from bench.end_to_end.bench_catch_up import TOPIC, fill
from bench.end_to_end.summary import summarise
from bench.machine import broker_process, cpu_seconds, run_json, save

CASES = tuple(
    (batch, listener, shape)
    for batch in workloads.LISTENER_BATCHES
    for listener in ("counts", "reads")
    for shape in ("batches", "views", "objects")
)


def measure(rounds: int, messages: int) -> dict[str, Any]:
    rows: dict[str, list[dict[str, Any]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        broker_process(Path(folder)) as (process, address),
    ):
        fill(address, messages, tags="T1", keys=("order-00000001",))
        for number in range(rounds + 1):
            for batch, listener, shape in CASES:
                arguments: list[object] = [address, TOPIC, "--messages", messages]
                arguments += ["--group", f"g{number}-{batch}-{listener}-{shape}"]
                arguments += ["--batch", batch, "--pull-size", workloads.PULL_SIZE]
                arguments += ["--shape", shape, *(["--read"] if listener == "reads" else [])]
                before = cpu_seconds(process.pid)
                row = run_json("bench.end_to_end.ordermq_consumer", arguments)
                row["broker_cpu_seconds"] = cpu_seconds(process.pid) - before
                assert row["messages"] == messages, row
                name = f"batch {batch}, {listener}, {shape}"
                if number:  # the first round warms the page cache and is not counted
                    rows.setdefault(name, []).append(row)
                rate, cpu = messages / row["seconds"], row["cpu_seconds"] / messages * 1e6
                print(f"round {number} {name:28} {rate:10,.0f} msg/s {cpu:5.2f} us/msg", flush=True)
    return {name: summarise(found, messages) for name, found in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=workloads.CATCH_UP_MESSAGES)
    arguments = parser.parse_args()
    result = {
        "command": "python -m bench.end_to_end.bench_shape",
        "workload": {
            "messages": arguments.messages,
            "body_bytes": workloads.CATCH_UP_BODY_BYTES,
            "queues": workloads.CATCH_UP_QUEUES,
            "pull_size": workloads.PULL_SIZE,
        },
        "rows": measure(arguments.rounds, arguments.messages),
    }
    print(save("shape_embedded", result))


if __name__ == "__main__":
    main()
