"""A queue's first offset, its next one when the broker lacks it, pulls that hang."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ordermq import Admin, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.broker.server import HANDLERS
from ordermq.clock import SystemClock
from ordermq.config import BrokerConfig
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import Seen, eventually
from tests.component.test_orderly_consumer import committed

MakeConsumer = Callable[..., PushConsumer]


def send(producer: Producer, *numbers: int) -> None:
    for number in numbers:
        producer.send(Message("orders", str(number).encode(), tags="a"), sharding_key="k")


@pytest.fixture
def broker_config(broker_config: BrokerConfig) -> BrokerConfig:
    # Otherwise every new group starts at 0, as with RocketMQ while queues are young.
    return replace(broker_config, new_groups_start_at_zero=False)


def numbers_of(seen: Seen) -> list[int]:
    return [int(body) for body in seen.bodies_of("k")]


def held(consumer: PushConsumer, of: Seen) -> AssignedQueue:
    queue_id = of.deliveries[0][0]
    (queue,) = [
        queue
        for queue in consumer.assigned_queues()
        if (queue.topic, queue.queue_id) == ("orders", queue_id)
    ]
    return consumer._live().control.find(queue)


@pytest.mark.parametrize(
    ("where", "first"), [("first_offset", 0), ("last_offset", 5), ("timestamp", 3)]
)
def test_a_new_group_begins_where_it_is_told_and_misses_nothing_after(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, where: str, first: int
) -> None:
    send(producer, 0, 1, 2)
    time_ms = time.time_ns() // 1_000_000 + 1
    eventually(lambda: time.time_ns() // 1_000_000 > time_ms, "another millisecond")
    send(producer, 3, 4)
    time_of_start = {"consume_timestamp_ms": time_ms} if where == "timestamp" else {}
    consumer = make_consumer(seen.take, consume_from_where=where, **time_of_start)
    with consumer:
        eventually(lambda: len(consumer.assigned_queues()) == 8, "all queues are ours")
        send(producer, 5, 6)
        seen.wait_for_count(7 - first)
    assert numbers_of(seen) == list(range(first, 7))


def test_a_time_stands_in_a_young_queue(seen: Seen) -> None:
    """The broker's rule lets groups without an offset start at 0, unless they ask for a time."""
    with (
        EmbeddedBroker() as young,
        Producer("young", name_servers=young.name_servers) as producer,
    ):
        send(producer, 0, 1, 2)
        time_ms = time.time_ns() // 1_000_000 + 1
        eventually(lambda: time.time_ns() // 1_000_000 > time_ms, "another millisecond")
        send(producer, 3, 4)
        consumer = PushConsumer(
            "g",
            name_servers=young.name_servers,
            consume_from_where="timestamp",
            consume_timestamp_ms=time_ms,
        )
        consumer.subscribe("orders")
        consumer.orderly(seen.take)
        with consumer:
            seen.wait_for_count(2)
            send(producer, 5)
            seen.wait_for_count(3)
    assert numbers_of(seen) == [3, 4, 5]


class Ahead(SystemClock):
    """The clock of a machine that is an hour ahead of its broker's."""

    def wall_ms(self) -> int:
        return super().wall_ms() + 3_600_000


@pytest.mark.parametrize("where", ["last_offset", "timestamp"])
def test_what_came_since_the_start_is_told_by_the_brokers_clock(seen: Seen, where: str) -> None:
    config = BrokerConfig(new_groups_start_at_zero=False)
    with EmbeddedBroker(config=config) as broker, Admin(broker.name_servers) as admin:
        settings: dict[str, Any] = {"consume_from_where": where, "clock": Ahead()}
        consumer = PushConsumer("g", name_servers=broker.name_servers, **settings)
        consumer.subscribe("orders")
        consumer.orderly(seen.take)
        with consumer, Producer("later", name_servers=broker.name_servers) as producer:
            # Its queues are there after the start, and have messages before they are taken.
            admin.create_topic("orders", 8)
            send(producer, *range(20))
            seen.wait_for_count(20)
    assert numbers_of(seen) == list(range(20))


def test_a_group_that_skips_messages_says_so_once_with_their_count_and_the_setting(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    send(producer, 0, 1, 2)
    with make_consumer(seen.take, consume_from_where="last_offset") as consumer:
        eventually(lambda: len(consumer.assigned_queues()) == 8, "all queues are ours")
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == [
        "orders: group g is new and starts at the end: 3 older messages are skipped "
        "(consume_from_where='last_offset'; 'first_offset' starts at the oldest)"
    ]
    # Its start is stored: what is skipped stays skipped, and is not told again.
    with make_consumer(seen.take, consume_from_where="first_offset"):
        send(producer, 3)
        seen.wait_for_count(1)
    assert numbers_of(seen) == [3]
    assert len([text for text in caplog.messages if "older messages are skipped" in text]) == 1


def test_a_group_with_an_offset_goes_on_there_wherever_new_ones_begin(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send(producer, 0, 1, 2)
    with make_consumer(seen.take):
        seen.wait_for_count(3)
    send(producer, 3, 4)
    with make_consumer(seen.take, consume_from_where="last_offset"):
        seen.wait_for_count(5)
    assert numbers_of(seen) == list(range(5))


@pytest.mark.parametrize("concurrent", [False, True])
def test_an_offset_the_broker_no_longer_has_moves_the_queue_after_what_is_buffered(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    concurrent: bool,
) -> None:
    """The broker has lost its last messages, as an asynchronous one may that became master."""
    caplog.set_level(logging.WARNING, logger="ordermq.consumer")
    send(producer, 0, 1, 2)
    with make_consumer(seen.take, concurrent=concurrent) as consumer:
        seen.wait_for_count(3)
        queue = held(consumer, seen)
        eventually(lambda: queue.committed_offset == 3, "all is committed")
        fetcher = consumer._live().parts.fetcher._by_queue[queue.queue]
        eventually(lambda: fetcher.life.mark is not None, "the queue is known")
        member = consumer._live()
        member.client.call(member.control.move(queue, 500))  # a user's seek there is refused
        eventually(lambda: queue.committed_offset == 3, "the broker's end is committed")
        send(producer, 3)
        seen.wait_for_count(4)
    numbers = numbers_of(seen)
    # A concurrent group keeps no order; what it must do is take each message once.
    assert (sorted(numbers) if concurrent else numbers) == [0, 1, 2, 3]
    assert consumer.statistics["skipped"] == 0
    assert any("the broker has offsets 0-3, not 500" in text for text in caplog.messages)
    assert committed(broker) == 4


def answer_first_two(
    monkeypatch: pytest.MonkeyPatch,
    queue_id: int,
    answer: Callable[[Any, Command, Callable[[Command], None]], None],
) -> None:
    """Have pulls of a queue's first two messages answered otherwise.

    Args: answer: gets the connection, the request and a function that serves one as usual.
    """
    served = HANDLERS[RequestCode.PULL_MESSAGE]

    def pull(context: Any, connection: Any, request: Command) -> None:
        asked = request.ext
        is_asked = (asked["topic"], asked["queueId"]) == ("orders", str(queue_id))
        if is_asked and int(asked["queueOffset"]) < 2:
            answer(connection, request, lambda other: served(context, connection, other))
        else:
            served(context, connection, request)

    monkeypatch.setitem(HANDLERS, RequestCode.PULL_MESSAGE, pull)


def test_expired_messages_are_told_and_counted_as_skipped(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer as of a broker whose oldest two messages have expired."""
    caplog.set_level(logging.WARNING, logger="ordermq.consumer")
    queue_id = send_to(producer, 0)
    send(producer, 1, 2)

    def expired(connection: Any, request: Command, serve: object) -> None:
        moved = {"nextBeginOffset": "2", "minOffset": "2", "maxOffset": "3"}
        ext = moved | {"suggestWhichBrokerId": "0"}
        connection.reply(request, ResponseCode.PULL_OFFSET_MOVED, ext)

    answer_first_two(monkeypatch, queue_id, expired)
    consumer = make_consumer(seen.take, consume_from_where="last_offset")
    with consumer:
        eventually(lambda: len(consumer.assigned_queues()) == 8, "all queues are ours")
        queues = [q for q in consumer.assigned_queues() if q.topic == "orders"]
        consumer.seek(queues[queue_id], 0).result(20)
        eventually(lambda: consumer.statistics["skipped"] == 2, "two are skipped")
        seen.wait_for_count(1)
    assert numbers_of(seen) == [2]
    assert any("2 messages expired unread" in text for text in caplog.messages)


@pytest.mark.parametrize(
    ("tags", "brings_third"),
    [("*", False), ("a", False), ("*", True)],
)
def test_messages_that_a_broker_is_removing_are_told_and_counted_as_skipped(
    tags: str,
    brings_third: bool,
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers as of a broker that removes expired messages; its first offset is corrected later."""
    caplog.set_level(logging.WARNING, logger="ordermq.consumer")
    queue_id = send_to(producer, 0)
    send(producer, 1, 2)

    def removing(connection: Any, request: Command, serve: Callable[[Command], None]) -> None:
        if brings_third:
            serve(replace(request, ext=request.ext | {"queueOffset": "2"}))
            return
        ext = {"nextBeginOffset": "2", "minOffset": "0", "maxOffset": "3"}
        ext |= {"suggestWhichBrokerId": "0"}
        code = ResponseCode.PULL_RETRY_IMMEDIATELY
        connection.reply(request, code, ext, remark="MESSAGE_WAS_REMOVING")

    answer_first_two(monkeypatch, queue_id, removing)
    with make_consumer(seen.take, tags=tags) as consumer:
        eventually(lambda: consumer.statistics["skipped"] == 2, "two are skipped")
        seen.wait_for_count(1)
    assert numbers_of(seen) == [2]
    told = [text for text in caplog.messages if "2 messages expired unread" in text]
    assert len(told) == 1
    assert "between offsets 0 and" in told[0]


def test_a_reset_by_an_admin_is_logged_as_one_and_counts_no_expired_message(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="ordermq.consumer")
    queue_id = send_to(producer, 0)
    send(producer, 1, 2)

    def reset(offset: int) -> None:
        ext = {"topic": "orders", "group": "g", "timestamp": "0", "isForce": "true"}
        ext |= {"queueId": str(queue_id), "offset": str(offset)}
        with WireClient(broker.port) as tool:
            assert tool.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext).code == 0

    def reset_forward(queue: MessageQueue) -> None:
        # Before the first pull, which is at the offset 0 that the member has read already.
        if (queue.topic, queue.queue_id) == ("orders", queue_id):
            reset(2)

    with make_consumer(seen.take, on_assigned=reset_forward) as consumer:
        seen.wait_for_count(1)
        reset(1)
        seen.wait_for_count(3)
        assert consumer.statistics["skipped"] == 0
    assert numbers_of(seen) == [2, 1, 2]
    resets = [text for text in caplog.messages if "an admin reset the group's offset" in text]
    assert [text.split("; ")[1] for text in resets] == [
        "continuing from 2, not 0",
        "continuing from 1, not 3",
    ]
    assert not any("expired" in text for text in caplog.messages)


def send_to(producer: Producer, number: int) -> int:
    message = Message("orders", str(number).encode())
    return producer.send(message, sharding_key="k").message_queue.queue_id


def test_a_pull_that_is_never_answered_is_given_up_and_begun_again(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Java drops such a queue after two minutes and takes it again; we keep it, and pull again."""
    send(producer, 0)
    served = HANDLERS[RequestCode.PULL_MESSAGE]
    swallowed: set[str] = set()

    def answer_the_second(context: Any, connection: Any, request: Command) -> None:
        queue = request.ext["topic"] + request.ext["queueId"]
        if queue in swallowed:
            served(context, connection, request)
        swallowed.add(queue)

    monkeypatch.setitem(HANDLERS, RequestCode.PULL_MESSAGE, answer_the_second)
    revoked: list[Any] = []
    with make_consumer(
        seen.take,
        broker_suspend_ms=50,
        pull_timeout_ms=150,
        pull_delay_on_error_ms=10,
        on_revoked=revoked.append,
    ) as consumer:
        seen.wait_for_count(1)
        # Each queue gives its first pull up by its own clock: the other eight may be later.
        eventually(lambda: consumer.statistics["pull_errors"] == 9, "a first pull of each queue")
        assert revoked == []
        send(producer, 1, 2)
        seen.wait_for_count(3)
    assert numbers_of(seen) == [0, 1, 2]
    assert seen.duplicates() == 0
