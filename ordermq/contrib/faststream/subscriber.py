"""Subscribers: a consumer of ordermq per subscriber, whose listener runs FastStream's handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import SetupError, StopConsume
from faststream.message import AckStatus, StreamMessage
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, SubscriberSpec

from ordermq.consumer.async_consumer import AsyncBatch, AsyncConsumer
from ordermq.consumer.dispatch.failure_policy import FailurePolicy
from ordermq.consumer.listener import ConcurrentContext, ConsumeContext, ListenerAnswer
from ordermq.contrib.faststream.message import (
    MessageParser,
    OrderMQMessage,
    Raw,
    acknowledgement,
    noted,
    parsed,
)
from ordermq.contrib.faststream.publisher import ReplyPublisher
from ordermq.contrib.rejected import Rejected, with_rejections
from ordermq.errors import DecodeError
from ordermq.model.message import MessageView
from ordermq.model.status import ConsumeResult

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream._internal.types import AsyncCallable, CustomCallable

_log = logging.getLogger("ordermq.faststream")
_NO_LIMIT_S = 3_600.0  # `graceful_timeout=None` waits for handlers as long as they take
_DEAD_LETTER_NOW = -1  # of `ConcurrentContext.delay_level`
_PASSES_OVER = frozenset({AckPolicy.ACK, AckPolicy.REJECT_ON_ERROR})
Order = Literal["queue", "key", "none"]


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """Arguments that a subscriber was registered with (docs/faststream.md#subscribers).

    Args:
        order: of what the handler sees one message at a time: a queue, a key, or nothing.
        max_records: messages of one call of the handler, which gets a list then; 0 for single ones.
        settings: of the consumer.
    """

    topics: tuple[str, ...]
    group: str
    order: Order
    max_records: int
    expression: str
    sql: str | None
    on_failure: FailurePolicy | None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def ack_policy(self) -> AckPolicy:
        """The subscriber's policy, else the broker's; by default a failed message is retried.

        Raises: SetupError: ACK_FIRST.
        """
        policy = self._ack_policy
        if policy is EMPTY:
            policy = self._outer_config.ack_policy
        if policy is AckPolicy.ACK_FIRST:
            raise SetupError(
                f"subscriber of {', '.join(self.topics)}: AckPolicy.ACK_FIRST would commit before "
                "the handler has run, and an ordered consumer commits what is done; AckPolicy.ACK "
                "commits whatever the handler raises"
            )
        return AckPolicy.NACK_ON_ERROR if policy is EMPTY else policy


@dataclass(kw_only=True)
class SubscriberSpecConfig(SubscriberSpecificationConfig):
    """Part of the AsyncAPI document that is about a subscriber."""

    topics: tuple[str, ...]


class TopicSubscriberSpecification(SubscriberSpecification[Any, SubscriberSpecConfig]):
    """Channels of a subscriber in the AsyncAPI document, one per topic."""

    @property
    def channel_labels(self) -> list[str]:
        """The topics, with the prefixes of their routers."""
        prefix = self._outer_config.prefix
        return list(dict.fromkeys(f"{prefix}{topic}" for topic in self.config.topics))

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return its channels. AsyncAPI has no bindings for RocketMQ."""
        payloads, topics = self.get_payloads(), self.channel_labels
        channels = {}
        for topic in topics:
            name = self._channel_key(topic, split=len(topics) > 1)
            message = MessageSpec(title=f"{name}:Message", payload=resolve_payloads(payloads))
            channels[name] = SubscriberSpec(
                address=topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        return channels


class TopicSubscriber(SubscriberUsecase[Any]):
    """A member of a consumer group whose listener is FastStream's chain of handlers.

    Without a handler it is read by `get_one` or `async for`.
    """

    _outer_config: Any  # an `OrderMQBrokerConfig`, with what routers add

    def __init__(
        self,
        config: SubscriberConfig,
        specification: TopicSubscriberSpecification,
        calls: CallsCollection[Any],
    ) -> None:
        parser = MessageParser()
        config.parser = parser.parse_batch if config.max_records else parser.parse_message
        config.decoder = parser.decode_batch if config.max_records else parser.decode_message
        super().__init__(config, cast("Any", specification), calls)
        self.config = config
        self._consumer: AsyncConsumer | None = None
        self._is_consuming: ContextVar[bool] = ContextVar("consuming", default=False)
        self._closing: asyncio.Task[None] | None = None
        self._reader: _Reader | None = None  # without handlers
        self._has_warned = False

    @property
    def topics(self) -> list[str]:
        """The topics, with the prefixes of their routers."""
        return [f"{self._outer_config.prefix}{topic}" for topic in self.config.topics]

    @property
    def group(self) -> str:
        """The consumer group; by default one per subscriber, of the broker's group and topics.

        Members of one group subscribe to the same topics, so subscribers cannot share the
        broker's.
        """
        if self.config.group:
            return f"{self._outer_config.prefix}{self.config.group}"
        return "-".join([self._outer_config.group, *self.topics])

    @property
    def subscription(self) -> tuple[set[str], str, str | None]:
        """Topics and the part of them that it takes: the same for all members of a group."""
        return {*self.topics}, self.config.expression, self.config.sql

    @property
    def consumer(self) -> AsyncConsumer | None:
        """The consumer while it runs, for its lag, health and statistics."""
        return self._consumer

    # Starting and stopping.

    async def start(self) -> None:
        """Join the group."""
        if self._consumer is not None:
            return
        await super().start()
        consumer = self._consumer = self._made_consumer()
        self._post_start()  # the first message may come before the consumer has started
        try:
            await consumer.start()
        except BaseException:
            self._consumer, self.running = None, False
            raise

    def _made_consumer(self) -> AsyncConsumer:
        config, options = self.config, dict[str, Any]()
        if self.calls:
            options |= _by_order(config.order)
            if config.order != "none":
                options["on_failure"] = with_rejections(config.on_failure)
            if config.max_records:
                options["consume_message_batch_max_size"] = config.max_records
        else:
            options["poll_batch_size"] = config.max_records or 1
        consumer: AsyncConsumer = self._outer_config.new_consumer(
            self.group,
            name_servers=self._outer_config.name_servers,
            **self._outer_config.remoting,
            **(options | config.settings),
        )
        for topic in self.topics:
            consumer.subscribe(topic, config.expression, sql=config.sql)
        if self.calls and config.order == "none":
            consumer.concurrently(self._listen)
        elif self.calls:
            consumer.orderly(self._listen)
        return consumer

    async def stop(self) -> None:
        """Leave the group; handlers that run get the broker's `graceful_timeout` to end.

        A handler may stop its own subscriber: it leaves when the handler has ended.
        """
        if self._is_consuming.get():
            self.running = False
            if self._closing is None:
                self._closing = asyncio.create_task(self._close())
            return
        if self._closing is not None:
            await self._closing
        await self._close()

    async def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        limit_s = self._outer_config.graceful_timeout
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        if consumer is not None:
            await consumer.close(_NO_LIMIT_S if limit_s is None else limit_s)
        await super().stop()

    # Messages for handlers.

    async def _listen(
        self, messages: Sequence[MessageView], context: ConsumeContext
    ) -> ListenerAnswer:
        token = self._is_consuming.set(True)
        try:
            if self.config.max_records:
                return await self._settle(messages, context)
            for done, message in enumerate(messages):
                # A failure in the middle commits what is before it: the next call begins there.
                try:
                    answer = await self._settle(message, context)
                except Exception:
                    if done:
                        return done
                    raise
                if answer is not None:
                    return done or answer
            return ConsumeResult.SUCCESS
        finally:
            self._is_consuming.reset(token)

    async def _settle(self, raw: Raw, context: ConsumeContext) -> ListenerAnswer:
        """Have a message handled; return None if it is done, or how it is redelivered.

        Raises: Rejected: it is to become a dead letter. Exception: what the handler raised, so
            that the failure policy of the consumer sees it.
        """
        if not self.running:
            return ConsumeResult.SUSPEND
        messages: list[StreamMessage[Any]] = []
        token = parsed.set(messages)
        try:
            error = await self._handled(raw)
        finally:
            parsed.reset(token)
        settled = acknowledgement(messages)
        status = None if settled is None else settled.committed
        if status is AckStatus.ACKED:
            return None
        if status is AckStatus.REJECTED:
            return self._rejected(raw, context, error)
        if isinstance(error, DecodeError) and not messages and self.ack_policy in _PASSES_OVER:
            # FastStream applies its policy to what was parsed, and this is not.
            is_alone = isinstance(raw, MessageView) or len(raw) == 1
            if is_alone and self.ack_policy is AckPolicy.ACK:
                return None
            # In order, a rejected batch is called one by one: only the unreadable one is rejected.
            is_ordered = not isinstance(context, ConcurrentContext)
            if is_ordered or self.ack_policy is AckPolicy.REJECT_ON_ERROR:
                return self._rejected(raw, context, error)
        if isinstance(settled, OrderMQMessage) and settled.suspend_ms is not None:
            context.suspend_ms = settled.suspend_ms
            return ConsumeResult.SUSPEND
        if isinstance(error, Exception):
            raise error
        if status is None and error is None:
            self._warn_unacknowledged(raw)
        return ConsumeResult.SUSPEND

    async def _handled(self, raw: Raw) -> BaseException | None:
        """Run the handlers; return what they raised, which FastStream has logged."""
        try:
            await self.process_message(raw)
        except StopConsume as error:
            await self.stop()
            return error
        except SystemExit as error:
            await self.stop()
            if app := self._outer_config.context.get("app"):
                app.exit()
            return error
        except Exception as error:  # noqa: BLE001 - the caller raises it to the consumer
            return error
        return None

    def _rejected(
        self, raw: Raw, context: ConsumeContext, error: BaseException | None
    ) -> ListenerAnswer:
        if isinstance(context, ConcurrentContext):
            context.delay_level = _DEAD_LETTER_NOW
            return ConsumeResult.SUSPEND
        raise Rejected(f"{_place(raw)}: rejected by its handler") from error

    def _warn_unacknowledged(self, raw: Raw) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        _log.warning(
            "%s: its handler returned without ack(), nack() or reject(): it is redelivered, and "
            "later messages wait for it. Call one of them in the handler, or choose another "
            "AckPolicy than MANUAL. Told once per subscriber",
            _place(raw),
        )

    def _get_parser_and_decoder(
        self,
        item_parser: CustomCallable | None = None,
        item_decoder: CustomCallable | None = None,
    ) -> tuple[AsyncCallable, AsyncCallable]:
        parser, decoder = super()._get_parser_and_decoder(item_parser, item_decoder)

        async def parse(raw: Raw) -> Any:
            # A parser of the application may make a message of its own, and that one is settled.
            return noted(cast("StreamMessage[Any]", await parser(raw)))

        return parse, decoder

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Iterable[PublisherProto]:
        raw, producer = message.raw_message, self._outer_config.producer
        if isinstance(raw, MessageView) and raw.wants_reply:
            return (ReplyPublisher(producer, "", raw),)
        return (ReplyPublisher(producer, message.reply_to, None),)

    # Messages without a handler.

    async def get_one(self, *, timeout: float = 5.0) -> OrderMQMessage | None:
        """Return the next message, None if none comes within `timeout` seconds.

        It is done when the next one is asked for; one that is left at `stop` is redelivered.
        """
        batch = await self._batch(timeout)
        return None if batch is None else await self._read(batch)

    async def __aiter__(self) -> AsyncIterator[OrderMQMessage]:
        """Iterate over messages; each is done when the next one is asked for."""
        while (batch := await self._batch(None)) is not None:
            yield await self._read(batch)

    async def _batch(self, timeout_s: float | None) -> AsyncBatch | None:
        assert not self.calls, "a subscriber with a handler cannot be read: its handler gets all"
        assert self._consumer is not None, "start the subscriber first"
        if self._reader is None:
            self._reader = _Reader(self._consumer)
        return await self._reader.next(timeout_s)

    async def _read(self, batch: AsyncBatch) -> OrderMQMessage:
        raw: Raw = batch if self.config.max_records else batch[0]
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        message = await process_msg(
            msg=raw,
            middlewares=(each(raw, context=context) for each in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        return cast("OrderMQMessage", message)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return the fields of log lines: topic, group and id of the message."""
        topic = ",".join(self.topics)
        if message is not None:
            raw = message.raw_message
            first = raw if isinstance(raw, MessageView) else raw[0]
            topic = first.topic
        return {
            "topic": topic,
            "group": self.group,
            "message_id": getattr(message, "message_id", ""),
        }


class _Reader:
    """Reads batches of a consumer in a task of its own, whoever asks for them.

    A batch belongs to the task that it was handed to, and askers come and go.
    """

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._read: asyncio.Queue[AsyncBatch | None] = asyncio.Queue()
        self._done = asyncio.Semaphore(0)
        self._is_held = False
        self._task = asyncio.create_task(self._run(consumer))

    async def _run(self, consumer: AsyncConsumer) -> None:
        try:
            async for batch in consumer:  # asking for the next one ends the last one
                self._read.put_nowait(batch)
                await self._done.acquire()
        finally:
            self._read.put_nowait(None)  # nobody waits for what will not come

    async def next(self, timeout_s: float | None) -> AsyncBatch | None:
        """End the last batch, and return the next one; None after the time, or at the end.

        Raises: what the consumer raised, as `AsyncConsumer.batches`.
        """
        if self._is_held:
            self._is_held = False
            self._done.release()
        try:
            async with asyncio.timeout(timeout_s):
                batch = await self._read.get()
        except TimeoutError:
            return None
        if batch is None:
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()  # raises what ended the reading
        self._is_held = batch is not None
        return batch

    async def close(self) -> None:
        """Leave the batch that was not ended: it is redelivered."""
        self._task.cancel()
        await asyncio.wait([self._task])


def _by_order(order: Order) -> dict[str, Any]:
    return {"order_by_key": True} if order == "key" else {}


def _place(raw: Raw) -> str:
    first = raw if isinstance(raw, MessageView) else raw[0]
    return f"{first.message_queue} offset {first.queue_offset}"
