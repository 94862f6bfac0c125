"""StoreOffsets: a member's offsets in an offset store of the user's, the brokers' following."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, cast

from ordermq.client.user_code import TaskLoop, UserCode, on_thread
from ordermq.consumer.offsets.offset_committer import OffsetStorage
from ordermq.consumer.offsets.offset_store import (
    AnyOffsetStore,
    OffsetStore,
    TransactionalStore,
    is_async_store,
)
from ordermq.consumer.queue.statistics import EventRecorder
from ordermq.errors import (
    BrokerError,
    ConfigError,
    OrderMQError,
    StateError,
    StoreError,
    error_text,
)
from ordermq.events import EventType
from ordermq.leases.lease import UNLOCKED, Lease
from ordermq.model.message_queue import MessageQueue, require_offset

_T = TypeVar("_T")
_THREADS = 4  # several queues move at once, and a slow database must not hold up all of them


class StoreOffsets:
    """Offsets in a store of the user's; takes the place of `BrokerOffsets`.

    The brokers' offsets are written behind the store's, so `ordermq lag` and `mqadmin` see them;
    they are never ahead, and nothing starts from them where the store knows better.

    Args:
        group: as the brokers know it, with its namespace.
    """

    is_local = False
    stores_starts = True

    def __init__(
        self,
        store: AnyOffsetStore,
        brokers: OffsetStorage,
        group: str,
        recorder: EventRecorder,
        user_code: UserCode,
    ) -> None:
        # As one whose calls are run by `self._calls`, whichever kind it is.
        self._store = cast("OffsetStore", store)
        self._brokers = brokers
        self._group = group
        self._recorder = recorder
        self.is_transactional = isinstance(store, TransactionalStore)
        self._calls: _OnThreads | _OnUsersLoop
        if is_async_store(store):
            self._calls = _OnUsersLoop(user_code.listener_loop(f"ordermq-{group}-offsets"))
        else:
            self._calls = _OnThreads(group)

    async def open(self) -> None:
        await self._run(self._store.open)

    async def take_over(self, queue: MessageQueue, lease: Lease) -> int | None:
        store, group, epoch = self._store, self._group, lease.fence_epoch(queue)
        offset = self._checked(
            "take_over", queue, await self._run(partial(store.take_over, group, queue, epoch))
        )
        # Before a broker is told: what the last owner had in the database, it may have recorded
        # nowhere else.
        if self.is_transactional and offset is not None:
            self._recorder.record(EventType.TAKE_OVER, queue, epoch, off=offset)
        told = await self._brokers.take_over(queue, lease)
        if offset is None:
            # A group that had its offsets at the brokers so far continues from there.
            if told is not None:
                await self._run(partial(store.write, group, queue, told, epoch))
            return told
        if told != offset:
            # The last owner was killed before it told the broker, or the database is an older one.
            with contextlib.suppress(BrokerError):  # it may have lost the end that it had
                is_back = told is not None and told > offset
                await self._brokers.write(queue, offset, lease, reset=is_back)
        return offset

    async def read(self, queue: MessageQueue) -> int | None:
        offset = self._checked(
            "read", queue, await self._run(partial(self._store.read, self._group, queue))
        )
        return await self._brokers.read(queue) if offset is None else offset

    async def write(
        self, queue: MessageQueue, offset: int, lease: Lease = UNLOCKED, *, reset: bool = False
    ) -> None:
        # In this order: the broker's offset must never be ahead of the store's.
        write = partial(self._store.write, is_reset=reset)
        await self._run(partial(write, self._group, queue, offset, lease.fence_epoch(queue)))
        await self._brokers.write(queue, offset, lease, reset=reset)

    def _checked(self, call: str, queue: MessageQueue, offset: int | None) -> int | None:
        """Return the answer of the user's store.

        Raises: StoreError: it is no offset.
        """
        try:
            if offset is not None:
                require_offset(offset, str(queue))
        except ConfigError as error:
            kind = type(self._store).__name__
            raise StoreError(f"offset_store: {kind}.{call}(): {error}; or None for none") from None
        return offset

    def close(self) -> None:
        self._calls.close()

    async def _run(self, call: Callable[[], _T]) -> _T:
        try:
            return await self._calls.run(call)
        except (OrderMQError, asyncio.CancelledError):
            raise
        except BaseException as error:
            kind = type(self._store).__name__
            raise StoreError(f"offset_store: {kind} raised {error_text(error)}") from error


class _OnThreads:
    """Runs the plain functions of a store."""

    def __init__(self, group: str) -> None:
        # Its own threads: a database that does not answer must not use up those that the event
        # loop has for everybody.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"ordermq-{group}-offsets")

    async def run(self, call: Callable[[], _T]) -> _T:
        return await on_thread(call, threads=self._threads)

    def close(self) -> None:
        # Without waiting: a call that hangs in the database must not hold up the end.
        self._threads.shutdown(wait=False, cancel_futures=True)


class _OnUsersLoop:
    """Awaits the coroutines of a store on the loop that its connections belong to."""

    def __init__(self, loop: TaskLoop) -> None:
        self._loop = loop

    async def run(self, call: Callable[[], _T]) -> _T:
        work = cast("Coroutine[Any, Any, _T]", call())
        try:
            return await asyncio.wrap_future(self._loop.submit(work))
        except StateError as error:  # the loop was closed before its consumer
            raise StoreError(f"offset_store: {error}") from None

    def close(self) -> None:
        """Leave the loop to its user; the listeners' calls release what they have on it."""
