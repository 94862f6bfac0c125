"""Membership of a consumer group: the parts of a started consumer, and what connects them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from ordermq.client.connections import Answer
from ordermq.client.routes import subscribe_queues
from ordermq.client.runtime import NotDoneInTime, Shutdown, cancelled
from ordermq.client.session import ClientSession, SessionEvents
from ordermq.client.user_code import UserCode
from ordermq.clock import Clock
from ordermq.closing import CLOSED_BY_ITSELF, note_closed, note_open
from ordermq.config import (
    ConsumeFromWhere,
    LeaseConfig,
    MessageModel,
    PopConfig,
    PullConfig,
    RebalanceConfig,
    RemotingConfig,
)
from ordermq.consumer.fetch.fetcher import Fetcher
from ordermq.consumer.fetch.message_fetcher import MessageFetcher
from ordermq.consumer.group.admin_requests import AdminRequests, consume_type
from ordermq.consumer.group.queue_control import QueueControl
from ordermq.consumer.group.queue_locks import Locks, NoLocks, QueueLocks
from ordermq.consumer.group.rebalance import QueueOwner, Rebalancer
from ordermq.consumer.group.revocation import Revocation
from ordermq.consumer.group.same_process import forget_member, note_member, place_of
from ordermq.consumer.group.subscriptions import SubscriptionCheck, Subscriptions
from ordermq.consumer.offsets.offset_committer import (
    STORE_ERRORS,
    BrokerOffsets,
    OffsetCommitter,
    OffsetStorage,
)
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueCallbacks, QueueState
from ordermq.consumer.queue.dead_letter_guard import DeadLetterGuard
from ordermq.consumer.queue.receiver import DeliverLater, Loop, Receiver
from ordermq.consumer.queue.statistics import (
    GATHER_MS,
    ConsumerStatistics,
    EventRecorder,
    HeldQueue,
    Lag,
    MemberContext,
)
from ordermq.errors import ConfigError, StateError
from ordermq.events import EventType, Recorder
from ordermq.forking import ProcessBound
from ordermq.leases.lease import Lease
from ordermq.leases.lock_epochs import LocalEpochs, StoredEpochs
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import AUTO_CREATE_TOPIC, INNER_PRODUCER_GROUP, retry_topic, wrapped
from ordermq.model.subscription import Subscription
from ordermq.remoting.bodies import ConsumerData, Heartbeat
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.supervisor import every
from ordermq.threads import RLock
from ordermq.value import Record, Value

if TYPE_CHECKING:
    from ordermq.client.trace import TraceDispatcher
    from ordermq.consumer.offsets.local_offsets import OffsetFile
    from ordermq.consumer.offsets.offset_store import AnyOffsetStore
    from ordermq.consumer.offsets.store_offsets import StoreOffsets
    from ordermq.consumer.pop.parts import PopParts
    from ordermq.health import ConsumerHealth

_log = logging.getLogger("ordermq.consumer")
_IDLE_CHECK_MS = 20
_LAG_TIMEOUT_S = 5.0  # half of a scrape's
_POLLS_MISSED = 2  # times the time-out of a pull
# How long `start` and `subscribe` wait for the first queues. Real time: it bounds a caller's wait.
_FIRST_QUEUES_S = 3.0
_FROM_WHERE = {
    ConsumeFromWhere.LAST_OFFSET: "CONSUME_FROM_LAST_OFFSET",
    ConsumeFromWhere.FIRST_OFFSET: "CONSUME_FROM_FIRST_OFFSET",
    ConsumeFromWhere.TIMESTAMP: "CONSUME_FROM_TIMESTAMP",
}
QueueCallback = Callable[[MessageQueue], object]
TopicCallback = Callable[[str, list[MessageQueue]], object]


class ReceiverParts(Value):
    """The parts of a member that its receiver may use.

    Args: deliver_later: of a member that pops; others send failed messages back to the brokers.
    """

    member: MemberContext
    offsets: OffsetCommitter
    user_code: UserCode
    deliver_later: DeliverLater | None


class MemberSettings(Record, kw_only=True):
    """Everything that differs between the members of one consumer and another.

    Args:
        make_receiver: makes the receiver, which decides what happens to fetched messages.
        pop: lease batches instead of owning queues; None: pull.
        uses_locks: hold queues under queue locks.
        local_offset_store_dir: of a broadcasting member, which keeps its offsets in a file there.
        offset_store: keeps the offsets instead of the brokers; None: the brokers do.
        is_polled: the caller polls, as of a lite pull consumer.
        commits_done, commits_resets: see `OffsetCommitter`.
        drain_timeout_ms: see `Revocation`.
        user_code: where listeners' coroutines and the two callbacks run.
        guard: stops the consumer after too many dead letters.
        traces: gets traces of what is consumed; started and ended with the member.
    """

    group: str
    client_id: str
    name_servers: Sequence[str]
    remoting: RemotingConfig
    pull: PullConfig
    lease: LeaseConfig
    pop: PopConfig | None
    rebalance: RebalanceConfig
    message_model: MessageModel
    subscriptions: Sequence[Subscription]
    make_receiver: Callable[[ReceiverParts], Receiver[Any]]
    uses_locks: bool
    local_offset_store_dir: str
    offset_store: AnyOffsetStore | None
    is_polled: bool
    thread_count: int
    commits_done: bool
    commits_resets: bool
    commit_interval_ms: int
    drain_timeout_ms: int
    on_assigned: QueueCallback | None
    on_revoked: QueueCallback | None
    unused_topic: str | None  # held, but without messages: callbacks do not get its queues
    user_code: UserCode
    traces: TraceDispatcher | None
    clock: Clock
    recorder: Recorder
    statistics: ConsumerStatistics
    guard: DeadLetterGuard


class GroupMember(ProcessBound):
    """One member of a group; `start` and `close` from any thread but the I/O thread.

    Its coroutines run on the I/O thread.
    """

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self._group = group = settings.group
        is_broadcasting = settings.message_model is MessageModel.BROADCASTING
        # Before anything is held that would have to be released: this may raise.
        offset_file = self._open_offsets() if is_broadcasting else None
        self._recorder = EventRecorder(
            settings.recorder, group, partial(settings.statistics.add, "history_errors")
        )
        self._leaving = False
        self._is_started = False
        self._is_start_given_up = False  # changes on the I/O thread
        self._connecting: asyncio.Task[None] | None = None  # within `start`, until it is registered
        self._has_left = False  # by `leave`: no member of the group until `rejoin`
        self._watched: dict[str, tuple[TopicCallback, list[MessageQueue]]] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._callbacks: set[asyncio.Task[None]] = set()
        statistics = settings.statistics
        # Nothing is sent before `start`: the parts that its callbacks use are made below.
        self.client = client = ClientSession(
            settings.name_servers,
            settings.remoting,
            settings.client_id,
            clock=settings.clock,
            describe=self._describe,
            events=SessionEvents(
                on_request=self._on_request,
                on_connection_lost=self._on_connection_lost,
                on_broker_back=self._on_broker_back,
                on_route_change=self._on_route_change,
                on_master_moved=self._on_master_moved,
                on_internal_error=partial(statistics.add, "internal_errors"),
            ),
        )
        self._member = member = MemberContext(client, group, self._recorder, statistics)
        self._fields = member.fields
        self._runtime = client.runtime
        self._shutdown = Shutdown(client.runtime, self._hand_over, is_hurried_by_second=True)
        self._ending = RLock()  # of the parts below; a signal handler may close, too
        self.subscriptions = Subscriptions(client, group, settings.subscriptions)
        # Consumed beside the caller's topics only; None where there is none.
        self._retry = self.subscriptions.of(retry_topic(group))
        at_broker = BrokerOffsets(client, group)
        pop = self._pop_parts()
        self._full_name = wrapped(settings.remoting.namespace, group)
        self._place = place_of(settings.name_servers, self._full_name, settings.client_id)
        self._known_others: set[str] = set()
        # Opened before it joins; None where there is nothing to open.
        self._store: StoreOffsets | None = None
        self.offsets = OffsetCommitter(
            member,
            settings.rebalance,
            self._choose_storage(pop, at_broker, offset_file),
            commits_done=settings.commits_done,
            commits_resets=settings.commits_resets,
            is_transactional=self._store is not None and self._store.is_transactional,
        )
        # Each part is made after the parts it uses; it reaches later ones through callbacks.
        self._receiver = settings.make_receiver(
            ReceiverParts(
                member,
                self.offsets,
                settings.user_code,
                None if pop is None else pop.leases.return_later,
            )
        )
        self._fetcher = self._choose_fetcher(pop)
        self._locks = self._choose_locks(pop, at_broker)
        self._revocation = Revocation(
            member,
            self._locks,
            self.offsets,
            settings.drain_timeout_ms,
            is_leaving=lambda: self._leaving,
        )
        self._rebalancer = Rebalancer(
            member,
            settings.rebalance,
            settings.lease.lock_retry_ms,
            QueueOwner(
                self.subscriptions.topics, self._make_queue, self._on_assigned, self._on_released
            ),
            self._locks,
            self.offsets,
            self._revocation,
            # A queue is whoever's that pops it next, so each member holds all of them.
            takes_all=is_broadcasting or pop is not None,
        )
        statistics.follow(self._rebalancer.assigned)
        self.offsets.follow(self._rebalancer.assigned)
        self.control = QueueControl(
            member,
            self._rebalancer,
            self.offsets,
            submit=self._receiver.submit,
            restart=self._fetcher.restart,
            unpark=self._receiver.unpark,
        )
        settings.guard.follow(self.control.pause_all)
        self._admin_requests = AdminRequests(
            member,
            self._receiver,
            self._fetcher,
            subscriptions=self.subscriptions.all,
            assigned=self._rebalancer.assigned,
            seek=self.control.seek_soon if pop is None else self._move_group,
            consume_type=consume_type(settings.is_polled, pops=pop is not None),
            thread_count=settings.thread_count,
        )
        self._check = SubscriptionCheck(
            member,
            lambda: () if self._rebalancer.assigned_by_user else self.subscriptions.all(),
            is_ordered=self._receiver.is_ordered,
            pops=pop is not None,
        )

    def _pop_parts(self) -> PopParts | None:
        """Make the parts of a member that pops; None: it pulls."""
        settings = self._settings
        if settings.pop is None:
            return None
        from ordermq.consumer.pop.parts import PopParts  # here, as few pop

        return PopParts(
            self._member,
            settings.lease,
            settings.pop,
            held=lambda: self._rebalancer.assigned(),
            end=self._shutdown,
            is_ordered=settings.uses_locks,
            from_first=settings.rebalance.consume_from_where is ConsumeFromWhere.FIRST_OFFSET,
        )

    def _choose_storage(
        self, pop: PopParts | None, at_broker: BrokerOffsets, offset_file: OffsetFile | None
    ) -> OffsetStorage:
        """Make the storage of the offsets, and note the store of the user that it opens, if any."""
        store, user_code = self._settings.offset_store, self._settings.user_code
        if offset_file is not None:
            from ordermq.consumer.offsets.local_offsets import LocalOffsets

            return LocalOffsets(offset_file)
        if pop is not None:
            popped = pop.offsets(at_broker)
            if store is None:
                return popped
            self._store = pop.claims(store, popped, self._full_name, user_code)
            return self._store
        if store is None:
            return at_broker
        from ordermq.consumer.offsets.store_offsets import StoreOffsets

        self._store = StoreOffsets(store, at_broker, self._full_name, self._recorder, user_code)
        return self._store

    def _choose_fetcher(self, pop: PopParts | None) -> MessageFetcher:
        settings = self._settings
        if pop is not None:
            return pop.fetcher(settings.pull, self.offsets, self._receiver, self._before_first)
        return Fetcher(
            self._member,
            settings.pull,
            self.offsets,
            self._receiver,
            before_first=self._before_first,
            begin_life=lambda assigned, first: self.control.begin_life(assigned, first),
        )

    def _choose_locks(self, pop: PopParts | None, at_broker: BrokerOffsets) -> Locks:
        client, lease = self.client, self._settings.lease
        if pop is not None:
            return pop.leases
        if not self._settings.uses_locks:
            return NoLocks(
                held=lambda: self._rebalancer.assigned(),
                on_regained=self._fetcher.restart,
                clock=client.clock,
                retry_ms=lease.lock_retry_ms,
            )
        return QueueLocks(
            self._member,
            lease,
            self.offsets,
            StoredEpochs(client, at_broker) if lease.store_epochs else LocalEpochs(client.clock),
            held=lambda: self._rebalancer.assigned(),
            on_regained=self._fetcher.restart,
        )

    def _open_offsets(self) -> OffsetFile:
        from pathlib import Path  # here, as few are broadcasting

        from ordermq.consumer.offsets.local_offsets import OffsetFile

        settings = self._settings
        folder = Path(settings.local_offset_store_dir).expanduser()
        return OffsetFile(folder / settings.client_id / settings.group / "offsets.json")

    # Joining and leaving; from any thread but the I/O thread.

    def start(self) -> None:
        """Register with the brokers and begin; returns once the first queues are held.

        Their starts are stored by then, so the group has every message that is sent later. Waits
        for neither a broker that is away nor a topic that is not there yet
        (docs/internals/semantics.md#where-a-queue-starts).

        Raises: RouteError: no name server answers. BrokerError: a broker denies access.
        """
        traces = self._settings.traces
        try:
            if traces is not None:
                traces.start()
            self._runtime.call(self._join())
        except BaseException:
            self._runtime.call(self._disconnect())
            self._end(0.0)
            raise
        self._is_started = True
        note_open(self, GroupMember._loss)
        self._warn_of_others()

    def _warn_of_others(self) -> None:
        """Warn of members that share this one's queues and are not known to do so on purpose."""
        topics = self.subscriptions.topics()
        if self._retry is not None:
            topics = [topic for topic in topics if topic != self._retry.topic]
        is_alone = self._settings.message_model is MessageModel.BROADCASTING
        if is_alone or self._rebalancer.assigned_by_user:
            return
        others = set(note_member(self._place, self.client.client_id, topics)) - self._known_others
        if others:
            self._known_others |= others
            _log.warning(
                "group %s: this process has another member of it already, %s: they share the "
                "queues, and each gets a part of the messages. If a notebook's cell has run twice, "
                "close() the first; members that are meant get an instance_name each",
                self._group,
                ", ".join(sorted(others)),
                extra=self._fields(),
            )

    def give_up_start(self) -> None:
        """Have a `start` that waits for servers raise, now or when it comes so far; any thread.

        One that is registered goes on: it is about to hold queues, which `close` hands over.
        """
        with contextlib.suppress(RuntimeError):  # it has raised already, and all has ended
            self._runtime.post(self._give_up_start)

    def _give_up_start(self) -> None:
        self._is_start_given_up = True
        if self._connecting is not None:
            self._connecting.cancel()

    def abandon_start(self) -> None:
        """Leave, if an exception has come behind the start: who got it cannot close this member."""
        if self._is_started:
            self.close(0.0)

    def _loss(self) -> str:
        if not self._rebalancer.held:
            return ""
        when = "their locks expire" if self._locks.are_exclusive else "the broker misses this one"
        return (
            f"the consumer of group {self._group} held queues; another member gets them when "
            f"{when}, and again what was not committed"
        )

    def require_may_close(self) -> None:
        """Raise StateError in a listener or callback of this member, which `close` waits for."""
        if self.is_called_by_itself:
            raise StateError(CLOSED_BY_ITSELF, group=self._group)

    @property
    def is_called_by_itself(self) -> bool:
        """True in a listener or callback of this member, which must not wait for its batches."""
        return self._receiver.calls_from_here() or self._settings.user_code.calls_back_here()

    def close(self, timeout_s: float) -> bool:
        """Leave: unregister, give every queue up, disconnect
        (docs/internals/semantics.md#graceful-shutdown).

        Under queue locks the group is told first, so that the others already wait for the locks:
        each queue moves when its own batch is done, whatever the slowest one does. Without locks
        it is told last: nothing else would keep the others from what is in progress here.

        A second call ends the wait. After an exception, such as a second Ctrl-C, nothing is waited
        for and no lock is renewed any more; a later call finishes what is left.

        Returns: False if a batch or a callback was still in progress after `timeout_s`; likewise
            later.
        """
        note_closed(self)
        try:
            is_in_order = self._shutdown.wait(timeout_s)
            self._end(timeout_s if is_in_order else 0.0)
            return is_in_order
        except BaseException:
            self._shutdown.wait_hurried()  # first: it needs the connections
            self._end(0.0)
            raise

    def hurry_close(self) -> None:
        """End the wait of a `close` that was called, or is about to be; any thread."""
        self._shutdown.hurry()

    async def _hand_over(self, timeout_s: float) -> bool:
        """Give everything up and disconnect; False with batches still in progress."""
        self._leaving = True
        is_in_order = False
        try:
            # Before anything is released: a pass under way would take back what others wait for.
            self._rebalancer.stop_acquiring()
            self.offsets.leave()
            begun_s = time.monotonic()
            if self._locks.are_exclusive:
                # Half: a broker that does not answer must leave time for the queues of the others.
                await self._leave_group(self._shutdown.left_s(0.5))
            left_s = max(timeout_s - (time.monotonic() - begun_s), 0.0)
            is_in_order = await self._shutdown.unless_hurried(
                self._rebalancer.release_all(), left_s
            )
            if self._revocation.unstored:
                _log.error(
                    "group %s: closed without storing the offsets of %d queues, as of %s: the "
                    "offset file cannot be written; their last messages come again",
                    self._group,
                    len(self._revocation.unstored),
                    min(self._revocation.unstored),
                    extra=self._fields(),
                )
            elif not is_in_order:
                # No unlock: the next owner would run messages that a batch here is still at.
                self._report_stuck()
            if not self._locks.are_exclusive:
                await self._leave_group()
        finally:
            # Whatever happened: the locks of a member that goes on renewing them never expire.
            is_called_back = await self._disconnect()
        return is_in_order and is_called_back and not self._revocation.unstored

    async def _leave_group(self, timeout_s: float | None = None) -> None:
        leave = self.client.leave(consumer_group=self._group)
        await self._shutdown.unless_hurried(leave, timeout_s)

    def _report_stuck(self) -> None:
        held = self._rebalancer.assigned()
        # Without locks others may have the queues at once.
        left = (
            "their locks expire at the broker"
            if self._locks.are_exclusive
            else "what is not committed is redelivered"
        )
        if running := ", ".join(str(item.queue) for item in held if item.is_running):
            _log.error(
                "group %s: closing with batches in progress: %s; %s",
                self._group,
                running,
                left,
                extra=self._fields(),
            )
        if waiting := ", ".join(str(item.queue) for item in held if not item.is_running):
            # No fault of a listener: the commit or the unlock got no answer, or nobody waits.
            _log.error(
                "group %s: closing without handing over %s: %s; %s",
                self._group,
                waiting,
                "a second close() or signal ended the wait"
                if self._shutdown.is_hurried
                else "the brokers did not answer in time",
                left,
                extra=self._fields(),
            )

    async def _join(self) -> None:
        if self._is_start_given_up:
            raise asyncio.CancelledError
        self._connecting = asyncio.current_task()
        try:
            await self._register()
        finally:
            self._connecting = None
        await self._begin()

    async def _register(self) -> None:
        client, retry = self.client, retry_topic(self._group)
        if self._store is not None:
            await self._store.open()
        # The caller's own topics first: an error names one of them.
        await client.routes.get_all(
            sorted(self.subscriptions.topics(), key=lambda topic: topic == retry)
        )
        if not client.routes.masters():
            # No topic exists yet. The brokers that will create it are known by this one, and
            # members that know each other share the queues from the first message on.
            await client.routes.get(AUTO_CREATE_TOPIC)
        await self.subscriptions.check()
        await client.heartbeats.register()
        if self.subscriptions.of(retry) is not None:
            # The heartbeat created it at the broker; now its route exists.
            await client.routes.get(retry)

    async def _begin(self) -> None:
        client, settings = self.client, self._settings
        # Heartbeats from here on: the first one was just sent, and a broker expires members only
        # after several intervals.
        client.start_loops()
        commit = partial(self.offsets.commit_periodically, self._rebalancer.held.values)
        loops: list[Loop] = [
            ("rebalance", self._rebalancer.round),
            ("subscription check", self._check.round),
            ("commits", every(client.clock, settings.commit_interval_ms, commit)),
            ("counts", every(client.clock, GATHER_MS, self._gather_counts)),
            *self._receiver.loops(self._rebalancer.assigned),
        ]
        start = client.supervisor.start
        self._loops = [start(kind, round, self._group) for kind, round in loops]
        # Locks of another broker, which answers well, must be renewed in time all the same.
        longest_ms = settings.lease.lock_retry_ms
        self._loops.append(
            start("locks", self._locks.round, self._group, longest_pause_ms=longest_ms)
        )
        await self._take_first(self.subscriptions.topics())

    async def _take_first(self, topics: Iterable[str]) -> None:
        """Return when the first queues of topics are held, or it took too long."""
        await self._rebalancer.settled(_FIRST_QUEUES_S)
        self.offsets.rule.settle(topics)

    async def _gather_counts(self) -> None:
        self._settings.statistics.gather()

    async def _disconnect(self) -> bool:
        """Disconnect; False if callbacks of the user still run."""
        # The connections last: the user's `on_revoked` may still ask the brokers something.
        # The loops first: a pass under way may still begin to give a queue up.
        await cancelled(*self._loops)
        await self._rebalancer.abandon()
        await self._fetcher.close()
        callbacks = asyncio.gather(*self._callbacks, return_exceptions=True)
        is_called_back = await self._shutdown.unless_hurried(callbacks)
        if not is_called_back:
            _log.error(
                "group %s: closed while a callback (on_revoked or the like) still runs; it is not "
                "waited for any more",
                self._group,
                extra=self._fields(),
            )
        await self.client.disconnect()
        if (traces := self._settings.traces) is not None:
            await self._shutdown.unless_hurried(traces.flush())
            await traces.end()
        return is_called_back

    def _end(self, timeout_s: float) -> None:
        # Each may be called again, so that a later `close` finishes an interrupted one.
        forget_member(self._place, self.client.client_id)
        with self._ending:
            self._receiver.close(timeout_s)
            self._recorder.close()
            self.offsets.close()
            self.client.close()

    # While it runs.

    async def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """Share topics with the group, or change their expressions; what is buffered stays.

        The brokers hear of it before a pull uses it, or they would refuse that.

        Raises: RouteError: no name server answers. BrokerError: a broker denies access, or does
            not filter by SQL.
        """
        for subscription in subscriptions:
            if self.subscriptions.of(subscription.topic) is None:
                self.offsets.rule.subscribed(subscription.topic)
        if self._retry is not None and self.subscriptions.of(self._retry.topic) is None:
            subscriptions = [*subscriptions, self._retry]
        await self.subscriptions.put(subscriptions)
        # `register`, not `beat`: a topic's own brokers may be new, and may deny this account.
        await self.client.heartbeats.register()
        for subscription in subscriptions:
            self._fetcher.subscribe(subscription)
        self._check.wake()
        await self._take_first([subscription.topic for subscription in subscriptions])
        self._warn_of_others()

    async def unsubscribe(self, topic: str, *, waits_for_batches: bool) -> None:
        """Give the queues of a topic up, then tell the brokers
        (docs/internals/semantics.md#rebalance).

        Without a topic the member leaves the group: the others would keep a share for it.
        """
        self.subscriptions.remove(topic)
        if self._retry is not None and self.subscriptions.topics() == [self._retry.topic]:
            self.subscriptions.remove(self._retry.topic)
        await (
            self._rebalancer.released(topic)
            if waits_for_batches
            else self._rebalancer.rebalance_now()
        )
        if self.subscriptions.topics():
            await self.client.heartbeats.beat()
        else:
            await self.client.unregister(consumer_group=self._group)

    async def assign(
        self, queues: Collection[MessageQueue], subscriptions: Sequence[Subscription]
    ) -> None:
        """Hold exactly these queues, whatever the group's other members do.

        Raises: RouteError: no broker has a topic. ConfigError: a topic has no such queue.
            BrokerError: a broker does not filter by SQL.
        """
        for queue in queues:
            if queue not in await self.client.queues(queue.topic):
                raise ConfigError(f"{queue}: the topic has no such queue", topic=queue.topic)
        before = self.subscriptions.topics()
        await self.subscriptions.put(subscriptions)
        # No await from here on: a pass in between would share the topics with the group.
        for topic in set(before) - {item.topic for item in subscriptions}:
            self.subscriptions.remove(topic)
        self._rebalancer.assigned_by_user = frozenset(queues)
        for subscription in subscriptions:
            self.offsets.rule.subscribed(subscription.topic)
            self._fetcher.subscribe(subscription)
        await self._rebalancer.rebalance_now()
        self.offsets.rule.settle(item.topic for item in subscriptions)

    async def rebalance_now(self) -> None:
        """Return with the present share of the topics, as far as the brokers grant it now."""
        await self._rebalancer.rebalance_now()

    def health(self) -> ConsumerHealth:
        """Return the member's health at this moment; on the I/O thread."""
        from ordermq.health import ConsumerHealth

        base, now_ms = self.client.health(), self.client.clock.now_ms()
        held = self._rebalancer.assigned()
        locks = [item.lease for item in held if item.lease is not None and item.lease.is_lock]
        lost = [item for item in held if item.lease is None and item.state is QueueState.ACTIVE]
        reasons = list(base.reasons)
        if lost:
            reasons.append(
                f"{len(lost)} of {len(held)} queues have no valid lease, as {lost[0].queue}; they "
                "are asked for again"
            )
        if self._rebalancer.membership.problem:
            reasons.append(f"group {self._group}: {self._rebalancer.membership.problem}")
        if self._check.problem:
            reasons.append(self._check.problem)
        if self._settings.guard.reason:
            reasons.append(self._settings.guard.reason)
        if self._locks.refusals:
            reasons.append(f"lock requests are refused: {min(self._locks.refusals.values())}")
        reasons += self._rebalancer.lost_topics()
        if problems := self._rebalancer.problems():
            reasons.append(f"{len(problems)} queues cannot be held: {problems[0]}")
        if unread := [item for item in held if item.bad_answer_at >= 0]:
            reasons.append(
                f"{len(unread)} queues cannot be read, as {unread[0].queue}: {unread[0].bad_answer}"
            )
        if refusals := self._fetcher.refusals():
            reasons.append(f"pulls of {len(refusals)} queues are refused: {min(refusals)}")
        if refusals := self.offsets.refused_commits:
            reasons.append(f"commits of {len(refusals)} queues are refused: {min(refusals)}")
        reasons += self._member.refusals.reasons(held)
        age_ms, oldest = self._fetcher.oldest_poll(now_ms) or (None, None)
        if age_ms is not None and age_ms > _POLLS_MISSED * self._settings.pull.pull_timeout_ms:
            reasons.append(f"{oldest} has not been polled for {age_ms / 1_000:.0f} s")
        blocked = self._settings.statistics.blocked()
        common = {each.name: getattr(base, each.name) for each in fields(base)}
        return ConsumerHealth(
            **common | {"is_ready": base.is_alive and not reasons, "reasons": tuple(reasons)},
            queues=tuple(str(item.queue) for item in held),
            lease_left_ms=min((lock.deadline_ms - now_ms for lock in locks), default=None),
            poll_age_ms=age_ms,
            oldest_poll=None if oldest is None else str(oldest),
            blocked_ms=now_ms - blocked[0].since_ms if blocked else None,
            oldest_blocked=str(blocked[0].queue) if blocked else None,
        )

    def assigned_queues(self, *, with_draining: bool) -> list[MessageQueue]:
        """Return the queues this member may work now, sorted; any thread."""
        return [
            item.queue
            for item in self._rebalancer.assigned()
            if item.lease and (with_draining or item.state is QueueState.ACTIVE)
        ]

    def held_queues(self) -> list[HeldQueue]:
        """Return the state of each held queue, sorted; any thread."""
        now_ms = self.client.clock.now_ms()
        return [_state_of(item, now_ms) for item in self._rebalancer.assigned()]

    def ask_lag(self) -> dict[MessageQueue, Lag]:
        """Return `lag()`, or what was known before if it cannot be had; from any other thread."""
        self.client.runtime.require_other_thread()
        try:
            return self.client.call(self.lag(), _LAG_TIMEOUT_S)
        except (NotDoneInTime, CancelledError, StateError):  # the thread has just ended
            pass
        wall_ms = self.client.clock.wall_ms()
        return {item.queue: _lag_of(item, wall_ms, False) for item in self._rebalancer.assigned()}

    async def lag(self) -> dict[MessageQueue, Lag]:
        """Return the lag of each held queue; its broker is asked where no pull waits for it."""
        held = self._rebalancer.assigned()
        # A broker answers a waiting pull as soon as there is a message. One whose buffer is full,
        # or whose broker is away, is not pulled: its last answer may be old.
        resting = [item for item in held if not self._fetcher.is_pulling(item.queue)]
        answers = await asyncio.gather(*(self._ask_end(item) for item in resting))
        unknown = {item for item, answer in zip(resting, answers, strict=True) if not answer}
        wall_ms = self.client.clock.wall_ms()
        return {item.queue: _lag_of(item, wall_ms, item not in unknown) for item in held}

    async def _ask_end(self, assigned: AssignedQueue) -> bool:
        """Ask for the end of a queue; False if its broker does not answer."""
        queue = assigned.queue
        try:
            address = self.client.routes.master_of(queue.broker_name)
            end = await self.client.api.max_offset(address, queue)
            await self._fetcher.refresh(assigned)
        except STORE_ERRORS:
            return False  # told to the caller; the loops that need this broker log it
        # A pull may have been answered meanwhile.
        assigned.max_offset = max(assigned.max_offset, end)
        return True

    def _move_group(self, assigned: AssignedQueue, offset: int) -> None:
        """Let a group that pops continue from an admin's offset: whoever has a batch drops it."""
        assigned.lose_lease("an admin reset the group's offset")
        self._runtime.spawn(self._store_reset(assigned.queue, offset), f"reset {assigned.queue}")

    async def _store_reset(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self.offsets.store_reset(queue, offset)
        except STORE_ERRORS as error:
            _log.warning(
                "%s: the reset to offset %d is not stored: %s",
                queue,
                offset,
                error,
                extra=self._fields(queue, offset=offset),
            )

    async def watch_topic(self, topic: str, callback: TopicCallback) -> None:
        """Call back whenever the topic's queues differ from those known before."""
        route = await self.client.routes.get(topic)
        self._watched[topic] = callback, subscribe_queues(topic, route) if route else []

    def resize(self, threads: int) -> None:
        """Set the maximum number of concurrent listener calls."""
        self._receiver.resize(threads)
        self._admin_requests.thread_count = threads

    def resume(self, queues: Sequence[MessageQueue] | None) -> None:
        """End the pauses of these queues, or of all, and the stop of the consumer.

        Raises: StateError: one is not assigned; none is resumed.
        """
        control, guard = self.control, self._settings.guard

        async def work() -> None:
            if queues is not None:
                control.resume_held(queues)
            guard.resume(self.client.clock.now_ms())
            if queues is None:
                control.resume_all()

        self._runtime.call(work())

    def leave(self) -> None:
        """Give every queue up and leave the group's member list, until `rejoin`."""
        self._runtime.complete(self._leave)

    def rejoin(self) -> None:
        """End `leave`; nothing happens without one."""
        if self._has_left:
            self._runtime.complete(self._rejoin)

    # `_has_left` changes together with the rebalancer, on the I/O thread: a caller that is
    # interrupted has either done both or neither, and may call again.
    async def _leave(self) -> None:
        self._has_left = True
        self._rebalancer.leave()
        self._runtime.spawn(self._unregister_when_idle(), f"leave {self._group}")

    async def _unregister_when_idle(self) -> None:
        # As in `close`: with locks first, without them last.
        while not self._locks.are_exclusive and self._rebalancer.assigned():
            await self.client.clock.sleep_ms(_IDLE_CHECK_MS)
        if self._has_left and not self._leaving:
            await self.client.unregister(consumer_group=self._group)

    async def _rejoin(self) -> None:
        self._has_left = False
        self._rebalancer.rejoin()
        await self.client.heartbeats.beat()
        # Again: a pass before the heartbeat found a member list without this member.
        self._rebalancer.wake()

    # Notifications of the parts; on the I/O thread unless noted otherwise.

    def _describe(self) -> Heartbeat:
        settings, subscriptions = self._settings, self.subscriptions.all()
        data = ConsumerData(
            self._group,
            subscriptions,
            consume_type=consume_type(settings.is_polled, pops=settings.pop is not None),
            message_model=settings.message_model.name,
            consume_from_where=_FROM_WHERE[settings.rebalance.consume_from_where],
        )
        # Other members reserve queues for every listed member, so a member that takes none must not
        # be listed.
        shares = (
            bool(subscriptions)
            and not self._rebalancer.assigned_by_user
            and not self._has_left
            and not self._rebalancer.membership.has_stepped_down
        )
        return Heartbeat(self.client.client_id, (data,) * shares, (INNER_PRODUCER_GROUP,))

    def _on_request(self, address: str, command: Command) -> Answer:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._rebalancer.wake()
            self._check.wake()
            return command.reply(ResponseCode.SUCCESS)
        return self._admin_requests.answer(command)

    def _on_connection_lost(self, address: str) -> None:
        self._locks.connection_lost(address)

    def _on_master_moved(self, broker_name: str) -> None:
        self._locks.master_moved(broker_name)

    def _on_broker_back(self) -> None:
        # Locks first: their leases were running out while the broker was away.
        self._locks.renew_soon()
        self._rebalancer.wake()
        self._fetcher.wake_all()

    def _on_route_change(self, topic: str) -> None:
        self._rebalancer.wake()
        self._fetcher.doubt(topic)
        callback, known = self._watched.get(topic, (None, None))
        route = self.client.routes.known(topic)
        queues = subscribe_queues(topic, route) if route else []
        if callback is not None and queues != known:
            self._watched[topic] = callback, queues
            self._spawn_callback(callback, topic, list(queues))

    def _make_queue(self, queue: MessageQueue, lease: Lease, offset: int) -> AssignedQueue:
        callbacks = QueueCallbacks(
            on_lease_lost=self._on_lease_lost,
            on_drained=partial(self._runtime.post, self._revocation.on_drained),
            on_room=partial(self._runtime.post, self._fetcher.wake),
            on_idle=self.offsets.note_idle,
        )
        made: AssignedQueue = self._receiver.make_queue(queue, lease, offset, callbacks)
        return made

    def _on_lease_lost(self, assigned: AssignedQueue, reason: str) -> None:
        # Any thread, and between two batches of a listener: no request is made here. The history
        # first: the log may take its time, and the I/O thread regain the queue meanwhile.
        self._recorder.record(EventType.LOCK_LOST, assigned.queue, detail=reason)
        self._admin_requests.on_lease_lost(assigned.queue)
        self._settings.statistics.add("leases_lost", queue=assigned.queue)
        _log.warning(
            "%s: lease lost, %s; asking for it again",
            assigned.queue,
            reason,
            extra=self._fields(assigned.queue),
        )
        self._runtime.post(self._locks.renew_soon)

    def _on_assigned(self, assigned: AssignedQueue) -> None:
        self.control.on_assigned(assigned)
        subscription = self.subscriptions.of(assigned.queue.topic)
        assert subscription is not None  # the rebalancer has just looked
        self._fetcher.begin(assigned, subscription)

    def _on_released(self, assigned: AssignedQueue) -> None:
        self._fetcher.end(assigned)
        # Not awaited: the next owner has the lock already, and a slow callback delays nobody.
        if assigned.queue.topic != self._settings.unused_topic:
            self._spawn_callback(self._settings.on_revoked, assigned.queue)

    async def _before_first(self, queue: MessageQueue) -> None:
        if queue.topic != self._settings.unused_topic:
            await self._call_back(self._settings.on_assigned, queue)

    def _spawn_callback(self, callback: Callable[..., object] | None, *arguments: object) -> None:
        name = f"callback of {self._group}"
        task = self._runtime.spawn(self._call_back(callback, *arguments), name)
        self._callbacks.add(task)
        task.add_done_callback(self._callbacks.discard)

    async def _call_back(self, callback: Callable[..., object] | None, *arguments: object) -> None:
        """Call the user, off this thread; what it raises is logged, the queue goes on."""
        if callback is None:
            return
        try:
            await self._settings.user_code.call_back(callback, *arguments)
        except asyncio.CancelledError:
            raise
        # Also sys.exit(), which would end the I/O thread's loop.
        except BaseException:  # noqa: BLE001 - the user's; logged and counted
            self._settings.statistics.add("callback_errors")
            _log.exception(
                "%s: callback %r raised",
                arguments[0],
                callback,
                extra=self._fields(),
            )


def _state_of(assigned: AssignedQueue, now_ms: int) -> HeldQueue:
    lease, buffered = assigned.lease, assigned.process_queue
    left_ms: int | None = 0
    if lease is not None:
        left_ms = max(lease.deadline_ms - now_ms, 0) if lease.is_lock else None
    return HeldQueue(
        queue=assigned.queue,
        buffered_messages=buffered.message_count,
        buffered_bytes=buffered.size_bytes,
        lease_left_ms=left_ms,
        is_paused=assigned.is_paused,
        parked_keys=len(assigned.parked_keys()),
    )


def _lag_of(assigned: AssignedQueue, wall_ms: int, is_current: bool) -> Lag:
    messages = assigned.behind
    if not messages:
        return Lag(0, 0.0, is_current)
    stored_ms = assigned.oldest_stored_ms()
    # The broker's clock may be ahead of this machine's.
    seconds = None if stored_ms is None else max(wall_ms - stored_ms, 0) / 1_000
    return Lag(messages, seconds, is_current)
