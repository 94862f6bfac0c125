"""A running query holds its queues: broker locks and membership, on the driver.

The run is a member of its group under `lease_client_id(group, lease)` and holds the lock of
every queue of its topics, renewed on the I/O thread, so that no push consumer and no other
query works one of them at the same time (docs/internals/semantics.md#queue-locks). Deadlines count
from the send of the
request that got them, on the monotonic clock.

Queues are taken together or not at all: a query that waits holds nothing, so two of them, or a
query and a consumer, cannot wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import groupby

from ordermq.client.broker_api import BrokerApi, LockGrant
from ordermq.client.runtime import cancelled, wait_until_set
from ordermq.clock import Clock
from ordermq.consumer.group.queue_locks import LeaseTimes
from ordermq.consumer.queue.assigned_queue import Lease
from ordermq.errors import Fenced, LockLost, LockRefused, RemotingError, RouteError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription
from ordermq.remoting.bodies import ConsumerData, Heartbeat
from ordermq.spark.options import ReleaseInFlight, SourceOptions, queue_text
from ordermq.spark.session import Link, lease_client_id
from ordermq.spark.source.offsets import Offsets

_log = logging.getLogger("ordermq.spark")
_RENEWALS_A_LEASE = 3


class DriverLease:
    """The queues of one run; its coroutines run on the I/O thread, the rest anywhere.

    Args:
        lease: the id of the run, new for each.
        clock: time, as an argument; for tests.
    """

    def __init__(self, options: SourceOptions, lease: int, clock: Clock | None = None) -> None:
        self.id = lease
        self._options = options
        self._group = options.group
        self._subscriptions = tuple(
            Subscription.parse(topic, options.tags, 0) for topic in options.topics
        )
        self.link = Link(
            options.name_servers,
            options.remoting,
            client_id=lease_client_id(options.group, lease),
            describe=self._describe,
            on_lost=self._on_connection_lost,
            clock=clock,
        )
        self._config = options.lease
        self._times = LeaseTimes.of(self._config, None)
        self._held: dict[MessageQueue, Lease] = {}
        self._lost: dict[MessageQueue, str] = {}
        self._doubtful: set[MessageQueue] = set()  # a plain broker may have forgotten its locks
        self._committed: Offsets = {}
        self._found: Offsets = {}  # the group's offsets at plain brokers when we became holders
        self._wake = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None
        self._acquiring: asyncio.Task[None] | None = None
        self._asked: set[MessageQueue] = set()  # for locks whose answer is not dealt with
        self._requests: set[asyncio.Task[LockGrant]] = set()
        # One lock or unlock request a broker at a time: they must not overtake each other.
        self._talking: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._committing = asyncio.Lock()

    # From the driver's thread.

    def check(self, queues: Iterable[MessageQueue]) -> None:
        """Make sure that these are held now.

        Raises: LockLost: one was lost; the query must end and begin again at its checkpoint.
        """
        now_ms = self.link.clock.now_ms()
        for queue in queues:
            lease = self._held.get(queue)
            if queue not in self._lost and lease is not None and not lease.is_valid(now_ms):
                self._lost[queue] = f"it could not be renewed for {self._times.live_ms} ms"
            if queue in self._lost:
                raise LockLost(
                    f"the lock of a queue of this query was lost, {self._lost[queue]}: the driver "
                    "was paused too long, or its broker away. Start the query again, from its "
                    "checkpoint",
                    topic=queue.topic,
                    broker=queue.broker_name,
                    queue_id=queue.queue_id,
                    group=self._group,
                )

    def hold(self, queues: Collection[MessageQueue], former: int | None) -> None:
        """Hold these queues, waiting for those who have them.

        Args:
            former: the lease of the run before this one, from the checkpoint.
        Raises: LockLost: as `check`. LockRefused: not given up within `lock_wait_ms`.
        """
        self.check(queues)
        missing = [queue for queue in queues if queue not in self._held]
        if missing:
            self.link.call(self._acquire_as_task(sorted(missing), former))

    def try_hold(self, queues: Collection[MessageQueue]) -> bool:
        """Hold these queues if nobody else does."""
        missing = sorted(queue for queue in queues if queue not in self._held)
        return not missing or self.link.call(self._try(missing)) is None

    # Becoming the holder.

    async def _acquire_as_task(self, queues: list[MessageQueue], former: int | None) -> None:
        # SIGTERM ends the wait of the driver's thread, but not what runs here: `release` does.
        work = self._acquire(queues, former)
        self._acquiring = asyncio.get_running_loop().create_task(work)
        await self._acquiring

    async def _acquire(self, queues: list[MessageQueue], former: int | None) -> None:
        if self._renewing is None:
            await self._join(queues)
        deadline_ms = self.link.clock.now_ms() + self._options.lock_wait_ms
        may_take_over = (
            former not in (None, self.id)
            and self._options.release_in_flight is ReleaseInFlight.AFTER_PAUSE
        )
        refusal = await self._try(queues)
        while refusal is not None:
            if may_take_over and former is not None and await self._take_over(queues, former):
                refusal = await self._try(queues)
                continue
            if self.link.clock.now_ms() >= deadline_ms:
                raise refusal
            await self.link.clock.sleep_ms(self._config.lock_retry_ms + random.randrange(100))
            refusal = await self._try(queues)
        for queue in queues:
            if not self._held[queue].is_fenced:
                self._found[queue] = await self._stored(queue)
        _log.info("holding %s as %s", _names(queues), self.link.client.client_id)

    async def _join(self, queues: list[MessageQueue]) -> None:
        await self.link.known(queue.topic for queue in queues)
        await self.link.client.heartbeats.register()
        self.link.client.start_loops()
        self._renewing = self.link.spawn(self._renew_for_ever(), f"lease {self.id:016x}")

    async def _try(self, queues: list[MessageQueue]) -> LockRefused | None:
        """Take all of these, or none and the error that says so."""
        await self.link.known(queue.topic for queue in queues)
        self._asked |= set(queues)
        granted: dict[MessageQueue, Lease] = {}
        reason = "another member of the group holds it"
        for broker, wanted in _by_broker(queues):
            try:
                granted |= await self._lock(self.link.client.api, broker, wanted)
            except (RemotingError, RouteError) as error:
                reason = str(error)
        refused = [queue for queue in queues if queue not in granted]
        if not refused:
            self._held |= granted
            self._asked.clear()
            self._wake.set()  # the loop may be asleep for the interval of a longer lease
            return None
        await self._unlock(self.link.client.api, granted)
        self._asked.clear()
        queue = refused[0]
        return LockRefused(
            f"{len(refused)} of {len(queues)} queues cannot be held, the first because {reason}: "
            f"stop the other query or consumer, wait until its lock expires, or raise "
            f"lock_wait_ms={self._options.lock_wait_ms}",
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            group=self._group,
        )

    async def _take_over(self, queues: list[MessageQueue], former: int) -> bool:
        """Release what the run before us still holds, after its executors had time to end.

        Its id comes from the checkpoint, so nobody else's lock is touched. Tasks of that run
        that are still alive ask under its id, and are refused from then on.
        """
        client_id = lease_client_id(self._group, former)
        api = BrokerApi(self.link.client.connections, self._options.remoting, client_id)
        kept = await self._lock_each(api, queues)
        if not kept:
            return False  # somebody else's
        end_ms = self.link.clock.now_ms() + self._options.release_pause_ms
        _log.info("waiting %d ms for the run before this one", self._options.release_pause_ms)
        while (left_ms := end_ms - self.link.clock.now_ms()) > 0:
            await self.link.clock.sleep_ms(min(left_ms, self._pause_ms()))
            await self._lock_each(api, sorted(kept))
        await self._unlock(api, kept)
        return True

    async def _lock_each(
        self, api: BrokerApi, queues: list[MessageQueue]
    ) -> dict[MessageQueue, Lease]:
        granted: dict[MessageQueue, Lease] = {}
        for broker, wanted in _by_broker(queues):
            try:
                granted |= await self._lock(api, broker, wanted)
            except (RemotingError, RouteError) as error:
                _log.warning("%s: lock request failed: %s", broker, error)
        return granted

    async def _lock(
        self, api: BrokerApi, broker: str, queues: list[MessageQueue]
    ) -> dict[MessageQueue, Lease]:
        async with self._talking[broker]:
            sent_ms = self.link.clock.now_ms()
            address = self.link.client.routes.master_of(broker)
            asking = asyncio.get_running_loop().create_task(api.lock(address, self._group, queues))
            self._requests.add(asking)
            asking.add_done_callback(self._requests.discard)
            answer = await asyncio.shield(asking)  # `release` must know what was granted
        return self._leases(answer, sent_ms)

    def _leases(self, answer: LockGrant, sent_ms: int) -> dict[MessageQueue, Lease]:
        self._times = LeaseTimes.of(self._config, answer.lease_ms)
        return {
            queue: self._times.lease(epoch or sent_ms, sent_ms, epoch > 0)
            for queue, epoch in answer.granted.items()
        }

    # Staying the holder.

    async def _renew_for_ever(self) -> None:
        while True:
            self._wake.clear()
            await self.renew()
            await wait_until_set(self._wake, self.link.clock, self._pause_ms())

    def _pause_ms(self) -> int:
        now_ms = self.link.clock.now_ms()
        ends = [
            lease.deadline_ms - now_ms for q, lease in self._held.items() if q not in self._lost
        ]
        if ends and min(ends) < self._times.live_ms // 2:  # the last try failed: hurry
            return self._config.lock_retry_ms
        return max(min(self._times.renew_ms, self._times.live_ms // _RENEWALS_A_LEASE), 1)

    async def renew(self) -> None:
        """Prolong what is held; a request that fails changes nothing, the lease ages."""
        now_ms = self.link.clock.now_ms()
        for queue, lease in self._held.items():
            if not lease.is_valid(now_ms):
                self._lose(queue, f"it could not be renewed for {self._times.live_ms} ms")
        alive = [queue for queue in self._held if queue not in self._lost]
        await asyncio.gather(
            *(self._renew_of(broker, queues) for broker, queues in _by_broker(sorted(alive)))
        )

    async def _renew_of(self, broker: str, queues: list[MessageQueue]) -> None:
        try:
            granted = await self._lock(self.link.client.api, broker, queues)
        except (RemotingError, RouteError) as error:
            _log.warning("%s: locks not renewed yet: %s", broker, error)
            return
        for queue in queues:
            before, now = self._held.get(queue), granted.get(queue)
            if before is None:
                continue
            if now is None:
                self._lose(queue, "the broker gave it to another member")
            elif now.is_fenced and now.epoch != before.epoch:
                self._lose(queue, "somebody else held it meanwhile")
            elif queue in self._doubtful and not await self._is_untouched(queue):
                self._lose(queue, "the broker was away, and somebody else may have held it")
            else:
                self._doubtful.discard(queue)
                self._held[queue] = now

    def _lose(self, queue: MessageQueue, reason: str) -> None:
        if queue not in self._lost:
            self._lost[queue] = reason
            _log.error("%s: lock lost, %s", queue, reason)

    def _on_connection_lost(self, address: str) -> None:
        # A broker without epochs keeps locks in memory: after its restart another member may
        # have got ours, worked, and given it back, and nothing would tell
        # (docs/internals/semantics.md#leases-and-renewal).
        # The group's offset does: only a holder moves it.
        for queue, lease in self._held.items():
            if not lease.is_fenced and self._address_of(queue) == address:
                self._doubtful.add(queue)
        self._wake.set()

    def _address_of(self, queue: MessageQueue) -> str | None:
        try:
            return self.link.client.routes.master_of(queue.broker_name)
        except RouteError:
            return None

    async def _is_untouched(self, queue: MessageQueue) -> bool:
        """Whether nobody has consumed further than we; a restarted broker may know of less."""
        try:
            stored = await self._stored(queue)
        except (RemotingError, RouteError) as error:
            _log.warning("%s: the group's offset is not known: %s", queue, error)
            return False
        return stored <= max(self._committed.get(queue, -1), self._found.get(queue, -1))

    async def _stored(self, queue: MessageQueue) -> int:
        client = self.link.client
        address = client.routes.master_of(queue.broker_name)
        stored = await client.api.query_offset(address, self._group, queue)
        return -1 if stored is None else stored

    def _describe(self) -> Heartbeat:
        data = ConsumerData(self._group, self._subscriptions)
        return Heartbeat(self.link.client.client_id, (data,), ("CLIENT_INNER_PRODUCER",))

    # Saying how far it is, and letting go.

    async def commit(self, offsets: Offsets) -> None:
        """Store how far held queues are done; what fails is logged, the checkpoint is the truth."""
        async with self._committing:
            now_ms = self.link.clock.now_ms()
            behind = [
                (queue, offset, lease)
                for queue, offset in offsets.items()
                if (lease := self._held.get(queue)) is not None
                and lease.is_valid(now_ms)
                and queue not in self._lost
                and self._committed.get(queue) != offset
            ]
            await asyncio.gather(*(self._commit_one(*one) for one in behind))

    async def _commit_one(self, queue: MessageQueue, offset: int, lease: Lease) -> None:
        client = self.link.client
        epoch = lease.wire_epoch
        try:
            address = client.routes.master_of(queue.broker_name)
            await client.api.update_offset(address, self._group, queue, offset, epoch)
        except Fenced as error:
            self._lose(queue, f"a commit was fenced: {error}")
        except (RemotingError, RouteError) as error:
            _log.warning("%s: commit of offset %d failed: %s", queue, offset, error)
        else:
            self._committed[queue] = offset

    async def release(self, *, is_in_flight: bool) -> None:
        """End the run: unlock, or leave the locks to expire while executors may be at work.

        Args:
            is_in_flight: a batch was handed out whose end is not known. No pause proves that
                its tasks have ended, so by default nobody is let in before the locks expire.
        """
        pause = self._options.release_in_flight is ReleaseInFlight.AFTER_PAUSE
        await cancelled(self._acquiring)
        await asyncio.gather(*self._requests, return_exceptions=True)
        if is_in_flight:
            await self.renew()  # the whole of the broker's time from now on
        if is_in_flight and pause:
            await self.link.clock.sleep_ms(self._options.release_pause_ms)  # the loop renews
        await cancelled(self._renewing)
        if not is_in_flight or pause:
            nobodys = Lease(epoch=0, deadline_ms=0, is_fenced=False)
            ours = dict.fromkeys(self._asked, nobodys) | self._held
            lost = self._lost
            await self._unlock(
                self.link.client.api, {q: lease for q, lease in ours.items() if q not in lost}
            )
        await self._leave()
        self._held.clear()

    async def _unlock(self, api: BrokerApi, leases: dict[MessageQueue, Lease]) -> None:
        for broker, queues in _by_broker(sorted(leases)):
            epochs = [leases[q].wire_epoch for q in queues]
            try:
                async with self._talking[broker]:
                    address = self.link.client.routes.master_of(broker)
                    await api.unlock(address, self._group, queues, epochs)
            except (RemotingError, RouteError) as error:
                _log.warning("%s: unlock failed, the locks expire by themselves: %s", broker, error)

    async def _leave(self) -> None:
        client = self.link.client
        await client.stop_loops()  # a heartbeat would make us a member again
        for address in client.routes.masters():
            try:
                await client.api.unregister(address, consumer_group=self._group)
            except RemotingError as error:
                _log.warning("%s: not unregistered, the broker will notice: %s", address, error)


def _by_broker(queues: list[MessageQueue]) -> list[tuple[str, list[MessageQueue]]]:
    ordered = sorted(queues, key=lambda queue: queue.broker_name)
    return [(name, list(part)) for name, part in groupby(ordered, lambda q: q.broker_name)]


def _names(queues: Iterable[MessageQueue]) -> str:
    return ", ".join(map(queue_text, queues))
