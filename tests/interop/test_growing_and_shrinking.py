"""A broker is added under load, another one is drained and removed for good, as an operator does it
(docs/internals/semantics.md#routes)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordermq.model.message_queue import MessageQueue
from tests.interop.cluster import Cluster, eventually
from tests.interop.ordered_flow import OrderedFlow
from tests.interop.own_cluster import own_cluster
from tests.interop.run import Run, is_javas

pytestmark = [pytest.mark.restarts, pytest.mark.timeout(600)]  # Java looks at routes every 30 s
WIPE_WRITE_PERM_OF_BROKER = 205  # of a name server: mqadmin wipeWritePerm
QUEUES = 4
FORGET_MS = 5_000


@pytest.fixture
def growing(cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers, of which the third one does not run yet."""
    with own_cluster(
        cluster.version,
        tmp_path / "rocketmq",
        "--brokers=3",
        registerNameServerPeriod="10000",
    ) as running:
        running.kill("broker-c")
        yield running


@pytest.fixture
def run(growing: Cluster, tmp_path: Path) -> Iterator[Run]:
    running = Run(growing, tmp_path, "growing")
    yield running
    running.close()


def queues_of(run: Run, *brokers: str) -> set[MessageQueue]:
    return {MessageQueue(run.topic, name, number) for name in brokers for number in range(QUEUES)}


def wait_for_every_queue(run: Run, *brokers: str) -> None:
    """Wait until some member is given messages of each queue, sent after now: none is orphaned."""
    before, wanted = len(run.deliveries), queues_of(run, *brokers)
    run.wait_for(
        lambda seen: {delivery.queue for delivery in seen[before:]} >= wanted,
        f"deliveries of all {len(wanted)} queues",
        deadline_s=120.0,
    )


def test_a_broker_is_added_and_another_removed_under_load(run: Run) -> None:
    cluster = run.cluster
    cluster.put_topic(run.topic, {"broker-a": QUEUES, "broker-b": QUEUES})
    run.producer_settings = {"route_interval_ms": 500}
    settings = {"forget_broker_after_ms": FORGET_MS}
    ours = [run.member(name, **settings) for name in ("one", "two")]
    java = run.java_member("java")
    with OrderedFlow(run) as flow:
        run.wait_for_more(100, "java")
        wait_for_every_queue(run, "broker-a", "broker-b")
        # One more.
        cluster.start("broker-c")
        brokers = ("broker-a", "broker-b", "broker-c")
        cluster.put_topic(run.topic, dict.fromkeys(brokers, QUEUES))
        eventually(lambda: flow.changes == 1, "a producer with the new queues", 120.0)
        wait_for_every_queue(run, "broker-a", "broker-b", "broker-c")
        # One less: no writes any more, all of it read, stopped.
        answer = cluster.ask("name-server", WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-b"})
        assert answer.code == 0, answer.remark
        eventually(lambda: flow.changes == 2, "a producer without broker-b", 120.0)
        clients = [member._member.client for member in ours]  # type: ignore[union-attr]
        assert all(client.routes.is_expected(cluster.addresses["broker-b"]) for client in clients)
        cluster.stop("broker-b")
        eventually(
            lambda: (
                not any(
                    queue.broker_name == "broker-b"
                    for member in ours
                    for queue in member.assigned_queues()
                )
            ),
            "its queues are given up",
        )
        wait_for_every_queue(run, "broker-a", "broker-c")
        for client in clients:
            address = cluster.addresses["broker-b"]
            eventually(lambda: not client.routes.is_expected(address), "it is forgotten")  # noqa: B023
            assert not client.connections.is_open(address)
            assert client.routes.masters() == sorted(
                cluster.addresses[name] for name in ("broker-a", "broker-c")
            )
    assert not flow.failures
    run.wait_for_all()
    java.leave()
    for name in ("one", "two"):
        began = time.monotonic()
        run.leave(name)
        assert time.monotonic() - began < 10
    assert_in_order(run)
    for violation in run.finish().violations:
        # What Java had done and not committed when its broker stopped comes to ours again.
        is_own = violation.invariant == "I5" and is_javas(violation)
        assert violation.invariant == "I9" or is_own, str(violation)


def assert_in_order(run: Run) -> None:
    """Assert the order of each key over all brokers, as the members got the first copies."""
    last: dict[str | None, int] = {}
    places: set[tuple[MessageQueue, int]] = set()
    for delivery in run.deliveries:
        if (delivery.queue, delivery.offset) in places:
            continue
        places.add((delivery.queue, delivery.offset))
        number = int(delivery.body)
        assert number > last.get(delivery.key, -1), f"{delivery.key}: {number} after {last}"
        last[delivery.key] = number
    assert sum(1 for _ in places) == run.sent
