"""Measure Spark's connector to Kafka and ordermq, alternated: python -m bench.spark.kafka.

The same messages are stored in Kafka, in RocketMQ, in another RocketMQ whose settings let it answer
a pull with more messages, and in the embedded broker: bodies of 100 bytes, a tag, which is a header
in Kafka, keys drawn from a Zipf distribution, eight partitions or queues. RocketMQ has them once
more, without the tag, in a topic that stores a request of the sink as one record. One Spark session
reads them by turns, and writes keys and bodies. A sink in Python that only counts such rows shows
what Spark takes to hand them over, and the same requests, made beforehand and sent without Spark,
what RocketMQ's broker takes. CPU time is that of the program, the JVM and all Python workers; the
broker's own is counted apart. Needs Java 17 and Maven. Writes bench/results/spark_kafka.json;
`--only sink` leaves the reads there as they are, and other runs with --only are printed only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.end_to_end.bench_rocketmq import rocketmq_processes
from bench.machine import (
    RESULTS,
    both_commands,
    broker_process,
    command_line,
    cpu_seconds,
    save,
)
from bench.peers.kafka import CONNECTOR_VERSION, VERSION, Kafka, connector_jars, kafka
from bench.spark.processes import Tree
from bench.spark.rows import BODY_BYTES, CountingSink, Rows
from bench.spark.session import session
from bench.spark.sources import ROCKETMQ
from bench.spark.turns import cached
from ordermq import Admin, Message, Producer
from ordermq.spark.options import SinkOptions
from ordermq.spark.sink.block_sender import block_sender
from ordermq.spark.sink.row_encoder import RowEncoder

ROWS = 300_000
ROUNDS = 3
QUEUES = 8
KEYS = 20_000
TOPIC = "orders"
WRITTEN = "scored"
BATCHES = "-batches"  # behind the names of batch topics
TAG = "paid"
SEED = 20_261_126
KAFKA = f"Kafka {VERSION}"
REAL = f"ordermq, RocketMQ {ROCKETMQ}"
# The settings that docs/spark.md advises.
MOST_MESSAGES, MOST_BYTES = 1_024, 1_048_576  # of an answer
LARGE_ANSWERS = tuple(
    f"--set=maxTransfer{what}OnMessageIn{where}={most}"
    for where in ("Memory", "Disk")
    for what, most in (("Count", MOST_MESSAGES), ("Bytes", MOST_BYTES))
)
LARGE = f"{REAL}, {MOST_MESSAGES:,} messages an answer"
BATCHED = f"{REAL}, batch topic"
EMBEDDED = "ordermq, embedded broker"
COUNTED = "a sink in Python that counts rows"
MADE_BEFORE = f"requests made beforehand, without Spark, to RocketMQ {ROCKETMQ}"
READS = ("key and value", "all columns", "count by key")
SINK = "sink"
_RESULT = "spark_kafka"
MOST_WRITTEN = 500_000  # rows, which are cached in the JVM; reads have no limit
LEAST_ROUNDS_WRITTEN = 5  # a second or two each
# Kafka's topic is filled by the same connector, so that its broker has met such writes before;
# RocketMQ's is filled message by message, and its JVM compiles the path of batches for some rounds.
WARM_ROUNDS = {SINK: 4}  # others have 1
ARROW_ROWS = 10_000  # of a batch, as Spark's own
REST_S = 0.25  # a machine rests if its brokers take less than half a core for this long
MOST_RESTS = 40
FILL_ROWS = 500_000  # of a DataFrame that Spark takes from this program
VERSIONS = {
    "pyspark": pyspark.__version__,
    "kafka": VERSION,
    "connector": CONNECTOR_VERSION,
    "rocketmq": ROCKETMQ,
}


@dataclass(frozen=True, slots=True)
class Brokers:
    """The three that run.

    Args:
        name_server, broker_pid: of RocketMQ.
        embedded, embedded_pid: the embedded broker, which is a name server, too.
    """

    kafka: Kafka
    name_server: str
    broker_pid: int
    embedded: str
    embedded_pid: int


@contextlib.contextmanager
def brokers(folder: Path) -> Iterator[Brokers]:
    """Run Kafka, RocketMQ and the embedded broker, with their data in a folder."""
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(kafka(folder / "kafka"))
        parts = stack.enter_context(rocketmq_processes(ROCKETMQ))
        own, address = stack.enter_context(broker_process(folder / "own", durability="os"))
        pid = parts["broker-a"].pid
        yield Brokers(peer, parts["name-server"].address, pid, address, own.pid)


@dataclass(frozen=True, slots=True)
class Side:
    """A broker with the messages, and how Spark reads and writes it."""

    address: str
    broker_pid: int
    read: Callable[[str], DataFrame]  # a work of `reads`
    write: Callable[[DataFrame], None]  # into another topic
    reads: tuple[str, ...] = READS


def messages(rows: int) -> pd.DataFrame:
    """Return the key and the queue of each message."""
    drawn = np.random.default_rng(SEED).zipf(1.2, rows * 2)
    drawn = np.resize(drawn[drawn <= KEYS], rows)
    return pd.DataFrame({"key": np.char.mod("order-%08d", drawn), "queue": drawn % QUEUES})


def fill_kafka(spark: SparkSession, broker: Kafka, sent: pd.DataFrame) -> None:
    """Store the messages in Kafka, by its connector."""
    broker.create_topic(TOPIC, QUEUES)
    to = {"kafka.bootstrap.servers": broker.address, "topic": TOPIC}
    tag = F.struct(F.lit("tags").alias("key"), F.lit(TAG.encode()).alias("value"))
    spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")  # else a row at a time
    for first in range(0, len(sent), FILL_ROWS):
        frame = spark.createDataFrame(sent[first : first + FILL_ROWS]).select(
            "key",
            F.lit(b"x" * BODY_BYTES).alias("value"),
            F.col("queue").cast("int").alias("partition"),
            F.array(tag).alias("headers"),
        )
        frame.write.format("kafka").options(**to).mode("append").save()
        done = min(first + FILL_ROWS, len(sent))
        print(f"{KAFKA} has {done:,} of {len(sent):,} messages", flush=True)


def fill(name: str, address: str, sent: pd.DataFrame) -> None:
    """Store the messages in RocketMQ or the embedded broker."""
    with Admin(address) as admin:
        admin.create_topic(TOPIC, QUEUES)
    body = b"x" * BODY_BYTES
    events = ((Message(TOPIC, body, tags=TAG), key) for key in sent["key"])
    with Producer("fill", name_servers=address) as producer:
        for number, _ in enumerate(producer.send_stream(events, max_in_flight=4_096), 1):
            if not number % FILL_ROWS:
                print(f"{name} has {number:,} of {len(sent):,} messages", flush=True)


def fill_batches(spark: SparkSession, name_servers: str, sent: pd.DataFrame) -> None:
    """Store the messages in RocketMQ's batch topic, by the sink: it has keys and bodies alone."""
    topic = TOPIC + BATCHES
    with Admin(name_servers) as admin:
        admin.create_topic(topic, QUEUES, stores_batches=True)
    to = {"name_servers": name_servers, "topic": topic, "queue_column": "queue", "order": "none"}
    for first in range(0, len(sent), FILL_ROWS):
        frame = spark.createDataFrame(sent[first : first + FILL_ROWS]).select(
            F.col("key").alias("sharding_key"),
            F.lit(b"x" * BODY_BYTES).alias("body"),
            F.col("queue").cast("int").alias("queue"),
        )
        frame.write.format("ordermq").options(**to).mode("append").save()
    print(f"{BATCHED} has {len(sent):,} messages", flush=True)


def kafka_side(spark: SparkSession, broker: Kafka) -> Side:
    at = {"kafka.bootstrap.servers": broker.address}
    broker.create_topic(WRITTEN, QUEUES)

    def read(work: str) -> DataFrame:
        options = at | {"subscribe": TOPIC, "startingOffsets": "earliest"}
        if work == "all columns":
            options["includeHeaders"] = "true"
        frame = spark.read.format("kafka").options(**options).load()
        if work == "count by key":
            return frame.groupBy("key").count()
        return frame if work == "all columns" else frame.select("key", "value")

    def write(rows: DataFrame) -> None:
        renamed = rows.withColumnsRenamed({"sharding_key": "key", "body": "value"})
        renamed.write.format("kafka").options(**at, topic=WRITTEN).mode("append").save()

    return Side(broker.address, broker.pid, read, write)


def ordermq_side(
    spark: SparkSession, name_servers: str, broker_pid: int, *, batches: bool = False
) -> Side:
    topics = [name + (BATCHES if batches else "") for name in (TOPIC, WRITTEN)]
    columns = {"key and value": "sharding_key,body", "count by key": "sharding_key"}

    def read(work: str) -> DataFrame:
        options = {"name_servers": name_servers, "topic": topics[0]}
        if work in columns:
            options["columns"] = columns[work]
        frame = spark.read.format("ordermq").options(**options).load()
        return frame.groupBy("sharding_key").count() if work == "count by key" else frame

    with Admin(name_servers) as admin:
        admin.create_topic(topics[1], QUEUES, stores_batches=batches)

    def write(rows: DataFrame) -> None:
        options = {"name_servers": name_servers, "topic": topics[1]}
        rows.write.format("ordermq").options(**options).mode("append").save()

    return Side(name_servers, broker_pid, read, write, tuple(columns) if batches else READS)


@contextlib.contextmanager
def sides(spark: SparkSession, sent: pd.DataFrame, folder: Path) -> Iterator[dict[str, Side]]:
    """Run the four brokers, with the messages in each."""
    with brokers(folder) as all_brokers, rocketmq_processes(ROCKETMQ, *LARGE_ANSWERS) as parts:
        real, own = all_brokers.name_server, all_brokers.embedded
        large = parts["name-server"].address
        fill_kafka(spark, all_brokers.kafka, sent)
        for name, address in ((REAL, real), (LARGE, large), (EMBEDDED, own)):
            fill(name, address, sent)
        fill_batches(spark, real, sent)
        yield {
            KAFKA: kafka_side(spark, all_brokers.kafka),
            REAL: ordermq_side(spark, real, all_brokers.broker_pid),
            LARGE: ordermq_side(spark, large, parts["broker-a"].pid),
            BATCHED: ordermq_side(spark, real, all_brokers.broker_pid, batches=True),
            EMBEDDED: ordermq_side(spark, own, all_brokers.embedded_pid),
        }


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def works(side: Side, rows: DataFrame, sent: int) -> dict[str, Callable[[], None]]:
    """Return each work as a call."""
    assert side.read("key and value").count() == sent
    made: dict[str, Callable[[], None]] = {
        work: (lambda work=work: noop(side.read(work)))  # type: ignore[misc]
        for work in side.reads
    }
    made[SINK] = lambda: side.write(rows)
    return made


def count(rows: DataFrame) -> None:
    rows.write.format("bench_count").mode("append").save()


def made_before(name_servers: str, rows: DataFrame) -> Callable[[], None]:
    """Encode rows as the sink does; return what sends the requests: all that their broker takes."""
    given = {"name_servers": name_servers, "topic": WRITTEN}
    options = SinkOptions.of(given, dict.fromkeys(rows.columns))
    sender = block_sender(name_servers, options.config, options.group, options.selector)
    encoder = RowEncoder(options, rows.columns, sender.queues, ("bench", 0), 0)
    blocks = [encoder.encode(batch) for batch in rows.toArrow().to_batches(ARROW_ROWS)]

    def send() -> None:
        with sender.stream(is_bulk=encoder.is_bulk) as stream:
            for block in blocks:
                stream.send(block)

    return send


def measure(
    spark: SparkSession, all_sides: dict[str, Side], rows: int, rounds: int, chosen: str
) -> dict[str, Any]:
    """Do each work by turns; return the figures of each side and work."""
    tree = Tree(spark)
    # Each key in one task, as the sink of ordermq wants it.
    most = min(rows, MOST_WRITTEN)
    written = cached(spark, most, KEYS).select("sharding_key", "body")
    todo = {name: works(side, written, rows) for name, side in all_sides.items()}
    todo[COUNTED] = {SINK: lambda: count(written)}
    todo[MADE_BEFORE] = {SINK: made_before(all_sides[REAL].address, written)}
    broker_pids = {name: side.broker_pid for name, side in all_sides.items()}
    every_pid = list(broker_pids.values())
    broker_pids[MADE_BEFORE] = broker_pids[REAL]
    found: dict[str, Any] = {}
    for work in (chosen,) if chosen else (*READS, SINK):
        turns = {name: each[work] for name, each in todo.items() if work in each}
        passes: dict[str, list[tuple[float, float, float]]] = {name: [] for name in turns}
        warm = WARM_ROUNDS.get(work, 1)
        for number in range(warm + _rounds(work, rounds)):
            for name, run in turns.items():
                pids = [broker_pids[name]] if name in broker_pids else []
                rest(every_pid)
                broker = sum(map(cpu_seconds, pids))
                before, began = tree.cpu_seconds(), time.perf_counter()
                run()
                taken = time.perf_counter() - began, tree.cpu_seconds() - before
                rest(pids)  # what a broker does behind its last answer is a part of its work
                print(f"{work}, {name}: {taken[0]:.2f} s, {taken[1]:.2f} CPU-s", flush=True)
                if number >= warm:
                    passes[name].append((*taken, sum(map(cpu_seconds, pids)) - broker))
        done = most if work == SINK else rows
        found[work] = {name: figures(each, passes[KAFKA], done) for name, each in passes.items()}
        for name, row in found[work].items():
            print(work, name, row, flush=True)
    return found


def rest(pids: list[int]) -> None:
    """Wait until what these brokers do behind the last answer of a work is done.

    RocketMQ's indexes messages behind its answers, which would take time of the next side's work.
    """
    for _ in range(MOST_RESTS):
        before = sum(map(cpu_seconds, pids))
        time.sleep(REST_S)
        if sum(map(cpu_seconds, pids)) - before < REST_S / 2:
            return


def _rounds(work: str, rounds: int) -> int:
    return max(rounds, LEAST_ROUNDS_WRITTEN) if work == SINK else rounds


def figures(
    passes: list[tuple[float, float, float]], peer: list[tuple[float, float, float]], rows: int
) -> dict[str, Any]:
    """Return medians per row, and the medians of the rounds' ratios to the peer."""

    def median(values: Iterator[float], digits: int = 2) -> float:
        return round(statistics.median(values), digits)

    pairs = list(zip(passes, peer, strict=True))
    return {
        "seconds": median(seconds for seconds, _, _ in passes),
        "krows_per_second": round(rows / statistics.median(one[0] for one in passes) / 1e3),
        "cpu_us_per_row": median(cpu / rows * 1e6 for _, cpu, _ in passes),
        "broker_cpu_us_per_row": median(cpu / rows * 1e6 for _, _, cpu in passes),
        "rate_ratio": median(theirs[0] / mine[0] for mine, theirs in pairs),
        "cpu_ratio": median(mine[1] / theirs[1] for mine, theirs in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--only", choices=(*READS, SINK), default="", help=f"only `{SINK}` is saved"
    )
    asked = parser.parse_args()
    sent = messages(asked.rows)
    spark = session(jars=connector_jars())
    for kind in (Rows, CountingSink):
        spark.dataSource.register(kind)
    try:
        with tempfile.TemporaryDirectory() as text, sides(spark, sent, Path(text)) as all_sides:
            before = os.getloadavg()[0]
            found = measure(spark, all_sides, asked.rows, asked.rounds, asked.only)
    finally:
        spark.stop()
    workload = {
        "rows": asked.rows, "rows_written": min(asked.rows, MOST_WRITTEN),
        "rounds": asked.rounds, "rounds_written": _rounds(SINK, asked.rounds),
        "warm_rounds_written": WARM_ROUNDS[SINK],
        "body_bytes": BODY_BYTES, "queues": QUEUES, "keys": int(sent["key"].nunique()),
        "load_before": round(before, 1),
    }  # fmt: skip
    command = command_line("bench.spark.kafka")
    saved = RESULTS / f"{_RESULT}.json"
    if asked.only:
        if asked.only != SINK or asked.rows < MOST_WRITTEN or not saved.exists():
            return  # of fewer rows than those beside it
        earlier = json.loads(saved.read_text())
        workload = earlier["workload"] | {
            name: value for name, value in workload.items() if name.endswith("_written")
        }
        found = earlier["works"] | found
        command = both_commands(earlier["command"], command)
    result = {"command": command, "workload": workload, "versions": VERSIONS, "works": found}
    print(save(_RESULT, result))


if __name__ == "__main__":
    main()
