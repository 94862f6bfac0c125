"""A route with addresses that no client can connect to: clients use what is left of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from ordermq import Message, Producer, PushConsumer
from ordermq.client.name_server_api import NameServerApi
from ordermq.remoting.bodies import BrokerData, QueueData, TopicRoute
from tests.component.conftest import Seen


@pytest.fixture
def bad_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each route has one more broker, which registered without its host."""
    asked = NameServerApi.topic_route

    async def topic_route(self: NameServerApi, topic: str) -> TopicRoute | None:
        found = await asked(self, topic)
        if found is None:
            return None
        # The first by name: whatever goes through the brokers in turn meets it first.
        brokers = (BrokerData("a-bad", {0: ":10911"}), *found.brokers)
        return replace(found, brokers=brokers, queues=(QueueData("a-bad", 2, 2), *found.queues))

    monkeypatch.setattr(NameServerApi, "topic_route", topic_route)


@pytest.mark.usefixtures("bad_broker")
def test_a_consumer_starts_with_the_brokers_that_are_left(
    producer: Producer,
    make_consumer: Callable[..., PushConsumer],
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    producer.send(Message("orders", b"before"), sharding_key="k")
    consumer = make_consumer(seen.take, heartbeat_interval_ms=10, route_interval_ms=10)
    beats = threading.Semaphore(0)
    consumer.start()
    assert consumer._member is not None
    heartbeats = consumer._member.client.heartbeats
    monkeypatch.setattr(heartbeats, "_describe", _counted(heartbeats._describe, beats))
    for _ in range(5):  # the loop goes on; it ended at its second round
        assert beats.acquire(timeout=20.0)
    producer.send(Message("orders", b"after"), sharding_key="k")
    seen.wait_for_count(2)
    assert seen.bodies_of("k") == [b"before", b"after"]
    assert consumer.statistics["internal_errors"] == 0
    skipped = [each for each in caplog.messages if "skipped addresses" in each]
    assert len([each for each in skipped if each.startswith("topic orders:")]) == 2, (
        "one of each client"
    )


def _counted(describe: Callable[[], object], beats: threading.Semaphore) -> Callable[[], object]:
    def counted() -> object:
        beats.release()
        return describe()

    return counted
