"""A broker that comes back with an older store under a streaming query, without Spark.

New messages take the offsets of those that it lost. The marks of most queues are some batches old,
and stand before what was lost.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ordermq import Message, Producer
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.broker.message_routing import MessageRouting
from ordermq.client import queue_life
from ordermq.config import BrokerConfig
from ordermq.errors import DataLoss, RequestTimeout
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.source.checkpoint_queues import CheckpointQueues
from ordermq.spark.source.latest_offsets import LatestOffsets
from ordermq.spark.source.offsets import StreamOffset
from ordermq.spark.source.queue_lives import QueueLives
from ordermq.spark.source.stream_driver import StreamDriver
from tests.component.conftest import eventually
from tests.component.spark_batches import planned_batch, runs_of, stored

QUEUES = [MessageQueue("orders", "b", number) for number in range(4)]
CUT = QUEUES[1:]
RETURNS = MessageQueue("returns", "b", 0)


class Store:
    """An embedded broker whose store can be replaced by an older copy."""

    def __init__(self, folder: Path) -> None:
        self._path, self._copy = folder / "broker.db", folder / "copy.db"
        self._config = BrokerConfig(broker_name="b", durability="os")
        self._running = EmbeddedBroker(self._path, config=self._config).start()
        self.name_servers = self._running.name_servers
        with Admin(name_servers=self.name_servers) as admin:
            admin.create_topic("orders", len(QUEUES))
            admin.create_topic(RETURNS.topic, 1)

    def fill(self, *counts: int) -> None:
        """Send so many messages to queue 0, 1, ..."""
        with Producer("p", name_servers=self.name_servers) as producer:
            for queue, count in zip(QUEUES, counts, strict=True):
                if count:
                    producer.send_batch([Message("orders", b"x")] * count, queue=queue)

    def send(self, topic: str) -> None:
        """Send a message to queue 0 of another topic."""
        with Producer("p", name_servers=self.name_servers) as producer:
            producer.send(Message(topic, b"x"), queue=RETURNS)

    def copy(self) -> None:
        """Copy the store as it is now, while the broker runs."""
        with (
            contextlib.closing(sqlite3.connect(self._path)) as now,
            contextlib.closing(sqlite3.connect(self._copy)) as copy,
        ):
            now.backup(copy)
        self._copy.chmod(0o600)

    def restore(self) -> None:
        """Start the broker anew with the copy, which is not told that it is one."""
        self.close()
        for left in self._path.parent.glob("broker.db*"):
            left.unlink()
        self._copy.rename(self._path)
        self.restart()

    def restart(self) -> None:
        self.close()
        port = self._running.port
        self._running = EmbeddedBroker(self._path, port=port, config=self._config).start()

    def close(self) -> None:
        self._running.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    running = Store(tmp_path)
    yield running
    running.close()


@pytest.fixture
def run(store: Store) -> Iterator[Callable[..., StreamDriver]]:
    with runs_of(store.name_servers) as make:
        yield make


def batch(driver: StreamDriver, start: StreamOffset, limit: int | None = None) -> StreamOffset:
    """Plan the next batch, and begin it."""
    end = planned_batch(driver, start, limit)
    driver.begin_batch(start, end)
    return end


def read_with_a_copy(store: Store, driver: StreamDriver) -> StreamOffset:
    """Read messages of which the copy lacks the last three of each queue but one.

    That one is the queue which the last batch marks: all other marks are of messages in the copy.
    """
    store.fill(5, 5, 5, 5)
    end = batch(driver, driver.initial())
    for _ in range(3):
        store.fill(1, 1, 1, 1)
        end = batch(driver, end)
    before = end.marks
    store.fill(1, 0, 0, 0)
    store.copy()
    store.fill(0, 3, 3, 3)
    end = batch(driver, end)
    assert end.marks[QUEUES[0]].offset == end.queues[QUEUES[0]] - 1, "it is this queue's turn"
    assert all(end.marks[queue] == before[queue] for queue in CUT)
    return end


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("more", [3, 4])
def test_messages_that_took_the_offsets_of_lost_ones_fail_the_query(store, run, is_restarted, more):
    driver = run()
    end = read_with_a_copy(store, driver)
    store.restore()
    store.fill(1, more, more, more)
    if is_restarted:
        driver = run()
    with pytest.raises(DataLoss, match=r"broker lost messages, and others took their offsets"):
        batch(driver, end)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("limit", [None, 4])
def test_without_fail_on_data_loss_the_stream_reads_them_from_its_marks_on(
    store, run, is_restarted, limit
):
    driver = run(fail_on_data_loss="false")
    end = read_with_a_copy(store, driver)
    store.restore()
    store.fill(1, 4, 4, 4)
    if is_restarted:
        driver = run(fail_on_data_loss="false")
    anew = batch(driver, end, limit)
    assert anew.anew == set(CUT)
    for queue in CUT:
        assert anew.queues[queue] == end.marks[queue].offset + 1
        assert anew.queues[queue] <= end.queues[queue] - 3, "the first message that took a place"
    last = batch(driver, anew)
    assert not last.anew
    assert last.queues == {queue: at + 1 for queue, at in end.queues.items()}
    store.fill(1, 1, 1, 1)
    assert not batch(driver, last).anew


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_broker_that_cannot_be_looked_at_moves_no_time_on(store, run, monkeypatch, is_restarted):
    """Another one has messages meanwhile; here of a topic, as these places are apart, too."""
    topics = {"topic": "orders,returns"}
    check, ends_at = QueueLives.check, LatestOffsets._ends_at
    store.send("returns")
    driver = run(**topics)
    end = read_with_a_copy(store, driver)
    store.restore()
    store.fill(1, 4, 4, 4)
    store.send("returns")

    async def is_silent(lives, starts, *more):
        silent = {queue for queue in starts if queue.topic == "orders"}
        found, _ = await check(lives, {q: starts[q] for q in starts.keys() - silent}, *more)
        return found, silent

    async def tells_no_ends(latest, topic, *more):
        if topic == "orders":
            raise RequestTimeout("it is away")
        return await ends_at(latest, topic, *more)

    monkeypatch.setattr(QueueLives, "check", is_silent)
    if is_restarted:
        monkeypatch.setattr(LatestOffsets, "_ends_at", tells_no_ends)
        driver = run(**topics)
    planned = batch(driver, end)
    assert {queue for queue, at in planned.queues.items() if end.queues[queue] != at} == {RETURNS}
    monkeypatch.undo()
    with pytest.raises(DataLoss, match="others took their offsets"):
        batch(driver, planned)


def test_a_broker_that_is_in_no_route_when_it_is_back_is_looked_at_later(store, run, monkeypatch):
    driver = run()
    end = read_with_a_copy(store, driver)
    store.restore()
    store.fill(1, 3, 3, 3)  # the marks of the others tell nothing, and they have nothing new

    def is_connected_anew() -> bool:
        assert driver.next_end(end, None) is None
        return driver._connected.get("b", 0) > 1

    with monkeypatch.context() as away:
        away.setattr(CheckpointQueues, "routed", lambda queues, offsets: {})
        eventually(is_connected_anew, "the broker answers over another connection")
    with pytest.raises(DataLoss, match="others took their offsets"):
        batch(driver, end)


def test_an_idle_query_finds_them_where_the_queues_end_as_before(store, run):
    driver = run()
    end = read_with_a_copy(store, driver)
    for _ in range(10):  # until the broker holds pulls
        assert driver.next_end(end, None) is None
        driver.wait_for_messages()
    store.restore()
    store.fill(0, 3, 3, 3)

    def fails() -> bool:
        try:
            assert driver.next_end(end, None) is None
        except DataLoss:
            return True
        driver.wait_for_messages()
        return False

    eventually(fails, "the loss is found")


def test_a_run_to_a_fixed_end_finds_them(store, run):
    end = read_with_a_copy(store, run())
    store.restore()
    store.fill(1, 4, 4, 4)
    driver = run()
    driver.freeze_end()
    with pytest.raises(DataLoss, match="others took their offsets"):
        driver.next_end(end, None)


def test_a_batch_that_runs_again_does_not_read_messages_in_the_place_of_lost_ones(store, run):
    driver = run()
    store.fill(5, 5, 5, 5)
    start = batch(driver, driver.initial())
    end = read_more_with_a_copy(store, driver, start)
    store.restore()
    store.fill(9, 9, 9, 9)
    with pytest.raises(DataLoss, match="others took their offsets"):
        run().begin_batch(start, end)
    loose = run(fail_on_data_loss="false")
    loose.begin_batch(start, end)
    assert batch(loose, end).anew.issuperset(QUEUES[:2])


def read_more_with_a_copy(store: Store, driver: StreamDriver, start: StreamOffset) -> StreamOffset:
    store.fill(1, 1, 0, 1)
    store.copy()
    store.fill(2, 2, 0, 0)
    end = batch(driver, start)
    # Whichever queue's turn it was: the others' marks are before the batch.
    stale = {queue: start.marks[queue] for queue in QUEUES}
    return StreamOffset(end.queues, end.run_id, marks=stale, stored=end.stored)


def test_a_broker_that_comes_back_with_all_of_its_store_changes_nothing(store, run):
    driver = run()
    end = read_with_a_copy(store, driver)
    store.restart()
    store.fill(1, 1, 1, 1)
    end = batch(driver, end)
    assert not end.anew
    ends = {queue: mark.offset + 1 for queue, mark in end.marks.items()}
    assert ends == end.queues, "all queues were looked at"


def test_a_broker_whose_clock_was_set_back_has_lost_nothing(store, run):
    driver = run()
    end = read_with_a_copy(store, driver)
    long_ago = dict.fromkeys(end.stored, 1000)
    assert long_ago == {("orders", "b"): 1_000}
    ahead = StreamOffset(end.queues, marks=end.marks, stored=long_ago)
    store.fill(1, 1, 1, 1)
    assert not batch(run(), ahead).anew


def test_a_time_that_a_checkpoint_has_never_goes_back(store, run):
    driver = run()
    end = read_with_a_copy(store, driver)
    later = {place: ms + 60_000 for place, ms in end.stored.items()}
    store.fill(1, 1, 1, 1)
    assert batch(driver, StreamOffset(end.queues, marks=end.marks, stored=later)).stored == later


def test_a_run_to_a_fixed_end_that_began_anew_is_no_loss_for_the_next_run(store, run):
    end = read_with_a_copy(store, run())
    loose = run(fail_on_data_loss="false")
    loose.freeze_end()
    told, _ = loose._latest.told
    ends = dict(told)
    store.restore()
    store.fill(1, 4, 4, 4)
    anew = batch(loose, end)  # of these queues it reads what there is now, not at the start
    assert anew.anew == set(CUT)
    assert told == ends, "the I/O thread's own"
    last = batch(loose, anew)
    assert {queue: last.queues[queue] for queue in CUT} == {q: end.queues[q] + 1 for q in CUT}
    store.fill(1, 1, 1, 1)
    assert not batch(run(), last).anew


@pytest.mark.parametrize("is_first", [True, False])
def test_a_batch_that_runs_again_reads_what_its_queues_still_have(
    store, run, monkeypatch, is_first
):
    # What they still have is older than the marks by more than a minute: a backlog was read.
    monkeypatch.setattr(queue_life, "_SKEW_MINUTES", -1)
    driver = run()
    store.fill(2, 2, 2, 2)
    start = stored(driver.initial())
    if not is_first:
        start = batch(driver, start)
    store.fill(3, 3, 3, 3)
    store.copy()
    store.fill(4, 4, 4, 4)
    end = batch(driver, start)
    store.restore()
    store.fill(1, 1, 1, 1)
    loose = run(fail_on_data_loss="false")
    parts = loose.begin_batch(start, end)
    at = batch(loose, end)
    assert at.anew == set(QUEUES)
    store.fill(1, 1, 1, 1)
    while at.queues != dict.fromkeys(QUEUES, 7):
        before, at = at, batch(loose, at)
        parts += loose.begin_batch(before, at)
    read = {queue: [n for each, *part in parts if each == queue for n in range(*part)]
            for queue in QUEUES}  # fmt: skip
    first = 0 if is_first else 2
    assert read == {queue: [*range(first, 7)] for queue in QUEUES}


def test_a_clock_that_was_set_back_in_a_backlog_is_no_loss(store, run, monkeypatch):
    """Store times may fall, as on RocketMQ; a batch ends at a message before that."""
    began_ms = time.time_ns() // 1_000_000 - 600_000
    now_ms = began_ms

    def stored_now(_, log):
        log.last_stored_ms = now_ms
        return now_ms

    monkeypatch.setattr(MessageRouting, "stored_now", stored_now)
    driver = run(starting_offsets="earliest")
    store.fill(2, 2, 2, 2)
    end = batch(driver, driver.initial(), 8)
    now_ms = began_ms + 300_000
    store.fill(2, 2, 2, 2)
    now_ms = began_ms + 60_000
    store.fill(6, 6, 6, 6)
    for _ in range(4):
        end = batch(driver, end, 8)
    assert set(end.queues.values()) == {10}
