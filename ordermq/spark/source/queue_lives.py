"""Lives of a stream's queues: whether each is still the one that the stream has read
(docs/internals/semantics.md#a-topics-second-life)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from ordermq.client.queue_life import (
    NewLife,
    QueueMark,
    is_told_by_routes,
    mark_before,
    new_life,
)
from ordermq.client.queue_scan import scan
from ordermq.client.session import ClientSession
from ordermq.clock import MINUTE_MS
from ordermq.errors import DataLoss, OrderMQError, RequestTimeout
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.session import closed_brokers, closed_error, learn_routes

_T = TypeVar("_T")
_AT_ONCE: Final = 64  # queues that are asked for at the same time
_RETRY_MS: Final = 200  # of a question that a broker did not answer

Marks = dict[MessageQueue, QueueMark]
# When a topic's messages were stored at a broker, ms since 1970: those that were there were stored
# by then.
StoreTimes = dict[tuple[str, str], int]
_NO_TIMES: Final[StoreTimes] = {}


def topic_and_broker(queue: MessageQueue) -> tuple[str, str]:
    """Return where a queue is: its siblings there begin a new life, or go, together with it."""
    return queue.topic, queue.broker_name


def data_loss(life: NewLife) -> DataLoss:
    """Return the error that ends a query because of a new life."""
    return DataLoss(
        f"the queue is not the one that the stream has read: {life.reason}. Begin with a new "
        "checkpoint, or set fail_on_data_loss=false to go on at the first message that the "
        f"stream may not have read of the queue as it is now, offset {life.first}. The topic was "
        "deleted and created again, or the broker lost messages; those of the queue before "
        "that were not read are gone",
        topic=life.queue.topic,
        broker=life.queue.broker_name,
        queue_id=life.queue.queue_id,
        offset=life.at,
    )


class QueueLives:
    """Marks the queues of a stream, and finds those that began a new life; on the I/O thread.

    Args: group: named by the pulls.
    """

    def __init__(self, session: ClientSession, group: str) -> None:
        self._session = session
        self._mark = partial(mark_before, session, group)
        self._ask_for_life = partial(new_life, session, group)
        self._scan = partial(scan, session, group)
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def mark(self, offsets: Mapping[MessageQueue, int]) -> Marks:
        """Return marks of queues at the last messages before these offsets, or else at them.

        A queue without such a message gets none, and neither does one whose broker is away.
        Raises: OrderMQError: a broker refuses the pull.
        """
        found, _ = await self._each(self._mark, offsets.items())
        return found

    async def check(
        self,
        starts: Mapping[MessageQueue, int],
        marks: Mapping[MessageQueue, QueueMark | None],
        stored: StoreTimes = _NO_TIMES,
    ) -> tuple[dict[MessageQueue, NewLife], set[MessageQueue]]:
        """Return the queues that began a new life, and those whose broker does not answer.

        Args:
            starts: the stream's offsets in the queues to check.
            marks: of these queues; where there is none, only the queue's end is looked at.
            stored: by when the messages before these offsets were stored, as far as known.
        Raises: OrderMQError: a broker refuses the pull.
        """
        asked = (
            (queue, at, marks.get(queue), stored.get(topic_and_broker(queue)))
            for queue, at in starts.items()
        )
        return await self._each(self._new_life, asked)

    async def check_all(
        self,
        starts: Mapping[MessageQueue, int],
        marks: Mapping[MessageQueue, QueueMark | None],
        stored: StoreTimes,
        timeout_ms: int,
    ) -> dict[MessageQueue, NewLife]:
        """Do as `check`, and wait for brokers that do not answer.

        Args: timeout_ms: the option `read_timeout_ms`.
        Raises: RouteError: a queue is closed for reads, or no broker has its topic.
            RequestTimeout: a broker does not answer for so long. OrderMQError: as `check`.
        """
        session = self._session
        deadline_ms = session.clock.now_ms() + timeout_ms
        while True:
            await learn_routes(session, starts)  # nothing has asked for them since the restart
            lives, silent = await self.check(starts, marks, stored)
            if not silent:
                return lives
            queue = min(silent)
            if topic_and_broker(queue) in (closed := await closed_brokers(session, [queue.topic])):
                raise closed_error(queue.topic, (broker for _, broker in closed))
            if session.clock.now_ms() > deadline_ms:
                await session.address_of(queue)  # raises where no broker has the topic
                raise RequestTimeout(
                    "the broker does not tell whether a queue is still the one of the checkpoint, "
                    f"for read_timeout_ms={timeout_ms}: start the query again when it answers",
                    topic=queue.topic,
                    broker=queue.broker_name,
                    queue_id=queue.queue_id,
                )
            await session.clock.sleep_ms(_RETRY_MS)

    async def _new_life(
        self, queue: MessageQueue, at: int, mark: QueueMark | None, stored_ms: int | None
    ) -> NewLife | None:
        life = await self._ask_for_life(queue, at, mark)
        if life is not None:
            self._session.doubt_route(queue.topic)  # it may have other queues, too
        if life is not None or mark is None or at == mark.offset + 1:
            return life
        # It still has the marked message. A mark may be older than the offset, and what lies
        # between the two may be lost: others take its offsets, and would be left out.
        address = self._session.routes.master_of(queue.broker_name)
        end = await self._session.api.max_offset(address, queue)
        if end < at:
            reason = f"it ends at offset {end}, and was read up to {at}"
        elif (
            stored_ms is None
            or at - 1 <= mark.offset
            # The marked message seems to come later, too: a broker's clock was set back before.
            or mark.minute * MINUTE_MS > stored_ms
            or not await self._is_later(queue, at, end, stored_ms)
        ):
            return None
        else:
            reason = (
                f"its message at offset {at - 1} was stored after the stream had found one there, "
                "so the broker lost messages, and others took their offsets"
            )
        return NewLife(queue, at, mark.offset + 1, end, reason)

    async def _is_later(self, queue: MessageQueue, at: int, end: int, stored_ms: int) -> bool:
        """Return whether the message before `at` came later than the one that was read there.

        A clock that was set back in the middle of a backlog tells nothing: its end is earlier.
        """
        read_ms = await self._stored_at(queue, at - 1)
        if read_ms is None or read_ms <= stored_ms:
            return False
        last_ms = await self._stored_at(queue, end - 1)
        return last_ms is not None and last_ms >= read_ms

    async def _stored_at(self, queue: MessageQueue, offset: int) -> int | None:
        async for message in self._scan(queue, offset, offset + 1):
            return message.store_timestamp_ms
        return None

    async def _each(
        self,
        work: Callable[..., Awaitable[_T | None]],
        asked: Iterable[tuple[Any, ...]],
    ) -> tuple[dict[MessageQueue, _T], set[MessageQueue]]:
        """Return what was found of each queue, and the queues whose broker does not answer."""
        found: dict[MessageQueue, _T] = {}
        silent: set[MessageQueue] = set()

        async def ask(queue: MessageQueue, *more: Any) -> None:
            async with self._slots:
                try:
                    answer = await work(queue, *more)
                except OrderMQError as error:
                    if not error.retriable and not is_told_by_routes(error):
                        raise
                    self._session.report_failure(queue.broker_name, "look at a queue", error)
                    self._session.doubt_route(queue.topic)
                    silent.add(queue)
                else:
                    if answer is not None:
                        found[queue] = answer

        await asyncio.gather(*(ask(*each) for each in asked))
        return found, silent
