"""Signed requests of ordermq to RocketMQ, and of Java to the embedded broker
(docs/internals/protocol.md#signed-requests)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import BrokerError
from ordermq.remoting.codes import ResponseCode
from tests.interop.cluster import DEADLINE_S, Cluster
from tests.interop.java_process import JavaProcess
from tests.interop.own_cluster import own_cluster

ACCOUNT = {"access_key": "shop", "secret_key": "the secret"}
PROVIDERS = "org.apache.rocketmq.auth.authentication.provider"


@pytest.fixture(scope="module")
def name_servers(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the name server of a RocketMQ that serves only its accounts."""
    if cluster.version < "5.3":
        pytest.skip("5.3's accounts; those of 4.9 are in test_permissions.py")
    folder = tmp_path_factory.mktemp("accounts") / "rocketmq"
    settings = {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{PROVIDERS}.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{PROVIDERS}.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": '{"username":"shop","password":"the secret"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"shop","secretKey":"the secret"}',
        "authConfigPath": str(folder / "auth"),
    }
    with own_cluster(cluster.version, folder, **settings) as running:
        yield running.name_servers


def test_rocketmq_serves_requests_signed_by_ordermq(name_servers: str) -> None:
    bodies: list[bytes] = []
    complete = threading.Event()

    def listen(messages: Sequence[Any], context: object) -> None:
        bodies.extend(bytes(message.body) for message in messages)
        if len(bodies) == 4:
            complete.set()

    with Producer("p", name_servers=name_servers, **ACCOUNT) as producer:
        producer.send(Message("orders", b"0", tags="tag-订单"), sharding_key="k")
        producer.send_batch([Message("orders", b"1"), Message("orders", b"2")], sharding_key="k")
        producer.send(Message("orders", b"3" * 10_000), sharding_key="k")
    consumer = PushConsumer(
        "g", name_servers=name_servers, consume_from_where="first_offset", **ACCOUNT
    )
    consumer.subscribe("orders")
    consumer.orderly(listen)
    with consumer:
        assert complete.wait(DEADLINE_S)
    assert bodies == [b"0", b"1", b"2", b"3" * 10_000]


@pytest.mark.parametrize("given", [{}, ACCOUNT | {"secret_key": "wrong"}], ids=["none", "wrong"])
def test_an_error_for_a_refused_account_says_what_to_check(
    name_servers: str, given: dict[str, str]
) -> None:
    told = "signed as access_key='shop': check" if given else "not signed: give access_key"
    with (
        Producer("p", name_servers=name_servers, **given) as producer,
        pytest.raises(BrokerError, match=told) as sending,
    ):
        producer.send(Message("orders", b"x"))
    consumer = PushConsumer("g2", name_servers=name_servers, **given)
    consumer.subscribe("orders")
    consumer.orderly(lambda messages, context: None)
    with pytest.raises(BrokerError, match=told) as starting:
        consumer.start()
    for caught in (sending, starting):
        assert caught.value.response_code == ResponseCode.NO_PERMISSION


def test_the_embedded_broker_serves_requests_signed_by_java(
    cluster: Cluster, tmp_path: Path
) -> None:
    config = BrokerConfig(durability="os", accounts={"shop": "the secret"})
    with EmbeddedBroker(config=config) as broker:
        sender = JavaProcess(
            cluster.version,
            "Sender",
            tmp_path,
            name_servers=broker.name_servers,
            access_key="shop",
            secret_key="the secret",
        )
        try:
            assert len(sender.ask("sync orders 0 8 8 paid")["sent"]) == 8
            assert sender.ask("batch orders 8 8 8 paid")["sent"]  # one receipt for all of them
        finally:
            sender.kill()
        assert broker.statistics.messages_stored == 16
