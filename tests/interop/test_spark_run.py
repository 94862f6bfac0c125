"""Spark queries on RocketMQ, whose brokers have no lock epochs.

First their driver's half alone, for which Spark is not needed; then whole programs on a cluster
of two executors. ci/spark.sh has the tests on the embedded broker.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from ordermq import PullConsumer
from ordermq.errors import LockRefused
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import RequestCode
from ordermq.spark.options import SourceOptions
from ordermq.spark.session import lease_client_id
from ordermq.spark.source.offsets import StreamOffset
from ordermq.spark.source.stream_driver import StreamDriver
from tests.interop.cluster import LOCK_INTERVAL_MS, LOCK_MAX_LIVE_MS, ROOT
from tests.interop.line_process import LineProcess
from tests.interop.run import Run

QUEUES = {"broker-a": 2, "broker-b": 2}


@pytest.fixture
def query(run: Run) -> Iterator[Callable[..., StreamDriver]]:
    """Run queries of the group; they are closed after the test."""
    run.cluster.put_topic(run.topic, QUEUES)
    made: list[StreamDriver] = []

    def make(**more: str) -> StreamDriver:
        given = {
            "name_servers": run.cluster.name_servers,
            "topic": run.topic,
            "group": run.group,
            "starting_offsets": "earliest",
            "lock_max_live_ms": str(LOCK_MAX_LIVE_MS),
            "lock_interval_ms": str(LOCK_INTERVAL_MS),
        }
        made.append(StreamDriver(SourceOptions.of(given | more)))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


def one_batch(driver: StreamDriver, start: StreamOffset, limit: int | None = None) -> StreamOffset:
    end = driver.next_end(start, limit)
    assert end is not None
    ranges = driver.begin_batch(start, end)
    assert sum(last - first for _, first, last in ranges) > 0
    return end


def test_a_query_on_rocketmq_locks_its_queues_commits_and_hands_over(
    run: Run, query: Callable[..., StreamDriver]
) -> None:
    run.send(40)
    first = query()
    end = one_batch(first, first.initial(), 40)
    assert sum(end.queues.values()) == 40
    second = query(lock_wait_ms="0", starting_offsets="group")
    with pytest.raises(LockRefused, match="4 of 4 queues"):
        second.initial()
    assert first.next_end(end, None) is None
    first.close()
    assert second.initial().queues == end.queues
    with PullConsumer(run.group, name_servers=run.cluster.name_servers) as puller:
        done = {queue: puller.fetch_consume_offset(queue, from_store=True) for queue in end.queues}
    assert done == end.queues


def test_a_java_member_gets_no_queue_of_a_running_query_and_continues_after_it(
    run: Run, query: Callable[..., StreamDriver]
) -> None:
    run.send(40)
    driver = query()
    end = one_batch(driver, driver.initial())
    java = run.java_member("java")
    try:
        assert driver.next_end(end, None) is None
        run.send(20)
        assert run.count_of("java") == 0
        driver.close()
        run.wait_for_more(20, "java")
    finally:
        java.kill()
    assert {int(one.body) for one in run.deliveries} == set(range(40, 60))


def test_a_query_stopped_within_a_batch_keeps_its_locks_until_they_expire(
    run: Run, query: Callable[..., StreamDriver]
) -> None:
    run.send(40)
    first = query()
    start = first.initial()
    end = one_batch(first, start)
    first.close()
    hasty = query(lock_wait_ms="0")
    with pytest.raises(LockRefused):
        hasty.begin_batch(start, end)
    patient = query(lock_wait_ms="40000")
    with ThreadPoolExecutor(1) as pool:
        assert len(pool.submit(patient.begin_batch, start, end).result(60)) == 4


@pytest.mark.restarts
def test_a_query_continues_after_an_outage_if_nobody_moved_the_groups_offset(
    run: Run, query: Callable[..., StreamDriver]
) -> None:
    run.send(40)
    # A start of the broker takes longer than the other tests' leases live.
    driver = query(lock_max_live_ms="30000", lock_interval_ms="20000")
    start = driver.initial()
    end = one_batch(driver, start, 20)
    assert driver.next_end(end, None) is not None
    run.cluster.kill("broker-a")
    run.cluster.start("broker-a")
    more = driver.next_end(end, None)
    assert more is not None
    assert sum(at for at in more.queues.values()) == 40


# Whole programs: spark_query.py, on two executors.


@dataclass
class Program:
    """The Spark program between the run's topic and another."""

    run: Run
    started: list[LineProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        for topic in (self.run.topic, self.target):
            self.run.cluster.put_topic(topic, QUEUES)

    @property
    def target(self) -> str:
        return f"{self.run.topic}-done"

    def start(self) -> LineProcess:
        command = [
            sys.executable, "-m", "tests.interop.spark_query", self.run.cluster.name_servers,
            self.run.group, self.run.topic, self.target, str(self.run.folder),
        ]  # fmt: skip
        self.started.append(LineProcess(command, self.run.folder, working_directory=ROOT))
        return self.started[-1]

    def calls(self) -> list[dict[str, Any]]:
        """Return the calls that the stage's function recorded, in order of time."""
        path = self.run.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def request_locks(self, code: RequestCode, client_id: str) -> int:
        """Lock or unlock every queue of the source for a client id; return how many it got."""
        granted = 0
        for broker, count in QUEUES.items():
            queues = [
                {"topic": self.run.topic, "brokerName": broker, "queueId": number}
                for number in range(count)
            ]
            body = {"consumerGroup": self.run.group, "clientId": client_id, "mqSet": queues}
            answer = self.run.cluster.ask(broker, code, {}, json.dumps(body).encode())
            assert answer.code == 0, answer.remark
            if code == RequestCode.LOCK_BATCH_MQ:
                granted += len(json.loads(answer.body)["lockOKMQSet"])
        return granted

    def hand_locks_over(self, owner: str, client_id: str) -> None:
        """Give every queue of the source to another client id."""
        # A renewal of the owner may come between the two, and get some of them back.
        while self.request_locks(RequestCode.LOCK_BATCH_MQ, client_id) < sum(QUEUES.values()):
            self.request_locks(RequestCode.UNLOCK_BATCH_MQ, owner)

    def written(self) -> dict[MessageQueue, list[Any]]:
        """Return all messages of the target topic."""
        found: dict[MessageQueue, list[Any]] = defaultdict(list)
        servers = self.run.cluster.name_servers
        with PullConsumer(f"{self.run.group}-reader", name_servers=servers) as puller:
            for queue in puller.fetch_subscribe_message_queues(self.target):
                at, end = 0, puller.max_offset(queue)
                while at < end:
                    pulled = puller.pull(queue, "*", at, 32)
                    found[queue] += pulled.messages
                    at = pulled.next_begin_offset
        return found

    def close(self) -> None:
        for process in self.started:
            process.kill()


@pytest.fixture
def program(run: Run) -> Iterator[Program]:
    made = Program(run)
    yield made
    made.close()


def through(process: LineProcess, rows: int) -> None:
    """Wait until so many rows are processed; the program reports once per second."""
    while (line := process.read())["rows"] < rows:
        assert not line.get("failed"), line["failed"]


def ending(process: LineProcess, each_line: Callable[[], None] | None = None) -> dict[str, Any]:
    while "failed" not in (line := process.read()):
        if each_line is not None:
            each_line()
    process.leave()
    return line


def first_copies(written: dict[MessageQueue, list[Any]]) -> list[int]:
    """Return each number once; asserts that a key is in one queue with ascending numbers."""
    seen, places, numbers = set(), defaultdict(set), defaultdict(list)
    for queue, messages in written.items():
        for message in messages:
            source = (message.properties["omq_source"], int(message.properties["omq_offset"]))
            if source in seen:
                continue
            seen.add(source)
            number, word = bytes(message.body).split()
            assert word == b"done"
            places[message.sharding_key].add(queue)
            numbers[message.sharding_key].append(int(number))
    for key, own in numbers.items():
        assert len(places[key]) == 1, key
        assert own == sorted(own), key
    return sorted(number for own in numbers.values() for number in own)


@pytest.mark.timeout(400)
def test_two_executors_keep_the_order_and_a_push_member_gets_later_messages(
    run: Run, program: Program
) -> None:
    run.send(600)
    process = program.start()
    through(process, 600)
    run.send(200)
    through(process, 800)
    process.tell("stop")
    assert ending(process) == {"rows": 800, "failed": None}
    written = program.written()
    assert sum(map(len, written.values())) == 800
    assert first_copies(written) == list(range(800))
    calls = program.calls()
    assert len({call["executor"] for call in calls}) == 2
    assert sum(call["rows"] for call in calls) == 800
    with PullConsumer(run.group, name_servers=run.cluster.name_servers) as puller:
        for queue in puller.fetch_subscribe_message_queues(run.topic):
            done = puller.fetch_consume_offset(queue, from_store=True)
            assert done == puller.max_offset(queue)
    run.member("after")  # from the first offset, had the query committed none
    run.send(100)
    run.wait_for_more(100 - run.count_of("after"), "after")
    run.leave("after")
    assert sorted(int(one.body) for one in run.deliveries) == list(range(800, 900))
    run.assert_keys_in_order()


@pytest.mark.timeout(600)
def test_an_executor_that_lost_its_lock_stops_calling_and_the_next_run_loses_nothing(
    run: Run, program: Program
) -> None:
    run.send(400)
    (run.folder / "pause").touch()
    process = program.start()
    while not (run.folder / "pausing").exists():
        assert not (line := process.read()).get("failed"), line["failed"]
    before = [call for call in program.calls() if call["queue"] == "broker-a:0"]
    (lease,) = {call["lease"] for call in before}
    program.hand_locks_over(lease_client_id(run.group, lease), "another")
    (run.folder / "go").touch()
    # Renewed, as a member does: on a busy machine the end takes longer than a lock lives, and
    # Spark's next attempt would get a queue that nobody holds.
    told = ending(process, lambda: program.request_locks(RequestCode.LOCK_BATCH_MQ, "another"))
    assert "LockLost" in told["failed"]  # the executor's words, or the driver's if it looked first
    after = [call for call in program.calls() if call["queue"] == "broker-a:0"]
    assert after == before, "user code ran beside the queue's new owner"
    program.request_locks(RequestCode.UNLOCK_BATCH_MQ, "another")
    process = program.start()
    through(process, 400)
    process.tell("stop")
    assert ending(process)["failed"] is None
    assert first_copies(program.written()) == list(range(400))
