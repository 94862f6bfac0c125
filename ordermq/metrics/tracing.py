"""Tracing: a span for each send and each listener call, linked through the messages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextvars import Token
from typing import Any, Final

import ordermq
from ordermq.consumer.hooks import ConsumeCall, ConsumeHook
from ordermq.consumer.push_consumer import PushConsumer
from ordermq.lazy_imports import needed_from
from ordermq.metrics.instruments import (
    ERROR,
    GROUP,
    OPERATION,
    PARTITION,
    PRODUCER_GROUP,
    SYSTEM,
    SYSTEM_LABEL,
    TOPIC,
)
from ordermq.metrics.readings import error_of_call, partition_of
from ordermq.model.message import MessageView
from ordermq.producer.hooks import SendCall
from ordermq.producer.producer import Producer

with needed_from("otel"):
    from opentelemetry import context, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Getter, Setter, TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

_SPAN: Final = "ordermq.span"
_OPERATION_TYPE: Final = "messaging.operation.type"
_MESSAGE_ID: Final = "messaging.message.id"
_BATCH_SIZE: Final = "messaging.batch.message_count"


class Tracing:
    """Spans of producers and consumers (docs/metrics.md).

    A send has a span of kind PRODUCER, a child of the caller's span, and its message carries it in
    its properties: `traceparent`, and whatever else the propagator writes. A listener call has a
    span of kind CONSUMER, the root of a trace of its own, with a link to each message's send. It is
    the current span while the listener runs.

    Args:
        tracer_provider: default the global one.
        propagator: default the global one, which writes W3C's `traceparent`, `tracestate` and
            `baggage`.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self._tracer = trace.get_tracer("ordermq", ordermq.__version__, tracer_provider)
        self._propagator = propagate.get_global_textmap() if propagator is None else propagator

    def trace_producer(self, producer: Producer) -> None:
        """Make a span of each message of `producer`; before it starts.

        Raises: StateError: it was started.
        """
        producer.add_hook(_SendSpans(self._tracer, self._propagator))

    def trace_consumer(self, consumer: PushConsumer) -> None:
        """Make a span of each listener call of `consumer`; before it starts.

        Raises: StateError: it was started.
        """
        consumer.add_hook(_ListenerSpans(self._tracer, self._propagator))


class _PropertySetter(Setter[dict[str, str]]):
    def set(self, carrier: dict[str, str], key: str, value: str) -> None:
        carrier[key] = value


class _PropertyGetter(Getter[MessageView]):
    def get(self, carrier: MessageView, key: str) -> list[str] | None:
        value = carrier.get_property(key)
        return None if value is None else [value]

    def keys(self, carrier: MessageView) -> list[str]:
        return list(carrier.properties)


_SETTER, _GETTER = _PropertySetter(), _PropertyGetter()


class _SendSpans:
    """Hook that spans a send."""

    def __init__(self, tracer: trace.Tracer, propagator: TextMapPropagator) -> None:
        self._tracer = tracer
        self._propagator = propagator

    def before(self, call: SendCall) -> None:
        message = call.message
        span = call.notes[_SPAN] = self._tracer.start_span(
            f"send {message.topic}",
            kind=SpanKind.PRODUCER,
            attributes={
                SYSTEM_LABEL: SYSTEM,
                OPERATION: "send",
                _OPERATION_TYPE: "send",
                TOPIC: message.topic,
                PRODUCER_GROUP: call.group,
                _MESSAGE_ID: call.message_id,
                "messaging.message.body.size": len(message.body),
            },
        )
        written: dict[str, str] = {}
        self._propagator.inject(written, trace.set_span_in_context(span), _SETTER)
        # A message that carries a context already, as one that is sent on, keeps the sender's.
        if not written.keys() & message.properties.keys():
            call.added_properties |= written

    def after(self, call: SendCall) -> None:
        span: Span = call.notes[_SPAN]
        if call.receipt is not None:
            span.set_attribute(PARTITION, partition_of(call.receipt.message_queue))
        if call.exception is not None:
            _fail(span, type(call.exception).__qualname__, call.exception)
        span.end()


class _ListenerSpans(ConsumeHook):
    """Hook that spans a listener call, and makes its span the current one meanwhile."""

    def __init__(self, tracer: trace.Tracer, propagator: TextMapPropagator) -> None:
        self._tracer = tracer
        self._propagator = propagator

    def before(self, call: ConsumeCall) -> None:
        queue, messages = call.message_queue, call.messages
        attributes: dict[str, str | int] = {
            SYSTEM_LABEL: SYSTEM,
            OPERATION: "process",
            _OPERATION_TYPE: "process",
            TOPIC: queue.topic,
            PARTITION: partition_of(queue),
            GROUP: call.group,
        }
        if len(messages) == 1:
            attributes[_MESSAGE_ID] = messages[0].message_id
        else:
            attributes[_BATCH_SIZE] = len(messages)
        # A root: a call may have messages of many traces, and may come days after their sends.
        span = self._tracer.start_span(
            f"process {queue.topic}",
            Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=list(self._links(messages)),
        )
        token = context.attach(trace.set_span_in_context(span))
        call.notes[_SPAN] = span, token, _where()

    def _links(self, messages: Sequence[MessageView]) -> Iterator[Link]:
        for message in messages:
            sent = self._propagator.extract(message, Context(), _GETTER)
            found = trace.get_current_span(sent).get_span_context()
            if found.is_valid:
                yield Link(found, {_MESSAGE_ID: message.message_id})

    def after(self, call: ConsumeCall) -> None:
        span, token, where = _noted(call)
        # A plain function that returned a coroutine began on another thread than it ends on, and
        # a context belongs to its thread; the next call there attaches its own.
        if where == _where():
            context.detach(token)
        if kind := error_of_call(call):
            _fail(span, kind, call.exception)
        span.end()


def _noted(call: ConsumeCall) -> tuple[Span, Token[Context], object]:
    noted: tuple[Span, Token[Context], object] = call.notes[_SPAN]
    return noted


def _where() -> tuple[int, asyncio.Task[Any] | None]:
    """Return the thread and the task that run."""
    try:
        return threading.get_ident(), asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return threading.get_ident(), None


def _fail(span: Span, kind: str, error: BaseException | None) -> None:
    span.set_attribute(ERROR, kind)
    if error is not None:
        span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error) if error is not None else kind))
