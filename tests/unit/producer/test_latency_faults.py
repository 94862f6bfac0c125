"""Slow and silent brokers leave the turns of unordered messages for a while (MQFaultStrategy)."""

from __future__ import annotations

import asyncio

import pytest

from ordermq import Message
from ordermq.client.routes import Routes
from ordermq.clock import ManualClock
from ordermq.config import SendConfig
from ordermq.producer.queue_selector import LatencyFaults, QueueRouting, selector_of
from ordermq.remoting.bodies import BrokerData, QueueData, TopicRoute


@pytest.mark.parametrize(
    ("spent_ms", "out_ms"),
    [
        (0, 0), (549, 0), (550, 2_000), (1_799, 2_000), (1_800, 5_000), (3_000, 6_000),
        (5_000, 10_000), (14_999, 10_000), (15_000, 30_000), (1 << 40, 30_000),
    ],
)  # fmt: skip
def test_a_slow_broker_is_out_for_as_long_as_javas_table_says(spent_ms: int, out_ms: int) -> None:
    clock = ManualClock()
    faults = LatencyFaults(clock)
    faults.record("b", spent_ms)
    assert faults.is_available("b") == (out_ms == 0)
    clock.advance(max(out_ms - 1, 0))
    assert faults.is_available("b") == (out_ms == 0)
    clock.advance(1)
    assert faults.is_available("b")


def test_a_broker_that_does_not_answer_is_out_for_ten_seconds_or_until_it_is_quick_again() -> None:
    clock = ManualClock()
    faults = LatencyFaults(clock)
    faults.record_unanswered("b")
    clock.advance(9_999)
    assert not faults.is_available("b")
    assert faults.is_available("other")
    faults.record("b", 1)
    assert faults.is_available("b")


def routing_of(faults: LatencyFaults | None, *brokers: str) -> tuple[QueueRouting, Routes]:
    route = TopicRoute(
        tuple(BrokerData(name, {0: "127.0.0.1:1"}) for name in brokers),
        tuple(QueueData(name, 2, 2) for name in brokers),
    )

    class NameServers:
        async def topic_route(self, topic: str) -> TopicRoute:
            return route

    routes = Routes(NameServers(), lambda topic: None)  # type: ignore[arg-type]
    asyncio.run(routes.refresh("T"))
    return QueueRouting(selector_of("java"), SendConfig(), faults), routes


def turns(routing: QueueRouting, routes: Routes, count: int) -> list[str]:
    message = Message("T", b"x")
    return [routing.choose(routes, message, None, None).broker_name for _ in range(count)]


def test_a_broker_that_is_out_gets_no_unordered_message_but_those_of_its_keys() -> None:
    clock = ManualClock()
    faults = LatencyFaults(clock)
    routing, routes = routing_of(faults, "a", "b")
    assert set(turns(routing, routes, 4)) == {"a", "b"}
    before = [routing.choose(routes, Message("T", b"x"), f"k{n}", None) for n in range(20)]
    faults.record_unanswered("a")
    assert set(turns(routing, routes, 8)) == {"b"}
    after = [routing.choose(routes, Message("T", b"x"), f"k{n}", None) for n in range(20)]
    assert after == before
    assert {queue.broker_name for queue in after} == {"a", "b"}
    clock.advance(10_000)
    assert set(turns(routing, routes, 8)) == {"a", "b"}


def test_where_every_broker_is_out_all_are_in_turn() -> None:
    faults = LatencyFaults(ManualClock())
    routing, routes = routing_of(faults, "a", "b")
    faults.record_unanswered("a")
    faults.record_unanswered("b")
    assert set(turns(routing, routes, 8)) == {"a", "b"}


def test_elsewhere_is_a_queue_of_another_broker_if_there_is_one() -> None:
    routing, routes = routing_of(None, "a", "b", "c")
    (first, *_) = routing.queues(routes, "T")
    found = {routing.fallback(routes, first) for _ in range(12)}
    assert {queue.broker_name for queue in found if queue} == {"b", "c"}
    alone, routes = routing_of(None, "a")
    assert alone.fallback(routes, first) is None
