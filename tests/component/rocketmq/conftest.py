"""Old clients on an embedded broker that answers as RocketMQ's does for young queues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.rocketmq.client import (
    ConsumeStatus,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from tests.component.conftest import DEADLINE_S


@pytest.fixture
def broker_config() -> BrokerConfig:
    return BrokerConfig(broker_name="b", durability="os", new_groups_start_at_zero=True)


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[Producer]:
    producer = Producer("p")
    producer.set_name_server_address(broker.name_servers)
    producer.start()
    yield producer
    producer.shutdown()


def message(body: str | bytes = "body", topic: str = "orders") -> Message:
    made = Message(topic)
    made.set_body(body)
    return made


def stored(broker: EmbeddedBroker, topic: str = "orders") -> list[ReceivedMessage]:
    """All of a topic, queue by queue."""
    reader = PullConsumer("reader")
    reader.set_namesrv_addr(broker.name_servers)
    with reader:
        return list(reader.pull(topic))


class Inbox:
    """A callback that keeps what it got, and answers as told."""

    def __init__(self, answers: Callable[[ReceivedMessage], object] | None = None) -> None:
        self._answers = answers
        self._changed = threading.Condition()
        self.messages: list[ReceivedMessage] = []

    def __call__(self, received: ReceivedMessage) -> object:
        with self._changed:
            self.messages.append(received)
            self._changed.notify_all()
        if self._answers is None:
            return ConsumeStatus.CONSUME_SUCCESS
        return self._answers(received)

    def wait_for(self, count: int) -> list[bytes]:
        """The bodies of at least `count` deliveries."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.messages) >= count, DEADLINE_S):
                pytest.fail(f"not within {DEADLINE_S} s: {count}; got {len(self.messages)}")
            return [each.body for each in self.messages]


@pytest.fixture
def push_consumer(broker: EmbeddedBroker) -> Iterator[Callable[..., PushConsumer]]:
    """Makes consumers with 2.0.0's names; shut down after the test."""
    made: list[PushConsumer] = []

    def make(group: str = "g", *arguments: object, **named: object) -> PushConsumer:
        consumer = PushConsumer(group, *arguments, **named)
        consumer.set_name_server_address(broker.name_servers)
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.shutdown()
