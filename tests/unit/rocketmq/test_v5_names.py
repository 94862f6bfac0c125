"""Names of `rocketmq-python-client` 5.x: what they check before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from ordermq.rocketmq import v5
from ordermq.rocketmq.v5.exception import (
    IllegalArgumentException,
    IllegalStateException,
    UnsupportedException,
)

CONFIGURATION = v5.ClientConfiguration("127.0.0.1:8081", v5.Credentials())


def message(**members: Any) -> v5.Message:
    made = v5.Message()
    for name, value in members.items():
        setattr(made, name, value)
    return made


def test_the_names_are_those_of_the_package() -> None:
    # Those of 5.1.2's `rocketmq.__all__`.
    assert set(v5.__all__) == {
        "Producer", "TransactionChecker", "Transaction", "TransactionResolution",
        "SimpleConsumer", "PushConsumer", "LitePushConsumer", "LiteSimpleConsumer",
        "MessageListener", "ConsumeResult", "Message", "FilterExpression", "SendReceipt",
        "ClientConfiguration", "Credentials",
    }  # fmt: skip


def test_a_configuration_becomes_the_settings_of_a_client() -> None:
    account = v5.Credentials("ak", "sk")
    found = v5.ClientConfiguration("http://a:1;b:2;", account, "ns", request_timeout=2)
    assert found.settings(tls=True) == {
        "name_servers": ["grpc://a:1", "grpc://b:2"],
        "request_timeout_ms": 2_000,
        "tls": True,
        "access_key": "ak",
        "secret_key": "sk",
        "namespace_v2": "ns",
    }
    with pytest.raises(IllegalArgumentException, match="host:port"):
        v5.ClientConfiguration("", account)


def test_a_message_becomes_one_of_ordermq() -> None:
    made = message(topic="orders", body=b"x", tag="new", keys="a", delivery_timestamp=1_900_000_000)
    made.keys = "b"
    made.add_property("k", "v")
    sent = made.to_send()
    assert (sent.topic, bytes(sent.body), sent.tags) == ("orders", b"x", "new")
    assert (sent.keys, dict(sent.properties)) == (["a", "b"], {"k": "v"})
    assert sent.deliver_at_ms == 1_900_000_000_000


@pytest.mark.parametrize(
    "members",
    [
        {"body": b""},
        {"topic": " "},
        {"tag": "a|b"},
        {"keys": ""},
        {"message_group": "g", "delivery_timestamp": 1},
        {"delivery_timestamp": 1, "message_group": "g"},
    ],
)
def test_what_cannot_be_sent_is_refused_where_it_is_assigned(members: dict[str, Any]) -> None:
    with pytest.raises(IllegalArgumentException):
        message(**members)


def test_a_message_that_cannot_be_sent_is_refused_by_the_send() -> None:
    with pytest.raises(IllegalArgumentException, match="topic and a body"):
        message(topic="orders").to_send()
    with pytest.raises(IllegalArgumentException, match="looks like seconds"):
        message(topic="orders", body=b"x", delivery_timestamp=7).to_send()


@pytest.mark.parametrize("members", [{"lite_topic": "a"}, {"priority": 1}])
def test_what_rocketmq_5_5_added_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedException, match=r"5\.5"):
        message(**members)


@pytest.mark.parametrize("kind", [v5.SimpleConsumer, v5.LitePushConsumer, v5.LiteSimpleConsumer])
def test_a_consumer_that_is_not_there_says_so(kind: type[Any]) -> None:
    with pytest.raises(UnsupportedException, match=kind.__name__):
        kind(CONFIGURATION, "group", {})


def test_a_client_that_does_not_run_says_so() -> None:
    producer = v5.Producer(CONFIGURATION, ("orders",))
    for call in (
        lambda: producer.send(message(topic="orders", body=b"x")),
        lambda: producer.send_async(message(topic="orders", body=b"x")),
        lambda: producer.recall_message("orders", "handle"),
        producer.begin_transaction,
    ):
        with pytest.raises(IllegalStateException, match="not running"):
            call()
    producer.shutdown()  # no effect
    with pytest.raises(IllegalArgumentException, match="listener"):
        v5.PushConsumer(CONFIGURATION, "group").startup()
