"""Every way a query can end, and the state of its locks at the broker afterwards.

The broker keeps a lock for a minute here, so one that is gone within seconds was released.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from ordermq import Producer, PushConsumer
from ordermq.spark.versions import END_OF_AVAILABLE_NOW
from tests.spark.conftest import (
    DEADLINE_S,
    MARK,
    OWN_MARK,
    ROOT,
    Broker,
    Stream,
    eventually,
    needs,
    numbers,
    owners,
    send,
)

STRIDE = 17  # places of `stop` that the test of SIGTERM goes on by; there are some hundred


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    running = Broker(tmp_path / "broker.db", lock_max_live_ms=60_000)
    yield running
    running.close()


def readers(mark: str = OWN_MARK) -> list[int]:
    """Processes that run a stream's driver half, of the session or program with this mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            told = (path / "environ").read_bytes()
        except OSError:  # it has just ended
            continue
        if b"python_streaming_source_runner" in command and f"{MARK}={mark}".encode() in told:
            found.append(int(path.name))
    return found


def is_one_holder(broker: Broker) -> bool:
    held = owners(broker)
    return len(held) == 4 and len(set(held.values())) == 1


def assert_given_up(broker: Broker) -> None:
    eventually(lambda: owners(broker) == {}, "the locks are given up", 20)


def assert_kept(broker: Broker) -> None:
    assert is_one_holder(broker)


# In the session all tests share.


def test_a_stopped_idle_query_releases_its_locks(stream: Stream, broker: Broker, producer):
    send(producer, 100)
    query = stream.start(group="etl")
    query.processAllAvailable()
    assert is_one_holder(broker)
    query.stop()
    assert_given_up(broker)


@needs(END_OF_AVAILABLE_NOW)
def test_a_finished_query_releases_its_locks(stream: Stream, broker: Broker, producer):
    send(producer, 100)
    assert numbers(stream.run(group="etl")) == list(range(100))
    assert_given_up(broker)


def test_locks_of_a_query_stopped_while_its_code_runs_live_on_for_the_executors(
    stream: Stream, producer, tmp_path: Path
):
    """Spark's `stop()` returns while user code goes on, for seconds or, when its kill misses the
    worker, until the session ends; so only the time it is given can be promised.
    """
    short = Broker(tmp_path / "short.db", lock_max_live_ms=6_000)
    with Producer("s", name_servers=short.name_servers, default_topic_queue_nums=4) as sender:
        send(sender, 100)
    steps = tmp_path / "steps"
    query = (
        stream.frame(group="etl", name_servers=short.name_servers)
        .mapInArrow(busy_for_ever(steps), "n BIGINT")
        .writeStream.format("noop")
        .option("checkpointLocation", str(stream.checkpoint))
        .start()
    )
    stream.queries.append(query)
    eventually(steps.exists, "user code runs")
    holder = set(owners(short).values())
    first: list[float] = []
    begun = threading.Event()

    def listener(messages, context):
        first.append(time.time())
        begun.set()

    consumer = PushConsumer(
        "etl", name_servers=short.name_servers, consume_from_where="first_offset"
    )
    consumer.subscribe("orders")
    consumer.orderly(listener)
    with consumer:
        query.stop()
        stopped = time.time()
        assert set(owners(short).values()) == holder
        assert begun.wait(DEADLINE_S)
    # Nearly the whole lock time: it was renewed within `stop`, and executors stop at half of it.
    assert first[0] - stopped > 3.0
    short.close()


def busy_for_ever(steps: Path):
    """User code that says when it was alive, and does not end by itself."""

    def work(batches):
        with steps.open("a") as told:
            while True:
                told.write(f"{time.time()}\n")
                told.flush()
                threading.Event().wait(0.02)
        yield from batches

    return work


def test_a_query_whose_batch_failed_keeps_its_locks(stream: Stream, broker: Broker, producer):
    send(producer, 100)

    def fails(number, rows):
        raise RuntimeError("no room")

    query = stream.start(group="etl", each=fails)
    with pytest.raises(StreamingQueryException, match="no room"):
        query.awaitTermination(DEADLINE_S)
    eventually(lambda: not readers(), "the driver's half has ended")
    assert_kept(broker)


def test_after_pause_a_query_stopped_in_a_batch_unlocks_and_its_next_run_continues(
    stream: Stream, broker: Broker, producer
):
    send(producer, 100)
    options = {"group": "etl", "release_in_flight": "afterPause", "release_pause_ms": "1500"}

    def fails(number, rows):
        raise RuntimeError("no room")

    query = stream.start(each=fails, **options)
    with pytest.raises(StreamingQueryException, match="no room"):
        query.awaitTermination(DEADLINE_S)
    # It waits for the pause of the first run, not for the minute of the broker.
    begun = time.monotonic()
    assert numbers(stream.run(**options)) == list(range(100))
    assert time.monotonic() - begun < 45
    assert_given_up(broker)


def test_a_killed_reader_fails_the_query_and_its_locks_stay(
    stream: Stream, broker: Broker, producer
):
    send(producer, 100)
    query = stream.start(group="etl")
    query.processAllAvailable()
    (reader,) = readers()
    os.kill(reader, signal.SIGKILL)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(DEADLINE_S)
    assert_kept(broker)


def test_a_reader_frozen_longer_than_its_lease_fails_the_query(
    stream: Stream, producer, tmp_path: Path
):
    short = Broker(tmp_path / "short.db", lock_max_live_ms=6_000)
    with Producer("s", name_servers=short.name_servers, default_topic_queue_nums=4) as sender:
        send(sender, 100)
    query = stream.start(group="etl", name_servers=short.name_servers)
    query.processAllAvailable()
    (reader,) = readers()
    os.kill(reader, signal.SIGSTOP)
    eventually(lambda: owners(short) == {}, "its locks have expired", 30)
    os.kill(reader, signal.SIGCONT)
    with pytest.raises(StreamingQueryException, match=r"LockLost.*Start the query again"):
        query.awaitTermination(DEADLINE_S)
    more = Stream(stream._spark, short, stream.checkpoint)
    with Producer("s", name_servers=short.name_servers) as sender:
        send(sender, 50, first=100)
    assert numbers(more.run(group="etl")) == list(range(100, 150))
    short.close()


# In programs of their own.


def test_a_reader_that_sigterm_meets_as_it_stops_releases_its_locks(broker: Broker, producer):
    send(producer, 100)
    command = [sys.executable, str(Path(__file__).with_name("stopped_reader.py"))]
    program = subprocess.run(
        [*command, broker.name_servers, str(STRIDE)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    places = int(program.stdout)
    assert places > 5 * STRIDE
    kept = [at for at in range(1, places, STRIDE) if owners(broker, f"stopped-{at}")]
    assert kept == []


PROGRAM = str(Path(__file__).with_name("query_process.py"))


class Program:
    """tests/spark/query_process.py, running."""

    def __init__(self, broker: Broker, folder: Path, state: str) -> None:
        self.mark = uuid.uuid4().hex
        environment = os.environ | {MARK: self.mark, "PYTHONPATH": str(ROOT)}
        self._log = (folder / "program.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, broker.name_servers, str(folder / "checkpoint"), state],
            env=environment | {"PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            text=True,
        )
        self.jvm = 0

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ready "):
                self.jvm = int(line.split()[1])
                return
        pytest.fail("the program ended early; see program.log in its folder")

    def order(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)  # as Ctrl-C does

    def close(self) -> None:
        for pid in filter(None, (self.process.pid, self.jvm, *readers(self.mark))):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(DEADLINE_S)
        for stream in (self.process.stdin, self.process.stdout, self._log):
            assert stream is not None
            stream.close()


ENDINGS: dict[str, Callable[[Program], None]] = {
    "the program exits": lambda program: program.order("exit"),
    "spark.stop()": lambda program: program.order("stop"),
    "kill -9 of the program": lambda program: program.kill(signal.SIGKILL),
    "SIGINT to the group": Program.interrupt,
    "SIGTERM of the JVM": lambda program: os.kill(program.jvm, signal.SIGTERM),
    "kill -9 of the JVM": lambda program: os.kill(program.jvm, signal.SIGKILL),
}


def ended(broker: Broker, folder: Path, ending: str, state: str) -> None:
    """Run a program until it is idle or busy, and end it."""
    program = Program(broker, folder, state)
    try:
        program.wait_until_ready()
        assert is_one_holder(broker)
        ENDINGS[ending](program)
        eventually(lambda: not readers(program.mark), f"{ending}: the driver's half has ended")
        if state == "idle":
            assert_given_up(broker)
        else:
            assert_kept(broker)
    finally:
        program.close()


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_idle_program_releases_its_locks_at_every_kind_of_end(
    broker: Broker, producer, tmp_path: Path, ending: str
):
    send(producer, 100)
    ended(broker, tmp_path, ending, "idle")


@pytest.mark.parametrize("ending", ["kill -9 of the program", "SIGTERM of the JVM"])
def test_a_busy_program_keeps_its_locks_at_every_kind_of_end(
    broker: Broker, producer, tmp_path: Path, ending: str
):
    send(producer, 100)
    ended(broker, tmp_path, ending, "busy")
