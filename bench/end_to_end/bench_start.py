"""Start of a consumer: import, the time from its construction to the first message, and memory.

The time of the import is that of bench.startup, compared with the standard library that it needs
anyway. A message waits on the embedded broker; in new processes, each with a new group, a consumer
is made and started, and the clock stops when its listener is called. Writes
bench/results/start_embedded.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench import startup, workloads
from bench.machine import broker_process, command_line, run_json, save
from ordermq import Message, Producer

PROGRAM = "bench.end_to_end.ordermq_start"
TOPIC = "start"


def measure(runs: int) -> dict[str, Any]:
    rows = []
    with tempfile.TemporaryDirectory() as folder, broker_process(Path(folder)) as (_, address):
        queues = workloads.CATCH_UP_QUEUES
        with Producer("bench", name_servers=address, default_topic_queue_nums=queues) as producer:
            producer.send(Message(TOPIC, b"first"))
        for number in range(runs + 1):
            row = run_json(PROGRAM, [address, TOPIC, "--group", f"g{number}"])
            if number:  # the first run warms the page cache and is not counted
                rows.append(row)
            print(f"run {number} {json.dumps(row)}", flush=True)
    return summary(rows) | {"import": factors(startup.medians(runs))}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of the runs, and their range."""
    times = sorted(row["first_message_ms"] for row in rows)
    return {
        "first_message_ms": round(statistics.median(times), 1),
        "first_message_ms_range": [round(times[0], 1), round(times[-1], 1)],
        "peak_mib": round(statistics.median(row["peak_mib"] for row in rows), 1),
        "detail": rows[-1]["detail"],
    }


def factors(medians: dict[str, float]) -> dict[str, float]:
    """Return the factor of each import to that of the standard library's modules."""
    empty = medians[startup.EMPTY]
    base = medians[startup.BASE] - empty
    return {
        statement: round((took - empty) / base, 2)
        for statement, took in medians.items()
        if statement not in (startup.EMPTY, startup.BASE)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    asked = parser.parse_args()
    # Otherwise every import compiles again what an installed package has in its __pycache__.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    result = measure(asked.runs)
    print(json.dumps(result))
    result["command"] = command_line("bench.end_to_end.bench_start")
    result["workload"] = {"runs": asked.runs, "queues": workloads.CATCH_UP_QUEUES}
    print(save("start_embedded", result))


if __name__ == "__main__":
    main()
