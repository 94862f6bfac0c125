"""Withdrawn queues: an admin took them from their topic, or closed them for reads, while messages
in them are unread (docs/internals/semantics.md#refusals)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from ordermq.client.routes import subscribe_queues
from ordermq.client.runtime import cancelled
from ordermq.client.withdrawn_queues import (
    Unread,
    WithdrawnSearch,
    problem_of,
    unread_since,
    withdrawn_because,
)
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.errors import BrokerError, OrderMQError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import QueueData, TopicRoute

_log = logging.getLogger("ordermq.consumer")
# What is unread is counted anew, as it expires: once nothing is left there is no problem any more.
_RECOUNT_MS = 60_000


class WithdrawnQueues:
    """Finds what is unread in queues that left the route of their topic.

    No member holds such a queue any more, and no tool that asks for a topic's queues shows it. A
    member knows of those that it gave up. Those that left before it came, as when a whole group is
    restarted behind the change, are found once by the group's offsets. On the I/O thread.

    Args:
        is_local: the group's offsets are no broker's.
        on_found: called when queues were found by their offsets; the next `look` tells of them.
    """

    def __init__(
        self, member: MemberContext, *, is_local: bool, on_found: Callable[[], None]
    ) -> None:
        self._client = member.client
        self._group = member.group
        self._is_local = is_local
        self._on_found = on_found
        self._given_up: dict[MessageQueue, int] = {}  # to be looked at: where each was left
        self._unread: dict[MessageQueue, Unread] = {}
        self._counted_ms: dict[MessageQueue, int] = {}
        self._searched: set[tuple[str, str]] = set()  # topics and brokers
        self._searches: set[asyncio.Task[None]] = set()

    def gave_up(self, assigned: AssignedQueue) -> None:
        """Note that a queue is held no more; the next `look` finds out whether it is withdrawn."""
        self._given_up[assigned.queue] = assigned.committed_offset

    def search(self, topic: str, route: TopicRoute | None) -> None:
        """Look beside the rebalance for queues that left a topic before this member came.

        Each broker is asked once: a queue that leaves later is given up by its owner.
        """
        if self._is_local or route is None or self._client.proxy is not None:
            return
        for data in route.queues:
            place = topic, data.broker_name
            if place not in self._searched and self._client.is_connected(data.broker_name):
                self._searched.add(place)
                task = self._client.runtime.spawn(
                    self._search(topic, data), f"search for withdrawn queues of {topic}"
                )
                self._searches.add(task)
                task.add_done_callback(self._searches.discard)

    async def _search(self, topic: str, data: QueueData) -> None:
        client = self._client
        try:
            addresses = {data.broker_name: client.routes.master_of(data.broker_name)}
            search = WithdrawnSearch(client.api, self._group, addresses)
            found = await search.unread(topic, data)
        except OrderMQError as error:
            # A broker that refuses would be asked again by each pass.
            if not isinstance(error, BrokerError):
                self._searched.discard((topic, data.broker_name))
            _log.debug("%s at %s: not searched yet: %s", topic, data.broker_name, error)
            return
        for queue, one in found.items():
            self._note(queue, one)
        if found:
            self._on_found()

    async def close(self) -> None:
        """End the searches that are under way."""
        await cancelled(*list(self._searches))

    async def look(self, routes: Mapping[str, TopicRoute | None]) -> None:
        """Count what is unread in those of the queues given up that a topic does not have now.

        Args: routes: of the subscribed topics.
        """
        due_ms = self._client.clock.now_ms() - _RECOUNT_MS
        reasons = {each: _why(each, routes) for each in (*self._unread, *self._given_up)}
        for queue, one in list(self._unread.items()):
            if not reasons[queue]:
                del self._unread[queue]
            elif self._counted_ms[queue] <= due_ms:
                self._given_up.setdefault(queue, one.offset)
        given_up, self._given_up = self._given_up, {}
        gone = [queue for queue in given_up if reasons[queue]]
        await asyncio.gather(*(self._count(each, given_up[each], reasons[each]) for each in gone))

    def problem(self, topic: str) -> str:
        """Return what is unread in withdrawn queues of a topic, and what to do; else empty."""
        return problem_of({each: one for each, one in self._unread.items() if each.topic == topic})

    async def _count(self, queue: MessageQueue, left_at: int, why: str) -> None:
        client = self._client
        try:
            address = client.routes.master_of(queue.broker_name)
            # A member that pops knows of its own batches only.
            stored = (
                None
                if self._is_local
                else await client.api.query_offset(address, self._group, queue)
            )
            offset = max(left_at, stored or 0)
            one = await unread_since(client.api, address, queue, offset, why)
        except OrderMQError as error:
            _log.debug("%s: its unread messages are not counted yet: %s", queue, error)
            self._given_up.setdefault(queue, left_at)
            return
        self._note(queue, one)

    def _note(self, queue: MessageQueue, one: Unread | None) -> None:
        if one is None:
            self._unread.pop(queue, None)
            return
        self._unread[queue] = one
        self._counted_ms[queue] = self._client.clock.now_ms()


def _why(queue: MessageQueue, routes: Mapping[str, TopicRoute | None]) -> str:
    """Return why a queue is withdrawn; empty if it is not.

    A topic without any queue for reads is another problem (`TopicProblems`).
    """
    route = routes.get(queue.topic)
    if route is None or not subscribe_queues(queue.topic, route):
        return ""
    return withdrawn_because(queue, route)
