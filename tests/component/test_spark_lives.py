"""A topic that is deleted and created again under a streaming query, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ordermq import Message, Producer
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.client import queue_life
from ordermq.errors import DataLoss, LockLost
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.source import stream_driver
from ordermq.spark.source.offsets import StreamOffset
from ordermq.spark.source.stream_driver import StreamDriver
from tests.component.spark_batches import planned_batch, runs_of, stored

QUEUES = [MessageQueue("orders", "b", number) for number in range(4)]


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(name_servers=broker.name_servers) as running:
        running.create_topic("orders", 4)
        yield running


@pytest.fixture
def run(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., StreamDriver]]:
    monkeypatch.setattr(stream_driver, "_LOOK_MS", 200)
    with runs_of(broker.name_servers, route_interval_ms="100") as make:
        yield make


def fill(producer: Producer, *counts: int) -> None:
    """Send so many messages to queue 0, 1, ..."""
    for queue, count in zip(QUEUES, counts, strict=False):
        if count:
            producer.send_batch([Message("orders", b"%d" % n) for n in range(count)], queue=queue)


def renew(admin: Admin, queues: int = 4) -> None:
    admin.delete_topic("orders")
    admin.create_topic("orders", queues)


def taken(driver: StreamDriver, start: StreamOffset, end: StreamOffset) -> dict[int, range]:
    """The offsets that the batch reads, by queue."""
    ranges = driver.begin_batch(start, end)
    return {queue.queue_id: range(first, last) for queue, first, last in ranges}


@pytest.mark.parametrize("again", [(5, 5, 5, 5), (9, 9, 9, 9), (9, 2, 0, 7), (1, 0, 0, 0)])
@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_topic_made_anew_fails_the_query_and_the_error_says_what_to_do(
    producer, admin, run, again, is_restarted
):
    fill(producer, 5, 5, 5, 5)
    driver = run()
    end = planned_batch(driver, driver.initial())
    renew(admin)
    fill(producer, *again)
    if is_restarted:
        driver = run()
        driver.freeze_end()
    with pytest.raises(DataLoss) as caught:
        planned_batch(driver, end)
    assert "deleted and created again" in str(caught.value)
    assert "fail_on_data_loss=false to go on at the first message" in str(caught.value)
    assert "Begin with a new checkpoint" in str(caught.value)
    assert caught.value.topic == "orders"


@pytest.mark.parametrize("again", [(5, 5, 5, 5), (9, 9, 9, 9), (9, 2, 0, 7), (1, 0, 0, 0)])
@pytest.mark.parametrize("is_restarted", [True, False])
def test_without_fail_on_data_loss_a_topic_made_anew_is_read_from_its_first_message(
    producer, admin, run, caplog, again, is_restarted
):
    fill(producer, 5, 5, 5, 5)
    driver = run(fail_on_data_loss="false")
    end = planned_batch(driver, driver.initial())
    renew(admin)
    fill(producer, *again)
    if is_restarted:
        driver = run(fail_on_data_loss="false")
    anew = planned_batch(driver, end)
    assert anew.anew == set(QUEUES)
    assert taken(driver, end, anew) == {}
    assert f"orders@b: 4 queues are not those that the stream has read, of which it reads " \
        f"{sum(again)} messages" in caplog.text  # fmt: skip
    last = planned_batch(driver, anew)
    assert taken(driver, anew, last) == {n: range(count) for n, count in enumerate(again) if count}
    caplog.clear()
    fill(producer, 1, 1, 1, 1)
    more = planned_batch(driver, last)
    assert more.queues == dict(zip(QUEUES, (count + 1 for count in again), strict=True))
    assert not more.anew
    assert "are not those" not in caplog.text


@pytest.mark.parametrize("again", [(3, 3, 3, 3), (4, 3, 7, 3)])
def test_a_topic_is_known_by_the_first_messages_of_each_queue(producer, admin, run, again):
    """A query that began when there were none has looked at one queue only since then."""
    driver = run(fail_on_data_loss="false")
    start = driver.initial()
    assert driver.next_end(start, None) is None
    fill(producer, 3, 3, 3, 3)
    end = planned_batch(driver, start)
    renew(admin)
    fill(producer, *again)
    anew = planned_batch(driver, end)
    assert anew.anew == set(QUEUES)
    last = planned_batch(driver, anew)
    assert taken(driver, anew, last) == {n: range(count) for n, count in enumerate(again)}


@pytest.mark.parametrize("is_idle", [True, False])
@pytest.mark.parametrize("count", [1, 2, 6])
def test_the_queues_of_a_topic_made_anew_are_found_before_the_next_look_at_routes(
    broker, producer, admin, run, count, is_idle
):
    fill(producer, 5, 5, 5, 5)
    driver = run(fail_on_data_loss="false", route_interval_ms="600000")
    end = planned_batch(driver, driver.initial())
    if is_idle:
        assert driver.next_end(end, None) is None
        for _ in range(10):  # until the brokers hold pulls
            driver.wait_for_messages()
    renew(admin, count)
    with Producer("others", name_servers=broker.name_servers) as others:
        for queue in others.queues("orders"):
            others.send_batch([Message("orders", b"new")] * 7, queue=queue)
    read: dict[int, list[int]] = {}
    while sum(map(len, read.values())) < 7 * count:
        start, end = end, planned_batch(driver, end)
        for queue, offsets in taken(driver, start, end).items():
            read.setdefault(queue, []).extend(offsets)
    assert read == {queue: [*range(7)] for queue in range(count)}


def test_a_topic_made_anew_with_fewer_queues_fails_the_query_and_says_so(producer, admin, run):
    fill(producer, 5, 5, 5, 5)
    driver = run(route_interval_ms="600000")
    end = planned_batch(driver, driver.initial())
    renew(admin, 1)
    fill(producer, 9)
    with pytest.raises(DataLoss, match=r"fewer queues of the topic|deleted and created again"):
        planned_batch(driver, end)


def test_an_idle_query_finds_a_topic_that_was_filled_again_to_the_same_offsets(
    producer, admin, run
):
    fill(producer, 3, 3)
    driver = run(fail_on_data_loss="false")
    end = planned_batch(driver, driver.initial())
    assert driver.next_end(end, None) is None
    renew(admin)
    fill(producer, 3, 3)
    anew = planned_batch(driver, end)  # within the seconds between two looks
    assert {queue for queue in anew.anew if queue.queue_id < 2} == set(QUEUES[:2])
    assert taken(driver, anew, planned_batch(driver, anew)) == {0: range(3), 1: range(3)}


def test_a_batch_that_runs_again_does_not_read_another_life_of_the_topic(
    producer, admin, run, caplog
):
    fill(producer, 5, 5, 5, 5)
    first = run()
    start = stored(first.initial())
    end = planned_batch(first, start)
    assert len(taken(first, start, end)) == 4
    renew(admin)
    fill(producer, 9, 9, 0, 5)
    with pytest.raises(DataLoss, match="deleted and created again"):
        run().begin_batch(start, end)
    loose = run(fail_on_data_loss="false")
    assert taken(loose, start, end) == {}
    assert "5 messages of a batch that runs again are left out, offsets 0 to 4" in caplog.text
    anew = planned_batch(loose, end)
    last = planned_batch(loose, anew)
    assert taken(loose, anew, last) == {0: range(9), 1: range(9), 3: range(5)}


def test_a_topic_that_lost_its_last_messages_goes_on_behind_those_that_were_read(
    producer, admin, run, monkeypatch
):
    # A queue of the same life, but shorter: what stands there before the marked minute was read.
    monkeypatch.setattr(queue_life, "_SKEW_MINUTES", -1)
    fill(producer, 5, 5)
    driver = run(fail_on_data_loss="false")
    end = planned_batch(driver, driver.initial())
    ahead = StreamOffset(end.queues | {QUEUES[0]: 9}, marks={
        **end.marks, QUEUES[0]: queue_life.QueueMark(8, end.marks[QUEUES[0]].minute, 1)
    })  # fmt: skip
    anew = planned_batch(driver, ahead)
    assert anew.queues == end.queues
    assert anew.anew == {QUEUES[0]}


@pytest.mark.parametrize("is_idle", [False, True])
def test_a_queue_that_lost_what_came_after_its_mark_fails_or_goes_on_behind_the_mark(
    producer, admin, run, is_idle
):
    fill(producer, 5, 5)
    driver = run()
    end = planned_batch(driver, driver.initial())
    ahead = StreamOffset(end.queues | {QUEUES[0]: 9}, marks=end.marks)
    if not is_idle:
        fill(producer, 2, 2)
    with pytest.raises(DataLoss, match=r"ends at offset \d, and was read up to 9.*broker lost"):
        planned_batch(run(), ahead)
    loose = run(fail_on_data_loss="false")
    anew = planned_batch(loose, ahead)
    assert anew.anew == {QUEUES[0]}
    assert anew.queues[QUEUES[0]] == 5
    assert 0 not in taken(loose, ahead, anew)
    if is_idle:
        fill(producer, 1)
    last = planned_batch(loose, anew)
    assert taken(loose, anew, last)[0] == (range(5, 6) if is_idle else range(5, 7))


def test_an_older_checkpoint_without_marks_is_read_and_gets_them(producer, admin, run):
    fill(producer, 5, 5)
    older = StreamOffset.of({"orders@b:0": 2, "orders@b:1": 5, "orders@b:2": 0, "orders@b:3": 0})
    driver = run()
    end = planned_batch(driver, older)
    assert taken(driver, older, end) == {0: range(2, 5)}
    assert {queue: mark.offset for queue, mark in end.marks.items()} == {QUEUES[0]: 4, QUEUES[1]: 4}


def test_marked_messages_that_expired_are_no_new_life(broker, producer, admin, run):
    fill(producer, 5, 5)
    driver = run()
    end = planned_batch(driver, driver.initial())
    marks = {queue: queue_life.QueueMark(mark.offset - 40, 1, 1) for queue, mark in
             end.marks.items()}  # fmt: skip
    expired = StreamOffset(end.queues, marks=marks)
    fill(producer, 1, 1)
    more = planned_batch(run(), expired)
    assert not more.anew


def test_a_query_that_holds_locks_begins_again_and_then_finds_the_new_life(producer, admin, run):
    fill(producer, 5, 5, 5, 5)
    driver = run(group="g", starting_offsets="earliest")
    end = planned_batch(driver, driver.initial())
    renew(admin)
    fill(producer, 9, 9, 9, 9)
    with pytest.raises((DataLoss, LockLost)):
        planned_batch(driver, end)
    driver.close()
    strict = run(group="g")
    with pytest.raises(DataLoss, match="deleted and created again"):
        planned_batch(strict, end)
    strict.close()
    loose = run(group="g", fail_on_data_loss="false")
    anew = planned_batch(loose, end)
    assert taken(loose, anew, planned_batch(loose, anew)) == {n: range(9) for n in range(4)}
