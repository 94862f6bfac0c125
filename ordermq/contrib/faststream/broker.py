"""OrderMQBroker: the broker of a FastStream application; its routers, and what they register."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.configs import BrokerConfig
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from ordermq.admin.admin import Admin
from ordermq.client.runtime import in_thread
from ordermq.config.settings import ProducerSettings, RemotingSettings
from ordermq.consumer.async_consumer import AsyncConsumer
from ordermq.consumer.dispatch.failure_policy import FailurePolicy
from ordermq.contrib.faststream.message import OrderMQMessage
from ordermq.contrib.faststream.publisher import (
    REQUEST_TIMEOUT_S,
    OrderMQProducer,
    OrderMQPublishCommand,
    PublisherConfig,
    PublisherSpecConfig,
    SendOptions,
    TopicPublisher,
    TopicPublisherSpecification,
)
from ordermq.contrib.faststream.subscriber import (
    Order,
    SubscriberConfig,
    SubscriberSpecConfig,
    TopicSubscriber,
    TopicSubscriberSpecification,
)
from ordermq.errors import OrderMQError
from ordermq.model.receipts import SendReceipt
from ordermq.model.subscription import EVERYTHING
from ordermq.producer.async_producer import AsyncProducer

if TYPE_CHECKING:
    from types import TracebackType

    from fast_depends import Provider
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
    from faststream.security import BaseSecurity
    from faststream.specification.schema.extra import Tag, TagDict

_DEFAULT_ADDRESS = "localhost:9876"  # in the AsyncAPI document, where nothing else is known
_MOST_RECORDS = 32  # of a batch, unless it says
_PING_PAUSE_S = 0.1


@dataclass(kw_only=True)
class OrderMQBrokerConfig(BrokerConfig):
    """Configuration that a broker's subscribers and publishers share; routers add to it."""

    name_servers: str | Sequence[str] | None = None
    group: str = ""
    remoting: Mapping[str, Any] = field(default_factory=dict)
    producer_settings: Mapping[str, Any] = field(default_factory=dict)
    new_consumer: Callable[..., AsyncConsumer] = AsyncConsumer


class _LoggerStorage(DefaultLoggerStorage):
    """The widths of topic and group in log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.logger_log_level = logging.INFO
        self._widths = {"topic": 4, "group": 5}

    def set_level(self, level: int) -> None:
        self.logger_log_level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        logger = self._get_logger_ref()
        if logger is None:
            columns = " | ".join(f"%({name})-{width}s" for name, width in self._widths.items())
            logger = get_broker_logger(
                name="ordermq",
                default_context=dict.fromkeys(self._widths, ""),
                message_id_ln=10,
                fmt=f"%(asctime)s %(levelname)-8s - {columns} | %(message_id)-10s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


_make_logger_state = partial(make_logger_state, default_storage_cls=_LoggerStorage)


class OrderMQRegistrator(Registrator[Any, OrderMQBrokerConfig]):
    """Registers subscribers and publishers: a broker, or a router."""

    def subscriber(  # type: ignore[override]
        self,
        *topics: str,
        group: str = "",
        order: Order = "queue",
        expression: str = EVERYTHING,
        sql: str | None = None,
        batch: bool = False,
        max_records: int = _MOST_RECORDS,
        on_failure: FailurePolicy | None = None,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        **settings: Any,
    ) -> TopicSubscriber:
        """Register a subscriber of topics, and return what decorates its handlers.

        Args:
            group: the consumer group; default one of the broker's group and the topics.
            order: "queue" has one call at a time per queue, "key" one per sharding key, and
                "none" any number of calls in any order.
            expression, sql: a part of each topic, as of `PushConsumer.subscribe`.
            batch, max_records: hand a list of up to so many messages of one queue to the handler.
            on_failure: what follows after failed attempts of an ordered subscriber; by default it
                retries without end.
            ack_policy: what an exception of the handler means (docs/faststream.md).
            settings: of the consumer, as `consume_from_where` or `suspend_current_queue_time_ms`.
        Raises: SetupError: no topic, an order that there is not, an option that could not act.
        """
        _check_subscriber(topics, order, on_failure)
        config = SubscriberConfig(
            topics=topics,
            group=group,
            order=order,
            max_records=max_records if batch else 0,
            expression=expression,
            sql=sql,
            on_failure=on_failure,
            settings=settings,
            no_reply=no_reply,
            _outer_config=cast("Any", self.config),
            _ack_policy=ack_policy,
        )
        calls = CallsCollection[Any]()
        specification = TopicSubscriberSpecification(
            _outer_config=cast("Any", self.config),
            calls=calls,
            specification_config=SubscriberSpecConfig(
                topics=topics,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
        )
        made = TopicSubscriber(config, specification, calls)
        super().subscriber(made, persistent=persistent)
        return made.add_call(
            parser_=parser, decoder_=decoder, dependencies_=dependencies, codec_=codec
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        headers: dict[str, str] | None = None,
        reply_to: str = "",
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
        **options: Unpack[SendOptions],
    ) -> TopicPublisher:
        """Register a publisher of a topic; it decorates handlers and has `publish`.

        Args:
            headers, options: of each message, unless a call gives others.
            batch: send the items of a handler's result as one batch to one queue.
        """
        specification = TopicPublisherSpecification(
            _outer_config=cast("Any", self.config),
            specification_config=PublisherSpecConfig(
                topic=topic,
                schema_=schema,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
        )
        config = PublisherConfig(
            topic=topic,
            reply_to=reply_to,
            headers=headers or {},
            options=options,
            batch=batch,
            _outer_config=cast("Any", self.config),
        )
        made = TopicPublisher(config, specification)
        super().publisher(made, persistent=persistent)
        return made

    def include_router(self, router: Any, **options: Any) -> None:
        """Include a router of this kind, as FastStream's `include_router`.

        Raises: SetupError: it is a router of another broker.
        """
        if not isinstance(router, OrderMQRegistrator):
            raise SetupError(
                f"expected an OrderMQRouter, got {type(router).__name__}: a router belongs to the "
                "kind of broker it is named for"
            )
        super().include_router(router, **options)


def _check_subscriber(topics: Sequence[str], order: str, on_failure: FailurePolicy | None) -> None:
    if not topics:
        raise SetupError("a subscriber needs a topic: broker.subscriber('orders')")
    if order not in ("queue", "key", "none"):
        raise SetupError(
            f"subscriber of {', '.join(topics)}: order={order!r}: expected 'queue', 'key' or 'none'"
        )
    if order == "none" and on_failure is not None:
        raise SetupError(
            f"subscriber of {', '.join(topics)}: on_failure is for an ordered subscriber: without "
            "order the broker stores failed messages for later; set max_reconsume_times"
        )


class OrderMQPublisher(ArgsContainer):
    """The arguments of `publisher`, for a route that is registered later."""


class OrderMQRoute(SubscriberRoute):
    """A handler with the arguments of `subscriber`, and its publishers, for a router."""


class OrderMQRouter(OrderMQRegistrator, BrokerRouter[Any, OrderMQBrokerConfig]):
    """A router to include in an `OrderMQBroker`."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[OrderMQRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[OrderMQRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        ack_policy: AckPolicy = EMPTY,
        include_in_schema: bool | None = None,
        underlying_driver_annotations: Mapping[Any, Any] | None = None,
    ) -> None:
        """Make a router.

        Args: prefix: of the topics and of the groups that are named.
        """
        super().__init__(
            handlers=handlers,
            config=OrderMQBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_middlewares=middlewares,
                broker_dependencies=dependencies,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                include_in_schema=include_in_schema,
                underlying_driver_annotations=underlying_driver_annotations or {},
            ),
            routers=routers,
        )


class OrderMQBroker(OrderMQRegistrator, BrokerUsecase[Any, AsyncProducer, OrderMQBrokerConfig]):
    """RocketMQ, or the embedded broker, for a FastStream application (docs/faststream.md)."""

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str = "faststream",
        producer: ProducerSettings | None = None,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        id_generator: IdGenerator = gen_cor_id,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        parser: CustomCallable | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[OrderMQRegistrator] = (),
        security: BaseSecurity | None = None,
        specification_url: str | Iterable[str] | None = None,
        protocol: str = "rocketmq",
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        provider: Provider | None = None,
        serializer: SerializerProto | None = EMPTY,
        context: ContextRepo | None = None,
        underlying_driver_annotations: Mapping[Any, Any] | None = None,
        **remoting: Unpack[RemotingSettings],
    ) -> None:
        """Make a broker; it connects when the application starts.

        Args:
            name_servers: `host:port`, several separated by semicolons; default the environment's.
            group: of the producer; groups of subscribers without a name begin with it.
            producer: settings of the producer.
            graceful_timeout: seconds that handlers get to end when it stops.
            security: SASLPlaintext has the access key and the secret key, `use_ssl` asks for TLS.
            remoting: settings of every client, as `access_key`, `tls` or `namespace`.
        """
        super().__init__(
            routers=routers,
            config=OrderMQBrokerConfig(
                name_servers=name_servers,
                group=group,
                remoting={**_secured(security), **remoting},
                producer_settings=producer or {},
                producer=OrderMQProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                broker_dependencies=dependencies,
                logger=_make_logger_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
                underlying_driver_annotations=underlying_driver_annotations or {},
            ),
            specification=BrokerSpec(
                url=_addresses(specification_url or name_servers or _DEFAULT_ADDRESS),
                protocol=protocol,
                protocol_version=protocol_version,
                description=description,
                security=security,
                tags=tags,
            ),
        )

    @property
    def name_servers(self) -> str | Sequence[str] | None:
        """The name servers it was given."""
        return self.config.broker_config.name_servers

    async def _connect(self) -> AsyncProducer:
        config = self.config.broker_config
        producer = AsyncProducer(
            config.group,
            name_servers=config.name_servers,
            **cast("ProducerSettings", {**config.remoting, **config.producer_settings}),
        )
        await producer.start()
        cast("OrderMQProducer", config.producer).connect(
            producer, config.fd_config._serializer, config.broker_codec
        )
        return producer

    async def start(self) -> None:
        """Connect, and have every subscriber join its group.

        Raises: SetupError: two subscribers have one group by mistake.
        """
        self.check_groups()
        await self.connect()
        await super().start()

    def check_groups(self) -> None:
        """Refuse subscribers that would take messages away from each other.

        Raises: SetupError: two have one group and subscribe differently, so that neither gets all
            of its messages, or nobody has said that they shall share a group.
        """
        first_of: dict[str, TopicSubscriber] = {}
        subscribers = cast(
            "list[TopicSubscriber]", self.subscribers
        )  # FastStream has them in a set
        for subscriber in sorted(subscribers, key=lambda each: each.topics):
            first = first_of.setdefault(subscriber.group, subscriber)
            if first is subscriber:
                continue
            if subscriber.subscription != first.subscription:
                reason = "subscribe differently, and members of a group must subscribe alike"
            elif not subscriber.config.group:
                reason = "would share its messages, as nobody has named a group for each"
            else:
                continue
            raise SetupError(
                f"group {subscriber.group!r}: two subscribers, of {', '.join(first.topics)} and of "
                f"{', '.join(subscriber.topics)}, {reason}: give group= to one of them"
            )

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Have every subscriber leave its group, send what waits, and disconnect."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            await cast("OrderMQProducer", self.config.broker_config.producer).disconnect()
            self._connection = None

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[SendOptions],
    ) -> SendReceipt | None:
        """Send a message, and return its receipt when the broker has stored it.

        Args:
            reply_to: a topic to which the handler's result is sent.
            options: `sharding_key`, `tags`, `keys`, `delay_level`, `deliver_at_ms`, `delay_ms`.
        Raises: as `AsyncProducer.send`.
        """
        cmd = self._command(
            message,
            topic=topic,
            options=options,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
        )
        receipt: SendReceipt | None = await self._basic_publish(cmd, producer=self.config.producer)
        return receipt

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[SendOptions],
    ) -> Sequence[SendReceipt]:
        """Send messages to one queue, all of them or none, and return their receipts.

        Raises: as `AsyncProducer.send_batch`.
        """
        cmd = self._command(
            *messages,
            topic=topic,
            options=options,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
        )
        receipts: Sequence[SendReceipt] = await self._basic_publish_batch(
            cmd, producer=self.config.producer
        )
        return receipts

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
        **options: Unpack[SendOptions],
    ) -> OrderMQMessage:
        """Send a message, and return the result of the handler that gets it.

        Args: timeout: how long to wait for it, in seconds.
        Raises: RequestTimeout, a TimeoutError: none came in time; else as `AsyncProducer.request`.
        """
        cmd = self._command(
            message,
            topic=topic,
            options=options,
            timeout_s=timeout,
            headers=headers,
            correlation_id=correlation_id,
            _publish_type=PublishType.REQUEST,
        )
        reply: OrderMQMessage = await self._basic_request(cmd, producer=self.config.producer)
        return reply

    def _command(
        self, *messages: Any, correlation_id: str | None, **fields: Any
    ) -> OrderMQPublishCommand:
        return OrderMQPublishCommand(
            *(messages or (None,)),
            correlation_id=correlation_id or self.config.id_generator(),
            **fields,
        )

    async def ping(self, timeout: float | None) -> bool:
        """Return True as soon as a broker answers, False after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not await in_thread(self._answers):
                    await asyncio.sleep(_PING_PAUSE_S)
        except TimeoutError:
            return False
        return True

    def _answers(self) -> bool:
        config = self.config.broker_config
        try:
            with Admin(
                config.name_servers, **cast("RemotingSettings", {**config.remoting})
            ) as admin:
                admin.topics()
        except OrderMQError:
            return False
        return True


def _addresses(given: str | Iterable[str]) -> list[str]:
    return given.split(";") if isinstance(given, str) else list(given)


def _secured(security: BaseSecurity | None) -> dict[str, Any]:
    """Return the settings that FastStream's security object stands for.

    Raises: SetupError: a kind that RocketMQ does not have.
    """
    if security is None:
        return {}
    if security.ssl_context is not None:
        raise SetupError(
            "security: an SSLContext cannot be taken over: give use_ssl=True, and tls_ca_file, "
            "tls_certificate and tls_key to the broker"
        )
    settings: dict[str, Any] = {"tls": True} if security.use_ssl else {}
    if type(security).__name__ == "SASLPlaintext":
        signed = cast("Any", security)
        settings |= {"access_key": signed.username, "secret_key": signed.password}
    elif type(security).__name__ != "BaseSecurity":
        raise SetupError(
            f"security={type(security).__name__}: RocketMQ has an access key and a secret key: "
            "SASLPlaintext(username=access_key, password=secret_key)"
        )
    return settings
