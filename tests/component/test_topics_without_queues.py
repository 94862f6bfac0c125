"""Topics without queues: withdrawn, closed, deleted or never created, each told apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ordermq import Message, Producer, PushConsumer
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.errors import BrokerError, OrderingError, RouteError
from ordermq.remoting.codes import RequestCode
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import Seen, eventually


def set_perm(broker: EmbeddedBroker, perm: int) -> None:
    ext = {
        "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "2",
        "writeQueueNums": "2", "perm": str(perm), "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    with WireClient(broker.port) as client:
        assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == 0


@pytest.mark.parametrize("may_change", [False, True])
def test_nothing_is_sent_to_a_topic_that_lost_its_write_permission(
    broker: EmbeddedBroker, may_change: bool
) -> None:
    set_perm(broker, 6)
    with Producer(
        "shop",
        name_servers=broker.name_servers,
        route_interval_ms=50,
        allow_queue_change=may_change,
        retry_times=0,
    ) as producer:
        producer.send(Message("orders", b"1"), sharding_key="k")
        set_perm(broker, 4)

        def is_refused(key: str | None, error: type[Exception]) -> bool:
            try:
                producer.send(Message("orders", b"late"), sharding_key=key)
            except error as refusal:
                return "may be written to" in str(refusal) and "updateTopicPerm" in str(refusal)
            except BrokerError:  # the embedded broker refuses it before the route has changed
                return False
            pytest.fail("it was sent")

        eventually(lambda: is_refused("k", OrderingError), "a send with a key is refused")
        assert is_refused("other", OrderingError)
        assert is_refused(None, RouteError)
        set_perm(broker, 6)

        def is_sent() -> bool:
            try:
                producer.send(Message("orders", b"2"), sharding_key="k")
            except OrderingError:
                return False
            return True

        eventually(is_sent, "it is sent once the topic is open again")


def send_one(producer: Producer, body: bytes) -> None:
    producer.send(Message("orders", body), sharding_key="k")


def send_several(producer: Producer, body: bytes) -> None:
    producer.send_many([(Message("orders", body), "k")])


def send_without_key(producer: Producer, body: bytes) -> None:
    producer.send(Message("orders", body))


@pytest.mark.parametrize("send", [send_one, send_several, send_without_key])
def test_a_refused_send_asks_for_the_route_of_a_topic_that_has_fewer_queues_now(
    broker: EmbeddedBroker, send: Callable[[Producer, bytes], None]
) -> None:
    """Not with the next periodic look, up to half a minute later."""
    with (
        Admin(broker.name_servers) as admin,
        Producer(
            "shop",
            name_servers=broker.name_servers,
            route_interval_ms=600_000,
            allow_queue_change=True,
        ) as producer,
    ):
        admin.create_topic("orders", 8)
        for number in range(8):
            send(producer, b"old %d" % number)
        admin.delete_topic("orders")
        admin.create_topic("orders", 1)

        def is_sent() -> bool:
            try:
                send(producer, b"new")
            except BrokerError:  # there is no such queue
                return False
            return len(producer.queues("orders")) == 1

        eventually(is_sent, "the new topic's queue is known")


def test_a_topic_that_is_opened_again_is_used_before_the_next_look_at_routes(
    broker: EmbeddedBroker, seen: Seen
) -> None:
    """Closed for reads, or for writes: who has noticed it looks for its end."""
    set_perm(broker, 6)
    seldom = {"name_servers": broker.name_servers, "route_interval_ms": 600_000}
    consumer = PushConsumer("g", consume_from_where="first_offset", **seldom)
    consumer.subscribe("orders")
    consumer.orderly(seen.take)
    with consumer, Producer("shop", **seldom) as producer:
        producer.send(Message("orders", b"1"), sharding_key="k")
        seen.wait_for_count(1)
        set_perm(broker, 2)
        eventually(
            lambda: "no queue of this topic is readable" in str(consumer.health().reasons),
            "the member knows that it is closed",
        )
        set_perm(broker, 6)
        producer.send(Message("orders", b"2"), sharding_key="k")
        seen.wait_for_count(2)
        set_perm(broker, 4)

        def outcome() -> str:
            try:
                producer.send(Message("orders", b"3"), sharding_key="k")
            except (OrderingError, BrokerError) as error:
                return str(error)
            return "sent"

        eventually(lambda: "may be written to" in outcome(), "the producer knows that it is closed")
        set_perm(broker, 6)
        eventually(lambda: outcome() == "sent", "it is sent")
        seen.wait_for_count(3)


def test_a_consumer_tells_apart_why_a_topic_has_no_queues(
    broker: EmbeddedBroker, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = PushConsumer(
        "g",
        name_servers=broker.name_servers,
        route_interval_ms=50,
        rebalance_interval_ms=100,
        consume_from_where="first_offset",
    )
    consumer.subscribe("orders")
    consumer.orderly(seen.take)

    def is_not_ready(part: str) -> bool:
        health = consumer.health()
        return not health.is_ready and any(
            each.startswith("orders: ") and part in each for each in health.reasons
        )

    def is_ready() -> bool:
        return consumer.health().is_ready and len(consumer.assigned_queues()) > 0

    def send(body: bytes) -> None:
        with Producer("shop", name_servers=broker.name_servers) as producer:
            producer.send(Message("orders", body))

    with consumer, Admin(broker.name_servers) as admin:
        # A consumer may start before its topic.
        eventually(lambda: "waiting for it to be created. Check" in caplog.text, "it says so")
        assert consumer.health().is_ready
        set_perm(broker, 6)
        send(b"1")
        seen.wait_for_count(1)
        set_perm(broker, 2)
        eventually(lambda: is_not_ready("no queue of this topic is readable"), "it is closed")
        set_perm(broker, 6)
        eventually(is_ready, "it is open again")
        admin.delete_topic("orders")
        eventually(
            lambda: is_not_ready("its brokers are connected: it was deleted"), "it is deleted"
        )
        assert caplog.text.count("its brokers are connected: it was deleted") == 1
        set_perm(broker, 6)
        eventually(is_ready, "it is there again")
        send(b"2")
        seen.wait_for_count(2)


def test_the_retry_topic_of_another_group_is_a_topic_like_any_other(
    broker: EmbeddedBroker, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    # An operator reads what waits there; with a typo in its name, nothing ever comes.
    consumer = PushConsumer(
        "g", name_servers=broker.name_servers, consume_from_where="first_offset"
    )
    consumer.subscribe("%RETRY%other")
    consumer.orderly(seen.take)
    with consumer:
        eventually(lambda: "%RETRY%other: topic not found" in caplog.text, "it is told")
        assert "%RETRY%g: topic not found" not in caplog.text
        with Admin(broker.name_servers) as admin:
            admin.create_topic("%RETRY%other", queues=1)
        with Producer("p", name_servers=broker.name_servers) as producer:
            producer.send(Message("%RETRY%other", b"1"))
        seen.wait_for_count(1)
