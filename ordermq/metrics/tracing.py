"""Tracing: a span for each send and each listener call, linked through the messages."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextvars import Token
from functools import lru_cache
from typing import Any, Final

import ordermq
from ordermq.client.user_code import running_task
from ordermq.consumer.hooks import ConsumeCall, ConsumeHook
from ordermq.consumer.push_consumer import PushConsumer
from ordermq.errors import own_text
from ordermq.lazy_imports import needed_from
from ordermq.metrics.instruments import (
    ERROR,
    GROUP,
    OPERATION,
    OPERATION_TYPE,
    OPERATION_TYPES,
    PARTITION,
    PRODUCER_GROUP,
    SYSTEM,
    SYSTEM_LABEL,
    TOPIC,
)
from ordermq.metrics.readings import error_of_call, partition_of, require_client
from ordermq.model import properties as props
from ordermq.model.hashing import key_text
from ordermq.model.identifiers import broker_of
from ordermq.model.message import MessageView
from ordermq.producer.hooks import SendCall
from ordermq.producer.producer import Producer

with needed_from("otel"):
    from opentelemetry import context, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Getter, Setter, TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

_SPAN: Final = "ordermq.span"
_POSITION_DIGITS: Final = 16  # of a message, at the end of its broker's id
_MESSAGE_ID: Final = "messaging.message.id"
_BODY_SIZE: Final = "messaging.message.body.size"
_BATCH_SIZE: Final = "messaging.batch.message_count"
_CONVERSATION: Final = "messaging.message.conversation_id"
_CLIENT_ID: Final = "messaging.client.id"
_SERVER_ADDRESS: Final = "server.address"
_SERVER_PORT: Final = "server.port"
_NAMESPACE: Final = "messaging.rocketmq.namespace"  # required: empty where there is none
_CONSUMPTION_MODEL: Final = "messaging.rocketmq.consumption_model"
_MESSAGE_TYPE: Final = "messaging.rocketmq.message.type"
_MESSAGE_GROUP: Final = "messaging.rocketmq.message.group"
_TAG: Final = "messaging.rocketmq.message.tag"
_KEYS: Final = "messaging.rocketmq.message.keys"
_DELAY_LEVEL: Final = "messaging.rocketmq.message.delay_time_level"
_DELIVERY_MS: Final = "messaging.rocketmq.message.delivery_timestamp"

_Attributes = dict[str, str | int | Sequence[str]]


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

        Raises: ConfigError: it is no Producer. StateError: it was started.
        """
        remark = "of an AsyncProducer its .blocking"
        require_client("trace_producer", producer, Producer, remark=remark)
        producer.add_hook(_SendSpans(self._tracer, self._propagator, producer.client_id))

    def trace_consumer(self, consumer: PushConsumer) -> None:
        """Make a span of each listener call of `consumer`; before it starts.

        Raises: ConfigError: it is no PushConsumer. StateError: it was started.
        """
        remark = "of an AsyncConsumer its .blocking, once a listener is registered"
        require_client("trace_consumer", consumer, PushConsumer, remark=remark)
        consumer.add_hook(
            _ListenerSpans(
                self._tracer,
                self._propagator,
                {
                    _CLIENT_ID: consumer.client_id,
                    _CONSUMPTION_MODEL: consumer.config.message_model.value,
                },
            )
        )


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

    def __init__(self, tracer: trace.Tracer, propagator: TextMapPropagator, client_id: str) -> None:
        self._tracer = tracer
        self._propagator = propagator
        self._client_id = client_id
        self._of_topics: dict[str, _Attributes] = {}  # the same for each message of a topic

    def before(self, call: SendCall) -> None:
        message = call.message
        of_topic = self._of_topics.get(message.topic)
        if of_topic is None:
            of_topic = self._of_topics[message.topic] = self._of_topic(call)
        span = call.notes[_SPAN] = self._tracer.start_span(
            f"send {message.topic}",
            kind=SpanKind.PRODUCER,
            attributes=of_topic | _of_sent(call),
        )
        written: dict[str, str] = {}
        self._propagator.inject(written, trace.set_span_in_context(span), _SETTER)
        # A message that carries a context already, as one that is sent on, keeps the sender's.
        if not written.keys() & message.properties.keys():
            call.added_properties |= written

    def after(self, call: SendCall) -> None:
        span: Span = call.notes[_SPAN]
        if call.receipt is not None:
            stored_at = call.receipt.offset_message_id[:-_POSITION_DIGITS]
            span.set_attributes(
                _server_of(stored_at) | {PARTITION: partition_of(call.receipt.message_queue)}
            )
        if call.exception is not None:
            _fail(span, type(call.exception).__qualname__, call.exception)
        span.end()

    def _of_topic(self, call: SendCall) -> _Attributes:
        return {
            SYSTEM_LABEL: SYSTEM,
            OPERATION: "send",
            OPERATION_TYPE: OPERATION_TYPES["send"],
            TOPIC: call.message.topic,
            PRODUCER_GROUP: call.group,
            _CLIENT_ID: self._client_id,
            _NAMESPACE: call.namespace,
        }


def _of_sent(call: SendCall) -> _Attributes:
    """Return what the conventions want to know of a message that is sent."""
    message = call.message
    found: _Attributes = {
        _MESSAGE_ID: call.message_id,
        _BODY_SIZE: len(message.body),
    }
    _add_type(
        found,
        is_half=call.is_half,
        is_delayed=message.is_delayed,
        group="" if call.sharding_key is None else key_text(call.sharding_key),
    )
    _add_labels(found, message.tags, message.keys, call.correlation_id)
    if message.delay_level:
        found[_DELAY_LEVEL] = message.delay_level
    elif message.is_delayed:
        found[_DELIVERY_MS] = message.deliver_at_ms or call.at_ms + message.delay_ms
    return found


def _of_received(message: MessageView) -> _Attributes:
    """Return what the conventions want to know of a message that was received."""
    property_of = message.get_property
    found: _Attributes = {
        _MESSAGE_ID: message.message_id,
        _BODY_SIZE: len(message.body),
    }
    _add_type(
        found,
        is_half=property_of(props.TRANSACTION_PREPARED) is not None,
        is_delayed=any(property_of(name) for name in props.DELAYS),
        group=property_of(props.SHARDING_KEY) or "",
    )
    _add_labels(found, message.tags, message.keys, property_of(props.CORRELATION_ID))
    return found


def _add_type(found: _Attributes, *, is_half: bool, is_delayed: bool, group: str) -> None:
    # The order of RocketMQ's TopicMessageType: a message has one type, the first that fits.
    kind = "transaction" if is_half else "delay" if is_delayed else "fifo" if group else "normal"
    found[_MESSAGE_TYPE] = kind
    if group:
        found[_MESSAGE_GROUP] = group


def _add_labels(
    found: _Attributes, tag: str | None, keys: Sequence[str], conversation: str | None
) -> None:
    if tag:
        found[_TAG] = tag
    if keys:
        found[_KEYS] = tuple(keys)
    if conversation:
        found[_CONVERSATION] = conversation


@lru_cache(maxsize=256)
def _server_of(stored_at: str) -> _Attributes:
    """Return the attributes of the broker whose ids of messages begin so."""
    return _server(broker_of(stored_at + "0" * _POSITION_DIGITS))


def _server(address: str) -> _Attributes:
    """Return the attributes of a broker at `address:port`, as it names itself; none for ""."""
    if not address:
        return {}
    host, _, port = address.rpartition(":")
    return {_SERVER_ADDRESS: host.strip("[]"), _SERVER_PORT: int(port)}


class _ListenerSpans(ConsumeHook):
    """Hook that spans a listener call, and makes its span the current one meanwhile."""

    def __init__(
        self,
        tracer: trace.Tracer,
        propagator: TextMapPropagator,
        of_client: Mapping[str, str],
    ) -> None:
        self._tracer = tracer
        self._propagator = propagator
        self._of_client = of_client

    def before(self, call: ConsumeCall) -> None:
        queue, messages = call.message_queue, call.messages
        of_each = [_of_received(message) for message in messages]
        attributes: _Attributes = {
            SYSTEM_LABEL: SYSTEM,
            OPERATION: "process",
            OPERATION_TYPE: OPERATION_TYPES["process"],
            TOPIC: queue.topic,
            PARTITION: partition_of(queue),
            GROUP: call.group,
            _NAMESPACE: call.namespace,
            **self._of_client,
            **_server(messages[0].store_host),
            **_shared(of_each),
        }
        if len(messages) > 1:
            attributes[_BATCH_SIZE] = len(messages)
        # A root: a call may have messages of many traces, and may come days after their sends.
        span = self._tracer.start_span(
            f"process {queue.topic}",
            Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=list(self._links(messages, of_each)),
        )
        token = context.attach(trace.set_span_in_context(span))
        call.notes[_SPAN] = span, token, _where()

    def _links(
        self, messages: Sequence[MessageView], of_each: Sequence[_Attributes]
    ) -> Iterator[Link]:
        for message, attributes in zip(messages, of_each, strict=True):
            sent = self._propagator.extract(message, Context(), _GETTER)
            found = trace.get_current_span(sent).get_span_context()
            if found.is_valid:
                yield Link(found, attributes)

    def after(self, call: ConsumeCall) -> None:
        span, token, where = _noted(call)
        # A plain function that returned a coroutine began on another thread than it ends on, and
        # a context belongs to its thread; the next call there attaches its own.
        if where == _where():
            context.detach(token)
        if kind := error_of_call(call):
            _fail(span, kind, call.exception)
        span.end()


def _shared(of_each: Sequence[_Attributes]) -> _Attributes:
    """Return what is the same for all messages; what differs belongs to their links."""
    first, *others = of_each
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in others)
        # Two bodies of one size are a coincidence, and the sizes are those of single messages.
        and not (others and name == _BODY_SIZE)
    }


def _noted(call: ConsumeCall) -> tuple[Span, Token[Context], object]:
    noted: tuple[Span, Token[Context], object] = call.notes[_SPAN]
    return noted


def _where() -> tuple[int, asyncio.Task[Any] | None]:
    """Return the thread and the task that run."""
    return threading.get_ident(), running_task()


def _fail(span: Span, kind: str, error: BaseException | None) -> None:
    span.set_attribute(ERROR, kind)
    span.set_status(Status(StatusCode.ERROR, own_text(error) if error is not None else kind))
    if error is not None:
        # The SDK makes the text itself, and one whose text cannot be made must not keep the span
        # from its end.
        with contextlib.suppress(Exception):
            span.record_exception(error)
