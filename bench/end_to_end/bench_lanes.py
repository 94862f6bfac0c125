"""Key lanes with listeners that wait: how much of the possible throughput they reach.

So many calls at once, each of which waits so long, make at most calls / wait a second. Threads
get messages whose keys are skewed (Zipf, exponent 0.5), tasks get keys that are all as frequent.
Alternating with threads and tasks that only wait.
Writes bench/results/lanes_embedded.json.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from bench import workloads
from bench.machine import broker_process, command_line, run_json, save
from ordermq import Message, Producer

_PROGRAM = "bench.end_to_end.ordermq_lanes"
_KEYS = 10_000
_SKEWS = {"skewed": 0.5, "even": 0.0}  # Zipf's exponent by topic
_SECONDS = 2  # of a run at its ceiling, a quarter of it before the clock starts


class Case(NamedTuple):
    """A listener: what waits in it, how long, and how many of them at once."""

    kind: str
    wait_ms: int
    at_once: int

    @property
    def ceiling(self) -> int:
        """Calls a second, if nothing but waiting took time."""
        return self.at_once * 1_000 // self.wait_ms

    @property
    def messages(self) -> int:
        return self.ceiling * _SECONDS

    @property
    def topic(self) -> str:
        return "skewed" if self.kind == "threads" else "even"

    def __str__(self) -> str:
        return f"{self.at_once} {self.kind}, {self.wait_ms} ms"


CASES = (
    Case("threads", 1, 32),
    Case("threads", 10, 100),
    Case("tasks", 10, 1_000),
    Case("tasks", 100, 1_000),
)


def fill(address: str, topic: str, messages: int) -> None:
    """Store messages, each in the queue of its key."""
    source = random.Random(workloads.SEED)
    ranks = range(1, _KEYS + 1)
    weights = list(itertools.accumulate(1 / rank ** _SKEWS[topic] for rank in ranks))
    message = Message(topic, b"." * workloads.CATCH_UP_BODY_BYTES)
    keys = source.choices(ranks, cum_weights=weights, k=messages)
    queues = workloads.CATCH_UP_QUEUES
    with Producer("bench", name_servers=address, default_topic_queue_nums=queues) as producer:
        producer.send_many(((message, key) for key in keys), max_in_flight=4_096)


def run(address: str, case: Case, group: str, *options: str) -> dict[str, float]:
    """Make one run; return its share of the ceiling, and its CPU time a message."""
    work = [address, case.topic, "--group", group, "--queues", workloads.CATCH_UP_QUEUES]
    work += ["--messages", case.messages, "--warm", case.messages // 4]
    work += ["--wait-ms", case.wait_ms, "--at-once", case.at_once, "--kind", case.kind, *options]
    row = run_json(_PROGRAM, work)
    return {
        "share": row["messages"] / row["seconds"] / case.ceiling,
        "cpu_us": row["cpu_seconds"] / row["messages"] * 1e6,
    }


VERSIONS = {
    "native": (),
    "bare": ("--bare",),
}


def measure(rounds: int, cases: tuple[Case, ...]) -> dict[str, Any]:
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        broker_process(Path(folder)) as (_, address),
    ):
        for topic in sorted({case.topic for case in cases}):
            fill(address, topic, max(case.messages for case in cases if case.topic == topic))
        for number, case in itertools.product(range(rounds), cases):
            for version, options in VERSIONS.items():
                group = f"{version}-{number}-{case.kind}-{case.wait_ms}"
                row = run(address, case, group, *options)
                found.setdefault(str(case), {}).setdefault(version, []).append(row)
                print(
                    f"round {number} {case!s:22} {version:6} {row['share']:.2f} of "
                    f"{case.ceiling:,}/s, CPU {row['cpu_us']:6.2f} us",
                    flush=True,
                )
    return {
        case: {version: medians(rows) for version, rows in by_version.items()}
        for case, by_version in found.items()
    }


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("threads", "tasks"), help="print these, save nothing")
    asked = parser.parse_args()
    rows = measure(asked.rounds, tuple(case for case in CASES if asked.only in (None, case.kind)))
    if asked.only is None:
        result = {
            "command": command_line("bench.end_to_end.bench_lanes"),
            "workload": {"keys": _KEYS, "queues": workloads.CATCH_UP_QUEUES, "skews": _SKEWS},
            "rows": rows,
        }
        print(save("lanes_embedded", result))


if __name__ == "__main__":
    main()
