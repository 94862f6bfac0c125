"""TLS: ordermq to RocketMQ with default settings, Java's client to the embedded broker."""

from __future__ import annotations

from pathlib import Path

from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from tests.component.certificates import Authority
from tests.interop.cluster import Cluster
from tests.interop.java_process import JavaProcess
from tests.interop.run import Run

# RocketMQ's servers come with a certificate that they sign themselves, each start anew.
ANY = {"tls": True, "tls_verify": "none"}


def test_rocketmqs_servers_accept_tls_of_ordermq(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1, "broker-b": 1})
    with Producer("p", name_servers=run.cluster.name_servers, **ANY) as producer:
        for number in range(50):
            producer.send(Message(run.topic, str(number).encode()), sharding_key="k")
    run.member("one", **ANY)
    run.wait_for(lambda seen: len(seen) == 50, "all messages")
    assert [int(delivery.body) for delivery in run.deliveries] == list(range(50))


def test_the_embedded_broker_accepts_tls_of_java(cluster: Cluster, tmp_path: Path) -> None:
    made = Authority(tmp_path, "authority").sign("server")
    config = BrokerConfig(durability="os", tls_certificate=made.certificate, tls_key=made.key)
    with EmbeddedBroker(config=config) as broker:
        sender = JavaProcess(
            cluster.version,
            "Sender",
            tmp_path,
            options=["-Dtls.enable=true"],
            name_servers=broker.name_servers,
        )
        try:
            assert len(sender.ask("sync orders 0 8 8 paid")["sent"]) == 8
        finally:
            sender.kill()
        assert broker.statistics.messages_stored == 8
