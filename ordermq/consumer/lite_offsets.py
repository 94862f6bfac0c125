"""Offsets of a lite pull consumer: where queues begin, what is committed and when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from ordermq.client.session import ClientSession
from ordermq.config import RebalanceConfig
from ordermq.consumer.group_offsets import store_offset, stored_offset
from ordermq.consumer.offsets.local_offsets import OffsetFile
from ordermq.consumer.offsets.offset_store import FirstOffsets, first_offset
from ordermq.consumer.queue.poll_buffer import PollBuffer, PulledQueue
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.errors import RemotingError, RouteError, StoreError
from ordermq.model.message_queue import MessageQueue

_log = logging.getLogger("ordermq.consumer")


class OffsetStore(Protocol):
    """Where offsets are kept; on the I/O thread."""

    async def stored(self, queue: MessageQueue) -> int | None:
        """What is kept of a queue; None if nothing. Raises: one of `STORE_ERRORS`."""

    async def store(self, queue: MessageQueue, offset: int) -> None:
        """Keep it, and return when it is safe. Raises: one of `STORE_ERRORS`."""


STORE_ERRORS = (RemotingError, RouteError, StoreError)


class BrokerStore:
    """The group's offsets, each at the broker of its queue."""

    def __init__(self, client: ClientSession, group: str) -> None:
        self._client = client
        self._group = group

    async def stored(self, queue: MessageQueue) -> int | None:
        return await stored_offset(self._client, self._group, queue)

    async def store(self, queue: MessageQueue, offset: int) -> None:
        await store_offset(self._client, self._group, queue, offset)


class FileStore:
    """The offsets of a broadcasting member, in its own file."""

    def __init__(self, file: OffsetFile) -> None:
        self._file = file
        self._waiting: dict[MessageQueue, int] = {}
        self._writing = asyncio.Lock()

    async def stored(self, queue: MessageQueue) -> int | None:
        return self._file.offsets.get(queue)

    async def store(self, queue: MessageQueue, offset: int) -> None:
        self._waiting[queue] = offset
        async with self._writing:
            # One write for all that gathered while the one before was under way.
            waiting, self._waiting = self._waiting, {}
            if waiting:
                try:
                    await asyncio.to_thread(self._file.write, self._file.offsets | waiting)
                except OSError as error:
                    # Who comes next may have handed in some of these: it must try them again.
                    self._waiting = waiting | self._waiting
                    raise StoreError(f"offsets not written: {error}") from error


class LiteOffsets:
    """Reads and commits offsets; on the I/O thread.

    There is no lock and no epoch (docs/internals/semantics.md#consumer-groups): what keeps a
    commit from moving back what the
    next owner stored is that none is sent for a queue that is no longer ours, but for one, at
    its release, which looks first. Commits of one queue never overlap.
    """

    def __init__(
        self,
        client: ClientSession,
        store: OffsetStore,
        config: RebalanceConfig,
        buffer: PollBuffer,
        statistics: ConsumerStatistics,
    ) -> None:
        self._client = client
        self._store = store
        self._config = config
        self._buffer = buffer
        self._statistics = statistics
        self._busy: dict[PulledQueue, asyncio.Lock] = {}
        self._first = FirstOffsets()
        self._complaints: dict[MessageQueue, str] = {}

    async def start(self, queue: MessageQueue) -> int:
        """Where to begin: the stored offset, else by setting, and then stored at once.

        Computed again by the next owner it could differ, and what lies between would be lost
        (docs/internals/semantics.md#pull-loop, rmq#10955).

        Raises: one of `STORE_ERRORS`: it is not known.
        """
        stored = await self.stored(queue)
        if stored is not None:
            return stored
        offset = await first_offset(self._client, self._config, queue)
        await self._put(queue, offset)
        return offset

    async def stored(self, queue: MessageQueue) -> int | None:
        """What is kept of a queue; None if nothing."""
        return await self._store.stored(queue)

    async def commit(self, offsets: Iterable[tuple[PulledQueue, int]]) -> None:
        """Commit and await every acknowledgement.

        Raises: one of `STORE_ERRORS`: the first that failed; the others are committed.
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
                # Ours to move, also back after a seek, unless somebody else has moved it on.
                is_ours = stored is None or stored == pulled.committed or stored < offset
                if is_ours and stored != offset:
                    await self._put(pulled.queue, offset)
            except STORE_ERRORS as error:
                self._statistics.add("commit_errors")
                _log.warning("%s: last commit, of %d, failed: %s", pulled.queue, offset, error)

    async def settled(self, pulled: PulledQueue) -> None:
        """Return when no commit of the queue is under way; to be called once it is dropped."""
        async with self._lock_of(pulled):
            del self._busy[pulled]

    async def _try_commit(self, pulled: PulledQueue, offset: int) -> None:
        try:
            await self._commit(pulled, offset)
        except STORE_ERRORS as error:
            self._complain(pulled.queue, f"commit of offset {offset} failed: {error}")

    async def _commit(self, pulled: PulledQueue, offset: int) -> None:
        async with self._lock_of(pulled):
            if not pulled.is_held:  # lost while another commit was under way
                return
            try:
                await self._put(pulled.queue, offset)
            except STORE_ERRORS:
                self._statistics.add("commit_errors")
                raise
            pulled.committed = offset
            self._complaints.pop(pulled.queue, None)

    async def _put(self, queue: MessageQueue, offset: int) -> None:
        async with self._first.turn(queue):
            await self._store.store(queue, offset)
        self._statistics.add("commits")

    def _lock_of(self, pulled: PulledQueue) -> asyncio.Lock:
        return self._busy.setdefault(pulled, asyncio.Lock())

    def _complain(self, queue: MessageQueue, problem: str) -> None:
        # Once: a broker that is away for a minute would otherwise fill the log.
        if self._complaints.get(queue) is None:
            _log.warning("%s: %s", queue, problem)
        self._complaints[queue] = problem
