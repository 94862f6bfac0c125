"""Queue locks of a group member: acquire, renew, regain and release; or none at all
(docs/internals/semantics.md#leases-and-renewal)."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from ordermq.client.broker_api import LockGrant
from ordermq.client.session import ClientSession
from ordermq.clock import Clock, wait_until_set
from ordermq.config import LeaseConfig
from ordermq.consumer.offsets.lock_epochs import LockEpochs
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.consumer.queue.assigned_queue import UNLOCKED, AssignedQueue, Lease, QueueState
from ordermq.consumer.queue.statistics import ConsumerStatistics, EventRecorder
from ordermq.errors import BrokerError, OrderMQError, RemotingError, RouteError
from ordermq.events import EventType
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue
from ordermq.value import Value

_log = logging.getLogger("ordermq.consumer")
_NOT_RENEWED = "it could not be renewed in time"


class LeaseTimes(Value):
    """Times of a lease: its life, the margin before its end, and the renewal interval."""

    duration_ms: int
    margin_ms: int
    renew_ms: int

    @classmethod
    def of(cls, config: LeaseConfig, broker_lease_ms: int | None) -> LeaseTimes:
        """Half of the broker's own time, renewed at a third of that; at most the configured ones.

        Java's 60:30 s is the first of these ratios: a client stops long before another may start.
        """
        # The embedded broker says how long its locks live; RocketMQ's do not, and keep theirs for
        # 60 s unless configured otherwise.
        duration_ms = config.lock_max_live_ms
        if broker_lease_ms:
            duration_ms = min(duration_ms, broker_lease_ms // 2)
        # A third of the lease, where Java takes two thirds: the margin leaves at least four
        # fifths of it, so a second renewal is due before the end even if the first is late by
        # the whole interval. Two thirds left 0.2 s for a renewal of a 3 s lock, and a machine
        # with two busy cores lost leases by that.
        renew_ms = max(min(config.lock_interval_ms, duration_ms // 3), 1)
        return cls(duration_ms, min(config.lease_margin_ms, duration_ms // 5), renew_ms)

    @property
    def retry_ms(self) -> int:
        """Longest pause after a failed renewal; with the interval, it bounds the requests."""
        return max(self.renew_ms // 10, 1)

    def pause_ms(self, deadlines_ms: Iterable[int], now_ms: int, retry_ms: int) -> int:
        """Return the time until the next renewal.

        Args:
            deadlines_ms: of the leases that must be renewed.
            retry_ms: the pause after a failed renewal, at most `self.retry_ms`.
        """
        oldest_ms = min(deadlines_ms, default=None)
        if oldest_ms is None:
            return self.renew_ms
        # Counted from the send of the request that was granted, so a late answer shortens the
        # pause. A lease that is due although it was just to be renewed tells that this failed.
        due_ms = oldest_ms - (self.duration_ms - self.margin_ms) + self.renew_ms
        if due_ms <= now_ms:
            return min(retry_ms, self.retry_ms)
        return min(due_ms - now_ms, self.renew_ms)

    def lease(self, epoch: int, sent_ms: int) -> Lease:
        """The lease a grant gives, counted from the send of its request.

        Args:
            epoch: the broker's; 0 from one without epochs.
        """
        return Lease(epoch, sent_ms + self.duration_ms - self.margin_ms, is_fenced=epoch > 0)


class Locks(Protocol):
    """Grants queues to a member; on the I/O thread.

    Attributes:
        are_exclusive: no other member can work a queue before it is released here.
        refusals: why brokers refuse the lock requests as a whole, by broker.
    """

    are_exclusive: bool
    refusals: dict[str, str]

    async def acquire(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, Lease]:
        """Ask for queues; return those that were granted."""

    def is_doubtful(self, queue: MessageQueue) -> bool:
        """Return True if the broker may have forgotten the queue's grant since `acquire`."""

    async def is_over(self, assigned: AssignedQueue) -> bool:
        """Return True if the lease has ended for good: no renewal on its way can revive it."""

    async def prepare_release(self, assigned: AssignedQueue) -> None:
        """Do what must come before `release`, beside the queue's last commit."""

    async def release(self, assigned: AssignedQueue) -> None:
        """Give a drained queue up; it is GONE from the start."""

    async def give_back(self, queue: MessageQueue, lease: Lease) -> None:
        """Give a queue up that was granted and is not wanted, or cannot be used now."""

    def connection_lost(self, address: str) -> None:
        """Give up what this broker may have forgotten when it went away."""

    def master_moved(self, broker_name: str) -> None:
        """Give up what a broker's new master, at another address, never granted."""

    def renew_soon(self) -> None:
        """Renew now instead of at the next interval, as after a reconnect."""

    async def round(self) -> None:
        """Keep the leases once, and wait until that is due again."""


class NoLocks:
    """Grants every queue at once and for ever: concurrent groups, broadcasting, plain polling.

    Around a rebalance the old and the new owner of a queue may both be given the same messages,
    as in Java. A lock would do worse than that: brokers take a group that holds one for an
    ordered group, and give its failed messages up at the first try
    (docs/internals/semantics.md#failures-and-dead-letters).

    Args:
        held: returns the queues held at this moment.
        on_regained: called with a queue that starts again, after an internal error.
        retry_ms: pause until a queue whose batches still run is looked at again.
    """

    are_exclusive = False

    def __init__(
        self,
        held: Callable[[], Iterable[AssignedQueue]],
        on_regained: Callable[[AssignedQueue], None],
        clock: Clock,
        retry_ms: int,
    ) -> None:
        self.refusals: dict[str, str] = {}
        self._held = held
        self._on_regained = on_regained
        self._clock = clock
        self._retry_ms = retry_ms
        self._wake = asyncio.Event()

    async def acquire(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, Lease]:
        return dict.fromkeys(queues, UNLOCKED)

    def is_doubtful(self, queue: MessageQueue) -> bool:
        return False

    async def is_over(self, assigned: AssignedQueue) -> bool:
        return assigned.lease is None

    async def prepare_release(self, assigned: AssignedQueue) -> None:
        """Nothing was granted."""

    async def release(self, assigned: AssignedQueue) -> None:
        assigned.discard()

    async def give_back(self, queue: MessageQueue, lease: Lease) -> None:
        """Nothing to release."""

    def connection_lost(self, address: str) -> None:
        """Nothing was granted."""

    def master_moved(self, broker_name: str) -> None:
        """Nothing was granted."""

    def renew_soon(self) -> None:
        self._wake.set()

    async def round(self) -> None:
        """Restart queues that stopped after an internal error, at their committed offset."""
        # Before the wait: an error in the round before may have left a queue stopped.
        while not self._restart_stopped():
            # A queue with batches still running must not start again, or their messages would
            # run twice at once; nothing wakes this loop when they end.
            await wait_until_set(self._wake, self._clock, self._retry_ms)
            self._wake.clear()
        await self._wake.wait()
        self._wake.clear()

    def _restart_stopped(self) -> bool:
        """Restart what can be; return True if no stopped queue is left."""
        left = False
        for assigned in self._held():
            if assigned.lease is None and assigned.state is QueueState.ACTIVE:
                if assigned.regain(UNLOCKED, assigned.committed_offset):
                    self._on_regained(assigned)
                else:
                    left = True
        return not left


class QueueLocks:
    """The broker's queue locks of one member; on the I/O thread.

    Args:
        epochs: gives grants of brokers without epochs theirs.
        held: returns the queues held at this moment.
        on_regained: called with a queue that starts again under a new lease.
    """

    are_exclusive = True

    def __init__(
        self,
        client: ClientSession,
        group: str,
        config: LeaseConfig,
        offsets: OffsetCommitter,
        epochs: LockEpochs,
        recorder: EventRecorder,
        statistics: ConsumerStatistics,
        held: Callable[[], Iterable[AssignedQueue]],
        on_regained: Callable[[AssignedQueue], None],
    ) -> None:
        self.refusals: dict[str, str] = {}
        self._client = client
        self._group = group
        self._config = config
        self._offsets = offsets
        self._epochs = epochs
        self._recorder = recorder
        self._statistics = statistics
        self._held = held
        self._on_regained = on_regained
        self._unread: dict[MessageQueue, str] = {}  # why a regained queue could not start
        self._times = LeaseTimes.of(config, None)
        self._wake = asyncio.Event()
        # One lock or unlock request per broker at a time. A renewal that overtakes an unlock,
        # or is sent at the same time, takes the lock again for a queue that was given up,
        # and the next owner waits until it expires.
        self._request_lock_of: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # How many connections were lost, and how many had been when a queue's last grant was asked
        # for. Of any broker: one grant asked for again costs less than to tell them apart.
        self._losses = 0
        self._losses_at_grant: dict[MessageQueue, int] = {}
        self._left_to_expire: set[MessageQueue] = set()  # an epoch of theirs may still arrive
        self._drained: dict[str, list[AssignedQueue]] = defaultdict(list)  # to unlock, by broker

    async def acquire(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, Lease]:
        """Ask each broker for the locks of its queues; return what was granted."""
        by_broker: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            by_broker[queue.broker_name].append(queue)
        answers = await asyncio.gather(
            *(self._acquire_of(broker, wanted) for broker, wanted in by_broker.items())
        )
        return {queue: lease for answer in answers for queue, lease in answer.items()}

    def is_doubtful(self, queue: MessageQueue) -> bool:
        # None: it was released while its lock was regained.
        return self._losses_at_grant.get(queue) != self._losses

    def connection_lost(self, address: str) -> None:
        self._losses += 1  # for queues between their grant and their first batch
        names = self._client.routes.brokers_at(address)
        for assigned in self._held():
            lease = assigned.lease
            if lease is None or lease.is_fenced:
                continue  # a broker that keeps epochs tells at the next renewal
            if assigned.queue.broker_name in names:
                # RocketMQ's brokers keep locks in memory: after a restart another member may
                # get one at once, and nothing would notify this one
                # (docs/internals/semantics.md#leases-and-renewal).
                assigned.lose_lease("the connection to a broker without lock epochs broke")

    def master_moved(self, broker_name: str) -> None:
        # Another process, or a slave that became the master: neither has the locks of the old
        # one. With epochs, too: they may be those of another store.
        self._losses += 1
        for assigned in self._held():
            if assigned.lease is not None and assigned.queue.broker_name == broker_name:
                assigned.lose_lease("the master of its broker has another address now")

    def renew_soon(self) -> None:
        self._wake.set()

    async def round(self) -> None:
        """Renew once: valid leases in time, lost ones every `lock_retry_ms`; and wait."""
        # Cleared first: a lease lost during the round is asked for in the next one.
        self._wake.clear()
        await self.renew_all()
        await wait_until_set(self._wake, self._client.clock, self._pause_ms())

    async def renew_all(self) -> None:
        """Prolong each valid lease and try to regain each lost one, once."""
        valid: list[AssignedQueue] = []
        lost: list[AssignedQueue] = []
        now_ms = self._client.clock.now_ms()
        for assigned in self._held():
            if assigned.state is QueueState.GONE:
                continue
            lease = assigned.lease
            if lease is not None and not lease.is_valid(now_ms):
                assigned.lose_lease(_NOT_RENEWED)
                lease = None
            (valid if lease is not None else lost).append(assigned)
        # Both at once: a broker that does not answer must not delay the renewals at another.
        await asyncio.gather(self._renew(valid), self._regain(lost))

    async def is_over(self, assigned: AssignedQueue) -> bool:
        # Behind the renewal that may be under way: its answer counts from its send, and comes
        # after the deadline where a broker restarts.
        async with self._request_lock_of[assigned.queue.broker_name]:
            lease = assigned.lease
            if lease is not None and lease.is_valid(self._client.clock.now_ms()):
                return False
            assigned.lose_lease(_NOT_RENEWED)
            return True

    async def prepare_release(self, assigned: AssignedQueue) -> None:
        # One round trip more before the unlock, and members that are told of a leaving one would
        # ask too early: each then waits for `lock_retry_ms`.
        queue, lease = assigned.queue, assigned.lease
        self._left_to_expire.discard(queue)
        if lease is not None and not await self._epochs.keep({queue: lease}):
            self._left_to_expire.add(queue)

    async def release(self, assigned: AssignedQueue) -> None:
        """Unlock a drained queue and await the acknowledgement.

        A failure is logged: the lock then expires at the broker.
        """
        broker = assigned.queue.broker_name
        self._drained[broker].append(assigned)
        async with self._request_lock_of[broker]:
            # A thousand queues drain together when a consumer closes: those that came while a
            # request was on its way leave with the next one, whoever sends it.
            leases: dict[MessageQueue, Lease] = {}
            for each in self._drained.pop(broker, ()):
                if each.lease is not None and each.queue not in self._left_to_expire:
                    leases[each.queue] = each.lease
                each.discard()  # the next renewal leaves it out
            if leases:
                await self._unlock(broker, leases)
        self._losses_at_grant.pop(assigned.queue, None)

    async def give_back(self, queue: MessageQueue, lease: Lease) -> None:
        # In line with the renewals, as in `release`: one of them may name this queue.
        async with self._request_lock_of[queue.broker_name]:
            await self._unlock(queue.broker_name, {queue: lease})

    async def _unlock(self, broker: str, leases: Mapping[MessageQueue, Lease]) -> None:
        for queue, lease in leases.items():
            self._recorder.record(EventType.UNLOCK, queue, lease.epoch)
        try:
            address = self._client.routes.master_of(broker)
            epochs = [lease.wire_epoch for lease in leases.values()]
            await self._client.api.unlock(address, self._group, list(leases), epochs)
        except (RemotingError, RouteError) as error:
            self._statistics.add("lock_errors")
            # Not retried: the broker lets the locks expire.
            self._client.report_failure(broker, "unlock", error)

    async def _renew(self, assigned: Sequence[AssignedQueue]) -> None:
        by_broker: dict[str, list[AssignedQueue]] = defaultdict(list)
        for item in assigned:
            by_broker[item.queue.broker_name].append(item)
        await asyncio.gather(*(self._renew_of(name, items) for name, items in by_broker.items()))

    async def _renew_of(self, broker: str, assigned: Sequence[AssignedQueue]) -> None:
        async with self._request_lock_of[broker]:
            # Read only now, with the lock held: an unlock may have been sent before.
            held = [(item, item.generation, item.lease) for item in assigned]
            asked = [(item, at, lease) for item, at, lease in held if lease is not None]
            if not asked:
                return
            sent_ms = self._client.clock.now_ms()
            answer = await self._lock(broker, [item.queue for item, _, _ in asked])
        if answer is None:
            return  # not refused, only unanswered: the leases age until a request gets through
        for item, generation, lease in asked:
            epoch = answer.granted.get(item.queue)
            if epoch is None:
                item.lose_lease("the broker gave its lock to another member", generation)
                continue
            renewed = self._times.lease(epoch, sent_ms)
            if not epoch:
                # RocketMQ's brokers send none: their grant while the lease is valid renews it.
                renewed = lease._replace(deadline_ms=renewed.deadline_ms)
            record = partial(self._record_grant, item.queue, renewed.epoch, sent_ms)
            if not item.renew(generation, renewed, record):
                item.lose_lease("its lock was granted anew, with another epoch", generation)

    async def _regain(self, assigned: Sequence[AssignedQueue]) -> None:
        # While a batch of the old lease runs, the queue must not start again: the same messages
        # would run twice at the same time.
        wanted = {
            item.queue: item
            for item in assigned
            if item.state is QueueState.ACTIVE and not item.is_running
        }
        if not wanted:
            return
        for queue, lease in (await self.acquire(list(wanted))).items():
            # A lock that cannot be used now would keep others out for nothing.
            if not await self._restart(wanted[queue], lease):
                await self.give_back(queue, lease)

    async def _restart(self, item: AssignedQueue, lease: Lease) -> bool:
        queue = item.queue
        try:
            start = await self._offsets.start_offset(queue, lease)
        except OrderMQError as error:
            # Tried several times a second while a database is away: each reason is told once.
            if self._unread.get(queue) != str(error):
                self._unread[queue] = str(error)
                _log.warning(
                    "%s: lock regained, but its offset could not be read or stored: %s",
                    queue,
                    error,
                    extra=log_fields(queue, group=self._group, member=self._client.client_id),
                )
            return False
        self._unread.pop(queue, None)
        if self.is_doubtful(queue):
            return False
        if not item.regain(lease, start):  # revoked meanwhile
            return False
        _log.info("%s: lock regained, epoch %d, from offset %d", queue, lease.epoch, start)
        self._on_regained(item)
        return True

    async def _acquire_of(
        self, broker: str, queues: Sequence[MessageQueue]
    ) -> dict[MessageQueue, Lease]:
        async with self._request_lock_of[broker]:
            sent_ms = self._client.clock.now_ms()
            losses = self._losses
            answer = await self._lock(broker, queues)
        if answer is None:
            return {}
        granted = {
            queue: self._times.lease(epoch, sent_ms) for queue, epoch in answer.granted.items()
        }
        self._losses_at_grant |= dict.fromkeys(granted, losses)
        leases = await self._epochs.begin(granted)
        if len(leases) < len(granted):
            self._statistics.add("lock_errors", len(granted) - len(leases))
        for queue, lease in leases.items():
            self._record_grant(queue, lease.epoch, sent_ms)
        return leases

    async def _lock(self, broker: str, queues: Sequence[MessageQueue]) -> LockGrant | None:
        address = broker
        try:
            address = self._client.routes.master_of(broker)
            # An attempt without an answer must leave time for another one before the lease ends.
            answer = await self._client.api.lock(address, self._group, queues, self._times.renew_ms)
        except (RemotingError, RouteError) as error:
            self._statistics.add("lock_errors")
            if isinstance(error, BrokerError):
                self.refusals[broker] = str(error)
            else:
                self.refusals.pop(broker, None)
            self._client.outages.failed(address, "lock request", error)
            # Not awaited: an unlock may wait behind this request.
            self._client.doubt_route(queues[0].topic)
            return None
        self.refusals.pop(broker, None)
        times = LeaseTimes.of(self._config, answer.lease_ms)
        if times != self._times:
            # The loop may be asleep for the interval of a broker with longer locks.
            self._times = times
            self._wake.set()
        return answer

    def _record_grant(self, queue: MessageQueue, epoch: int, sent_ms: int) -> None:
        # The full lease, without the client's safety margin before its end.
        duration_ms = self._times.duration_ms
        sent_ns = sent_ms * 1_000_000
        self._recorder.record(EventType.LOCK_OK, queue, epoch, sent=sent_ns, lease_ms=duration_ms)

    def _pause_ms(self) -> int:
        held = [item for item in self._held() if item.state is not QueueState.GONE]
        deadlines_ms = [lease.deadline_ms for item in held if (lease := item.lease)]
        retry_ms = self._config.lock_retry_ms
        pause_ms = self._times.pause_ms(deadlines_ms, self._client.clock.now_ms(), retry_ms)
        if any(item.lease is None and item.state is QueueState.ACTIVE for item in held):
            # Both: locks shorter than a few retries must not end while another one is regained.
            return min(pause_ms, retry_ms)
        return pause_ms
