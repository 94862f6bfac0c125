"""TestOrderMQBroker: an application's broker without a network, or at an embedded broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import AsyncMock, patch

from faststream._internal.parser import DefaultCodec
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound
from faststream.response.response import Response

from ordermq.broker import EmbeddedBroker
from ordermq.client.runtime import in_thread
from ordermq.contrib.faststream.broker import OrderMQBroker
from ordermq.contrib.faststream.publisher import (
    OrderMQProducer,
    OrderMQPublishCommand,
    TopicPublisher,
)
from ordermq.contrib.faststream.subscriber import TopicSubscriber
from ordermq.model.message import Message, MessageRun, MessageView
from ordermq.producer.queue_selector import ShardingKey
from ordermq.testing import delivery


class TestOrderMQBroker(TestBroker[OrderMQBroker, EnterType], broker=OrderMQBroker):
    """Runs an application's handlers in a test.

        async with TestOrderMQBroker(broker) as test_broker:
            await test_broker.publish({"id": 17}, "orders")
            handler.mock.assert_called_once_with({"id": 17})

    By default there is no network: `publish` calls the handlers of the topic and raises what they
    raise. Order and redelivery are then those of the calls.

    Args:
        with_real: use the brokers as they are configured.
        embedded: start an embedded broker, and use it instead of what is configured: messages
            are stored, ordered, redelivered and replied to as in production.
    """

    __test__ = False

    def __init__(
        self,
        *brokers: OrderMQBroker,
        with_real: bool = False,
        embedded: bool = False,
        connect_only: bool | None = None,
    ) -> None:
        super().__init__(*brokers, with_real=with_real or embedded, connect_only=connect_only)
        self._embedded = EmbeddedBroker() if embedded else None
        self._configured: list[Any] = []

    async def __aenter__(self) -> EnterType:
        if self._embedded is not None:
            await in_thread(self._embedded.start)
            for broker in self.brokers:
                config = broker.config.broker_config
                self._configured.append(config.name_servers)
                config.name_servers = self._embedded.name_servers
        try:
            return await super().__aenter__()
        except BaseException:
            await self._close_embedded()
            raise

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await super().__aexit__(*raised)
        finally:
            await self._close_embedded()

    async def _close_embedded(self) -> None:
        if self._embedded is not None:
            for broker, name_servers in zip(self.brokers, self._configured, strict=True):
                broker.config.broker_config.name_servers = name_servers
            self._configured.clear()
            await in_thread(self._embedded.close)

    @contextmanager
    def _patch_producer(self, broker: OrderMQBroker) -> Iterator[None]:
        config = broker.config.broker_config
        with (
            change_producer(config, FakeProducer(broker, self.brokers)),
            patch.object(config, "new_consumer", _NoConsumer),
        ):
            yield

    async def _fake_connect(self, broker: OrderMQBroker, *args: Any, **kwargs: Any) -> Any:
        return AsyncMock()

    def _fake_start(self, broker: OrderMQBroker, *args: Any, **kwargs: Any) -> None:
        broker.check_groups()  # as the broker's own start does
        super()._fake_start(broker, *args, **kwargs)

    def create_publisher_fake_subscriber(
        self, broker: OrderMQBroker, publisher: TopicPublisher
    ) -> tuple[TopicSubscriber, bool]:
        """Return a subscriber of a publisher's topic, and whether it is the application's own."""
        for found in _subscribers(self.brokers, publisher.topic):
            return found, True
        made = broker.subscriber(
            publisher.topic,
            batch=publisher.batch,
            consume_from_where="first_offset",
            persistent=False,
        )
        return made, False


class _NoConsumer:
    """Takes a listener and calls it never: the producer of the test calls the handlers."""

    def __init__(self, group: str, **settings: Any) -> None:
        self.group = group

    def subscribe(self, topic: str, expression: str, *, sql: str | None) -> None:
        """Take a topic."""

    def orderly(self, listener: Any) -> None:
        """Take a listener."""

    concurrently = orderly

    async def start(self) -> None:
        """Connect to nothing."""

    async def close(self, timeout_s: float) -> bool:
        """Have nothing to leave."""
        return True


class FakeProducer(OrderMQProducer):
    """Calls the handlers of a topic instead of sending to it."""

    def __init__(self, broker: OrderMQBroker, brokers: Sequence[OrderMQBroker]) -> None:
        super().__init__(broker._parser, broker._decoder)
        self.codec = broker.config.broker_codec or DefaultCodec()
        self.serializer = broker.config.fd_config._serializer
        self._broker = broker
        self._brokers = brokers

    def __bool__(self) -> bool:
        return True

    async def publish(self, cmd: OrderMQPublishCommand) -> None:
        """Have every group of the topic handle a message."""
        message, key = await self._message(cmd)
        for subscriber in self._groups(cmd.destination):
            await self._handle(subscriber, [(message, key)])

    async def publish_batch(self, cmd: OrderMQPublishCommand) -> None:  # type: ignore[override]
        """Have every group of the topic handle the messages of a batch."""
        messages, key = await self.batch_of(cmd)
        pairs = [(message, key) for message in messages]
        for subscriber in self._groups(cmd.destination):
            calls = [pairs] if subscriber.config.max_records else [[pair] for pair in pairs]
            for each in calls:
                await self._handle(subscriber, each)

    async def request(self, cmd: OrderMQPublishCommand) -> MessageView:
        """Have the first group of the topic handle a message, and return its result.

        Raises: SubscriberNotFound: there is none. TimeoutError: it took longer.
        """
        message, key = await self._message(cmd)
        for subscriber in self._groups(cmd.destination):
            async with asyncio.timeout(cmd.timeout_s):
                result = await self._handle(subscriber, [(message, key)])
            return await self._view(cmd.destination, result)
        raise SubscriberNotFound(f"no subscriber of topic {cmd.destination}")

    async def _view(self, topic: str, result: Response) -> MessageView:
        reply = OrderMQPublishCommand.from_cmd(result.as_publish_command())
        reply.destination = topic
        return _delivered([await self._message(reply)])[0]

    def _groups(self, topic: str) -> Iterator[TopicSubscriber]:
        seen: set[str] = set()
        for subscriber in _subscribers(self._brokers, topic):
            if subscriber.group not in seen:  # one member of a group handles a message
                seen.add(subscriber.group)
                yield subscriber

    async def _handle(
        self, subscriber: TopicSubscriber, pairs: list[tuple[Message, ShardingKey | None]]
    ) -> Response:
        run = _delivered(pairs)
        return await subscriber.process_message(run if subscriber.config.max_records else run[0])


def _subscribers(brokers: Sequence[OrderMQBroker], topic: str) -> Iterator[TopicSubscriber]:
    for broker in brokers:
        for subscriber in cast("list[TopicSubscriber]", broker.subscribers):
            if topic in subscriber.topics:
                yield subscriber


def _delivered(pairs: list[tuple[Message, ShardingKey | None]]) -> MessageRun:
    return delivery(pairs)[0]
