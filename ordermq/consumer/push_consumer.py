"""The push consumer: what a user creates; it wires the room together and decides nothing."""

from __future__ import annotations

import logging
import os
import queue
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from ordermq.client.name_server_api import parse_name_servers
from ordermq.client.session import new_client_id
from ordermq.client.trace import TraceDispatcher
from ordermq.clock import Clock, SystemClock
from ordermq.closing import Starting
from ordermq.config import ConsumerConfig, MessageModel
from ordermq.consumer.dispatch.failure_policy import FailurePolicy, ParkKey, Retry
from ordermq.consumer.group.group_member import Member
from ordermq.consumer.listener import (
    ConcurrentListener,
    ConsumeHook,
    Listener,
    MessageFilter,
    TraceConsumption,
    require_listener,
    wrapped,
)
from ordermq.consumer.member_settings import MemberSettings
from ordermq.consumer.membership import Membership
from ordermq.consumer.offsets.local_offsets import OffsetFile
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.consumer.steered import SteeredConsumer
from ordermq.errors import ConfigError, StateError
from ordermq.events import History, NoHistory
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_group, check_topic, retry_topic
from ordermq.model.subscription import EVERYTHING, Subscription

_log = logging.getLogger("ordermq.consumer")
_L = TypeVar("_L", bound=Listener)
_C = TypeVar("_C", bound=ConcurrentListener)
_CLOSE_TIMEOUT_S = 60.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class PushConsumer(SteeredConsumer, Starting):
    """A member of a consumer group that is called with messages.

    In order, queue by queue (`orderly`), or many batches at once (`concurrently`); all members
    of a group must choose alike.

    Args:
        group: the consumer group; all its members must subscribe alike.
        name_servers: `host:port`, several joined by `;` or in a list.
        instance_name: fixed part of the client id; default unique. Two live consumers of one
            id would both "own" a queue, so leave it alone unless you know why. With
            `message_model="broadcasting"` the offset file is found by it: default "DEFAULT",
            and each member of a host needs one of its own.
        config: all settings at once; else give them flat, as `pull_batch_size=64`.
        on_failure: what happens to a message after `max_attempts`.
        on_assigned, on_revoked: called with a queue when it became ours, and after it is not.
        history: a file to record the run's events in, for `ordermq audit`.
        clock: time, as an argument; for tests.
        settings: any field of `ConsumerConfig`'s groups.
    Raises: ConfigError: a name or setting no broker would take.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | list[str],
        instance_name: str | None = None,
        config: ConsumerConfig | None = None,
        on_failure: FailurePolicy | None = None,
        on_assigned: Callable[[MessageQueue], None] | None = None,
        on_revoked: Callable[[MessageQueue], None] | None = None,
        history: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.group = check_group(group)
        self.name_servers = parse_name_servers(name_servers)
        self.config = ConsumerConfig.given(config, settings)
        if on_failure is not None and not isinstance(on_failure, FailurePolicy):
            raise ConfigError(
                f"on_failure={on_failure!r}: expected Retry(), ParkKey(), DeadLetter() or Stop()",
                group=group,
            )
        if isinstance(on_failure, ParkKey) and not self.config.consume.order_by_key:
            raise ConfigError("on_failure=ParkKey() needs order_by_key=True", group=group)
        self._is_broadcasting = self.config.message_model is MessageModel.BROADCASTING
        if self._is_broadcasting and isinstance(on_failure, ParkKey) and on_failure.topic:
            raise ConfigError(
                "ParkKey with a topic is not for broadcasting: its log is the group's, and each "
                "member has every message; use ParkKey()",
                group=group,
            )
        if self._is_broadcasting and history is not None:
            raise ConfigError(
                "history: not for broadcasting: every member has every message", group=group
            )
        # A broadcasting member must find its offsets again, so it keeps its name; Java's default.
        self.client_id = new_client_id(
            self.config.remoting,
            self.name_servers,
            instance_name,
            is_broadcasting=self._is_broadcasting,
        )
        self._membership = Membership(
            self.name_servers, self.config.remoting.namespace, self.group, self.client_id
        )
        self._clock = clock if clock is not None else SystemClock()
        self.statistics = ConsumerStatistics(self._clock)
        self._hooks: list[ConsumeHook] = []
        self._traces: TraceDispatcher | None = None
        self._filters: list[MessageFilter] = []
        self._on_failure = on_failure
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._history_path = history
        self._subscriptions: dict[str, Subscription] = {}
        self._listener: Listener | None = None
        self._concurrent_listener: ConcurrentListener | None = None
        self._running: Member | None = None
        self._closed = False
        # A simple queue, because its put may be called from a signal handler.
        self._stop_requests: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __repr__(self) -> str:
        return f"<PushConsumer {self.group} {self.client_id}>"

    def subscribe(
        self, topic: str, expression: str = EVERYTHING, *, sql: str | None = None
    ) -> None:
        """Consume `topic`, or change what is consumed of it; before `start` or while running.

        All members of the group must subscribe alike. With another expression, what is buffered
        already still comes.

        Args:
            expression: `*`, or tags joined by `||`.
            sql: instead, a condition on message properties, as `a > 5 AND region = 'x'`; for
                brokers with enablePropertyFilter=true.
        Raises:
            ConfigError: an illegal topic or expression, or two of them.
            StateError: closed.
            BrokerError: while running, else at `start`: a broker does not filter by `sql`.
            RouteError: while running: no name server answers.
        """
        if self._closed:
            raise StateError("the consumer is closed", topic=topic, group=self.group)
        before = self._subscriptions.get(check_topic(topic))
        version = max(self._clock.wall_ms(), before.version + 1 if before is not None else 0)
        if sql is None:
            wanted = Subscription.parse(topic, expression, version)
        elif expression != EVERYTHING:
            raise ConfigError(f"topic {topic!r}: give tags or `sql`, not both", group=self.group)
        else:
            wanted = Subscription.sql(topic, sql, version)
        if self._running is not None:
            self._running.call(self._running.subscriptions.put(wanted))
        self._subscriptions[topic] = wanted

    def unsubscribe(self, topic: str) -> None:
        """Consume `topic` no more; while running its queues are handed over first.

        Waits for their listeners, so do not call it from one.

        Raises: StateError: not subscribed, or closed.
        """
        if self._closed or topic not in self._subscriptions:
            raise StateError("this topic is not subscribed", topic=topic, group=self.group)
        if self._running is not None:
            self._running.call(self._running.subscriptions.remove(topic))
        del self._subscriptions[topic]

    def orderly(self, listener: _L) -> _L:
        """Register the listener, plain or `async def`; usable as a decorator.

        It is called as `listener(messages, context)`, with messages of one queue, ascending;
        see `ConsumeResult` for what it may return.

        Raises: ConfigError: it cannot be called so. StateError: there is one already.
        """
        require_listener(listener, self.group)
        self._require_no_listener()
        self._listener = listener
        return listener

    def concurrently(self, listener: _C) -> _C:
        """Register the listener, plain or `async def`, for many batches at once
        (docs/internals/semantics.md#concurrent-consumption).

        No order is kept, not within a queue either, and no lock: a queue that moves to another
        member may have messages repeated there. What fails comes again later, from the retry
        topic, each time after a longer pause; after `max_reconsume_times` it is in the
        dead-letter topic.

        It is called as `listener(messages, context)`, by up to `consume_thread_count` threads
        (tasks, if `async def`). It returns None or SUCCESS, SUSPEND if all failed, or how many
        are done; `context.ack_index` and `context.delay_level` as in `ConcurrentContext`.

        Raises: ConfigError: a setting that is for ordered groups only, or it cannot be called so.
            StateError: there is one already.
        """
        require_listener(listener, self.group)
        consume = self.config.consume
        ordered_only = {
            "on_failure": self._on_failure is not None,
            "max_attempts": consume.max_attempts != 0,
            "auto_commit=False": not consume.auto_commit,
            "order_by_key": consume.order_by_key,
        }
        if wrong := ", ".join(name for name, is_given in ordered_only.items() if is_given):
            raise ConfigError(
                f"{wrong}: for @consumer.orderly only; a concurrent group has "
                "max_reconsume_times and its retry topic",
                group=self.group,
            )
        self._require_no_listener()
        self._concurrent_listener = listener
        return listener

    def add_hook(self, hook: ConsumeHook) -> None:
        """Have `hook` called before and after each listener call; before `start`."""
        self._require_not_started("add_hook")
        self._hooks.append(hook)

    def add_filter(self, keep: MessageFilter) -> None:
        """Give the listener only messages for which `keep(message)` is true; before `start`.

        The others count as done, and in `statistics["filtered"]`. Filtering by tag is cheaper,
        the broker does it. A filter that raises fails the batch, as a listener does.
        """
        self._require_not_started("add_filter")
        self._filters.append(keep)

    def _require_not_started(self, call: str) -> None:
        if self._running is not None or self._closed:
            raise StateError(f"{call} before the consumer starts", group=self.group)

    def _wrapped(self, listener: Any) -> Any:
        if listener is None:
            return None
        return wrapped(
            listener,
            self.group,
            self._clock,
            self.config.consume.consume_timeout_ms,
            self.statistics,
            self._hooks,
            self._filters,
        )

    def _require_no_listener(self) -> None:
        if self._listener is not None or self._concurrent_listener is not None:
            raise StateError("this consumer has a listener already", group=self.group)

    def start(self) -> None:
        """Join the group and begin; returns once the first shares were asked for.

        Raises:
            StateError: no listener or subscription, or started before; another member of this
                process has our client id, or uses this broadcasting member's offset file.
            StoreError: that file cannot be used.
            RouteError: no name server answers.
        """
        if self._running is not None or self._closed:
            raise StateError("a consumer starts once", group=self.group)
        if self._listener is None and self._concurrent_listener is None:
            raise StateError(
                "no listener: decorate one with @consumer.orderly or concurrently", group=self.group
            )
        if not self._subscriptions:
            raise StateError("no subscription: call subscribe(topic) first", group=self.group)
        self._membership.claim()
        try:
            self._join()
        except BaseException:
            self._running = None
            self._end_traces()
            self._membership.give_up()
            raise

    def _join(self) -> None:
        self._begin_traces()
        member = Member(
            MemberSettings(
                group=self.group,
                client_id=self.client_id,
                name_servers=self.name_servers,
                config=self.config,
                subscriptions=self.subscriptions(),
                listener=self._wrapped(self._listener),
                concurrent_listener=self._wrapped(self._concurrent_listener),
                offset_file=self._open_offsets(),
                on_failure=self._on_failure if self._on_failure is not None else Retry(),
                on_assigned=self._on_assigned,
                on_revoked=self._on_revoked,
                clock=self._clock,
                history=NoHistory()
                if self._history_path is None
                else History(self._history_path, self.client_id),
                statistics=self.statistics,
            )
        )
        # Before it starts: a listener may be called, and steer its queue, before `start` returns.
        self._running = member
        member.start()

    def _begin_traces(self) -> None:
        if self.config.trace.enable_msg_trace:
            self._traces = TraceDispatcher(
                self.group, self.name_servers, self.config.remoting, self.config.trace, self._clock
            )
            self._traces.start()
            self._hooks.append(TraceConsumption(self._traces, self._clock))

    def _end_traces(self) -> None:
        if self._traces is not None:
            self._traces.close()

    @property
    def traces_dropped(self) -> int:
        """Trace records nobody will see: too many waited, or no broker took them."""
        return 0 if self._traces is None else self._traces.dropped

    def _open_offsets(self) -> OffsetFile | None:
        if not self._is_broadcasting:
            return None
        folder = Path(self.config.local_offset_store_dir).expanduser()
        return OffsetFile(folder / self.client_id / self.group / "offsets.json")

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> bool:
        """Leave the group: hand every queue over, then disconnect
        (docs/internals/semantics.md#graceful-shutdown).

        Args:
            timeout_s: how long running listeners may take. After it their queues are given
                up without unlock, their leases run out at the broker.
        A second call, from another thread, ends that wait at once.

        Returns: True if every queue was handed over in order.
        """
        if self._running is None:
            return True
        if self._closed:
            self._running.force()
            return True
        self._closed = True
        self.stop()
        try:
            return self._running.close(timeout_s)
        finally:
            self._end_traces()
            self._membership.give_up()

    def run(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> bool:
        """Start, consume until SIGINT or SIGTERM, then `close`; on the main thread.

        A second signal ends the wait for listeners at once.
        """
        previous = {number: signal.getsignal(number) for number in _SIGNALS}
        asked = False

        def ask_to_stop(number: int, frame: FrameType | None) -> None:
            nonlocal asked
            if asked:
                raise KeyboardInterrupt
            asked = True
            self.stop()

        for number in _SIGNALS:
            signal.signal(number, ask_to_stop)
        try:
            self.start()
            self._stop_requests.get()
            return self.close(timeout_s)
        except KeyboardInterrupt:
            _log.warning("second signal: leaving without waiting for listeners")
            return False
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Make `run` hand over and return, from any thread or signal handler."""
        self._stop_requests.put(None)

    def subscriptions(self) -> list[Subscription]:
        """What is subscribed, sorted by topic; the retry topic too, but for broadcasting."""
        retry = retry_topic(self.group)
        mine = dict(self._subscriptions)
        if not self._is_broadcasting:
            mine.setdefault(retry, Subscription(retry, EVERYTHING, (), 0))
        return [mine[topic] for topic in sorted(mine)]

    def _member(self) -> Member | None:
        return None if self._closed else self._running
