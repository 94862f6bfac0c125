"""MemberParts: the parts of a member of a group, made and connected."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ordermq.client.connections import Answer
from ordermq.client.routes import subscribe_queues
from ordermq.client.runtime import Shutdown
from ordermq.client.session import ClientSession, SessionEvents
from ordermq.client.user_code import QueueCallback, TopicCallback, UserCode
from ordermq.clock import Clock
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
from ordermq.consumer.group.subscriptions import SubscriptionCheck, Subscriptions
from ordermq.consumer.offsets.offset_committer import (
    STORE_ERRORS,
    BrokerOffsets,
    OffsetCommitter,
    OffsetStorage,
)
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueCallbacks
from ordermq.consumer.queue.dead_letter_guard import DeadLetterGuard
from ordermq.consumer.queue.receiver import DeliverLater, Loop, Receiver
from ordermq.consumer.queue.statistics import (
    GATHER_MS,
    ConsumerStatistics,
    EventRecorder,
    MemberContext,
)
from ordermq.events import EventType, Recorder
from ordermq.leases.lease import Lease
from ordermq.leases.lock_epochs import LocalEpochs, StoredEpochs
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import INNER_PRODUCER_GROUP, retry_topic, wrapped
from ordermq.model.subscription import Subscription
from ordermq.remoting.bodies import ConsumerData, Heartbeat
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.supervisor import every
from ordermq.value import Record, Value

if TYPE_CHECKING:
    from ordermq.client.trace import TraceDispatcher
    from ordermq.consumer.offsets.local_offsets import OffsetFile
    from ordermq.consumer.offsets.offset_store import AnyOffsetStore
    from ordermq.consumer.offsets.store_offsets import StoreOffsets
    from ordermq.consumer.pop.parts import PopParts

_log = logging.getLogger("ordermq.consumer")
_FROM_WHERE = {
    ConsumeFromWhere.LAST_OFFSET: "CONSUME_FROM_LAST_OFFSET",
    ConsumeFromWhere.FIRST_OFFSET: "CONSUME_FROM_FIRST_OFFSET",
    ConsumeFromWhere.TIMESTAMP: "CONSUME_FROM_TIMESTAMP",
}


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


class MemberParts:
    """The parts of one member, each made after those it uses; it reaches later ones by callbacks.

    Whoever has them starts and ends them: `GroupMember`.

    Args:
        hand_over: ends the member within a time, in seconds; see `Shutdown`.
    Attributes:
        retry: the retry topic, consumed beside the caller's topics only; None where there is none.
        store: opened before the member joins; None where there is nothing to open.
        is_leaving: the member is being closed. Set by it, on the I/O thread.
        has_left: it is no member of the group, until `rejoin`; likewise.
    """

    def __init__(
        self, settings: MemberSettings, hand_over: Callable[[float], Coroutine[Any, Any, bool]]
    ) -> None:
        self.settings = settings
        self._group = group = settings.group
        is_broadcasting = settings.message_model is MessageModel.BROADCASTING
        # Before anything is held that would have to be released: this may raise.
        offset_file = self._open_offsets() if is_broadcasting else None
        statistics = settings.statistics
        self.recorder = EventRecorder(
            settings.recorder, group, partial(statistics.add, "history_errors")
        )
        self.is_leaving = False
        self.has_left = False
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
        self.member = member = MemberContext(client, group, self.recorder, statistics)
        self._fields = member.fields
        self._runtime = client.runtime
        self.shutdown = Shutdown(client.runtime, hand_over, is_hurried_by_second=True)
        self.callbacks = UserCallbacks(member, settings)
        self.subscriptions = Subscriptions(client, group, settings.subscriptions)
        self.retry = self.subscriptions.of(retry_topic(group))
        at_broker = BrokerOffsets(client, group)
        pop = self._pop_parts()
        self.store: StoreOffsets | None = None
        self.offsets = OffsetCommitter(
            member,
            settings.rebalance,
            self._choose_storage(pop, at_broker, offset_file),
            commits_done=settings.commits_done,
            commits_resets=settings.commits_resets,
            is_transactional=self.store is not None and self.store.is_transactional,
        )
        self.receiver = settings.make_receiver(
            ReceiverParts(
                member,
                self.offsets,
                settings.user_code,
                None if pop is None else pop.leases.return_later,
            )
        )
        self.fetcher = self._choose_fetcher(pop)
        self.locks = self._choose_locks(pop, at_broker)
        self.revocation = Revocation(
            member,
            self.locks,
            self.offsets,
            settings.drain_timeout_ms,
            is_leaving=lambda: self.is_leaving,
        )
        self.rebalancer = Rebalancer(
            member,
            settings.rebalance,
            settings.lease.lock_retry_ms,
            QueueOwner(
                self.subscriptions.topics, self._make_queue, self._on_assigned, self._on_released
            ),
            self.locks,
            self.offsets,
            self.revocation,
            # A queue is whoever's that pops it next, so each member holds all of them.
            takes_all=is_broadcasting or pop is not None,
        )
        statistics.follow(self.rebalancer.assigned)
        self.offsets.follow(self.rebalancer.assigned)
        self.control = QueueControl(
            member,
            self.rebalancer,
            self.offsets,
            submit=self.receiver.submit,
            restart=self.fetcher.restart,
            unpark=self.receiver.unpark,
        )
        settings.guard.follow(self.control.pause_all)
        self.admin_requests = AdminRequests(
            member,
            self.receiver,
            self.fetcher,
            subscriptions=self.subscriptions.all,
            assigned=self.rebalancer.assigned,
            seek=self.control.seek_soon if pop is None else self._move_group,
            consume_type=consume_type(settings.is_polled, pops=pop is not None),
            thread_count=settings.thread_count,
        )
        self.check = SubscriptionCheck(
            member,
            lambda: () if self.rebalancer.assigned_by_user else self.subscriptions.all(),
            is_ordered=self.receiver.is_ordered,
            pops=pop is not None,
        )

    def _pop_parts(self) -> PopParts | None:
        """Make the parts of a member that pops; None: it pulls."""
        settings = self.settings
        if settings.pop is None:
            return None
        from ordermq.consumer.pop.parts import PopParts  # here, as few pop

        return PopParts(
            self.member,
            settings.lease,
            settings.pop,
            held=lambda: self.rebalancer.assigned(),
            end=self.shutdown,
            is_ordered=settings.uses_locks,
            from_first=settings.rebalance.consume_from_where is ConsumeFromWhere.FIRST_OFFSET,
        )

    def _choose_storage(
        self, pop: PopParts | None, at_broker: BrokerOffsets, offset_file: OffsetFile | None
    ) -> OffsetStorage:
        """Make the storage of the offsets, and note the store of the user that it opens, if any."""
        store, user_code = self.settings.offset_store, self.settings.user_code
        full_name = wrapped(self.settings.remoting.namespace, self._group)
        if offset_file is not None:
            from ordermq.consumer.offsets.local_offsets import LocalOffsets

            return LocalOffsets(offset_file)
        if pop is not None:
            popped = pop.offsets(at_broker)
            if store is None:
                return popped
            self.store = pop.claims(store, popped, full_name, user_code)
            return self.store
        if store is None:
            return at_broker
        from ordermq.consumer.offsets.store_offsets import StoreOffsets

        self.store = StoreOffsets(store, at_broker, full_name, self.recorder, user_code)
        return self.store

    def _choose_fetcher(self, pop: PopParts | None) -> MessageFetcher:
        settings = self.settings
        if pop is not None:
            return pop.fetcher(
                settings.pull, self.offsets, self.receiver, self.callbacks.queue_assigned
            )
        return Fetcher(
            self.member,
            settings.pull,
            self.offsets,
            self.receiver,
            before_first=self.callbacks.queue_assigned,
            begin_life=lambda assigned, first: self.control.begin_life(assigned, first),
        )

    def _choose_locks(self, pop: PopParts | None, at_broker: BrokerOffsets) -> Locks:
        client, lease = self.client, self.settings.lease
        if pop is not None:
            return pop.leases
        if not self.settings.uses_locks:
            return NoLocks(
                held=lambda: self.rebalancer.assigned(),
                on_regained=self.fetcher.restart,
                clock=client.clock,
                retry_ms=lease.lock_retry_ms,
            )
        return QueueLocks(
            self.member,
            lease,
            self.offsets,
            StoredEpochs(client, at_broker) if lease.store_epochs else LocalEpochs(client.clock),
            held=lambda: self.rebalancer.assigned(),
            on_regained=self.fetcher.restart,
        )

    def _open_offsets(self) -> OffsetFile:
        from pathlib import Path  # here, as few are broadcasting

        from ordermq.consumer.offsets.local_offsets import OffsetFile

        settings = self.settings
        folder = Path(settings.local_offset_store_dir).expanduser()
        return OffsetFile(folder / settings.client_id / settings.group / "offsets.json")

    def start_loops(self) -> list[asyncio.Task[None]]:
        """Start what the parts repeat while the member is in the group; return the tasks."""
        clock, settings = self.client.clock, self.settings
        commit = partial(self.offsets.commit_periodically, self.rebalancer.held.values)
        loops: list[Loop] = [
            ("rebalance", self.rebalancer.round),
            ("subscription check", self.check.round),
            ("commits", every(clock, settings.commit_interval_ms, commit)),
            ("counts", every(clock, GATHER_MS, self._gather_counts)),
            *self.receiver.loops(self.rebalancer.assigned),
        ]
        start = self.client.supervisor.start
        started = [start(kind, round, self._group) for kind, round in loops]
        # Locks of another broker, which answers well, must be renewed in time all the same.
        longest_ms = settings.lease.lock_retry_ms
        started.append(start("locks", self.locks.round, self._group, longest_pause_ms=longest_ms))
        return started

    async def _gather_counts(self) -> None:
        self.settings.statistics.gather()

    # Notifications of the session; on the I/O thread.

    def _describe(self) -> Heartbeat:
        settings, subscriptions = self.settings, self.subscriptions.all()
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
            and not self.rebalancer.assigned_by_user
            and not self.has_left
            and not self.rebalancer.membership.has_stepped_down
        )
        return Heartbeat(self.client.client_id, (data,) * shares, (INNER_PRODUCER_GROUP,))

    def _on_request(self, address: str, command: Command) -> Answer:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self.rebalancer.wake()
            self.check.wake()
            return command.reply(ResponseCode.SUCCESS)
        return self.admin_requests.answer(command)

    def _on_connection_lost(self, address: str) -> None:
        self.locks.connection_lost(address)

    def _on_master_moved(self, broker_name: str) -> None:
        self.locks.master_moved(broker_name)

    def _on_broker_back(self) -> None:
        # Locks first: their leases were running out while the broker was away.
        self.locks.renew_soon()
        self.rebalancer.wake()
        self.fetcher.wake_all()

    def _on_route_change(self, topic: str) -> None:
        self.rebalancer.wake()
        self.fetcher.doubt(topic)
        self.callbacks.topic_changed(topic)

    # Notifications of the parts; on the I/O thread unless noted otherwise.

    def _make_queue(self, queue: MessageQueue, lease: Lease, offset: int) -> AssignedQueue:
        callbacks = QueueCallbacks(
            on_lease_lost=self._on_lease_lost,
            on_drained=partial(self._runtime.post, self.revocation.on_drained),
            on_room=partial(self._runtime.post, self.fetcher.wake),
            on_idle=self.offsets.note_idle,
        )
        made: AssignedQueue = self.receiver.make_queue(queue, lease, offset, callbacks)
        return made

    def _on_lease_lost(self, assigned: AssignedQueue, reason: str) -> None:
        # Any thread, and between two batches of a listener: no request is made here. The history
        # first: the log may take its time, and the I/O thread regain the queue meanwhile.
        self.recorder.record(EventType.LOCK_LOST, assigned.queue, detail=reason)
        self.admin_requests.on_lease_lost(assigned.queue)
        self.settings.statistics.add("leases_lost", queue=assigned.queue)
        _log.warning(
            "%s: lease lost, %s; asking for it again",
            assigned.queue,
            reason,
            extra=self._fields(assigned.queue),
        )
        self._runtime.post(self.locks.renew_soon)

    def _on_assigned(self, assigned: AssignedQueue) -> None:
        self.control.on_assigned(assigned)
        subscription = self.subscriptions.of(assigned.queue.topic)
        assert subscription is not None  # the rebalancer has just looked
        self.fetcher.begin(assigned, subscription)

    def _on_released(self, assigned: AssignedQueue) -> None:
        self.fetcher.end(assigned)
        self.callbacks.queue_released(assigned.queue)

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


class UserCallbacks:
    """The user's callbacks about queues and topics; asked for on the I/O thread, called off it.

    An exception that one raises is logged and counted, and nothing else follows from it.
    """

    def __init__(self, member: MemberContext, settings: MemberSettings) -> None:
        self._member = member
        self._settings = settings
        self._routes = member.client.routes
        self._watched: dict[str, tuple[TopicCallback, list[MessageQueue]]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def queue_assigned(self, queue: MessageQueue) -> None:
        """Return when `on_assigned` has, before the first message of the queue."""
        if queue.topic != self._settings.unused_topic:
            await self._call(self._settings.on_assigned, queue)

    def queue_released(self, queue: MessageQueue) -> None:
        """Call `on_revoked`; nobody waits for it."""
        # The next owner has the lock already, and a slow callback delays nobody.
        if queue.topic != self._settings.unused_topic:
            self._spawn(self._settings.on_revoked, queue)

    async def watch_topic(self, topic: str, callback: TopicCallback) -> None:
        """Call back whenever the topic's queues differ from those known before."""
        route = await self._routes.get(topic)
        self._watched[topic] = callback, subscribe_queues(topic, route) if route else []

    def topic_changed(self, topic: str) -> None:
        """Look at the queues of a topic whose route has changed."""
        callback, known = self._watched.get(topic, (None, None))
        route = self._routes.known(topic)
        queues = subscribe_queues(topic, route) if route else []
        if callback is not None and queues != known:
            self._watched[topic] = callback, queues
            self._spawn(callback, topic, list(queues))

    def ended(self) -> Awaitable[object]:
        """Await the end of those that run now and that nobody else waits for."""
        return asyncio.gather(*self._running, return_exceptions=True)

    def _spawn(self, callback: Callable[..., object] | None, *arguments: object) -> None:
        name = f"callback of {self._member.group}"
        task = self._member.client.runtime.spawn(self._call(callback, *arguments), name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _call(self, callback: Callable[..., object] | None, *arguments: object) -> None:
        if callback is None:
            return
        try:
            await self._settings.user_code.call_back(callback, *arguments)
        except asyncio.CancelledError:
            raise
        # Also sys.exit(), which would end the I/O thread's loop.
        except BaseException:  # noqa: BLE001 - the user's; logged and counted
            self._member.statistics.add("callback_errors")
            _log.exception(
                "%s: callback %r raised",
                arguments[0],
                callback,
                extra=self._member.fields(),
            )
