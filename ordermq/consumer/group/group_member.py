"""A live membership of a group: the parts of a started consumer and what happens between them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any

from ordermq.client.connections import Answer
from ordermq.client.runtime import cancelled, repeat
from ordermq.client.session import ClientSession
from ordermq.config import ConsumeFromWhere
from ordermq.consumer.agreement import Agreement
from ordermq.consumer.dispatch.concurrent import ConcurrentDispatcher
from ordermq.consumer.dispatch.key_ordered import KeyOrderedDispatcher
from ordermq.consumer.dispatch.orderly import OrderlyDispatcher
from ordermq.consumer.group.queue_control import Steering
from ordermq.consumer.group.queue_locks import Locks
from ordermq.consumer.group.rebalance import Rebalancer
from ordermq.consumer.group.revocation import HandOff
from ordermq.consumer.group.subscriptions import Subscriptions
from ordermq.consumer.inquiries import Inquiries
from ordermq.consumer.member_settings import MemberSettings
from ordermq.consumer.offsets.local_offsets import LocalOffsets
from ordermq.consumer.offsets.offset_store import Offsets
from ordermq.consumer.pullers import Pullers
from ordermq.consumer.queue.assigned_queue import AssignedQueue, Lease, QueueCallbacks
from ordermq.consumer.queue.event_recorder import EventRecorder
from ordermq.consumer.queue.receiver import Loop, Receiver
from ordermq.consumer.unlocked import Unlocked
from ordermq.events import EventType
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import AUTO_CREATE_TOPIC, retry_topic
from ordermq.remoting.bodies import ConsumerData, Heartbeat
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command

_log = logging.getLogger("ordermq.consumer")
_COMMIT_LOOP_MIN_MS = 100  # with commit_interval_ms=0 the loop only repeats failed commits
_RESTART_DELAY_MS = 1_000
_IDLE_CHECK_MS = 20
_FROM_WHERE = {
    ConsumeFromWhere.LAST_OFFSET: "CONSUME_FROM_LAST_OFFSET",
    ConsumeFromWhere.FIRST_OFFSET: "CONSUME_FROM_FIRST_OFFSET",
    ConsumeFromWhere.TIMESTAMP: "CONSUME_FROM_TIMESTAMP",
}


def _receiver_for(
    settings: MemberSettings,
    client: ClientSession,
    offsets: Offsets | LocalOffsets,
    history: EventRecorder,
) -> Receiver[Any]:
    """Make the receiver of the member's listener; the only place that asks for its kind."""
    config = settings.config.consume
    if settings.concurrent_listener is not None:
        return ConcurrentDispatcher(
            client,
            settings.group,
            config,
            settings.concurrent_listener,
            history,
            settings.statistics,
            is_broadcasting=settings.offset_file is not None,
        )
    assert settings.listener is not None
    kind = KeyOrderedDispatcher if config.order_by_key else OrderlyDispatcher
    return kind(
        client,
        settings.group,
        config,
        settings.listener,
        settings.on_failure,
        offsets,
        history,
        settings.statistics,
    )


class Member:
    """Joins on `start`, leaves on `close`; both from any thread but the I/O thread."""

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self._config = config = settings.config
        self._group = group = settings.group
        self._history = EventRecorder(settings.history, settings.group)
        self._leaving = False
        self._is_out = False  # paused as a whole: no member until it resumes
        self._releasing: Future[None] | None = None
        statistics = settings.statistics
        self._client = client = ClientSession(
            settings.name_servers,
            config.remoting,
            settings.client_id,
            clock=settings.clock,
            describe=self._describe,
            on_request=self._on_request,
            on_connection_lost=self._on_connection_lost,
            on_broker_back=self._on_back,
            on_route_change=lambda _: self._rebalancer.wake(),
        )
        self._runtime = client.runtime
        self.subscriptions = Subscriptions(
            client, group, settings.subscriptions, self._on_subscription
        )
        self._offset_file = settings.offset_file
        self._offsets: Offsets | LocalOffsets
        if settings.offset_file is None:
            self._offsets = Offsets(client, group, config.rebalance, self._history, statistics)
        else:
            self._offsets = LocalOffsets(client, settings.offset_file, config.rebalance, statistics)
        self._receiver = _receiver_for(settings, client, self._offsets, self._history)
        self._locks: Locks | Unlocked
        self._pullers = Pullers(
            client,
            group,
            config.pull,
            self._offsets,
            self._receiver,
            statistics,
            before_first=lambda queue: self._call_back(settings.on_assigned, queue),
            keep_running=self._keep_running,
        )
        if settings.listener is not None and isinstance(self._offsets, Offsets):
            self._locks = Locks(
                client,
                group,
                config.lease,
                self._offsets,
                self._history,
                statistics,
                held=lambda: self._rebalancer.assigned(),
                on_regained=self._pullers.pull_anew,
            )
        else:
            self._locks = Unlocked(
                held=lambda: self._rebalancer.assigned(), on_regained=self._pullers.pull_anew
            )
        self._hand_off = HandOff(
            client, self._locks, self._offsets, statistics, config.consume.drain_timeout_ms
        )
        self._rebalancer = Rebalancer(
            client,
            group,
            config,
            self.subscriptions.topics,
            self._locks,
            self._offsets,
            self._hand_off,
            make=self._make,
            on_assigned=self._on_assigned,
            on_released=self._on_released,
        )
        self.steering = Steering(
            client,
            group,
            self._rebalancer,
            self._offsets,
            submit=self._receiver.submit,
            pull_anew=self._pullers.pull_anew,
            unpark=self._receiver.unpark,
        )
        self._inquiries = Inquiries(
            client,
            group,
            self.subscriptions.all,
            statistics,
            receiver=self._receiver,
            thread_count=config.consume.consume_thread_count,
            assigned=self._rebalancer.assigned,
            last_pull_ms=self._pullers.last_pull_ms,
            seek=self.steering.seek_as_asked,
        )
        self._agreement = Agreement(
            client, group, self.subscriptions.all, is_orderly=self._receiver.is_ordered
        )
        self._loops: list[asyncio.Task[object]] = []
        self._callbacks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Announce ourselves and begin; returns once every topic's route was asked for.

        Raises: RouteError: no name server answers. BrokerError: a broker denies us.
        """
        try:
            self._runtime.call(self._join())
        except BaseException:
            self._runtime.call(self._disconnect())
            self._end(0.0)
            raise

    def close(self, timeout_s: float) -> bool:
        """Leave: tell the group, hand every queue over, disconnect
        (docs/internals/semantics.md#graceful-shutdown).

        The group is told first, so that the others already wait for our locks: each queue
        moves when its own listener is done, whatever the slowest one does. Without locks it is
        told last: nothing else would keep the others from what we are still at.
        """
        self._leaving = True
        self._rebalancer.stop_acquiring()
        if isinstance(self._locks, Locks):
            self._runtime.call(self._client.leave(consumer_group=self._group))
        self._releasing = self._runtime.submit(self._rebalancer.release_all())
        released = True
        try:
            self._releasing.result(timeout_s)
        except (TimeoutError, CancelledError):
            released = False
            stuck = ", ".join(str(item.queue) for item in self._rebalancer.assigned())
            _log.error(
                "closing with listeners running: %s; their locks are kept and run out at the "
                "broker",
                stuck,
            )
        if isinstance(self._locks, Unlocked):
            self._runtime.call(self._client.leave(consumer_group=self._group))
        self._runtime.call(self._disconnect())
        self._end(timeout_s if released else 0.0)
        return released

    def force(self) -> None:
        """Make a `close` under way wait no longer for listeners; from another thread."""
        if self._releasing is not None:
            self._releasing.cancel()

    async def _join(self) -> None:
        retry = retry_topic(self._group)
        # The caller's own topics first: an error names one of them.
        for topic in sorted(self.subscriptions.topics(), key=lambda topic: topic == retry):
            await self._client.routes.get(topic)
        if not self._client.routes.masters():
            # No topic exists yet. The brokers that will create it are known by this one, and
            # members that know each other share the queues from the first message on.
            await self._client.routes.get(AUTO_CREATE_TOPIC)
        await self.subscriptions.check()
        await self._client.heartbeats.register()
        if self.subscriptions.of(retry) is not None:
            # The heartbeat created it at the broker; now its route exists.
            await self._client.routes.get(retry)
        self._client.start_loops()
        spawn, clock, consume = self._runtime.spawn, self._client.clock, self._config.consume
        self._loops = [
            spawn(self._keep_running(work, f"{name} {self._group}"), f"{name} {self._group}")
            for name, work in (
                ("rebalance", self._rebalancer.run),
                ("agreement", self._agreement.run),
                *self._receiver.loops(self._rebalancer.assigned),
                *self._lock_loops(),
                (
                    "commits",
                    lambda: repeat(
                        lambda: self._offsets.commit_all(self._rebalancer.assigned()),
                        clock,
                        lambda: max(consume.commit_interval_ms, _COMMIT_LOOP_MIN_MS),
                    ),
                ),
            )
        ]

    def _lock_loops(self) -> list[Loop]:
        return [("locks", self._locks.run)] if isinstance(self._locks, Locks) else []

    async def _keep_running(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Run one of our loops until it ends by itself; a defect in it stops no consumer."""
        while True:
            try:
                await work()
                return
            except Exception:  # noqa: BLE001 - logged, counted, begun again
                self._settings.statistics.add("internal_errors")
                _log.exception("%s failed by an error of ours; it starts again", name)
                await self._client.clock.sleep_ms(_RESTART_DELAY_MS)

    async def _disconnect(self) -> None:
        await self._rebalancer.abandon()
        await cancelled(*self._loops)
        await self._pullers.close()
        await asyncio.gather(*self._callbacks, return_exceptions=True)
        await self._client.disconnect()

    def _end(self, timeout_s: float) -> None:
        self._receiver.close(timeout_s)
        self._history.close()
        if self._offset_file is not None:
            self._offset_file.close()
        self._client.close()

    def resize(self, threads: int) -> None:
        self._receiver.resize(threads)
        self._inquiries.thread_count = threads

    def call(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a part's work on the I/O thread and wait for it."""
        self._runtime.call(work)

    def assigned_queues(self) -> list[MessageQueue]:
        async def read() -> list[MessageQueue]:
            return [item.queue for item in self._rebalancer.assigned() if item.lease]

        return self._runtime.call(read())

    def step_out(self) -> None:
        """Hand every queue over and leave the group's list, until `step_in`."""
        self._is_out = True
        self._runtime.call(self._step_out())

    def step_in(self) -> None:
        """Join the group again, if we have stepped out."""
        if not self._is_out:
            return
        self._is_out = False
        self._runtime.call(self._step_in())

    async def _step_out(self) -> None:
        self._rebalancer.step_out()
        self._runtime.spawn(self._unregister_when_idle(), f"step out of {self._group}")

    async def _unregister_when_idle(self) -> None:
        # As in `close`: with locks first, without them last.
        while isinstance(self._locks, Unlocked) and self._rebalancer.assigned():
            await self._client.clock.sleep_ms(_IDLE_CHECK_MS)
        if self._is_out and not self._leaving:
            await self._client.unregister(consumer_group=self._group)

    async def _step_in(self) -> None:
        self._rebalancer.step_in()
        await self._client.heartbeats.beat()
        self._rebalancer.wake()

    # What the parts tell us; on the I/O thread unless said otherwise.

    def _describe(self) -> Heartbeat:
        data = ConsumerData(
            self._group,
            self.subscriptions.all(),
            message_model=self._config.message_model.name,
            consume_from_where=_FROM_WHERE[self._config.rebalance.consume_from_where],
        )
        consumers = () if self._is_out else (data,)
        return Heartbeat(self._client.client_id, consumers, ("CLIENT_INNER_PRODUCER",))

    def _on_request(self, address: str, command: Command) -> Answer:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._rebalancer.wake()
            self._agreement.wake()
            return command.reply(ResponseCode.SUCCESS)
        return self._inquiries.answer(command)

    def _on_connection_lost(self, address: str) -> None:
        for assigned in self._rebalancer.assigned():
            lease = assigned.lease
            if lease is None or lease.is_fenced or not lease.is_lock:
                continue  # a broker that keeps epochs tells at the next renewal
            if self._client.routes.master_of(assigned.queue.broker_name) == address:
                # A plain broker keeps locks in memory: after a restart another member may
                # get ours at once, and nothing would tell us
                # (docs/internals/semantics.md#leases-and-renewal).
                assigned.lose_lease("the connection to a broker without lock epochs broke")

    def _on_back(self) -> None:
        self._locks.renew_soon()
        self._rebalancer.wake()
        self._pullers.nudge_all()

    def _make(self, queue: MessageQueue, lease: Lease, offset: int) -> AssignedQueue:
        callbacks = QueueCallbacks(
            on_lease_lost=self._on_lease_lost,
            on_drained=lambda item: self._runtime.post(self._hand_off.on_drained, item),
            on_room=lambda item: self._runtime.post(self._pullers.nudge, item),
        )
        made: AssignedQueue = self._receiver.make_queue(queue, lease, offset, callbacks)
        return made

    def _on_lease_lost(self, assigned: AssignedQueue, reason: str) -> None:
        # Any thread.
        self._inquiries.on_lease_lost(assigned.queue)
        self._settings.statistics.add("leases_lost")
        _log.warning("%s: lease lost, %s; asking for it again", assigned.queue, reason)
        self._history.record(EventType.LOCK_LOST, assigned.queue, detail=reason)
        self._runtime.post(self._locks.renew_soon)

    def _on_assigned(self, assigned: AssignedQueue) -> None:
        self.steering.on_assigned(assigned)
        subscription = self.subscriptions.of(assigned.queue.topic)
        assert subscription is not None  # the rebalancer has just looked
        self._pullers.begin(assigned, subscription)

    async def _on_subscription(self, topic: str) -> None:
        """A topic was added, its expression changed, or it is to be given up."""
        subscription = self.subscriptions.of(topic)
        if subscription is None:
            await self._rebalancer.released(topic)
        else:
            self._pullers.subscribe(subscription)
            self._rebalancer.wake()

    async def _call_back(
        self, callback: Callable[[MessageQueue], None] | None, queue: MessageQueue
    ) -> None:
        """Call the user on a thread of its own; what it raises is logged, the queue goes on."""
        if callback is None:
            return
        try:
            await asyncio.to_thread(callback, queue)
        except Exception:  # noqa: BLE001 - the user's; logged and counted
            self._settings.statistics.add("callback_errors")
            _log.exception("%s: the callback raised", queue)

    def _on_released(self, assigned: AssignedQueue) -> None:
        self._pullers.end(assigned)
        told = self._call_back(self._settings.on_revoked, assigned.queue)
        callback = self._runtime.spawn(told, f"on_revoked {assigned.queue}")
        self._callbacks.add(callback)
        callback.add_done_callback(self._callbacks.discard)
