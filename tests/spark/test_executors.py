"""Executors that fail, run a task twice, are killed when idle, or are on other hosts."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from ordermq.spark import drop_repeats
from ordermq.spark.options import SourceOptions
from ordermq.spark.source.batch import BatchReader
from tests.spark.conftest import (
    MARK,
    OWN_MARK,
    ROOT,
    Stream,
    assert_in_order,
    eventually,
    numbers,
    send,
)
from tests.spark.two_hosts import two_hosts


def test_two_attempts_of_one_task_at_once_read_the_same(broker, producer):
    send(producer, 4_000)
    options = SourceOptions.of(
        {"name_servers": broker.name_servers, "topic": "orders", "pull_batch_size": "100"}
    )
    reader = BatchReader(options, None)
    parts = reader.partitions()
    assert len(parts) == 4

    def attempt(part):
        return pa.Table.from_batches(reader.read(part))

    with ThreadPoolExecutor(4) as pool:
        first = [pool.submit(attempt, part) for part in parts]
        second = [pool.submit(attempt, part) for part in parts]
        send(producer, 500, first=4_000)  # beside them: no attempt may see any of these
        for one, other in zip(first, second, strict=True):
            assert one.result(60).equals(other.result(60))
    assert sum(one.result().num_rows for one in first) == 4_000


def test_two_executors_keep_the_order_and_failed_tasks_lose_nothing(
    broker, producer, tmp_path: Path
):
    send(producer, 8_000)
    program = Path(__file__).with_name("cluster_process.py")
    answer = subprocess.run(
        [sys.executable, str(program), broker.name_servers, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3_000:]
    told = json.loads(answer.stdout.strip().splitlines()[-1])
    assert len(told["batch"]) == 8_000
    assert len(set(map(tuple, told["batch"]))) == 8_000
    assert told["stream"] == told["batch"]


def test_repeats_of_two_concurrent_attempts_on_two_hosts_are_dropped(
    spark, broker, producer, tmp_path: Path
):
    send(producer, 4_000)
    marks = tmp_path / "marks"
    marks.mkdir()
    program = Path(__file__).with_name("speculation_process.py")
    with two_hosts(tmp_path) as master:
        answer = subprocess.run(
            [sys.executable, str(program), master, broker.name_servers, str(marks)],
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert answer.returncode == 0, answer.stderr[-3_000:]
    told = json.loads(answer.stdout.strip().splitlines()[-1])
    assert "spark.speculation is true" in told["refused"]
    assert {"0-0-begun", "0-1-begun", "0-1-ended"} <= set(told["attempts"])
    given = {"name_servers": broker.name_servers, "topic": "copied"}
    everything = spark.read.format("ordermq").options(**given).load()
    rows = everything.orderBy("queue_id", "offset").collect()
    assert len(rows) > 4_000, "the slow attempt sent nothing: the test shows nothing"
    once = drop_repeats(everything).orderBy("queue_id", "offset").collect()
    assert numbers(once) == list(range(4_000))
    assert_in_order(once)


def workers() -> list[int]:
    """Worker processes of this session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            told = (path / "environ").read_bytes()
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            of_daemon = b"pyspark.daemon" in Path(f"/proc/{parent}/cmdline").read_bytes()
        except OSError:
            continue
        if b"pyspark.daemon" in command and of_daemon and f"{MARK}={OWN_MARK}".encode() in told:
            found.append(int(path.name))
    return found


class WhereRows(list[list[tuple[int, int]]]):
    """(process, number) of each row of a query, by batch."""

    def start(self, stream: Stream) -> Any:
        def signed(batches):
            for batch in batches:
                pids, bodies = [os.getpid()] * batch.num_rows, batch.column("body")
                yield pa.RecordBatch.from_pydict({"pid": pids, "body": bodies})

        def take(batch, number):
            self.append([(row.pid, int(bytes(row.body))) for row in batch.collect()])

        rows = stream.frame(group="etl").mapInArrow(signed, "pid BIGINT, body BINARY")
        writer = rows.writeStream.option("checkpointLocation", str(stream.checkpoint))
        stream.queries.append(writer.foreachBatch(take).start())
        return stream.queries[0]

    def processes(self) -> list[set[int]]:
        """The processes of each batch."""
        return [{pid for pid, _ in rows} for rows in self]

    def wait_for(self, count: int) -> None:
        eventually(lambda: sum(map(len, self)) == count, "the messages behind the first batch")
        assert sorted(number for rows in self for _, number in rows) == list(range(count))


def test_a_stream_continues_in_workers_without_its_earlier_batches(spark, stream, producer):
    """As after a minute without messages, when Spark kills the idle ones."""
    taken, conf = WhereRows(), spark._jsc.sc().conf()
    conf.set("spark.python.worker.reuse", "false")
    try:
        send(producer, 100)
        taken.start(stream).processAllAvailable()
        send(producer, 100, first=100)
        taken.wait_for(200)
    finally:
        conf.remove("spark.python.worker.reuse")
    assert len(taken) > 1
    for one, other in itertools.combinations(taken.processes(), 2):
        assert not one & other


def test_a_stream_continues_after_its_idle_workers_were_killed(stream, producer):
    taken = WhereRows()
    send(producer, 100)
    taken.start(stream).processAllAvailable()
    # Its own: a worker of an earlier test's stopped query may be busy for ever (test_endings).
    before = set.union(*taken.processes())
    assert before <= set(workers())
    eventually(lambda: not before & set(workers()), "Spark has killed the idle workers", 180)
    send(producer, 100, first=100)
    taken.wait_for(200)
