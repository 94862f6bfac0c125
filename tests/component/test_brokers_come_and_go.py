"""Brokers that are added, moved and decommissioned under a running group
(docs/internals/semantics.md#routes)."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import OrderingError, OrderMQError, RouteError
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import Seen, eventually
from tests.component.name_server import NameServer

TOPIC, QUEUES = "orders", 4
FORGET_MS = 1_000
TIMES: dict[str, Any] = {"route_interval_ms": 50, "forget_broker_after_ms": FORGET_MS}


class Cluster:
    """Embedded brokers that come and go under one name server, and a group on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = NameServer()
        self.brokers: dict[str, EmbeddedBroker] = {}
        self.consumers: list[PushConsumer] = []
        self._open = contextlib.ExitStack()

    def start(self, name: str, port: int = 0, *, is_listed: bool = True) -> EmbeddedBroker:
        """Start a broker, or start it again with its data, and register it."""
        config = BrokerConfig(broker_name=name, durability="os", lock_max_live_ms=20_000)
        path = self.folder / f"{name}.db"
        broker = self._open.enter_context(EmbeddedBroker(path, port=port, config=config))
        self.brokers[name] = broker
        if is_listed:
            self.names.register(name, broker, TOPIC, QUEUES)
        return broker

    def stop(self, name: str) -> None:
        self.brokers.pop(name).close()
        self.names.forget(name)

    def producer(self, **settings: Any) -> Producer:
        settings = TIMES | {"retry_times": 50} | settings
        return self._open.enter_context(Producer("p", name_servers=self.names.address, **settings))

    def consumer(self, listener: Any, *, concurrent: bool = False, **settings: Any) -> PushConsumer:
        settings = (
            TIMES | {"consume_from_where": "first_offset", "commit_interval_ms": 50} | settings
        )
        consumer = PushConsumer("g", name_servers=self.names.address, **settings)
        consumer.subscribe(TOPIC)
        (consumer.concurrently if concurrent else consumer.orderly)(listener)
        consumer.start()
        self.consumers.append(consumer)
        return consumer

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close(5.0)
        self._open.close()
        self.names.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path)
    yield running
    running.close()


def held(consumer: PushConsumer) -> set[str]:
    """The brokers of the queues of the topic that a member holds."""
    return {queue.broker_name for queue in consumer.assigned_queues() if queue.topic == TOPIC}


def numbers(seen: Seen) -> dict[str, list[int]]:
    """The numbers of each key in the order of their first delivery."""
    found: dict[str, list[int]] = {}
    for _, _, key, body in list(seen.deliveries):
        of_key = found.setdefault(str(key), [])
        if int(body) not in of_key:
            of_key.append(int(body))
    return found


def send(producer: Producer, numbered: range, keys: int = 8) -> None:
    for number in numbered:
        producer.send(Message(TOPIC, str(number).encode()), sharding_key=f"k{number % keys}")


@pytest.mark.parametrize("concurrent", [False, True])
def test_close_waits_for_no_decommissioned_broker_and_blames_no_listener(
    cluster: Cluster, seen: Seen, caplog: pytest.LogCaptureFixture, concurrent: bool
) -> None:
    # The last message of each queue is done, and its commit due, when the broker is gone.
    is_gone = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        seen.take(messages, context)
        if int(messages[-1].body) >= 72:
            assert is_gone.wait(20)

    cluster.start("a")
    cluster.start("b")
    consumer = cluster.consumer(listen, concurrent=concurrent, commit_interval_ms=600_000)
    send(cluster.producer(), range(80))
    seen.wait_for_count(80)
    cluster.stop("b")
    is_gone.set()
    began = time.monotonic()
    assert consumer.close(90.0)
    assert time.monotonic() - began < 45, "it waited for the broker that has gone"
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert "batches in progress" not in told
    # Queues that were idle for a moment have committed what was done by then.
    given_up = r"offset 10 is not committed, only \d is: no master of its broker is in a route"
    assert len(re.findall(given_up, told)) == 4


def test_a_decommissioned_broker_is_forgotten(cluster: Cluster, seen: Seen) -> None:
    cluster.start("a")
    b = cluster.start("b")
    consumer = cluster.consumer(seen.take, heartbeat_interval_ms=100)
    producer = cluster.producer()
    send(producer, range(40))
    seen.wait_for_count(40)
    assert held(consumer) == {"a", "b"}
    cluster.stop("b")
    eventually(lambda: held(consumer) == {"a"}, "its queues are given up")
    client = consumer._member.client  # type: ignore[union-attr]
    assert producer._client is not None
    for each in (client, producer._client):
        eventually(
            lambda each=each: not each.routes.is_expected(b.address),  # type: ignore[misc]
            "it is forgotten",
        )
    # Somebody else listens there now: nothing of ours may arrive.
    with socket.create_server(("127.0.0.1", b.port)) as other:
        other.settimeout(1.0)
        with pytest.raises(TimeoutError):
            other.accept()
    assert b.address not in client.outages.ongoing
    with pytest.raises(RouteError, match="in no route for 1 s"):
        for key in range(100):
            producer.send(Message(TOPIC, b"x"), sharding_key=f"other-{key}")


def test_a_broker_that_is_back_under_its_name_at_another_address_is_followed(
    cluster: Cluster, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.start("a")
    before = cluster.start("b").address
    consumer = cluster.consumer(seen.take)
    producer = cluster.producer()
    send(producer, range(80))
    stop = threading.Event()
    sent = [80]

    def flow() -> None:
        while not stop.is_set():
            send(producer, range(sent[0], sent[0] + 8))
            sent[0] += 8

    thread = threading.Thread(target=flow)
    thread.start()
    try:
        seen.wait_for_count(160)
        cluster.brokers.pop("b").close()
        after = cluster.start("b")  # with its data, at another port; never missing in the route
        assert after.address != before
        eventually(lambda: after.statistics.messages_stored > 20, "sends follow")
    finally:
        stop.set()
        thread.join()
    seen.wait_for(lambda _: sum(map(len, numbers(seen).values())) == sent[0], "all are consumed")
    for key, got in numbers(seen).items():
        assert got == sorted(got), f"{key} out of order"
    assert consumer.statistics["leases_lost"] >= 4
    assert any("has another address now" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("how", ["rest", "unsubscribe", "close"])
def test_a_member_that_leaves_is_listed_by_no_broker_that_is_just_back(
    cluster: Cluster, seen: Seen, how: str
) -> None:
    """Its queues would be nobody's for as long as its heartbeats go on."""
    port = cluster.start("a").port
    is_held, let_go = threading.Event(), threading.Event()

    def listen(messages: Any, context: Any) -> None:
        is_held.set()
        let_go.wait(60)

    with contextlib.ExitStack() as at_end:
        at_end.callback(let_go.set)
        first = cluster.consumer(listen if how == "close" else seen.take)
        second = cluster.consumer(seen.take)
        ids = {first.client_id, second.client_id}
        if how == "close":  # it unregisters first, and its listener goes on
            send(cluster.producer(), range(64))
            assert is_held.wait(10)
        cluster.stop("a")
        broker = cluster.start("a", port, is_listed=False)
        direct = at_end.enter_context(WireClient(broker.port))
        eventually(lambda: set(direct.members("g")) == ids, "both are registered again")
        if how == "close":
            closing = threading.Thread(target=first.close, args=(30.0,))
            closing.start()
            at_end.callback(closing.join)
            at_end.callback(let_go.set)
        elif how == "rest":
            first.pause(release=True)
        else:
            first.unsubscribe(TOPIC)
        eventually(lambda: direct.members("g") == [second.client_id], "it has left the list")


def test_a_group_and_a_producer_follow_brokers_that_are_added_and_removed_under_load(
    cluster: Cluster, seen: Seen
) -> None:
    cluster.start("a")
    cluster.start("b")
    members = [cluster.consumer(seen.take) for _ in range(2)]
    producer = cluster.producer(allow_queue_change=True)
    stop, sent = threading.Event(), [0]
    failures: list[OrderMQError] = []

    def flow() -> None:
        try:
            while not stop.is_set():
                send(producer, range(sent[0], sent[0] + 16))
                sent[0] += 16
        except OrderMQError as error:
            failures.append(error)

    thread = threading.Thread(target=flow)
    thread.start()
    try:
        seen.wait_for_count(200)
        c = cluster.start("c")
        eventually(lambda: set.union(*map(held, members)) == {"a", "b", "c"}, "c is shared")
        eventually(lambda: c.statistics.messages_stored > 50, "c is written to")
        # As an operator removes a broker: no more writes, wait until it is drained, stop it.
        b = cluster.brokers["b"]
        cluster.names.register("b", b, TOPIC, QUEUES, writable=False)
        last = (-1, 0)  # stored at b, and sent by then

        def is_still() -> bool:
            nonlocal last
            if b.statistics.messages_stored != last[0]:
                last = b.statistics.messages_stored, sent[0]
            return sent[0] > last[1] + 200

        eventually(is_still, "b is not written to any more")
        eventually(
            lambda: all(
                lag == 0
                for member in members
                for queue, lag in member.statistics.behind().items()
                if queue.broker_name == "b"
            ),
            "b is drained",
        )
        cluster.stop("b")
        eventually(lambda: set.union(*map(held, members)) == {"a", "c"}, "b is given up")
        before = len(seen.deliveries)
        seen.wait_for_count(before + 200)
    finally:
        stop.set()
        thread.join()
    assert not failures
    seen.wait_for(lambda _: sum(map(len, numbers(seen).values())) == sent[0], "all are consumed")
    for member in members:
        assert member.close(10.0)


def test_a_producer_of_keys_is_told_that_a_broker_is_being_withdrawn(cluster: Cluster) -> None:
    cluster.start("a")
    b = cluster.start("b")
    producer = cluster.producer()
    send(producer, range(16))
    cluster.names.register("b", b, TOPIC, QUEUES, writable=False)

    def is_told() -> bool:
        try:
            send(producer, range(16))
        except OrderingError:
            return True
        return False

    eventually(is_told, "the error")
