"""SQL92 conditions on RocketMQ; the embedded broker does not support them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ordermq import Message, PushConsumer
from ordermq.clock import SystemClock
from ordermq.errors import BrokerError
from ordermq.remoting.codes import ResponseCode
from tests.interop.cluster import Cluster, eventually
from tests.interop.run import MEMBER_SETTINGS, Run

_UPDATE_BROKER_CONFIG = 25


def set_property_filter(cluster: Cluster, is_on: bool) -> None:
    text = f"enablePropertyFilter={str(is_on).lower()}\n".encode()
    for broker in ("broker-a", "broker-b"):
        assert cluster.ask(broker, _UPDATE_BROKER_CONFIG, {}, text).code == 0


@pytest.fixture
def filtering(cluster: Cluster) -> Iterator[None]:
    set_property_filter(cluster, True)
    yield
    set_property_filter(cluster, False)


def send(run: Run, numbers: range) -> None:
    for number in numbers:
        properties = {"a": str(number % 10), "region": "north" if number % 2 else "south"}
        message = Message(run.topic, str(number).encode(), properties=properties)
        run.producer.send(message, sharding_key=f"k{number % 16}")


class Got:
    """Messages that a listener got."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.numbers: list[int] = []

    def take(self, messages: Any, context: Any) -> None:
        with self._lock:
            self.numbers += [int(bytes(message.body)) for message in messages]


@pytest.mark.parametrize("mode", ["orderly", "concurrent"])
def test_a_broker_filters_by_sql_and_the_condition_may_change_at_run_time(
    run: Run, filtering: None, mode: str
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2, "broker-b": 2})
    send(run, range(100))
    got = Got()
    consumer = PushConsumer(run.group, name_servers=run.cluster.name_servers, **MEMBER_SETTINGS)
    consumer.subscribe(run.topic, sql="a > 5 AND region = 'north'")
    (consumer.orderly if mode == "orderly" else consumer.concurrently)(got.take)
    first = {number for number in range(100) if number % 10 > 5 and number % 2}
    with consumer:
        eventually(lambda: set(got.numbers) == first, "what satisfies the condition")
        held = consumer._live()._rebalancer.assigned
        eventually(
            lambda: sum(a.committed_offset for a in held() if a.queue.topic == run.topic) == 100,
            "what does not is passed and committed too",
        )
        consumer.subscribe(run.topic, sql="a BETWEEN 2 AND 3")
        send(run, range(100, 150))
        second = {number for number in range(100, 150) if number % 10 in (2, 3)}
        eventually(lambda: set(got.numbers) == first | second, "the other condition's")
    assert len(got.numbers) == len(set(got.numbers))


class Ahead(SystemClock):
    """The clock of a machine that is an hour ahead of the others."""

    def wall_ms(self) -> int:
        return super().wall_ms() + 3_600_000


def test_a_condition_of_a_clock_that_was_ahead_filters_nobody_else(
    run: Run, filtering: None
) -> None:
    """Brokers keep the condition with the greatest version, a time, for a day."""
    run.cluster.put_topic(run.topic, {"broker-a": 1})

    def consume(clock: SystemClock, limit: int) -> None:
        got, wanted = Got(), list(range(limit + 1, 10))
        servers = run.cluster.name_servers
        consumer = PushConsumer(run.group, name_servers=servers, clock=clock, **MEMBER_SETTINGS)
        consumer.subscribe(run.topic, sql=f"a > {limit}")
        consumer.orderly(got.take)
        with consumer:
            send(run, range(10))
            eventually(lambda: sorted(got.numbers) == wanted, f"what is above {limit}")

    consume(Ahead(), 5)
    consume(SystemClock(), 1)


def test_an_sql_condition_that_a_broker_rejects_is_refused_at_the_start(
    run: Run, cluster: Cluster
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1, "broker-b": 1})

    def started(condition: str) -> BrokerError:
        consumer = PushConsumer(run.group, name_servers=cluster.name_servers)
        consumer.subscribe(run.topic, sql=condition)
        consumer.orderly(lambda messages, context: None)
        with pytest.raises(BrokerError) as raised:
            consumer.start()
        return raised.value

    set_property_filter(cluster, False)
    assert "enablePropertyFilter=true in their broker.conf" in str(started("a > 5"))
    set_property_filter(cluster, True)
    try:
        refused = started("a >")
    finally:
        set_property_filter(cluster, False)
    assert refused.response_code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "'a >'" in str(refused)
