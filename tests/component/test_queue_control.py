"""Pause, release, resume and seek of a running consumer
(docs/internals/semantics.md#pause-and-seek)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ordermq import Message, MessageQueue, Producer, PushConsumer
from ordermq.audit import audit
from ordermq.broker import EmbeddedBroker, server
from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext
from ordermq.consumer.group.group_member import GroupMember
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.errors import ConfigError, StateError
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from tests.component.broker.wire_client import WireClient, locked
from tests.component.conftest import Seen, assert_in_order, eventually, numbered
from tests.component.test_orderly_consumer import committed, send_all

MakeConsumer = Callable[..., PushConsumer]


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Any:
    with Producer("p", name_servers=broker.name_servers, default_topic_queue_nums=2) as running:
        yield running


def queue_of(producer: Producer, key: str) -> MessageQueue:
    return producer.send(Message("orders", b"0"), sharding_key=key).message_queue


def send_to(producer: Producer, key: str, numbers: range) -> None:
    for number in numbers:
        producer.send(Message("orders", str(number).encode()), sharding_key=key)


def held(consumer: PushConsumer, queue: MessageQueue) -> AssignedQueue:
    eventually(lambda: queue in consumer.assigned_queues(), "the queue is ours")
    return consumer._live().control.find(queue)


def orders_of(consumer: PushConsumer) -> list[MessageQueue]:
    return [queue for queue in consumer.assigned_queues() if queue.topic == "orders"]


def lock_body(queue: MessageQueue) -> bytes:
    place = {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": "orders"}
    return json.dumps({"clientId": "tool", "consumerGroup": "g", "mqSet": [place]}).encode()


def test_a_released_queue_is_free_to_others_and_not_taken_again_until_resumed(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    queue = queue_of(producer, "k")
    revoked: list[MessageQueue] = []
    with make_consumer(seen.take, on_revoked=revoked.append, rebalance_interval_ms=20) as consumer:
        seen.wait_for_count(1)
        consumer.pause(queue, release=True)
        eventually(lambda: queue in revoked, "the queue is handed over")
        assert committed(broker) == 1, "what was done is committed before the unlock"
        send_to(producer, "k", range(1, 20))
        other = MessageQueue("orders", queue.broker_name, 1 - queue.queue_id)
        assert other in consumer.assigned_queues()
        with WireClient(broker.port, "tool") as tool:
            granted = tool.call(RequestCode.LOCK_BATCH_MQ, {}, lock_body(queue))
            assert locked(granted) == [queue.queue_id]
            tool.call(RequestCode.UNLOCK_BATCH_MQ, {}, lock_body(queue))
        assert queue not in consumer.assigned_queues()
        assert len(seen.deliveries) == 1
        consumer.resume(queue)
        seen.wait_for_count(20)
    assert [int(body) for body in seen.bodies_of("k")] == list(range(20))


def test_a_consumer_that_steps_out_leaves_all_queues_to_the_others_until_it_resumes(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(10))
    first = make_consumer(seen.take)
    second = make_consumer(seen.take)
    with first, second:
        eventually(
            lambda: len(orders_of(first)) == len(orders_of(second)) == 1, "each has its share"
        )
        first.pause(release=True)
        eventually(lambda: len(orders_of(second)) == 2, "the other has both queues")
        eventually(lambda: first.held_queues() == [], "its retry topic is given up, too")
        send_all(producer, numbered(90, start=10))
        seen.wait_for_count(100)
        first.resume()
        eventually(lambda: len(orders_of(first)) == 1, "its share is back")
        send_all(producer, numbered(100, start=100))
        seen.wait_for_count(200)
    assert_in_order(seen, 200)
    assert seen.duplicates() == 0


def test_no_heartbeat_is_under_way_beside_an_unregistration(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ works the two in different threads: the one sent first may come last."""
    handlers = dict(server.HANDLERS)
    under_way: list[tuple[BrokerConnection, int]] = []
    overtaking: list[str] = []
    unregistered = threading.Event()

    def work_later(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
        overtaking.extend(
            f"{request.code} beside {code}"
            for other, code in under_way
            if other is connection and code != request.code
        )
        under_way.append((connection, request.code))

        def work() -> None:
            under_way.remove((connection, request.code))
            handlers[request.code](context, connection, request)
            if request.code == RequestCode.UNREGISTER_CLIENT:
                unregistered.set()

        asyncio.get_running_loop().call_later(0.02, work)

    for code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
        monkeypatch.setitem(server.HANDLERS, code, work_later)
    send_all(producer, numbered(10))
    first = make_consumer(seen.take, heartbeat_interval_ms=10)
    second = make_consumer(seen.take)
    with first, second:
        for _ in range(3):
            eventually(lambda: len(orders_of(first)) == 1, "each has its share")
            unregistered.clear()
            first.pause(release=True)
            assert unregistered.wait(10)
            eventually(lambda: len(orders_of(second)) == 2, "the other has both queues")
            first.pause(release=True)
            first.resume()
    assert overtaking == []


def test_an_unregistration_that_fails_is_sent_again_with_the_next_heartbeat(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later heartbeats of the same connection, without the group, keep the member on its list."""
    refused: list[int] = []
    unregister = server.HANDLERS[RequestCode.UNREGISTER_CLIENT]

    def refuse_first(context: BrokerContext, connection: BrokerConnection, ask: Command) -> None:
        if refused:
            unregister(context, connection, ask)
        else:
            refused.append(ask.code)
            connection.reply(ask, ResponseCode.SYSTEM_BUSY, remark="not now")

    monkeypatch.setitem(server.HANDLERS, RequestCode.UNREGISTER_CLIENT, refuse_first)
    send_all(producer, numbered(10))
    first = make_consumer(seen.take, heartbeat_interval_ms=50)
    second = make_consumer(seen.take)
    with first, second:
        eventually(lambda: len(orders_of(first)) == 1, "each has its share")
        first.pause(release=True)
        eventually(lambda: len(orders_of(second)) == 2, "the other has both queues")
    assert refused


def test_a_consumer_without_locks_steps_out_and_in_too(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(10))
    first = make_consumer(seen.take, concurrent=True)
    second = make_consumer(seen.take, concurrent=True)
    with first, second:
        eventually(
            lambda: len(orders_of(first)) == len(orders_of(second)) == 1, "each has its share"
        )
        first.pause(release=True)
        eventually(lambda: len(orders_of(second)) == 2, "the other has both queues")
        first.resume()
        eventually(lambda: len(orders_of(first)) == 1, "its share is back")
        send_all(producer, numbered(50))
        seen.wait_for_count(60)


def test_a_paused_consumer_keeps_its_locks_and_calls_no_listener(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    with make_consumer(seen.take) as consumer:
        consumer.pause()
        send_all(producer, numbered(40))
        eventually(lambda: len(orders_of(consumer)) == 2, "its queues are locked")
        queues = [held(consumer, queue) for queue in orders_of(consumer)]
        eventually(
            lambda: sum(item.process_queue.pending_count for item in queues) == 40, "buffered"
        )
        assert seen.deliveries == []
        consumer.resume()
        seen.wait_for_count(40)
    assert_in_order(seen, 40)


def test_a_pause_outlives_a_move_to_another_member_and_back(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    queue = queue_of(producer, "k")
    elsewhere = Seen()
    with make_consumer(seen.take) as consumer:
        seen.wait_for_count(1)
        consumer.pause(queue)
        with make_consumer(elsewhere.take) as second:
            # The lower client id has the lower queue: one of them moves.
            eventually(lambda: len(orders_of(second)) == 1, "a queue moved")
        eventually(lambda: len(orders_of(consumer)) == 2, "both are ours again")
        assert held(consumer, queue).is_paused
        consumer.resume(queue)
        send_to(producer, "k", range(1, 5))
        seen.wait_for_count(5)


@pytest.mark.parametrize("by_key", [False, True])
def test_a_seek_goes_back_after_the_running_listener_and_commits_the_new_offset(
    producer: Producer,
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    tmp_path: Path,
    by_key: bool,
) -> None:
    queue = queue_of(producer, "k")
    send_to(producer, "k", range(1, 30))
    entered, leave = threading.Event(), threading.Event()

    def listen(messages: Any, context: Any) -> None:
        seen.take(messages, context)
        if messages[0].queue_offset == 20 and not entered.is_set():
            entered.set()
            assert leave.wait(20)

    history = tmp_path / "member.jsonl"
    with make_consumer(
        listen, consume_message_batch_max_size=4, order_by_key=by_key, history=history
    ) as consumer:
        assert entered.wait(20)
        moved = consumer.seek(queue, 3)
        assert not moved.done()
        leave.set()
        moved.result(20)
        seen.wait_for_count((21 if by_key else 24) + 27)
        eventually(lambda: held(consumer, queue).committed_offset == 30, "all is committed")
    offsets = [offset for _, offset, _, _ in seen.deliveries]
    again = offsets.index(3, offsets.index(20))
    assert offsets[:again] == list(range(again))
    assert offsets[again:] == list(range(3, 30))
    report = audit(history)
    assert report.ok, report.violation
    assert committed(broker) == 30


def test_a_seek_forward_skips_what_is_buffered(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    queue = queue_of(producer, "k")
    with make_consumer(seen.take) as consumer:
        seen.wait_for_count(1)
        consumer.pause()
        send_to(producer, "k", range(1, 30))
        item = held(consumer, queue)
        eventually(lambda: item.process_queue.pending_count == 29, "all is buffered")
        consumer.seek(queue, 25).result(20)
        assert item.committed_offset == 25
        assert item.is_paused, "a seek ends no pause of the user's"
        assert len(seen.deliveries) == 1
        consumer.resume()
        seen.wait_for_count(6)
    assert [int(body) for body in seen.bodies_of("k")] == [0, *range(25, 30)]


def test_a_seek_by_time_finds_the_first_message_stored_then(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    queue = queue_of(producer, "k")
    send_to(producer, "k", range(1, 10))
    stored: dict[int, int] = {}

    def listen(messages: Any, context: Any) -> None:
        stored.update((m.queue_offset, m.store_timestamp_ms) for m in messages)
        seen.take(messages, context)

    with make_consumer(listen) as consumer:
        seen.wait_for_count(10)
        first = min(offset for offset in stored if stored[offset] == stored[5])
        consumer.seek_to_time(queue, stored[5]).result(20)
        seen.wait_for_count(10 + 10 - first)
    assert [int(body) for body in seen.bodies_of("k")] == [*range(10), *range(first, 10)]


def test_a_seek_from_the_assignment_callback_comes_before_the_first_message(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    queue = queue_of(producer, "k")
    send_to(producer, "k", range(1, 10))
    consumer: PushConsumer

    def on_assigned(mine: MessageQueue) -> None:
        if mine == queue:
            consumer.seek(queue, 7).result(20)

    consumer = make_consumer(seen.take, on_assigned=on_assigned)
    with consumer:
        seen.wait_for_count(3)
    assert [int(body) for body in seen.bodies_of("k")] == [7, 8, 9]


@pytest.mark.parametrize("by_key", [False, True])
def test_a_seek_beyond_the_end_is_refused_and_moves_nothing(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    by_key: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A time that was taken for an offset would skip what is there, and what comes next."""
    queue = queue_of(producer, "k")
    send_to(producer, "k", range(1, 30))
    taken: list[bytes] = []

    def listen(messages: Any, context: Any) -> None:
        if not taken:
            consumer.seek(queue, 1_795_581_149_741)  # its future is nobody's
        taken.append(bytes(messages[0].body))
        seen.take(messages, context)

    with make_consumer(listen, order_by_key=by_key) as consumer:
        seen.wait_for_count(30)
        with pytest.raises(
            ConfigError, match="the queue ends at 30; for a time, call seek_to_time"
        ):
            consumer.seek(queue, 31).result(20)
        consumer.seek(queue, 30).result(20)
        send_to(producer, "k", range(30, 32))
        seen.wait_for_count(32)
    assert len(set(taken)) == len(taken) == 32
    assert "no seek to offset 1795581149741: the queue ends at" in caplog.text


def test_a_listener_may_seek_its_own_queue(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    queue_of(producer, "k")
    send_to(producer, "k", range(1, 6))
    consumer: PushConsumer

    def listen(messages: Any, context: Any) -> None:
        seen.take(messages, context)
        if len(seen.deliveries) == 6:
            consumer.seek(context.message_queue, 2)

    consumer = make_consumer(listen)
    with consumer:
        seen.wait_for_count(10)
    assert [int(body) for body in seen.bodies_of("k")] == [*range(6), *range(2, 6)]


def test_a_listener_may_seek_before_start_returns(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send_to(producer, "k", range(3))
    has_sought = threading.Event()
    begin = GroupMember.start

    def start_late(member: GroupMember) -> None:
        begin(member)
        assert has_sought.wait(20)

    def listen(messages: Any, context: Any) -> None:
        seen.take(messages, context)
        if len(seen.deliveries) == 3:
            consumer.seek(context.message_queue, 1)
            has_sought.set()

    monkeypatch.setattr(GroupMember, "start", start_late)
    consumer = make_consumer(listen)
    with consumer:
        seen.wait_for_count(5)
    assert [int(body) for body in seen.bodies_of("k")] == [0, 1, 2, 1, 2]


def test_controlling_a_queue_of_another_member_is_refused(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    foreign = MessageQueue("orders", "elsewhere", 0)
    consumer = make_consumer(seen.take)
    with pytest.raises(StateError, match="not running"):
        consumer.pause()
    with consumer:
        for call in (consumer.pause, consumer.resume):
            with pytest.raises(StateError, match="not assigned to this member"):
                call(foreign)
        with pytest.raises(StateError, match="not assigned to this member"):
            consumer.seek(foreign, 0)
        with pytest.raises(ConfigError, match="expected 0 or more"):
            consumer.seek(foreign, -1)
        for each in (consumer.pause, consumer.resume, partial(consumer.seek, offset=0)):
            with pytest.raises(ConfigError, match=r"^queue 'orders': .*one of assigned_queues"):
                each("orders")
