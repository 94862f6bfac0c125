"""The fence on executors: before user code runs, the queue is still the query's.

The driver of an ordered query holds the broker's queue locks (driver_lease.py). A task that
goes on after its query has ended, as Spark's do for seconds, must notice that somebody else
consumes its queue now. It asks the broker for the lock under the very client id its driver
used: for the holder that is a renewal, for anybody else a refusal
(docs/internals/semantics.md#broker-lock-table).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ordermq.client.session import ClientSession
from ordermq.clock import SystemClock
from ordermq.config import RemotingConfig
from ordermq.errors import LockLost, RemotingError, RouteError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.schema import LEASE_COLUMN
from ordermq.spark.session import KeptClients, lease_client_id, remoting_of

if TYPE_CHECKING:
    from ordermq.client.broker_api import LockGrant
    from ordermq.spark.stages.stage_invocation import StageContext

_log = logging.getLogger("ordermq.spark")
# A broker that does not say how long its locks live: RocketMQ's 60 s, halved as in LeaseTimes.
_LIVE_MS = 30_000
_MOST_KNOWN = 4_096  # queues of runs that this process remembers
_CLOCK = SystemClock()


@dataclass(slots=True)
class _Known:
    """What the last answer allows, on the monotonic clock, from the send of its question."""

    ask_again_ms: int
    valid_until_ms: int


_known: dict[tuple[str, MessageQueue], _Known] = {}


def _client(name_servers: str, remoting: RemotingConfig, client_id: str) -> ClientSession:
    # No heartbeat: the driver is the member of the group, executors only ask in its name.
    return ClientSession(name_servers, remoting, client_id, clock=_CLOCK)


_CLIENTS = KeptClients(_client)


@dataclass(frozen=True)
class ExecutorLease:
    """Asks for the locks of rows before they are handed to user code.

    Args:
        group: whose locks.
        client: options of the format: name servers, account, TLS.
        interval_ms: an answer is believed so long, and never past half the broker's lease; so
            much user code at most, and one call, runs beside a new owner.
    """

    group: str
    client: tuple[tuple[str, str], ...]
    interval_ms: int = 1_000

    def check_rows(self, rows: Any, context: StageContext) -> None:
        """Make sure that every queue the rows are of is still held.

        Raises: LockLost: one is another member's. RemotingError: nobody can be asked, and the
            last answer is too old.
        """
        if context.queue is not None:
            if context.lease is not None:
                self.check(context.queue, context.lease)
            return
        for queue, lease in _queues_of(rows):
            self.check(queue, lease)

    def check(self, queue: MessageQueue, lease: int) -> None:
        """Make sure that the run `lease` holds the queue; raises as `check_rows`."""
        client_id = lease_client_id(self.group, lease)
        now_ms = _CLOCK.now_ms()
        known = _known.get((client_id, queue))
        if known is not None and now_ms < min(known.ask_again_ms, known.valid_until_ms):
            return
        try:
            grant = self._ask(client_id, queue)
        except (RemotingError, RouteError) as error:
            if known is None or now_ms >= known.valid_until_ms:
                raise
            _log.warning("%s: lock not confirmed, the last answer still holds: %s", queue, error)
            return
        if queue not in grant.granted:
            _known.pop((client_id, queue), None)
            raise LockLost(
                "the queue's lock is another member's: this query was stopped, or its driver "
                "could not renew, and the queue moved on. Nothing more of this batch runs; the "
                "rows come again from the last committed offset, at whoever holds the queue",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                group=self.group,
            )
        live_ms = grant.lease_ms // 2 if grant.lease_ms else _LIVE_MS
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[client_id, queue] = _Known(now_ms + self.interval_ms, now_ms + live_ms)

    def _ask(self, client_id: str, queue: MessageQueue) -> LockGrant:
        name_servers, remoting = remoting_of(dict(self.client))
        client: ClientSession = _CLIENTS.of(name_servers, remoting, client_id)

        async def ask() -> LockGrant:
            await client.routes.get(queue.topic)
            address = client.routes.master_of(queue.broker_name)
            return await client.api.lock(address, self.group, [queue])

        return client.runtime.call(ask())


def _queues_of(rows: Any) -> Iterator[tuple[MessageQueue, int]]:
    names = ["topic", "broker", "queue_id", LEASE_COLUMN]
    if LEASE_COLUMN not in rows.schema.names:
        return
    places = pa.Table.from_batches([rows.select(names)]).group_by(names).aggregate([])
    for place in places.to_pylist():
        if place[LEASE_COLUMN] is not None:
            queue = MessageQueue(place["topic"], place["broker"], place["queue_id"])
            yield queue, place[LEASE_COLUMN]
