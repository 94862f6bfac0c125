"""Unread messages of withdrawn queues: an admin took the queues from their topic, or closed them
for reads (docs/internals/semantics.md#refusals)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ordermq.client.broker_api import BrokerApi
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import PERM_READ, QueueData, TopicRoute
from ordermq.value import Value

_FEWER = (
    "the topic has fewer queues than before, so nobody gets these messages: have an admin give it "
    "as many for reads again (mqadmin updateTopic -r) until they are consumed"
)
_CLOSED = (
    "they are closed for reads (their perm lacks 4), so nobody gets these messages: have an admin "
    "open them (mqadmin updateTopicPerm -p 6, or updateBrokerConfig -k brokerPermission -v 6)"
)
# Queues beyond a topic's last one that are asked for together. One of them that no member of the
# group ever had does not hide those behind it.
_BLOCK = 4
# A queue that no topic has: a broker that answers 0 for it, as RocketMQ 4.9 does, answers 0 for
# every queue whose offset it does not know.
_NO_QUEUE = 2**31 - 2


class Unread(Value):
    """Messages that wait in a withdrawn queue, from an offset on."""

    offset: int
    count: int
    why: str


def withdrawn_because(queue: MessageQueue, route: TopicRoute) -> str:
    """Return why a queue is not in the route of its topic; empty if it is, or its broker is not."""
    for data in route.queues:
        if data.broker_name == queue.broker_name:
            if not data.perm & PERM_READ:
                return _CLOSED
            return _FEWER if queue.queue_id >= data.read_queue_nums else ""
    return ""


def problem_of(unread: Mapping[MessageQueue, Unread]) -> str:
    """Return what is unread in withdrawn queues of one topic, and what to do; else empty."""
    if not unread:
        return ""
    first, one = min(unread.items())
    count = sum(each.count for each in unread.values())
    return (
        f"{len(unread)}, with {count} unread messages, as {first} from offset {one.offset} on; "
        f"{one.why}"
    )


async def unread_since(
    api: BrokerApi, address: str, queue: MessageQueue, offset: int, why: str
) -> Unread | None:
    """Return what a queue has from an offset on, and has not lost by its age; None if nothing.

    Raises: OrderMQError: its broker did not answer.
    """
    first, end = await asyncio.gather(
        api.min_offset(address, queue), api.max_offset(address, queue)
    )
    offset = max(offset, first)
    return Unread(offset, end - offset, why) if offset < end else None


class WithdrawnSearch:
    """Finds the withdrawn queues of a group by its offsets alone: a route does not tell what it
    lacks, and neither does a broker that is asked for the queues of a topic.

    Args: addresses: of the masters, by the name of the broker.
    """

    def __init__(self, api: BrokerApi, group: str, addresses: Mapping[str, str]) -> None:
        self._api = api
        self._group = group
        self._addresses = addresses

    async def unread(self, topic: str, data: QueueData) -> dict[MessageQueue, Unread]:
        """Return what the group has not read in queues that a topic had at a broker.

        Args: data: what the topic has there now.
        Raises: OrderMQError: the broker did not answer.
        """
        found: dict[MessageQueue, Unread] = {}
        if not data.perm & PERM_READ:
            await self._look(_queues(topic, data, 0, data.read_queue_nums), found, _CLOSED)
            return found
        first = data.read_queue_nums
        while await self._look(_queues(topic, data, first, first + _BLOCK), found, _FEWER):
            first += _BLOCK
        return found

    async def _look(
        self, queues: list[MessageQueue], found: dict[MessageQueue, Unread], why: str
    ) -> bool:
        """Note what is unread in some queues; return True if the group has had one of them."""
        offsets = await asyncio.gather(*map(self._offset, queues))
        if 0 in offsets and await self._offset(queues[0]._replace(queue_id=_NO_QUEUE)) == 0:
            offsets = [offset or None for offset in offsets]
        had = [(q, at) for q, at in zip(queues, offsets, strict=True) if at is not None]
        unread = await asyncio.gather(
            *(unread_since(self._api, self._address(q), q, at, why) for q, at in had)
        )
        found |= {q: each for (q, _), each in zip(had, unread, strict=True) if each is not None}
        return bool(had)

    async def _offset(self, queue: MessageQueue) -> int | None:
        return await self._api.query_offset(self._address(queue), self._group, queue)

    def _address(self, queue: MessageQueue) -> str:
        return self._addresses[queue.broker_name]


def _queues(topic: str, data: QueueData, first: int, end: int) -> list[MessageQueue]:
    return [MessageQueue(topic, data.broker_name, number) for number in range(first, end)]
