"""Spans of sends and listener calls, linked through the messages' `traceparent`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ordermq import (
    Message,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from ordermq.broker import EmbeddedBroker
from ordermq.errors import BrokerError, OrderMQError
from ordermq.metrics.tracing import Tracing
from ordermq.model.properties import MAX_SENT_BYTES
from tests.component.conftest import Seen, eventually

MakeConsumer = Callable[..., PushConsumer]
REGISTRY: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[1] / "vectors" / "opentelemetry" / "levels.json").read_text()
)
# A topic has no template; an envelope's size is opt-in; a send may be tried at several brokers, and
# the one that stored the message is `server.address`.
NOT_SET = {
    "messaging.destination.template",
    "messaging.message.envelope.size",
    "network.peer.address",
    "network.peer.port",
}
# Only in the case that each name says.
IN_SOME_CASE = {
    "error.type",
    "messaging.batch.message_count",
    "messaging.message.conversation_id",
    "messaging.rocketmq.message.delay_time_level",
    "messaging.rocketmq.message.delivery_timestamp",
}


class Spans:
    """Spans that have ended, and a Tracing that makes them."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(self.provider)
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> Sequence[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def wait_for(self, name: str, count: int) -> Sequence[ReadableSpan]:
        eventually(lambda: len(self.named(name)) >= count, f"{count} spans {name!r}")
        return self.named(name)


@pytest.fixture
def spans() -> Spans:
    return Spans()


def of(span: ReadableSpan) -> tuple[int, int]:
    """Trace and span id."""
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


@pytest.mark.parametrize("kind", ["plain", "async", "lambda"])
def test_a_listener_call_is_linked_to_the_send_of_each_message(
    broker: EmbeddedBroker, make_consumer: MakeConsumer, spans: Spans, seen: Seen, kind: str
) -> None:
    inner: list[Any] = []

    def listen(messages: Any, context: Any) -> None:
        inner.append(trace.get_current_span().get_span_context())
        seen.take(messages, context)

    async def listen_async(messages: Any, context: Any) -> None:
        await asyncio.sleep(0)
        listen(messages, context)

    listeners = {
        "plain": listen,
        "async": listen_async,
        "lambda": lambda messages, context: listen_async(messages, context),
    }
    producer = Producer("p", name_servers=broker.name_servers)
    spans.tracing.trace_producer(producer)
    consumer = make_consumer(listeners[kind], consume_message_batch_max_size=8)
    spans.tracing.trace_consumer(consumer)
    with producer:
        with spans.tracer.start_as_current_span("request") as request:
            producer.send(Message("orders", b"1"), sharding_key="k")
            producer.send_batch(
                [Message("orders", b"2"), Message("orders", b"3")], sharding_key="k"
            )
            producer.send_many([(Message("orders", b"4"), "k")])
            producer.send_nowait(Message("orders", b"5"), sharding_key="k").result()
            producer.send_oneway(Message("orders", b"6"), sharding_key="k")
        sends = spans.wait_for("send orders", 6)
    with consumer:
        seen.wait_for_count(6)
        eventually(
            lambda: sum(map(len, map(linked, spans.named("process orders")))) == 6, "all are linked"
        )
    assert consumer.statistics["hook_errors"] == 0
    for send in sends:
        assert send.kind is SpanKind.PRODUCER
        assert send.parent is not None
        assert send.parent.span_id == request.get_span_context().span_id
        assert send.attributes is not None
        assert send.attributes["messaging.destination.name"] == "orders"
    calls = spans.named("process orders")
    assert sorted(link for call in calls for link in linked(call)) == sorted(map(of, sends))
    for call in calls:
        assert call.kind is SpanKind.CONSUMER
        assert call.parent is None
        assert call.attributes is not None
        assert call.attributes["messaging.consumer.group.name"] == "g"
    if kind != "lambda":  # its coroutine runs on another thread than its call
        assert {(each.trace_id, each.span_id) for each in inner} == set(map(of, calls))
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_transactions_message_carries_the_span_of_its_send(
    broker: EmbeddedBroker, make_consumer: MakeConsumer, spans: Spans, seen: Seen
) -> None:
    producer = TransactionProducer(
        "p",
        execute=lambda message, argument: TransactionState.COMMIT,
        check=lambda message: TransactionState.COMMIT,
        name_servers=broker.name_servers,
    )
    spans.tracing.trace_producer(producer)
    consumer = make_consumer(seen.take)
    spans.tracing.trace_consumer(consumer)
    with producer:
        producer.send_in_transaction(Message("orders", b"paid"))
        with consumer:
            seen.wait_for_count(1)
            (call,) = spans.wait_for("process orders", 1)
    (send,) = spans.named("send orders")
    assert linked(call) == [of(send)]


def test_errors_end_spans_with_their_type(
    broker: EmbeddedBroker, make_consumer: MakeConsumer, spans: Spans
) -> None:
    def fail(messages: Any, context: Any) -> None:
        raise ValueError("a test's own failure")

    producer = Producer("p", name_servers=broker.name_servers)
    spans.tracing.trace_producer(producer)
    consumer = make_consumer(fail)
    spans.tracing.trace_consumer(consumer)
    with producer, consumer:
        queue = producer.send(Message("orders", b"x")).message_queue
        with pytest.raises(BrokerError):
            producer.send(Message("orders", b"x"), queue=queue._replace(queue_id=4_000))
        call, *_ = spans.wait_for("process orders", 1)
    good, bad = spans.named("send orders")
    for span, kind in (call, "ValueError"), (bad, "BrokerError"):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert span.attributes["error.type"] == kind
        assert [event.name for event in span.events] == ["exception"]
    assert good.status.status_code is StatusCode.UNSET


def test_an_error_without_a_text_ends_its_span_all_the_same(
    make_consumer: MakeConsumer, producer: Producer, spans: Spans
) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise AttributeError("a test's own: no such field")

    def fail(messages: Any, context: Any) -> None:
        raise Unspeakable

    consumer = make_consumer(fail)
    spans.tracing.trace_consumer(consumer)
    with consumer:
        producer.send(Message("orders", b"x"))
        call, *_ = spans.wait_for("process orders", 1)
        assert consumer.statistics["hook_errors"] == 0
    assert call.status.status_code is StatusCode.ERROR
    assert "Unspeakable" in str(dict(call.attributes or {})["error.type"])


def test_a_message_that_is_sent_on_keeps_its_context_and_a_full_one_goes_without(
    broker: EmbeddedBroker, make_consumer: MakeConsumer, spans: Spans, seen: Seen
) -> None:
    sent = f"00-{'a' * 32}-{'b' * 16}-01"
    producer = Producer("p", name_servers=broker.name_servers)
    spans.tracing.trace_producer(producer)
    got: list[str | None] = []

    def listen(messages: Any, context: Any) -> None:
        got.extend(message.get_property("traceparent") for message in messages)
        seen.take(messages, context)

    consumer = make_consumer(listen)
    with producer:
        producer.send(Message("orders", b"1", properties={"traceparent": sent}), sharding_key="k")
        full = {"large": "x" * (MAX_SENT_BYTES - 117)}  # and its own: no room for a context
        producer.send(Message("orders", b"2", properties=full), sharding_key="k")
        assert producer.hook_errors == 1
        with consumer:
            seen.wait_for_count(2)
    assert got == [sent, None]


def test_spans_have_every_attribute_that_the_registry_wants(
    broker: EmbeddedBroker, make_consumer: MakeConsumer, spans: Spans, seen: Seen
) -> None:
    producer = Producer("p", name_servers=broker.name_servers)
    spans.tracing.trace_producer(producer)
    consumer = make_consumer(seen.take)
    spans.tracing.trace_consumer(consumer)
    with producer, consumer:
        message = Message("orders", b"paid", tags="eu", keys=("o-17", "c-3"))
        receipt = producer.send(message, sharding_key="o-17")
        (send,) = spans.wait_for("send orders", 1)
        (call,) = spans.wait_for("process orders", 1)
    host, _, port = broker.name_servers.rpartition(":")
    of_both = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": f"b/{receipt.message_queue.queue_id}",
        "messaging.message.id": receipt.message_id,
        "messaging.message.body.size": 4,
        "messaging.rocketmq.namespace": "",
        "messaging.rocketmq.message.type": "fifo",
        "messaging.rocketmq.message.group": "o-17",
        "messaging.rocketmq.message.tag": "eu",
        "messaging.rocketmq.message.keys": ("o-17", "c-3"),
        "server.address": host,
        "server.port": int(port),
    }
    assert dict(send.attributes or {}) == of_both | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.client.id": producer.client_id,
        "ordermq.producer.group.name": "p",
    }
    assert dict(call.attributes or {}) == of_both | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.client.id": consumer.client_id,
        "messaging.consumer.group.name": "g",
        "messaging.rocketmq.consumption_model": "clustering",
    }
    for name, span in ("send", send), ("process", call):
        levels = REGISTRY["spans"][name]
        missing = levels.keys() - set(span.attributes or {})
        assert missing - IN_SOME_CASE <= NOT_SET
        assert not {each for each in missing if levels[each] == "required"}
        for attribute, values in REGISTRY["values"].items():
            assert (span.attributes or {}).get(attribute, values[0]) in values


def test_each_type_of_message_is_named_as_rocketmq_names_it(
    broker: EmbeddedBroker, spans: Spans
) -> None:
    producer = Producer("p", name_servers=broker.name_servers, namespace="shop")
    spans.tracing.trace_producer(producer)
    timed_ms = 4_102_444_800_000
    with producer:
        producer.send(Message("orders", b"1"))
        producer.send(Message("orders", b"2", delay_level=3))
        with pytest.raises(BrokerError):  # farther away than brokers take; its span knows the time
            producer.send(Message("orders", b"3", deliver_at_ms=timed_ms))
        with pytest.raises(OrderMQError):
            producer.request(Message("orders", b"4"), timeout_ms=50)
        sends = [dict(span.attributes or {}) for span in spans.wait_for("send orders", 4)]
    kind = "messaging.rocketmq.message.type"
    assert [each[kind] for each in sends] == ["normal", "delay", "delay", "normal"]
    assert sends[1]["messaging.rocketmq.message.delay_time_level"] == 3
    assert sends[2]["messaging.rocketmq.message.delivery_timestamp"] == timed_ms
    assert sends[3]["messaging.message.conversation_id"]
    assert all(each["messaging.rocketmq.namespace"] == "shop" for each in sends)
    assert all("messaging.rocketmq.message.group" not in each for each in sends)
    assert "server.address" not in sends[2], "no broker has stored it"


def test_what_differs_within_a_batch_is_said_of_its_links(
    broker: EmbeddedBroker, make_consumer: MakeConsumer, spans: Spans, seen: Seen
) -> None:
    producer = Producer("p", name_servers=broker.name_servers)
    spans.tracing.trace_producer(producer)
    consumer = make_consumer(seen.take, consume_message_batch_max_size=8)
    spans.tracing.trace_consumer(consumer)
    with producer:
        producer.send_batch(
            [Message("orders", b"1", tags="eu"), Message("orders", b"2", tags="us")],
            sharding_key="o-17",
        )
    with consumer:
        (call,) = spans.wait_for("process orders", 1)
    found = dict(call.attributes or {})
    assert found["messaging.batch.message_count"] == 2
    assert found["messaging.rocketmq.message.group"] == "o-17"
    single = {
        "messaging.message.id",
        "messaging.message.body.size",
        "messaging.rocketmq.message.tag",
    }
    assert not single & found.keys()
    of_links = [dict(link.attributes or {}) for link in call.links]
    assert [each["messaging.rocketmq.message.tag"] for each in of_links] == ["eu", "us"]
    assert all(single <= each.keys() for each in of_links)
