"""Timed messages and recall: ordermq on RocketMQ, Java's client on the embedded broker.

ci/interop.sh enables recall at the brokers; it is off by default.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordermq import Message
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import BrokerError
from tests.interop.cluster import Cluster
from tests.interop.java_process import JavaProcess
from tests.interop.run import Run

BROKERS = {"broker-a": 2, "broker-b": 2}
HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def has_timers(cluster: Cluster) -> bool:
    return not cluster.version.startswith("4.")


def test_rocketmq_delivers_timed_messages_when_due_or_the_send_is_refused(run: Run) -> None:
    run.cluster.put_topic(run.topic, BROKERS)
    run.member("m")
    due_ms = now_ms() + 4_000
    timed = [
        Message(run.topic, b"at", deliver_at_ms=due_ms), Message(run.topic, b"in", delay_ms=4_000),
    ]  # fmt: skip
    if not has_timers(run.cluster):
        for message in timed:
            with pytest.raises(BrokerError, match="older than RocketMQ 5"):
                run.producer.send(message)
        return
    for message in timed:
        run.producer.send(message)
    run.producer.send(Message(run.topic, b"now"))
    run.wait_for(lambda seen: len(seen) == 3, "three messages")
    assert run.deliveries[0].body == b"now"
    # RocketMQ's timers go by the second, and a message is due within it.
    assert now_ms() >= due_ms - 1_000


def test_rocketmq_recalls_a_timed_message(run: Run) -> None:
    if not has_timers(run.cluster):
        return
    run.cluster.put_topic(run.topic, BROKERS)
    run.member("m")
    kept = run.producer.send(Message(run.topic, b"kept", delay_ms=6_000))
    gone = run.producer.send(Message(run.topic, b"gone", delay_ms=5_000))
    assert gone.recall_handle is not None
    assert kept.recall_handle is not None
    assert run.producer.recall(run.topic, gone.recall_handle) == gone.message_id
    run.wait_for(lambda seen: len(seen) == 1, "the other message")
    assert [delivery.body for delivery in run.deliveries] == [b"kept"]
    with pytest.raises(BrokerError, match="timestamp"):
        run.producer.recall(run.topic, gone.recall_handle)


# -- RocketMQ's client on the embedded broker ----------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    config = BrokerConfig(broker_name="embedded", durability="os")
    with EmbeddedBroker(tmp_path / "broker.db", config=config) as running:
        yield running


def test_the_embedded_broker_delivers_and_recalls_javas_timed_messages(
    cluster: Cluster, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    java = JavaProcess(cluster.version, "TimedSender", tmp_path, name_servers=broker.name_servers)
    try:
        sent = java.ask(f"orders {HOUR_MS}")
        assert broker.statistics.timed_messages == 1
        if sent["handle"] is None:  # clients before 5.3.2 know of no recall
            assert tuple(map(int, cluster.version.split("."))) < (5, 3, 2)
            return
        assert java.ask(f"orders {sent['handle']}")["recalled"] == sent["id"]
        assert broker.statistics.timed_messages == 0
    finally:
        java.kill()
