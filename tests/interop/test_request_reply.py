"""Requests and replies between Java and ordermq, on RocketMQ and on the embedded broker.

With default settings, over TLS, and in a namespace; accounts are in test_permissions.py.

The request's topic is on one broker; Java's replies go to either of the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ordermq import Message, MessageView, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.errors import BrokerError, ReplyTimeout
from ordermq.model.names import wrapped
from tests.interop.cluster import Cluster, eventually
from tests.interop.java_process import JavaProcess
from tests.interop.run import Run

BROKERS = {"broker-a": 2, "broker-b": 2}  # b speaks binary headers
TIMEOUT_MS = 20_000
TENANT = "MQ_INST_shop"
StartJava = Callable[..., JavaProcess]


@dataclass(frozen=True)
class Way:
    """One way to connect: settings of ordermq, of Java's client, and Java options."""

    ours: dict[str, Any] = field(default_factory=dict)
    java: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def topic_of(self, run: Run) -> str:
        """Return the name of the run's topic at brokers."""
        return wrapped(self.ours.get("namespace", ""), run.topic)


WAYS = {
    "plain": Way(),
    "tls": Way({"tls": True, "tls_verify": "none"}, options=("-Dtls.enable=true",)),
    "tenant": Way({"namespace": TENANT}, {"namespace": TENANT}),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


@pytest.fixture
def java(cluster: Cluster, tmp_path: Path) -> Iterator[StartJava]:
    """Start Java programs that send requests; they are stopped after the test."""
    started: list[JavaProcess] = []

    def make(name_servers: str, **arguments: object) -> JavaProcess:
        asker = JavaProcess(
            cluster.version, "Asker", tmp_path, group="java-asks", name_servers=name_servers,
            **arguments,
        )  # fmt: skip
        started.append(asker)
        return asker

    yield make
    for asker in started:
        asker.kill()


def replying(name_servers: str, topic: str, producer: Producer, **settings: Any) -> PushConsumer:
    """Start a consumer that replies "ours: " and the request's body."""
    consumer = PushConsumer(
        "ours-reply", name_servers=name_servers, consume_from_where="first_offset", **settings
    )
    consumer.subscribe(topic)

    def listen(messages: list[MessageView], context: object) -> None:
        for message in messages:
            if message.wants_reply:
                producer.reply(message, b"ours: " + bytes(message.body), properties={"own": "ä"})

    consumer.orderly(listen)
    return consumer


def test_java_requests_and_ordermq_replies(run: Run, java: StartJava, way: Way) -> None:
    run.cluster.put_topic(way.topic_of(run), BROKERS)
    servers = run.cluster.name_servers
    with Producer("ours-answer", name_servers=servers, **way.ours) as producer:
        asker = java(servers, options=way.options, **way.java)
        with replying(servers, run.topic, producer, **way.ours):
            for number in range(12):
                answer = asker.ask(f"{run.topic} n{number} {TIMEOUT_MS}")
                assert answer["reply"] == f"ours: n{number}", answer
                assert answer["own"] == "ä"
                assert answer["topic"] == "DefaultCluster_REPLY_TOPIC"
        failed = asker.ask(f"{run.topic} nobody 500")
        assert "timeout" in failed["how"], failed


def test_ordermq_requests_and_java_replies(run: Run, java: StartJava, way: Way) -> None:
    run.cluster.put_topic(way.topic_of(run), {"broker-a": 1})
    servers = run.cluster.name_servers
    java(servers, replies=run.topic, options=way.options, **way.java)
    large = "large-" * 2_000
    with Producer("ours-ask", name_servers=servers, **way.ours) as producer:
        for number in range(12):
            reply = producer.request(Message(run.topic, f"n{number}".encode()), TIMEOUT_MS)
            assert bytes(reply.body) == f"java: n{number}".encode()
            assert reply.get_property("own") == "ä"
        reply = producer.request(Message(run.topic, large.encode()), TIMEOUT_MS)
        assert bytes(reply.body).decode() == f"java: {large}"

        async def many() -> list[MessageView]:
            messages = [Message(run.topic, f"m{number}".encode()) for number in range(20)]
            return await asyncio.gather(
                *(producer.arequest(message, TIMEOUT_MS) for message in messages)
            )

        bodies = [bytes(reply.body) for reply in asyncio.run(many())]
        assert bodies == [f"java: m{number}".encode() for number in range(20)]


def test_clients_with_one_instance_name_get_their_own_replies(run: Run, way: Way) -> None:
    run.cluster.put_topic(way.topic_of(run), BROKERS)
    servers = run.cluster.name_servers
    named = way.ours | {"instance_name": "shop"}
    with (
        Producer("ours-ask", name_servers=servers, **named) as first,
        Producer("ours-ask", name_servers=servers, **named) as second,
        replying(servers, run.topic, first, **named),
    ):
        for number in range(8):
            for asker in (first, second):
                body = f"{asker is first}-{number}".encode()
                reply = asker.request(Message(run.topic, body), TIMEOUT_MS)
                assert bytes(reply.body) == b"ours: " + body
        second.close()  # takes the name from no other
        for _ in range(4):
            assert bytes(first.request(Message(run.topic, b"?"), TIMEOUT_MS).body) == b"ours: ?"


def test_ordermq_requests_and_replies_and_reports_a_reply_that_nobody_awaits(run: Run) -> None:
    run.cluster.put_topic(run.topic, BROKERS)
    servers = run.cluster.name_servers
    got: list[MessageView] = []
    consumer = PushConsumer("ours-late", name_servers=servers, consume_from_where="first_offset")
    consumer.subscribe(run.topic)
    consumer.orderly(lambda messages, _: got.extend(messages))
    with Producer("ours-answer", name_servers=servers) as producer:
        with Producer("ours-ask", name_servers=servers) as asker, consumer:
            with pytest.raises(ReplyTimeout, match="the broker has it"):
                asker.request(Message(run.topic, b"?"), 2_000)
            eventually(lambda: got, "the request arrives")
        with pytest.raises(BrokerError, match="the requester no longer waits"):
            producer.reply(got[0], b"too late")


def test_java_requests_from_java_and_ordermq_on_the_embedded_broker(
    embedded: EmbeddedBroker, java: StartJava
) -> None:
    servers = embedded.name_servers
    with Producer("ours", name_servers=servers) as producer:
        for topic in ("we-answer", "java-answers"):  # Java looks for new topics every 30 s only
            producer.send(Message(topic, b"the topic"))
        asker = java(servers, replies="java-answers")
        with replying(servers, "we-answer", producer):
            assert asker.ask(f"we-answer a {TIMEOUT_MS}")["reply"] == "ours: a"
        reply = producer.request(Message("java-answers", b"b"), TIMEOUT_MS)
    assert bytes(reply.body) == b"java: b"


@pytest.fixture
def embedded() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker
