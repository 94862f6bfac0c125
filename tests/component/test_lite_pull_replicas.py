"""A lite pull consumer of a master and a slave: two embedded brokers that hold the same messages.

The embedded broker has no slaves of its own, so the route and the hints of both are put in here;
tests/interop/test_replicas.py does it on RocketMQ's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from ordermq import LitePullConsumer, MessageQueue
from ordermq.broker import EmbeddedBroker
from ordermq.client.name_server_api import NameServerApi
from ordermq.config import BrokerConfig
from ordermq.remoting.bodies import BrokerData, TopicRoute
from ordermq.remoting.command import Command
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import DEADLINE_S, eventually
from tests.component.damaging_proxy import DamagingProxy

QUEUES = [MessageQueue("orders", "b", number) for number in range(4)]
MASTER, SLAVE = 0, 1
PATIENCE = {"route_interval_ms": 200, "pull_delay_on_error_ms": 50, "request_timeout_ms": 2_000}


class Replicas:
    """A master, its slave, and what both answer whom to ask next."""

    def __init__(self, master: EmbeddedBroker, slave: EmbeddedBroker) -> None:
        self.brokers = [master, slave]
        self.proxies = [DamagingProxy(broker.address, self._suggest) for broker in self.brokers]
        self.suggested = SLAVE

    def _suggest(self, command: Command) -> None:
        if "suggestWhichBrokerId" in command.ext:
            command.ext["suggestWhichBrokerId"] = str(self.suggested)

    def send(self, *numbers: range) -> None:
        """To the queues in turn: the first numbers to the master, the second to the slave."""
        for broker, own in zip(self.brokers, numbers, strict=False):
            with closing(WireClient(broker.port)) as client:
                for number in own:
                    client.send("orders", str(number).encode(), queue_id=number % 4)


@pytest.fixture
def replicas(
    broker: EmbeddedBroker,
    broker_config: BrokerConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Replicas]:
    with EmbeddedBroker(tmp_path / "slave.db", config=broker_config) as slave:
        found = Replicas(broker, slave)
        found.send(range(400), range(400))
        plain_route = NameServerApi.topic_route

        async def topic_route(self: NameServerApi, topic: str) -> TopicRoute | None:
            route = await plain_route(self, topic)
            if route is None:
                return None
            addresses = {number: proxy.address for number, proxy in enumerate(found.proxies)}
            return replace(route, brokers=(BrokerData("b", addresses, "c"),))

        monkeypatch.setattr(NameServerApi, "topic_route", topic_route)
        with ExitStack() as stack:
            for proxy in found.proxies:
                stack.enter_context(proxy)
            yield found


@pytest.fixture
def consumer(replicas: Replicas) -> Iterator[LitePullConsumer]:
    made = LitePullConsumer(
        "g",
        name_servers=replicas.brokers[0].name_servers,
        consume_from_where="first_offset",
        pull_batch_size=10,
        **PATIENCE,
    )
    made.subscribe("orders")
    with made:
        yield made


def polled(consumer: LitePullConsumer, count: int) -> list[int]:
    """The numbers of the next messages; fails unless there are so many."""
    got: list[int] = []
    end = time.monotonic() + DEADLINE_S
    while len(got) < count:
        if time.monotonic() > end:
            pytest.fail(f"not within {DEADLINE_S} s: {count} messages; got {len(got)}")
        got += [int(bytes(message.body)) for message in consumer.poll(100)]
    return sorted(got)


def pulls(consumer: LitePullConsumer) -> tuple[int, int]:
    """The numbers of pulls from the master, and from the slave."""
    from_slave = consumer.statistics["pulls_from_slaves"]
    return consumer.statistics["pulls"] - from_slave, from_slave


def test_pulls_follow_the_hint_to_the_slave_and_back_and_commits_do_not(
    replicas: Replicas, consumer: LitePullConsumer
) -> None:
    assert polled(consumer, 400) == list(range(400))
    assert pulls(consumer) == (4, 36), "the master is asked first, once for each queue"
    consumer.commit()
    assert [consumer.committed(queue) for queue in QUEUES] == [100] * 4
    with closing(WireClient(replicas.brokers[SLAVE].port)) as client:
        assert [client.committed("g", "orders", number) for number in range(4)] == [None] * 4
    replicas.suggested = MASTER
    replicas.send(range(400, 440), range(400, 404))  # a slave lags
    assert polled(consumer, 40) == list(range(400, 440))
    from_master, from_slave = pulls(consumer)
    assert (from_master >= 8, from_slave) == (True, 40)


def test_a_consumer_reads_on_from_the_slave_when_its_master_is_gone_under_held_pulls(
    replicas: Replicas, consumer: LitePullConsumer
) -> None:
    """A pull that fails has the queue's life looked at, which only the master can tell."""
    replicas.suggested = MASTER
    assert polled(consumer, 400) == list(range(400))
    fetcher = consumer._live().parts.fetcher
    eventually(lambda: all(map(fetcher.is_pulling, QUEUES)), "the master holds the next pulls")
    replicas.brokers[MASTER].close()
    replicas.suggested = SLAVE
    with closing(WireClient(replicas.brokers[SLAVE].port)) as client:
        for number in range(400, 440):
            client.send("orders", str(number).encode(), queue_id=number % 4)
    assert polled(consumer, 40) == list(range(400, 440))
    assert pulls(consumer)[1] >= 4


def test_a_consumer_reads_on_from_the_master_when_its_slave_is_gone(
    replicas: Replicas, consumer: LitePullConsumer
) -> None:
    assert polled(consumer, 400) == list(range(400))
    fetcher = consumer._live().parts.fetcher
    eventually(lambda: all(map(fetcher.is_pulling, QUEUES)), "the slave holds the next pulls")
    assert pulls(consumer) == (4, 36)
    replicas.brokers[SLAVE].close()
    replicas.send(range(400, 440))
    assert polled(consumer, 40) == list(range(400, 440))
