"""The start of a new query as its group's offset, stored before anything is read
(docs/internals/semantics.md#where-a-stream-of-spark-starts)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from ordermq.client.connections import is_busy
from ordermq.consumer.offsets.offset_committer import BrokerOffsets
from ordermq.errors import BrokerError, Fenced
from ordermq.leases.lease import UNLOCKED, Lease
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import queue_text
from ordermq.spark.source.offsets import Offsets

_log = logging.getLogger("ordermq.spark")
_NO_LEASES: Mapping[MessageQueue, Lease] = {}


async def store_start(
    stored: BrokerOffsets,
    group: str,
    start: Offsets,
    leases: Mapping[MessageQueue, Lease] = _NO_LEASES,
) -> Offsets:
    """Store the start of each queue of which the group has no offset; return what was stored.

    Raises: RemotingError, RouteError: it cannot be stored now. Fenced: a queue has a newer owner.
    """
    refusals: dict[str, tuple[MessageQueue, BrokerError]] = {}

    async def store(queue: MessageQueue, at: int) -> bool:
        # A 0 that stands for none, as RocketMQ 4.9 answers, stays: who begins there repeats
        # messages, and loses none.
        if await stored.read(queue) is not None:
            return False
        try:
            await stored.write(queue, at, leases.get(queue, UNLOCKED))
        except Fenced:
            raise
        except BrokerError as error:
            if is_busy(error):
                raise
            refusals.setdefault(queue.broker_name, (queue, error))
            return False
        return True

    queues = sorted(start)
    are_stored = await asyncio.gather(*(store(queue, start[queue]) for queue in queues))
    for queue, error in refusals.values():
        _log.warning(
            "the start of the query is not stored for group %s, %s refuses it (%s): its checkpoint "
            "has it all the same, but another query or consumer of the group may begin elsewhere "
            "until a batch is committed: let this account commit offsets",
            group,
            queue_text(queue),
            error,
        )
    return {queue: start[queue] for queue, is_stored in zip(queues, are_stored, strict=True)
            if is_stored}  # fmt: skip
