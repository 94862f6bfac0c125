"""Which queue a message goes to: the caller's, its key's, or the next in turn."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from ordermq.client.routes import Routes, are_brokers_away, publish_queues
from ordermq.config import SendConfig
from ordermq.errors import ConfigError, OrderingError, RouteError
from ordermq.model.message import Message
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import AUTO_CREATE_TOPIC
from ordermq.producer.faults import Faults
from ordermq.producer.selectors import QueueSelector, ShardingKey
from ordermq.remoting.bodies import TopicRoute


class Targets:
    """Chooses queues for one producer; on the I/O thread.

    Args:
        faults: brokers to leave out, if unordered messages shall pass by slow ones.
    """

    def __init__(
        self, selector: QueueSelector, config: SendConfig, faults: Faults | None = None
    ) -> None:
        self._selector = selector
        self._config = config
        self._faults = faults
        # The queues of a topic must not change under its keys
        # (docs/internals/semantics.md#ordered-sends).
        self._pinned: dict[str, tuple[MessageQueue, ...]] = {}
        self._latest: dict[str, tuple[TopicRoute, tuple[MessageQueue, ...]]] = {}
        self._turns = itertools.count()

    def choose(
        self,
        routes: Routes,
        message: Message,
        key: ShardingKey | None,
        queue: MessageQueue | None,
    ) -> MessageQueue:
        """The queue for a message of a topic whose route we have (`learn`).

        Raises: ConfigError: `queue` is of another topic, or the selector invented one. Else as
            `queues`.
        """
        if queue is not None:
            if queue.topic != message.topic:
                raise ConfigError(
                    f"queue {queue} is of another topic than the message", topic=message.topic
                )
            return queue
        if key is None:
            queues = self._latest_of(routes, message.topic)
            return self._in_turn(_at_least_one(queues, message.topic))
        queues = self.queues(routes, message.topic)
        target = self._selector(queues, message, key)
        if target not in queues:
            raise ConfigError(
                f"the selector returned {target!r}: expected one of the queues it was given",
                topic=message.topic,
            )
        return target

    def elsewhere(self, routes: Routes, queue: MessageQueue) -> MessageQueue | None:
        """A queue of the same topic at another broker; None if there is none."""
        others = [
            other
            for other in self._latest_of(routes, queue.topic)
            if other.broker_name != queue.broker_name
        ]
        return self._in_turn(others) if others else None

    def _in_turn(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        found = queues[next(self._turns) % len(queues)]
        if self._faults is None:
            return found
        for _ in queues:
            if self._faults.is_available(found.broker_name):
                break
            found = queues[next(self._turns) % len(queues)]
        return found  # if none is available, whoever is next

    def queues(self, routes: Routes, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a learned topic that the selector chooses from, sorted.

        With those of brokers that are away, be it all of them: their keys wait, as long as a
        send is tried again, and no key moves.

        Raises:
            RouteError: no broker has the topic, or none took its messages since we know it.
            OrderingError: they changed since a key was first sent, and keys would move.
        """
        queues, pinned = self._latest_of(routes, topic), self._pinned.get(topic)
        if queues is pinned:
            return queues
        if pinned is None:
            self._pinned[topic] = _at_least_one(queues, topic)
            return queues
        if not queues:  # there is nowhere to move to
            return pinned
        if pinned != queues and not self._config.allow_queue_change:
            if are_brokers_away(queues, pinned):
                return pinned
            raise OrderingError(
                f"the topic had {len(pinned)} queues when a key was first sent and has "
                f"{len(queues)} now: keys would move to other queues, ahead of messages before "
                "them. Let consumers catch up and start a new producer, or set "
                "allow_queue_change=True",
                topic=topic,
            )
        self._pinned[topic] = queues
        return queues

    def _latest_of(self, routes: Routes, topic: str) -> tuple[MessageQueue, ...]:
        """The queues there are now, perhaps none; messages without a key may go to any of them."""
        route = self._route(routes, topic)
        latest = self._latest.get(topic)
        if latest is not None and latest[0] is route:
            return latest[1]
        queues = tuple(publish_queues(topic, route))
        self._latest[topic] = (route, queues)
        return queues

    async def learn(self, routes: Routes, topic: str) -> None:
        """Get the route of a topic; of one that its first send creates, that of its template.

        Raises: RouteError: no name server answers.
        """
        if await routes.get(topic) is None:
            await routes.get(AUTO_CREATE_TOPIC)

    def _route(self, routes: Routes, topic: str) -> TopicRoute:
        route = routes.known(topic)
        if route is not None:
            return route
        # Unknown topics are created by their first send, with the queues we ask for at most.
        template = routes.known(AUTO_CREATE_TOPIC)
        if template is None:
            raise RouteError(
                "topic not found on any broker, and no broker creates topics on first use: "
                "create it first",
                topic=topic,
            )
        most = self._config.default_topic_queue_nums
        return TopicRoute(
            template.brokers,
            tuple(
                replace(
                    data,
                    read_queue_nums=min(data.read_queue_nums, most),
                    write_queue_nums=min(data.write_queue_nums, most),
                )
                for data in template.queues
            ),
        )


def _at_least_one(queues: tuple[MessageQueue, ...], topic: str) -> tuple[MessageQueue, ...]:
    if not queues:
        raise RouteError(
            "no broker takes messages of this topic now: no writable queue has a live master",
            topic=topic,
        )
    return queues
