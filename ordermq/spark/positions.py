"""What a boundary means in offsets: the brokers are asked once, then the answer is kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ordermq.client.broker_api import BrokerApi
from ordermq.errors import ConfigError, DataLoss
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import Boundary, Edge, SourceOptions, queue_text
from ordermq.spark.session import Link
from ordermq.spark.source.offsets import Offsets, advance

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
