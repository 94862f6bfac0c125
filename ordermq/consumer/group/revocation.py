"""Revocation of a queue: drain, commit and its reply, unlock and its reply
(docs/internals/semantics.md#hand-off)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ordermq.clock import wait_until_set
from ordermq.consumer.group.queue_locks import Locks
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue

_log = logging.getLogger("ordermq.consumer")
_FILE_RETRY_MS = 1_000  # a full disk, or a folder that is gone, is not waited for
_COMMIT_RETRY_MS = 100  # well below any lease, so that one lost packet costs no redelivery


class Revocation:
    """Gives queues up to their next owner; on the I/O thread.

    The order matters: the next owner can only get the lock after the last offset is
    stored, so it repeats nothing. While a batch is out the lock is kept and renewed; only
    the loss of the lease ends that wait, never a deadline
    (docs/internals/semantics.md#leases-and-renewal).

    Args:
        drain_timeout_ms: a queue that drains for longer is reported; without locks the last
            commit is tried for this long.
        is_leaving: returns True once the member is being closed.
    Attributes:
        unstored: queues whose last offset the member's own file did not take.
    """

    def __init__(
        self,
        member: MemberContext,
        locks: Locks,
        offsets: OffsetCommitter,
        drain_timeout_ms: int,
        is_leaving: Callable[[], bool],
    ) -> None:
        self._client = member.client
        self._locks = locks
        self._offsets = offsets
        self._statistics = member.statistics
        self._drain_timeout_ms = drain_timeout_ms
        self._is_leaving = is_leaving
        self._drained: dict[AssignedQueue, asyncio.Event] = {}
        self.unstored: set[MessageQueue] = set()

    def on_drained(self, assigned: AssignedQueue) -> None:
        """Continue: the last batch of a revoked queue has ended."""
        event = self._drained.get(assigned)
        if event is not None:
            event.set()

    async def release(self, assigned: AssignedQueue) -> None:
        """Give the queue up; returns when nothing of it is held here any more."""
        event = self._drained.setdefault(assigned, asyncio.Event())
        try:
            if not assigned.revoke():
                assigned.try_unlock_times += 1
                if (lease := assigned.lease) is not None and not lease.is_lock:
                    # Nothing keeps the next owner waiting: what is done by now it need not repeat.
                    await self._offsets.commit(assigned)
                await self._await_drained(assigned, event)
            is_here, _ = await asyncio.gather(
                self._commit_last(assigned), self._locks.prepare_release(assigned)
            )
            # A broker that is gone has no lock to release either.
            if is_here:
                await self._locks.release(assigned)
        finally:
            # Also when cancelled at the end of `close`: from here on late results are ignored.
            assigned.discard()
            self._offsets.forget(assigned.queue)
            del self._drained[assigned]
        self._statistics.add("hand_offs", queue=assigned.queue)
        _log.info("%s: released at offset %d", assigned.queue, assigned.committed_offset)

    async def _await_drained(self, assigned: AssignedQueue, event: asyncio.Event) -> None:
        while not await wait_until_set(event, self._client.clock, self._drain_timeout_ms):
            assigned.try_unlock_times += 1
            _log.error(
                "%s: revoked, but its batch has not ended for %d ms; %s. A listener "
                "should check context.is_revoked(), a poller batch.is_revoked()",
                assigned.queue,
                self._drain_timeout_ms,
                "its broker is in no route any more"
                if self._client.routes.is_away(assigned.queue.broker_name)
                else "its lock is kept",
                extra=log_fields(assigned.queue, member=self._client.client_id),
            )

    async def _commit_last(self, assigned: AssignedQueue) -> bool:
        """Store what is done; return False if the queue's broker is gone, and nobody waits."""
        # A commit that fails is tried until the lease ends: giving up early would only
        # repeat messages at the next owner, and the lock is held anyway. Without a lock
        # the lease never ends.
        began_ms = self._client.clock.now_ms()
        while not self._is_broker_gone(assigned):
            if await self._offsets.commit_last(assigned):
                return True
            lease, now_ms = assigned.lease, self._client.clock.now_ms()
            is_file = self._offsets.is_local and self._is_leaving()
            longest_ms = _FILE_RETRY_MS if is_file else self._drain_timeout_ms
            if lease is None or (not lease.is_lock and now_ms >= began_ms + longest_ms):
                if is_file and lease is not None:
                    self.unstored.add(assigned.queue)
                return True
            # Otherwise the answer of a renewal could revive the lease behind the last try, and the
            # lock would be released before what is done was committed.
            if not lease.is_valid(now_ms) and await self._locks.is_over(assigned):
                return True
            # The broker may have left the routes, or moved, since they were last asked for.
            await self._client.routes.refresh_soon(assigned.queue.topic)
            await self._client.clock.sleep_ms(_COMMIT_RETRY_MS)
        if assigned.done_offset != assigned.committed_offset:
            _log.warning(
                "%s: given up; offset %d is not committed, only %d is: no master of its broker is "
                "in a route any more",
                assigned.queue,
                assigned.done_offset,
                assigned.committed_offset,
                extra=log_fields(
                    assigned.queue, offset=assigned.done_offset, member=self._client.client_id
                ),
            )
        return False

    def _is_broker_gone(self, assigned: AssignedQueue) -> bool:
        # A slave that is left in the route takes no commit.
        routes, name = self._client.routes, assigned.queue.broker_name
        if routes.has_master(name):
            return False
        address = routes.last_master_of(name)
        if address is None:
            return True
        # A broker that restarts takes the commit when it is back; `close` does not wait for one
        # that may never come.
        return self._is_leaving() and not self._client.connections.is_open(address)
