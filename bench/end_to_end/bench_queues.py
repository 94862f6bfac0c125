"""One consumer of 1,000 queues, compared with 8: catch-up, CPU while nothing comes, and close.

The same number of messages waits on the embedded broker in a topic of each. Rounds alternate, each
with a new group; after its catch-up the consumer of 1,000 is left alone for some seconds.
Writes bench/results/queues_embedded.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench import workloads
from bench.end_to_end.summary import ratios
from bench.machine import broker_process, command_line, run_json, save
from ordermq import Message, Producer
from ordermq.admin.admin import Admin

QUEUES = (8, 1_000)
PROGRAM = "bench.end_to_end.ordermq_queues"


def topic_of(queues: int) -> str:
    return f"queues-{queues}"


def fill(address: str, queues: int, messages: int) -> None:
    """Create a topic and store the messages, the same number in each queue."""
    topic = topic_of(queues)
    with Admin(name_servers=address) as admin:
        admin.create_topic(topic, queues)
    message = Message(topic, b"." * workloads.CATCH_UP_BODY_BYTES)
    with Producer("bench", name_servers=address, max_batch_bytes=1_000_000) as producer:
        for queue in producer.queues(topic):
            for first in range(0, messages // queues, 1_000):
                size = min(1_000, messages // queues - first)
                producer.send_batch([message] * size, queue=queue)


def measure(rounds: int, messages: int, idle_seconds: float) -> dict[str, Any]:
    rows: dict[int, list[dict[str, Any]]] = {queues: [] for queues in QUEUES}
    with tempfile.TemporaryDirectory() as folder, broker_process(Path(folder)) as (_, address):
        for queues in QUEUES:
            fill(address, queues, messages)
        for number in range(rounds + 1):
            for queues in QUEUES:
                work: list[object] = [address, topic_of(queues), "--group", f"g{number}-{queues}"]
                work += ["--messages", messages // queues * queues, "--warm", messages // 4]
                work += ["--queues", queues]
                if number and queues == QUEUES[1]:
                    work += ["--idle-seconds", idle_seconds]
                row = run_json(PROGRAM, work)
                if number:  # the first round warms the page cache and is not counted
                    rows[queues].append(row)
                print(f"round {number} {json.dumps(row)}", flush=True)
    return {
        "rows": {str(queues): summary(found) for queues, found in rows.items()},
        "ratios": ratios(rows[QUEUES[1]], rows[QUEUES[0]]),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the medians of the rounds."""

    def median(figures: list[float], digits: int) -> float:
        return round(statistics.median(figures), digits)

    found = {
        "messages_per_second": median([row["messages"] / row["seconds"] for row in rows], 0),
        "cpu_us_per_message": median(
            [row["cpu_seconds"] / row["messages"] * 1e6 for row in rows], 3
        ),
        "close_s": median([row["close_seconds"] for row in rows], 3),
        "peak_mib": median([row["peak_mib"] for row in rows], 0),
    }
    if rows[0]["idle_share"] is not None:
        found["idle_cpu_percent"] = median([row["idle_share"] * 100 for row in rows], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=workloads.CATCH_UP_MESSAGES)
    parser.add_argument("--idle-seconds", type=float, default=5.0)
    asked = parser.parse_args()
    result = measure(asked.rounds, asked.messages, asked.idle_seconds)
    result["command"] = command_line("bench.end_to_end.bench_queues")
    result["workload"] = {
        "messages": asked.messages,
        "body_bytes": workloads.CATCH_UP_BODY_BYTES,
        "idle_seconds": asked.idle_seconds,
        "rounds": asked.rounds,
    }
    print(json.dumps(result["ratios"]))
    print(save("queues_embedded", result))


if __name__ == "__main__":
    main()
