"""A lite pull consumer of a master and a slave: two embedded brokers that hold the same messages.

The embedded broker has no slaves of its own, so the route and the master's hint are put in here;
tests/interop/test_replicas.py does it on RocketMQ's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ordermq import LitePullConsumer, MessageQueue
from ordermq.broker import EmbeddedBroker
from ordermq.client.name_server_api import NameServerApi
from ordermq.config import BrokerConfig
from ordermq.consumer.fetch.fetcher import PullLoop
from ordermq.remoting.bodies import BrokerData, TopicRoute
from ordermq.remoting.command import Command
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import DEADLINE_S, eventually

QUEUES = [MessageQueue("orders", "b", number) for number in range(4)]
PATIENCE = {"route_interval_ms": 200, "pull_delay_on_error_ms": 50, "request_timeout_ms": 2_000}


class Replicas:
    """A master, its slave, what both answer whom to ask next, and who was asked."""

    def __init__(self, master: EmbeddedBroker, slave: EmbeddedBroker) -> None:
        self.brokers = [master, slave]
        self.addresses = {0: master.address, 1: slave.address}
        self.suggested = 1
        self.pulls: Counter[str] = Counter()

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
        plain_route, plain_pull = NameServerApi.topic_route, PullLoop._pull
        plain_answered = PullLoop.answered

        async def topic_route(self: NameServerApi, topic: str) -> TopicRoute | None:
            route = await plain_route(self, topic)
            if route is None:
                return None
            return replace(route, brokers=(BrokerData("b", found.addresses, "c"),))

        def pull(self: PullLoop) -> None:
            found.pulls[self._connection.address] += 1
            plain_pull(self)

        def answered(self: PullLoop, command: Command) -> None:
            if "suggestWhichBrokerId" in command.ext:
                command.ext["suggestWhichBrokerId"] = str(found.suggested)
            plain_answered(self, command)

        monkeypatch.setattr(NameServerApi, "topic_route", topic_route)
        monkeypatch.setattr(PullLoop, "_pull", pull)
        monkeypatch.setattr(PullLoop, "answered", answered)
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


def test_pulls_follow_the_hint_to_the_slave_and_back_and_commits_do_not(
    replicas: Replicas, consumer: LitePullConsumer
) -> None:
    master, slave = replicas.addresses.values()
    assert polled(consumer, 400) == list(range(400))
    assert replicas.pulls[master] == 4, "the first pull of each queue"
    assert replicas.pulls[slave] >= 36
    assert consumer.statistics["pulls_from_slaves"] >= 36
    consumer.commit()
    assert [consumer.committed(queue) for queue in QUEUES] == [100] * 4
    with closing(WireClient(replicas.brokers[1].port)) as client:
        assert [client.committed("g", "orders", number) for number in range(4)] == [None] * 4
    replicas.suggested = 0
    replicas.send(range(400, 440), range(400, 404))  # a slave lags
    assert polled(consumer, 40) == list(range(400, 440))
    assert replicas.pulls[master] >= 8


def test_a_consumer_reads_on_from_the_master_when_its_slave_is_gone(
    replicas: Replicas, consumer: LitePullConsumer
) -> None:
    assert polled(consumer, 400) == list(range(400))
    eventually(lambda: replicas.pulls[replicas.addresses[1]] >= 40, "the slave is asked")
    replicas.brokers[1].close()
    replicas.send(range(400, 440))
    assert polled(consumer, 40) == list(range(400, 440))
