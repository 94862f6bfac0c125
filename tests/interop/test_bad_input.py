"""What goes wrong at real servers: the error says what, where and what to do.

Wrong addresses and servers that are none are in tests/component/test_bad_input_client.py,
accounts and permissions in test_permissions.py, members that disagree in test_agreement.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from ordermq import Message, Producer, PushConsumer
from ordermq.errors import BrokerError, ConfigError, OrderMQError, RouteError
from tests.interop.cluster import Cluster, eventually
from tests.interop.own_cluster import own_cluster
from tests.interop.run import Run

TLS = {"tls": True, "tls_verify": "none"}
PATIENCE = {"retry_times": 1, "request_timeout_ms": 2_000}


@pytest.fixture(scope="module")
def strict(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Brokers that make no topic, take small messages, and speak no TLS."""
    folder = tmp_path_factory.mktemp("strict") / "rocketmq"
    with own_cluster(
        cluster.version,
        folder,
        "--java=-Dtls.server.mode=disabled",
        autoCreateTopicEnable="false",
        maxMessageSize="10000",
    ) as running:
        running.put_topic("orders", {"broker-a": 2})
        yield running


@pytest.fixture(scope="module")
def secret(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker that speaks TLS only; its name server does not care."""
    folder = tmp_path_factory.mktemp("secret") / "rocketmq"
    with own_cluster(
        cluster.version, folder, "--java=broker-a:-Dtls.server.mode=enforcing"
    ) as running:
        yield running


def refusal(servers: str, topic: str, body: bytes = b"x", **settings: object) -> OrderMQError:
    with (
        Producer("p", name_servers=servers, **PATIENCE | settings) as producer,
        pytest.raises(OrderMQError) as caught,
    ):
        producer.send(Message(topic, body))
    return caught.value


def assert_says(error: OrderMQError, *words: str) -> None:
    for word in words:
        assert word in str(error), str(error)


def test_a_topic_that_no_broker_has_or_makes(
    strict: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    error = refusal(strict.name_servers, "unknown")
    assert isinstance(error, RouteError)
    assert_says(error, "topic='unknown'", "no broker has this topic", "create it")
    caplog.set_level(logging.WARNING, "ordermq.consumer")
    consumer = PushConsumer("g", name_servers=strict.name_servers)
    consumer.subscribe("unknown")
    consumer.orderly(lambda messages, context: None)
    with consumer:
        eventually(
            lambda: any(
                "unknown" in record.message and "create it" in record.message
                for record in caplog.records
            ),
            "the log says that it waits, and for what",
        )


def test_a_message_over_the_brokers_limit_and_one_over_ours(strict: Cluster) -> None:
    error = refusal(
        strict.name_servers, "orders", b"x" * 20_000, compress_msg_body_over_howmuch=1 << 31
    )
    assert isinstance(error, BrokerError)
    assert_says(error, "topic='orders'", "broker='broker-a'", "20000 bytes", "maxMessageSize")
    error = refusal(strict.name_servers, "orders", b"x" * 101, max_message_bytes=100)
    assert isinstance(error, ConfigError)
    assert_says(error, "topic='orders'", "101", "max_message_bytes")


def test_tls_to_servers_that_speak_none(strict: Cluster) -> None:
    error = refusal(strict.name_servers, "orders", **TLS)
    assert_says(error, strict.name_servers, "does the server speak TLS there?", "tls=False")


def test_no_tls_to_a_broker_that_speaks_nothing_else(secret: Cluster) -> None:
    error = refusal(secret.name_servers, "orders")
    assert_says(error, secret.addresses["broker-a"], "tls=True")
    consumer = PushConsumer("g", name_servers=secret.name_servers)
    consumer.subscribe("orders")
    consumer.orderly(lambda messages, context: None)


def test_a_topic_that_may_not_be_written_or_read(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2}, perm=4)
    error = refusal(run.cluster.name_servers, run.topic)
    assert_says(error, run.topic, "no writable queue")


def test_characters_that_properties_cannot_hold_are_refused_before_they_are_sent(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1})
    for text in ("a\x01b", "\x02"):
        for given in ({"properties": {"name": text}}, {"properties": {text: "v"}}, {"tags": text}):
            with (
                Producer("p", name_servers=run.cluster.name_servers) as producer,
                pytest.raises(ConfigError, match=r"U\+0001 and U\+0002"),
            ):
                producer.send(Message(run.topic, b"x", **given))
