"""Leases of the batches that a member has popped: renewed, ended and given back
(docs/internals/semantics.md#pop)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from ordermq.client.session import ClientSession
from ordermq.clock import wait_until_set
from ordermq.config import LeaseConfig, PopConfig
from ordermq.consumer.pop.popped_batch import PoppedBatch
from ordermq.consumer.pop.transport import PopTransport
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueState
from ordermq.consumer.queue.statistics import EventRecorder, MemberContext
from ordermq.errors import BrokerError, Fenced, RemotingError, RouteError
from ordermq.events import BY_COMMIT, EventType
from ordermq.leases.lease import UNLOCKED, Lease, LeaseTimes
from ordermq.model.delay_levels import DELAY_LEVELS_MS, FIRST_RETRY_LEVEL
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue

_log = logging.getLogger("ordermq.consumer")
# The lease of a queue between two batches: there is nothing to work, so nothing may end.
RESTING = UNLOCKED._replace(token_problem="no batch of the queue is popped now")
_ACK_RETRY_MS = 100
_NO_ORDER = "members of a concurrent group work a queue side by side; use an orderly listener"
_NO_FENCE = (
    "RocketMQ's brokers take what a member says of a batch that is no longer its own, and forget "
    "leases in a crash; use consume_mode='pull' where a late writer must be refused"
)


class PopLeases:
    """Leases of popped batches, one per queue; fulfils `Locks`. On the I/O thread.

    A member holds every queue of its topics. Between two batches a queue rests: its lease is
    `RESTING`, which allows nothing as there is nothing to consume.

    Args:
        is_ordered: a queue has one batch in the whole group. Else each message is leased by itself,
            and members pop a queue side by side.
        held: returns the queues held at this moment.
    """

    are_exclusive = True

    def __init__(
        self,
        member: MemberContext,
        transport: PopTransport,
        lease: LeaseConfig,
        config: PopConfig,
        held: Callable[[], Iterable[AssignedQueue]],
        *,
        is_ordered: bool,
    ) -> None:
        self.refusals: dict[str, str] = {}
        self._client = member.client
        self._transport = transport
        self._recorder = member.recorder
        self._statistics = member.statistics
        self._held = held
        self._times = LeaseTimes.of_life(config.pop_invisible_ms, lease)
        self._retry_ms = min(lease.lock_retry_ms, self._times.retry_ms)
        self._batches: dict[MessageQueue, PoppedBatch] = {}
        self._waiting: dict[MessageQueue, list[PoppedBatch]] = {}
        self._is_ordered = is_ordered
        self._numbers = itertools.count(1)  # of batches without order
        self._wake = asyncio.Event()

    # Locks

    async def acquire(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, Lease]:
        return dict.fromkeys(queues, RESTING)

    def is_doubtful(self, queue: MessageQueue) -> bool:
        return False

    async def is_over(self, assigned: AssignedQueue) -> bool:
        lease = assigned.lease
        if lease is not None and lease.is_valid(self._client.clock.now_ms()):
            return False
        assigned.lose_lease("it could not be renewed in time")
        return True

    async def prepare_release(self, assigned: AssignedQueue) -> None:
        # What came for it from here on, nobody would work.
        self._transport.leave(assigned.queue)

    async def release(self, assigned: AssignedQueue) -> None:
        """Give what is not acknowledged of a queue to the other members."""
        batch, lease = self._batches.pop(assigned.queue, None), assigned.lease
        assigned.discard()
        await asyncio.gather(*map(self._transport.give_back, self._waiting.pop(assigned.queue, ())))
        if batch is None or lease is None or not lease.is_lock or batch.is_acknowledged:
            return
        self._recorder.record(EventType.UNLOCK, assigned.queue, lease.epoch)
        await self._transport.give_back(batch)

    async def give_back(self, queue: MessageQueue, lease: Lease) -> None:
        """Nothing is leased yet of a queue that is not taken."""

    def connection_lost(self, address: str) -> None:
        if not self._is_ordered:
            return  # at worst what a broker has forgotten comes twice
        names = self._client.routes.brokers_at(address)
        self._drop_waiting(names)
        for assigned in self._held():
            lease = assigned.lease
            if lease is None or not lease.is_lock or lease.is_fenced:
                continue  # a broker that stores leases says at the next request what is over
            if assigned.queue.broker_name in names:
                # RocketMQ's brokers lose leases of the last seconds in a crash, and then take an
                # acknowledgement as one of everything before it.
                assigned.lose_lease("the connection to a broker that may forget leases broke")

    def master_moved(self, broker_name: str) -> None:
        if not self._is_ordered:
            return
        self._drop_waiting((broker_name,))
        for assigned in self._held():
            lease = assigned.lease
            if lease is not None and lease.is_lock and assigned.queue.broker_name == broker_name:
                assigned.lose_lease("the master of its broker has another address now")

    def _drop_waiting(self, broker_names: Collection[str]) -> None:
        """Drop what was not begun yet, and what a broker may have forgotten."""
        for queue, batches in self._waiting.items():
            if queue.broker_name in broker_names:
                batches[:] = [batch for batch in batches if batch.is_fenced]

    def renew_soon(self) -> None:
        self._wake.set()

    def began(self, assigned: AssignedQueue) -> None:
        """No batch has been popped."""

    async def round(self) -> None:
        """Renew what is due, let queues rest whose lease is over, and wait until that is due."""
        self._wake.clear()
        now_ms = self._client.clock.now_ms()
        due: list[AssignedQueue] = []
        for assigned in self._held():
            lease = assigned.lease
            if lease is not None and not lease.is_valid(now_ms):
                assigned.lose_lease("it could not be renewed in time")
                lease = None
            if lease is None:
                self._batches.pop(assigned.queue, None)
                # Once no listener of the old batch runs: its messages may come again at once.
                assigned.regain(RESTING, assigned.committed_offset)
            elif lease.is_lock and self._times.due_ms(lease.deadline_ms) <= now_ms:
                due.append(assigned)
        waiting = [
            (queue, batch)
            for queue, batches in self._waiting.items()
            for batch in batches
            if batch.asked_ms + self._times.renew_ms <= now_ms
        ]
        await asyncio.gather(
            *map(self._renew, due), *(self._renew_waiting(*each) for each in waiting)
        )
        await wait_until_set(self._wake, self._client.clock, self._pause_ms())

    # Batches, for the fetcher.

    def batch_of(self, assigned: AssignedQueue) -> PoppedBatch | None:
        """Return the batch of a queue that is in progress."""
        batch, lease = self._batches.get(assigned.queue), assigned.lease
        if batch is None or lease is None or lease.epoch != batch.epoch:
            return None
        return batch

    def keep(self, queue: MessageQueue, batches: Iterable[PoppedBatch]) -> None:
        """Keep batches that came with another one, until the queue can take them."""
        self._waiting.setdefault(queue, []).extend(batches)
        self._wake.set()  # they may have to be renewed before all others

    def take_waiting(self, queue: MessageQueue) -> PoppedBatch | None:
        """Return the next batch that was kept; None: there is none."""
        waiting = self._waiting.get(queue)
        return waiting.pop(0) if waiting else None

    def take_all_waiting(self, topic: str, broker_name: str) -> list[PoppedBatch]:
        """Return what is kept for all queues of a topic at a broker, held or not."""
        place = topic, broker_name
        queues = [each for each in self._waiting if (each.topic, each.broker_name) == place]
        return [batch for queue in queues for batch in self._waiting.pop(queue)]

    async def return_later(
        self, assigned: AssignedQueue, message: MessageView, delay_level: int, max_retries: int
    ) -> None:
        """Have a failed message of a queue's batch delivered again later; fulfils `DeliverLater`.

        Raises: RemotingError, RouteError: it is not known whether it is.
        """
        queue, offset = message.message_queue, message.queue_offset
        batch = self._batches.get(assigned.queue)
        if batch is None or batch.queue != queue or offset not in batch.offsets:
            return  # its lease is over, and it comes again by itself
        level = delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        level = min(level, len(DELAY_LEVELS_MS))  # the last one for all further attempts
        # Before the request: what may have been done must not be acknowledged.
        batch.returned.add(offset)
        try:
            await self._transport.return_later(batch, offset, DELAY_LEVELS_MS[level - 1])
        except (RemotingError, RouteError):
            batch.returned.discard(offset)
            raise

    def batch_at(self, queue: MessageQueue) -> PoppedBatch | None:
        """Return the batch of a queue that was begun last, in progress or not."""
        return self._batches.get(queue)

    def begin(self, assigned: AssignedQueue, batch: PoppedBatch) -> bool:
        """Begin the lease of a batch that was just popped; False: the queue cannot take it now."""
        if not self._is_ordered:
            batch.epoch = next(self._numbers)  # two of one millisecond would be one
        problem = "" if batch.is_fenced else _NO_FENCE if self._is_ordered else _NO_ORDER
        if batch.is_claimed:
            problem = ""  # the epoch is the database's, which gave it out before the batch begins
        deadline_ms = self._times.deadline_ms(batch.asked_ms)
        lease = Lease(batch.epoch, deadline_ms, batch.is_fenced, problem)
        if not lease.is_valid(self._client.clock.now_ms()):
            return False
        assigned.may_hold_back = False
        # Recorded before anything can begin under it.
        self._record_grant(assigned.queue, batch.epoch, batch.asked_ms)
        if not assigned.regain(lease, batch.start):
            self._recorder.record(EventType.UNLOCK, assigned.queue, batch.epoch)
            return False
        if batch.stored is not None:
            self._recorder.record(EventType.TAKE_OVER, assigned.queue, batch.epoch, off=batch.first)
        self._recorder.record(EventType.POSITION, assigned.queue, batch.epoch, off=batch.first)
        self._batches[assigned.queue] = batch
        self._wake.set()  # it may have to be renewed before all others
        return True

    def end(self, assigned: AssignedQueue, batch: PoppedBatch) -> bool:
        """Let a queue rest whose batch is acknowledged; False: something of it still runs."""
        if not assigned.rest(RESTING, batch.epoch):
            return self.batch_of(assigned) is not batch
        self._batches.pop(assigned.queue, None)
        return True

    async def _renew_waiting(self, queue: MessageQueue, batch: PoppedBatch) -> None:
        sent_ms = self._client.clock.now_ms()
        try:
            await self._transport.extend(batch)
        except Fenced:
            # Others may have it. This queue takes it, or finds that it is gone.
            if batch in (waiting := self._waiting.get(queue, [])):
                waiting.remove(batch)
        except (RemotingError, RouteError) as error:
            # A batch whose lease ends meanwhile is not begun: it comes again.
            self._client.report_failure(queue.broker_name, "renew a lease", error)
        else:
            batch.asked_ms = sent_ms

    async def _renew(self, assigned: AssignedQueue) -> None:
        batch, generation, lease = self.batch_of(assigned), assigned.generation, assigned.lease
        if batch is None or lease is None or batch.is_releasing:
            return
        sent_ms = self._client.clock.now_ms()
        try:
            await self._transport.extend(batch)
        except Fenced as error:
            assigned.lose_lease(str(error), generation)
            return
        except (RemotingError, RouteError) as error:
            self._statistics.add("lock_errors")
            self._client.report_failure(assigned.queue.broker_name, "renew a lease", error)
            return
        batch.asked_ms = sent_ms
        renewed = lease._replace(deadline_ms=self._times.deadline_ms(sent_ms))
        if assigned.renew(generation, renewed) and not batch.is_releasing:
            self._record_grant(assigned.queue, batch.epoch, sent_ms)

    def _record_grant(self, queue: MessageQueue, epoch: int, sent_ms: int) -> None:
        if self._recorder.enabled:
            self._recorder.record(
                EventType.LOCK_OK,
                queue,
                epoch,
                sent=sent_ms * 1_000_000,
                lease_ms=self._times.duration_ms,
            )

    def _pause_ms(self) -> int:
        now_ms, pause_ms = self._client.clock.now_ms(), self._times.renew_ms
        for assigned in self._held():
            lease = assigned.lease
            if lease is None and assigned.state is QueueState.ACTIVE:
                pause_ms = min(pause_ms, self._retry_ms)
            elif lease is not None and lease.is_lock:
                pause_ms = min(
                    pause_ms, max(self._times.due_ms(lease.deadline_ms) - now_ms, self._retry_ms)
                )
        for batches in self._waiting.values():
            for batch in batches:
                due_ms = batch.asked_ms + self._times.renew_ms
                pause_ms = min(pause_ms, max(due_ms - now_ms, self._retry_ms))
        return pause_ms


class StartStorage(Protocol):
    """Storage of the starts of queues that nobody has popped."""

    stores_starts: bool  # as of `OffsetStorage`

    async def take_over(self, queue: MessageQueue, lease: Lease) -> int | None: ...

    async def read(self, queue: MessageQueue) -> int | None: ...

    async def write(
        self, queue: MessageQueue, offset: int, lease: Lease = UNLOCKED, *, reset: bool = False
    ) -> None: ...


class ServerStarts:
    """Starts behind a proxy: brokers decide them, and tell nobody; fulfils `StartStorage`."""

    stores_starts = False

    async def take_over(self, queue: MessageQueue, lease: Lease) -> int | None:
        return 0  # until the first batch says where it begins

    async def read(self, queue: MessageQueue) -> int | None:
        return None

    async def write(
        self, queue: MessageQueue, offset: int, lease: Lease = UNLOCKED, *, reset: bool = False
    ) -> None:
        """Nothing: the broker stores the start with the first pop."""


class PopOffsets:
    """Offsets of a group that pops: what is done is acknowledged, the broker moves the offset.

    Fulfils `OffsetStorage`. Where a queue starts is stored as in other groups, at the brokers.
    """

    is_local = False

    def __init__(
        self,
        client: ClientSession,
        at_broker: StartStorage,
        transport: PopTransport,
        recorder: EventRecorder,
        batch_of: Callable[[MessageQueue], PoppedBatch | None],
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._at_broker = at_broker
        self.stores_starts = at_broker.stores_starts
        self._transport = transport
        self._batch_of = batch_of

    async def take_over(self, queue: MessageQueue, lease: Lease) -> int | None:
        return await self._at_broker.take_over(queue, lease)

    async def read(self, queue: MessageQueue) -> int | None:
        return await self._at_broker.read(queue)

    async def write(
        self, queue: MessageQueue, offset: int, lease: Lease = UNLOCKED, *, reset: bool = False
    ) -> None:
        if lease.is_lock:
            batch = self._batch_of(queue)
            if batch is not None and batch.epoch == lease.epoch:
                await self._acknowledge(batch, offset, lease)
        elif reset or await self._at_broker.read(queue) is None:
            # The start of a queue that nobody has popped. Another member that has moves the offset
            # by acknowledgements, which a start that comes late must not take back.
            await self._at_broker.write(queue, offset, lease, reset=reset)

    async def _acknowledge(self, batch: PoppedBatch, offset: int, lease: Lease) -> None:
        if offset >= batch.end and not batch.is_releasing:
            batch.is_releasing = True
            # With this request the broker may give the queue to another member.
            self._recorder.record(EventType.UNLOCK, batch.queue, batch.epoch, detail=BY_COMMIT)
        while True:
            try:
                await self._transport.acknowledge(batch, offset)
                return
            except BrokerError:
                raise
            except (RemotingError, RouteError) as error:
                # Again for as long as nobody else may have the queue: it is not known whether the
                # broker has it, and a second time does no harm.
                clock = self._client.clock
                if not lease.is_valid(clock.now_ms() + _ACK_RETRY_MS):
                    raise
                self._client.report_failure(batch.queue.broker_name, "acknowledge", error)
                await clock.sleep_ms(_ACK_RETRY_MS)
                if self._batch_of(batch.queue) is not batch:
                    # Given up, as when the connection broke to a broker that forgets leases.
                    raise

    def close(self) -> None:
        """Nothing is held here."""
