"""Refusals that only an admin can end, as RocketMQ makes them, and what a member says of them
(docs/internals/semantics.md#refusals)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator

import pytest

from tests.interop.cluster import Cluster, eventually
from tests.interop.run import Run

_UPDATE_BROKER_CONFIG, _PUT_GROUP = 25, 200
QUEUES = {"broker-a": 1, "broker-b": 1}


def of_brokers(cluster: Cluster, code: int, body: bytes) -> None:
    for broker in QUEUES:
        assert cluster.ask(broker, code, {}, body).code == 0


def put_group(cluster: Cluster, group: str, **settings: object) -> None:
    whole = {
        "groupName": group, "consumeEnable": True, "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16, "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": True, **settings,
    }  # fmt: skip
    of_brokers(cluster, _PUT_GROUP, json.dumps(whole).encode())


@pytest.fixture
def known_groups_only(cluster: Cluster) -> Iterator[None]:
    of_brokers(cluster, _UPDATE_BROKER_CONFIG, b"autoCreateSubscriptionGroup=false\n")
    try:
        yield
    finally:
        of_brokers(cluster, _UPDATE_BROKER_CONFIG, b"autoCreateSubscriptionGroup=true\n")


def assert_refused_until(
    run: Run, caplog: pytest.LogCaptureFixture, words: tuple[str, ...], mend: Callable[[], None]
) -> None:
    """Check what a member says while it is refused, and that it gets all once that has ended."""
    run.cluster.put_topic(run.topic, QUEUES)
    run.send(20)
    caplog.set_level(logging.INFO, "ordermq")
    consumer = run.member("one")
    eventually(lambda: consumer.health().reasons, "it is not ready")
    health = consumer.health()
    assert not health.is_ready
    for word in words:
        assert word in health.reasons[0]
    assert "signed" not in health.reasons[0]
    said = [each for each in caplog.records if each.levelno >= logging.WARNING]
    # A line for each of the two brokers, where each refuses pulls of its own.
    assert 1 <= len(said) <= 2, [each.getMessage() for each in said]
    assert all(word in said[0].getMessage() for word in words)
    assert caplog.text.count("does not list this member") <= 1
    mend()
    run.wait_for_all()
    eventually(lambda: consumer.health().is_ready, "it is ready")


def test_a_group_that_brokers_neither_know_nor_create(
    run: Run, caplog: pytest.LogCaptureFixture, known_groups_only: None
) -> None:
    words = "autoCreateSubscriptionGroup=false", "mqadmin updateSubGroup"
    assert_refused_until(run, caplog, words, lambda: put_group(run.cluster, run.group))


def test_a_group_that_may_not_consume(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    put_group(run.cluster, run.group, consumeEnable=False)
    words = "consumeEnable=false", "have an admin enable it"
    assert_refused_until(run, caplog, words, lambda: put_group(run.cluster, run.group))
