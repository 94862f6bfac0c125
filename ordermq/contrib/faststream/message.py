"""OrderMQMessage: a received message as FastStream has it, and how it is made of a stored one."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from faststream.message import AckStatus, StreamMessage, decode_message

from ordermq.model import properties as props
from ordermq.model.message import MessageView

_M = TypeVar("_M", bound=StreamMessage[Any])
Raw = MessageView | Sequence[MessageView]

# RocketMQ's brokers refuse an empty body, and FastStream sends None as one: such a message is
# stored as one zero byte with this property.
EMPTY_BODY = "empty-body"
CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TO = "reply_to"

# The messages that parsers made of the delivery that runs in this context.
parsed: ContextVar[list[StreamMessage[Any]]] = ContextVar("ordermq_faststream_parsed")


class OrderMQMessage(StreamMessage[Raw]):
    """A message, or a batch of messages of one queue.

    `raw_message` is the `MessageView`, or a sequence of them. What `ack`, `nack` and `reject`
    say counts when the handler has returned: the first one wins.
    """

    suspend_ms: int | None = None

    async def nack(self, suspend_ms: int | None = None) -> None:
        """Have the message redelivered; later messages of its queue or key wait for it.

        Args:
            suspend_ms: the pause before it, 10..30000; None is the consumer's
                `suspend_current_queue_time_ms`.
        """
        if self.committed is None:
            self.suspend_ms = suspend_ms
        await super().nack()


class MessageParser:
    """The default parser and decoder of subscribers and of replies."""

    async def parse_message(self, message: MessageView) -> OrderMQMessage:
        """Return the message of one stored message."""
        headers = props.of_the_user(message.properties)
        return noted(
            OrderMQMessage(
                message,
                _body_of(message, headers),
                headers=headers,
                # A requester waits at its broker; a topic to reply to is a plain header.
                reply_to=message.message_id if message.wants_reply else headers.get(REPLY_TO, ""),
                content_type=headers.get(CONTENT_TYPE),
                correlation_id=headers.get(CORRELATION_ID),
                message_id=message.message_id,
            )
        )

    async def parse_batch(self, message: Sequence[MessageView]) -> OrderMQMessage:
        """Return the message of a batch: a list of bodies, and the headers of each."""
        batch_headers = [props.of_the_user(each.properties) for each in message]
        headers, first, last = batch_headers[0], message[0], message[-1]
        return noted(
            OrderMQMessage(
                message,
                [_body_of(*each) for each in zip(message, batch_headers, strict=True)],
                headers=headers,
                batch_headers=batch_headers,
                reply_to=headers.get(REPLY_TO, ""),
                content_type=headers.get(CONTENT_TYPE),
                correlation_id=headers.get(CORRELATION_ID),
                message_id=f"{first.message_id}-{last.queue_offset - first.queue_offset}",
            )
        )

    async def decode_message(self, msg: StreamMessage[Any]) -> Any:
        """Return the body, by its content type."""
        return decode_message(msg)

    async def decode_batch(self, msg: StreamMessage[Any]) -> Any:
        """Return the body of each message, by its content type."""
        return [decode_message(await self.parse_message(each)) for each in msg.raw_message]


def noted(message: _M) -> _M:
    """Return a parsed message, and note it for the delivery that runs."""
    if (of_delivery := parsed.get(None)) is not None:
        of_delivery.append(message)
    return message


def acknowledgement(messages: Sequence[StreamMessage[Any]]) -> StreamMessage[Any] | None:
    """Return the message of a delivery that was acknowledged, None if none was.

    A filter may need several parsers, each of which makes a message of its own.
    """
    return next((each for each in messages if isinstance(each.committed, AckStatus)), None)


def _body_of(message: MessageView, headers: dict[str, str]) -> bytes:
    return b"" if headers.get(EMPTY_BODY) else bytes(message.body)
