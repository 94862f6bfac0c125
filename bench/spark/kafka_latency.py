"""Measure the latency of micro-batches: python -m bench.spark.kafka_latency.

A streaming query on Spark's connector to Kafka and on ordermq, by turns, each in a program of its
own: from the program's start to the first micro-batch with rows; then at 1,000 messages/s, without
a trigger, from the send to the call of foreachBatch; CPU time while no message comes; and from
kill -9 of the driver to the next micro-batch, with the program started again at once. Writes
bench/results/spark_kafka_latency.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.machine import ROOT, command_line, compile_package, save
from bench.peers.kafka import Kafka, connector_jars, send_stamps
from bench.spark.kafka import EMBEDDED, KAFKA, QUEUES, REAL, VERSIONS, brokers
from bench.spark.processes import below, tree_cpu_seconds
from ordermq import Admin, Message, Producer

RATE = 1_000  # messages/s
WARM_S, MEASURED_S, IDLE_S = 8, 15, 10
ROUNDS = 2
PATIENCE_S = 180.0


@dataclass(frozen=True, slots=True)
class Side:
    """The source of a query, and the way to send messages with their time there."""

    kind: str
    options: dict[str, str]
    send: Callable[[int], None]  # so many, at RATE


class Program:
    """A program with a streaming query; its lines arrive on a thread."""

    def __init__(self, side: Side, checkpoint: Path) -> None:
        self.started = time.time() * 1e3
        arguments = [side.kind, str(checkpoint), json.dumps(side.options)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.spark.latency_process", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.batches: list[dict[str, Any]] = []
        self._has_more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._has_more:
                self.batches.append(json.loads(line))
                self._has_more.notify_all()

    def rows(self) -> int:
        return sum(len(batch["sent"]) for batch in self.batches)

    def wait(self, rows: int) -> None:
        """Wait until so many rows were seen."""
        with self._has_more:
            seen = self._has_more.wait_for(lambda: self.rows() >= rows, PATIENCE_S)
        assert seen, f"{self.rows()} of {rows} rows came"

    def kill(self) -> None:
        """Kill the driver's JVM, and what it leaves."""
        for pid in (*below(self.process.pid), self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def measure(side: Side, folder: Path) -> dict[str, float]:
    """Return the figures of one pass, in ms and in percent of a core."""
    side.send(1)
    program = Program(side, folder)
    try:
        program.wait(1)
        cold_ms = program.batches[0]["began"] - program.started
        side.send(RATE * WARM_S)
        program.wait(1 + RATE * WARM_S)
        first = len(program.batches)
        side.send(RATE * MEASURED_S)
        program.wait(1 + RATE * (WARM_S + MEASURED_S))
        ages = [b["began"] - sent for b in program.batches[first:] for sent in b["sent"]]
        time.sleep(1)
        before = tree_cpu_seconds(program.process.pid)
        time.sleep(IDLE_S)
        idle = 100 * (tree_cpu_seconds(program.process.pid) - before) / IDLE_S
    finally:
        program.kill()
    killed = time.time() * 1e3
    again = Program(side, folder)
    try:
        side.send(1)
        again.wait(1)
        recovered_ms = again.batches[0]["began"] - killed
    finally:
        again.kill()
    ages.sort()
    return {
        "latency_median_ms": statistics.median(ages),
        "latency_p99_ms": ages[len(ages) * 99 // 100],
        "idle_percent_of_a_core": idle,
        "cold_start_ms": cold_ms,
        "recovery_ms": recovered_ms,
    }


def kafka_side(broker: Kafka, topic: str) -> Side:
    broker.create_topic(topic, QUEUES)
    options = {"kafka.bootstrap.servers": broker.address, "subscribe": topic}
    return Side(
        "kafka",
        options | {"startingOffsets": "earliest"},
        lambda count: send_stamps(broker.address, topic, RATE, count),
    )


def ordermq_side(name_servers: str, topic: str) -> Side:
    with Admin(name_servers) as admin:
        admin.create_topic(topic, QUEUES)

    def send(count: int) -> None:
        with Producer("stamps", name_servers=name_servers) as producer:
            producer.queues(topic)  # connects before the clock starts
            begun = time.perf_counter()
            for number in range(count):
                time.sleep(max(0.0, begun + number / RATE - time.perf_counter()))
                message = Message(topic, b"%d" % (time.time_ns() // 1_000_000))
                producer.send_nowait(message, sharding_key=f"order-{number % 100}")
            producer.flush()

    return Side("ordermq", {"name_servers": name_servers, "topic": topic}, send)


@contextlib.contextmanager
def sides(folder: Path) -> Iterator[dict[str, Callable[[str], Side]]]:
    """Run the three brokers; yields what makes a side with a topic of its own."""
    connector_jars()  # else the first program's start would have their download in it
    with brokers(folder) as all_brokers:
        yield {
            KAFKA: partial(kafka_side, all_brokers.kafka),
            REAL: partial(ordermq_side, all_brokers.name_server),
            EMBEDDED: partial(ordermq_side, all_brokers.embedded),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    passes: dict[str, list[dict[str, float]]] = {}
    compile_package()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as text, sides(Path(text)) as all_sides:
        for number in range(rounds):
            for name, make in all_sides.items():
                topic = f"stamped{number}"
                folder = Path(text) / f"checkpoint {name} {number}"
                found = measure(make(topic), folder)
                print(name, {key: round(value, 1) for key, value in found.items()}, flush=True)
                passes.setdefault(name, []).append(found)
    rows = {
        name: {key: round(statistics.median(one[key] for one in each), 1) for key in each[0]}
        for name, each in passes.items()
    }
    result = {
        "command": command_line("bench.spark.kafka_latency"),
        "workload": {
            "rate": RATE, "queues": QUEUES, "rounds": rounds, "measured_seconds": MEASURED_S,
            "idle_seconds": IDLE_S, "load_before": round(load, 1),
        },
        "versions": VERSIONS,
        "rows": rows,
    }  # fmt: skip
    print(save("spark_kafka_latency", result))


if __name__ == "__main__":
    main()
