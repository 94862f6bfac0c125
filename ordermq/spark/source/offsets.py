"""Offsets of a stream: pure functions over {queue: next offset}.

Spark keeps an offset as JSON text and compares the texts, so ours has one form: keys sorted,
plain ints. The key `@lease` carries the lease id of the run that made it (lease_identity.py);
it is no queue, for no topic is empty.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ordermq.client.broker_api import BrokerApi
from ordermq.errors import ConfigError, DataLoss, OrderMQError, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import Boundary, Edge, SourceOptions, queue_of, queue_text
from ordermq.spark.session import Link

_LEASE: Final = "@lease"
Offsets = dict[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a stream is.

    Args:
        queues: the next offset to read of each.
        lease: of the run that got here; None when no locks are held.
    """

    queues: Offsets
    lease: int | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> StreamOffset:
        """Read what `to_json` made.

        Raises: StateError: it is something else, as the checkpoint of another source.
        """
        try:
            queues = {queue_of(key): int(at) for key, at in told.items() if key != _LEASE}
            lease = told.get(_LEASE)
            return cls(queues, None if lease is None else int(lease))
        except (ValueError, TypeError) as error:
            raise StateError(
                f"the checkpoint holds no offset of this source: {error}; was it made by another "
                "query? Give this one a checkpointLocation of its own"
            ) from error

    def to_json(self) -> dict[str, int]:
        """What Spark keeps: the same text for the same offsets, whatever their order."""
        members = {queue_text(queue): int(at) for queue, at in self.queues.items()}
        if self.lease is not None:
            members[_LEASE] = self.lease
        return dict(sorted(members.items()))


def share_fairly(backlog: Mapping[MessageQueue, int], limit: int, turn: int) -> Offsets:
    """How many messages of each queue make up to `limit`: alike, what one lacks goes to others.

    Args:
        backlog: messages waiting, by queue.
        turn: who gets what does not divide; with one that moves on, nobody is passed over for ever.
    """
    shares = dict(backlog)
    left = limit
    hungry = sorted(backlog, key=lambda queue: (backlog[queue], queue))
    while hungry and backlog[hungry[0]] * len(hungry) <= left:
        left -= backlog[hungry.pop(0)]  # has no more than its part: gets all
    if hungry:
        each, rest = divmod(left, len(hungry))  # each of these has more than that
        hungry.sort()
        first = turn % len(hungry)
        for place, queue in enumerate(hungry[first:] + hungry[:first]):
            shares[queue] = each + (place < rest)
    return shares


def advance(start: Offsets, tails: Mapping[MessageQueue, int], limit: int | None) -> Offsets:
    """The next offsets: towards the tails, at most `limit` messages further altogether."""
    backlog = {queue: max(tails.get(queue, at) - at, 0) for queue, at in start.items()}
    steps = backlog if limit is None else share_fairly(backlog, limit, sum(start.values()))
    return {queue: at + steps[queue] for queue, at in start.items()}


def went_back(start: Offsets, tails: Mapping[MessageQueue, int]) -> DataLoss | None:
    """The error for a queue that ends before the stream's place in it; None if there is none.

    Spark takes an offset that goes back, or lacks a queue, without a word.
    """
    for queue, at in sorted(start.items()):
        tail = tails.get(queue)
        if tail is not None and tail < at:
            return DataLoss(
                f"the queue ends at offset {tail}, before the stream's place in it: the topic was "
                "made anew, or the broker lost messages. Begin with a new checkpoint, or set "
                "fail_on_data_loss=false to wait until the queue has got there again",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                offset=at,
            )
    return None


_log = logging.getLogger("ordermq.spark")


async def offsets_at(
    link: Link, options: SourceOptions, boundary: Boundary, queues: Sequence[MessageQueue]
) -> Offsets:
    """The offset of each queue where a boundary lies.

    Raises: ConfigError: it names a queue there is none of, or an offset behind the queue's end.
        DataLoss: it names an offset that expired. RemotingError, RouteError: nobody answers.
    """
    named = dict(boundary.offsets)
    if unknown := sorted(set(named).difference(queues)):
        known = ", ".join(map(queue_text, queues))
        raise ConfigError(f"offsets are given for {queue_text(unknown[0])}; there are {known}")
    found = await asyncio.gather(
        *(_offset_at(link, options, boundary, queue, named.get(queue)) for queue in queues)
    )
    return dict(zip(queues, found, strict=True))


async def tails_of(link: Link, queues: Sequence[MessageQueue]) -> Offsets:
    """Where each queue ends now."""
    api, routes = link.client.api, link.client.routes
    found = await asyncio.gather(
        *(api.max_offset(routes.master_of(queue.broker_name), queue) for queue in queues)
    )
    return dict(zip(queues, found, strict=True))


async def heads_of(link: Link, queues: Sequence[MessageQueue]) -> Offsets:
    """The oldest offset each queue still has."""
    api, routes = link.client.api, link.client.routes
    found = await asyncio.gather(
        *(api.min_offset(routes.master_of(queue.broker_name), queue) for queue in queues)
    )
    return dict(zip(queues, found, strict=True))


async def snapshot(link: Link, options: SourceOptions) -> dict[MessageQueue, tuple[int, int]]:
    """The offsets (first, end) that a batch read takes, of each queue that has any.

    Raises: as `offsets_at`.
    """
    queues = await link.queues(options.topics)
    starts = await offsets_at(link, options, options.batch_start(), queues)
    ends = await offsets_at(link, options, options.end, queues)
    if options.max_rows is not None:
        ends = advance(starts, ends, options.max_rows)
    return {queue: (at, ends[queue]) for queue, at in starts.items() if at < ends[queue]}


async def _offset_at(
    link: Link,
    options: SourceOptions,
    boundary: Boundary,
    queue: MessageQueue,
    named: int | Edge | None,
) -> int:
    api, address = link.client.api, link.client.routes.master_of(queue.broker_name)
    if isinstance(named, int):
        return await _checked(api, address, options, queue, named)
    if boundary.timestamp_ms is not None:
        return await api.search_offset(address, queue, boundary.timestamp_ms)
    edge = named or boundary.edge
    if edge is Edge.LATEST:
        return await api.max_offset(address, queue)
    if edge is Edge.GROUP:
        stored = await api.query_offset(address, options.group, queue)
        if stored is not None and stored >= 0:
            return await _checked(api, address, options, queue, stored)
    return await api.min_offset(address, queue)


async def _checked(
    api: BrokerApi, address: str, options: SourceOptions, queue: MessageQueue, offset: int
) -> int:
    head, tail = await asyncio.gather(
        api.min_offset(address, queue), api.max_offset(address, queue)
    )
    if head <= offset <= tail:
        return offset
    where = f"offset {offset} of {queue_text(queue)}; the broker has {head}..{tail}"
    if offset > tail:
        raise ConfigError(f"{where}: expected none behind the end")
    if options.fail_on_data_loss:
        raise DataLoss(
            f"{where}: the messages before expired. Begin later, or set fail_on_data_loss=false",
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            offset=offset,
        )
    _log.warning("%s: %d messages expired unread", where, head - offset)
    return head


_log = logging.getLogger("ordermq.spark")
REFRESH_MS: Final = 25  # an answer older than this starts a new question
_STALE_MS: Final = 100  # one older than this is not given: the caller waits for a new one


class Tails:
    """The ends of all queues of some topics, new queues among them."""

    def __init__(self, link: Link, topics: Sequence[str]) -> None:
        self._link = link
        self._topics = topics
        self._routed_ms: int | None = None
        self._lock = threading.Lock()
        self._known: Offsets = {}
        self._asked_ms: int | None = None  # when the question of the last answer was sent
        self._asking: Any = None
        self._complaint = ""

    def latest(self) -> Offsets:
        """The ends as last told; a question at most 100 ms ago.

        Raises: RemotingError, RouteError: nobody has answered yet, ever.
        """
        now_ms = self._link.clock.now_ms()
        with self._lock:
            age_ms = None if self._asked_ms is None else now_ms - self._asked_ms
            if self._asking is not None and self._asking.done():
                self._asking = None
            if self._asking is None and (age_ms is None or age_ms > REFRESH_MS):
                self._asking = self._link.submit(self._ask())
            asking = self._asking
        if asking is not None and (age_ms is None or age_ms > _STALE_MS):
            asking.result()
        return dict(self._known)

    def fresh(self) -> Offsets:
        """The ends now.

        Raises: as `latest`.
        """
        self._link.submit(self._ask()).result()
        return dict(self._known)

    async def _ask(self) -> None:
        asked_ms = self._link.clock.now_ms()
        try:
            queues = await self._queues(asked_ms)
        except OrderMQError as error:
            self._complain(error)
            if not self._known:
                raise
            queues = sorted(self._known)
        answers = await asyncio.gather(
            *(self._tail(queue) for queue in queues), return_exceptions=True
        )
        for queue, answer in zip(queues, answers, strict=True):
            if isinstance(answer, OrderMQError):
                # A broker that is away for a while: its queues stand still until it is back.
                self._complain(answer)
                if queue not in self._known and not self._known:
                    raise answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                self._known[queue] = answer
        self._asked_ms = asked_ms

    async def _queues(self, now_ms: int) -> list[MessageQueue]:
        client = self._link.client
        if self._routed_ms is None:
            self._routed_ms = now_ms
        elif now_ms - self._routed_ms > client.config.route_interval_ms:
            self._routed_ms = now_ms
            await client.routes.refresh_all()  # a topic may have got more queues
        return await self._link.queues(self._topics)

    async def _tail(self, queue: MessageQueue) -> int:
        client = self._link.client
        return await client.api.max_offset(client.routes.master_of(queue.broker_name), queue)

    def _complain(self, error: OrderMQError) -> None:
        if str(error) != self._complaint:  # once, not 92 times a second
            self._complaint = str(error)
            _log.warning("the ends of some queues are not known anew: %s", error)
