"""Queue control: pause, resume, seek and unpark of queues of a running member
(docs/internals/semantics.md#pause-and-seek)."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from ordermq.client.store_times import offset_at_time
from ordermq.consumer.group.rebalance import Rebalancer
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.consumer.queue.assigned_queue import AssignedQueue, Pause, QueueState
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.errors import (
    ConfigError,
    OrderMQError,
    RemotingError,
    RouteError,
    StateError,
    error_text,
)
from ordermq.model.message_queue import MessageQueue

_log = logging.getLogger("ordermq.consumer")
_DRAIN_CHECK_MS = 20


class QueueControl:
    """Called from any thread but the I/O thread, unless noted otherwise.

    Args:
        submit: passes a queue with pending messages to the receiver.
        restart: makes a queue's next pull begin now.
        unpark: continues with a parked key of a queue, if it is parked there.
    """

    def __init__(
        self,
        member: MemberContext,
        rebalancer: Rebalancer,
        offsets: OffsetCommitter,
        submit: Callable[[AssignedQueue], None],
        restart: Callable[[AssignedQueue], None],
        unpark: Callable[[AssignedQueue, bytes], bool],
    ) -> None:
        self._client = member.client
        self._group = member.group
        self._fields = member.fields
        self._rebalancer = rebalancer
        self._offsets = offsets
        self._submit = submit
        self._restart = restart
        self._unpark = unpark
        self._paused: set[MessageQueue] = set()  # with the lock kept; survives a reassignment
        self._all_paused = False
        # One move of a queue at a time: two could each wait for the other's pause to end.
        self._moving: dict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)

    # Pausing.

    def pause(self, queue: MessageQueue, release: bool) -> None:
        """See `PushConsumer.pause`."""
        if release:
            self._client.runtime.post(self._rebalancer.exclude, queue)
            return
        # Found first: a queue that is not assigned raises, and is not paused later by surprise.
        self.find(queue).pause()
        self._paused.add(queue)

    def resume(self, queue: MessageQueue) -> None:
        """See `PushConsumer.resume`."""
        was_excluded = self._client.runtime.call(self._include(queue))
        self._paused.discard(queue)
        if not was_excluded:
            self._resume(self.find(queue))

    def pause_all(self) -> None:
        """Pause the queues held now and later, with their locks kept."""
        # The flag first: a queue that is assigned meanwhile pauses in `on_assigned`.
        self._all_paused = True
        for assigned in self._rebalancer.assigned():
            assigned.pause()

    def resume_all(self) -> None:
        """End every pause of a queue."""
        self._client.runtime.post(self._rebalancer.include_all)
        self._all_paused = False
        self._paused.clear()
        for assigned in self._rebalancer.assigned():
            self._resume(assigned)

    def pause_held(self, queues: Iterable[MessageQueue]) -> None:
        """Pause queues for as long as they are held; see `LitePullConsumer.pause`."""
        # All are found before the first is paused: one that is not assigned leaves all as they are.
        for assigned in [self.find(queue) for queue in queues]:
            assigned.pause()

    def resume_held(self, queues: Iterable[MessageQueue]) -> None:
        """See `LitePullConsumer.resume`."""
        for assigned in [self.find(queue) for queue in queues]:
            self._resume(assigned)

    def on_assigned(self, assigned: AssignedQueue) -> None:
        """Pause a new queue if the user has paused it; on the I/O thread."""
        if self._all_paused or assigned.queue in self._paused:
            assigned.pause()

    async def _include(self, queue: MessageQueue) -> bool:
        return self._rebalancer.include(queue)

    def _resume(self, assigned: AssignedQueue) -> None:
        if assigned.resume():
            self._submit(assigned)

    # Moving within a queue.

    def seek(self, queue: MessageQueue, offset: int) -> Future[None]:
        """See `PushConsumer.seek`."""
        return self._client.runtime.submit(self.move(self.find(queue), offset, is_given=True))

    def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> Future[None]:
        """See `PushConsumer.seek_to_time`."""
        return self._client.runtime.submit(self._move_to_time(self.find(queue), timestamp_ms))

    def seek_soon(self, assigned: AssignedQueue, offset: int) -> None:
        """Seek for a caller that does not wait for it; on the I/O thread."""
        self._client.runtime.spawn(self._move_unwatched(assigned, offset), f"seek {assigned.queue}")

    def begin_life(self, assigned: AssignedQueue, offset: int) -> None:
        """Continue with a queue's new life from `offset`, which is stored at once; on the I/O
        thread."""

        async def begin() -> None:
            try:
                # Whatever batch runs: a later owner must not start from the old life's offset.
                await self._offsets.commit(assigned)
            except Exception as error:  # noqa: BLE001 - of a user's store, perhaps: the pulls wait
                _log.warning(
                    "%s: offset %d, where its new life begins, is not stored yet: %s",
                    assigned.queue,
                    offset,
                    error_text(error),
                    extra=self._fields(assigned.queue, offset=offset),
                )
            await self._move_unwatched(assigned, offset)

        self._client.runtime.spawn(begin(), f"new life of {assigned.queue}")

    async def move(self, assigned: AssignedQueue, offset: int, *, is_given: bool = False) -> None:
        """Continue from `offset` once no batch runs, and start none until then.

        Args: is_given: a user gave it as a number, which may be none of an offset.
        Raises: StateError: the queue moved away first. RemotingError, RouteError: not stored.
            ConfigError: it is given, and beyond the queue's end: nothing has moved.
        """
        queue, clock = assigned.queue, self._client.clock
        async with self._moving[queue]:
            assigned.pause(Pause.SEEK)
            try:
                if is_given:
                    await self._require_held(queue, offset)
                while assigned.state is QueueState.ACTIVE:
                    # A queue whose lease is over has nothing to move yet: it starts again first.
                    lease = assigned.lease
                    is_held = lease is not None and lease.is_valid(clock.now_ms())
                    if is_held and await self._offsets.reset(assigned, assigned.generation, offset):
                        _log.info("%s: seek: continuing from offset %d", queue, offset)
                        return
                    await clock.sleep_ms(_DRAIN_CHECK_MS)
            finally:
                # Also after an error: the pull under way is for an offset nobody wants any more.
                self._restart(assigned)
                if assigned.resume(Pause.SEEK):
                    self._submit(assigned)
        raise StateError(
            f"the queue moved to another member before it could be set to offset {offset}",
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            group=self._group,
        )

    async def _require_held(self, queue: MessageQueue, offset: int) -> None:
        """Raise ConfigError if a broker says that a queue ends before an offset.

        A time in ms that was taken for an offset would skip everything.
        """
        try:
            address = self._client.routes.master_of(queue.broker_name)
            end = await self._client.api.max_offset(address, queue)
        except (RemotingError, RouteError):
            return  # it cannot tell now; the next pull does
        if offset > end:
            refused = ConfigError(
                f"{queue}: no seek to offset {offset}: the queue ends at {end}; for a time, call "
                "seek_to_time()",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                offset=offset,
            )
            # Logged, too: a listener does not wait for its seek.
            _log.warning("%s", refused, extra=self._fields(queue, offset=offset))
            raise refused

    async def _move_unwatched(self, assigned: AssignedQueue, offset: int) -> None:
        try:
            await self.move(assigned, offset)
        except OrderMQError as error:
            _log.warning(
                "%s: the move to offset %d failed: %s",
                assigned.queue,
                offset,
                error,
                extra=self._fields(assigned.queue, offset=offset),
            )

    async def _move_to_time(self, assigned: AssignedQueue, timestamp_ms: int) -> None:
        offset = await offset_at_time(self._client, self._group, assigned.queue, timestamp_ms)
        await self.move(assigned, offset)

    # Parked keys.

    def unpark(self, key: bytes) -> bool:
        """See `PushConsumer.unpark`."""

        async def work() -> bool:
            assigned = self._rebalancer.assigned()
            # No `any`: a key can be parked in several queues of a topic, and all must continue.
            return [self._unpark(item, key) for item in assigned].count(True) > 0

        return self._client.runtime.call(work())

    def parked_keys(self) -> dict[MessageQueue, list[bytes]]:
        """See `PushConsumer.parked_keys`."""
        found = {item.queue: item.parked_keys() for item in self._rebalancer.assigned()}
        return {queue: keys for queue, keys in found.items() if keys}

    # Finding.

    def find(self, queue: MessageQueue) -> AssignedQueue:
        """Return the state of an assigned queue; any thread.

        Raises: StateError: it is not assigned to this member.
        """
        assigned = self._rebalancer.find(queue)
        if assigned is None:
            raise StateError(
                "this queue is not assigned to this member now; call assigned_queues() or "
                "assignment() for those that are",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                group=self._group,
            )
        return assigned
