"""Spans of sends and listener calls, linked through the messages' `traceparent`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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
from ordermq.errors import BrokerError
from ordermq.metrics.tracing import Tracing
from tests.component.conftest import Seen, eventually

MakeConsumer = Callable[..., PushConsumer]


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
        full = {"large": "x" * 32_650}
        producer.send(Message("orders", b"2", properties=full), sharding_key="k")
        assert producer.hook_errors == 1
        with consumer:
            seen.wait_for_count(2)
    assert got == [sent, None]
