"""Lite pull consumer: a member of a group that polls for messages, batch by batch."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Generator,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack, cast

from ordermq.callables import require_callback
from ordermq.client.name_server_api import are_proxies, parse_name_servers, refuse_proxies
from ordermq.client.session import new_client_id
from ordermq.client.store_times import offset_at_time
from ordermq.client.user_code import (
    HOLD_S,
    OwnThreads,
    QueueCallback,
    TopicCallback,
    UserCode,
    running_task,
)
from ordermq.clock import Clock, SystemClock
from ordermq.closing import not_running
from ordermq.config import ConsumeConfig, ConsumeMode, LitePullConsumerConfig, MessageModel
from ordermq.config.checks import refuse_misplaced, refuse_places, refuse_unknown
from ordermq.consumer.group.group_consumer import GroupConsumer
from ordermq.consumer.group.member_parts import MemberSettings, ReceiverParts
from ordermq.consumer.offsets.offset_store import OffsetStore, require_plain_store
from ordermq.consumer.queue.poll_buffer import NOTHING, PollBuffer, PolledBatch, PollWaiter
from ordermq.consumer.queue.poll_receiver import PollReceiver
from ordermq.consumer.queue.polled_queue import PolledQueue, PollRoom
from ordermq.errors import ConfigError, StateError
from ordermq.events import NoHistory
from ordermq.model.codec import Codec, require_codec
from ordermq.model.message_queue import MessageQueue, require_offset, require_queue
from ordermq.model.names import check_group, check_topic
from ordermq.model.subscription import EVERYTHING, Subscription
from ordermq.wall_time import moment_ms, span_ms

if TYPE_CHECKING:
    from ordermq.config.settings import LitePullConsumerSettings
    from ordermq.consumer.dispatch.failure_policy import FailurePolicy
    from ordermq.consumer.group.group_member import GroupMember
    from ordermq.wall_time import Moment, Span

_T = TypeVar("_T")
_QUEUES = "assignment() or fetch_message_queues(topic)"
_Waits = Generator[tuple[PollWaiter, float | None], None, PolledBatch]
_CLOSE_TIMEOUT_S = 60.0


class LitePullConsumer(GroupConsumer):
    """A member of a consumer group that asks for messages, batch by batch.

    Messages are fetched ahead, in the background. With `subscribe` the topic's queues are
    shared with the group's other members; with `assign` they are the ones you say. Offsets are
    kept at the brokers; those of `message_model="broadcasting"`, whose every member gets
    everything, in a file.

    With `ordered=True` queues are held under the broker's queue locks, like those of
    `@consumer.orderly`, and beside such members: one batch of a queue is out at a time, and a
    queue moves to another member only after its last batch is done and committed. By default, as
    in Java, there is no lock: around a rebalance the old and the new owner of a queue may both be
    given the messages behind the committed offset.

    A batch is done when its poller asks for the next one, or commits. Pollers are threads; with
    `ordered=True` each asyncio task that awaits `apoll` or iterates is one, too, and `with batch:`
    says at its end whether the batch is done or has failed.

    All methods are safe from any thread; `apoll`, `acommit` and `async for` from any event loop.

    Args:
        group: the consumer group; all its members must subscribe alike.
        name_servers: `host:port`, several joined by `;` or in a list; default those of `config`,
            or of the environment variable ORDERMQ_NAME_SERVERS.
        instance_name: a name in the client id, for admin tools; the id is unique with and
            without it. With `message_model="broadcasting"` it is the whole name, by which the
            offset file is found: default "DEFAULT", and each member of a host needs one of its
            own.
        config: all settings at once; else give them flat, as `auto_commit=False`.
        offset_store: keeps the group's offsets instead of the brokers, whose offsets follow it;
            with `ordered=True`.
        codec: makes the values of `message.value()`, as `JsonCodec()` (docs/codecs.md).
        on_failure: what follows for a message whose batch fails, in `with batch:` or because its
            poller left it (docs/failures.md); default `Retry()`. With `ordered=True`.
        on_assigned, on_revoked: called with a queue when it was assigned, before its first pull,
            and after it was given up; not to close the consumer from.
        clock: time, as an argument; for tests.
        settings: any field of `LitePullConsumerConfig`'s groups.
    Raises: ConfigError: a name or setting no broker would take.
    """

    def __init__(
        self,
        group: str | None = None,
        *misplaced: Never,
        name_servers: str | Sequence[str] | None = None,
        instance_name: str | None = None,
        config: LitePullConsumerConfig | None = None,
        offset_store: OffsetStore | None = None,
        codec: Codec | None = None,
        on_failure: FailurePolicy | None = None,
        on_assigned: QueueCallback | None = None,
        on_revoked: QueueCallback | None = None,
        clock: Clock | None = None,
        **settings: Unpack[LitePullConsumerSettings],
    ) -> None:
        if misplaced:
            refuse_places(type(self), group, misplaced)
        self.config = LitePullConsumerConfig.given(config, settings, type(self))
        self.group = check_group(self.config.group_or(group))
        self.name_servers = parse_name_servers(self.config.name_servers_or(name_servers))
        self._is_broadcasting = self.config.message_model is MessageModel.BROADCASTING
        self._is_ordered = self.config.lite.ordered
        if not self._is_ordered:
            refuse_proxies(self.name_servers, self.group)
        # A proxy leases batches over gRPC; it has no other way.
        is_behind_proxy = are_proxies(self.name_servers)
        self._pops = self.config.consume_mode is ConsumeMode.POP or is_behind_proxy
        if self._pops:
            self._check_pop(has_store=offset_store is not None, is_behind_proxy=is_behind_proxy)
        self._batch_size = self.config.lite.poll_batch_size
        self._timeout_ms = self.config.lite.poll_timeout_ms
        if offset_store is not None and not self._is_ordered:
            raise ConfigError(
                "offset_store needs ordered=True: without queue locks nothing could tell a late "
                "owner from the present one",
                group=self.group,
            )
        if offset_store is not None:
            require_plain_store(offset_store)
        if on_failure is not None:
            self._check_policy(on_failure)
        self._policy = on_failure
        self._offset_store = offset_store
        self._codec = None if codec is None else require_codec(codec, self.group)
        self.client_id = new_client_id(
            self.config.remoting,
            self.name_servers,
            instance_name,
            is_broadcasting=self._is_broadcasting,
        )
        self._clock = clock if clock is not None else SystemClock()
        lite = self.config.lite
        self._begin_counting(lite.pause_after_dead_letters, lite.dead_letter_window)
        require_callback("on_assigned", on_assigned)
        require_callback("on_revoked", on_revoked)
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        # What was asked for before the start; afterwards, what every broker has taken.
        self._subscriptions: dict[str, Subscription] = {}
        self._assigned: tuple[list[MessageQueue], list[Subscription]] | None = None
        self._watched: dict[str, TopicCallback] = {}
        # Unlike a dispatcher it is made before its member: a poll may come at any moment.
        room = PollRoom(lite.pull_threshold_for_all)
        self._buffer = PollBuffer(self._clock, room, is_ordered=self._is_ordered)
        self._buffer.count_for(self.statistics)
        # Two flags: while it closes, pollers still end their batches and commit them.
        self._is_closing = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<LitePullConsumer {self.group} {self.client_id}>"

    # Joining and leaving.

    def start(self) -> Self:
        """Connect; with subscriptions, join the group; return self with the present share.

        Raises: StateError: started before, or another member uses this broadcasting member's
            offset file. StoreError: that file cannot be used. RouteError: no name server answers.
            BrokerError: a broker denies access.
        """
        self.start_with(OwnThreads())
        return self

    def start_with(self, user_code: UserCode) -> None:
        """`start`, with the user's coroutines and callbacks run by `user_code`."""
        if self._member is not None or self._is_starting or self._is_close_called:
            raise StateError(
                "start() may be called only once; create a new LitePullConsumer", group=self.group
            )
        self._join_or_leave(user_code)

    def _join(self, user_code: UserCode) -> None:
        config, lite = self.config, self.config.lite
        member = self._start(
            MemberSettings(
                group=self.group,
                client_id=self.client_id,
                name_servers=self.name_servers,
                remoting=config.remoting,
                pull=lite.for_fetching(),
                lease=config.lease,
                rebalance=config.rebalance,
                message_model=config.message_model,
                subscriptions=list(self._subscriptions.values()),
                make_receiver=self._poll_receiver,
                uses_locks=self._is_ordered,
                local_offset_store_dir=config.local_offset_store_dir,
                offset_store=self._offset_store,
                pop=config.pop if self._pops else None,
                is_polled=True,
                thread_count=0,  # the caller's threads poll, however many there are
                commits_done=lite.auto_commit,
                # A seek is the caller's own affair until it commits: it may explore a queue.
                commits_resets=False,
                commit_interval_ms=lite.auto_commit_interval_ms,
                # Out of order no revocation waits for anything.
                drain_timeout_ms=lite.drain_timeout_ms if self._is_ordered else 0,
                on_assigned=self._on_assigned,
                on_revoked=self._on_revoked,
                unused_topic=None,
                user_code=user_code,
                traces=None,  # the caller consumes, and says nothing of it
                clock=self._clock,
                recorder=NoHistory(),
                statistics=self.statistics,
                guard=self._guard,
            )
        )

        async def assign() -> None:
            for topic, callback in self._watched.items():
                await member.callbacks.watch_topic(topic, callback)
            if self._assigned is not None:
                await member.assign(*self._assigned)
            elif self._subscriptions:
                await member.rebalance_now()

        member.client.call(assign())

    def _check_pop(self, *, has_store: bool, is_behind_proxy: bool) -> None:
        from ordermq.consumer.pop.refusals import refuse_for_pops  # few pop

        problem = "" if self._is_ordered else "polls without ordered=True: give it, too"
        if has_store:
            problem = (
                "offset_store and polls: the broker alone decides where a batch begins, and "
                "without the transactions of a listener a store says nothing more"
            )
        refuse_for_pops(
            self.config,
            self.group,
            is_behind_proxy=is_behind_proxy,
            commits=self.config.lite.auto_commit,
            deduplicates=self.config.lite.deduplicate,
            problem=problem,
        )

    def _require_pulls(self, method: str) -> None:
        if self._pops:
            raise StateError(
                f"{method}: with consume_mode='pop' another member may have the next batch of the "
                "queue; subscribe, and move the group with `ordermq groups reset`, or by the Admin",
                group=self.group,
            )

    def _check_policy(self, policy: FailurePolicy) -> None:
        from ordermq.consumer.dispatch.failure_policy import FailurePolicy, ParkKey

        if not isinstance(policy, FailurePolicy) or isinstance(policy, ParkKey):
            raise ConfigError(
                f"on_failure={policy!r}: expected Retry(), DeadLetter() or Stop(); keys are parked "
                "by a listener with order_by_key=True",
                group=self.group,
            )
        if not self._is_ordered:
            raise ConfigError(
                f"on_failure={policy!r} needs ordered=True: without it a batch that failed cannot "
                "be redelivered before later ones",
                group=self.group,
            )

    def _poll_receiver(self, parts: ReceiverParts) -> PollReceiver:
        if self._is_ordered:
            from ordermq.consumer.dispatch.failure_policy import FailureHandler, Retry
            from ordermq.consumer.dispatch.polled_failures import PolledFailures

            member = parts.member
            handler = FailureHandler(member, ConsumeConfig(), self._policy or Retry(), self._guard)
            self._buffer.fail_with(PolledFailures(member, handler, self._buffer, parts.offsets))
        return PollReceiver(self._clock, self.group, self._buffer)

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> bool:
        """Leave the group and disconnect; a second call, from another thread, ends the wait.

        With `auto_commit`, what pollers came back from is committed. The batch that the calling
        thread polled last is not, unless you `commit()` it: nobody else knows whether it is done.

        With `ordered=True` this waits for the batches of other pollers: each is over when its
        poller polls again, which ends its loop, or commits.

        Args:
            timeout_s: how long that may take. After it their queues are given up without unlock,
                their locks expire at the broker.
        After an exception, such as KeyboardInterrupt, it waits for nobody and renews no lock any
        more; a later call finishes what is left.

        Returns: True if every queue was given up in order; a later call returns the same.
        Raises: StateError: called by a callback of this consumer, which it would wait for.
        """
        # Closing before the queues are revoked: a batch handed out now would only delay them.
        member = self._begin_close()
        if member is None:
            return True
        self._buffer.stop()
        # The calling thread is not coming to end its batches, nor are its tasks.
        self._buffer.give_back_of_thread(threading.get_ident())
        try:
            return member.close(timeout_s)
        finally:
            self._is_closed = True

    def stop(self) -> None:
        """Hand nothing out any more: each `batches()` ends as it asks for the next batch.

        From any thread or signal handler, while the consumer runs; `close` does it, too.
        """
        if self._member is not None and not self._is_closed:
            self._is_closing = True
            # Not here: a signal handler may have interrupted a poll that holds the buffer's lock.
            with contextlib.suppress(RuntimeError):  # closed by another thread meanwhile
                self._member.client.runtime.post(self._buffer.stop)

    def subscribe(
        self,
        topic: str,
        expression: str = EVERYTHING,
        *misplaced: Never,
        sql: str | None = None,
        **unknown: Never,
    ) -> None:
        """Share `topic` with the group; before the start or, joining at once, after it.

        A second call for the same topic changes the expression; what is buffered stays.

        Args:
            expression: `*`, or tags joined by `||`.
            sql: instead, a condition on message properties, as `a > 5 AND region = 'x'`; for
                brokers with enablePropertyFilter=true.
        Raises: ConfigError: an illegal topic or expression, or two of them. StateError: after
            `assign`. RouteError, BrokerError: as `start`, or a broker does not filter by `sql`.
        """
        if misplaced:
            example = "consumer.subscribe(topic, expression)"
            refuse_misplaced(LitePullConsumer.subscribe, (topic, expression, *misplaced), example)
        if unknown:
            refuse_unknown(LitePullConsumer.subscribe, unknown)
        if self._assigned is not None:
            raise StateError("subscribe or assign, not both", topic=topic, group=self.group)
        subscription = Subscription.of(topic, expression, sql, self._next_version())
        if self._member is not None:
            self._run(self._subscribe(subscription))
        self._subscriptions[subscription.topic] = subscription

    async def _subscribe(self, subscription: Subscription) -> None:
        member = self._live()
        await member.subscribe([subscription])
        await member.rebalance_now()

    def unsubscribe(self, topic: str) -> None:
        """Give the topic's queues up; a topic not subscribed is ignored."""
        if self._subscriptions.pop(topic, None) is not None and self._member is not None:
            self._run(self._live().unsubscribe(topic, waits_for_batches=False))

    def assign(
        self,
        queues: Iterable[MessageQueue],
        expression: str = EVERYTHING,
        *,
        sql: str | None = None,
    ) -> None:
        """Hold exactly these queues, whatever other members do; replaces those of the call before.

        Args:
            queues: at least one; see `fetch_message_queues`.
            expression, sql: as for `subscribe`; for all of them.
        Raises: ConfigError: none, or one its topic does not have, an illegal expression.
            StateError: after `subscribe`. RouteError: no broker has a topic. BrokerError: a
            broker does not filter by `sql`.
        """
        self._require_pulls("assign")
        if self._subscriptions:
            raise StateError("subscribe or assign, not both", group=self.group)
        wanted = _several(queues)
        if not wanted:
            raise ConfigError("assign needs at least one queue", group=self.group)
        version = self._next_version()
        topics = {queue.topic for queue in wanted}
        choices = [Subscription.of(topic, expression, sql, version) for topic in sorted(topics)]
        if self._member is not None:
            self._run(self._live().assign(wanted, choices))
        self._assigned = wanted, choices

    def assignment(self) -> list[MessageQueue]:
        """The queues assigned now, sorted; [] before the start and after the close."""
        if self._member is None or self._is_closing:
            return []
        return self._member.state.assigned_queues(with_draining=False)

    # Messages.

    def poll(self, timeout_ms: Span | None = None, **unknown: Never) -> PolledBatch:
        """Return the next messages of one queue, as soon as there are some.

        To poll is to say that the batch polled before, by the same thread, is done.

        Args:
            timeout_ms: how long to wait, in ms, as "3s", or a timedelta; default
                `poll_timeout_ms`. 0 only looks.
        Returns: at most `poll_batch_size` messages; an empty batch after the time-out, or when
            the consumer is closed meanwhile.
        """
        if unknown:
            refuse_unknown(LitePullConsumer.poll, unknown)
        poller = self._holder()
        if self._ends(poller):
            raise not_running("consumer", self.group, was_closed=True)
        return self._poll(poller, self._wait_ms(timeout_ms))

    def apoll(
        self, timeout_ms: Span | None = None, **unknown: Never
    ) -> Coroutine[Any, Any, PolledBatch]:
        """`poll` for asyncio code, on any loop: `batch = await consumer.apoll()`.

        The tasks of a loop count as one poller; with `ordered=True` each task is one.
        """
        if unknown:
            refuse_unknown(LitePullConsumer.apoll, unknown)
        # No `async def`: the poller is the task that calls it, not one that a wrapper such as
        # asyncio.wait_for makes of it.
        poller = self.poller()
        if self._ends(poller):
            raise not_running("consumer", self.group, was_closed=True)
        return self._apoll(poller, self._wait_ms(timeout_ms))

    def batches(self, timeout_ms: Span | None = None, **unknown: Never) -> Batches:
        """Poll again and again: `for batch in consumer.batches()`, or `async for`.

        Args:
            timeout_ms: end when nothing came for so long, as of `poll`; None goes on until `close`.
        """
        if unknown:
            refuse_unknown(LitePullConsumer.batches, unknown)
        return self.batches_of(PolledBatch, timeout_ms)

    def batches_of(self, kind: type[PolledBatch], timeout_ms: Span | None) -> Batches:
        """`batches` of another class; those of an `AsyncConsumer` have more to them."""
        return Batches(self, None if timeout_ms is None else self._wait_ms(timeout_ms), kind)

    def _wait_ms(self, timeout_ms: Span | None) -> int:
        return self._timeout_ms if timeout_ms is None else span_ms("timeout_ms", timeout_ms)

    def _poll(self, poller: Hashable, wait_ms: int | None) -> PolledBatch:
        """Take the next batch; None: wait for as long as there is none.

        Raises: StateError: called on the I/O thread.
        """
        self._live().client.runtime.require_other_thread()
        before = self._buffer.out_of(poller)
        try:
            batch = self._buffer.take(poller, self._batch_size)
            if batch is None:
                with contextlib.closing(self._waits(poller, PolledBatch, wait_ms)) as waits:
                    batch = self._waited(waits)
            if self._codec is not None:
                batch.decode_with(self._codec)
            return batch
        except BaseException as raised:  # of a signal handler: the caller never gets what was taken
            self._buffer.undo(poller, before)
            if isinstance(raised, KeyboardInterrupt):
                # Ctrl-C is how such a program ends: what it prints shows the caller's lines, and
                # not where in the wait it came.
                raised.with_traceback(None)
            raise

    @staticmethod
    def _waited(waits: _Waits) -> PolledBatch:
        while True:
            try:
                waiter, left_s = next(waits)
            except StopIteration as end:
                return cast(PolledBatch, end.value)
            waiter.wait(left_s)

    async def _apoll(
        self, poller: Hashable, wait_ms: int | None, kind: type[PolledBatch] = PolledBatch
    ) -> PolledBatch:
        before = self._buffer.out_of(poller)
        try:
            batch = self._buffer.take(poller, self._batch_size, kind)
            if batch is None:
                with contextlib.closing(self._waits(poller, kind, wait_ms)) as waits:
                    batch = await self._awaited(waits)
            if self._codec is not None:
                batch.decode_with(self._codec)
            return batch
        except BaseException:
            self._buffer.undo(poller, before)
            raise

    @staticmethod
    async def _awaited(waits: _Waits) -> PolledBatch:
        while True:
            try:
                waiter, left_s = next(waits)
            except StopIteration as end:
                return cast(PolledBatch, end.value)
            await asyncio.wait((waiter.future(),), timeout=left_s)

    def _waits(self, poller: Hashable, kind: type[PolledBatch], wait_ms: int | None) -> _Waits:
        """Wait for a batch and take it; yields what to wait for, and for how many seconds at most.

        Returns: the batch; an empty one after the time, which is looked at behind a last take: a
            message may have come in this very moment.
        """
        # A generator, so that threads and tasks take the same steps and differ in waiting only.
        buffer = self._buffer
        deadline = None if wait_ms is None else time.monotonic() + wait_ms / 1000
        batch = None
        while batch is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if buffer.is_stopped or (left_s is not None and left_s <= 0):
                return NOTHING
            # Asked for after the failed take: what came in between makes it None, and another take.
            waiter = buffer.wait()
            if waiter is not None:
                try:
                    yield waiter, left_s
                finally:
                    buffer.give_up(waiter)
            batch = buffer.take(poller, self._batch_size, kind)
        return batch

    def poller(self) -> Hashable:
        task = running_task() if self._is_ordered else None
        return task if task is not None else threading.current_thread()

    def _holder(self) -> Hashable:
        """Return whose batch the caller speaks of: its task's, if that has one, or its thread's."""
        thread = threading.current_thread()
        if not self._is_ordered:
            return thread
        # A blocking poll counts for the thread, also inside a task: each cell of a notebook is a
        # task of its own, and the next cell goes on with what this one has polled.
        task = running_task()
        return thread if task is None or self._buffer.out_of(task) is None else task

    def give_back(self) -> None:
        """End the caller's batch as not done: its messages are redelivered, in order.

        Raises: StateError: without `ordered=True`, where they may be in several hands.
        """
        self.give_back_of(self._holder())

    def give_back_of(self, poller: Hashable) -> None:
        """`give_back` for the caller's own poller, a task or a thread."""
        if not self._is_ordered:
            raise StateError("give_back needs ordered=True", group=self.group)
        self._buffer.give_back(poller)

    def fail(self, error: BaseException | None = None) -> None:
        """End the caller's batch as failed, as an exception in `with batch:` does.

        Raises: StateError: without `ordered=True`, where they may be in several hands.
        """
        if not self._is_ordered:
            raise StateError("fail needs ordered=True", group=self.group)
        self._buffer.fail(self._holder(), error)

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Hand out nothing of these queues, and pull no more; what is buffered stays.

        Raises: StateError: one is not assigned; none is paused.
        """
        self._live().control.pause_held(_several(queues))

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        """End the pause of these queues, or of all of them; also the one by `Stop()` or by
        `pause_after_dead_letters`.

        Raises: StateError: one is not assigned; none is resumed.
        """
        self._live().resume(None if queues is None else _several(queues))

    # Offsets.

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit offsets of the group; returns when the brokers have acknowledged them.

        Args:
            offsets: of the next message to consume of each queue, as `batch.next_offset`; None
                commits everything polled, by any thread, of the queues that are still assigned.
                With `ordered=True` None leaves out the batches of other pollers.
        Raises:
            StateError: a queue is not assigned any more: its next owner starts from the last
                commit; or, with `ordered=True`, the lease under which this was polled is lost. The
                others are committed.
            RemotingError, RouteError: a broker did not take it; commit again.
        """
        self._run(self._commit(offsets, self._holder()))

    def acommit(
        self, offsets: Mapping[MessageQueue, int] | None = None
    ) -> Coroutine[Any, Any, None]:
        """`commit` for asyncio code, on any loop."""
        return self._arun(partial(self._commit, offsets, self._holder()))  # as in `apoll`

    async def acommit_batch(self, batch: PolledBatch) -> None:
        """Commit everything up to the end of a batch that its poller still has.

        Raises: StateError: it is done already, or its queue was lost or moved by a seek. Else as
            `commit`.
        """
        queue = batch.message_queue
        if not self._buffer.is_out(batch):
            raise StateError(
                "not committed: this batch is done, or its lease was lost and it is redelivered",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                group=self.group,
            )
        await self.acommit({queue: batch.next_offset})

    async def _commit(self, offsets: Mapping[MessageQueue, int] | None, poller: Hashable) -> None:
        member = self._live()
        lost: list[MessageQueue] = []
        if offsets is None:
            wanted = self._buffer.polled(poller)
        else:
            wanted = {}
            for queue, offset in offsets.items():
                require_queue(queue, _QUEUES)
                require_offset(offset, f"commit of {queue}")
                assigned = self._buffer.find(queue)
                # In order, an offset beyond the position comes from before a lost lease: another
                # member may have continued from the committed one.
                if assigned is None or (self._is_ordered and offset > assigned.position):
                    lost.append(queue)
                elif offset < assigned.committed_offset:
                    self._require_pulls(f"commit of {queue}, back to {offset}")
                    wanted[assigned] = offset
                else:
                    wanted[assigned] = offset
        commits = {
            assigned: asyncio.ensure_future(self._commit_one(member, assigned, offset))
            for assigned, offset in wanted.items()
        }
        # All are awaited, whatever fails: a broker that is away must not hide the others' answers.
        await asyncio.gather(*commits.values(), return_exceptions=True)
        for assigned, task in commits.items():
            if not task.result() and offsets is not None:  # raises what the commit has raised
                lost.append(assigned.queue)
        for queue in lost:
            raise StateError(
                "not committed: this queue is not assigned to this member now, or was lost and "
                "assigned again; what was polled of it is redelivered",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                group=self.group,
            )

    async def _commit_one(self, member: GroupMember, assigned: PolledQueue, offset: int) -> bool:
        """Commit an offset of one queue; False: the queue or its lease is lost."""
        if not await member.offsets.commit_at(assigned, offset):
            return False
        # Only behind the acknowledgement: the end of a batch lets a revoked queue go. And at once,
        # before the other queues' answers or a cancellation: what is committed and still out would
        # be redelivered, and a batch that was popped can end only when no poller has it.
        self._buffer.finish_up_to({assigned: offset})
        return True

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset of any queue as the broker has it; None if it has none."""
        require_queue(queue, _QUEUES)

        async def ask() -> int | None:
            member = self._live()
            await member.client.address_of(queue)
            return await member.offsets.stored(queue)

        return self._run(ask())

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next message to be handed out.

        Raises: StateError: the queue is not assigned.
        """
        require_queue(queue, _QUEUES)
        return cast(PolledQueue, self._live().control.find(queue)).position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue from `offset`, forwards or backwards; the next commit saves it, auto commits
        too.

        What is buffered and what was polled of the queue is forgotten. With `ordered=True` this
        waits for a batch that another poller has.

        Raises: StateError: the queue is not assigned. ConfigError: the broker does not have the
            offset.
        """
        require_queue(queue, _QUEUES)
        require_offset(offset, f"seek of {queue}")
        self._run(self._seek(queue, self._holder(), lambda lowest, highest: offset))

    def aseek(self, queue: MessageQueue, offset: int) -> Coroutine[Any, Any, None]:
        """`seek` for asyncio code, on any loop."""
        require_queue(queue, _QUEUES)
        require_offset(offset, f"seek of {queue}")
        poller = self._holder()  # as in `apoll`
        return self._arun(partial(self._seek, queue, poller, lambda lowest, highest: offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue from the oldest message the broker has; as `seek`."""
        require_queue(queue, _QUEUES)
        self._run(self._seek(queue, self._holder(), lambda lowest, highest: lowest))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue with the next message to be stored; as `seek`."""
        require_queue(queue, _QUEUES)
        self._run(self._seek(queue, self._holder(), lambda lowest, highest: highest))

    async def _seek(
        self, queue: MessageQueue, poller: Hashable, choose: Callable[[int, int], int]
    ) -> None:
        self._require_pulls("seek")
        member = self._live()
        assigned, api = member.control.find(queue), member.client.api
        address = member.client.routes.master_of(queue.broker_name)
        lowest, highest = await asyncio.gather(
            api.min_offset(address, queue), api.max_offset(address, queue)
        )
        target = choose(lowest, highest)
        if not lowest <= target <= highest:
            raise ConfigError(
                f"{queue}: seek to offset {target}: the broker has {lowest}..{highest}",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                offset=target,
            )
        # Or the seek would wait for the very batch that its caller holds.
        self._buffer.give_back(poller, queue)
        await member.control.move(assigned, target)

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: Moment) -> int:
        """The first offset of any queue stored at or after a time; its end if all are older.

        Brokers answer roughly, so the messages around their answer are looked at.

        Args:
            timestamp_ms: ms since 1970, a datetime (without a zone: local time), or an age, as
                "2h" or a timedelta.
        """
        require_queue(queue, _QUEUES)
        wanted_ms = moment_ms("timestamp_ms", timestamp_ms, self._clock.wall_ms())

        async def ask() -> int:
            client = self._live().client
            await client.address_of(queue)  # its topic may be one never used before
            return await offset_at_time(client, self.group, queue, wanted_ms)

        return self._run(ask())

    # Topics.

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted.

        Raises: RouteError: no broker has the topic.
        """
        return self._run(self._live().client.queues(check_topic(topic)))

    def on_message_queues_changed(self, topic: str, listener: TopicCallback) -> None:
        """Call `listener(topic, queues)` whenever the topic's queues have changed.

        Checked every `route_interval_ms`; a second listener of a topic replaces the first.
        """
        if self._member is not None:
            self._run(self._live().callbacks.watch_topic(check_topic(topic), listener))
        self._watched[check_topic(topic)] = listener

    def _has_ended(self) -> bool:
        return self._is_closed

    def _ends(self, poller: Hashable) -> bool:
        """Return whether there is nothing more to poll; then the poller's last batch is done.

        Raises: StateError: not started.
        """
        if self._is_closing:
            # A revoked queue waits for this; a poller that only got an error would end nothing.
            self._buffer.finish(poller)
            return True
        self._live()
        return False

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            member = self._live()
        except StateError:
            work.close()  # else Python warns that it was never awaited
            raise
        return member.client.call(work)

    async def _arun(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        # The coroutine is made here, as a caller may be cancelled before this begins: Python would
        # warn that it was never awaited.
        return await self._live().client.acall(work())


class Batches:
    """The iterator of `LitePullConsumer.batches`; for `for` or for `async for`."""

    def __init__(
        self,
        consumer: LitePullConsumer,
        wait_ms: int | None,
        kind: type[PolledBatch] = PolledBatch,
    ) -> None:
        self._consumer = consumer
        self._wait_ms = wait_ms  # None: for as long as it takes
        self._kind = kind
        self._watched: weakref.ref[Hashable] | None = None  # the task whose end is told
        self._turn_s = 0.0  # when the loop's other tasks last had their turn, as far as is known

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PolledBatch:
        consumer = self._consumer
        poller = consumer._holder()
        if consumer._ends(poller):
            raise StopIteration
        batch = consumer._poll(poller, self._wait_ms)
        if not batch:
            raise StopIteration
        return batch

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, PolledBatch]:
        return self.next_of(self._consumer.poller())  # as in `apoll`

    async def next_of(self, poller: Hashable) -> PolledBatch:
        """Return the next batch of a poller; its batch before is done, as soon as this begins."""
        consumer, watched = self._consumer, self._watched
        if watched is None or watched() is not poller:
            self._watch(poller)
        # A batch that waits is taken in the very step in which the one before it ends, without a
        # turn of the loop. But a body that never waits would starve all other tasks while messages
        # come.
        if time.monotonic() - self._turn_s > HOLD_S:
            # Ended before the first await, and none follows the take: a cancelled caller has either
            # not asked, or has no batch that it does not know of.
            consumer._buffer.finish(poller)
            await asyncio.sleep(0)
            self._turn_s = time.monotonic()
        if consumer._ends(poller):
            if isinstance(poller, asyncio.Task):
                poller.remove_done_callback(consumer._buffer.poller_ended)
            raise StopAsyncIteration
        batch = await consumer._apoll(poller, self._wait_ms, self._kind)
        if not batch:
            raise StopAsyncIteration
        return batch

    def _watch(self, poller: Hashable) -> None:
        """Have the end of a task told; another one may have iterated before."""
        if isinstance(poller, asyncio.Task):
            ended = self._consumer._buffer.poller_ended
            poller.remove_done_callback(ended)  # it is added once
            poller.add_done_callback(ended)
        self._watched = weakref.ref(poller)


def _several(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    # A queue is a tuple, so one alone would be taken for three of its fields.
    if isinstance(queues, MessageQueue):
        raise ConfigError(f"{queues}: expected a list of queues; give [queue] for one")
    several = list(queues)
    for queue in several:
        require_queue(queue, _QUEUES)
    return several
