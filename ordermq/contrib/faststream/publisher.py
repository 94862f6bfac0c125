"""Publishers: commands to send, the producer that carries them out, and what a broker registers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, PublisherSpec

from ordermq.contrib.faststream.message import (
    CONTENT_TYPE,
    CORRELATION_ID,
    EMPTY_BODY,
    REPLY_TO,
    MessageParser,
    OrderMQMessage,
)
from ordermq.errors import OrderMQError
from ordermq.model.message import Message, MessageView
from ordermq.model.receipts import SendReceipt
from ordermq.producer.async_producer import AsyncProducer
from ordermq.producer.queue_selector import ShardingKey

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.types import CustomCallable, PublisherMiddleware

_log = logging.getLogger("ordermq.faststream")
REQUEST_TIMEOUT_S = 3.0


class SendOptions(TypedDict, total=False):
    """Fields of a message besides its body and its headers, as of `Message`."""

    sharding_key: ShardingKey | None
    tags: str | None
    keys: Sequence[str]
    delay_level: int
    deliver_at_ms: int
    delay_ms: int


class OrderMQResponse(Response):
    """The answer of a handler, with options of its message: a sharding key, a tag, a delay."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = options

    def get_publish_key(self) -> ShardingKey | None:
        """Return the sharding key."""
        return self.options.get("sharding_key")

    def as_publish_command(self) -> OrderMQPublishCommand:
        """Return the command that sends it; its publisher knows the topic."""
        return OrderMQPublishCommand(
            self.body,
            topic="",
            options=self.options,
            headers=self.headers,
            correlation_id=self.correlation_id,
            _publish_type=PublishType.PUBLISH,
        )


class OrderMQPublishCommand(BatchPublishCommand):
    """One call to publish: a message, or a batch for one queue.

    Args:
        options: of each message; `timeout_s`: how long a request waits for its reply.
        request: the message that this one replies to, where its sender waits at the broker.
    """

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        topic: str,
        _publish_type: PublishType,
        options: SendOptions | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        **fields: Any,
    ) -> None:
        super().__init__(
            message, *messages, destination=topic, _publish_type=_publish_type, **fields
        )
        self.options: SendOptions = options or {}
        self.timeout_s = timeout_s
        self.request: MessageView | None = None

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> OrderMQPublishCommand:
        """Return the command of a plain one, as a handler's result makes it."""
        body, others = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *others,
            topic=cmd.destination,
            options=cmd.options if isinstance(cmd, OrderMQPublishCommand) else None,
            correlation_id=cmd.correlation_id,
            headers=cmd.headers,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )

    def properties(self, content_type: str | None) -> dict[str, str]:
        """Return the user properties of its messages."""
        own = {
            CONTENT_TYPE: content_type,
            CORRELATION_ID: self.correlation_id,
            REPLY_TO: self.reply_to,
        }
        return {name: value for name, value in own.items() if value} | self.headers


class OrderMQProducer(ProducerProto[OrderMQPublishCommand]):
    """Encodes commands, and sends them with an `AsyncProducer` while it is connected."""

    def __init__(self, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        default = MessageParser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec: CodecProto = DefaultCodec()
        self.serializer: SerializerProto | None = None
        self._producer: AsyncProducer | None = None

    def __bool__(self) -> bool:
        return self._producer is not None

    def connect(
        self,
        producer: AsyncProducer,
        serializer: SerializerProto | None,
        codec: CodecProto | None,
    ) -> None:
        """Send with `producer` from now on."""
        self._producer, self.serializer = producer, serializer
        self.codec = codec or DefaultCodec()

    async def disconnect(self) -> None:
        """Send what waits, and close the producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()

    @property
    def _connected(self) -> AsyncProducer:
        if self._producer is None:
            raise IncorrectState("the broker is not connected: publish after broker.connect()")
        return self._producer

    async def publish(self, cmd: OrderMQPublishCommand) -> SendReceipt | None:
        """Send one message, and return its receipt; None for a reply that nobody waits for.

        Raises: as `AsyncProducer.send`.
        """
        if cmd.request is not None:
            return await self._reply(cmd.request, cmd)
        message, key = await self._message(cmd)
        return await self._connected.send(message, sharding_key=key)

    async def _reply(self, request: MessageView, cmd: OrderMQPublishCommand) -> SendReceipt | None:
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        body, properties = stored_body(body, cmd.properties(content_type))
        try:
            return await self._connected.reply(
                request,
                body,
                tags=cmd.options.get("tags"),
                keys=cmd.options.get("keys", ()),
                properties=properties,
            )
        except OrderMQError as error:
            # The handler has done its work: to repeat it, as a failure would, helps no requester.
            _log.warning(
                "%s: request %s: the reply was not delivered: %s",
                request.message_queue,
                request.message_id,
                error,
            )
            return None

    async def request(self, cmd: OrderMQPublishCommand) -> MessageView:
        """Send one message, and return the reply of a subscriber to it.

        Raises: as `AsyncProducer.request`; RequestTimeout, a TimeoutError: none came in time.
        """
        message, key = await self._message(cmd)
        timeout_ms = max(int(cmd.timeout_s * 1_000), 1)
        return await self._connected.request(message, timeout_ms, sharding_key=key)

    async def _message(self, cmd: OrderMQPublishCommand) -> tuple[Message, ShardingKey | None]:
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        return message_of(cmd.destination, body, cmd.properties(content_type), cmd.options)

    async def publish_batch(self, cmd: OrderMQPublishCommand) -> Sequence[SendReceipt]:
        """Send messages to one queue, all of them or none, and return their receipts.

        Raises: as `AsyncProducer.send_batch`.
        """
        messages, key = await self.batch_of(cmd)
        return await self._connected.send_batch(messages, sharding_key=key)

    async def batch_of(
        self, cmd: OrderMQPublishCommand
    ) -> tuple[list[Message], ShardingKey | None]:
        """Return the messages of a command, and the sharding key that all of them have."""
        bodies = cmd.batch_bodies or (b"",)  # no message at all cannot be sent
        if isinstance(self.codec, BatchCodecProto):
            encoded = await self.codec.encode_batch(bodies, self.serializer)
        else:
            encoded = [await self.codec.encode(body, self.serializer) for body in bodies]
        made = [
            message_of(cmd.destination, body, cmd.properties(content_type), cmd.options)
            for body, content_type in encoded
        ]
        return [message for message, _ in made], cmd.options.get("sharding_key")


def message_of(
    topic: str, body: bytes, properties: dict[str, str], options: SendOptions
) -> tuple[Message, ShardingKey | None]:
    """Return a message to send, and its sharding key.

    Raises: ConfigError: a header is no text, an option is no field of a message.
    """
    fields: dict[str, Any] = {**options}
    key = fields.pop("sharding_key", None)
    body, properties = stored_body(body, properties)
    return Message(topic, body, properties=properties, **fields), key


def stored_body(body: bytes, properties: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    """Return a body that brokers take, and the properties that say so where it was empty."""
    return (body, properties) if body else (b"\0", {**properties, EMPTY_BODY: "1"})


class ReplyPublisher(FakePublisher):
    """Sends a handler's result to the one who asked for it: at its broker, or in a topic."""

    def __init__(
        self,
        producer: ProducerProto[Any],
        topic: str,
        request: MessageView | None,
    ) -> None:
        super().__init__(producer=producer)
        self._topic = topic
        self._request = request

    def patch_command(self, cmd: PublishCommand) -> OrderMQPublishCommand:
        """Address the result."""
        made = OrderMQPublishCommand.from_cmd(super().patch_command(cmd))
        made.destination, made.request = self._topic, self._request
        return made


@dataclass(kw_only=True)
class PublisherConfig(PublisherUsecaseConfig):
    """Arguments that a publisher was registered with."""

    topic: str
    reply_to: str
    headers: dict[str, str]
    options: SendOptions
    batch: bool


@dataclass(kw_only=True)
class PublisherSpecConfig(PublisherSpecificationConfig):
    """Part of the AsyncAPI document that is about a publisher."""

    topic: str


class TopicPublisherSpecification(PublisherSpecification[Any, PublisherSpecConfig]):
    """The part of the AsyncAPI document that a publisher is."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """The key of its channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return its channel. AsyncAPI has no bindings for RocketMQ."""
        message = MessageSpec(
            title=f"{self.name}:Message",
            payload=resolve_payloads(self.get_payloads(), "Publisher"),
        )
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class TopicPublisher(PublisherUsecase):
    """A publisher of one topic: decorates handlers, and is called by `publish` and `request`."""

    def __init__(self, config: PublisherConfig, specification: TopicPublisherSpecification) -> None:
        super().__init__(config, cast("Any", specification))
        self._topic = config.topic
        self.reply_to = config.reply_to
        self.headers = config.headers
        self.options = config.options
        self.batch = config.batch

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self,
        *messages: Any,
        topic: str = "",
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[SendOptions],
    ) -> Any:
        """Send a message, and return its receipt; with `batch=True` several, and theirs.

        Args:
            topic, headers, reply_to, options: instead of those of this publisher.
        """
        cmd = OrderMQPublishCommand(
            *(messages or (None,)),
            topic=topic or self.topic,
            options=self.options | options,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to or self.reply_to,
            _publish_type=PublishType.PUBLISH,
        )
        send = self._basic_publish_batch if self.batch else self._basic_publish
        return await send(cmd, producer=self._outer_config.producer, _extra_middlewares=())

    async def request(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
        **options: Unpack[SendOptions],
    ) -> OrderMQMessage:
        """Send a message, and return the reply to it; `timeout` is in seconds.

        Raises: RequestTimeout, a TimeoutError: none came in time.
        """
        cmd = OrderMQPublishCommand(
            message,
            topic=topic or self.topic,
            options=self.options | options,
            timeout_s=timeout,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            _publish_type=PublishType.REQUEST,
        )
        reply: OrderMQMessage = await self._basic_request(cmd, producer=self._outer_config.producer)
        return reply

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Send the result of a handler."""
        made = OrderMQPublishCommand.from_cmd(cmd, batch=self.batch)
        made.destination = self.topic
        made.add_headers(self.headers, override=False)
        made.reply_to = made.reply_to or self.reply_to
        made.options = self.options | made.options
        send = self._basic_publish_batch if self.batch else self._basic_publish
        await send(
            made, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )
