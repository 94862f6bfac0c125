"""GroupMember: a started consumer as a member of its group, from joining to leaving."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Sequence

from ordermq.client.runtime import cancelled
from ordermq.closing import CLOSED_BY_ITSELF, note_closed, note_open
from ordermq.config import MessageModel
from ordermq.consumer.group.member_parts import MemberParts, MemberSettings
from ordermq.consumer.group.member_state import MemberState
from ordermq.consumer.group.same_process import forget_member, note_member, place_of
from ordermq.errors import ConfigError, StateError
from ordermq.forking import ProcessBound
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import AUTO_CREATE_TOPIC, retry_topic, wrapped
from ordermq.model.subscription import Subscription
from ordermq.threads import RLock

_log = logging.getLogger("ordermq.consumer")
_IDLE_CHECK_MS = 20
# How long `start` and `subscribe` wait for the first queues. Real time: it bounds a caller's wait.
_FIRST_QUEUES_S = 3.0


class GroupMember(ProcessBound):
    """One member of a group; `start` and `close` from any thread but the I/O thread.

    Its coroutines run on the I/O thread.
    """

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self._group = group = settings.group
        self._is_started = False
        self._is_start_given_up = False  # changes on the I/O thread
        self._connecting: asyncio.Task[None] | None = None  # within `start`, until it is registered
        self._loops: list[asyncio.Task[None]] = []
        self.parts = parts = MemberParts(settings, self._hand_over)
        self.state = MemberState(parts)
        self.client = parts.client
        self.callbacks = parts.callbacks
        self.control = parts.control
        self.offsets = parts.offsets
        self._fields = parts.member.fields
        self._runtime = parts.client.runtime
        self._shutdown = parts.shutdown
        self._subscriptions = parts.subscriptions
        self._retry = parts.retry
        self._rebalancer = parts.rebalancer
        self._locks = parts.locks
        self._ending = RLock()  # of what `_end` ends; a signal handler may close, too
        full_name = wrapped(settings.remoting.namespace, group)
        self._place = place_of(settings.name_servers, full_name, settings.client_id)
        self._known_others: set[str] = set()

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
        topics = self._subscriptions.topics()
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
        return self.parts.receiver.calls_from_here() or self._settings.user_code.calls_back_here()

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
        self.parts.is_leaving = True
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
            if unstored := self.parts.revocation.unstored:
                _log.error(
                    "group %s: closed without storing the offsets of %d queues, as of %s: the "
                    "offset file cannot be written; their last messages come again",
                    self._group,
                    len(unstored),
                    min(unstored),
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
        return is_in_order and is_called_back and not self.parts.revocation.unstored

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
        if self.parts.store is not None:
            await self.parts.store.open()
        # The caller's own topics first: an error names one of them.
        await client.routes.get_all(
            sorted(self._subscriptions.topics(), key=lambda topic: topic == retry)
        )
        if not client.routes.masters():
            # No topic exists yet. The brokers that will create it are known by this one, and
            # members that know each other share the queues from the first message on.
            await client.routes.get(AUTO_CREATE_TOPIC)
        await self._subscriptions.check()
        await client.heartbeats.register()
        if self._subscriptions.of(retry) is not None:
            # The heartbeat created it at the broker; now its route exists.
            await client.routes.get(retry)

    async def _begin(self) -> None:
        # Heartbeats from here on: the first one was just sent, and a broker expires members only
        # after several intervals.
        self.client.start_loops()
        self._loops = self.parts.start_loops()
        await self._take_first(self._subscriptions.topics())

    async def _take_first(self, topics: Iterable[str]) -> None:
        """Return when the first queues of topics are held, or it took too long."""
        await self._rebalancer.settled(_FIRST_QUEUES_S)
        self.offsets.rule.settle(topics)

    async def _disconnect(self) -> bool:
        """Disconnect; False if callbacks of the user still run."""
        # The connections last: the user's `on_revoked` may still ask the brokers something.
        # The loops first: a pass under way may still begin to give a queue up.
        await cancelled(*self._loops)
        await self._rebalancer.abandon()
        await self.parts.fetcher.close()
        is_called_back = await self._shutdown.unless_hurried(self.callbacks.ended())
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
            self.parts.receiver.close(timeout_s)
            self.parts.recorder.close()
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
            if self._subscriptions.of(subscription.topic) is None:
                self.offsets.rule.subscribed(subscription.topic)
        if self._retry is not None and self._subscriptions.of(self._retry.topic) is None:
            subscriptions = [*subscriptions, self._retry]
        await self._subscriptions.put(subscriptions)
        # `register`, not `beat`: a topic's own brokers may be new, and may deny this account.
        await self.client.heartbeats.register()
        for subscription in subscriptions:
            self.parts.fetcher.subscribe(subscription)
        self.parts.check.wake()
        await self._take_first([subscription.topic for subscription in subscriptions])
        self._warn_of_others()

    async def unsubscribe(self, topic: str, *, waits_for_batches: bool) -> None:
        """Give the queues of a topic up, then tell the brokers
        (docs/internals/semantics.md#rebalance).

        Without a topic the member leaves the group: the others would keep a share for it.
        """
        self._subscriptions.remove(topic)
        if self._retry is not None and self._subscriptions.topics() == [self._retry.topic]:
            self._subscriptions.remove(self._retry.topic)
        await (
            self._rebalancer.released(topic)
            if waits_for_batches
            else self._rebalancer.rebalance_now()
        )
        if self._subscriptions.topics():
            await self.client.heartbeats.beat()
        else:
            await self.client.withdraw()

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
        before = self._subscriptions.topics()
        await self._subscriptions.put(subscriptions)
        # No await from here on: a pass in between would share the topics with the group.
        for topic in set(before) - {item.topic for item in subscriptions}:
            self._subscriptions.remove(topic)
        self._rebalancer.assigned_by_user = frozenset(queues)
        for subscription in subscriptions:
            self.offsets.rule.subscribed(subscription.topic)
            self.parts.fetcher.subscribe(subscription)
        await self._rebalancer.rebalance_now()
        self.offsets.rule.settle(item.topic for item in subscriptions)

    async def rebalance_now(self) -> None:
        """Return with the present share of the topics, as far as the brokers grant it now."""
        await self._rebalancer.rebalance_now()

    def resize(self, threads: int) -> None:
        """Set the maximum number of concurrent listener calls."""
        self.parts.receiver.resize(threads)
        self.parts.admin_requests.thread_count = threads

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
        if self.parts.has_left:
            self._runtime.complete(self._rejoin)

    # `has_left` changes together with the rebalancer, on the I/O thread: a caller that is
    # interrupted has either done both or neither, and may call again.
    async def _leave(self) -> None:
        self.parts.has_left = True
        self._rebalancer.leave()
        self._runtime.spawn(self._unregister_when_idle(), f"leave {self._group}")

    async def _unregister_when_idle(self) -> None:
        # As in `close`: with locks first, without them last.
        while not self._locks.are_exclusive and self._rebalancer.assigned():
            await self.client.clock.sleep_ms(_IDLE_CHECK_MS)
        if self.parts.has_left and not self.parts.is_leaving:
            await self.client.withdraw()

    async def _rejoin(self) -> None:
        self.parts.has_left = False
        self._rebalancer.rejoin()
        await self.client.heartbeats.beat()
        # Again: a pass before the heartbeat found a member list without this member.
        self._rebalancer.wake()
