"""The queue locks of a running query, held by its driver.

The run is a member of its group under `lease_client_id(group, run_id)`. It holds the broker's lock
of every queue of its topics and renews them on the I/O thread, so that no push consumer and no
other query works one of these queues at the same time
(docs/internals/semantics.md#queue-locks).

Queues are locked all together or not at all. A query that waits holds nothing, so two queries, or
a query and a consumer, cannot wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Iterable
from itertools import groupby
from typing import Final

from ordermq.client.broker_api import BrokerApi
from ordermq.client.runtime import cancelled
from ordermq.client.session import ClientSession, SessionEvents
from ordermq.clock import Clock, wait_until_set
from ordermq.consumer.offsets.offset_committer import BrokerOffsets
from ordermq.errors import (
    ConnectFailed,
    Fenced,
    LockLost,
    LockRefused,
    RemotingError,
    RouteError,
)
from ordermq.forking import ProcessBound
from ordermq.leases.lease import LONG_WAIT_MS, Lease
from ordermq.leases.lock_epochs import StoredEpochs
from ordermq.leases.lock_requests import Granted, LockRequests
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import ConsumerData, Heartbeat
from ordermq.spark.options import ReleaseInFlight, SourceOptions, queue_text
from ordermq.spark.session import learn_routes, lease_client_id
from ordermq.spark.source.group_starts import store_start
from ordermq.spark.source.offsets import Offsets

_log = logging.getLogger("ordermq.spark")
_LOOK_MS: Final = 1_000  # of a run that takes over, whether the run before has let go


class DriverLocks(ProcessBound):
    """The queue locks of one run; its coroutines run on the I/O thread, the rest anywhere.

    Unlike a consumer's `QueueLocks` it locks all queues or none, takes over from the run before
    by its checkpoint, and never regains a lost lock. Tasks of a batch may run on without it, so
    the query fails and starts again from its checkpoint.

    Args:
        run_id: new for each run of the query.
        clock: the time; tests inject theirs.
    """

    def __init__(self, options: SourceOptions, run_id: int, clock: Clock | None = None) -> None:
        self.run_id = run_id
        self._options = options
        self._group = options.group
        # Those of a pattern come with the queues: the members of a group are asked for theirs.
        self._topics = frozenset(options.topics)
        self.session = ClientSession(
            options.name_servers,
            options.remoting,
            lease_client_id(options.group, run_id),
            clock=clock,
            describe=self._describe,
            events=SessionEvents(on_connection_lost=self._on_connection_lost),
        )
        self._config = options.lease
        self._stored = BrokerOffsets(self.session, self._group)
        self._epochs = StoredEpochs(self.session, self._stored)
        self._wake = asyncio.Event()
        # The loop may sleep for the interval of a broker with longer locks.
        self._requests = LockRequests(
            self.session, self._group, self._config, on_times=self._wake.set
        )
        self._held: dict[MessageQueue, Lease] = {}
        self._lost: dict[MessageQueue, str] = {}
        # Queues whose broker went away and may have forgotten its locks; see _on_connection_lost.
        self._unconfirmed: set[MessageQueue] = set()
        self._committed: Offsets = {}
        # The group's offsets at brokers without epochs, read when this run became the holder.
        self._offsets_at_start: Offsets = {}
        self._renewal: asyncio.Task[None] | None = None
        self._acquisition: asyncio.Task[None] | None = None
        # Locks that were requested and are neither held nor unlocked yet: `release` unlocks them.
        self._requested: set[MessageQueue] = set()
        self._under_way: set[asyncio.Task[Granted | None]] = set()
        self._commit_turn = asyncio.Lock()

    # From the driver's thread.

    def check(self, queues: Iterable[MessageQueue]) -> None:
        """Make sure that these queues are held now.

        Raises: LockLost: one was lost; the query must end and start again from its checkpoint.
        """
        now_ms = self.session.clock.now_ms()
        for queue in queues:
            lease = self._held.get(queue)
            # The renewal loop finds an expired lease, too. After a pause of the whole process
            # (SIGSTOP, a swapped-out container) this thread may run first.
            if queue not in self._lost and lease is not None and not lease.is_valid(now_ms):
                self._lost[queue] = self._not_renewed()
            if queue in self._lost:
                raise LockLost(
                    f"the lock of a queue was lost: {self._lost[queue]}. Start the query again, "
                    "it continues from its checkpoint. The driver was paused too long, or the "
                    "broker was unreachable",
                    topic=queue.topic,
                    broker=queue.broker_name,
                    queue_id=queue.queue_id,
                    group=self._group,
                )

    def check_all(self) -> None:
        """Make sure that every queue which was ever held is held now; raises as `check`."""
        now_ms = self.session.clock.now_ms()
        if self._lost or not all(lease.is_valid(now_ms) for lease in list(self._held.values())):
            self.check(list(self._held))

    def hold(self, queues: Collection[MessageQueue], previous_run_id: int | None) -> None:
        """Hold these queues, waiting for the members that have them.

        Args:
            previous_run_id: of the run before, from the checkpoint; None if there was none.
        Raises: LockLost: as `check`. LockRefused: not free within `lock_wait_ms`.
        """
        self.check(queues)
        missing = [queue for queue in queues if queue not in self._held]
        if missing:
            self.session.call(self._acquire_as_task(sorted(missing), previous_run_id))

    def try_hold(self, queues: Collection[MessageQueue]) -> bool:
        """Hold these queues if no other member does."""
        missing = sorted(queue for queue in queues if queue not in self._held)
        return not missing or self.session.call(self._lock_all_or_none(missing)) is None

    # Acquiring the locks.

    async def _acquire_as_task(
        self, queues: list[MessageQueue], previous_run_id: int | None
    ) -> None:
        # SIGTERM ends the wait of the driver's thread, but not what runs on this one. As a task
        # of its own, `release` can cancel it before it unlocks.
        work = self._acquire(queues, previous_run_id)
        self._acquisition = asyncio.get_running_loop().create_task(work)
        await self._acquisition

    async def _acquire(self, queues: list[MessageQueue], previous_run_id: int | None) -> None:
        if self._renewal is None:
            await self._join(queues)
        began_ms, is_told = self.session.clock.now_ms(), False
        deadline_ms = began_ms + self._options.lock_wait_ms
        may_take_over = (
            previous_run_id not in (None, self.run_id)
            and self._options.release_in_flight is ReleaseInFlight.AFTER_PAUSE
        )
        refusal = await self._lock_all_or_none(queues)
        while refusal is not None:
            if (
                may_take_over
                and previous_run_id is not None
                and await self._take_over(queues, previous_run_id)
            ):
                refusal = await self._lock_all_or_none(queues)
                if refusal is None:
                    break
            # Also behind a take-over, of which the rest may be another member's or out of reach.
            now_ms = self.session.clock.now_ms()
            if now_ms >= deadline_ms:
                raise refusal
            if not is_told and now_ms >= began_ms + LONG_WAIT_MS:
                is_told = True
                self._tell_of_long_wait(queues)
            # Jitter, because two queries that wait for queues of each other's topics would
            # otherwise collide at every try.
            await self.session.clock.sleep_ms(self._config.lock_retry_ms + random.randrange(100))
            refusal = await self._lock_all_or_none(queues)
        for queue in queues:
            if not self._held[queue].is_fenced:
                self._offsets_at_start[queue] = await self._stored_offset(queue)
        _log.info("locked %s as %s", _names(queues), self.session.client_id)

    def _tell_of_long_wait(self, queues: list[MessageQueue]) -> None:
        _log.warning(
            "group %s: the query waits for the locks of %d queues, from %s on: another query or "
            "consumer holds them, or one that was stopped in the middle of a batch, killed or not "
            "closed did; the locks of such a one expire at the broker, after 60 s by default "
            "(docs/spark.md, release_in_flight). `ordermq locks %s` shows who",
            self._group,
            len(queues),
            queues[0],
            self._group,
            extra=log_fields(queues[0], group=self._group),
        )

    async def _join(self, queues: list[MessageQueue]) -> None:
        # A member first, so that `mqadmin` and the other members can tell whose locks these are.
        await self._learn(queues)
        await self.session.heartbeats.register()
        self.session.start_loops()
        self._renewal = self.session.supervisor.start(
            "lease renewal",
            self._renew_and_wait,
            f"{self.run_id:016x}",
            longest_pause_ms=self._config.lock_retry_ms,
        )

    async def _learn(self, queues: list[MessageQueue]) -> None:
        self._topics |= {queue.topic for queue in queues}
        await learn_routes(self.session, queues)

    async def _lock_all_or_none(self, queues: list[MessageQueue]) -> LockRefused | None:
        """Lock all of these queues, or none and return the error that tells why."""
        await self._learn(queues)
        self._requested |= set(queues)
        losses = self._requests.losses
        granted: dict[MessageQueue, Lease] = {}
        reason, unreachable = "another member of the group holds it", ""
        for broker, wanted in _by_broker(queues):
            try:
                granted |= await self._lock(self._requests, broker, wanted)
            except (RemotingError, RouteError) as error:
                unreachable = str(error)
        refused = [queue for queue in queues if queue not in granted]
        if not refused:
            granted = await self._epochs.begin(granted)
            refused = [queue for queue in queues if queue not in granted]
            reason = "its epoch could not be stored"
        if not refused and self._requests.is_doubtful(losses):
            # A broker without epochs may have restarted, and forgotten what it had just granted.
            refused, reason = queues, "the connection to a broker broke"
        if not refused:
            self._held |= granted
            self._requested.clear()
            return None
        await self._unlock(self._requests, granted)
        self._requested.clear()
        queue = refused[0]
        waited = f"lock_wait_ms={self._options.lock_wait_ms}"
        remedy = (
            f"start the query again when their broker can be reached, or raise {waited}. Nothing "
            f"holds them that is known: {unreachable}"
            if unreachable
            else "stop the other query or consumer, wait until its lock expires, or raise "
            f"{waited}. The first is refused because {reason}"
        )
        return LockRefused(
            f"{len(refused)} of {len(queues)} queues cannot be locked: {remedy}",
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            group=self._group,
        )

    async def _take_over(self, queues: list[MessageQueue], previous_run_id: int) -> bool:
        """Unlock what the run before still holds, after a pause for its executors.

        Its id comes from the checkpoint, so no other query's lock is touched. Tasks of that run
        which are still alive ask under its id, and are refused from then on. Where that run is
        ending, too, and unlocks, its own pause is over: this one ends then.
        """
        client_id = lease_client_id(self._group, previous_run_id)
        requests = LockRequests(
            self.session,
            self._group,
            self._config,
            api=BrokerApi(self.session.connections, self._options.remoting, client_id),
        )
        kept = await self._lock_each(requests, queues)
        if not kept:
            return False  # another member's
        clock, pause_ms = self.session.clock, self._options.release_pause_ms
        end_ms = clock.now_ms() + pause_ms
        _log.info("waiting %d ms for the executors of run %016x", pause_ms, previous_run_id)
        unreleased = set(kept)
        # Renewed in the previous run's name while waiting, or a third member could get the locks
        # while its tasks may still run.
        while (left_ms := end_ms - clock.now_ms()) > 0:
            await clock.sleep_ms(min(left_ms, self._pause_ms(), _LOOK_MS))
            now = await self._lock_each(requests, sorted(kept))
            # One broker after the other: a look may find the locks of some released, not of all.
            unreleased = {each for each in unreleased if not _is_new(now.get(each), kept[each])}
            kept |= now  # a lock is released by the epoch that it has now
            if not unreleased:
                _log.info("run %016x has released its locks", previous_run_id)
                break
        await self._unlock(requests, kept)
        return True

    async def _lock_each(
        self, requests: LockRequests, queues: list[MessageQueue]
    ) -> dict[MessageQueue, Lease]:
        granted: dict[MessageQueue, Lease] = {}
        for broker, wanted in _by_broker(queues):
            try:
                granted |= await self._lock(requests, broker, wanted)
            except (RemotingError, RouteError) as error:
                self.session.report_failure(broker, "lock request", error)
        return granted

    async def _lock(
        self, requests: LockRequests, broker: str, queues: list[MessageQueue]
    ) -> dict[MessageQueue, Lease]:
        try:
            # Shielded: a cancelled wait must not cancel the request. The broker may have granted
            # the lock, and an unlock must come behind it.
            request = asyncio.get_running_loop().create_task(requests.lock(broker, lambda: queues))
            self._under_way.add(request)
            request.add_done_callback(self._under_way.discard)
            granted = await asyncio.shield(request)
        except RouteError:
            await self.session.address_of(queues[0])  # says whether there is a topic
            raise
        return {} if granted is None else granted.leases

    # Renewing the locks.

    async def _renew_and_wait(self) -> None:
        self._wake.clear()
        await self.renew()
        await wait_until_set(self._wake, self.session.clock, self._pause_ms())

    def _pause_ms(self) -> int:
        deadlines_ms = [lease.deadline_ms for q, lease in self._held.items() if q not in self._lost]
        now_ms, retry_ms = self.session.clock.now_ms(), self._config.lock_retry_ms
        return self._requests.times.pause_ms(deadlines_ms, now_ms, retry_ms)

    async def renew(self) -> None:
        """Renew the leases; after a failed request they keep their old deadline."""
        now_ms = self.session.clock.now_ms()
        for queue, lease in self._held.items():
            if not lease.is_valid(now_ms):
                self._lose(queue, self._not_renewed())
        held = [queue for queue in self._held if queue not in self._lost]
        await asyncio.gather(
            *(self._renew_at(broker, queues) for broker, queues in _by_broker(sorted(held)))
        )

    async def _renew_at(self, broker: str, queues: list[MessageQueue]) -> None:
        try:
            granted = await self._lock(self._requests, broker, queues)
        except (RemotingError, RouteError) as error:
            # Retried several times a second while a broker is away: one log line per outage.
            self.session.report_failure(broker, "lock renewal", error)
            return
        for queue in queues:
            before, now = self._held.get(queue), granted.get(queue)
            if before is None:
                continue  # released while the request was under way
            if now is None:
                self._lose(queue, "the broker gave it to another member")
            elif now.is_fenced and now.epoch != before.epoch:
                self._lose(queue, "another member held it in between")
            elif queue in self._unconfirmed and not await self._is_untouched(queue, before):
                self._lose(queue, "the broker was away, and another member may have held it")
            else:
                self._unconfirmed.discard(queue)
                self._held[queue] = before._replace(deadline_ms=now.deadline_ms)

    def _not_renewed(self) -> str:
        return f"it could not be renewed for {self._requests.times.duration_ms} ms"

    def _lose(self, queue: MessageQueue, reason: str) -> None:
        if queue not in self._lost:
            self._lost[queue] = reason
            _log.error("%s: lock lost: %s", queue, reason)

    def _on_connection_lost(self, address: str) -> None:
        # A broker without epochs keeps locks in memory: after its restart another member may have
        # got the lock, worked, and given it back, and no answer would tell
        # (docs/internals/semantics.md#leases-and-renewal). The stored epoch does, and of a member
        # of Java's, which stores none, the group's offset: only a holder moves them.
        self._requests.note_loss()
        for queue, lease in self._held.items():
            if not lease.is_fenced and self._known_address_of(queue) == address:
                self._unconfirmed.add(queue)
        self._wake.set()

    def _known_address_of(self, queue: MessageQueue) -> str | None:
        try:
            return self.session.routes.master_of(queue.broker_name)
        except (RouteError, ConnectFailed):
            return None

    async def _is_untouched(self, queue: MessageQueue, lease: Lease) -> bool:
        """Return whether no other member has taken an epoch, or committed further than this run."""
        try:
            if not await self._epochs.is_newest(queue, lease):
                return False
            stored = await self._stored_offset(queue)
        except (RemotingError, RouteError) as error:
            _log.warning("%s: the group's offset could not be read: %s", queue, error)
            return False
        # Less is fine: a restarted broker may have lost its last commits.
        return stored <= max(self._committed.get(queue, -1), self._offsets_at_start.get(queue, -1))

    async def _stored_offset(self, queue: MessageQueue) -> int:
        session = self.session
        address = await session.address_of(queue)
        stored = await session.api.query_offset(address, self._group, queue)
        return -1 if stored is None else stored

    def _describe(self) -> Heartbeat:
        subscriptions = (self._options.subscription(topic) for topic in sorted(self._topics))
        data = ConsumerData(self._group, tuple(subscriptions))
        return Heartbeat(self.session.client_id, (data,), ("CLIENT_INNER_PRODUCER",))

    # Committing, and releasing the locks.

    async def store_start(self, start: Offsets) -> None:
        """Store the start of held queues where the group has none; raises as `store_start`."""
        self._committed |= await store_start(self._stored, self._group, start, self._held)

    async def commit(self, offsets: Offsets, *, is_last: bool = False) -> None:
        """Commit the offsets of held queues; a failure is logged, the checkpoint is the truth.

        Args: is_last: of this run; commit those again that were committed before.
        """
        async with self._commit_turn:  # an older commit must not arrive after a newer one
            now_ms = self.session.clock.now_ms()
            changed = [
                (queue, offset, lease)
                for queue, offset in offsets.items()
                if (lease := self._held.get(queue)) is not None
                and lease.is_valid(now_ms)
                and queue not in self._lost
                # A killed broker forgets commits that it has not saved, and a copy of an older one
                # may arrive late. A queue without new messages would stay behind.
                and (is_last or self._committed.get(queue) != offset)
            ]
            await asyncio.gather(*(self._commit_one(*one) for one in changed))

    async def _commit_one(self, queue: MessageQueue, offset: int, lease: Lease) -> None:
        session = self.session
        try:
            await self._stored.write(queue, offset, lease)
        except Fenced as error:
            self._lose(queue, f"a commit was fenced: {error}")
        except (RemotingError, RouteError) as error:
            session.report_failure(queue.broker_name, "commit", error)
        else:
            self._committed[queue] = offset

    async def release(self, *, is_in_flight: bool) -> None:
        """End the run: unlock, or let the locks expire while executors may still be working.

        Args:
            is_in_flight: a batch was handed out and its end is not known. No pause proves that
                its tasks have ended, so by default the locks are left to expire.
        """
        pauses = self._options.release_in_flight is ReleaseInFlight.AFTER_PAUSE
        await cancelled(self._acquisition)
        await asyncio.gather(*self._under_way, return_exceptions=True)
        if is_in_flight:
            await self.renew()  # the executors get the broker's whole lock time from now on
        if is_in_flight and pauses:
            # The renewal loop goes on during the pause.
            await self.session.clock.sleep_ms(self._options.release_pause_ms)
        await cancelled(self._renewal)
        if not is_in_flight or pauses:
            # Requested but unanswered locks may have been granted. They are unlocked without an
            # epoch, which every broker accepts from the owner.
            without_epoch = Lease(epoch=0, deadline_ms=0, is_fenced=False)
            own = dict.fromkeys(self._requested, without_epoch) | self._held
            own = {queue: lease for queue, lease in own.items() if queue not in self._lost}
            if await self._epochs.keep({q: lease for q, lease in own.items() if lease.is_lock}):
                await self._unlock(self._requests, own)
        await self.session.leave(consumer_group=self._group)
        self._held.clear()

    async def abandon(self) -> None:
        """Stop renewing, and leave the locks to expire."""
        await cancelled(self._acquisition, self._renewal)

    async def _unlock(self, requests: LockRequests, leases: dict[MessageQueue, Lease]) -> None:
        for broker, queues in _by_broker(sorted(leases)):
            given_up = {queue: leases[queue] for queue in queues}
            try:
                await requests.unlock(broker, given_up.copy)
            except (RemotingError, RouteError) as error:
                _log.warning("%s: unlock failed, the locks will expire: %s", broker, error)


def _is_new(now: Lease | None, before: Lease) -> bool:
    """Return whether a lock was free in between, as far as its broker tells."""
    return now is not None and now.is_fenced and now.epoch != before.epoch


def _by_broker(queues: list[MessageQueue]) -> list[tuple[str, list[MessageQueue]]]:
    ordered = sorted(queues, key=lambda queue: queue.broker_name)
    return [(name, list(part)) for name, part in groupby(ordered, lambda q: q.broker_name)]


def _names(queues: Iterable[MessageQueue]) -> str:
    return ", ".join(map(queue_text, queues))
