"""A streaming query begins once, and stays there; without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from ordermq import Message, Producer, PullConsumer
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock, SystemClock
from ordermq.errors import BrokerError, DataLoss, RequestTimeout, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark import options
from ordermq.spark.options import SourceOptions
from ordermq.spark.source.offsets import StreamOffset
from ordermq.spark.source.stream_driver import StreamDriver
from tests.component.conftest import eventually

QUEUES = [MessageQueue("orders", "b", number) for number in range(4)]
GROUPS = [{}, {"group": "g"}, {"group": "g", "ordered": "false"}]
KINDS = ["plain", "ordered", "unordered"]


class Query:
    """A query that calls its driver as Spark does; the offsets of its batches are its checkpoint.

    Args: is_old: as Spark 4.0 and 4.1, which do not say where a batch begins.
    """

    def __init__(self, given: dict[str, str], *, is_old: bool = False) -> None:
        self.given = given
        self._is_old = is_old
        self._finished = 0
        self._offsets: list[str] = []  # ends of the batches
        self.read: list[tuple[int, int]] = []  # queue and offset
        self.driver: StreamDriver | None = None

    def open(self) -> StreamDriver:
        """Begin a run that asks for nothing yet."""
        self.driver = StreamDriver(SourceOptions.of(self.given))  # read anew by each run
        return self.driver

    def start(self) -> None:
        """Begin a run: run an unfinished batch again, and look once whether there is something."""
        self.open()
        if self._finished < len(self._offsets):
            self._run_batch()
        self.take()

    def take(self, *, fails: bool = False) -> bool:
        """Plan a batch, run it unless the sink fails; return whether there was one."""
        assert self.driver is not None
        if self._offsets:
            end = self.driver.next_end(stored(self._offsets[-1]), None)
        elif self._is_old:
            end = self.driver.first_end(None)
            self.driver.initial()
        else:
            end = self.driver.next_end(stored(text(self.driver.initial())), None)
        if end is None:
            return False
        self._offsets.append(text(end))
        if not fails:
            self._run_batch()
        return True

    def stop(self) -> None:
        """End the run."""
        if self.driver is not None:
            self.driver.close()
            self.driver = None

    def _run_batch(self) -> None:
        assert self.driver is not None
        start = stored(self._offsets[-2]) if len(self._offsets) > 1 else self.driver.initial()
        for queue, first, end in self.driver.begin_batch(start, stored(self._offsets[-1])):
            self.read += [(queue.queue_id, offset) for offset in range(first, end)]
        self._finished += 1


def text(offset: StreamOffset) -> str:
    return json.dumps(offset.to_json())


def stored(checkpoint: str) -> StreamOffset:
    return StreamOffset.of(json.loads(checkpoint))


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(name_servers=broker.name_servers) as running:
        running.create_topic("orders", 4)
        yield running


@pytest.fixture
def query(broker: EmbeddedBroker, admin: Admin) -> Iterator[Callable[..., Query]]:
    """Queries of the topic "orders"; stopped after the test."""
    made: list[Query] = []

    def make(*, is_old: bool = False, **more: str) -> Query:
        given = {"name_servers": broker.name_servers, "route_interval_ms": "100"}
        given |= {"release_in_flight": "afterPause", "release_pause_ms": "1"}
        if "topic_pattern" not in more:
            given["topic"] = "orders"
        made.append(Query(given | more, is_old=is_old))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def fill(producer: Producer, *counts: int) -> None:
    """Send so many messages to queue 0, 1, ..."""
    for queue, count in zip(QUEUES, counts, strict=False):
        if count:
            messages = [Message("orders", b"%d" % n) for n in range(count)]
            producer.send_batch(messages, queue=queue)


def committed(broker: EmbeddedBroker) -> list[int | None]:
    with PullConsumer("g", name_servers=broker.name_servers) as consumer:
        return [consumer.fetch_consume_offset(queue, from_store=True) for queue in QUEUES]


@pytest.mark.parametrize("is_old", [False, True], ids=["spark 4.2", "spark 4.0"])
@pytest.mark.parametrize("group", GROUPS, ids=KINDS)
def test_a_query_stopped_before_its_first_message_loses_nothing_sent_after_it_began(
    producer, query, group, is_old
):
    fill(producer, 10, 10)
    latest = query(starting_offsets="latest", is_old=is_old, **group)
    latest.start()
    latest.stop()
    fill(producer, 3, 0, 2)
    latest.start()
    eventually(lambda: latest.take() or len(latest.read) == 5, "the messages sent in between")
    assert latest.read == [(0, 10), (0, 11), (0, 12), (2, 0), (2, 1)]


@pytest.mark.parametrize("is_old", [False, True], ids=["spark 4.2", "spark 4.0"])
@pytest.mark.parametrize("group", GROUPS, ids=KINDS)
def test_a_query_killed_in_its_first_batch_begins_where_it_began(producer, query, group, is_old):
    fill(producer, 10, 10)
    latest = query(starting_offsets="latest", is_old=is_old, **group)
    latest.open()
    assert latest.take(fails=True), "the start is in the checkpoint before a message is read"
    latest.stop()
    fill(producer, 3, 0, 2)
    latest.start()
    eventually(lambda: latest.take() or len(latest.read) == 5, "the messages sent in between")
    assert latest.read == [(0, 10), (0, 11), (0, 12), (2, 0), (2, 1)]


@pytest.mark.parametrize("is_old", [False, True], ids=["spark 4.2", "spark 4.0"])
@pytest.mark.parametrize(
    ("start", "first"),
    [
        ({"starting_offsets": '{"orders@b:0": "latest"}'}, 10),
        ({"starting_timestamp": '{"orders@b:0": "1h"}'}, 0),
        ({"starting_timestamp": "1h"}, 0),
    ],
    ids=["the end of one queue", "an age of one queue", "an age"],
)
def test_a_start_that_moves_is_kept_also_where_it_is_given_by_queue(
    producer, query, monkeypatch, start, first, is_old
):
    fill(producer, 10)
    moving = query(is_old=is_old, **start)
    moving.open()
    assert moving.take(fails=True), "the start is in the checkpoint before a message is read"
    moving.stop()
    fill(producer, 3)
    later = ManualClock(wall_ms=SystemClock().wall_ms() + 3_600_000)
    monkeypatch.setattr(options, "SystemClock", lambda: later)  # by which ages are counted
    moving.start()
    eventually(lambda: moving.take() or moving.read[-1:] == [(0, 12)], "the messages sent since")
    assert moving.read == [(0, offset) for offset in range(first, 13)]


def test_a_first_batch_whose_messages_are_gone_when_it_runs_again_is_a_data_loss(
    broker, producer, query, caplog
):
    shared = {"group": "g", "ordered": "false"}
    fill(producer, 3, 3)
    taking_over = query(**shared)
    taking_over.open()
    assert taking_over.take(fails=True)
    taking_over.stop()
    fill(producer, 3, 3)
    with PullConsumer("g", name_servers=broker.name_servers) as other:
        other.update_consume_offset(QUEUES[0], 5)
    with pytest.raises(DataLoss, match="its start is at offset 5 now"):
        taking_over.start()
    taking_over.stop()
    taking_over.given["fail_on_data_loss"] = "false"
    taking_over.start()
    eventually(lambda: taking_over.take() or len(taking_over.read) == 9, "what else there is")
    assert "its start is at offset 5 now" in caplog.text


def test_a_pattern_without_topics_begins_before_their_first_messages(broker, producer, query):
    latest = query(topic_pattern="bil.*", starting_offsets="latest")
    latest.start()
    latest.stop()
    producer.send(Message("bills", b"1"))
    latest.start()
    eventually(lambda: latest.take() and len(latest.read) == 1, "the message of the new topic")


def test_a_first_batch_that_runs_again_leaves_queues_that_came_since_to_the_next(producer, query):
    fill(producer, 3, 3)
    earliest = query(topic_pattern="orders|bills")
    earliest.open()
    assert earliest.take(fails=True)
    earliest.stop()
    producer.send_batch([Message("bills", b"1")], queue=MessageQueue("bills", "b", 0))
    earliest.start()
    eventually(lambda: earliest.take() or len(earliest.read) == 7, "the new topic's message")
    assert earliest.read == [*((0, n) for n in range(3)), *((1, n) for n in range(3)), (0, 0)]


@pytest.mark.parametrize("ordered", ["true", "false"])
@pytest.mark.parametrize(
    ("start", "expected"), [("latest", [10, 5, 0, 0]), ("earliest", [0, 0, 0, 0])]
)
def test_the_group_has_the_start_before_a_message_is_read(
    broker, producer, query, ordered, start, expected
):
    fill(producer, 10, 5)
    begun = query(group="g", ordered=ordered, starting_offsets=start)
    begun.open().initial()
    assert committed(broker) == expected
    begun.stop()
    fill(producer, 1, 1)
    other = query(group="g", ordered=ordered)  # with a checkpoint of its own
    other.start()
    assert other.read[0] == (0, expected[0]), "it takes over where the first one began"


@pytest.mark.parametrize("ordered", ["true", "false"])
def test_a_stored_offset_stays_when_a_query_of_its_group_begins_elsewhere(
    broker, producer, query, ordered
):
    fill(producer, 10, 10)
    with PullConsumer("g", name_servers=broker.name_servers) as consumer:
        consumer.update_consume_offset(QUEUES[0], 4)
    begun = query(group="g", ordered=ordered, starting_offsets="latest")
    begun.open().initial()
    assert committed(broker) == [4, 10, 0, 0]


def test_a_groups_offset_past_the_end_fails_the_query_or_begins_at_the_first_message(
    producer, query, monkeypatch, caplog
):
    fill(producer, 3)

    async def before(*arguments: object, stored_only: bool = False) -> int:
        return 30  # of the topic before it was deleted, as RocketMQ keeps it

    def begin(**more: str) -> int:
        driver = query(group="g", **more).open()
        monkeypatch.setattr(driver._session.api, "query_offset", before)
        return driver.initial().queues[QUEUES[0]]

    with pytest.raises(
        DataLoss, match=r"group g has offset 30 .* has 0\.\.3: give starting_offsets"
    ):
        begin()
    assert begin(starting_offsets="earliest", ordered="false") == 0
    assert begin(fail_on_data_loss="false", ordered="false") == 0
    assert "group g has offset 30 of orders@b:0" in caplog.text


def test_a_start_that_cannot_be_stored_now_fails_the_query(producer, query, monkeypatch):
    fill(producer, 1)
    begun = query(group="g", starting_offsets="latest")
    driver = begun.open()

    async def silent(*arguments: object) -> None:
        raise RequestTimeout("no answer")

    monkeypatch.setattr(driver._session.api, "update_offset", silent)
    with pytest.raises(RequestTimeout, match="no answer"):
        driver.initial()
    monkeypatch.undo()
    assert driver.initial().queues[QUEUES[0]] == 1


def test_a_start_that_the_broker_refuses_to_store_is_read_with_a_warning(
    producer, query, monkeypatch, caplog
):
    fill(producer, 1)
    begun = query(group="g", ordered="false", starting_offsets="earliest")
    driver = begun.open()

    async def refused(*arguments: object) -> None:
        raise BrokerError("no permission", response_code=16)

    monkeypatch.setattr(driver._session.api, "update_offset", refused)
    begun.take()
    assert begun.read == [(0, 0)]
    assert "the start of the query is not stored for group g" in caplog.text
    assert "let this account commit offsets" in caplog.text


def test_an_offset_of_a_start_is_read_by_the_version_that_knows_it_only():
    begin = StreamOffset({QUEUES[0]: 7}, is_start=True)
    assert begin.to_json() == {"orders@b:0": 7, "@start": 1, "@version": 4}
    assert StreamOffset.of(begin.to_json()) == begin
    with pytest.raises(StateError, match="has version 6, this ordermq reads up to 5"):
        StreamOffset.of({"@version": 6})
