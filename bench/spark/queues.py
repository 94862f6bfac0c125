"""Measure many queues: python -m bench.spark.queues [--queues N ...].

CPU-seconds of the whole process tree of Spark (not of the broker) for a batch read of a topic, its
queues packed into tasks and one task per queue, alternated in one session. Then the cost of an
idle stream, and the time until it sees a new message. Writes bench/results/spark_queues.json.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.machine import broker_process, save
from bench.spark.processes import Tree, cpu_seconds
from bench.spark.session import session
from bench.spark.turns import timed
from ordermq import Message, Producer
from ordermq.client.session import ClientSession
from ordermq.config import RemotingConfig
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command

ROWS = {4: 512_000, 64: 128_000, 1_000: 100_000}
ROUNDS = 3
IDLE_S = 15.0
NEWS = 20  # messages whose way into an idle stream is timed


def fill(address: str, topic: str, queues: int, rows: int) -> None:
    """Create a topic and send the same number of messages to every queue, in batches."""
    ext = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    ext |= {"readQueueNums": str(queues), "writeQueueNums": str(queues), "order": "false"}
    create = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    maker = ClientSession(address, RemotingConfig())
    try:
        assert maker.call(maker.connections.request(address, create, 3_000)).code == 0
    finally:
        maker.close()
    with Producer("fill", name_servers=address) as producer:
        for queue in producer.queues(topic):
            left = rows // queues
            while left > 0:
                producer.send_batch([Message(topic, b"x" * 100)] * min(left, 500), queue=queue)
                left -= 500


def one_pass(tree: Tree, frame: DataFrame) -> tuple[float, float]:
    before = tree.cpu_seconds()
    seconds = timed(frame)
    return tree.cpu_seconds() - before, seconds


def measure_batch(
    spark: SparkSession, given: dict[str, str], queues: int, is_older: bool
) -> dict[str, Any]:
    tree = Tree(spark)
    reader = spark.read.format("ordermq").options(**given)
    ways = {"as it is": reader.load()}
    if not is_older:
        ways["a task per queue"] = reader.option("tasks", str(queues)).load()
    passes: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, frame in ways.items():
            found = one_pass(tree, frame)
            if number:  # the first round warms JVM and workers
                passes[name].append(found)
            print(f"{queues} queues, {name}: {found[0]:.2f} CPU-s, {found[1]:.2f} s", flush=True)
    cpu = {name: statistics.median(one[0] for one in each) for name, each in passes.items()}
    wall = {name: statistics.median(one[1] for one in each) for name, each in passes.items()}
    return {
        "rows": ways["as it is"].count(),
        "cpu_seconds": {name: round(each, 2) for name, each in cpu.items()},
        "seconds": {name: round(each, 2) for name, each in wall.items()},
    }


def measure_idle(
    spark: SparkSession, given: dict[str, str], broker_pid: int, folder: Path
) -> dict[str, Any]:
    tree = Tree(spark)
    seen: dict[int, float] = {}

    def note(batch: DataFrame, number: int) -> None:
        seen[number] = time.time()

    frame = spark.readStream.format("ordermq").options(**given, starting_offsets="latest").load()
    query = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(folder)).start()
    try:
        query.processAllAvailable()
        time.sleep(2)
        before = tree.source_cpu_seconds(), cpu_seconds(broker_pid), tree.cpu_seconds()
        time.sleep(IDLE_S)
        after = tree.source_cpu_seconds(), cpu_seconds(broker_pid), tree.cpu_seconds()
        source, broker, whole = (100 * (b - a) / IDLE_S for a, b in zip(before, after, strict=True))
        waits = []
        with Producer("news", name_servers=given["name_servers"]) as producer:
            for number in range(NEWS):
                queue = producer.queues(given["topic"])[number]
                producer.send(Message(given["topic"], b"news"), queue=queue)
                sent = time.time()
                while len(seen) <= number:
                    time.sleep(0.001)
                waits.append((max(seen.values()) - sent) * 1e3)
                time.sleep(1.5)
    finally:
        query.stop()
    return {
        "driver_percent_of_a_core": round(source, 1),
        "broker_percent_of_a_core": round(broker, 1),
        "tree_percent_of_a_core": round(whole, 1),
        "until_the_batch_runs_ms": round(statistics.median(waits)),
        "slowest_ms": round(max(waits)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, nargs="*", default=list(ROWS))
    parser.add_argument("--only", choices=["batch", "idle"])
    parser.add_argument("--package", help="a folder with another ordermq, run as it is")
    asked = parser.parse_args()
    spark = session(package=asked.package)
    rows: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        broker_process(Path(folder) / "data", durability="os") as (process, address),
    ):
        for queues in asked.queues:
            given = {"name_servers": address, "topic": f"orders{queues}"}
            fill(address, given["topic"], queues, ROWS.get(queues, 100_000))
            row: dict[str, Any] = {}
            if asked.only != "idle":
                row["batch"] = measure_batch(spark, given, queues, asked.package is not None)
            if asked.only != "batch":
                row["idle"] = measure_idle(
                    spark, given, process.pid, Path(folder) / f"checkpoint{queues}"
                )
            print(queues, row, flush=True)
            rows[f"{queues} queues"] = row
    spark.stop()
    if not asked.only and not asked.package:
        workload = {"rows": ROWS, "rounds": ROUNDS, "idle_seconds": IDLE_S}
        result = {"command": "python -m bench.spark.queues", "workload": workload, **rows}
        print(save("spark_queues", result))


if __name__ == "__main__":
    main()
