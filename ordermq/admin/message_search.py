"""MessageSearch: finds messages by key, id, offset or time, and their state in each group."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

from ordermq.admin.topics import Topics
from ordermq.client.admin_api import AdminApi
from ordermq.client.session import ClientSession
from ordermq.errors import BrokerError, ConfigError, RemotingError
from ordermq.model import properties as props
from ordermq.model.identifiers import broker_of
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import dead_letter_topic
from ordermq.model.stored_message import holds_messages
from ordermq.remoting.codes import ResponseCode
from ordermq.value import Value

# The beginning of a stored record: size, then, behind magic and checksum, the queue; and its queue
# offset (docs/internals/protocol.md#stored-message).
_PLACE = struct.Struct(">i8xi4xq")
_MOST_IN_RECORD = 1 << 15  # messages that are stored as one record
_NOT_FOUND = frozenset({ResponseCode.QUERY_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST})
_KINDS: dict[str, type] = {"key": str, "message_id": str, "offset": int}
WAITING, DONE, DEAD, PARKED = "waiting", "done", "dead", "parked"


class FoundMessage(Value):
    """A message, and where it is in each group.

    Args:
        groups: "waiting": the group's offset is not behind it; "done": it is; "dead": it is, and
            the message is among the group's dead letters; "parked": it is, and the message is in
            the parking topic that was named. Of groups with an offset of its queue.
    """

    message: MessageView
    groups: dict[str, str]


# A parked message: its group, and the queue and offset that it came from.
ParkedPlace = tuple[str, MessageQueue, int]


class MessageSearch:
    """Requests that find messages; on the I/O thread."""

    def __init__(self, client: ClientSession, topics: Topics) -> None:
        self._client = client
        self._topics = topics
        self._api = AdminApi.of(client)

    async def by_key(self, topic: str, key: str, count: int) -> list[MessageView]:
        """Return the newest messages that have a key among their `keys`, the oldest first."""
        return await self._query(topic, key, count, is_id=False)

    async def by_id(self, topic: str, message_id: str, count: int) -> list[MessageView]:
        """Return the messages with an id: a producer's, or a broker's, which names its place.

        A place of a batch topic may have more than one; the first `count` of them.
        """
        text = message_id.upper()
        address = broker_of(text)
        masters = await self._client.name_servers.masters()
        for broker, master in masters.items():
            if master == address:
                offset = int(text[-16:], 16)
                found = self._read(topic, broker, await self._api.message_at(master, offset))
                return found[:count]
        return await self._query(topic, text, count, is_id=True)

    async def at_offset(
        self, topic: str, offset: int, queue_ids: Sequence[int]
    ) -> list[MessageView]:
        """Return the message of an offset of each queue, or of these queues."""
        found = await self._topics.peek(topic, offset, 1 << 16, queue_ids)
        return [message for message in found if message.queue_offset == offset]

    async def at_time(self, topic: str, moment: datetime, count: int) -> list[MessageView]:
        """Return the first messages that were stored at a time or later."""
        return await self._topics.peek(topic, moment, count, ())

    async def with_groups(
        self,
        topic: str,
        messages: Sequence[MessageView],
        parked: Collection[ParkedPlace] = (),
    ) -> list[FoundMessage]:
        """Return messages with their states in the groups of their topic.

        Args: parked: the messages that groups have parked.
        """
        groups = (await self._topics.look(topic)).groups if messages else ()
        states = {group: await self._states(group, messages, parked) for group in groups}
        return [
            FoundMessage(
                message,
                {
                    group: state
                    for group, of_messages in states.items()
                    if (state := of_messages[number]) is not None
                },
            )
            for number, message in enumerate(messages)
        ]

    async def _states(
        self, group: str, messages: Sequence[MessageView], parked: Collection[ParkedPlace]
    ) -> list[str | None]:
        """Return the state of each message in a group; None: its queue has no offset."""
        offsets: dict[MessageQueue, int | None] = {}
        for queue in sorted({each.message_queue for each in messages}):
            address = self._client.routes.master_of(queue.broker_name)
            offsets[queue] = await self._api.query_offset(address, group, queue)
        is_any_done = any(
            (offsets[each.message_queue] or 0) > each.queue_offset for each in messages
        )
        letters, brokers = dead_letter_topic(group), list[str]()
        if is_any_done and await self._client.name_servers.topic_route(letters) is not None:
            brokers = await self._brokers_of(letters)
        return [
            PARKED
            if (group, each.message_queue, each.queue_offset) in parked
            else await self._state(each, offsets[each.message_queue], letters, brokers)
            for each in messages
        ]

    async def _state(
        self, message: MessageView, offset: int | None, letters: str, brokers: Sequence[str]
    ) -> str | None:
        """Return the state of a message, by the group's offset and the brokers of its letters."""
        if offset is None:
            return None
        if offset <= message.queue_offset:
            return WAITING
        unique = message.properties.get(props.UNIQ_KEY, "")
        is_dead = unique and await self._query_at(brokers, letters, unique, 1, is_id=True)
        return DEAD if is_dead else DONE

    async def _query(self, topic: str, key: str, count: int, *, is_id: bool) -> list[MessageView]:
        return await self._query_at(await self._brokers_of(topic), topic, key, count, is_id=is_id)

    async def _brokers_of(self, topic: str) -> list[str]:
        return sorted({queue.broker_name for queue in await self._topics.queues(topic)})

    async def _query_at(
        self, brokers: Sequence[str], topic: str, key: str, count: int, *, is_id: bool
    ) -> list[MessageView]:
        answers = await asyncio.gather(
            *(self._ask(each, topic, key, count, is_id) for each in brokers)
        )
        found = [message for answer in answers for message in answer]
        # RocketMQ's index has hashes of keys: other messages may have the same.
        matching = [each for each in found if _has_key(each, key, is_id=is_id)]
        matching.sort(
            key=lambda each: (each.store_timestamp_ms, each.message_queue, each.queue_offset)
        )
        return matching[-count:]

    async def _ask(
        self, broker: str, topic: str, key: str, count: int, is_id: bool
    ) -> list[MessageView]:
        address = self._client.routes.master_of(broker)
        try:
            body = await self._api.find_messages(address, topic, key, count, is_id=is_id)
        except BrokerError as error:
            if error.response_code in _NOT_FOUND:
                return []
            raise
        return self._read(topic, broker, body)

    def _read(self, topic: str, broker: str, body: bytes) -> list[MessageView]:
        found = []
        for record, queue_id, offset in _records(body):
            queue = MessageQueue(topic, broker, queue_id)
            most = _MOST_IN_RECORD if holds_messages(record) else 1
            found += list(self._api.batch(queue, record, (), offset, offset + most))
        return found


def _records(body: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Cut an answer into its records; yields each with its queue and its offset.

    Raises: RemotingError: it is torn.
    """
    begin = 0
    while begin < len(body):
        if len(body) - begin < _PLACE.size:
            raise RemotingError("the broker's answer to a search is truncated; ask again")
        size, queue_id, offset = _PLACE.unpack_from(body, begin)
        if not _PLACE.size <= size <= len(body) - begin:
            raise RemotingError("the broker's answer to a search is truncated; ask again")
        yield body[begin : begin + size], queue_id, offset
        begin += size


def _has_key(message: MessageView, key: str, *, is_id: bool) -> bool:
    unique = message.properties.get(props.UNIQ_KEY, "")
    return unique.upper() == key.upper() if is_id else key in message.keys


def require_one(**given: object) -> None:
    """Require that one argument is given, and of its type.

    Raises: ConfigError: none is, or several are, or it is of another type.
    """
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        raise ConfigError(
            f"{' and '.join(names) or 'nothing'} given: expected one of {', '.join(given)}"
        )
    value, kind = given[names[0]], _KINDS.get(names[0], object)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(
            f"{names[0]}={value!r}: expected {'an' if kind is int else 'a'} {kind.__name__}"
        )
