"""Queue locks of a group member: acquire, renew, regain and release; or none at all
(docs/internals/semantics.md#leases-and-renewal)."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from ordermq.clock import Clock, wait_until_set
from ordermq.config import LeaseConfig
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueState
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.errors import BrokerError, OrderMQError, RemotingError, RouteError
from ordermq.events import EventType
from ordermq.leases.lease import UNLOCKED, Lease
from ordermq.leases.lock_epochs import LockEpochs
from ordermq.leases.lock_requests import Granted, LockRequests
from ordermq.model.message_queue import MessageQueue

_log = logging.getLogger("ordermq.consumer")
_NOT_RENEWED = "it could not be renewed in time"


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

    def began(self, assigned: AssignedQueue) -> None:
        """Note a queue that begins: its lease is as old as its start offset took to be read."""

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

    def began(self, assigned: AssignedQueue) -> None:
        """No lease ends."""

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
        member: MemberContext,
        config: LeaseConfig,
        offsets: OffsetCommitter,
        epochs: LockEpochs,
        held: Callable[[], Iterable[AssignedQueue]],
        on_regained: Callable[[AssignedQueue], None],
    ) -> None:
        self.refusals: dict[str, str] = {}
        self._client = member.client
        self._group = member.group
        self._fields = member.fields
        self._config = config
        self._offsets = offsets
        self._epochs = epochs
        self._recorder = member.recorder
        self._statistics = member.statistics
        self._held = held
        self._on_regained = on_regained
        self._unread: dict[MessageQueue, str] = {}  # why a regained queue could not start
        self._restarts: dict[MessageQueue, asyncio.Task[None]] = {}  # under way
        self._wake = asyncio.Event()
        # The loop may be asleep for the interval of a broker with longer locks.
        self._requests = LockRequests(member.client, member.group, config, on_times=self._wake.set)
        self._losses_at_grant: dict[MessageQueue, int] = {}
        self._last_granted: dict[MessageQueue, Lease] = {}
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
        losses = self._losses_at_grant.get(queue)
        return losses is None or self._requests.is_doubtful(losses)

    def connection_lost(self, address: str) -> None:
        self._requests.note_loss()  # for queues between their grant and their first batch
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
        self._requests.note_loss()
        for assigned in self._held():
            if assigned.lease is not None and assigned.queue.broker_name == broker_name:
                assigned.lose_lease("the master of its broker has another address now")

    def renew_soon(self) -> None:
        self._wake.set()

    def began(self, assigned: AssignedQueue) -> None:
        lease, now_ms = assigned.lease, self._client.clock.now_ms()
        # The loop has reckoned with the queues of before. One whose lease is not due yet is in time
        # with the next interval.
        if lease is not None and self._requests.times.due_ms(lease.deadline_ms) <= now_ms:
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
        async with self._requests.turn(assigned.queue.broker_name):
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
        # A thousand queues drain together when a consumer closes: those that came while a request
        # was on its way leave with the next one, whoever sends it.
        await self._unlock(broker, lambda: self._discard_drained(broker))
        self._losses_at_grant.pop(assigned.queue, None)
        self._last_granted.pop(assigned.queue, None)

    async def give_back(self, queue: MessageQueue, lease: Lease) -> None:
        # In line with the renewals, as in `release`: one of them may name this queue.
        def unless_granted_anew() -> Mapping[MessageQueue, Lease]:
            # While this grant waited for an offset store, the queue may have left this member and
            # come back. RocketMQ's brokers do not tell the two grants apart.
            return {queue: lease} if self._last_granted.get(queue, lease) is lease else {}

        await self._unlock(queue.broker_name, unless_granted_anew)

    def _discard_drained(self, broker: str) -> dict[MessageQueue, Lease]:
        leases: dict[MessageQueue, Lease] = {}
        for each in self._drained.pop(broker, ()):
            if each.lease is not None and each.queue not in self._left_to_expire:
                leases[each.queue] = each.lease
            each.discard()  # the next renewal leaves it out
        return leases

    async def _unlock(
        self, broker: str, leases: Callable[[], Mapping[MessageQueue, Lease]]
    ) -> None:
        def given_up() -> Mapping[MessageQueue, Lease]:
            now = leases()
            for queue, lease in now.items():
                self._recorder.record(EventType.UNLOCK, queue, lease.epoch)
            return now

        try:
            await self._requests.unlock(broker, given_up)
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
        asked: list[tuple[AssignedQueue, int, Lease]] = []

        def still_held() -> list[MessageQueue]:
            held = ((item, item.generation, item.lease) for item in assigned)
            asked.extend((item, at, lease) for item, at, lease in held if lease is not None)
            return [item.queue for item, _, _ in asked]

        granted = await self._lock(broker, assigned[0].queue.topic, still_held)
        if granted is None:
            return  # not refused, only unanswered: the leases age until a request gets through
        for item, generation, lease in asked:
            renewed = granted.leases.get(item.queue)
            if renewed is None:
                item.lose_lease("the broker gave its lock to another member", generation)
                continue
            if not renewed.is_fenced:
                # RocketMQ's brokers have no epochs: their grant while the lease is valid renews it.
                renewed = lease._replace(deadline_ms=renewed.deadline_ms)
            record = partial(self._record_grant, item.queue, renewed.epoch, granted.sent_ms)
            if not item.renew(generation, renewed, record):
                item.lose_lease("its lock was granted anew, with another epoch", generation)

    async def _regain(self, assigned: Sequence[AssignedQueue]) -> None:
        # While a batch of the old lease runs, the queue must not start again: the same messages
        # would run twice at the same time.
        # Looked at anew: one that was lost a moment ago may have begun.
        wanted = {
            item.queue: item
            for item in assigned
            if item.state is QueueState.ACTIVE and not item.is_running and self._is_lost(item)
        }
        if not wanted:
            return
        for queue, lease in (await self.acquire(list(wanted))).items():
            if not self._is_lost(wanted[queue]):
                continue  # granted again to what has begun meanwhile
            # Not awaited: a database that is locked, or away, would keep the renewals of all other
            # queues waiting, until their leases are lost, too.
            self._restarts[queue] = self._client.runtime.spawn(
                self._restart_or_give_back(wanted[queue], lease), f"restart {queue}"
            )

    def _is_lost(self, item: AssignedQueue) -> bool:
        """Return whether a queue has no lease, and none that waits for its start offset."""
        return item.lease is None and item.queue not in self._restarts

    async def _restart_or_give_back(self, item: AssignedQueue, lease: Lease) -> None:
        try:
            if await self._restart(item, lease):
                self.began(item)
            else:
                # A lock that cannot be used now would keep others out for nothing.
                await self.give_back(item.queue, lease)
        finally:
            del self._restarts[item.queue]

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
                    extra=self._fields(queue),
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
        granted = await self._lock(broker, queues[0].topic, lambda: queues)
        if granted is None:
            return {}
        self._losses_at_grant |= dict.fromkeys(granted.leases, granted.losses)
        self._last_granted |= granted.leases
        leases = await self._epochs.begin(granted.leases)
        self._last_granted |= leases
        if len(leases) < len(granted.leases):
            self._statistics.add("lock_errors", len(granted.leases) - len(leases))
        for queue, lease in leases.items():
            self._record_grant(queue, lease.epoch, granted.sent_ms)
        return leases

    async def _lock(
        self, broker: str, topic: str, queues: Callable[[], Sequence[MessageQueue]]
    ) -> Granted | None:
        try:
            granted = await self._requests.lock(broker, queues)
        except (RemotingError, RouteError) as error:
            self._statistics.add("lock_errors")
            if isinstance(error, BrokerError):
                self.refusals[broker] = str(error)
            else:
                self.refusals.pop(broker, None)
            self._client.report_failure(broker, "lock request", error)
            # Not awaited: an unlock may wait behind this request.
            self._client.doubt_route(topic)
            return None
        if granted is not None:
            self.refusals.pop(broker, None)
        return granted

    def _record_grant(self, queue: MessageQueue, epoch: int, sent_ms: int) -> None:
        # The full lease, without the client's safety margin before its end.
        duration_ms = self._requests.times.duration_ms
        sent_ns = sent_ms * 1_000_000
        self._recorder.record(EventType.LOCK_OK, queue, epoch, sent=sent_ns, lease_ms=duration_ms)

    def _pause_ms(self) -> int:
        held = [item for item in self._held() if item.state is not QueueState.GONE]
        deadlines_ms = [lease.deadline_ms for item in held if (lease := item.lease)]
        retry_ms = self._config.lock_retry_ms
        now_ms = self._client.clock.now_ms()
        pause_ms = self._requests.times.pause_ms(deadlines_ms, now_ms, retry_ms)
        if any(item.state is QueueState.ACTIVE and self._is_lost(item) for item in held):
            # Both: locks shorter than a few retries must not end while another one is regained.
            return min(pause_ms, retry_ms)
        return pause_ms
