"""Parked keys of groups with `ParkKey(topic)`, and asking their owners to go on with them."""

from __future__ import annotations

from collections.abc import Collection

from ordermq.admin.message_search import ParkedPlace
from ordermq.admin.topics import Topics
from ordermq.client.session import ClientSession
from ordermq.consumer.dispatch.parking_log import (
    ParkedName,
    ParkingLog,
    offset_of,
    original,
    records,
    store_request,
)
from ordermq.errors import StateError
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import TOOLS_GROUP
from ordermq.value import Value


class ParkedKey(Value):
    """A parked key of a group.

    Args:
        queue: the queue that its messages came from.
        messages: how many of them are parked.
        first_offset: offset of the oldest, in `queue`.
        parked_ms: time at which that was parked, ms since 1970.
        is_asked: somebody asked to go on with it, and its owner has not done so yet.
    """

    group: str
    queue: MessageQueue
    key: str
    messages: int
    first_offset: int
    parked_ms: int
    is_asked: bool


class ParkedTopics:
    """Reads parking topics, and stores requests in them; on the I/O thread."""

    def __init__(self, client: ClientSession, topics: Topics) -> None:
        self._client = client
        self._topics = topics

    async def summaries(self, topic: str, group: str | None) -> list[ParkedKey]:
        """Return the parked keys of a parking topic, sorted; those of one group, if named."""
        log = await self._read(topic)
        return sorted(
            (
                _summary(name, messages, name in log.asked)
                for name, messages in log.messages.items()
                if group in (None, name.group)
            ),
            key=lambda each: (each.group, each.queue, each.key),
        )

    async def messages(self, topic: str, group: str, key: str) -> list[MessageView]:
        """Return the parked messages of a key, in order, as they were in their own queue."""
        log = await self._read(topic)
        return [
            original(message)
            for name, messages in sorted(log.messages.items(), key=lambda each: each[0].source)
            if (name.group, name.key) == (group, key.encode())
            for message in messages
        ]

    async def places(self, topic: str) -> set[ParkedPlace]:
        """Return the group, queue and offset of every message that is parked in a topic."""
        log = await self._read(topic)
        return {
            (name.group, name.source, offset_of(message))
            for name, messages in log.messages.items()
            for message in messages
        }

    async def redrive(self, topic: str, group: str, keys: Collection[str]) -> list[ParkedKey]:
        """Ask the owners of the queues, as `Admin.redrive_parked` describes."""
        parked = await self.summaries(topic, group)
        if unknown := sorted(set(keys) - {each.key for each in parked}):
            raise StateError(f"key {unknown[0]!r} is not parked", topic=topic, group=group)
        wanted = [each for each in parked if not keys or each.key in keys]
        for each in wanted:
            name = ParkedName(each.group, each.queue, each.key.encode())
            await store_request(self._client, topic, name)
        return wanted

    async def _read(self, topic: str) -> ParkingLog:
        log = ParkingLog()
        queues = await self._topics.queues(topic)
        for broker in sorted({queue.broker_name for queue in queues}):
            async for record in records(self._client, TOOLS_GROUP, topic, broker):
                log.add(record)
        return log


def _summary(name: ParkedName, messages: list[MessageView], is_asked: bool) -> ParkedKey:
    return ParkedKey(
        name.group,
        name.source,
        name.key.decode(errors="replace"),
        len(messages),
        offset_of(messages[0]),
        messages[0].store_timestamp_ms,
        is_asked,
    )
