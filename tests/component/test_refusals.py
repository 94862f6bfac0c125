"""Refusals: one WARNING that names cause and remedy, the same words in health(), and a back-off
(docs/internals/semantics.md#refusals)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from ordermq import Message, Producer, PushConsumer, json_text
from ordermq.broker import EmbeddedBroker, server
from ordermq.broker.connection import RequestRefused
from ordermq.errors import BrokerError, OrderingError, RouteError
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.rare_headers import CreateTopicHeader
from tests.component.conftest import Seen, eventually


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def ask(producer: Producer, broker: EmbeddedBroker, command: Command) -> None:
    """Make a request of an admin tool."""
    client = producer._client
    assert client is not None
    work = client.connections.request(broker.address, command, 10_000)
    assert client.call(work, 20.0).code == ResponseCode.SUCCESS


def allow(producer: Producer, broker: EmbeddedBroker, group: str, enabled: bool) -> None:
    body = json_text.dumps({"groupName": group, "consumeEnable": enabled})
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    ask(producer, broker, Command.request(code, body=body))


def consumer_of(broker: EmbeddedBroker, seen: Seen, **settings: Any) -> PushConsumer:
    consumer = PushConsumer(
        "g", name_servers=broker.name_servers, consume_from_where="first_offset", **settings
    )
    consumer.subscribe("orders")
    consumer.orderly(seen.take)
    return consumer


def test_a_group_that_brokers_do_not_create_is_named(
    broker: EmbeddedBroker,
    producer: Producer,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As RocketMQ 5 does with autoCreateSubscriptionGroup=false: heartbeats are acknowledged, and
    # nobody is registered.
    exists, beats = [False], [0]
    handlers = dict(server.HANDLERS)

    def heartbeat(context: Any, connection: Any, request: Any) -> None:
        beats[0] += 1
        if exists[0]:
            handlers[RequestCode.HEART_BEAT](context, connection, request)
        else:
            connection.reply(request, ResponseCode.SUCCESS)

    def one_group(context: Any, connection: Any, request: Any) -> None:
        if exists[0]:
            handlers[RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG](context, connection, request)
        else:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group")

    monkeypatch.setitem(server.HANDLERS, RequestCode.HEART_BEAT, heartbeat)
    monkeypatch.setitem(server.HANDLERS, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, one_group)
    caplog.set_level("INFO", "ordermq.consumer")
    producer.send(Message("orders", b"1"), sharding_key="k")
    with consumer_of(broker, seen, lock_retry_ms=10) as consumer:
        eventually(lambda: bool(consumer.health().reasons), "it is not ready")
        eventually(lambda: beats[0] > 5, "it tries on")
        health = consumer.health()
        assert not health.is_ready
        (reason,) = health.reasons
        assert f"{broker.address} does not know the group" in reason
        assert "autoCreateSubscriptionGroup=false" in reason
        assert "mqadmin updateSubGroup -g g" in reason
        (warning,) = warnings_of(caplog)
        assert reason.partition(": ")[2] in warning
        assert caplog.text.count("does not list this member") == 1
        exists[0] = True
        seen.wait_for_count(1)
        eventually(lambda: consumer.health().is_ready, "it is ready again")


def test_a_refused_heartbeat_is_not_taken_for_a_group_that_brokers_do_not_create(
    broker: EmbeddedBroker,
    producer: Producer,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As after a restart of a broker that knows no group yet, with another policy for the account.
    beats = [0]
    heartbeat = server.HANDLERS[RequestCode.HEART_BEAT]

    def refuse(context: Any, connection: Any, request: Any) -> None:
        beats[0] += 1
        if beats[0] == 1:  # of `start`, which would raise it
            connection.reply(request, ResponseCode.SUCCESS)
        elif beats[0] < 12:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "account 'm' has no permission")
        else:
            heartbeat(context, connection, request)

    monkeypatch.setitem(server.HANDLERS, RequestCode.HEART_BEAT, refuse)
    producer.send(Message("orders", b"1"), sharding_key="k")
    with consumer_of(broker, seen, lock_retry_ms=10) as consumer:
        eventually(lambda: bool(consumer.health().reasons), "it is not ready")
        reason = consumer.health().reasons[0]
        assert f"{broker.address} refuses the heartbeats, so nothing is consumed" in reason
        assert "account 'm' has no permission" in reason
        assert "autoCreateSubscriptionGroup" not in caplog.text
        seen.wait_for_count(1)
        eventually(lambda: consumer.health().is_ready, "it is ready again")


def test_a_group_that_may_not_consume_is_not_taken_for_an_account(
    broker: EmbeddedBroker,
    producer: Producer,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pulls = [0]
    pull = server.HANDLERS[RequestCode.PULL_MESSAGE]

    def count(context: Any, connection: Any, request: Any) -> None:
        pulls[0] += 1
        pull(context, connection, request)

    monkeypatch.setitem(server.HANDLERS, RequestCode.PULL_MESSAGE, count)
    producer.send(Message("orders", b"1"), sharding_key="k")
    allow(producer, broker, "g", False)
    with consumer_of(broker, seen, pull_delay_on_error_ms=5) as consumer:
        eventually(lambda: bool(consumer.health().reasons), "it is not ready")
        eventually(lambda: pulls[0] > 8, "it tries on")
        health = consumer.health()
        assert not health.is_ready
        assert "consumeEnable is off" in health.reasons[0]
        assert "have an admin enable it (mqadmin updateSubGroup" in health.reasons[0]
        assert "signed" not in health.reasons[0]
        (warning,) = warnings_of(caplog)
        assert "consumption by this group is disabled at the broker" in warning
        allow(producer, broker, "g", True)
        seen.wait_for_count(1)
        eventually(lambda: consumer.health().is_ready, "it is ready again")


def test_a_group_that_its_broker_forgot_is_made_in_one_turn(
    broker: EmbeddedBroker, producer: Producer, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    # RocketMQ's proxy lists a member for two minutes more whose heartbeat is worked beside an
    # unregistration of its. Two topics store their first offsets at once.
    requests: list[str] = []
    write = server.HANDLERS[RequestCode.UPDATE_CONSUMER_OFFSET]

    def record(code: RequestCode, text: Callable[[Command], str]) -> None:
        handle = server.HANDLERS[code]

        def recorded(context: Any, connection: Any, request: Command) -> None:
            requests.append(text(request))
            handle(context, connection, request)

        monkeypatch.setitem(server.HANDLERS, code, recorded)

    held: dict[str, Command] = {}  # the first write of each topic, refused with the other one

    def refuse_first_ones(context: Any, connection: Any, request: Command) -> None:
        topic = request.ext["topic"]
        if topic not in ("orders", "bills") or topic in held:
            write(context, connection, request)
            return
        held[topic] = request
        if len(held) == 2:
            for each in held.values():
                connection.reply(each, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark="No group")

    monkeypatch.setitem(server.HANDLERS, RequestCode.UPDATE_CONSUMER_OFFSET, refuse_first_ones)
    record(RequestCode.UNREGISTER_CLIENT, lambda request: "unregister")
    record(
        RequestCode.HEART_BEAT,
        lambda request: "make" if b"CONSUME_ACTIVELY" in request.body else "beat",
    )
    for topic in ("orders", "bills"):
        producer.send(Message(topic, b"1"), sharding_key="k")
    requests.clear()
    consumer = consumer_of(broker, seen)
    consumer.subscribe("bills")
    with consumer:
        seen.wait_for_count(2)
        during = list(requests)
    assert during.count("make") == during.count("unregister") == 1
    turn = during.index("make")
    assert during[turn : turn + 3] == ["make", "unregister", "beat"]


@pytest.mark.parametrize("key", ["k", None])
def test_a_send_to_a_topic_that_is_read_only_says_so(
    broker: EmbeddedBroker, producer: Producer, key: str | None
) -> None:
    producer.send(Message("orders", b"1"), sharding_key="k")
    ask(
        producer,
        broker,
        Command.request(
            RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("orders", 4, 4, 4).to_ext()
        ),
    )
    with pytest.raises((BrokerError, OrderingError, RouteError)) as refused:
        producer.send(Message("orders", b"2"), sharding_key=key)
    assert "its perm lacks 2; an admin has withdrawn it" in str(refused.value)
    assert "updateTopicPerm" in str(refused.value)
    assert "signed" not in str(refused.value)
