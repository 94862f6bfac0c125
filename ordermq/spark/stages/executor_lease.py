"""The lease check on executors: before user code runs, the run must still hold the queue.

The driver of an ordered query holds the broker's queue locks (source/driver_locks.py). After the
query has ended, Spark lets its tasks run on for seconds, and such a task must notice that another
member consumes its queue now. It asks the broker for the lock under the client id of its driver:
for the holder that is a renewal, for any other client a refusal
(docs/internals/semantics.md#broker-lock-table).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ordermq.client.broker_api import BrokerApi, LockGrant
from ordermq.clock import SystemClock
from ordermq.config import LeaseConfig
from ordermq.errors import ConfigError, LockLost, RemotingError, RouteError
from ordermq.leases.lease import LeaseTimes
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import client_options, group_of
from ordermq.spark.schema import LEASE_COLUMN
from ordermq.spark.session import lease_client_id, shared_session

_MAX_KNOWN = 4_096  # answers kept; a worker sees the queues of many runs before Spark ends it
_CLOCK = SystemClock()


@dataclass(slots=True)
class _Answer:
    """The last answer about a queue: two times on the monotonic clock, counted from its request."""

    ask_again_ms: int
    valid_until_ms: int


# Kept by the process, not by an ExecutorLease: Spark unpickles a new one for every task.
_answers: dict[tuple[str, MessageQueue], _Answer] = {}


@dataclass(frozen=True)
class ExecutorLease:
    """Checks the lease of rows before they are passed to user code.

    Args:
        group: the consumer group that owns the locks.
        client: options of the format: name servers, account, TLS.
        interval_ms: how long an answer is believed, and never past half of the broker's lock
            time. At most this much user code, and one call, can overlap with a new owner.
    """

    group: str
    client: tuple[tuple[str, str], ...]
    interval_ms: int = 1_000

    @classmethod
    def of(cls, client: Mapping[str, str], interval_ms: int) -> ExecutorLease:
        """Return the check of the group that these options of the format name.

        Raises: ConfigError: they name no group.
        """
        group = group_of(client)
        if not group:
            raise ConfigError("client_options needs 'group': the group that owns the locks")
        return cls(group, tuple(sorted(client.items())), interval_ms)

    def check_rows(self, rows: Any, queue: MessageQueue | None, lease: int | None) -> None:
        """Make sure that every queue of the rows is still held.

        Args:
            queue: of all rows; None if there are several.
            lease: of all rows, if there is one queue.
        Raises: LockLost: another member holds a queue. RemotingError: no broker answers, and the
            last answer is too old.
        """
        if queue is not None:
            if lease is not None:
                self.check(queue, lease)
            return
        for each, its_lease in _leases_of(rows):
            self.check(each, its_lease)

    def check(self, queue: MessageQueue, lease: int) -> None:
        """Make sure that the run `lease` holds the queue; raises as `check_rows`."""
        client_id = lease_client_id(self.group, lease)
        now_ms = _CLOCK.now_ms()
        known = _answers.get((client_id, queue))
        if known is not None and now_ms < min(known.ask_again_ms, known.valid_until_ms):
            return
        try:
            grant = self._ask(client_id, queue)
        except (RemotingError, RouteError):
            # A broker that is away for a moment must not fail a stage whose lease is still good.
            if known is None or now_ms >= known.valid_until_ms:
                raise
            return
        if queue not in grant.granted:
            _answers.pop((client_id, queue), None)
            raise LockLost(
                "another member holds the queue's lock: start the query again if it should run. "
                "It was stopped, or its driver could not renew the lock. Nothing more of this "
                "batch runs; its rows are redelivered from the last committed offset to the "
                "queue's holder",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                group=self.group,
            )
        # The same times as the driver's and as a consumer's: half of the broker's lock time.
        duration_ms = LeaseTimes.of(LeaseConfig(), grant.lease_ms).duration_ms
        if len(_answers) >= _MAX_KNOWN:
            _answers.clear()  # costs one request per queue
        _answers[client_id, queue] = _Answer(now_ms + self.interval_ms, now_ms + duration_ms)

    def _ask(self, client_id: str, queue: MessageQueue) -> LockGrant:
        # No heartbeat goes out under this id: the driver is the member of the group, and two
        # processes with one client id would confuse the broker's list of members. Nor has it a
        # session of its own: a worker sees the queues of many runs.
        session = shared_session(*client_options(dict(self.client)))
        api = BrokerApi(session.connections, session.config, client_id)

        async def ask() -> LockGrant:
            try:
                address = await session.address_of(queue)
                return await api.lock(address, self.group, [queue])
            except (RemotingError, RouteError) as error:
                session.report_failure(queue.broker_name, "lease check", error)
                raise

        return session.call(ask())


def _leases_of(rows: Any) -> Iterator[tuple[MessageQueue, int]]:
    names = ["topic", "broker", "queue_id", LEASE_COLUMN]
    if LEASE_COLUMN not in rows.schema.names:
        return
    distinct = pa.Table.from_batches([rows.select(names)]).group_by(names).aggregate([])
    for row in distinct.to_pylist():
        if row[LEASE_COLUMN] is not None:
            yield MessageQueue(row["topic"], row["broker"], row["queue_id"]), row[LEASE_COLUMN]
