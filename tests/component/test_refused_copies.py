"""Copies of failed messages that a broker refuses to store: one WARNING, a reason in health(), and
nothing is lost (docs/internals/semantics.md#refusals)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq import Admin, DeadLetter, LitePullConsumer, Message, ParkKey, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker, server
from ordermq.broker.connection import RequestRefused
from ordermq.config import AccessPolicy, BrokerConfig
from ordermq.consumer.dispatch import parked_keys
from ordermq.errors import RouteError
from ordermq.remoting.codes import RequestCode, ResponseCode
from tests.component.conftest import eventually

SECRET = "a-secret-key"
ALL = [AccessPolicy("Topic:orders", "SUB,GET"), AccessPolicy("Group:g", "SUB,GET")]


class Poisoned:
    """A listener that fails at one body until it is healed."""

    def __init__(self) -> None:
        self.calls = 0  # with it
        self.is_healed = False
        self.done: list[bytes] = []

    def __call__(self, messages: Any, context: Any) -> None:
        bodies = [bytes(message.body) for message in messages]
        if b"bad" in bodies and not self.is_healed:
            self.calls += 1
            raise ValueError("a test's own failure")
        self.done += bodies


class Refusing:
    """Lets a broker refuse requests of one kind while `is_on`."""

    def __init__(
        self, patch: pytest.MonkeyPatch, code: RequestCode, field: str, value: str
    ) -> None:
        self.is_on, self.refused = True, 0
        handle = server.HANDLERS[code]

        def refuse(context: Any, connection: Any, request: Any) -> None:
            if self.is_on and request.ext.get(field) == value:
                self.refused += 1
                raise RequestRefused(ResponseCode.NO_PERMISSION, f"account 'm' may not use {value}")
            handle(context, connection, request)

        patch.setitem(server.HANDLERS, code, refuse)


def warnings_of(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    found = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    return [each for each in found if words in each]


def send_three(producer: Producer) -> None:
    for body in (b"first", b"bad", b"last"):
        producer.send(Message("orders", body), sharding_key="k")


def settings(broker: EmbeddedBroker) -> dict[str, Any]:
    return {"name_servers": broker.name_servers, "consume_from_where": "first_offset"}


def giving_up(broker: EmbeddedBroker, listen: Poisoned, **more: Any) -> PushConsumer:
    """Return a consumer that makes a message a dead letter at its first failure."""
    consumer = PushConsumer(
        "g",
        on_failure=DeadLetter(max_attempts=1),
        suspend_current_queue_time_ms=10,
        **settings(broker),
        **more,
    )
    consumer.subscribe("orders")
    consumer.orderly(listen)
    return consumer


def dead_letters(admin: Admin) -> list[bytes]:
    try:
        return [bytes(letter.body) for letter in admin.peek("%DLQ%g")]
    except RouteError:  # the first one makes the topic
        return []


@pytest.mark.parametrize("is_orderly", [True, False], ids=["orderly", "concurrent"])
def test_a_copy_needs_no_rights_but_those_of_its_own_group(
    broker: EmbeddedBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch, is_orderly: bool
) -> None:
    """RocketMQ asks for SUB of the group that a send to a retry topic names, whichever it is."""
    Refusing(monkeypatch, RequestCode.SEND_MESSAGE_V2, "a", "CLIENT_INNER_PRODUCER")
    Refusing(monkeypatch, RequestCode.CONSUMER_SEND_MSG_BACK, "group", "g")
    listen = Poisoned()
    if is_orderly:
        consumer = giving_up(broker, listen)
    else:
        consumer = PushConsumer(
            "g", max_reconsume_times=0, send_back_retry_ms=10, **settings(broker)
        )
        consumer.subscribe("orders")
        consumer.concurrently(listen)
    send_three(producer)
    with consumer, Admin(broker.name_servers) as admin:
        eventually(lambda: listen.done == [b"first", b"last"], "the queue goes on")
        eventually(lambda: dead_letters(admin) == [b"bad"], "it is a dead letter")


@pytest.mark.parametrize("by_key", [False, True])
def test_a_dead_letter_that_is_refused_stays_and_is_told(
    broker: EmbeddedBroker,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    by_key: bool,
) -> None:
    refusing = Refusing(monkeypatch, RequestCode.SEND_MESSAGE_V2, "b", "%RETRY%g")
    listen = Poisoned()
    consumer = giving_up(broker, listen, order_by_key=by_key)
    send_three(producer)
    with consumer:
        eventually(lambda: refusing.refused >= 5, "it is tried again")
        health = consumer.health()
        assert not health.is_ready
        (reason,) = health.reasons
        assert "storing a dead letter is refused" in reason
        assert "account 'm' may not use %RETRY%g" in reason
        assert len(warnings_of(caplog, "storing a dead letter failed")) == 1
        # At attempts 1, 2 and 4, not at each of them.
        assert len(warnings_of(caplog, "will be moved to the dead-letter topic")) <= 4
        assert listen.done == [b"first"]
        refusing.is_on = False
        eventually(lambda: listen.done == [b"first", b"last"], "the queue goes on")
        eventually(lambda: consumer.health().is_ready, "it is ready again")
    with Admin(broker.name_servers) as admin:
        assert [bytes(letter.body) for letter in admin.peek("%DLQ%g")] == [b"bad"]


def test_a_message_that_a_mended_listener_has_done_is_no_reason_any_more(
    broker: EmbeddedBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(monkeypatch, RequestCode.SEND_MESSAGE_V2, "b", "%RETRY%g")
    listen = Poisoned()
    consumer = giving_up(broker, listen)
    send_three(producer)
    with consumer:
        eventually(lambda: refusing.refused >= 2, "it is refused")
        eventually(lambda: not consumer.health().is_ready, "it is not ready")
        listen.is_healed = True
        eventually(lambda: listen.done == [b"first", b"bad", b"last"], "all are done")
        assert consumer.health().is_ready


def test_a_polled_batch_whose_dead_letter_is_refused_stays_and_is_told(
    broker: EmbeddedBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(monkeypatch, RequestCode.SEND_MESSAGE_V2, "b", "%RETRY%g")
    consumer = LitePullConsumer(
        "g", ordered=True, on_failure=DeadLetter(max_attempts=1), pull_batch_size=1,
        **settings(broker),
    )  # fmt: skip
    consumer.subscribe("orders")
    send_three(producer)
    done: list[bytes] = []

    def poll() -> None:
        for batch in consumer.batches(timeout_ms=50):
            with batch:
                bodies = [bytes(message.body) for message in batch]
                if b"bad" in bodies:
                    raise ValueError("a test's own failure")
                done.extend(bodies)

    def is_refused() -> bool:
        poll()
        return refusing.refused >= 2

    def is_done() -> bool:
        poll()
        return done == [b"first", b"last"]

    with consumer:
        eventually(is_refused, "its letter is refused")
        assert "storing a dead letter is refused" in str(consumer.health().reasons)
        refusing.is_on = False
        eventually(is_done, "the queue goes on")
        assert consumer.health().is_ready


@pytest.mark.parametrize("retries", [0, -1], ids=["dead-letter", "send-back"])
def test_a_message_that_cannot_be_sent_back_stays_and_is_told(
    broker: EmbeddedBroker,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    retries: int,
) -> None:
    refusing = Refusing(monkeypatch, RequestCode.SEND_MESSAGE_V2, "b", "%RETRY%g")
    back = Refusing(monkeypatch, RequestCode.CONSUMER_SEND_MSG_BACK, "group", "g")
    listen = Poisoned()
    consumer = PushConsumer(
        "g", max_reconsume_times=retries, send_back_retry_ms=10, **settings(broker)
    )
    consumer.subscribe("orders")
    consumer.concurrently(listen)
    send_three(producer)
    with consumer:
        eventually(lambda: refusing.refused >= 5, "it is tried again")
        (reason,) = consumer.health().reasons
        action = "sending a message back" if retries else "storing a dead letter"
        assert f"{action} is refused" in reason
        assert len(warnings_of(caplog, f"{action} failed")) == 1
        back.is_on = refusing.is_on = False
        eventually(lambda: consumer.health().is_ready, "it is ready again")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    config = BrokerConfig(
        accounts={"root": SECRET, "reader": SECRET, "nobody": SECRET},
        policies={"reader": [*ALL, AccessPolicy("Topic:parked", "SUB,GET")], "nobody": ALL},
    )
    with EmbeddedBroker(tmp_path, config=config) as running:
        yield running


@pytest.mark.parametrize(
    ("account", "action"),
    [
        ("nobody", "reading parking topic parked"),
        ("reader", "storing in parking topic parked"),
    ],
)
def test_a_parking_topic_without_permission_loses_nothing_and_is_told(
    guarded: EmbeddedBroker, caplog: pytest.LogCaptureFixture, account: str, action: str
) -> None:
    with (
        Admin(guarded.name_servers, access_key="root", secret_key=SECRET) as admin,
        Producer(
            "p", name_servers=guarded.name_servers, access_key="root", secret_key=SECRET
        ) as producer,
    ):
        for topic in ("orders", "parked"):
            admin.create_topic(topic, queues=1)
        send_three(producer)

    def consumer_of(name: str, listen: Poisoned) -> PushConsumer:
        consumer = PushConsumer(
            "g",
            order_by_key=True,
            on_failure=ParkKey("parked", max_attempts=1),
            access_key=name,
            secret_key=SECRET,
            **settings(guarded),
        )
        consumer.subscribe("orders")
        consumer.orderly(listen)
        return consumer

    listen = Poisoned()
    with consumer_of(account, listen) as consumer:
        eventually(lambda: bool(consumer.health().reasons), "it is not ready")
        health = consumer.health()
        assert not health.is_ready
        assert f"{action} is refused" in health.reasons[0]
        permission = "PUB" if account == "reader" else "GET"
        assert f"no permission for {permission} of topic 'parked'" in health.reasons[0]
        assert len(warnings_of(caplog, f"{action} failed")) == 1
    listen.is_healed = True
    with consumer_of("root", listen) as consumer:
        eventually(lambda: {b"first", b"bad", b"last"} == {*listen.done}, "nothing was lost")
        assert consumer.health().is_ready


def test_requests_to_unpark_that_cannot_be_read_are_told_as_an_outage(
    broker: EmbeddedBroker,
    producer: Producer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parked_keys, "_WATCH_MS", 20)
    listen = Poisoned()
    consumer = PushConsumer(
        "g",
        order_by_key=True,
        on_failure=ParkKey("parked", max_attempts=1),
        **settings(broker),
    )
    consumer.subscribe("orders")
    consumer.orderly(listen)
    send_three(producer)
    with consumer, Admin(broker.name_servers) as admin:
        eventually(lambda: consumer.statistics["diverted"] == 2, "the key is parked")
        refusing = Refusing(monkeypatch, RequestCode.GET_MAX_OFFSET, "topic", "parked")
        eventually(lambda: refusing.refused >= 3, "it is tried again")
        eventually(
            lambda: bool(warnings_of(caplog, "reading requests to unpark failed")), "it is told"
        )
        assert "internal error" not in caplog.text
        assert consumer.statistics["internal_errors"] == 0
        refusing.is_on = False
        listen.is_healed = True
        admin.redrive_parked("parked", "g")
        eventually(lambda: b"last" in listen.done, "requests are read again")


def test_a_commit_that_is_refused_is_told(
    broker: EmbeddedBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = PushConsumer("g", commit_interval_ms=50, **settings(broker))
    consumer.subscribe("orders")
    listen = Poisoned()
    consumer.orderly(listen)
    with consumer:
        producer.send(Message("orders", b"first"), sharding_key="k")
        eventually(lambda: listen.done == [b"first"], "it runs")
        refusing = Refusing(monkeypatch, RequestCode.UPDATE_CONSUMER_OFFSET, "topic", "orders")
        producer.send(Message("orders", b"last"), sharding_key="k")
        eventually(lambda: bool(consumer.health().reasons), "it is not ready")
        (reason,) = consumer.health().reasons
        assert "commits of 1 queues are refused" in reason
        assert "account 'm' may not use orders" in reason
        refusing.is_on = False
        eventually(lambda: consumer.health().is_ready, "it is ready again")
