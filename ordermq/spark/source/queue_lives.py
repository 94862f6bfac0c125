"""Lives of a queue: whether the queue in which a stream stands is still the one that it has read.

A topic that is deleted and created again counts from 0, and so does a queue whose broker lost its
store. Once it has as many messages as before, its offsets tell nothing. So a mark is kept beside
the stream's offset: a message of the queue, by its offset, its store time and a digest of its id
(docs/internals/semantics.md#a-topics-second-life).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from zlib import crc32

from ordermq.client.queue_scan import scan
from ordermq.client.session import ClientSession
from ordermq.client.store_times import offset_at_time
from ordermq.errors import BrokerError, DataLoss, OrderMQError
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import ResponseCode

_T = TypeVar("_T")
_AT_ONCE: Final = 64  # queues that are asked for at the same time
# By which the clocks of two brokers that hold a queue one after the other may differ: a minute is
# read twice rather than a message left out.
_SKEW_MINUTES: Final = 1
_MS: Final = 60_000  # of a minute


@dataclass(frozen=True, slots=True)
class QueueMark:
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
        return cls(message.queue_offset, stored_ms // _MS, digest)

    @classmethod
    def parse(cls, text: str) -> QueueMark:
        """Return the mark of a text that `str` made; raises ValueError for another."""
        offset, minute, digest = text.split(".")
        return cls(int(offset, 16), int(minute, 16), int(digest, 16))

    def __str__(self) -> str:
        # Short: a checkpoint has one for each of perhaps a thousand queues.
        return f"{self.offset:x}.{self.minute:x}.{self.digest:x}"


Marks = dict[MessageQueue, QueueMark]


@dataclass(frozen=True, slots=True)
class NewLife:
    """A queue that is not the one which the stream has read.

    Args:
        at: the stream's offset in the queue before.
        first: the first offset of the queue now that the stream has not read.
        end: of the queue now.
        reason: the difference that was found.
    """

    queue: MessageQueue
    at: int
    first: int
    end: int
    reason: str

    def error(self) -> DataLoss:
        """Return the error that ends the query."""
        return DataLoss(
            f"the queue is not the one that the stream has read: {self.reason}. Begin with a new "
            "checkpoint, or set fail_on_data_loss=false to go on at the first message that the "
            f"stream has not read of the queue as it is now, offset {self.first}. The topic was "
            "deleted and created again, or the broker lost messages; those of the queue before "
            "that were not read are gone",
            topic=self.queue.topic,
            broker=self.queue.broker_name,
            queue_id=self.queue.queue_id,
            offset=self.at,
        )


class QueueLives:
    """Marks the queues of a stream, and finds those that began a new life; on the I/O thread.

    Args: group: named by the pulls.
    """

    def __init__(self, session: ClientSession, group: str) -> None:
        self._session = session
        self._group = group
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def mark(self, offsets: Mapping[MessageQueue, int]) -> Marks:
        """Return marks of queues at the last messages before these offsets, or else at them.

        A queue without such a message gets none, and neither does one whose broker is away.
        Raises: OrderMQError: a broker refuses the pull.
        """
        found, _ = await self._each(self._mark_one, offsets.items())
        return found

    async def check(
        self, starts: Mapping[MessageQueue, int], marks: Mapping[MessageQueue, QueueMark | None]
    ) -> tuple[dict[MessageQueue, NewLife], set[MessageQueue]]:
        """Return the queues that began a new life, and those whose broker does not answer.

        Args:
            starts: the stream's offsets in the queues to check.
            marks: of these queues; where there is none, only the queue's end is looked at.
        Raises: OrderMQError: a broker refuses the pull.
        """
        asked = ((queue, at, marks.get(queue)) for queue, at in starts.items())
        return await self._each(self._check_one, asked)

    async def _each(
        self,
        work: Callable[..., Awaitable[_T | None]],
        asked: Iterable[tuple[MessageQueue, Any] | tuple[MessageQueue, Any, Any]],
    ) -> tuple[dict[MessageQueue, _T], set[MessageQueue]]:
        """Return what was found of each queue, and the queues whose broker does not answer."""
        found: dict[MessageQueue, _T] = {}
        silent: set[MessageQueue] = set()

        async def ask(queue: MessageQueue, *more: Any) -> None:
            async with self._slots:
                try:
                    answer = await work(queue, *more)
                except OrderMQError as error:
                    if not error.retriable and not _is_deleted(error):
                        raise
                    self._session.report_failure(queue.broker_name, "look at a queue", error)
                    silent.add(queue)
                else:
                    if answer is not None:
                        found[queue] = answer

        await asyncio.gather(*(ask(*each) for each in asked))
        return found, silent

    async def _mark_one(self, queue: MessageQueue, offset: int) -> QueueMark | None:
        for each in (offset - 1, offset):
            if each >= 0 and (message := await self._message(queue, each)) is not None:
                return QueueMark.of(message)
        return None

    async def _check_one(
        self, queue: MessageQueue, at: int, mark: QueueMark | None
    ) -> NewLife | None:
        message = None if mark is None else await self._message(queue, mark.offset)
        if mark is not None and message is not None:
            if QueueMark.of(message) == mark:
                return None
            reason = (
                f"its message at offset {mark.offset} was stored at {_moment(mark.minute * _MS)}, "
                f"and now one is there that was stored at {_moment(message.store_timestamp_ms)}"
            )
        else:
            reason = ""
        api, address = self._session.api, self._session.routes.master_of(queue.broker_name)
        first, end = await asyncio.gather(
            api.min_offset(address, queue), api.max_offset(address, queue)
        )
        if not reason:
            if end >= max(at, 0 if mark is None else mark.offset):
                return None  # the marked message has expired
            reason = f"it ends at offset {end}, before the stream's"
        return NewLife(queue, at, await self._first_unread(queue, first, mark), end, reason)

    async def _first_unread(self, queue: MessageQueue, first: int, mark: QueueMark | None) -> int:
        """Return the first offset stored after the marked message, and not by a minute earlier.

        That is the first of a topic made anew. Where the broker lost the end of the queue, it is
        where other messages took the place of what was lost.
        """
        message = None if mark is None else await self._message(queue, first)
        if mark is None or message is None:
            return first
        since_ms = (mark.minute - _SKEW_MINUTES) * _MS
        if message.store_timestamp_ms >= since_ms:
            return first
        return max(first, await offset_at_time(self._session, self._group, queue, since_ms))

    async def _message(self, queue: MessageQueue, offset: int) -> MessageView | None:
        async for message in scan(self._session, self._group, queue, offset, offset + 1):
            return message
        return None


def _is_deleted(error: OrderMQError) -> bool:
    # Between the deletion and the creation of a topic: the routes tell what becomes of it.
    return isinstance(error, BrokerError) and error.response_code == ResponseCode.TOPIC_NOT_EXIST


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(" ", "seconds")
