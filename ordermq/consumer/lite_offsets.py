"""Offsets of a lite pull consumer: where queues begin, what is committed and when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from ordermq.client.instance import ClientInstance
from ordermq.config import RebalanceConfig
from ordermq.consumer.group_offsets import store_offset, stored_offset
from ordermq.consumer.offsets import first_offset
from ordermq.consumer.poll_buffer import PollBuffer, PulledQueue
from ordermq.consumer.statistics import ConsumerStatistics
from ordermq.errors import RemotingError, RouteError
from ordermq.model.message_queue import MessageQueue

_log = logging.getLogger("ordermq.consumer")


class LiteOffsets:
    """Reads and commits the group's offsets at the brokers; on the I/O thread.

    There is no lock and no epoch (semantics 1): what keeps a commit from moving back what the
    next owner stored is that none is sent for a queue that is no longer ours, but for one, at
    its release, which looks first. Commits of one queue never overlap.
    """

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        config: RebalanceConfig,
        buffer: PollBuffer,
        statistics: ConsumerStatistics,
    ) -> None:
        self._client = client
        self._group = group
        self._config = config
        self._buffer = buffer
        self._statistics = statistics
        self._busy: dict[PulledQueue, asyncio.Lock] = {}
        self._complaints: dict[MessageQueue, str] = {}

    async def start(self, queue: MessageQueue) -> int:
        """Where to begin: the stored offset, else by setting, and then stored at once.

        Computed again by the next owner it could differ, and what lies between would be lost
        (semantics 7, rmq#10955).

        Raises: RemotingError, RouteError: the broker could not be asked.
        """
        stored = await self.stored(queue)
        if stored is not None:
            return stored
        offset = await first_offset(self._client, self._config, queue)
        await self._store(queue, offset)
        return offset

    async def stored(self, queue: MessageQueue) -> int | None:
        """What the broker has for the group; None if nothing."""
        return await stored_offset(self._client, self._group, queue)

    async def commit(self, offsets: Iterable[tuple[PulledQueue, int]]) -> None:
        """Commit and await every acknowledgement.

        Raises: RemotingError, RouteError: the first that failed; the others are committed.
        """
        outcomes = await asyncio.gather(
            *(self._commit(pulled, offset) for pulled, offset in offsets), return_exceptions=True
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def commit_done(self) -> None:
        """Commit what pollers are through with; what fails is tried again next time."""
        done = self._buffer.done()
        await asyncio.gather(*(self._try_commit(pulled, offset) for pulled, offset in done))

    async def commit_last(self, pulled: PulledQueue, offset: int) -> None:
        """Commit what is done of a queue that is no longer ours, unless its next owner is ahead."""
        async with self._lock_of(pulled):
            try:
                stored = await self.stored(pulled.queue)
                if pulled.committed != offset and (stored is None or stored < offset):
                    await self._store(pulled.queue, offset)
            except (RemotingError, RouteError) as error:
                self._statistics.add("commit_errors")
                _log.warning("%s: last commit, of %d, failed: %s", pulled.queue, offset, error)

    async def settled(self, pulled: PulledQueue) -> None:
        """Return when no commit of the queue is under way; to be called once it is dropped."""
        async with self._lock_of(pulled):
            del self._busy[pulled]

    async def _try_commit(self, pulled: PulledQueue, offset: int) -> None:
        try:
            await self._commit(pulled, offset)
        except (RemotingError, RouteError) as error:
            self._complain(pulled.queue, f"commit of offset {offset} failed: {error}")

    async def _commit(self, pulled: PulledQueue, offset: int) -> None:
        async with self._lock_of(pulled):
            if not pulled.is_held:  # lost while another commit was under way
                return
            try:
                await self._store(pulled.queue, offset)
            except (RemotingError, RouteError):
                self._statistics.add("commit_errors")
                raise
            pulled.committed = offset
            self._complaints.pop(pulled.queue, None)

    async def _store(self, queue: MessageQueue, offset: int) -> None:
        await store_offset(self._client, self._group, queue, offset)
        self._statistics.add("commits")

    def _lock_of(self, pulled: PulledQueue) -> asyncio.Lock:
        return self._busy.setdefault(pulled, asyncio.Lock())

    def _complain(self, queue: MessageQueue, problem: str) -> None:
        # Once: a broker that is away for a minute would otherwise fill the log.
        if self._complaints.get(queue) is None:
            _log.warning("%s: %s", queue, problem)
        self._complaints[queue] = problem
