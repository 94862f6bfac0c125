"""Measure many queues: python -m bench.spark.queues --before CHECKOUT [--queues N ...].

CPU-seconds of the whole process tree of a Spark program (not of the broker) that reads a topic in
a batch: this checkout alternated with an earlier one, which has a .venv of its own (git worktree
add --detach CHECKOUT COMMIT; EXTRAS=dev,spark-test CHECKOUT/ci/venv.sh). Each has its program with
a warm session, and reads the same topics of the same broker. Writes
bench/results/spark_queues.json.

--idle measures an idle stream instead, and the time until it sees a new message and runs its
batch, on the embedded broker and on RocketMQ. Writes bench/results/spark_idle.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.end_to_end.bench_rocketmq import rocketmq_parts
from bench.machine import ROOT, broker_process, save
from bench.spark.processes import Tree, cpu_seconds, tree_cpu_seconds
from bench.spark.session import session
from bench.spark.sources import ROCKETMQ
from ordermq import Admin, Message, Producer

ROWS = {4: 512_000, 64: 128_000, 1_000: 100_000}
ROUNDS = {4: 5, 64: 3, 1_000: 1}  # a task per queue takes its time
# A busy machine takes longer than 15 s to start a Python process.
PATIENCE = "--conf spark.python.authenticate.socketTimeout=300s pyspark-shell"
BEFORE, NOW = "before", "now"
IDLE_QUEUES = 1_000
IDLE_S = 15.0
NEWS = 30  # messages whose way into an idle stream is timed
QUIET_S = 1.5  # between them; then the stream waits again


def fill(address: str, topic: str, queues: int, rows: int) -> None:
    """Create a topic and send the same number of messages to every queue, in batches."""
    with Admin(address) as admin:
        admin.create_topic(topic, queues)
    with Producer("fill", name_servers=address) as producer:
        for queue in producer.queues(topic):
            left = rows // queues
            while left > 0:
                producer.send_batch([Message(topic, b"x" * 100)] * min(left, 500), queue=queue)
                left -= 500


class Program:
    """A checkout's program (read_process.py), with the session in which it reads."""

    def __init__(self, checkout: Path) -> None:
        self._process = subprocess.Popen(
            # The program is of this checkout, and all that it imports of the other one.
            [checkout / ".venv/bin/python", "-P", Path(__file__).with_name("read_process.py")],
            env=os.environ | {"PYTHONPATH": str(checkout), "PYSPARK_SUBMIT_ARGS": PATIENCE},
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def read(self, options: dict[str, str]) -> dict[str, float]:
        """Read once; return the rows, and the seconds and CPU-seconds that it took."""
        assert self._process.stdin is not None
        before = tree_cpu_seconds(self._process.pid)
        self._process.stdin.write(json.dumps(options) + "\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._line())
        return found | {"cpu_seconds": tree_cpu_seconds(self._process.pid) - before}

    def close(self) -> None:
        """Let it end."""
        self._process.communicate(timeout=60)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the program has ended"
        return line


def measure_reads(
    programs: dict[str, Program], options: dict[str, str], queues: int, warm_up: int
) -> dict[str, Any]:
    """Read by turns; return the medians of each program, and of the rounds' ratios."""
    passes: dict[str, list[dict[str, float]]] = {name: [] for name in programs}
    for number in range(warm_up + ROUNDS[queues]):
        for name, program in programs.items():
            found = program.read(options)
            assert found["rows"] == ROWS[queues], found
            print(
                f"{queues} queues, {name}: {found['cpu_seconds']:.2f} CPU-s, "
                f"{found['seconds']:.2f} s",
                flush=True,
            )
            if number >= warm_up:
                passes[name].append(found)
    row: dict[str, Any] = {"rows": ROWS[queues], "rounds": ROUNDS[queues]}
    for unit in ("cpu_seconds", "seconds"):
        taken = {name: [one[unit] for one in each] for name, each in passes.items()}
        ratios = [now / was for now, was in zip(taken[NOW], taken[BEFORE], strict=True)]
        row[unit] = {name: round(statistics.median(each), 2) for name, each in taken.items()}
        row[unit] |= {
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(ratio, 3) for ratio in ratios],
        }
    return row


def measure_cost(before: Path, all_queues: list[int]) -> None:
    """Compare this checkout with an earlier one, and store the figures."""
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, address = stack.enter_context(broker_process(folder / "data", durability="os"))
        programs = {}
        for name, checkout in {BEFORE: before, NOW: ROOT}.items():
            programs[name] = stack.enter_context(contextlib.closing(Program(checkout)))
        for queues in all_queues:
            options = {"name_servers": address, "topic": f"orders{queues}"}
            fill(address, options["topic"], queues, ROWS[queues])
            warm_up = int(not found)  # of JVM and workers
            found[str(queues)] = measure_reads(programs, options, queues, warm_up)
            print(queues, found[str(queues)], flush=True)
            result = {
                "command": "python -m bench.spark.queues --before CHECKOUT",
                "workload": {"commit_before": commit_of(before)},
                "queues": found,
            }
            print(save("spark_queues", result), flush=True)  # the rest may take an hour


def commit_of(checkout: Path) -> str:
    line = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()


def measure_idle(
    spark: SparkSession, address: str, broker_pid: int | None, folder: Path
) -> dict[str, Any]:
    """Measure an idle stream, then how long it takes to see messages that come one by one."""
    topic = "idle"
    fill(address, topic, IDLE_QUEUES, IDLE_QUEUES)
    tree = Tree(spark)
    ran: list[float] = []

    def note(batch: DataFrame, number: int) -> None:
        ran.append(time.time())

    options = {"name_servers": address, "topic": topic, "starting_offsets": "latest"}
    frame = spark.readStream.format("ordermq").options(**options).load()
    query = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(folder)).start()
    try:
        query.processAllAvailable()
        time.sleep(2)
        before = tree.source_cpu_seconds(), tree.cpu_seconds(), cpu_seconds(broker_pid or 0)
        time.sleep(IDLE_S)
        after = tree.source_cpu_seconds(), tree.cpu_seconds(), cpu_seconds(broker_pid or 0)
        source, whole, broker = (100 * (b - a) / IDLE_S for a, b in zip(before, after, strict=True))
        ran.clear()  # the first batch, of nothing
        sent = list(news(address, topic, ran))
        seen = seen_at(query, len(sent))
    finally:
        query.stop()
    row: dict[str, Any] = {
        "driver_percent_of_a_core": round(source, 1),
        "tree_percent_of_a_core": round(whole, 1),
    }
    for name, times in {"until_seen": seen, "until_the_batch_runs": ran}.items():
        waits = [1e3 * (then - at) for then, at in zip(times, sent, strict=True)]
        row[f"{name}_ms"] = {
            "median": round(statistics.median(waits)),
            "slowest": round(max(waits)),
        }
    if broker_pid is not None:
        row["broker_percent_of_a_core"] = round(broker, 1)
    return row


def seen_at(query: StreamingQuery, batches: int) -> list[float]:
    """Return when the driver half told Spark of the messages of each of the last batches."""
    deadline = time.monotonic() + 30.0
    while True:  # until the last batch is reported
        last = {
            each.batchId: each for each in query.recentProgress if "addBatch" in each.durationMs
        }
        if len(last) >= batches:
            break
        assert time.monotonic() < deadline, f"{len(last)} of {batches} batches were reported"
        time.sleep(0.1)
    return [
        datetime.fromisoformat(each.timestamp).timestamp()  # of the trigger
        + each.durationMs["latestOffset"] / 1e3
        for each in list(last.values())[-batches:]
    ]


def news(address: str, topic: str, ran: list[float]) -> Iterator[float]:
    """Send messages, each when the batch of the one before ran; yield when they were stored."""
    with Producer("news", name_servers=address) as producer:
        for number in range(NEWS):
            queue = producer.queues(topic)[number]
            producer.send(Message(topic, b"news"), queue=queue)
            yield time.time()
            while len(ran) <= number:
                time.sleep(0.001)
            time.sleep(QUIET_S)


def measure_idles() -> None:
    """Measure an idle stream on each broker, and store the figures."""
    spark = session()
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with broker_process(folder / "data", durability="os") as (process, address):
            rows["embedded"] = measure_idle(spark, address, process.pid, folder / "embedded")
            print(rows, flush=True)
        with rocketmq_parts(ROCKETMQ) as parts:
            name = f"RocketMQ {ROCKETMQ}"
            rows[name] = measure_idle(spark, parts["name-server"], None, folder / "rocketmq")
            print(rows, flush=True)
    spark.stop()
    workload = {"queues": IDLE_QUEUES, "idle_seconds": IDLE_S, "messages": NEWS}
    result = {"command": "python -m bench.spark.queues --idle", "workload": workload}
    print(save("spark_idle", result | {"brokers": rows}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--before", type=Path, help="an earlier checkout")
    wanted.add_argument("--idle", action="store_true")
    parser.add_argument("--queues", type=int, nargs="*", choices=ROWS, default=list(ROWS))
    asked = parser.parse_args()
    if asked.idle:
        measure_idles()
    else:
        measure_cost(asked.before.resolve(), asked.queues)


if __name__ == "__main__":
    main()
