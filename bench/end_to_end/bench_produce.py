"""Sends to the embedded broker, 64 in flight, compared with bare SQLite at the same commit size.

The broker answers a send when it is on the disk (`durability=fsync`): sends that wait together
share a commit. The load is of requests that are ready (`ready_sender`), for a producer takes longer
for a send than the broker; what a producer reaches is measured, too. Bare SQLite writes rows of
about the same size into one table of a database in the same folder, with the broker's settings, as
many per commit as the broker had on average. Rounds alternate, each with two new brokers. Writes
bench/results/produce_embedded.json.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import workloads
from bench.machine import broker_process, command_line, cpu_seconds, run_json, save
from ordermq import Message, Producer

READY = "bench.end_to_end.ready_sender"
PRODUCER = "bench.end_to_end.ordermq_sender"
TOPIC = "sending"
IN_FLIGHT = 64  # keys, each with one unacknowledged message
ROW_BYTES = 250  # of a stored message with a body of 100 bytes


def send(folder: Path, program: str, messages: int) -> dict[str, Any]:
    """Send to a new broker; return the sender's row, with the broker's figures."""
    with broker_process(folder) as (process, address):
        queues = workloads.CATCH_UP_QUEUES
        with Producer("bench", name_servers=address, default_topic_queue_nums=queues) as producer:
            producer.send(Message(TOPIC, b"first"))
        work = [address, TOPIC, "--keys", IN_FLIGHT, "--batch", 1, "--messages", messages]
        work += ["--warm", messages // 4, "--body-bytes", workloads.CATCH_UP_BODY_BYTES]
        before = cpu_seconds(process.pid)
        row = run_json(program, work)
        broker_cpu_s = cpu_seconds(process.pid) - before
    assert process.stdout is not None
    counted = json.loads(process.stdout.read())
    # One more: the message that made the topic.
    assert counted["messages_stored"] == messages + messages // 4 + 1, counted
    return row | {
        "per_commit": counted["messages_stored"] / counted["store_groups"],
        "broker_cpu_us": broker_cpu_s / (messages + messages // 4) * 1e6,
    }


def write_rows(path: Path, rows: int, per_commit: int) -> float:
    """Write rows into a new database; return the seconds that took."""
    record = bytes(ROW_BYTES)
    database = sqlite3.connect(path, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE log (off INTEGER PRIMARY KEY, tag INTEGER, record BLOB)")
        began = time.perf_counter()
        for first in range(0, rows, per_commit):
            last = min(first + per_commit, rows)
            database.execute("BEGIN IMMEDIATE")
            database.executemany(
                "INSERT INTO log VALUES (?, ?, ?)", ((off, 0, record) for off in range(first, last))
            )
            database.execute("COMMIT")
        took = time.perf_counter() - began
        assert database.execute("SELECT count(*) FROM log").fetchone() == (rows,)
    finally:
        database.close()
    return took


def measure(rounds: int, messages: int) -> dict[str, Any]:
    found = []
    for number in range(rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            row = send(Path(folder) / "broker", READY, messages)
            produced = send(Path(folder) / "second", PRODUCER, messages)
            per_commit = round(row["per_commit"])
            bare_s = write_rows(Path(folder) / "bare.db", messages, per_commit)
        one = {
            "rate": row["messages"] / row["seconds"],
            "bare_rate": messages / bare_s,
            "per_commit": row["per_commit"],
            "broker_cpu_us": row["broker_cpu_us"],
            "producer_rate": produced["messages"] / produced["seconds"],
            "producer_cpu_us": produced["cpu_seconds"] / produced["messages"] * 1e6,
        }
        if number:  # the first round warms the page cache and is not counted
            found.append(one)
        print(f"round {number} {json.dumps(one)}", flush=True)
    return summary(found)


def summary(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Return the medians of the rounds, and of their shares of bare SQLite's throughput."""

    def median(name: str, digits: int) -> float:
        return round(statistics.median(one[name] for one in rounds), digits)

    share = statistics.median(one["rate"] / one["bare_rate"] for one in rounds)
    return {
        "messages_per_second": median("rate", 0),
        "bare_rows_per_second": median("bare_rate", 0),
        "messages_per_commit": median("per_commit", 1),
        "broker_cpu_us_per_message": median("broker_cpu_us", 2),
        "producer_messages_per_second": median("producer_rate", 0),
        "producer_cpu_us_per_message": median("producer_cpu_us", 2),
        "share_of_bare": round(share, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=40_000)
    asked = parser.parse_args()
    result = {
        "figures": measure(asked.rounds, asked.messages),
        "command": command_line("bench.end_to_end.bench_produce"),
        "workload": {
            "messages": asked.messages,
            "body_bytes": workloads.CATCH_UP_BODY_BYTES,
            "queues": workloads.CATCH_UP_QUEUES,
            "in_flight": IN_FLIGHT,
            "row_bytes": ROW_BYTES,
            "rounds": asked.rounds,
        },
    }
    print(json.dumps(result["figures"]))
    print(save("produce_embedded", result))


if __name__ == "__main__":
    main()
