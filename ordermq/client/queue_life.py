"""Lives of a queue: whether it is still the one that a reader has read.

A topic that is deleted and created again counts from 0, and so does a queue whose broker lost its
store. Once it has as many messages as before, its offsets tell nothing. So a reader keeps a mark: a
message of the queue, by its offset, its store time and a digest of its id
(docs/internals/semantics.md#a-topics-second-life).
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from ordermq.client.connections import is_closed_for_reads
from ordermq.client.queue_scan import scan
from ordermq.client.session import ClientSession
from ordermq.client.store_times import offset_at_time
from ordermq.clock import MINUTE_MS
from ordermq.errors import BrokerError, OrderMQError
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription
from ordermq.remoting.codes import ResponseCode

# By which the clocks of two brokers that hold a queue one after the other may differ: a minute is
# read twice rather than a message left out.
_SKEW_MINUTES: Final = 1
_GONE: Final = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER})
_UNKNOWN_QUEUE: Final = "queueId["  # "queueId[3] is illegal, topic:[orders] ..."


class Landmark(Protocol):
    """A message that was read of a queue, by which its life is told from others.

    Args:
        offset: of the message.
        minute: of its storage at the broker, since 1970.
    """

    @property
    def offset(self) -> int: ...

    @property
    def minute(self) -> int: ...

    def is_of(self, message: MessageView) -> bool:
        """Return whether this is the message, read again."""


class QueueMark(NamedTuple):
    """A message by which a life of its queue is known again.

    Args:
        offset: of the message.
        minute: of its storage at the broker, since 1970.
        digest: 24 bits of its id and its store time.
    """

    offset: int
    minute: int
    digest: int

    @classmethod
    def of(cls, message: MessageView) -> QueueMark:
        """Return the mark of a message."""
        stored_ms = message.store_timestamp_ms
        digest = crc32(f"{stored_ms}:{message.message_id}".encode()) & 0xFFFFFF
        return cls(message.queue_offset, stored_ms // MINUTE_MS, digest)

    @classmethod
    def parse(cls, text: str) -> QueueMark:
        """Return the mark of a text that `str` made; raises ValueError for another."""
        offset, minute, digest = text.split(".")
        return cls(int(offset, 16), int(minute, 16), int(digest, 16))

    def is_of(self, message: MessageView) -> bool:
        return QueueMark.of(message) == self

    def __str__(self) -> str:
        # Short: a checkpoint has one for each of perhaps a thousand queues.
        return f"{self.offset:x}.{self.minute:x}.{self.digest:x}"


class NewLife(NamedTuple):
    """A queue that is not the one which its reader has read.

    Args:
        at: the reader's offset in the queue before.
        first: the first offset of the queue now that the reader has not read.
        end: of the queue now.
        reason: the difference that was found.
    """

    queue: MessageQueue
    at: int
    first: int
    end: int
    reason: str


async def mark_before(
    session: ClientSession, group: str, queue: MessageQueue, offset: int
) -> QueueMark | None:
    """Return a mark at the message that `message_before` returns; None without one."""
    message = await message_before(session, group, queue, offset)
    return None if message is None else QueueMark.of(message)


async def message_before(
    session: ClientSession, group: str, queue: MessageQueue, offset: int
) -> MessageView | None:
    """Return the message right before an offset, or else the one at it; None without either.

    The route of the topic must be known, here and below.

    Args: group: named in the pulls.
    Raises: RemotingError, RouteError: refused, or not answered.
    """
    for each in (offset - 1, offset):
        if each >= 0 and (message := await _message(session, group, queue, each)) is not None:
            return message
    return None


async def is_there(session: ClientSession, group: str, queue: MessageQueue, mark: Landmark) -> bool:
    """Return whether a queue still has the marked message; raises as `message_before`."""
    message = await _message(session, group, queue, mark.offset)
    return message is not None and mark.is_of(message)


async def new_life(
    session: ClientSession, group: str, queue: MessageQueue, at: int, mark: Landmark | None
) -> NewLife | None:
    """Return the new life that a queue began since it was marked, if it did.

    Args:
        at: the reader's offset.
        mark: None: only the queue's end is looked at.
    Raises: RemotingError, RouteError: refused, or not answered.
    """
    message = None if mark is None else await _message(session, group, queue, mark.offset)
    ends = None
    if message is None:
        ends = first, end = await _ends(session, queue)
        if mark is not None and first <= mark.offset < end:
            # It has grown meanwhile; or the message is being removed, and is not found again.
            message = await _message(session, group, queue, mark.offset)
    reason = ""
    if mark is not None and message is not None:
        if mark.is_of(message):
            return None
        then, now = mark.minute * MINUTE_MS, message.store_timestamp_ms
        reason = (
            f"its message at offset {mark.offset} was stored at {_moment(then)}, and now one is "
            f"there that was stored at {_moment(now)}"
        )
    first, end = ends or await _ends(session, queue)
    if not reason:
        if end >= max(at, 0 if mark is None else mark.offset):
            return None  # the marked message has expired
        reason = f"it ends at offset {end}, and was read up to {at}"
    # A reader that was moved back has not read on from there.
    unread = min(await _first_unread(session, group, queue, first, mark), max(at, first))
    return NewLife(queue, at, unread, end, reason)


async def life_by_filter(
    session: ClientSession,
    group: str,
    queue: MessageQueue,
    passed: tuple[int, int],
    wanted: Subscription,
) -> NewLife | None:
    """Return the new life of a queue that has messages where a filter had passed over all.

    Args:
        passed: the first offset where none was wanted, and the reader's.
        wanted: the messages that the filter does not pass over.
    Raises: RemotingError, RouteError: refused, or not answered.
    """
    first, at = passed
    async for message in scan(session, group, queue, first, at, wanted):
        _, end = await _ends(session, queue)
        reason = (
            f"its message at offset {message.queue_offset}, stored at "
            f"{_moment(message.store_timestamp_ms)}, is one of the subscription, and none was "
            f"there when the queue was read up to {at}"
        )
        return NewLife(queue, at, message.queue_offset, end, reason)
    return None


async def _ends(session: ClientSession, queue: MessageQueue) -> tuple[int, int]:
    api, address = session.api, session.routes.master_of(queue.broker_name)
    return await asyncio.gather(api.min_offset(address, queue), api.max_offset(address, queue))


async def _first_unread(
    session: ClientSession, group: str, queue: MessageQueue, first: int, mark: Landmark | None
) -> int:
    """Return the first offset stored after the marked message, and not by a minute earlier.

    That is the first of a topic made anew. Where the broker lost the end of the queue, it is where
    other messages took the place of what was lost.
    """
    message = None if mark is None else await _message(session, group, queue, first)
    if mark is None or message is None:
        return first
    since_ms = (mark.minute - _SKEW_MINUTES) * MINUTE_MS
    if message.store_timestamp_ms >= since_ms:
        return first
    return max(first, await offset_at_time(session, group, queue, since_ms))


async def _message(
    session: ClientSession, group: str, queue: MessageQueue, offset: int
) -> MessageView | None:
    async for message in scan(session, group, queue, offset, offset + 1):
        return message
    return None


def is_gone(error: OrderMQError) -> bool:
    """Return True if a broker does not have the topic, or not this queue of it."""
    # Between the deletion and the creation of a topic, or behind its creation with fewer queues.
    if not isinstance(error, BrokerError):
        return False
    # RocketMQ's answer to a pull of a queue that it does not have is an error of the system.
    is_unknown_queue = error.response_code == ResponseCode.SYSTEM_ERROR and _UNKNOWN_QUEUE in str(
        error
    )
    return is_unknown_queue or error.response_code in _GONE


def is_told_by_routes(error: OrderMQError) -> bool:
    """Return True if a broker does not have a queue, or has it closed for reads.

    The routes tell what becomes of it, and they may be older than the broker's answer.
    """
    return is_gone(error) or is_closed_for_reads(error)


def _moment(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(" ", "seconds")
    except (ValueError, OverflowError):  # a damaged one: no checksum covers it
        return f"{ms} ms after 1970"
