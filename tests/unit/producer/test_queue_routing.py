"""Which queues a producer's keys may go to while brokers come, go, and change."""

from __future__ import annotations

import asyncio

import pytest

from ordermq import Message, MessageQueue
from ordermq.client.routes import Routes
from ordermq.config import SendConfig
from ordermq.errors import OrderingError, RouteError
from ordermq.producer.queue_selector import QueueRouting
from ordermq.remoting.bodies import BrokerData, QueueData, TopicRoute

TOPIC = "T"


def first_of(queues: object, message: Message, key: object) -> MessageQueue:
    """A selector: the queue of broker b with the number that the key is."""
    return MessageQueue(TOPIC, "b", int(str(key)))


class Told:
    """A name server's answers, and a producer's choice among them."""

    def __init__(self, *, allow_queue_change: bool = False) -> None:
        self.route: TopicRoute | None = None
        self.routes = Routes(self, lambda topic: None)  # type: ignore[arg-type]
        config = SendConfig(allow_queue_change=allow_queue_change)
        self.routing = QueueRouting(first_of, config)

    async def topic_route(self, topic: str) -> TopicRoute | None:
        return self.route

    def has(self, **counts: int) -> None:
        self._has(0, counts)

    def has_slaves_only(self, **counts: int) -> None:
        self._has(1, counts)

    def _has(self, broker_id: int, counts: dict[str, int]) -> None:
        brokers = tuple(BrokerData(name, {broker_id: f"at {name}"}) for name in counts)
        queues = tuple(QueueData(name, count, count) for name, count in counts.items())
        self.route = TopicRoute(brokers, queues)
        asyncio.run(self.routes.refresh(TOPIC))

    def queue_of(self, key: str) -> MessageQueue:
        return self.routing.choose(self.routes, Message(TOPIC, b"x"), key, None)

    def without_key(self) -> set[str]:
        chosen = (
            self.routing.choose(self.routes, Message(TOPIC, b"x"), None, None) for _ in range(16)
        )
        return {queue.broker_name for queue in chosen}


def test_keys_keep_their_queues_while_a_broker_is_away_and_others_pass_it_by() -> None:
    told = Told()
    told.has(a=2, b=2)
    assert told.queue_of("1") == MessageQueue(TOPIC, "b", 1)
    told.has(a=2)
    assert told.queue_of("1") == MessageQueue(TOPIC, "b", 1)
    assert told.routes.master_of("b") == "at b"
    assert told.without_key() == {"a"}
    told.has(a=2, b=2)
    assert told.queue_of("1") == MessageQueue(TOPIC, "b", 1)
    assert told.without_key() == {"a", "b"}


@pytest.mark.parametrize("allow_queue_change", [False, True])
def test_keys_keep_their_queues_while_all_brokers_are_away_and_others_are_refused(
    allow_queue_change: bool,
) -> None:
    told = Told(allow_queue_change=allow_queue_change)
    told.has(a=2, b=2)
    told.queue_of("1")
    told.has_slaves_only(a=2, b=2)
    assert told.queue_of("1") == MessageQueue(TOPIC, "b", 1)
    assert told.routes.master_of("b") == "at b"
    with pytest.raises(RouteError, match="no writable queue has a live master"):
        told.without_key()
    assert told.routing.fallback(told.routes, MessageQueue(TOPIC, "b", 1)) is None
    told.has(a=2, b=2)
    assert told.queue_of("1") == MessageQueue(TOPIC, "b", 1)
    assert told.without_key() == {"a", "b"}


def test_a_key_is_refused_while_its_topic_never_had_a_queue_for_it() -> None:
    told = Told()
    told.has_slaves_only(a=2)
    with pytest.raises(RouteError, match="no writable queue has a live master"):
        told.queue_of("1")
    told.has(b=2)
    assert told.queue_of("1") == MessageQueue(TOPIC, "b", 1)


@pytest.mark.parametrize("now", [{"a": 1, "b": 2}, {"a": 2, "b": 3}, {"a": 2, "b": 2, "c": 1}])
def test_other_queues_are_refused_for_keys_unless_that_is_allowed(now: dict[str, int]) -> None:
    strict, easy = Told(), Told(allow_queue_change=True)
    for told in (strict, easy):
        told.has(a=2, b=2)
        told.queue_of("1")
        told.has(**now)
    with pytest.raises(OrderingError, match="had 4 queues"):
        strict.queue_of("1")
    assert easy.queue_of("1") == MessageQueue(TOPIC, "b", 1)
    assert len(easy.routing.queues(easy.routes, TOPIC)) == sum(now.values())


def test_keys_move_at_once_where_that_is_allowed() -> None:
    told = Told(allow_queue_change=True)
    told.has(a=2, b=2)
    told.queue_of("1")
    told.has(b=2)
    assert len(told.routing.queues(told.routes, TOPIC)) == 2
