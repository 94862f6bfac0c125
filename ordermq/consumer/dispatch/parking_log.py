"""The log of a parking topic: what its records say (docs/internals/semantics.md#failure-policies).

A record is a message of a parked key, unchanged, with the queue and offset it came from; a mark:
all records of this key before this offset of the log have been consumed; or a request of a tool to
unpark the key. Queue 0 of the source queue's own broker holds all records about it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Mapping
from typing import NamedTuple

from ordermq.client.queue_scan import scan
from ordermq.client.session import ClientSession
from ordermq.errors import BrokerError
from ordermq.model import properties as props
from ordermq.model.message import INNER_BATCH, MessageBatch, MessageView, record_with
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import INNER_PRODUCER_GROUP, RETRY_PREFIX
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.headers import SendHeader

_GROUP, _SOURCE, _OFFSET, _ID = "omqGroup", "omqSource", "omqOffset", "omqId"
_DONE, _ASKED = "omqUnparked", "omqUnpark"


class ParkedName(NamedTuple):
    """A parked key of a group, on one queue.

    Args:
        source: the queue that its messages came from.
    """

    group: str
    source: MessageQueue
    key: bytes


class ParkingLog:
    """Present content of a log.

    Attributes:
        asked: keys that a tool asked to unpark, and that are parked still.
    """

    def __init__(self) -> None:
        # By offset and id: a queue that began a new life gives an offset again, and one that was
        # moved back delivers smaller ones.
        self._parked: dict[ParkedName, dict[tuple[int, str], MessageView]] = {}
        self.asked: set[ParkedName] = set()

    @property
    def messages(self) -> dict[ParkedName, list[MessageView]]:
        """Those that are parked, by key, in order. O(the log)"""
        return {name: list(parked.values()) for name, parked in self._parked.items()}

    def forget(self, name: ParkedName) -> None:
        """Drop the messages of a key, of one that is not asked for."""
        self._parked.pop(name, None)

    def add(self, record: MessageView) -> ParkedName | None:
        """Take over the next record of the log; return the key it is about."""
        own = record.properties
        source = _source_of(own, record.message_queue.broker_name)
        if source is None or _GROUP not in own:
            return None  # not a record of ours: the topic may have been used for something else
        name = ParkedName(own[_GROUP], source, own.get(props.SHARDING_KEY, "").encode())
        if (mark := own.get(_DONE)) is not None:
            before, end = self._parked.pop(name, {}), int(mark)
            self.asked.discard(name)
            kept = {place: each for place, each in before.items() if each.queue_offset >= end}
            if kept:
                self._parked[name] = kept
        elif _ASKED in own:
            self.asked.add(name)
        else:
            # One that was stored twice, because the first reply was lost, is read once.
            place = offset_of(record), own.get(_ID) or own.get(props.UNIQ_KEY, "")
            self._parked.setdefault(name, {}).setdefault(place, record)
        return name


async def records(
    client: ClientSession, group: str, topic: str, broker_name: str, offset: int = 0
) -> AsyncGenerator[MessageView, None]:
    """Yield the records of one broker's log from an offset on; none if it has no such topic.

    Args:
        group: only named in the pulls.
    """
    place = MessageQueue(topic, broker_name, 0)
    address = client.routes.master_of(broker_name)
    try:
        first = max(await client.api.min_offset(address, place), 0)  # -1: no queue yet
        end = await client.api.max_offset(address, place)
    except BrokerError as error:
        if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
            return
        raise
    async for record in scan(client, group, place, max(offset, first), end):
        yield record


async def store_parked(
    client: ClientSession, topic: str, name: ParkedName, message: MessageView
) -> None:
    """Store a message of a parked key."""
    properties = dict(message.properties)
    properties[props.RETRY_TOPIC] = message.topic
    properties[_OFFSET] = str(message.queue_offset)
    # Not as the record's own: a broker that knows copies by it would drop what another group parks
    # in the same topic, or this one once more. One that its sender gave no id has that of its
    # place: the copy would have another one.
    properties.pop(props.UNIQ_KEY, None)
    properties[_ID] = message.message_id
    for each in ("TRAN_MSG", props.DELAY, "MIN_OFFSET", "MAX_OFFSET"):
        properties.pop(each, None)
    body = bytes(message.stored_body)
    await _send(
        client,
        topic,
        name,
        properties,
        body,
        sys_flag=message.sys_flag & ~INNER_BATCH,
        flag=message.flag,
        born_ms=message.born_timestamp_ms,
    )


async def store_mark(client: ClientSession, topic: str, name: ParkedName, end: int) -> None:
    """Store that the records of a key before this offset of the log have been consumed."""
    await _send(client, topic, name, {_DONE: str(end)}, b"unparked")


async def store_request(client: ClientSession, topic: str, name: ParkedName) -> None:
    """Store the request to unpark a key, for the owner of its queue."""
    await _send(client, topic, name, {_ASKED: "1"}, b"unpark")


async def _send(
    client: ClientSession,
    topic: str,
    name: ParkedName,
    properties: dict[str, str],
    body: bytes,
    *,
    sys_flag: int = 0,
    flag: int = 0,
    born_ms: int | None = None,
) -> None:
    properties |= {
        _GROUP: name.group,
        _SOURCE: f"{name.source.topic}/{name.source.queue_id}",
        props.SHARDING_KEY: name.key.decode(),
    }
    header = SendHeader(
        producer_group=INNER_PRODUCER_GROUP,
        topic=topic,
        queue_id=0,
        sys_flag=sys_flag,
        born_timestamp_ms=client.clock.wall_ms() if born_ms is None else born_ms,
        flag=flag,
        properties=props.encode(properties),
        default_topic_queue_nums=1,
        broker_name=name.source.broker_name,
    )
    address = client.routes.master_of(name.source.broker_name)
    await client.api.send(address, header, body, client.config.offset_timeout_ms)


def offset_of(parked: MessageView) -> int:
    """Return the offset a parked message had in its source queue."""
    return int(parked.properties[_OFFSET])


def original(parked: MessageView) -> MessageView:
    """Return a parked message at the place that it had in its source queue.

    A listener that keeps a row per topic, queue and offset would take it for another message of
    that queue by the offset of its record in the log. What its broker wrote of the copy, the store
    time and the broker's own id, stays that of the copy.
    """
    properties, index = dict(parked.properties), parked.index
    source = _source_of(properties, parked.message_queue.broker_name)
    assert source is not None
    offset = int(properties[_OFFSET])
    for name in (_GROUP, _SOURCE, _OFFSET):
        properties.pop(name, None)
    if message_id := properties.pop(_ID, None):  # earlier versions kept it under its own name
        properties[props.UNIQ_KEY] = message_id
    if not source.topic.startswith(RETRY_PREFIX):
        properties.pop(props.RETRY_TOPIC, None)  # its topic is that of its queue again
    stored = dataclasses.replace(
        StoredMessage.read(record_with(index.body, parked.queue_offset)),
        queue_id=source.queue_id,
        queue_offset=offset,
    )
    batch = MessageBatch(
        source,
        stored.rewritten(source.topic, props.encode(properties).encode()),
        namespace=index.namespace,
        max_decompressed_bytes=index.max_decompressed_bytes,
    )
    return batch[0]


def _source_of(properties: Mapping[str, str], broker_name: str) -> MessageQueue | None:
    """Return the queue that a record is about; None if it is none of a parking log."""
    topic, _, number = properties.get(_SOURCE, "").rpartition("/")
    return MessageQueue(topic, broker_name, int(number)) if number.isdecimal() else None
