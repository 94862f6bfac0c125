"""Withdrawn queues: an admin took them from their topic, or closed them for reads, while messages
in them are unread (docs/internals/semantics.md#refusals)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from ordermq.client.routes import subscribe_queues
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.errors import OrderMQError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import PERM_READ, TopicRoute
from ordermq.value import Value

_log = logging.getLogger("ordermq.consumer")
_FEWER = (
    "the topic has fewer queues than before, so nobody gets these messages: have an admin give it "
    "as many for reads again (mqadmin updateTopic -r) until they are consumed"
)
_CLOSED = (
    "they are closed for reads (their perm lacks 4), so nobody gets these messages: have an admin "
    "open them (mqadmin updateTopicPerm -p 6, or updateBrokerConfig -k brokerPermission -v 6)"
)


class Unread(Value):
    """Messages that wait in a withdrawn queue, from an offset on."""

    offset: int
    count: int
    why: str


class WithdrawnQueues:
    """Finds what is unread in queues that this member gave up because they left the route.

    No member holds such a queue any more, and no tool that asks for a topic's queues shows it. On
    the I/O thread.

    Args: is_local: the group's offsets are no broker's.
    """

    def __init__(self, member: MemberContext, *, is_local: bool) -> None:
        self._client = member.client
        self._group = member.group
        self._is_local = is_local
        self._given_up: dict[MessageQueue, int] = {}  # to be looked at: where each was left
        self._unread: dict[MessageQueue, Unread] = {}

    def gave_up(self, assigned: AssignedQueue) -> None:
        """Note that a queue is held no more; the next `look` finds out whether it is withdrawn."""
        self._given_up[assigned.queue] = assigned.committed_offset

    async def look(self, routes: Mapping[str, TopicRoute | None]) -> None:
        """Count what is unread in those of the queues given up that a topic does not have now.

        Args: routes: of the subscribed topics.
        """
        reasons = {each: _why(each, routes) for each in (*self._unread, *self._given_up)}
        for queue in [each for each in self._unread if not reasons[each]]:
            del self._unread[queue]
        given_up, self._given_up = self._given_up, {}
        gone = [queue for queue in given_up if reasons[queue]]
        await asyncio.gather(*(self._count(each, given_up[each], reasons[each]) for each in gone))

    def problem(self, topic: str) -> str:
        """Return what is unread in withdrawn queues of a topic, and what to do; else empty."""
        found = sorted((queue, one) for queue, one in self._unread.items() if queue.topic == topic)
        if not found:
            return ""
        first, one = found[0]
        count = sum(each.count for _, each in found)
        return (
            f"{len(found)}, with {count} unread messages, as {first} from offset {one.offset} on; "
            f"{one.why}"
        )

    async def _count(self, queue: MessageQueue, left_at: int, why: str) -> None:
        client = self._client
        try:
            address = client.routes.master_of(queue.broker_name)
            end = await client.api.max_offset(address, queue)
            # A member that pops knows of its own batches only.
            stored = (
                None
                if self._is_local
                else await client.api.query_offset(address, self._group, queue)
            )
        except OrderMQError as error:
            _log.debug("%s: its unread messages are not counted yet: %s", queue, error)
            self._given_up.setdefault(queue, left_at)
            return
        offset = max(left_at, stored or 0)
        if offset < end:
            self._unread[queue] = Unread(offset, end - offset, why)


def _why(queue: MessageQueue, routes: Mapping[str, TopicRoute | None]) -> str:
    """Return why a queue is not in the route of its topic; empty if it is, or its broker is not.

    A topic without any queue for reads is another problem (`TopicProblems`).
    """
    route = routes.get(queue.topic)
    if route is None or not subscribe_queues(queue.topic, route):
        return ""
    for data in route.queues:
        if data.broker_name == queue.broker_name:
            if not data.perm & PERM_READ:
                return _CLOSED
            return _FEWER if queue.queue_id >= data.read_queue_nums else ""
    return ""
