"""The push consumer, and the names of those that ordermq has nothing for."""

from __future__ import annotations

import abc
import logging
from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum
from typing import Any

import ordermq.consumer.push_consumer as engine
from ordermq.consumer.listener import ConsumeContext
from ordermq.errors import BrokerError
from ordermq.model.message import MessageView
from ordermq.remoting.codes import ResponseCode
from ordermq.rocketmq.exceptions import raised_as
from ordermq.rocketmq.v5.configuration import ClientConfiguration
from ordermq.rocketmq.v5.exception import (
    ClientException,
    IllegalArgumentException,
    IllegalStateException,
    UnsupportedException,
)
from ordermq.rocketmq.v5.message import Message

_log = logging.getLogger("ordermq.rocketmq")


class ConsumeResult(Enum):
    """The answer of a listener."""

    SUCCESS = 0
    FAILURE = 1  # comes again later


class FilterType(IntEnum):
    """The language of a filter."""

    TAG = 1
    SQL = 2


class FilterExpression:
    """A filter of messages: tags joined by `||`, or a condition in SQL."""

    TAG_EXPRESSION_SUB_ALL = "*"

    def __init__(
        self, expression: str = TAG_EXPRESSION_SUB_ALL, filter_type: int = FilterType.TAG
    ) -> None:
        self.expression = expression
        self.filter_type = filter_type


class MessageListener(abc.ABC):
    """Consumes messages one by one."""

    @abc.abstractmethod
    def consume(self, message: Message) -> ConsumeResult:
        """Consume a message."""


class PushConsumer:
    """A member of a group; whether it consumes in order is a property of the group, at the broker.

    Args:
        max_cache_message_count, max_cache_message_size: no effect: a member has one batch of each
            queue.
        consumption_thread_count: of listener calls at once.
    """

    def __init__(
        self,
        client_configuration: ClientConfiguration,
        consumer_group: str,
        message_listener: MessageListener | None = None,
        subscription: Mapping[str, FilterExpression] | None = None,
        max_cache_message_count: int = 1024,
        max_cache_message_size: int = 64 * 1024 * 1024,
        consumption_thread_count: int = 20,
        tls_enable: bool = False,
    ) -> None:
        self.client_configuration = client_configuration
        self.consumer_group = consumer_group
        self._listener = message_listener
        self._subscription = dict(subscription or {})
        self._threads = consumption_thread_count
        self._tls = tls_enable
        self._engine: engine.PushConsumer | None = None

    def __str__(self) -> str:
        client_id = "none" if self._engine is None else self._engine.client_id
        return f"PUSH_CONSUMER client_id:{client_id}, consumer_group:{self.consumer_group}"

    @property
    def is_running(self) -> bool:
        return self._engine is not None

    def startup(self) -> None:
        """Join the group and begin.

        Raises: ClientException: the proxy does not answer, or refuses the group.
        """
        if self.is_running:
            raise IllegalStateException("push consumer is running already.")
        if self._listener is None or not self._subscription:
            raise IllegalArgumentException("a listener and a subscription have to be set before.")
        with raised_as(ClientException):
            try:
                self._engine = self._started(in_order=False)
            except BrokerError as error:
                # The group is an ordered one, which only the proxy knows.
                if error.response_code != ResponseCode.NO_PERMISSION:
                    raise
                self._engine = self._started(in_order=True)

    def shutdown(self) -> None:
        """Finish the messages in progress, give back the rest, and leave."""
        made, self._engine = self._engine, None
        if made is not None:
            with raised_as(ClientException):
                made.close()

    def subscribe(self, topic: str, filter_expression: FilterExpression | None = None) -> None:
        """Consume a topic, or other messages of it."""
        self._subscription[topic] = filter_expression or FilterExpression()
        if self._engine is not None:
            with raised_as(ClientException):
                _subscribe(self._engine, topic, self._subscription[topic])

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no longer; before the start.

        Raises: UnsupportedException: the consumer runs.
        """
        if self._engine is not None:
            raise UnsupportedException("unsubscribe: shut the consumer down first")
        self._subscription.pop(topic, None)

    def _started(self, *, in_order: bool) -> engine.PushConsumer:
        made = engine.PushConsumer(
            self.consumer_group,
            consume_thread_count=self._threads,
            consume_message_batch_max_size=1,
            **self.client_configuration.settings(tls=self._tls),
        )
        for topic, expression in self._subscription.items():
            _subscribe(made, topic, expression)
        (made.orderly if in_order else made.concurrently)(self._listen)
        try:
            made.start()
        except BaseException:
            made.close(0.0)
            raise
        return made

    def _listen(self, messages: Sequence[MessageView], context: ConsumeContext) -> int:
        assert self._listener is not None
        try:
            answer = self._listener.consume(Message.received(messages[0]))
        except Exception:  # noqa: BLE001 - logged; the message is redelivered
            _log.exception(
                "listener failed, message will be redelivered: group=%s message=%r",
                self.consumer_group,
                messages[0],
            )
            return 0
        return int(answer is ConsumeResult.SUCCESS)


def _subscribe(made: engine.PushConsumer, topic: str, expression: FilterExpression) -> None:
    if expression.filter_type == FilterType.SQL:
        made.subscribe(topic, sql=expression.expression)
    else:
        made.subscribe(topic, expression.expression)


class _Missing:
    """A consumer that ordermq has nothing for."""

    reason = ""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        raise UnsupportedException(f"{type(self).__name__}: {self.reason}")


class SimpleConsumer(_Missing):
    """Receives and acknowledges message by message: not there."""

    reason = (
        "a program that receives by itself takes ordermq.LitePullConsumer, with the addresses of "
        "name servers or of the proxy's remoting port, and commits; over gRPC take PushConsumer"
    )


class LitePushConsumer(_Missing):
    """Consumes lite topics: not there."""

    reason = "ordermq does not support lite topics"


class LiteSimpleConsumer(_Missing):
    """Receives of lite topics: not there."""

    reason = "ordermq does not support lite topics"
