"""Where a queue begins, and committing what is done."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable

from ordermq.client.connections import is_denied
from ordermq.client.session import ClientSession
from ordermq.config import ConsumeFromWhere, RebalanceConfig
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueState
from ordermq.consumer.queue.event_recorder import EventRecorder
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.errors import BrokerError, Fenced, RemotingError, RouteError
from ordermq.events import EventType
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import RETRY_PREFIX

_log = logging.getLogger("ordermq.consumer")
_HALF_AN_HOUR_MS = 1_800_000


async def first_offset(client: ClientSession, config: RebalanceConfig, queue: MessageQueue) -> int:
    """Where a queue without a stored offset begins (docs/internals/semantics.md#rebalance).

    Raises: RemotingError, RouteError: the broker could not be asked.
    """
    where, api = config.consume_from_where, client.api
    address = client.routes.master_of(queue.broker_name)
    if queue.topic.startswith(RETRY_PREFIX):
        if where is not ConsumeFromWhere.TIMESTAMP:
            return 0
        where = ConsumeFromWhere.LAST_OFFSET  # what failed before is older than any time asked for
    if where is ConsumeFromWhere.FIRST_OFFSET:
        try:
            return await api.min_offset(address, queue)
        except BrokerError as error:
            if not is_denied(error.response_code, str(error)):
                raise
            # RocketMQ 5 wants more of an account for this than for pulling. Java's clients begin
            # at 0 without asking: the first pull corrects it.
            return 0
    if where is ConsumeFromWhere.TIMESTAMP:
        asked_ms = config.consume_timestamp_ms or client.clock.wall_ms() - _HALF_AN_HOUR_MS
        return await api.search_offset(address, queue, asked_ms)
    return await api.max_offset(address, queue)


class FirstOffsets:
    """Lets nothing beside a group's first offset of a topic on its way to a broker.

    RocketMQ (4.9.7, 5.3.3, 5.4.0) makes a group's table of a topic when it is told the first
    offset; it looks for the table and puts one without a lock, so that of two first offsets
    told at once one may be lost, acknowledged or not. Two queues handed over right after their
    group began are such a pair. Members of other processes can still meet it with us.
    """

    def __init__(self) -> None:
        self._made: set[tuple[str, str]] = set()
        self._making: dict[tuple[str, str], asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def turn(self, queue: MessageQueue) -> AsyncIterator[None]:
        """To be held while an offset is stored: alone, until one of its topic is acknowledged."""
        table = (queue.topic, queue.broker_name)
        if table in self._made:
            yield
            return
        async with self._making.setdefault(table, asyncio.Lock()):
            yield
            self._made.add(table)


class Offsets:
    """Reads and commits the group's offsets; on the I/O thread.

    A commit is awaited, carries the lease's epoch where the broker knows epochs, and is
    never sent outside the lease (docs/internals/semantics.md#fencing). Commits of one queue never
    overlap, so
    none can arrive behind a newer one and move the offset back.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        config: RebalanceConfig,
        history: EventRecorder,
        statistics: ConsumerStatistics,
    ) -> None:
        self._client = client
        self._group = group
        self._config = config
        self._history = history
        self._statistics = statistics
        self._busy: dict[MessageQueue, asyncio.Lock] = {}
        self._first = FirstOffsets()

    async def start_offset(self, queue: MessageQueue, epoch: int, is_fenced: bool) -> int:
        """Where to begin after the lock was granted: the stored offset, else by setting.

        An offset that comes from the setting is committed at once: computed twice it could
        differ, and what lies between would be lost (docs/internals/semantics.md#pull-loop,
        rmq#10955).

        Raises: RemotingError, RouteError: the broker could not be asked.
        """
        # After a lost lease a commit of ours may be under way still; read before it is stored,
        # the offset would be behind it, and the next commit would move the group back.
        async with self._busy.setdefault(queue, asyncio.Lock()):
            address = self._client.routes.master_of(queue.broker_name)
            stored = await self._client.api.query_offset(address, self._group, queue)
            if stored is not None and stored >= 0:
                return stored
            offset = await first_offset(self._client, self._config, queue)
            await self._store(queue, offset, epoch if is_fenced else 0)
            return offset

    async def commit(self, assigned: AssignedQueue) -> bool:
        """Commit what is done of one queue and await the acknowledgement.

        Returns: True if the broker has everything that is done; False after an error, which
            is logged: the next commit tries again, or a lost lease makes it moot.
        """
        busy = self._busy.setdefault(assigned.queue, asyncio.Lock())
        async with busy:
            return await self._commit_alone(assigned)

    async def commit_all(self, queues: Iterable[AssignedQueue]) -> None:
        """Commit every queue that has something new."""
        now_ms = self._client.clock.now_ms()
        dirty = [assigned for assigned in queues if assigned.uncommitted(now_ms) is not None]
        await asyncio.gather(*(self.commit(assigned) for assigned in dirty))

    def forget(self, queue: MessageQueue) -> None:
        """Drop what is kept for a queue that is no longer ours."""
        self._busy.pop(queue, None)

    async def _commit_alone(self, assigned: AssignedQueue) -> bool:
        found = assigned.uncommitted(self._client.clock.now_ms())
        if found is None:
            return assigned.done_offset == assigned.committed_offset
        offset, lease = found
        queue = assigned.queue
        self._history.record(EventType.COMMIT_SENT, queue, lease.epoch, off=offset)
        try:
            if lease.is_lock or not await self._is_ahead(assigned, offset):
                await self._store(queue, offset, lease.wire_epoch)
        except Fenced as error:
            self._statistics.add("fenced_commits")
            _log.warning("%s", error)
            assigned.lose_lease("its commit was fenced")
            return False
        except (RemotingError, RouteError) as error:
            self._statistics.add("commit_errors")
            _log.warning("%s: commit of offset %d failed: %s", assigned.queue, offset, error)
            return False
        assigned.committed(offset, lease)
        self._history.record(EventType.COMMIT_ACK, queue, lease.epoch, off=offset)
        self._statistics.add("commits")
        return True

    async def _is_ahead(self, assigned: AssignedQueue, offset: int) -> bool:
        """Whether the next owner of a queue without a lock has committed further than we."""
        if assigned.state is QueueState.ACTIVE:
            return False
        address = self._client.routes.master_of(assigned.queue.broker_name)
        stored = await self._client.api.query_offset(address, self._group, assigned.queue)
        return stored is not None and stored >= offset

    async def reset(self, assigned: AssignedQueue, generation: int, offset: int) -> bool:
        """Go on from `offset`, either way, and commit it as a wanted move
        (docs/internals/semantics.md#pause-and-seek).

        Returns: False, and nothing happens, if a batch runs or the queue was lost meanwhile.
        Raises: RemotingError, RouteError: the broker did not take it yet; the next commit
            tells it again.
        """
        lease = assigned.lease
        if lease is None or not assigned.reposition(generation, offset):
            return False
        busy = self._busy.setdefault(assigned.queue, asyncio.Lock())
        async with busy:
            self._history.record(EventType.RESET, assigned.queue, lease.epoch, off=offset)
            await self._store(assigned.queue, offset, lease.wire_epoch, reset=True)
            assigned.committed(offset, lease)
        return True

    async def _store(
        self, queue: MessageQueue, offset: int, epoch: int, *, reset: bool = False
    ) -> None:
        address = self._client.routes.master_of(queue.broker_name)
        async with self._first.turn(queue):
            await self._client.api.update_offset(address, self._group, queue, offset, epoch, reset)
