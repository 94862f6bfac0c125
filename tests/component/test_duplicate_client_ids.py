"""Two live clients under one client id: one of them leaves, and says why."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from ordermq import LitePullConsumer, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import Seen, eventually

ID = "10.0.0.1@copied"


def same_id(*_: object, **__: object) -> str:
    return ID


@pytest.fixture(autouse=True)
def one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every consumer the id of a process that was copied, as with its machine."""
    for kind in ("push", "lite_pull"):
        monkeypatch.setattr(f"ordermq.consumer.{kind}_consumer.new_client_id", same_id)


def push(broker: EmbeddedBroker, listener: Callable[..., Any], how: str) -> PushConsumer:
    consumer = PushConsumer("g", name_servers=broker.name_servers, rebalance_interval_ms=200)
    consumer.subscribe("orders")
    getattr(consumer, how)(listener)
    return consumer


def reasons(consumer: PushConsumer | LitePullConsumer) -> str:
    health = consumer.health()
    return "" if health.is_ready else "; ".join(health.reasons)


@pytest.mark.parametrize("how", ["orderly", "concurrently"])
def test_the_second_client_under_one_id_consumes_nothing_and_says_so(
    broker: EmbeddedBroker, seen: Seen, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    others: list[Any] = []
    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"makes the topic"))
        first = push(broker, seen.take, how)
        with first:
            eventually(lambda: len(first.assigned_queues()) > 0, "the first one has queues")
            second = push(broker, lambda messages, _: others.extend(messages), how)
            with second:
                eventually(lambda: "is in use by another live client" in reasons(second), "it says")
                assert f"client id '{ID}'" in reasons(second)
                assert "consumes nothing until that one is gone" in reasons(second)
                for number in range(50):
                    producer.send(Message("orders", b"%d" % number), sharding_key=f"k{number}")
                seen.wait_for_count(50)
                assert second.assigned_queues() == []
                first.close()
                # The other one is gone: this one takes over, under the same id.
                eventually(lambda: second.health().is_ready, "it is ready again")
                producer.send(Message("orders", b"late"), sharding_key="k")
                eventually(lambda: len(others) > 0, "it consumes")
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "is in use by another live client, at 127.0.0.1:" in errors[0].getMessage()


def test_a_member_whose_id_another_client_takes_later_steps_down(
    broker: EmbeddedBroker, seen: Seen
) -> None:
    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"makes the topic"))
    with push(broker, seen.take, "orderly") as member:
        eventually(lambda: len(member.assigned_queues()) > 0, "it has queues")
        # A client of another kind, which looks for nobody.
        with WireClient(broker.port, ID) as other:
            other.heartbeat("g", {"orders": "*"})
            eventually(lambda: member.assigned_queues() == [], "it has given them up")
            assert "is in use by another live client" in reasons(member)
        eventually(lambda: len(member.assigned_queues()) > 0, "it has them again")
        eventually(lambda: reasons(member) == "", "it is ready again")


def test_a_member_that_reconnects_is_no_second_one(broker: EmbeddedBroker, seen: Seen) -> None:
    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"makes the topic"))
    with push(broker, seen.take, "orderly") as member:
        eventually(lambda: len(member.assigned_queues()) > 0, "it has queues")
        member_session = member._member
        assert member_session is not None
        connections = member_session.client.connections
        for count in range(2, 5):
            for connection in list(connections._open.values()):
                member_session.client.runtime.post(connection.abort, ConnectionError("cut"))
            eventually(
                lambda: len(connections.own(broker.address)) >= count,  # noqa: B023
                "it is connected again",
            )
        eventually(lambda: len(member.assigned_queues()) > 0, "it has queues")
        assert "is in use" not in reasons(member)


def test_refused_lock_requests_are_a_reason_not_to_be_ready(
    broker: EmbeddedBroker, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ordermq.consumer.group.membership import Membership

    async def cannot_look(_: object) -> bool:
        return True  # as where the account may not list connections

    monkeypatch.setattr(Membership, "is_only_one", cannot_look)
    with Producer("shop", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"makes the topic"))
    with (
        push(broker, seen.take, "orderly") as first,
        push(broker, seen.take, "orderly") as second,
    ):
        eventually(lambda: "lock requests are refused" in reasons(second), "it says so")
        assert "is in use by another live client" in reasons(second)
        assert reasons(first) == ""
