"""Two members of one group in one process: a warning, unless they are meant (docs/notebooks.md)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ordermq import AsyncConsumer, LitePullConsumer, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker

WARNING = "this process has another member of it already"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Any:
    return lambda: [each.getMessage() for each in caplog.records if WARNING in each.getMessage()]


def push(broker: EmbeddedBroker, group: str = "g", topic: str = "orders", **more: Any) -> Any:
    consumer = PushConsumer(group, name_servers=broker.name_servers, **more)
    consumer.subscribe(topic)
    consumer.orderly(lambda messages, context: None)
    return consumer


def test_a_second_member_of_a_group_is_told_of_the_first(broker: EmbeddedBroker, told: Any) -> None:
    with push(broker) as first:
        assert told() == []
        with push(broker):
            (line,) = told()
            assert line.startswith(f"group g: {WARNING}, {first.client_id}: they share the queues")
            assert "close() the first" in line
    with push(broker):
        assert len(told()) == 1, "the others have left"


@pytest.mark.parametrize(
    "second",
    [
        {"group": "other"},
        {"topic": "refunds"},
        {"instance_name": "b"},
        {"message_model": "broadcasting", "local_offset_store_dir": "."},
    ],
    ids=str,
)
def test_members_that_share_nothing_or_are_meant_are_not_told(
    broker: EmbeddedBroker,
    told: Any,
    second: dict[str, Any],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with push(broker, instance_name="a"), push(broker, **second):
        assert told() == []


def test_members_that_poll_and_of_asyncio_are_told_too(broker: EmbeddedBroker, told: Any) -> None:
    async def consume() -> None:
        async with AsyncConsumer("g", "orders", name_servers=broker.name_servers):
            pass

    with LitePullConsumer("g", name_servers=broker.name_servers) as polling:
        polling.subscribe("orders")
        asyncio.run(consume())
        (line,) = told()
        assert polling.client_id in line
        with push(broker) as first:
            assert len(told()) == 2
            # One that joins without a topic, as pollers do, is told once it has one; once.
            with LitePullConsumer("g", name_servers=broker.name_servers) as late:
                assert len(told()) == 2
                late.subscribe("orders")
                late.subscribe("orders", "paid")
                assert len(told()) == 3
                assert first.client_id in told()[-1]
                assert polling.client_id in told()[-1]


def test_a_consumer_with_assigned_queues_shares_nothing(broker: EmbeddedBroker, told: Any) -> None:
    with Producer("p", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"makes the topic"))
    with push(broker), LitePullConsumer("g", name_servers=broker.name_servers) as assigned:
        assigned.assign(assigned.fetch_message_queues("orders"))
        assert told() == []
