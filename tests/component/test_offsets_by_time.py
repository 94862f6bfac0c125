"""Offsets by time at a broker that answers roughly, by everything that asks for one
(docs/internals/semantics.md#offsets-by-time)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from ordermq import (
    Admin,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
)
from ordermq.broker import EmbeddedBroker, server
from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext
from ordermq.broker.store.store import Store
from ordermq.client.session import ClientSession
from ordermq.config import BrokerConfig, RemotingConfig
from ordermq.errors import StateError
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.spark.options import SourceOptions
from ordermq.spark.source.offsets import resolve_snapshot
from tests.component.conftest import Seen, eventually

QUEUE = MessageQueue("orders", "b", 0)
OLD, TOGETHER, NEW = 5, 60, 4  # messages before, in one millisecond, and after
END = OLD + TOGETHER + NEW
Times = dict[int, int]  # store time by offset


@pytest.fixture
def broker_config(broker_config: BrokerConfig) -> BrokerConfig:
    return replace(broker_config, new_groups_start_at_zero=False)


@pytest.fixture
def times(broker: EmbeddedBroker, producer: Producer) -> Times:
    def tick() -> None:
        now_ms = time.time_ns() // 1_000_000
        eventually(lambda: time.time_ns() // 1_000_000 > now_ms + 1, "another millisecond")

    with Admin(broker.name_servers) as admin:
        admin.create_topic("orders", 1)
        for _ in range(OLD):
            producer.send(Message("orders", b"old"), queue=QUEUE)
        tick()
        producer.send_batch([Message("orders", b"together")] * TOGETHER, queue=QUEUE)
        tick()
        for _ in range(NEW):
            producer.send(Message("orders", b"new"), queue=QUEUE)
        stored = {m.queue_offset: m.store_timestamp_ms for m in admin.peek("orders", END)}
    assert len(stored) == END
    assert len({stored[OLD + n] for n in range(TOGETHER)}) == 1
    return stored


@pytest.fixture(params=[33, 1, 0, -40, END])
def shift(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Shift the broker's answers behind the right offset, but within the millisecond of
    `TOGETHER`; with `END` to the last message. None is the queue's end.
    """
    search, shift = Store.search, int(request.param)

    def search_roughly(self: Store, log: object, stored_ms: int, *, after: bool) -> int:
        found = search(self, log, stored_ms, after=after)  # type: ignore[arg-type]
        is_shifted = shift < 0 or shift == END or found == OLD
        return max(min(found + shift * is_shifted, END - 1), 0)

    monkeypatch.setattr(Store, "search", search_roughly)
    return shift


def by_pull_consumer(broker: EmbeddedBroker, wall_ms: int) -> int:
    with PullConsumer("g", name_servers=broker.name_servers) as consumer:
        return consumer.search_offset(QUEUE, wall_ms)


def by_lite_pull_consumer(broker: EmbeddedBroker, wall_ms: int) -> int:
    with LitePullConsumer("g", name_servers=broker.name_servers) as consumer:
        consumer.assign([QUEUE])
        return consumer.offset_for_timestamp(QUEUE, wall_ms)


def by_reset(broker: EmbeddedBroker, wall_ms: int) -> int:
    with Admin(broker.name_servers) as admin:
        (moved,) = admin.reset("g", "orders", datetime.fromtimestamp(wall_ms / 1_000, UTC))
        return moved.after


def by_peek(broker: EmbeddedBroker, wall_ms: int) -> int:
    with Admin(broker.name_servers) as admin:
        moment = datetime.fromtimestamp(wall_ms / 1_000, UTC)
        return min((m.queue_offset for m in admin.peek("orders", END, start=moment)), default=END)


def by_spark(broker: EmbeddedBroker, wall_ms: int) -> int:
    asked = {"name_servers": broker.name_servers, "topic": "orders"}
    options = SourceOptions.of(asked | {"starting_timestamp": str(wall_ms)})
    with contextlib.closing(ClientSession(broker.name_servers, RemotingConfig())) as session:
        ranges = session.call(resolve_snapshot(session, options))
    return ranges.get(QUEUE, (END, END))[0]


@pytest.mark.usefixtures("shift")
def test_the_first_message_since_a_time_is_found_whatever_the_broker_answers(
    broker: EmbeddedBroker, times: Times
) -> None:
    last_ms = times[END - 1]
    eventually(lambda: time.time_ns() // 1_000_000 > last_ms + 1, "another millisecond")
    for find in (by_pull_consumer, by_lite_pull_consumer, by_reset, by_peek, by_spark):
        for wall_ms in (times[0] - 5_000, times[OLD], times[OLD] + 1, last_ms, last_ms + 1):
            expected = min(
                (at for at, stored_ms in times.items() if stored_ms >= wall_ms), default=END
            )
            assert find(broker, wall_ms) == expected, find


@pytest.mark.usefixtures("shift")
def test_a_new_group_begins_with_the_first_message_since_its_time_and_seeks_there(
    times: Times, make_consumer: Callable[..., PushConsumer], seen: Seen
) -> None:
    with make_consumer(
        seen.take, consume_from_where="timestamp", consume_timestamp_ms=times[OLD]
    ) as consumer:
        seen.wait_for_count(END - OLD)
        assert [offset for _, offset, _, _ in seen.deliveries] == list(range(OLD, END))
        consumer.seek_to_time(QUEUE, times[OLD]).result(20)
        seen.wait_for_count(2 * (END - OLD))
    assert [offset for _, offset, _, _ in seen.deliveries[END - OLD :]] == list(range(OLD, END))


@pytest.mark.parametrize("shift", [TOGETHER - 1, -3, END], indirect=True)
def test_live_members_that_a_broker_moves_by_time_skip_nothing(
    broker: EmbeddedBroker,
    times: Times,
    shift: int,
    make_consumer: Callable[..., PushConsumer],
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RocketMQ's brokers move them to where their own search leads: an earlier time is named."""

    def unknown(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
        connection.reply(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    for code in (RequestCode.OMQ_QUERY_LOCKS, RequestCode.GET_BROKER_CONFIG):
        monkeypatch.setitem(server.HANDLERS, code, unknown)
    moment = datetime.fromtimestamp(times[OLD] / 1_000, UTC)
    with make_consumer(seen.take), Admin(broker.name_servers) as admin:
        seen.wait_for_count(END)
        if shift == END:
            with pytest.raises(StateError, match="would skip messages: stop the group first"):
                admin.reset("g", "orders", moment)
            return
        (moved,) = admin.reset("g", "orders", moment)
        assert moved.by_members
        assert moved.after <= OLD
        if shift < 0:
            assert moved.after == OLD + shift, "no earlier than the broker's own answer"
        seen.wait_for_count(END + END - moved.after)
    assert [at for _, at, _, _ in seen.deliveries[END:]] == list(range(moved.after, END))
