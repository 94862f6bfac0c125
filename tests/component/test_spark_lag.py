"""The lag of a streaming query, from the offsets that Spark reports, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.client.queue_scan import scan
from ordermq.client.session import ClientSession
from ordermq.clock import SystemClock
from ordermq.config import RemotingConfig
from ordermq.consumer.queue.statistics import Lag
from ordermq.errors import ConfigError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import client_of
from ordermq.spark.source.stream_lag import BatchOffsets, LagReport, StreamLag

FIRST, SECOND = MessageQueue("orders", "b", 0), MessageQueue("orders", "b", 1)


class WallClock(SystemClock):
    """A clock whose wall time the test sets; waiting takes real time."""

    wall: int = 0

    def wall_ms(self) -> int:
        return self.wall or super().wall_ms()


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


@pytest.fixture
def session(broker: EmbeddedBroker, clock: WallClock) -> Iterator[ClientSession]:
    config = RemotingConfig(connect_timeout_ms=500, offset_timeout_ms=5_000)
    made = ClientSession(broker.name_servers, config, clock=clock)
    yield made
    made.close()


def batch(*ends: Any, starts: Any = None, reported: Any = None) -> BatchOffsets:
    """A report of Spark; offsets as dicts, or as the texts of other sources."""

    def text(offset: Any) -> str | None:
        return json.dumps(offset) if isinstance(offset, dict) else offset

    return BatchOffsets(
        "q-1", "r-1", "sums", 7, "2026-11-22T10:00:00.000Z",
        (text(starts),), tuple(map(text, ends)), (text(reported),),
    )  # fmt: skip


def fill(producer: Producer, queue: MessageQueue, count: int) -> None:
    for number in range(count):
        producer.send(Message("orders", b"%d" % number), queue=queue)


def stored_ms(session: ClientSession, queue: MessageQueue, offset: int) -> int:
    async def look() -> int:
        await session.routes.get_all({queue.topic})
        found = [one async for one in scan(session, "look", queue, offset, offset + 1)]
        return found[0].store_timestamp_ms

    return session.call(look())


def measured(session: ClientSession, lag: StreamLag) -> LagReport:
    report = session.call(lag.measure())
    assert report is not None
    return report


def test_the_lag_is_what_lies_behind_the_last_batch_and_the_age_of_its_oldest_message(
    producer: Producer, session: ClientSession, clock: WallClock
) -> None:
    fill(producer, FIRST, 5)
    fill(producer, SECOND, 2)
    clock.wall = stored_ms(session, FIRST, 2) + 2_500
    lag = StreamLag(session)
    assert session.call(lag.measure()) is None, "Spark has reported nothing"
    lag.note(
        batch(
            {"orders@b:0": 2, "orders@b:1": 2, "@lease": 5},
            starts={"orders@b:0": 1, "orders@b:1": 0, "@lease": 5},
            reported={"orders@b:0": 3, "orders@b:1": 2, "@group": "etl"},
        )
    )
    report = measured(session, lag)
    assert {queue: each.lag for queue, each in report.queues.items()} == {
        FIRST: Lag(3, 2.5),
        SECOND: Lag(0, 0.0),
    }
    assert report.lag_of("orders") == Lag(3, 2.5)
    assert report.title == "etl"
    told = json.loads(json.dumps(report.to_dict()))
    assert told["name"] == "sums"
    assert told["group"] == "etl"
    assert told["batchId"] == 7
    assert told["topics"] == {"orders": {"messages": 3, "seconds": 2.5, "isCurrent": True}}
    assert told["queues"][0] == {
        "topic": "orders", "broker": "b", "queue": 0, "rows": 1, "endOffset": 2, "latestOffset": 5,
        "messages": 3, "seconds": 2.5, "isCurrent": True,
    }  # fmt: skip


def test_a_later_question_is_one_request_per_topic_and_broker(
    producer: Producer, session: ClientSession
) -> None:
    fill(producer, FIRST, 5)
    fill(producer, SECOND, 5)
    lag = StreamLag(session)
    lag.note(batch({"orders@b:0": 2, "orders@b:1": 4}))
    assert measured(session, lag).lag_of().messages == 4
    asked: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        method = getattr(session.api, name)

        async def call(*arguments: Any) -> Any:
            asked.append(name)
            return await method(*arguments)

        return call

    for name in ("topic_statistics", "max_offset", "pull"):
        setattr(session.api, name, counted(name))
    fill(producer, FIRST, 1)
    assert measured(session, lag).lag_of().messages == 5
    assert asked == ["topic_statistics"], "the oldest messages are known"
    lag.note(batch({"orders@b:0": 3, "orders@b:1": 4}))
    assert measured(session, lag).lag_of().messages == 4
    assert asked == ["topic_statistics"] * 2 + ["pull"], "of the queue that has gone on"


def test_a_broker_that_is_away_leaves_the_last_ends_and_says_so(
    producer: Producer, session: ClientSession, broker: EmbeddedBroker, clock: WallClock
) -> None:
    fill(producer, FIRST, 5)
    clock.wall = stored_ms(session, FIRST, 2) + 1_000
    lag = StreamLag(session)
    lag.note(batch({"orders@b:0": 2}))
    assert measured(session, lag).queues[FIRST].lag == Lag(3, 1.0)
    producer.close()
    broker.close()
    clock.wall += 1_000
    assert measured(session, lag).queues[FIRST].lag == Lag(3, 2.0, False)
    lag.note(batch({"orders@b:0": 4}))
    assert measured(session, lag).queues[FIRST].lag == Lag(1, None, False)


def test_a_topic_that_these_name_servers_do_not_know_keeps_the_ends_that_spark_reports(
    session: ClientSession,
) -> None:
    lag = StreamLag(session)
    lag.note(batch({"elsewhere@b:0": 3}, reported={"elsewhere@b:0": 7}))
    (one,) = measured(session, lag).queues.values()
    assert one.lag == Lag(4, None, False)
    lag.note(batch({"elsewhere@b:0": 3}, reported=None))
    (one,) = measured(session, lag).queues.values()
    assert one.lag == Lag(0, 0.0, False), "after a restart Spark has not asked yet"


@pytest.mark.parametrize("text", ['{"logOffset":0}', '{"orders":{"0":23}}', "17", "x", None])
def test_offsets_of_other_sources_are_left_out(
    producer: Producer, session: ClientSession, text: str | None
) -> None:
    fill(producer, FIRST, 5)
    lag = StreamLag(session)
    lag.note(batch(text))
    assert session.call(lag.measure()) is None
    lag.note(batch(text, {"orders@b:0": 2}))
    assert measured(session, lag).lag_of().messages == 3


def test_the_listeners_options_are_those_of_the_source_and_checked() -> None:
    name_servers, remoting = client_of({"name_servers": "a:1", "tls": True, "routeIntervalMs": 50})
    assert (name_servers, remoting.tls, remoting.route_interval_ms) == ("a:1", True, 50)
    with pytest.raises(ConfigError, match="name_servers is missing"):
        client_of({})
    with pytest.raises(ConfigError, match=r"no option 'nameservrs'; did you mean name_servers\?"):
        client_of({"nameservrs": "a:1"})
    with pytest.raises(ConfigError, match="secret_key is missing"):
        client_of({"name_servers": "a:1", "access_key": "me"})
