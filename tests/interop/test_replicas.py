"""A master and its slave: pulls follow the master's suggestion and survive it; locks do not."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq import LitePullConsumer, PushConsumer
from ordermq.errors import ConnectFailed, OrderMQError, RouteError
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command
from ordermq.remoting.connection import Connection
from ordermq.remoting.response_futures import ResponseFuture
from tests.interop.cluster import DEADLINE_S, Cluster, eventually
from tests.interop.own_cluster import own_cluster
from tests.interop.run import Run

pytestmark = pytest.mark.restarts
SLAVE = "broker-a-slave"
# Pulls aside: those of the engine pass no Python, and the slave counts what it delivers.
FOR_SLAVES = {RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT}


@pytest.fixture(scope="module")
def replicas(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """Start a master and a readable slave; every consumer with lag is sent to the slave."""
    folder = tmp_path_factory.mktemp("replicas") / "rocketmq"
    # The slave asks for topics once a minute: all are made at once.
    topics = [f"orders-{item.name}" for item in request.session.items if item.path == request.path]
    with own_cluster(
        cluster.version,
        folder,
        "--slave",
        slaveReadEnable="true",
        accessMessageInMemoryMaxRatio="0",
        registerNameServerPeriod="10000",
    ) as running:
        for topic in topics:
            running.put_topic(topic, {"broker-a": 4})
        running.wait_for_topics(SLAVE, topics)
        yield running


@pytest.fixture
def run(replicas: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    running = Run(replicas, tmp_path, request.node.name)
    yield running
    running.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """Collect the codes of requests by address, but for pulls."""
    found: dict[str, set[int]] = defaultdict(set)
    plain, plain_oneway = Connection.ask, Connection.send_oneway

    def ask(
        self: Connection, opaque: int, frame: bytes, waiting: ResponseFuture, timeout_ms: int
    ) -> bool:
        if waiting.code != RequestCode.PULL_MESSAGE:
            found[self.address].add(waiting.code)
        return plain(self, opaque, frame, waiting, timeout_ms)  # whether it was sent

    def send_oneway(self: Connection, command: Command) -> None:
        found[self.address].add(command.code)
        plain_oneway(self, command)

    monkeypatch.setattr(Connection, "ask", ask)
    monkeypatch.setattr(Connection, "send_oneway", send_oneway)
    return found


def wait_until_replicated(run: Run, count: int) -> None:
    """Wait until the slave has so many messages of the topic."""

    def stored() -> int:
        answers = [
            run.cluster.ask(
                SLAVE,
                RequestCode.GET_MAX_OFFSET,
                {"topic": run.topic, "queueId": str(queue_id), "committed": "true"},
            )
            for queue_id in range(4)
        ]
        return sum(int(answer.ext["offset"]) for answer in answers if answer.code == 0)

    eventually(lambda: stored() >= count, f"{count} messages at the slave")


def test_only_pulls_go_to_the_slave_and_only_while_the_master_suggests_it(
    run: Run, asked: dict[str, set[int]]
) -> None:
    run.send(400)
    wait_until_replicated(run, 400)
    before = run.cluster.delivered_by(SLAVE)
    member = run.member("one")
    run.wait_for_all()
    assert member.statistics["pulls_from_slaves"] > 0
    assert run.cluster.delivered_by(SLAVE) - before > 100
    with run.flow():
        run.wait_for_more(200, "one")  # at the head there is no need for the slave
    run.assert_sound()
    assert run.duplicates() == 0
    assert asked[run.cluster.addresses[SLAVE]] == FOR_SLAVES


def test_a_concurrent_group_reads_from_the_slave_while_its_master_is_down(
    run: Run, asked: dict[str, set[int]]
) -> None:
    run.send(400)
    wait_until_replicated(run, 400)
    gate, bodies = threading.Event(), set[bytes]()

    def listen(messages: Any, context: Any) -> None:
        gate.wait(DEADLINE_S)
        bodies.update(bytes(message.body) for message in messages)

    consumer = PushConsumer(
        run.group,
        name_servers=run.cluster.name_servers,
        consume_from_where="first_offset",
        pull_threshold_for_queue=8,
        commit_interval_ms=200,
    )
    consumer.subscribe(run.topic)
    consumer.concurrently(listen)
    with consumer:
        eventually(lambda: consumer.statistics["pulls"] >= 4, "every queue was pulled from")
        run.cluster.kill("broker-a")
        try:
            started = consumer.statistics["commits"]  # where each queue begins, if it was quick
            gate.set()
            eventually(lambda: len(bodies) == 400, "everything, from the slave")
            assert consumer.statistics["commits"] == started
        finally:
            run.cluster.start("broker-a")
        eventually(
            lambda: consumer.statistics["commits"] >= started + 4, "the master took the commits"
        )
        run.send(50)
        eventually(lambda: len(bodies) == 450, "what came after")
    assert asked[run.cluster.addresses[SLAVE]] == FOR_SLAVES


def test_a_lite_pull_consumer_reads_from_the_slave_while_its_master_is_down(
    run: Run, asked: dict[str, set[int]]
) -> None:
    run.send(400)
    wait_until_replicated(run, 400)
    before, bodies = run.cluster.delivered_by(SLAVE), set[bytes]()
    consumer = LitePullConsumer(
        run.group,
        name_servers=run.cluster.name_servers,
        consume_from_where="first_offset",
        auto_commit=False,
        pull_batch_size=8,
        pull_threshold_for_queue=8,
    )
    consumer.subscribe(run.topic)

    def poll_until(count: int) -> None:
        def got() -> int:
            bodies.update(bytes(message.body) for message in consumer.poll(100))
            return len(bodies)

        eventually(lambda: got() >= count, f"{count} messages")

    with consumer:
        poll_until(100)
        assert consumer.statistics["pulls_from_slaves"] > 0
        run.cluster.kill("broker-a")
        try:
            poll_until(400)
            with pytest.raises((ConnectFailed, RouteError)):
                consumer.commit()
        finally:
            run.cluster.start("broker-a")
        assert run.cluster.delivered_by(SLAVE) - before > 100
        eventually(lambda: has_committed(consumer), "the master takes the commit")
        run.send(50)
        poll_until(450)
    assert asked[run.cluster.addresses[SLAVE]] == FOR_SLAVES


def has_committed(consumer: LitePullConsumer) -> bool:
    try:
        consumer.commit()
    except OrderMQError:
        return False  # the route does not name the master yet, or the connection is a dead one
    return True


def test_an_orderly_group_waits_while_its_master_is_down_and_continues_with_it(run: Run) -> None:
    # Where no master is left at all, a send ends at once: the producer must not look meanwhile.
    run.producer_settings = {"route_interval_ms": 600_000}
    member = run.member("one")
    with run.flow():
        run.wait_for_more(100, "one")
        queues = run.cluster.route(run.topic)
        run.cluster.kill("broker-a")
        eventually(lambda: member.assigned_queues() == [], "no lock is trusted")
        run.broker_died("broker-a", queues)
        run.cluster.start("broker-a")
        run.wait_for_more(100, "one")
    run.assert_sound()
