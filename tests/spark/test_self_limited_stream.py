"""The stream of Spark 4.0 and 4.1, called as these do; no Spark runs, so that every version can."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ordermq import Producer
from ordermq.errors import DataLoss, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import SourceOptions
from ordermq.spark.source.self_limited_stream import SelfLimitedStream
from tests.spark.conftest import Broker, owners, send

FAILS = "the sink fails"


class OldSpark:
    """The calls of a query's runs; `checkpoint` has the ends that were planned."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._finished = 0
        self.checkpoint: list[str] = []
        self.sizes: list[int] = []
        self.read: list[tuple[int, int]] = []  # queue and offset

    def reader(self, **more: str) -> SelfLimitedStream:
        given = {"name_servers": self._broker.name_servers, "topic": "orders"} | more
        return SelfLimitedStream(SourceOptions.of(given))

    def run(self, asks: int, *, now: bool = False, fails: bool = False, **more: str) -> None:
        """Ask for this many ends and read up to each; `now` as Trigger.AvailableNow, once."""
        reader = self.reader(**more)
        try:
            if self.checkpoint:
                last = json.loads(self.checkpoint[-1])
                assert reader.partitions(last, last) == []
                if self._finished < len(self.checkpoint):
                    self._batch(reader, fails=False)
            for _ in range(asks):
                end = json.dumps(reader.latestOffset())
                if not self.checkpoint or end != self.checkpoint[-1]:
                    self.checkpoint.append(end)
                    self._batch(reader, fails)
            if not now:
                reader.latestOffset()  # for a batch that this run does not make
        finally:
            reader.stop()

    def _batch(self, reader: SelfLimitedStream, fails: bool) -> None:
        end = json.loads(self.checkpoint[-1])
        has_start = len(self.checkpoint) > 1
        start = json.loads(self.checkpoint[-2]) if has_start else reader.initialOffset()
        tasks: Any = reader.partitions(start, end)
        if fails:
            raise RuntimeError(FAILS)
        ranges = [each for task in tasks for each in task.ranges]
        rows = [(each.queue_id, n) for each in ranges for n in range(each.start, each.end)]
        self.sizes.append(len(rows))
        self.read += rows
        self._finished += 1

    def is_each_read_once(self, messages: int) -> bool:
        return len(set(self.read)) == len(self.read) == messages


@pytest.fixture
def old_spark(broker: Broker) -> OldSpark:
    return OldSpark(broker)


@pytest.fixture
def messages(producer: Producer) -> Callable[[int], None]:
    return lambda count: send(producer, count)


@pytest.mark.parametrize("group", [{}, {"group": "etl"}], ids=["plain", "ordered"])
def test_batches_are_limited_and_a_restart_goes_on(old_spark, messages, broker, group):
    messages(100)
    old_spark.run(3, max_rows="30", **group)
    assert owners(broker) == {}
    old_spark.run(2, max_rows="30", **group)
    assert old_spark.sizes == [30, 30, 30, 10]
    assert old_spark.is_each_read_once(100)


def test_an_empty_topic_begins_with_an_empty_batch(old_spark, messages):
    messages(10)
    old_spark.run(1, starting_offsets="latest")
    messages(20)
    old_spark.run(2)
    assert old_spark.sizes == [0, 20]


def test_an_unfinished_batch_is_planned_again_with_the_same_range(old_spark, messages):
    messages(100)
    old_spark.run(2, max_rows="30")
    with pytest.raises(RuntimeError, match=FAILS):
        old_spark.run(1, max_rows="30", fails=True)
    planned = old_spark.checkpoint[-1]
    messages(50)
    old_spark.run(3, max_rows="40")
    assert old_spark.checkpoint[2] == planned
    assert old_spark.sizes == [30, 30, 30, 40, 20]
    assert old_spark.is_each_read_once(150)


def test_an_unfinished_first_batch_is_read_before_the_rest(old_spark, messages):
    messages(100)
    with pytest.raises(RuntimeError, match=FAILS):
        old_spark.run(1, now=True, fails=True)
    messages(50)
    old_spark.run(1, now=True)
    assert old_spark.sizes == [100, 50]
    assert old_spark.is_each_read_once(150)


def test_runs_with_available_now_take_up_where_the_one_before_ended(old_spark, messages, broker):
    options = {"group": "etl", "release_in_flight": "afterPause", "release_pause_ms": "1"}
    for count in (100, 50, 70):
        messages(count)
        old_spark.run(1, now=True, **options)
    assert old_spark.sizes == [100, 50, 70]
    assert old_spark.is_each_read_once(220)


def test_a_run_with_available_now_reads_fewer_messages_than_min_rows(old_spark, messages):
    for count in (100, 50):
        messages(count)
        old_spark.run(1, now=True, min_rows="1000")
    assert old_spark.sizes == [100, 50]


def test_a_new_queue_is_read_from_its_beginning(old_spark, messages, broker):
    messages(100)
    old_spark.run(1, now=True)
    broker.widen("orders", 6)
    for body in (b"1", b"2"):
        broker.send_to("orders", 5, body)
    old_spark.run(2)
    assert [place for place in old_spark.read if place[0] == 5] == [(5, 0), (5, 1)]
    assert len(old_spark.read) == 102


def test_a_checkpoint_ahead_of_its_queues_is_refused_before_it_is_written(old_spark, messages):
    messages(100)
    old_spark.run(1)
    ahead = json.loads(old_spark.checkpoint[0])
    ahead["orders@b:1"] += 1_000
    old_spark.checkpoint[0] = json.dumps(ahead)
    with pytest.raises(DataLoss, match="it ends at offset 30, and was read up to 1030"):
        old_spark.run(1)
    assert len(old_spark.checkpoint) == 1


def test_the_wrapper_of_available_now_is_refused_before_the_checkpoint_is_written(
    old_spark, messages
):
    messages(100)
    reader = old_spark.reader()
    reader.latestOffset()
    reader.initialOffset()
    with pytest.raises(StateError, match=r"triggerAvailableNowWrapper\.enabled=false"):
        reader.latestOffset()
    reader.stop()
    old_spark.run(1)
    messages(10)
    reader = old_spark.reader()
    reader.latestOffset()
    last = json.loads(old_spark.checkpoint[-1])
    with pytest.raises(StateError, match=r"triggerAvailableNowWrapper\.enabled=false"):
        reader.partitions(last, last)
    reader.stop()


def test_the_groups_offset_follows_finished_batches_only(old_spark, messages, pull_consumer):
    def committed() -> int:
        queues = [MessageQueue("orders", "b", number) for number in range(4)]
        done = [pull_consumer.fetch_consume_offset(queue, from_store=True) for queue in queues]
        return sum(max(offset or 0, 0) for offset in done)

    messages(100)
    with pytest.raises(RuntimeError, match=FAILS):
        old_spark.run(1, fails=True, group="g", ordered="false")
    assert committed() == 0
    old_spark.run(1, group="g", ordered="false")
    assert committed() == 100
