"""Push consumer: a member of a group that calls listeners with messages."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack

from ordermq.callables import (
    require_callback,
    require_functions,
    require_methods,
    require_plain,
)
from ordermq.client.name_server_api import are_proxies, parse_name_servers
from ordermq.client.session import new_client_id
from ordermq.client.user_code import CallersLoop, OwnThreads, UserCode
from ordermq.clock import Clock, SystemClock
from ordermq.config import ConsumeMode, ConsumerConfig, MessageModel
from ordermq.config.checks import refuse_misplaced, refuse_places, refuse_unknown
from ordermq.consumer.dispatch.failure_policy import (
    MAX_RECONSUME_TIMES,
    DeadLetter,
    FailurePolicy,
    ParkKey,
    Retry,
    policy_for,
)
from ordermq.consumer.group.group_consumer import GroupConsumer
from ordermq.consumer.group.member_parts import MemberSettings, ReceiverParts
from ordermq.consumer.listener import (
    CONCURRENT,
    MANUAL_COMMIT,
    ConcurrentListener,
    Listener,
    ListenerResults,
    decoding,
    require_listener,
)
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.errors import ConfigError, StateError, exc_info_of
from ordermq.events import History, NoHistory
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue, require_offset, require_queue
from ordermq.model.names import check_group, retry_topic
from ordermq.model.names import wrapped as with_namespace
from ordermq.model.subscription import EVERYTHING, Subscription
from ordermq.threads import SIGNAL_CHECK_S
from ordermq.wall_time import moment_ms

if TYPE_CHECKING:
    from ordermq.client.trace import TraceDispatcher
    from ordermq.config.settings import ConsumerSettings
    from ordermq.consumer.call_times import CallTimes
    from ordermq.consumer.dispatch.concurrent import ConcurrentDispatcher
    from ordermq.consumer.dispatch.orderly import OrderedDispatcher
    from ordermq.consumer.hooks import ConsumeHook, MessageFilter
    from ordermq.consumer.offsets.offset_store import AnyOffsetStore
    from ordermq.model.codec import Codec
    from ordermq.wall_time import Moment

_log = logging.getLogger("ordermq.consumer")
_L = TypeVar("_L", bound=Listener)
_C = TypeVar("_C", bound=ConcurrentListener)
_CLOSE_TIMEOUT_S = 60.0
_COMMIT_LOOP_MIN_MS = 100  # with commit_interval_ms=0 the loop only repeats failed commits
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SIGNALS_LEFT_ALONE = (
    "group %s: run() is not on the main thread: SIGINT and SIGTERM are left alone; call stop() to "
    "end it"
)


class PushConsumer(GroupConsumer):
    """A member of a consumer group that is called with messages.

    In order, queue by queue (`orderly`), or many batches at once (`concurrently`); all members
    of a group must choose alike.

    Args:
        group: the consumer group; all its members must subscribe alike.
        name_servers: `host:port`, several joined by `;` or in a list; default those of `config`,
            or of the environment variable ORDERMQ_NAME_SERVERS.
        instance_name: a name in the client id, for admin tools; the id is unique with and
            without it. With `message_model="broadcasting"` it is the whole name, by which the
            offset file is found: default "DEFAULT", and each member of a host needs one of its
            own.
        config: all settings at once; else give them flat, as `pull_batch_size=64`.
        on_failure: what happens to a message that keeps failing, after how many attempts, after
            which pauses, and by which exceptions (docs/failures.md); default `Retry()`, or the
            dead-letter topic if `max_attempts` or `max_reconsume_times` is given. A concurrent
            group has `DeadLetter()` only.
        offset_store: keeps the group's offsets instead of the brokers, whose offsets follow it;
            of an orderly group. With `ordermq.sql.SqlOffsetStore` each message takes effect in
            your database exactly once (docs/exactly-once.md).
        codec: makes the values of `message.value()`, as `JsonCodec()` (docs/codecs.md).
        on_assigned, on_revoked: called with a queue before its first pull, and after it was given
            up.
        history: a file to record the run's events in, for `ordermq audit`.
        clock: time, as an argument; for tests.
        settings: any field of `ConsumerConfig`'s groups.
    Raises: ConfigError: a name or setting no broker would take.
    """

    def __init__(
        self,
        group: str | None = None,
        *misplaced: Never,
        name_servers: str | Sequence[str] | None = None,
        instance_name: str | None = None,
        config: ConsumerConfig | None = None,
        on_failure: FailurePolicy | None = None,
        offset_store: AnyOffsetStore | None = None,
        codec: Codec | None = None,
        on_assigned: Callable[[MessageQueue], None] | None = None,
        on_revoked: Callable[[MessageQueue], None] | None = None,
        history: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        if misplaced:
            refuse_places(type(self), group, misplaced)
        self.config = ConsumerConfig.given(config, settings, type(self))
        self.group = check_group(self.config.group_or(group))
        self.name_servers = parse_name_servers(self.config.name_servers_or(name_servers))
        if on_failure is not None and not isinstance(on_failure, FailurePolicy):
            raise ConfigError(
                f"on_failure={on_failure!r}: expected Retry(), ParkKey(), DeadLetter() or Stop()",
                group=self.group,
            )
        # Wrong combinations raise here, at the caller's line, and not as the first message fails.
        self._policy = policy_for(on_failure, self.config.consume, self.group)
        parking = on_failure if type(on_failure) is ParkKey else None
        if parking is not None and not self.config.consume.order_by_key:
            raise ConfigError("on_failure=ParkKey() needs order_by_key=True", group=self.group)
        self._is_broadcasting = self.config.message_model is MessageModel.BROADCASTING
        if self._is_broadcasting and parking is not None and parking.topic:
            raise ConfigError(
                "ParkKey with a topic is not for broadcasting: its log is the group's, and each "
                "member has every message; use ParkKey()",
                group=self.group,
            )
        if self._is_broadcasting and history is not None:
            raise ConfigError(
                "history: not for broadcasting: every member has every message", group=self.group
            )
        if history is not None and not isinstance(history, str | os.PathLike):
            raise ConfigError(f"history={history!r}: expected the path of a file", group=self.group)
        # A proxy leases batches over gRPC; it has no other way.
        is_behind_proxy = are_proxies(self.name_servers)
        self._pops = self.config.consume_mode is ConsumeMode.POP or is_behind_proxy
        if self._pops:
            self._check_pop(on_failure, offset_store, is_behind_proxy=is_behind_proxy)
        self._offset_store = offset_store
        if offset_store is not None:
            self._check_offset_store(offset_store)
        self._codec: Codec | None = None
        if codec is not None:
            from ordermq.model.codec import require_codec

            self._codec = require_codec(codec, self.group)
        self.client_id = new_client_id(
            self.config.remoting,
            self.name_servers,
            instance_name,
            is_broadcasting=self._is_broadcasting,
        )
        self._clock = clock if clock is not None else SystemClock()
        consume = self.config.consume
        self._begin_counting(consume.pause_after_dead_letters, consume.dead_letter_window)
        self._hooks: list[ConsumeHook] = []
        self.call_times: CallTimes | None = None  # see `time_calls`
        # Made at the start: until then nothing runs that a forgotten `close` would leak.
        self._traces: TraceDispatcher | None = None
        self._filters: list[MessageFilter] = []
        self._on_failure = on_failure
        require_callback("on_assigned", on_assigned)
        require_callback("on_revoked", on_revoked)
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._history_path = history
        self._subscriptions: dict[str, Subscription] = {}
        self._listener: Listener | None = None
        self._concurrent_listener: ConcurrentListener | None = None
        # Not an Event: `stop` is called from signal handlers, which may interrupt a thread that
        # holds the Event's lock. SimpleQueue.put is reentrant.
        self._stop_requests: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __repr__(self) -> str:
        return f"<PushConsumer {self.group} {self.client_id}>"

    def _check_pop(
        self,
        on_failure: FailurePolicy | None,
        store: AnyOffsetStore | None,
        *,
        is_behind_proxy: bool,
    ) -> None:
        from ordermq.consumer.offsets.offset_store import may_claim
        from ordermq.consumer.pop.refusals import refuse_for_pops  # few pop

        problem = ""
        if type(on_failure) is ParkKey:
            problem = (
                "on_failure=ParkKey(): a queue hands out nothing while one popped message is not "
                "done; use Retry(), DeadLetter() or Stop()"
            )
        elif store is not None and not may_claim(store):
            problem = (
                "an offset_store without claim(): the broker alone decides where a batch begins, "
                "and only a store with transactions that gives out epochs, as SqlOffsetStore, can "
                "tell what of it is done"
            )
        refuse_for_pops(
            self.config,
            self.group,
            is_behind_proxy=is_behind_proxy,
            commits=self.config.consume.auto_commit,
            deduplicates=self.config.pull.deduplicate,
            problem=problem,
        )

    def _check_offset_store(self, store: AnyOffsetStore) -> None:
        consume = self.config.consume
        if self._is_broadcasting:
            raise ConfigError(
                "offset_store is not for broadcasting: the store knows groups, and each "
                "broadcasting member has offsets of its own",
                group=self.group,
            )
        from ordermq.consumer.offsets.offset_store import (
            TransactionalStore,
            is_async_store,
            require_plain_store,
        )

        if not is_async_store(store):
            require_plain_store(store)
        if not isinstance(store, TransactionalStore):
            return
        if not consume.auto_commit:
            raise ConfigError(
                "auto_commit=False with an offset store that has transactions: a call's "
                "transaction commits what the call has done; leave auto_commit out",
                group=self.group,
            )
        if consume.order_by_key:
            raise ConfigError(
                "order_by_key=True with an offset store that has transactions: keys finish out of "
                "order, and what is done above the stored offset would be counted twice after a "
                "crash; leave order_by_key out and give the topic more queues, or leave "
                "offset_store out and keep a row per message, by topic, broker, queue and offset "
                "(docs/exactly-once.md)",
                group=self.group,
            )

    def subscribe(
        self,
        topic: str,
        expression: str = EVERYTHING,
        *misplaced: Never,
        sql: str | None = None,
        **unknown: Never,
    ) -> None:
        """Consume `topic`, or change what is consumed of it; before `start` or while running.

        All members of the group must subscribe alike. With another expression, what is buffered
        already is still delivered.

        Args:
            expression: `*`, or tags joined by `||`.
            sql: instead, a condition on message properties, as `a > 5 AND region = 'x'`; for
                brokers with enablePropertyFilter=true.
        Raises:
            ConfigError: an illegal topic or expression, or two of them.
            StateError: closed.
            BrokerError: while running, else at `start`: a broker that has the topic does not filter
                by `sql`.
            RouteError: while running: no name server answers.
        """
        if misplaced:
            example = "consumer.subscribe(topic, expression), and a listener with @consumer.orderly"
            refuse_misplaced(PushConsumer.subscribe, (topic, expression, *misplaced), example)
        if unknown:
            refuse_unknown(PushConsumer.subscribe, unknown)
        if self._is_closing:
            raise StateError("the consumer is closed", topic=topic, group=self.group)
        wanted = Subscription.of(topic, expression, sql, self._next_version())
        if self._member is not None:
            # Recorded here only if every broker took it: else the old expression stays.
            self._member.client.call(self._member.subscribe([wanted]))
        self._subscriptions[wanted.topic] = wanted

    def unsubscribe(self, topic: str) -> None:
        """Consume `topic` no more; while running its queues are handed over first.

        Waits for their listeners. Called by a listener or callback it does not, for it would wait
        for itself: each queue is then handed over when its own call has returned.

        Raises: StateError: not subscribed, or closed.
        """
        if self._is_closing or topic not in self._subscriptions:
            raise StateError("this topic is not subscribed", topic=topic, group=self.group)
        if (member := self._member) is not None:
            waits = not member.is_called_by_itself
            member.client.call(member.unsubscribe(topic, waits_for_batches=waits))
        # Another thread may have unsubscribed it meanwhile.
        self._subscriptions.pop(topic, None)

    def orderly(self, listener: _L) -> _L:
        """Register the listener, plain or `async def`; usable as a decorator.

        It is called as `listener(messages, context)`, with messages of one queue, ascending;
        see `ConsumeResult` for what it may return.

        Raises: ConfigError: it cannot be called so. StateError: there is one already.
        """
        # Now, not at the first message: then it would fail forever, far from its cause.
        require_listener(listener, self.group)
        self._require_no_listener()
        self._in_transactions(listener)  # what it refuses, it refuses at the caller's line
        self._listener = listener
        return listener

    def concurrently(self, listener: _C) -> _C:
        """Register the listener, plain or `async def`, for many batches at once
        (docs/internals/semantics.md#concurrent-consumption).

        No order is kept, not within a queue either, and no lock: a queue that moves to another
        member may have messages repeated there. Failed messages are redelivered from the retry
        topic, each time after a longer pause; after `max_reconsume_times` they go to the
        dead-letter topic.

        It is called as `listener(messages, context)`, by up to `consume_thread_count` threads
        (tasks, if `async def`). It returns None or SUCCESS, SUSPEND if all failed, or how many
        are done; `context.ack_index` and `context.delay_level` as in `ConcurrentContext`.

        Raises: ConfigError: a setting that is for ordered groups only, or it cannot be called so.
            StateError: there is one already.
        """
        require_listener(listener, self.group)
        if self._pops and self._history_path is not None:
            raise ConfigError(
                "history with consume_mode='pop' is for @consumer.orderly: without order a message "
                "comes again at another place of another topic, so that an audit could not tell "
                "what is lost",
                group=self.group,
            )
        if self._offset_store is not None:
            raise ConfigError(
                "offset_store: for @consumer.orderly only; a concurrent group holds no locks, so "
                "nothing could tell a late owner from the present one",
                group=self.group,
            )
        consume = self.config.consume
        # Silently ignored, each of these would promise an order that is not kept.
        ordered_only = {
            f"on_failure={self._on_failure!r}": self._on_failure is not None
            and not isinstance(self._on_failure, DeadLetter),
            "max_attempts": consume.max_attempts != 0,
            "auto_commit=False": not consume.auto_commit,
            "order_by_key": consume.order_by_key,
        }
        if wrong := ", ".join(name for name, is_given in ordered_only.items() if is_given):
            raise ConfigError(
                f"{wrong}: for @consumer.orderly only; a concurrent group has "
                "max_reconsume_times, or on_failure=DeadLetter(), and its retry topic",
                group=self.group,
            )
        if self._on_failure is not None and self._is_broadcasting:
            raise ConfigError(
                "on_failure: a broadcasting group has no retry topic, so a concurrent listener's "
                "failed messages are dropped; leave it out",
                group=self.group,
            )
        if isinstance(self._on_failure, DeadLetter):
            self._check_concurrent_backoff(self._on_failure)
        if self._is_broadcasting and consume.max_reconsume_times >= 0:
            raise ConfigError(
                f"max_reconsume_times={consume.max_reconsume_times}: a broadcasting group has no "
                "retry topic, so a concurrent listener's failed messages are dropped; leave it out",
                group=self.group,
            )
        self._require_no_listener()
        self._concurrent_listener = listener
        return listener

    def _check_concurrent_backoff(self, policy: DeadLetter) -> None:
        if policy.retry != Retry() and not policy.retry_on:
            raise ConfigError(
                f"on_failure={policy!r}: in a concurrent group `retry` is for what `retry_on` "
                "names; other failed messages wait at the broker, for 10 s, 30 s, 1 min .., or at "
                "context.delay_level",
                group=self.group,
            )

    def add_hook(self, hook: ConsumeHook) -> None:
        """Have `hook` called before and after each listener call; before `start`."""
        self._require_not_started("add_hook")
        require_plain("hook", *require_methods("hook", hook, "before", "after"))
        self._hooks.append(hook)

    def time_calls(self) -> CallTimes:
        """Have the listener's calls timed; before `start`. Metrics read the times."""
        from ordermq.consumer.call_times import CallTimes

        self._require_not_started("time_calls")
        if self.call_times is None:
            self.call_times = CallTimes(self._count_hook_error)
        return self.call_times

    def _count_hook_error(self, error: BaseException) -> None:
        self.statistics.add("hook_errors")
        if self.statistics["hook_errors"] == 1:
            _log.error(
                "group %s: a recorder of call times raised; calls go on, further errors are "
                "counted in hook_errors",
                self.group,
                exc_info=exc_info_of(error),
                extra=log_fields(group=self.group, member=self.client_id),
            )

    def add_filter(self, keep: MessageFilter) -> None:
        """Give the listener only messages for which `keep(message)` is true; before `start`.

        The others count as done, and in `statistics["filtered"]`. Filtering by tag is cheaper,
        the broker does it. A filter that raises fails the batch, as a listener does.
        """
        self._require_not_started("add_filter")
        require_functions("filter", keep)
        self._filters.append(keep)

    def _require_not_started(self, call: str) -> None:
        if self._member is not None or self._is_closing:
            raise StateError(f"{call} before the consumer starts", group=self.group)

    def _in_transactions(self, listener: Any) -> Any:
        store = self._offset_store
        if store is None:
            return listener
        from ordermq.consumer.dispatch.transactional_listener import (
            async_transactional,
            transactional,
        )
        from ordermq.consumer.offsets.offset_store import TransactionalStore, is_async_store

        group = with_namespace(self.config.remoting.namespace, self.group)
        is_strict = self.config.consume.strict_results
        if is_async_store(store):
            return async_transactional(listener, store, group, is_strict=is_strict)
        if not isinstance(store, TransactionalStore):
            return listener
        return transactional(listener, store, group, is_strict=is_strict)

    def _wrapped(self, listener: Any, results: ListenerResults, member: MemberContext) -> Any:
        hooks = self._hooks
        # Within the hooks: they are told whether the transaction was committed, too.
        around = self._in_transactions(listener)
        if self.call_times is not None:
            around = self.call_times.around(
                around, results, self.config.consume, has_hooks=bool(hooks)
            )
        if self._traces is not None:
            from ordermq.consumer.trace_consumption import TraceConsumption

            traced = TraceConsumption(self._traces, self.group, self._clock)
            around = traced.around(around, results, self.config.consume)
        if hooks or self._filters:
            from ordermq.consumer.hooks import wrapped

            around = wrapped(around, member, self.config.consume, hooks, self._filters, results)
        # Outermost: filters and hooks may want the values, too.
        return around if self._codec is None else decoding(around, self._codec)

    def _require_no_listener(self) -> None:
        first = self._listener or self._concurrent_listener
        if first is not None:
            raise StateError(
                f"this consumer has a listener already, {getattr(first, '__qualname__', first)!s}: "
                "it gets all messages; choose by message.topic or message.tags in it, or use a "
                "consumer of another group",
                group=self.group,
            )

    def start(self) -> Self:
        """Join the group and begin; return self once every topic's route was asked for.

        Raises:
            StateError: no listener or subscription, or started before; another member of this
                process has the same client id, or uses this broadcasting member's offset file.
            StoreError: that file cannot be used.
            RouteError: no name server answers.
        """
        self.start_with(OwnThreads())
        return self

    def start_with(self, user_code: UserCode) -> None:
        """`start`, with the user's coroutines and callbacks run by `user_code`."""
        if self._member is not None or self._is_starting or self._is_closing:
            raise StateError(
                "start() may be called only once; create a new PushConsumer", group=self.group
            )
        if self._listener is None and self._concurrent_listener is None:
            raise StateError(
                "no listener: decorate one with @consumer.orderly or concurrently", group=self.group
            )
        self._require_loop_of_store(user_code)
        if not self._subscriptions:
            raise StateError("no subscription: call subscribe(topic) first", group=self.group)
        self._join_or_leave(user_code)

    def _require_loop_of_store(self, user_code: UserCode) -> None:
        if self._offset_store is None or isinstance(user_code, CallersLoop):
            return
        from ordermq.consumer.offsets.offset_store import is_async_store

        if is_async_store(self._offset_store):
            raise ConfigError(
                "an offset store of asyncio needs an AsyncConsumer: its connections belong to the "
                "loop of the program; take SqlOffsetStore for a PushConsumer",
                group=self.group,
            )

    def _join(self, user_code: UserCode) -> None:
        config, consume = self.config, self.config.consume
        if config.trace.enable_msg_trace:
            from ordermq.client.trace import TraceDispatcher  # here: few consumers are traced

            self._traces = TraceDispatcher(
                self.group, self.name_servers, config.remoting, config.trace, self._clock
            )
        self._start(
            MemberSettings(
                group=self.group,
                client_id=self.client_id,
                name_servers=self.name_servers,
                remoting=config.remoting,
                pull=config.pull,
                lease=config.lease,
                rebalance=config.rebalance,
                message_model=config.message_model,
                subscriptions=self.subscriptions(),
                make_receiver=self._make_dispatcher,
                uses_locks=self._listener is not None and not self._is_broadcasting,
                local_offset_store_dir=config.local_offset_store_dir,
                offset_store=self._offset_store,
                pop=config.pop if self._pops else None,
                is_polled=False,
                thread_count=consume.consume_thread_count,
                # With auto_commit=False, too: what a listener holds back is not done.
                commits_done=True,
                commits_resets=True,
                commit_interval_ms=max(consume.commit_interval_ms, _COMMIT_LOOP_MIN_MS),
                drain_timeout_ms=consume.drain_timeout_ms,
                on_assigned=self._on_assigned,
                on_revoked=self._on_revoked,
                unused_topic=self._unused_topic(),
                user_code=user_code,
                traces=self._traces,
                clock=self._clock,
                recorder=NoHistory()
                if self._history_path is None
                else History(
                    self._history_path,
                    self.client_id,
                    # A user's database has effects that no commit of this client waits for.
                    in_background=self._offset_store is None,
                ),
                statistics=self.statistics,
                guard=self._guard,
            )
        )

    def _make_dispatcher(
        self, parts: ReceiverParts
    ) -> ConcurrentDispatcher | OrderedDispatcher[Any]:
        from ordermq.consumer.dispatch.consume_loop import DispatcherParts

        listener: Any = self._concurrent_listener
        results = CONCURRENT
        if self._listener is not None:
            # With these a ROLLBACK is a failure to hooks, as in Java, also where it commits.
            listener, results = self._listener, MANUAL_COMMIT
        shared = DispatcherParts(
            member=parts.member,
            config=self.config.consume,
            listener=self._wrapped(listener, results, parts.member),
            user_code=parts.user_code,
            guard=self._guard,
        )
        # Each is loaded where it is chosen: a consumer has one of them.
        if self._listener is None:
            from ordermq.consumer.dispatch.concurrent import ConcurrentDispatcher

            return ConcurrentDispatcher(
                shared,
                self._policy
                if isinstance(self._policy, DeadLetter)
                else DeadLetter(MAX_RECONSUME_TIMES + 1),  # Java counts repetitions
                parts.deliver_later,
                is_broadcasting=self._is_broadcasting,
            )
        kind: type[OrderedDispatcher[Any]]
        if self.config.consume.order_by_key:
            from ordermq.consumer.dispatch.key_ordered import KeyOrderedDispatcher

            kind = KeyOrderedDispatcher
        else:
            from ordermq.consumer.dispatch.orderly import OrderlyDispatcher

            kind = OrderlyDispatcher
        return kind(shared, self._policy, parts.offsets)

    @property
    def traces_dropped(self) -> int:
        """Number of trace records that were dropped: too many waited, or no broker took them."""
        return 0 if self._traces is None else self._traces.dropped

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> bool:
        """Leave the group: hand every queue over, then disconnect
        (docs/internals/semantics.md#graceful-shutdown).

        Args:
            timeout_s: time that all of it may take, running listeners, `on_revoked` and brokers
                that do not answer. After it queues are given up without unlock; their locks
                expire at the broker.
        A second call, from another thread, ends that wait immediately. After an exception in it,
        such as KeyboardInterrupt, nothing is waited for, no lock is renewed any more, and the
        locks expire at the broker; a later call finishes what is left.

        Returns: True if every queue was handed over in order; a later call returns the same.
        Raises: StateError: called first by a listener or callback of this consumer, which it
            would wait for; call `stop` there, which makes `run` close.
        """
        member = self._begin_close()
        if self._is_closing:
            self.stop()  # a `run` on the main thread returns, whoever closes
        return True if member is None else member.close(timeout_s)

    def run(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> bool:
        """Start unless started, consume until SIGINT, SIGTERM or `stop`, then `close`.

        A second signal ends the wait for listeners immediately. Only the main thread may handle
        signals: on another one they are left alone, and `stop` ends it.
        """
        numbers = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
        if not numbers:
            _log.info(SIGNALS_LEFT_ALONE, self.group)
        # Restored at the end: `run` may be one phase of a longer program.
        previous = {number: signal.getsignal(number) for number in numbers}
        asked = False

        def ask_to_stop(number: int, frame: FrameType | None) -> None:
            nonlocal asked
            if asked:
                # Breaks out of `close`, which the main thread is in by now.
                raise KeyboardInterrupt
            asked = True
            self.stop()

        for number in numbers:
            signal.signal(number, ask_to_stop)
        try:
            if self._member is None or self._is_closing:
                self.start()
            self._wait_for_stop()
            return self.close(timeout_s)
        except KeyboardInterrupt:
            _log.warning(
                "group %s: second signal: leaving without waiting for listeners",
                self.group,
                extra=log_fields(group=self.group, member=self.client_id),
            )
            self.close(0.0)  # it may have come before the other `close` began
            return False
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _wait_for_stop(self) -> None:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._stop_requests.get(timeout=SIGNAL_CHECK_S)

    def stop(self) -> None:
        """Make `run` close and return; from any thread or signal handler."""
        self._stop_requests.put(None)

    def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions, sorted by topic; with the retry topic, unless broadcasting."""
        retry = retry_topic(self.group)
        mine = dict(self._subscriptions)
        # Failed messages of a group are stored in its retry topic. A broadcasting member drops
        # them: a copy would be delivered to all members. One that pops has none: it pops in order.
        if not self._is_broadcasting and not self._pops:
            mine.setdefault(retry, Subscription(retry, EVERYTHING, (), 0))
        return [mine[topic] for topic in sorted(mine)]

    # While it runs.

    def assigned_queues(self) -> list[MessageQueue]:
        """Return the queues assigned now, sorted; [] before the start and after the close.

        Without the retry topic of an orderly group, which has no messages: nothing is sent back.
        `held_queues` has it, too.
        """
        if self._member is None or self._is_closing:
            return []
        found = self._member.state.assigned_queues(with_draining=True)
        return [queue for queue in found if queue.topic != self._unused_topic()]

    def _unused_topic(self) -> str | None:
        """Return the retry topic if it is held for brokers only; None if messages may be in it."""
        retry = retry_topic(self.group)
        return None if self._listener is None or retry in self._subscriptions else retry

    def pause(self, message_queue: MessageQueue | None = None, *, release: bool = False) -> None:
        """Pause the listener for a queue, or for all queues, until `resume`.

        Args:
            message_queue: an assigned queue; the pause stays if it moves away and comes back.
                None for all queues.
            release: give the lock up, too. The queue is released as in a rebalance and not taken
                again; its lock is free, but the group's other members do not ask for it, since
                the queue stays in this member's share. Without a queue, this consumer leaves the
                group and its queues are reassigned. Returns immediately; `on_revoked` is called
                at the end.
        Raises: StateError: not running; the queue is not assigned, and `release` is not given.
        """
        if message_queue is not None:
            require_queue(message_queue, "assigned_queues()")
        member = self._live()
        if message_queue is not None:
            member.control.pause(message_queue, release)
        elif release:
            member.leave()
        else:
            member.control.pause_all()

    def resume(self, message_queue: MessageQueue | None = None) -> None:
        """End a `pause`, or a stop by `Stop()` or by `pause_after_dead_letters`, of a queue, or of
        all paused queues.

        Raises: StateError: not running; the queue is neither assigned nor released.
        """
        if message_queue is not None:
            require_queue(message_queue, "assigned_queues()")
        member = self._live()
        if message_queue is not None:
            member.control.resume(message_queue)
            member.resume(())
            return
        member.resume(None)
        member.rejoin()  # only after a `pause(release=True)` of everything

    def seek(self, message_queue: MessageQueue, offset: int) -> Future[None]:
        """Continue from `offset`, forwards or backwards
        (docs/internals/semantics.md#pause-and-seek).

        The running batch ends and does not count beyond it; what is buffered is dropped; the
        group's offset is set, even backwards. One whose message has expired becomes the first
        that is left.

        Returns: a future of it. Wait for it anywhere but in a listener of this queue.
        Raises: StateError: not running, or the queue is not assigned. ConfigError: no offset.
            The future: StateError if it moved away first; ConfigError if the queue ends before
            `offset`; RemotingError or RouteError if the broker was not reached: consumption
            continues from `offset`, and the next commit stores it.
        """
        require_queue(message_queue, "assigned_queues()")
        require_offset(offset, f"seek of {message_queue}")
        self._require_pulls("seek")
        return self._live().control.seek(message_queue, offset)

    def seek_to_time(self, message_queue: MessageQueue, timestamp_ms: Moment) -> Future[None]:
        """Continue from the first message stored at a time or later.

        Args:
            timestamp_ms: ms since 1970, a datetime (without a zone: local time), or an age, as "2h"
                or a timedelta.
        Returns and raises as `seek`.
        """
        require_queue(message_queue, "assigned_queues()")
        wanted_ms = moment_ms("timestamp_ms", timestamp_ms, self._clock.wall_ms())
        self._require_pulls("seek_to_time")
        return self._live().control.seek_to_time(message_queue, wanted_ms)

    def _require_pulls(self, method: str) -> None:
        if self._pops:
            raise StateError(
                f"{method}: with consume_mode='pop' another member may have the next batch of the "
                "queue; move the group with `ordermq groups reset`, or by the Admin",
                group=self.group,
            )

    def resize(self, threads: int) -> None:
        """Set the maximum number of concurrent listener calls; at first `consume_thread_count`.

        Fewer threads than now end as their listeners return. An `async def` listener of an
        orderly group needs none: one call runs per queue.

        Raises: ConfigError: not in the range of `consume_thread_count`. StateError: not running.
        """
        # Discarded: constructing it is the check of the range.
        replace(self.config.consume, consume_thread_count=threads)
        self._live().resize(threads)

    def parked_keys(self) -> dict[MessageQueue, list[str]]:
        """The sharding keys that `ParkKey` holds back at this member, by queue."""
        found = self._live().control.parked_keys()
        return {queue: [key.decode(errors="replace") for key in found[queue]] for queue in found}

    def unpark(self, key: str) -> bool:
        """Continue with a parked sharding key, at the message that was given up.

        What lies in a parking topic is consumed first, in order, with `attempt` 0 and the queues
        and offsets that it came from; if one of it fails, the key stays parked from there on.

        Returns: False if this member has not parked it; each member knows its own queues.
        """
        return self._live().control.unpark(key.encode())
