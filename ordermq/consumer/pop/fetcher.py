"""Popping: leases the next batch of each held queue, and acknowledges it once it is done
(docs/internals/semantics.md#pop)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ordermq.client.connections import is_forbidden
from ordermq.client.runtime import cancelled
from ordermq.clock import wait_until_set
from ordermq.config import PullConfig
from ordermq.consumer.offsets.offset_committer import STORE_ERRORS, OffsetCommitter
from ordermq.consumer.pop.attempts import Attempts
from ordermq.consumer.pop.leases import RESTING, PopLeases
from ordermq.consumer.pop.popped_batch import PoppedBatch
from ordermq.consumer.pop.transport import PopTransport
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueState
from ordermq.consumer.queue.receiver import Receiver
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.errors import (
    BrokerError,
    ConnectFailed,
    OrderMQError,
    ProtocolError,
    RemotingError,
    RouteError,
)
from ordermq.model.log_fields import log_fields
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.model.stored_message import holds_messages
from ordermq.model.subscription import Subscription
from ordermq.remoting.codes import ResponseCode
from ordermq.value import Value

if TYPE_CHECKING:
    from ordermq.consumer.pop.claims import ClaimedOffsets

_log = logging.getLogger("ordermq.consumer")
_LOOK_MS = 200  # at what nothing tells of: the end of a pause
_END_RETRY_MS = 5
_ACK_RETRY_MS = 100
_REFUSED_PAUSE_MS = 10_000
_BATCH_TOPIC = (
    "a record of it holds several messages (a batch topic, queue.type=BatchCQ), which brokers "
    "lease as one: consume it with consume_mode='pull'"
)


class PopFetchParts(Value):
    """The parts that the pops of all queues of one member share.

    Args:
        claims: of batches at the store of offsets; None without one.
    """

    member: MemberContext
    config: PullConfig
    transport: PopTransport
    leases: PopLeases
    offsets: OffsetCommitter
    receiver: Receiver[Any]
    claims: ClaimedOffsets | None


class QueuePops:
    """Pops one queue, batch by batch: a batch is leased when the last one is acknowledged."""

    def __init__(
        self, parts: PopFetchParts, assigned: AssignedQueue, subscription: Subscription
    ) -> None:
        self.assigned = assigned
        self._client = client = parts.member.client
        self._config = parts.config
        self._transport = parts.transport
        self._leases = parts.leases
        self._offsets = parts.offsets
        self._receiver = parts.receiver
        self._claims = parts.claims
        self._statistics = parts.member.statistics
        self._wake = asyncio.Event()
        self._attempts = Attempts(client.clock, parts.transport.poll_ms)
        self._attempt_id = ""  # of the last pop
        self._polled_ms = client.clock.now_ms()
        self._asked_ms = 0
        self._refusal = ""
        self._waits_for_turn = False
        self.task: asyncio.Task[None] | None = None
        self.poll: asyncio.Task[Sequence[PoppedBatch]] | None = None
        self.subscribe(subscription)

    def subscribe(self, subscription: Subscription) -> None:
        """Pop these messages from the next pop on."""
        self._subscription = subscription
        self._tags = tuple(tag.encode() for tag in subscription.tags)

    def wake(self) -> None:
        """Look now: a batch may be done, or a broker back."""
        self._wake.set()

    @property
    def last_pop_ms(self) -> int:
        """The time of the last pop, ms since 1970; 0 before the first."""
        clock = self._client.clock
        return clock.wall_ms() - (clock.now_ms() - self._asked_ms) if self._asked_ms else 0

    @property
    def refusal(self) -> str:
        """Reason of the broker to refuse pops; empty if it does not."""
        return self._refusal

    def poll_age_ms(self, now_ms: int) -> int | None:
        """Return the age of the last answered pop; None while none is due."""
        lease = self.assigned.lease
        is_due = lease is not None and not lease.is_lock and not self.assigned.is_paused
        is_due = is_due and not self._waits_for_turn
        return now_ms - self._polled_ms if is_due else None

    async def round(self) -> bool:
        """Pop and consume one batch, or wait; False after a revocation."""
        assigned = self.assigned
        if assigned.state is not QueueState.ACTIVE:
            return False
        self._wake.clear()
        batch = self._leases.batch_of(assigned)
        if batch is not None:
            await self._finish(batch)
        elif assigned.lease is None or assigned.lease.is_lock or assigned.is_paused:
            # Its lease is over and its listener still runs; or somebody paused it.
            self._polled_ms = self._client.clock.now_ms()
            await wait_until_set(self._wake, self._client.clock, _LOOK_MS)
        elif (waiting := self._leases.take_waiting(assigned.queue)) is not None:
            await self._begin(waiting)
        else:
            await self._pop()
        return True

    async def _finish(self, batch: PoppedBatch) -> None:
        """Wait until a batch is done, and acknowledge it."""
        assigned = self.assigned
        if assigned.done_offset < batch.end:
            # Woken when nothing of it is buffered any more. The lease may end, too, and then
            # `leases` lets the queue rest.
            is_told = assigned.wait_for_room(1)
            await wait_until_set(self._wake, self._client.clock, _LOOK_MS if is_told else 1)
            return
        clock = self._client.clock
        if not (await self._offsets.commit(assigned) and batch.is_acknowledged):
            if self._leases.batch_of(assigned) is batch:
                await clock.sleep_ms(_ACK_RETRY_MS)
        elif self._leases.end(assigned, batch):
            self._polled_ms = clock.now_ms()
        else:
            # All is done, and somebody is at it still: a message is consumed directly. Never
            # without a pause: what ends that is this thread's.
            await clock.sleep_ms(_END_RETRY_MS)

    async def _pop(self) -> None:
        assigned, clock = self.assigned, self._client.clock
        self._waits_for_turn, began_ms = True, clock.now_ms()
        try:
            await self._transport.turn(assigned.queue)
        finally:
            self._waits_for_turn = False
            self._polled_ms += clock.now_ms() - began_ms
        if assigned.state is not QueueState.ACTIVE:
            self._transport.skip(assigned.queue)
            return
        self._attempt_id = self._attempts.next_id()
        self._asked_ms = clock.now_ms()
        work = self._transport.receive(assigned.queue, self._subscription, self._attempt_id)
        # A task of its own: whoever ends this loop must not lose what the broker may be sending.
        self.poll = asyncio.ensure_future(work)
        try:
            batches = await asyncio.shield(self.poll)
        except ProtocolError as error:
            self._note_bad_answer(assigned.max_offset, error)
            self._statistics.add("pull_errors")
            _log.error(
                "%s: dropped a bad answer to a pop: %s",
                assigned.queue,
                error,
                extra=log_fields(assigned.queue),
            )
            self._attempts.failed(self._attempt_id, self._asked_ms)
            await clock.sleep_ms(self._config.pull_delay_on_error_ms)
            return
        except (RemotingError, RouteError) as error:
            if not isinstance(error, (BrokerError, ConnectFailed, RouteError)):
                self._attempts.failed(self._attempt_id, self._asked_ms)
            await self._pause_after(error)
            return
        if assigned.state is not QueueState.ACTIVE:
            # Given up meanwhile: `give_back_late` takes the answer. This loop is about to be
            # cancelled, and what it gave back itself with it.
            return
        self.poll = None
        self._polled_ms, self._refusal = clock.now_ms(), ""
        self._tell_expired()
        if not batches:
            self._statistics.add("pulls")
            return
        self._leases.keep(assigned.queue, batches[1:])
        await self._begin(batches[0])

    def _tell_expired(self) -> None:
        """Count and log what the broker removed before the group had it."""
        queue = self.assigned.queue
        count = self._transport.take_expired(queue)
        if not count:
            return
        self._statistics.add("skipped", count)
        _log.warning(
            "%s: %d messages expired unread: the broker removed them before the group had them",
            queue,
            count,
            extra=log_fields(queue),
        )

    async def _begin(self, batch: PoppedBatch) -> None:
        if self._claims is not None and not await self._claim(self._claims, batch):
            return
        if self._leases.begin(self.assigned, batch):
            self._accept(batch)
        else:
            await self._give_back([batch])

    async def _claim(self, claims: ClaimedOffsets, batch: PoppedBatch) -> bool:
        """Claim a batch in the user's database; False: it is not to begin now."""
        queue, clock = self.assigned.queue, self._client.clock
        # There it is renewed while the database is away, and given back with the queue.
        self._leases.keep(queue, (batch,))
        try:
            is_claimed = await claims.claim(batch)
        except STORE_ERRORS as error:
            self._client.report_failure(queue.broker_name, "claim a batch", error)
            self._refusal, self._polled_ms = str(error), clock.now_ms()
            await wait_until_set(self._wake, clock, self._config.pull_delay_on_error_ms)
            return False
        self._refusal, self._polled_ms = "", clock.now_ms()
        if self._leases.take_waiting(queue) is not batch:
            return False  # the queue was given up meanwhile, or the batch is another member's
        if not is_claimed:
            await self._give_back([batch])
        return is_claimed

    async def _give_back(self, batches: Sequence[PoppedBatch]) -> None:
        await asyncio.gather(*map(self._transport.give_back, batches))

    def _accept(self, batch: PoppedBatch) -> None:
        assigned = self.assigned
        self._statistics.pulled(assigned.queue, len(batch.offsets), self._asked_ms)
        assigned.source = batch.queue
        if batch.queue == assigned.queue:
            assigned.max_offset = max(assigned.max_offset, batch.end)
        generation = assigned.generation
        if batch.first > batch.start:
            assigned.skip_to(generation, batch.first)
        try:
            messages = self._messages_of(batch)
        except ProtocolError as error:
            self._note_bad_answer(batch.first, error)
            assigned.lose_lease(f"its messages cannot be read: {error}")
            return
        assigned.bad_answer_at = -1
        if not len(messages):
            assigned.skip_to(generation, batch.end)  # other tags with the hash of a wanted one
        elif assigned.accept(generation, messages, batch.end):
            self._receiver.submit(assigned)

    def _note_bad_answer(self, offset: int, error: ProtocolError) -> None:
        """Count it; the member's health tells of it until the queue has a good one."""
        self._statistics.add("bad_answers")
        self.assigned.bad_answer, self.assigned.bad_answer_at = str(error), offset

    def _messages_of(self, batch: PoppedBatch) -> MessageBatch:
        """Return the messages of a batch that are wanted.

        Raises: ProtocolError: they are damaged, or not those that were leased. One that is missing
            would be acknowledged with the others.
        """
        read = partial(self._client.api.batch, batch.queue, batch.body)
        try:
            found = read((), batch.start, batch.end)
        except ProtocolError as error:
            if holds_messages(batch.body):
                raise ProtocolError(_BATCH_TOPIC) from error
            raise
        if list(found.offsets) != list(batch.offsets):
            raise ProtocolError(
                f"a pop leased {len(batch.offsets)} messages, and has {len(found)}, or others"
            )
        if batch.first > batch.start:
            read = partial(self._client.api.batch, batch.queue, batch.records_from(batch.first))
        elif not self._tags:
            return found
        return read(self._tags, batch.first, batch.end)

    async def _pause_after(self, error: OrderMQError) -> None:
        queue = self.assigned.queue
        self._statistics.add("pull_errors")
        self._client.report_failure(queue.broker_name, "pop", error)
        pause_ms = self._config.pull_delay_on_error_ms
        code = getattr(error, "response_code", None)
        if is_forbidden(error) or code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            # The broker says no until an admin has done something: there is no hurry.
            self._refusal = str(error)
            pause_ms = max(pause_ms, _REFUSED_PAUSE_MS)
        self._client.doubt_route(queue.topic)
        await wait_until_set(self._wake, self._client.clock, pause_ms)

    async def give_back_late(self) -> None:
        """After the end of this loop: give back what the broker still answers, or has answered."""
        poll, self.poll = self.poll, None
        lost = self._attempts.take_unanswered()
        try:
            batches = () if poll is None else await poll
        except BrokerError:
            return  # refused, so nothing was popped
        except OrderMQError:
            batches = ()
            lost = list(dict.fromkeys([*lost, self._attempt_id]))
        while not batches and lost:
            # The last one that popped has what was popped.
            try:
                batches = await self._transport.receive_missed(
                    self.assigned.queue, self._subscription, lost.pop()
                )
            except OrderMQError as error:
                # If the broker leased something, its time ends.
                self._client.report_failure(self.assigned.queue.broker_name, "pop", error)
                return
        self._tell_expired()
        await self._give_back(batches)


class PopFetcher:
    """Pops the queues of one member; fulfils `MessageFetcher`. On the I/O thread.

    Args:
        before_first: awaited before the first pop of a queue.
    """

    def __init__(
        self, parts: PopFetchParts, *, before_first: Callable[[MessageQueue], Awaitable[None]]
    ) -> None:
        self._parts = parts
        self._client = parts.member.client
        self._before_first = before_first
        self._by_queue: dict[MessageQueue, QueuePops] = {}
        self._late: set[asyncio.Task[None]] = set()
        self._is_waking = False

    def begin(self, assigned: AssignedQueue, subscription: Subscription) -> None:
        pops = QueuePops(self._parts, assigned, subscription)
        self._by_queue[assigned.queue] = pops
        is_begun = False

        async def round() -> bool:
            nonlocal is_begun
            if is_begun:
                return await pops.round()
            await self._before_first(assigned.queue)
            await self._parts.receiver.prepare(assigned)
            is_begun = True
            return True

        pops.task = self._client.supervisor.start("pop", round, str(assigned.queue))

    def end(self, assigned: AssignedQueue) -> None:
        pops = self._by_queue.pop(assigned.queue)
        self._end(pops)

    def _end(self, pops: QueuePops) -> None:
        assert pops.task is not None
        pops.task.cancel()
        late = self._client.runtime.spawn(
            self._give_back_late(pops), f"late pop {pops.assigned.queue}"
        )
        self._late.add(late)
        late.add_done_callback(self._late.discard)

    async def _give_back_late(self, pops: QueuePops) -> None:
        await cancelled(pops.task)
        await pops.give_back_late()

    def wake(self, assigned: AssignedQueue) -> None:
        pops = self._by_queue.get(assigned.queue)
        if pops is not None:
            pops.wake()

    def wake_all(self) -> None:
        for pops in self._by_queue.values():
            pops.wake()

    def restart(self, assigned: AssignedQueue) -> None:
        self.wake(assigned)

    def pull_now(self, assigned: AssignedQueue) -> None:
        """Nothing: a reset ends leases at the broker, and a pop has no offset of its own."""

    def subscribe(self, subscription: Subscription) -> None:
        for queue, pops in self._by_queue.items():
            if queue.topic == subscription.topic:
                pops.subscribe(subscription)

    def last_pull_ms(self, queue: MessageQueue) -> int:
        pops = self._by_queue.get(queue)
        return 0 if pops is None else pops.last_pop_ms

    def is_pulling(self, queue: MessageQueue) -> bool:
        return False  # a pop that waits does not tell of messages that others have

    async def refresh(self, assigned: AssignedQueue) -> None:
        if assigned.lease == RESTING:
            stored = await self._parts.offsets.stored(assigned.queue)
            if stored is not None and assigned.lease == RESTING:
                assigned.regain(RESTING, stored)

    def oldest_poll(self, now_ms: int) -> tuple[int, MessageQueue] | None:
        ages = [(pops.poll_age_ms(now_ms), queue) for queue, pops in self._by_queue.items()]
        return max(((age, queue) for age, queue in ages if age is not None), default=None)

    def refusals(self) -> list[str]:
        return [pops.refusal for pops in self._by_queue.values() if pops.refusal]

    def doubt(self, topic: str) -> None:
        """Nothing: the broker knows where the group is, also in a topic's second life."""

    async def close(self) -> None:
        """End every pop; what brokers still answer is given back, while somebody waits."""
        for pops in list(self._by_queue.values()):
            self._end(pops)
        self._by_queue.clear()
        await self._parts.transport.close(asyncio.gather(*self._late, return_exceptions=True))
