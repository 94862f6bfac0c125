"""The driver's half of a Spark query on RocketMQ's brokers, which know no lock epochs.

Spark itself is not needed for it; ci/spark.sh has the tests that run one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ordermq import PullConsumer
from ordermq.errors import LockRefused
from ordermq.spark.offsets import StreamOffset
from ordermq.spark.options import SourceOptions
from ordermq.spark.stream_driver import StreamDriver
from tests.interop.cluster import LOCK_INTERVAL_MS, LOCK_MAX_LIVE_MS
from tests.interop.java_process import JavaProcess, to_boot_time_ns
from tests.interop.run import Run

QUEUES = {"broker-a": 2, "broker-b": 2}


@pytest.fixture
def query(run: Run) -> Iterator[Callable[..., StreamDriver]]:
    """Runs of queries of the group; closed after the test."""
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
    end = driver.latest(start, limit)
    assert end is not None
    ranges = driver.begin(start, end)
    assert sum(last - first for _, first, last in ranges) > 0
    return end


def test_a_query_on_rocketmq_holds_its_queues_commits_and_hands_over(
    run: Run, query: Callable[..., StreamDriver]
) -> None:
    run.send(40)
    first = query()
    end = one_batch(first, first.initial(), 40)
    assert sum(end.queues.values()) == 40
    second = query(lock_wait_ms="0", starting_offsets="group")
    with pytest.raises(LockRefused, match="4 of 4 queues"):
        second.initial()
    assert first.latest(end, None) is None
    first.close()
    assert second.initial().queues == end.queues
    with PullConsumer(run.group, name_servers=run.cluster.name_servers) as puller:
        done = {queue: puller.fetch_consume_offset(queue, from_store=True) for queue in end.queues}
    assert done == end.queues


def test_javas_member_gets_nothing_of_a_running_query_and_goes_on_behind_it(
    run: Run, query: Callable[..., StreamDriver]
) -> None:
    run.send(40)
    driver = query()
    end = one_batch(driver, driver.initial())
    java = JavaProcess(
        run.cluster.version,
        "Member",
        run.folder,
        on_line=lambda line: run.deliver("java", line),
        mode="orderly",
        group=run.group,
        topic=run.topic,
        name_servers=run.cluster.name_servers,
        history=run.folder / "java.jsonl",
        to_boot_time_ns=to_boot_time_ns(),
    )
    try:
        assert driver.latest(end, None) is None
        run.send(20)
        assert run.count_of("java") == 0
        driver.close()
        run.wait_for_more(20, "java")
    finally:
        java.kill()
    assert {int(one.body) for one in run.deliveries} == set(range(40, 60))


def test_a_query_stopped_in_mid_batch_keeps_rocketmqs_locks_until_they_expire(
    run: Run, query: Callable[..., StreamDriver]
) -> None:
    run.send(40)
    first = query()
    start = first.initial()
    end = one_batch(first, start)
    first.close()
    hasty = query(lock_wait_ms="0")
    with pytest.raises(LockRefused):
        hasty.begin(start, end)
    patient = query(lock_wait_ms="40000")
    with ThreadPoolExecutor(1) as pool:
        assert len(pool.submit(patient.begin, start, end).result(60)) == 4


@pytest.mark.restarts
def test_a_query_goes_on_after_its_broker_was_away_and_nobody_moved_the_groups_offset(
    run: Run, query: Callable[..., StreamDriver]
) -> None:
    run.send(40)
    # A start of the broker takes longer than the other tests' leases live.
    driver = query(lock_max_live_ms="30000", lock_interval_ms="20000")
    start = driver.initial()
    end = one_batch(driver, start, 20)
    assert driver.latest(end, None) is not None
    run.cluster.kill("broker-a")
    run.cluster.start("broker-a")
    more = driver.latest(end, None)
    assert more is not None
    assert sum(at for at in more.queues.values()) == 40
