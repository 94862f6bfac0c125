"""Queues that a query of Spark reads, their begin, and that of a micro-batch; without Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from ordermq import Message, Producer
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.client.queue_scan import scan
from ordermq.client.session import ClientSession
from ordermq.clock import SystemClock
from ordermq.config import RemotingConfig
from ordermq.errors import BrokerError, ConfigError, DataLoss, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.command import Command
from ordermq.remoting.framing import PullFrames
from ordermq.remoting.headers import PullHeader
from ordermq.spark.options import SourceOptions
from ordermq.spark.session import lease_client_id
from ordermq.spark.source.offsets import Ranges, StreamOffset, resolve_snapshot
from ordermq.spark.source.queue_reader import QueueRange, read_ranges
from ordermq.spark.source.stream_driver import StreamDriver
from tests.component.conftest import eventually, numbered
from tests.component.damaging_proxy import DamagingProxy

HOUR_MS = 3_600_000
QUEUES = [MessageQueue("orders", "b", number) for number in range(8)]


class JumpingClock(SystemClock):
    """The machine's time, and what a test adds to it."""

    added_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.added_ms


@pytest.fixture
def session(broker: EmbeddedBroker) -> Iterator[ClientSession]:
    made = ClientSession(broker.name_servers, RemotingConfig())
    yield made
    made.close()


def options(broker: EmbeddedBroker, **more: str) -> SourceOptions:
    return SourceOptions.of({"name_servers": broker.name_servers} | more)


def driver_of(broker: EmbeddedBroker, clock: SystemClock | None = None, **more: str) -> Any:
    return contextlib.closing(StreamDriver(options(broker, **more), clock))


def snapshot(broker: EmbeddedBroker, session: ClientSession, **more: str) -> Ranges:
    return session.call(resolve_snapshot(session, options(broker, **more)))


def next_of(driver: StreamDriver, start: StreamOffset) -> StreamOffset:
    end = driver.next_end(start, None)
    assert end is not None
    return end


def fill(producer: Producer, queue: MessageQueue, count: int) -> None:
    for number in range(count):
        producer.send(Message(queue.topic, b"%d" % number), queue=queue)


def topics_of(offset: StreamOffset) -> set[str]:
    return {queue.topic for queue in offset.queues}


def test_a_micro_batch_waits_for_min_rows_or_the_delay(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    producer.send_many(numbered(100))
    clock = JumpingClock()
    limits = {"min_rows": "50", "max_trigger_delay_ms": str(HOUR_MS)}
    with driver_of(broker, clock, topic="orders", **limits) as driver:

        def sent(count: int, in_all: int) -> None:
            producer.send_many(numbered(count, start=in_all - count))
            seen = driver._latest.get_now
            eventually(lambda: sum(seen().values()) == in_all, "the driver knows the new ends")

        end = next_of(driver, driver.initial())
        sent(30, 130)
        assert driver.next_end(end, None) is None
        sent(20, 150)
        assert sum((end := next_of(driver, end)).queues.values()) == 150
        sent(1, 151)
        assert driver.next_end(end, None) is None
        clock.added_ms += HOUR_MS
        assert sum((end := next_of(driver, end)).queues.values()) == 151
    with driver_of(broker, topic="orders", min_rows="500") as driver:
        start = driver.initial()
        driver.freeze_end()
        assert next_of(driver, start).queues == end.queues, "availableNow reads what there is"


def test_a_pattern_finds_topics_that_are_created_later(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    fill(producer, MessageQueue("orders", "b", 0), 3)
    fill(producer, MessageQueue("bills", "b", 0), 3)
    with driver_of(
        broker, topic_pattern="ord.*", group="g", route_interval_ms="10",
        starting_offsets="earliest",
    ) as driver:  # fmt: skip
        end = next_of(driver, driver.initial())
        assert topics_of(end) == {"orders"}
        fill(producer, MessageQueue("ordinary", "b", 1), 2)
        found: list[StreamOffset] = [end]

        def has_come() -> bool:
            found.append(driver.next_end(found[-1], None) or found[-1])
            return found[-1].queues.get(MessageQueue("ordinary", "b", 1)) == 2

        eventually(has_come, "the new topic is read from its beginning")
        assert topics_of(found[-1]) == {"orders", "ordinary"}
        with Admin(name_servers=broker.name_servers) as admin:
            state = admin.group("g", ("orders", "ordinary"), ask_members=False)
        assert {lock.owner for lock in (state.locks or {}).values()} == {
            lease_client_id("g", driver.run_id)
        }
        assert {queue.topic for queue in state.locks or {}} == {"orders", "ordinary"}
    refused = pytest.raises(StateError, match=r"is of topic .*orders.*the query reads bil\.\*")
    with driver_of(broker, topic_pattern="bil.*") as other, refused:
        other.next_end(end, None)


def test_a_stream_of_a_pattern_may_begin_before_its_topics_and_warns(
    broker: EmbeddedBroker, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"route_interval_ms": "10", "min_rows": "4"}
    with driver_of(broker, topic_pattern="ord.*", **limits) as driver:
        found = [driver.initial()]
        assert found[0].queues == {}
        assert "topic_pattern='ord.*' matches no topic now: the query waits" in caplog.text
        fill(producer, QUEUES[2], 4)

        def has_come() -> bool:
            found.append(driver.next_end(found[-1], None) or found[-1])
            return found[-1].queues.get(QUEUES[2]) == 4

        eventually(has_come, "the first topic is read")


def test_a_query_of_single_queues_reads_and_locks_only_these(
    broker: EmbeddedBroker, producer: Producer, session: ClientSession
) -> None:
    producer.send_many(numbered(100))
    named = "orders@b:1,orders@b:4"
    with driver_of(broker, queues=named, group="g", starting_offsets="earliest") as driver:
        start = driver.initial()
        end = next_of(driver, start)
        assert set(end.queues) == {QUEUES[1], QUEUES[4]}
        with Admin(name_servers=broker.name_servers) as admin:
            held = admin.group("g", ("orders",), ask_members=False).locks or {}
        assert set(held) == {QUEUES[1], QUEUES[4]}
    ranges = snapshot(broker, session, queues=named)
    assert {queue: last for queue, (_, last) in ranges.items()} == end.queues
    refused = pytest.raises(StateError, match="add orders@b:4 to option queues")
    with driver_of(broker, queues="orders@b:1") as fewer, refused:
        fewer.next_end(end, None)
    with driver_of(broker, queues="orders@b:11") as none, pytest.raises(ConfigError, match="names"):
        none.initial()


def test_a_batch_begins_and_ends_at_the_times_of_single_queues(
    broker: EmbeddedBroker, producer: Producer, session: ClientSession
) -> None:
    fill(producer, QUEUES[0], 4)
    fill(producer, QUEUES[1], 4)

    async def times_of(queue: MessageQueue) -> list[int]:
        await session.routes.get_all({queue.topic})
        return [m.store_timestamp_ms async for m in scan(session, "look", queue, 0, 4)]

    times = session.call(times_of(QUEUES[0]))
    wanted = f'{{"orders@b:0": {times[2]}}}'
    # Several messages may have been stored within one millisecond.
    first = times.index(times[2])
    both = {QUEUES[0]: (first, 4), QUEUES[1]: (0, 4)}
    assert snapshot(broker, session, topic="orders", starting_timestamp=wanted) == both
    ended = snapshot(broker, session, topic="orders", ending_timestamp=wanted)
    assert ended.get(QUEUES[0], (0, 0)) == (0, first)
    assert ended[QUEUES[1]] == (0, 4)
    with pytest.raises(ConfigError, match=r"starting_timestamp is .* in the future"):
        snapshot(broker, session, topic="orders", starting_timestamp='{"orders@b:0": "2999-01-01"}')


def test_a_start_of_some_queues_warns_that_the_others_are_read_whole(
    broker: EmbeddedBroker,
    producer: Producer,
    session: ClientSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(producer, QUEUES[0], 3)
    fill(producer, QUEUES[1], 2)
    told = "the start names 1 of 8 queues, and the others are read from their beginning"
    start = '{"orders@b:0": 2}'
    found = snapshot(broker, session, topic="orders", starting_offsets=start)
    assert found == {QUEUES[0]: (2, 3), QUEUES[1]: (0, 2)}
    assert caplog.text.count(told) == 1
    with driver_of(broker, topic="orders", starting_offsets=start) as driver:
        assert driver.initial() == driver.initial()
    assert caplog.text.count(told) == 2
    snapshot(broker, session, queues="orders@b:0", starting_offsets=start)
    snapshot(broker, session, topic="orders")
    assert caplog.text.count(told) == 2, "whoever names all, or none, is not warned"


def test_a_batch_of_a_pattern_that_matches_nothing_is_refused(
    broker: EmbeddedBroker, producer: Producer, session: ClientSession
) -> None:
    fill(producer, QUEUES[0], 1)
    assert set(snapshot(broker, session, topic_pattern="orders|bills")) == {QUEUES[0]}
    with pytest.raises(ConfigError, match=r"topic_pattern='order' matches no topic.*whole names"):
        snapshot(broker, session, topic_pattern="order")


def test_a_condition_in_sql_is_the_brokers_to_evaluate(
    broker: EmbeddedBroker,
    producer: Producer,
    session: ClientSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(producer, QUEUES[0], 40)
    wanted = [QueueRange("orders", "b", 0, 0, 40)]
    chosen = options(broker, topic="orders", sql="region = 'x'")
    with pytest.raises(BrokerError, match=r"not filter by SQL92.*enablePropertyFilter=true"):
        list(read_ranges(session, chosen, wanted))
    asked = []

    def skip(command: Command) -> None:  # every other message does not fulfil it
        if "nextBeginOffset" in command.ext:
            command.ext["nextBeginOffset"] = str(int(command.ext["nextBeginOffset"]) + 1)

    def one_by_one(header: PullHeader) -> PullFrames:
        asked.append((header.subscription, header.expression_type))
        plain = replace(header, subscription="*", expression_type="TAG", max_messages=1)
        return make_frames(plain)

    with DamagingProxy(broker.address, skip) as proxy:
        filtering = ClientSession(proxy.address, RemotingConfig())
        with contextlib.closing(filtering):
            make_frames = filtering.api.pull_frames
            monkeypatch.setattr(filtering.api, "pull_frames", one_by_one)
            rows = pa.Table.from_batches(read_ranges(filtering, chosen, wanted))
            assert rows["offset"].to_pylist() == list(range(0, 40, 2)), "left out, and not lost"
            assert set(asked) == {("region = 'x'", "SQL92")}
            with pytest.raises(DataLoss):
                list(read_ranges(filtering, options(broker, topic="orders"), wanted))


def test_a_namespace_of_rocketmq_4_is_an_option(
    broker: EmbeddedBroker, session: ClientSession
) -> None:
    with Producer("p", name_servers=broker.name_servers, namespace="shop") as producer:
        producer.send_many(numbered(20))
    inside = options(broker, topic="orders", namespace="shop")
    own = ClientSession(broker.name_servers, inside.remoting)
    with contextlib.closing(own):
        ranges = own.call(resolve_snapshot(own, inside))
    assert sum(last for _, last in ranges.values()) == 20
    assert {queue.topic for queue in ranges} == {"orders"}
    with contextlib.closing(ClientSession(broker.name_servers, inside.remoting)) as own:
        wanted = [
            QueueRange(queue.topic, queue.broker_name, queue.queue_id, first, last)
            for queue, (first, last) in ranges.items()
        ]
        assert pa.Table.from_batches(read_ranges(own, inside, wanted)).num_rows == 20
    with Admin(name_servers=broker.name_servers) as admin:
        assert [topic.name for topic in admin.topics()] == ["shop%orders"]
