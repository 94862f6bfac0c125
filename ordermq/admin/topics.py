"""Topics: listing, creating, describing, deleting, reading without a group."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime

from ordermq.client.admin_api import AdminApi
from ordermq.client.queue_scan import scan
from ordermq.client.routes import publish_queues, subscribe_queues
from ordermq.client.session import ClientSession
from ordermq.client.store_times import offset_at_time
from ordermq.clock import poll_until
from ordermq.errors import BrokerError, ConfigError, RouteError, StateError
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import (
    DEAD_LETTER_PREFIX,
    HANDLED_LETTERS_TOPIC,
    RETRY_PREFIX,
    TOOLS_GROUP,
    check_sendable_topic,
    group_named,
    is_system_name,
    reply_topic,
    unwrapped,
)
from ordermq.remoting.admin_bodies import QueueEnds
from ordermq.remoting.bodies import PERM_READ, PERM_WRITE, QueueData, TopicRoute
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.rare_headers import CreateTopicHeader
from ordermq.value import Value
from ordermq.wall_time import is_like_ms, wall_ms_of, whole_number

MAX_QUEUES = 65_535  # of a topic at one broker, as RocketMQ's tools accept
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")  # of RocketMQ 5's topics
_ROUTE_CHECKS, _ROUTE_CHECK_MS = 100, 100

Place = str | int | datetime


class TopicSummary(Value):
    """One line of the list of topics.

    Args:
        queues: number of readable queues, of all brokers together.
        brokers: names of the brokers that have it, sorted.
        is_readable, is_writable: False if it is so at no broker.
    """

    name: str
    queues: int
    brokers: tuple[str, ...]
    is_readable: bool
    is_writable: bool


class TopicState(Value):
    """Snapshot of a topic.

    Args:
        queues: the offsets of each queue.
        groups: names of the groups with a member or an offset of it, sorted.
    """

    name: str
    queues: dict[MessageQueue, QueueEnds]
    groups: tuple[str, ...]

    @property
    def messages(self) -> int:
        """Messages that the brokers have, of all queues."""
        return sum(ends.messages for ends in self.queues.values())

    def __repr__(self) -> str:
        users = ", ".join(self.groups) or "none"
        return (
            f"<TopicState {self.name}: {self.messages} messages in {len(self.queues)} queues, "
            f"groups: {users}>"
        )


class Topics:
    """Requests about topics; on the I/O thread."""

    def __init__(self, client: ClientSession) -> None:
        self._client = client
        self._api = AdminApi.of(client)

    async def summaries(self, *, with_internal: bool = False) -> list[TopicSummary]:
        """Return the topics, sorted by name.

        Args:
            with_internal: also retry and dead-letter topics, and those of the brokers.
        """
        found: dict[str, list[QueueData]] = {}
        servers, own = self._client.name_servers, self._client.config.namespace
        masters = await servers.masters()
        for broker, address in masters.items():
            table = await self._api.topic_table(address, broker)
            for name, data in table.items():
                found.setdefault(name, []).append(data)
        # Each broker and each cluster of RocketMQ has a topic of its own name.
        clusters = await servers.cluster_names()
        made = {*masters, *clusters, *map(reply_topic, clusters)}
        summaries = (
            _summary(unwrapped(own, name), rows)
            for name, rows in sorted(found.items())
            # Names of other namespaces could not be written as this client writes names.
            if unwrapped(own, name) != name or not own
        )
        return [each for each in summaries if with_internal or not _is_internal(each.name, made)]

    async def create(
        self,
        name: str,
        queues: int,
        brokers: Sequence[str],
        message_type: str | None,
        *,
        stores_batches: bool,
    ) -> TopicState:
        """Create a topic, and return once producers find it.

        Raises:
            ConfigError: an illegal name, a number of queues out of range, an unknown broker.
            StateError: the topic exists, or is there now and does not store batches.
        """
        name = check_sendable_topic(name)
        if is_system_name(name):
            raise ConfigError(f"topic {name!r} belongs to the brokers: choose another name")
        if isinstance(queues, bool) or not isinstance(queues, int) or not 1 <= queues <= MAX_QUEUES:
            raise ConfigError(f"queues={queues!r}: expected 1..{MAX_QUEUES}", topic=name)
        if message_type is not None and message_type not in MESSAGE_TYPES:
            raise ConfigError(
                f"message_type={message_type!r}: expected one of {', '.join(MESSAGE_TYPES)}",
                topic=name,
            )
        masters = await self._client.name_servers.masters()
        if unknown := sorted(set(brokers) - set(masters)):
            raise ConfigError(
                f"no broker {unknown[0]!r}: the cluster has {', '.join(sorted(masters))}"
            )
        # Another number of queues would move keys to other queues, and order would be lost.
        if await self._route(name) is not None:
            raise StateError("the topic exists: delete it first, or use it as it is", topic=name)
        chosen = brokers or sorted(masters)
        attributes = [f"+message.type={message_type}"] if message_type is not None else []
        attributes += ["+queue.type=BatchCQ"] if stores_batches else []
        for broker in chosen:
            header = CreateTopicHeader(name, queues, queues, PERM_READ | PERM_WRITE)
            header.attributes = ",".join(attributes) or None
            await self._api.put_topic(masters[broker], header)
        # A producer that came before the name servers know would create the topic once more, with
        # its own number of queues.
        await self._await_queues(name, queues * len(chosen))
        if stores_batches:
            await self._require_batches(name, {broker: masters[broker] for broker in chosen})
        return await self.look(name)

    async def _require_batches(self, name: str, brokers: Mapping[str, str]) -> None:
        """Raise StateError if one of these brokers made a batch topic one like others."""
        for broker, address in brokers.items():
            try:
                is_so = await self._api.stores_batches(address, name)
            except BrokerError as error:
                if error.response_code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                is_so = False  # RocketMQ 4
            if not is_so:
                raise StateError(
                    "created, but as other topics are: the broker does not store batches as one "
                    "record, which RocketMQ does since 5.0; use the topic as it is, or delete it",
                    topic=name,
                    broker=broker,
                )

    async def put_at(self, name: str, broker: str) -> None:
        """Create a topic with one queue at a broker, unless it has the topic; await its route."""
        route = await self._route(name)
        queues = [] if route is None else publish_queues(name, route)
        if any(queue.broker_name == broker for queue in queues):
            return
        masters = await self._client.name_servers.masters()
        if broker not in masters:
            raise RouteError("the broker is not registered at a name server", broker=broker)
        header = CreateTopicHeader(name, 1, 1, PERM_READ | PERM_WRITE)
        await self._api.put_topic(masters[broker], header)
        await self._await_queues(name, len(queues) + 1)

    async def _await_queues(self, name: str, count: int) -> None:
        """Wait until the name servers list all queues: brokers tell them in the background."""

        async def are_listed() -> bool:
            route = await self._route(name)
            return route is not None and len(publish_queues(name, route)) == count

        if not await poll_until(are_listed, self._client.clock, _ROUTE_CHECKS, _ROUTE_CHECK_MS):
            raise RouteError(
                "created at its brokers, but the name servers do not list all of its queues yet",
                topic=name,
            )

    async def delete(self, name: str) -> None:
        """Delete a topic at every broker and name server, with all of its messages.

        Raises: RouteError: no broker has it.
        """
        if await self._route(name) is None:
            raise no_such_topic(name)
        await self.remove(name)

    async def remove(self, name: str) -> None:
        """Delete a topic as `delete`; one that no broker has is none."""
        # Every broker, not those of the route: one of them may just be away from the name server.
        for address in (await self._client.name_servers.masters()).values():
            await self._api.delete_topic(address, name)
        # Only then: a broker that still had it would register it again.
        await self._client.name_servers.delete_topic(name)

    async def look(self, name: str) -> TopicState:
        """Return the offsets of a topic's queues, and its groups.

        Raises: RouteError: no broker has it.
        """
        masters = await self._client.name_servers.masters()
        queues: dict[MessageQueue, QueueEnds] = {}
        groups: set[str] = set()
        own = self._client.config.namespace
        for broker in {queue.broker_name for queue in await self.queues(name)} & set(masters):
            queues |= await self._api.queue_ends(masters[broker], name)
            groups |= {unwrapped(own, group) for group in await self._groups(masters[broker], name)}
        return TopicState(name, dict(sorted(queues.items())), tuple(sorted(groups)))

    async def _groups(self, address: str, topic: str) -> list[str]:
        """Return the groups with a member or an offset of a topic at this broker."""
        found = await self._api.topic_groups(address, topic)
        # RocketMQ 5 names the topic itself among them, as soon as one of them has had a member.
        if topic in found and topic not in await self._api.group_names(address):
            found.remove(topic)
        return found

    async def queues(self, name: str, queue_ids: Sequence[int] = ()) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted; those of these ids, if any are given.

        Raises: RouteError: no broker has it. ConfigError: it has no such queue.
        """
        if not isinstance(queue_ids, Collection) or any(whole_number(n) is None for n in queue_ids):
            raise ConfigError(f"queues={queue_ids!r}: expected numbers of queues, as [0, 3]")
        route = await self._route(name)
        if route is None:
            raise no_such_topic(name)
        every = subscribe_queues(name, route)
        if unknown := sorted(set(queue_ids) - {queue.queue_id for queue in every}):
            raise ConfigError(f"there is no queue {unknown[0]} of the topic", topic=name)
        return [queue for queue in every if not queue_ids or queue.queue_id in queue_ids]

    async def offset_at(self, queue: MessageQueue, place: Place, group: str = TOOLS_GROUP) -> int:
        """Return the offset of a place in a queue, from its oldest message to its end.

        Args:
            place: "first", "last" (the end), a time, or an offset.
            group: one that the account may pull as, if not the tools'.
        """
        first, end = await self._range(queue)
        if isinstance(place, datetime):
            wanted = await offset_at_time(self._client, group, queue, wall_ms_of(place))
        elif isinstance(place, int):
            wanted = place
        else:
            wanted = {"first": first, "last": end}[place]
        return min(max(wanted, first), end)

    async def require_range(self, queues: Sequence[MessageQueue], place: Place) -> None:
        """Raise ConfigError for an offset that one of the queues does not have.

        Brought into its range, a time in ms that was taken for an offset would mean its end.
        """
        if not isinstance(place, int):
            return
        ends = await asyncio.gather(*(self._range(queue) for queue in queues))
        for queue, (first, end) in zip(queues, ends, strict=True):
            if not first <= place <= end:
                raise ConfigError(
                    f"{queue}: offset {place}: expected {first} to {end}, which is what the queue "
                    "has. For a time give a datetime, on the command line --to-time; for queues of "
                    "other ranges name each queue",
                    topic=queue.topic,
                    broker=queue.broker_name,
                    queue_id=queue.queue_id,
                )

    async def _range(self, queue: MessageQueue) -> tuple[int, int]:
        address = self._client.routes.master_of(queue.broker_name)
        first = max(await self._api.min_offset(address, queue), 0)
        return first, await self._api.max_offset(address, queue)

    async def peek(
        self, name: str, start: Place, count: int, queue_ids: Sequence[int]
    ) -> list[MessageView]:
        """Return messages, the oldest first, as `Admin.peek` describes."""
        queues = await self.queues(name, queue_ids)
        read = await asyncio.gather(*(self.read(queue, start, count) for queue in queues))
        # Merged, not sorted: a queue stays in order also where its broker's time jumped back.
        messages = list(heapq.merge(*read, key=lambda message: message.store_timestamp_ms))
        return messages[-count:] if start == "last" else messages[:count]

    async def read(self, queue: MessageQueue, start: Place, count: int) -> list[MessageView]:
        """Return messages of one queue."""
        begin = await self.offset_at(queue, start)
        if start == "last":
            begin, end = await self.offset_at(queue, begin - count), begin
        else:
            address = self._client.routes.master_of(queue.broker_name)
            end = await self._api.max_offset(address, queue)
        found: list[MessageView] = []
        async with aclosing(scan(self._client, TOOLS_GROUP, queue, begin, end)) as messages:
            async for message in messages:
                found.append(message)
                if len(found) == count:
                    break
        return found

    async def ends(self, name: str) -> dict[MessageQueue, QueueEnds]:
        """Return the offsets of a topic's queues; empty if no broker has it."""
        route = await self._route(name)
        found: dict[MessageQueue, QueueEnds] = {}
        queues = subscribe_queues(name, route) if route else []
        for broker in {queue.broker_name for queue in queues}:
            address = self._client.routes.master_of(broker)
            try:
                found |= await self._api.queue_ends(address, name)
            except BrokerError as error:
                # Created there a moment ago, or deleted.
                if error.response_code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
        return found

    async def _route(self, name: str) -> TopicRoute | None:
        """Return the present route of a topic; None if no broker has it any more."""
        # `Routes` keeps the last one of a topic that is gone, as its brokers may just restart; it
        # is asked for the addresses of the brokers.
        if await self._client.name_servers.topic_route(name) is None:
            return None
        return await self._client.routes.refresh(name)


def require_place(place: object, name: str) -> None:
    """Raise ConfigError unless this is a place in a queue, and no time."""
    is_offset = isinstance(place, int) and not isinstance(place, bool) and place >= 0
    # By its type first: pandas' NA is neither equal to a text nor different from it.
    if not is_offset and not (isinstance(place, str) and place in ("first", "last")):
        raise ConfigError(
            f"{name}={place!r}: expected 'first', 'last', a datetime, an age as '2h', or an "
            f"offset from 0 on{time_hint(place)}"
        )


def time_hint(place: object) -> str:
    """Return what an error says further of a number that was meant as a time; else ""."""
    # `time.time() - 300`. As an int of ms it would be taken for an offset.
    return "; a number is no time: give an age, as '5m'" if isinstance(place, float) else ""


def require_no_time(offset: object, name: str) -> None:
    """Raise ConfigError for an offset that looks like ms since 1970: behind it nothing is found."""
    if isinstance(offset, int) and is_like_ms(offset):
        raise ConfigError(
            f"{name}={offset}: expected an offset, and this looks like a time in ms: give a "
            "datetime (2026-11-22T09:30) or an age (5m)"
        )


def no_such_topic(name: str) -> RouteError:
    """Return the error of a topic that no broker has."""
    reason = "check its name and the name servers"
    group = group_named(name)
    if name.startswith(DEAD_LETTER_PREFIX):
        reason = (
            f"brokers create it with the first dead letter of group {group!r}, so there is none"
        )
    elif name.startswith(RETRY_PREFIX):
        reason = f"brokers create it when the first member of group {group!r} registers"
    return RouteError(f"topic not found on any broker: {reason}", topic=name)


def _summary(name: str, rows: Sequence[QueueData]) -> TopicSummary:
    readable = [row for row in rows if row.perm & PERM_READ]
    return TopicSummary(
        name,
        sum(row.read_queue_nums for row in readable),
        tuple(sorted(row.broker_name for row in rows)),
        bool(readable),
        any(row.perm & PERM_WRITE for row in rows),
    )


def _is_internal(name: str, made: set[str]) -> bool:
    return (
        name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        or name == HANDLED_LETTERS_TOPIC
        or is_system_name(name)
        or name in made
    )
