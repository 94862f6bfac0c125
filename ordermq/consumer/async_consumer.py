"""AsyncConsumer: a member of a consumer group for asyncio code, on the caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Collection, Coroutine, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Never, Protocol, Self, TypeVar, Unpack, cast

from ordermq.client.runtime import in_thread, shielded
from ordermq.client.user_code import CallersLoop, QueueCallback, running_task
from ordermq.clock import Clock
from ordermq.closing import CLOSED_BY_ITSELF, AsyncStarting
from ordermq.config import ConsumerConfig, LitePullConsumerConfig
from ordermq.config.checks import (
    arguments_of,
    meaning_of,
    names_of_calls,
    refuse_misplaced,
    refuse_unknown,
)
from ordermq.config.foreign_methods import ExplainsMethods
from ordermq.consumer.dispatch.failure_policy import FailurePolicy
from ordermq.consumer.hooks import ConsumeHook, MessageFilter
from ordermq.consumer.listener import ConcurrentListener, Listener
from ordermq.consumer.lite_pull_consumer import LitePullConsumer
from ordermq.consumer.offsets.offset_store import AnyOffsetStore, is_async_store
from ordermq.consumer.push_consumer import SIGNALS_LEFT_ALONE, PushConsumer
from ordermq.consumer.queue.poll_buffer import PolledBatch
from ordermq.consumer.queue.statistics import ConsumerStatistics, Lag
from ordermq.errors import ConfigError, StateError
from ordermq.model.codec import Codec
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import EVERYTHING

if TYPE_CHECKING:
    from ordermq.config.settings import AsyncConsumerSettings
    from ordermq.health import ConsumerHealth
    from ordermq.wall_time import Span

_log = logging.getLogger("ordermq.consumer")
_L = TypeVar("_L", bound=Listener)
_C = TypeVar("_C", bound=ConcurrentListener)
_CLOSE_TIMEOUT_S = 60.0
_CLEAN_UP_S = 5.0  # `close` waits so long for listeners that were cancelled
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_OF_ITERATION = LitePullConsumerConfig.kinds().keys() - ConsumerConfig.kinds().keys()
_OF_LISTENERS = {
    *(ConsumerConfig.kinds().keys() - LitePullConsumerConfig.kinds().keys()),
    "history",
    "offset_store",  # one of asyncio's
    "message_model",  # iteration is under queue locks, and broadcasting has none
}


class AsyncBatch(PolledBatch):
    """Messages of one queue, ascending in offset, as `async for` of a consumer gives them."""

    __slots__ = ("_consumer",)

    _consumer: LitePullConsumer  # that it was polled from

    async def commit(self) -> None:
        """Commit the batch now; returns when the broker has acknowledged it.

        The batch is done then, and its queue may go to another task or member.

        Raises: StateError: it is done already, or its lease was lost: it is redelivered.
            RemotingError, RouteError: the broker did not take it; commit again.
        """
        await self._consumer.acommit_batch(self)


class AsyncBatches:
    """The iterator of `AsyncConsumer.batches`."""

    def __init__(self, consumer: LitePullConsumer, timeout_ms: Span | None) -> None:
        self._consumer = consumer
        self._polled = consumer.batches_of(AsyncBatch, timeout_ms)

    def __aiter__(self) -> Self:
        # A loop that was left has not finished its last batch: entering another one must not
        # count as asking for the next. Its messages are tried again after the back-off.
        self._consumer.fail()
        return self

    def __anext__(self) -> Coroutine[Any, Any, AsyncBatch]:
        # No `async def`: the poller is the task that calls it, as in `LitePullConsumer.apoll`.
        return self._next(self._consumer.poller())

    async def _next(self, poller: Hashable) -> AsyncBatch:
        batch = cast(AsyncBatch, await self._polled.next_of(poller))
        batch._consumer = self._consumer
        return batch


class _Use(Protocol):
    """A use of an AsyncConsumer, for a listener or for iteration, around the consumer it needs."""

    @property
    def consumer(self) -> PushConsumer | LitePullConsumer: ...

    def listened(self) -> PushConsumer:
        """Return the consumer of a listener, or raise StateError."""

    def iterated(self) -> LitePullConsumer:
        """Return the consumer of an iteration, or raise StateError."""

    def leave(self, task: asyncio.Task[Any] | None) -> None:
        """Give up what only this task could finish, which is about to close the consumer."""

    def assigned_queues(self) -> list[MessageQueue]: ...

    async def pause(self, queue: MessageQueue) -> None: ...

    async def resume(self, queue: MessageQueue | None) -> None: ...

    def seek(self, queue: MessageQueue, offset: int) -> Coroutine[Any, Any, None]: ...


class _Listening:
    def __init__(self, **arguments: Any) -> None:
        self.consumer = PushConsumer(**arguments)

    def listened(self) -> PushConsumer:
        return self.consumer

    def iterated(self) -> LitePullConsumer:
        raise StateError(
            "this consumer has a listener, or settings for one: it cannot be iterated",
            group=self.consumer.group,
        )

    def leave(self, task: asyncio.Task[Any] | None) -> None:
        """Leave nothing: close waits for the calls of listeners."""

    def assigned_queues(self) -> list[MessageQueue]:
        return self.consumer.assigned_queues()

    async def pause(self, queue: MessageQueue) -> None:
        self.consumer.pause(queue)

    async def resume(self, queue: MessageQueue | None) -> None:
        await in_thread(self.consumer.resume, queue)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        await asyncio.wrap_future(self.consumer.seek(queue, offset))


class _Iteration:
    def __init__(self, **arguments: Any) -> None:
        if arguments.get("config") is None:
            arguments["ordered"] = True
        self.consumer = LitePullConsumer(**arguments)
        if not self.consumer.config.lite.ordered:
            raise ConfigError(
                "config: an AsyncConsumer is iterated under queue locks, with ordered=True",
                group=self.consumer.group,
            )

    def listened(self) -> PushConsumer:
        raise StateError(
            "no listener: decorate one with @consumer.orderly or concurrently, or iterate",
            group=self.consumer.group,
        )

    def iterated(self) -> LitePullConsumer:
        return self.consumer

    def leave(self, task: asyncio.Task[Any] | None) -> None:
        self.consumer.give_back_of(task)

    def assigned_queues(self) -> list[MessageQueue]:
        return self.consumer.assignment()

    async def pause(self, queue: MessageQueue) -> None:
        self.consumer.pause([queue])

    async def resume(self, queue: MessageQueue | None) -> None:
        await in_thread(self.consumer.resume, None if queue is None else [queue])

    def seek(self, queue: MessageQueue, offset: int) -> Coroutine[Any, Any, None]:
        return self.consumer.aseek(queue, offset)


class AsyncConsumer(ExplainsMethods, AsyncStarting):
    """A member of a consumer group whose user code runs on the event loop that starts it.

    With a listener it works as a `PushConsumer`: `async def` listeners, `on_assigned` and
    `on_revoked` run on the loop, plain listeners on worker threads. Without one it is iterated,
    as a `LitePullConsumer(ordered=True)`:

        async with AsyncConsumer("billing", "orders", name_servers=...) as consumer:
            async for batch in consumer:
                with batch:
                    ...

    A batch is of one queue, ascending in offset, and done at the end of `with batch:`, without it
    when its task asks for the next one, or by `await batch.commit()`. One that failed in its block,
    or that its task has left, by `break` or an exception, is redelivered after the back-off of
    `on_failure`, or that acts (docs/failures.md). Each task that iterates has batches of its own;
    no two tasks have a batch of one queue.

    Leases are renewed on the I/O thread: a loop that is blocked loses none (docs/asyncio.md).

    Args:
        group, name_servers, instance_name, clock: as of `PushConsumer`.
        topics: to subscribe; `subscribe` for a part of a topic.
        config: all settings at once, for a listener or for iteration; else give them flat.
        history: for a listener, as of `PushConsumer`.
        on_failure, offset_store, codec: as of `PushConsumer`, or of `LitePullConsumer`.
        on_assigned, on_revoked: plain or `async def`, called on the loop with a queue before its
            first pull, and after it was given up; not to close the consumer from.
        settings: those of `PushConsumer` for a listener, or of `LitePullConsumer` for iteration.
    Raises: ConfigError: a name or setting no broker would take, or settings of both uses.
    """

    _kind = "consumer"

    def __init__(
        self,
        group: str | None = None,
        *topics: str,
        name_servers: str | Sequence[str] | None = None,
        instance_name: str | None = None,
        config: ConsumerConfig | LitePullConsumerConfig | None = None,
        on_failure: FailurePolicy | None = None,
        offset_store: AnyOffsetStore | None = None,
        codec: Codec | None = None,
        on_assigned: QueueCallback | None = None,
        on_revoked: QueueCallback | None = None,
        history: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        **settings: Unpack[AsyncConsumerSettings],
    ) -> None:
        options = {
            "name_servers": name_servers,
            "instance_name": instance_name,
            "config": config,
            "on_failure": on_failure,
            "offset_store": offset_store,
            "codec": codec,
            "on_assigned": on_assigned,
            "on_revoked": on_revoked,
            "history": history,
            "clock": clock,
        }
        given = {name: value for name, value in options.items() if value is not None}
        self._arguments: dict[str, Any] = {"group": group, **given, **settings}
        # A store of asyncio has transactions, which are around calls of a listener.
        uses = given.keys() - ({"offset_store"} if not is_async_store(offset_store) else set())
        self._is_for_listener = _is_for_listener(config, uses, settings.keys())
        # Why it is for a listener, until one is registered.
        self._unheard = sorted(_OF_LISTENERS & {*uses, *settings})
        if type(config) is ConsumerConfig:
            self._unheard.append("config")
        # Made now even where a listener may follow: a wrong value raises at the caller's line.
        self._use: _Use = (_Listening if self._is_for_listener else _Iteration)(**self._arguments)
        self.group = self._use.consumer.group
        self._loop: CallersLoop | None = None
        self._stopped = asyncio.Event()
        self._subscribed: list[tuple[str, str, str | None]] = []
        for topic in topics:
            self.subscribe(topic)

    def __repr__(self) -> str:
        return f"<AsyncConsumer {self.group} {self.client_id}>"

    def _settings(self) -> frozenset[str]:
        return _flat_names()

    @property
    def client_id(self) -> str:
        """The member's id, as brokers list it."""
        return self._use.consumer.client_id

    @property
    def blocking(self) -> PushConsumer | LitePullConsumer:
        """The consumer inside, for metrics and for calls that are not here; most of them block.

        Another one from the registration of a listener on.
        """
        return self._use.consumer

    @property
    def statistics(self) -> ConsumerStatistics:
        """The member's counters."""
        return self._use.consumer.statistics

    # Before the start.

    def subscribe(
        self,
        topic: str,
        expression: str = EVERYTHING,
        *misplaced: Never,
        sql: str | None = None,
        **unknown: Never,
    ) -> None:
        """Consume `topic`, or the part of it that `PushConsumer.subscribe` describes."""
        if misplaced:
            example = "consumer.subscribe(topic, expression), and a listener with @consumer.orderly"
            refuse_misplaced(AsyncConsumer.subscribe, (topic, expression, *misplaced), example)
        if unknown:
            refuse_unknown(AsyncConsumer.subscribe, unknown)
        self._require_not_started("subscribe")
        self._use.consumer.subscribe(topic, expression, sql=sql)
        self._subscribed.append((topic, expression, sql))

    def orderly(self, listener: _L) -> _L:
        """Register the listener, as `PushConsumer.orderly`; `async def` runs on the loop."""
        registered = self._for_listener("orderly").orderly(listener)
        self._unheard = []
        return registered

    def concurrently(self, listener: _C) -> _C:
        """Register the listener, as `PushConsumer.concurrently`; `async def` runs on the loop."""
        registered = self._for_listener("concurrently").concurrently(listener)
        self._unheard = []
        return registered

    def add_hook(self, hook: ConsumeHook) -> None:
        """Have `hook` called around each listener call, as `PushConsumer.add_hook`."""
        self._for_listener("add_hook").add_hook(hook)

    def add_filter(self, keep: MessageFilter) -> None:
        """Give the listener only some messages, as `PushConsumer.add_filter`."""
        self._for_listener("add_filter").add_filter(keep)

    def _for_listener(self, call: str) -> PushConsumer:
        self._require_not_started(call)
        self._unheard.append(f"{call}()")
        if self._is_for_listener is None:
            self._is_for_listener = True
            self._use = _Listening(**self._arguments)
            for topic, expression, sql in self._subscribed:
                self._use.consumer.subscribe(topic, expression, sql=sql)
        return self._use.listened()

    def _require_not_started(self, call: str) -> None:
        if self._loop is not None:
            raise StateError(f"{call}() before the consumer starts", group=self.group)

    # Joining and leaving.

    async def start(self) -> Self:
        """Join the group and return self; this loop is the one that all user code runs on.

        A caller that is cancelled meanwhile leaves the group again.

        Raises: as `PushConsumer.start`, or `LitePullConsumer.start`.
        """
        if self._loop is not None:
            raise StateError(
                "start() may be called only once; create a new AsyncConsumer", group=self.group
            )
        if self._is_for_listener and self._unheard:
            raise StateError(
                "no listener: decorate one with @consumer.orderly or concurrently. To iterate, "
                f"leave out {', '.join(self._unheard)}: for listeners only",
                group=self.group,
            )
        loop = self._loop = CallersLoop(asyncio.get_running_loop(), self.group)
        consumer = self._use.consumer
        try:
            await shielded(in_thread(consumer.start_with, loop), consumer.give_up_start)
        except asyncio.CancelledError:
            await shielded(in_thread(consumer.close, 0.0))
            raise
        except BaseException:
            self._loop = None  # not started: it may be tried again
            raise
        return self

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> Coroutine[Any, Any, bool]:
        """Leave the group: hand every queue over, then disconnect.

        Waits for listener calls in progress, and for the batches of other tasks: each ends when
        its task asks for the next one, which ends its loop. The calling task's own batch is
        redelivered, unless it was committed.

        Args:
            timeout_s: how long that may take. After it listeners are cancelled, and the locks of
                their queues expire at the broker.
        A second call, or the cancellation of the caller, ends the wait immediately.

        Returns: True if every queue was handed over in order; a later call returns the same.
        Raises: StateError: called by a listener or callback of this consumer, which it would wait
            for; call `stop` there.
        """
        # No `async def`: the batch to give up, or the listener that must not wait, is of the task
        # that calls it, not of one that asyncio.gather or a wait_for makes of it.
        return self._close(timeout_s, running_task())

    async def _close(self, timeout_s: float, caller: asyncio.Task[Any] | None) -> bool:
        loop, consumer = self._loop, self._use.consumer
        if loop is None:
            return True
        if loop.has(caller):
            raise StateError(CLOSED_BY_ITSELF, group=self.group)
        self._stopped.set()
        self._use.leave(caller)
        is_in_order = await shielded(in_thread(consumer.close, timeout_s), consumer.hurry_close)
        if loop.loop is asyncio.get_running_loop():
            await loop.ended(_CLEAN_UP_S)
        return is_in_order

    async def run(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> bool:
        """Start unless started, call the listener until SIGINT, SIGTERM or `stop`, then `close`.

        A second signal ends the wait for listeners immediately, as a second cancellation does.
        Only a loop on the main thread can handle signals: on another one they are left alone.

        Returns: as `close`. Raises: as `start`; StateError: there is no listener.
        """
        self._use.listened()
        with self._signals():
            if self._loop is None:
                await self.start()
            try:
                await self._stopped.wait()
            finally:
                is_in_order = await self.close(timeout_s)
        return is_in_order

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            _log.info(SIGNALS_LEFT_ALONE, self.group)
            yield
            return
        loop = asyncio.get_running_loop()
        previous = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in previous.items():
                loop.remove_signal_handler(number)
                if handler is not None:  # None: not set by Python, so not to be set by it either
                    signal.signal(number, handler)

    def _on_signal(self) -> None:
        if self._stopped.is_set():
            _log.warning(
                "group %s: second signal: leaving without waiting for listeners",
                self.group,
                extra=log_fields(group=self.group, member=self._use.consumer.client_id),
            )
            self._use.consumer.hurry_close()
        else:
            self._stop()

    def stop(self) -> None:
        """Make `run` close and return, and end each `async for` after its present batch.

        From any thread, signal handler, listener or callback.
        """
        if self._loop is not None:
            self._loop.post(self._stop)
        else:
            self._stopped.set()

    def _stop(self) -> None:
        self._stopped.set()
        self._use.consumer.stop()

    # Messages.

    def __aiter__(self) -> AsyncBatches:
        return self.batches().__aiter__()

    def batches(self, timeout_ms: Span | None = None, **unknown: Never) -> AsyncBatches:
        """Iterate with `async for batch in consumer.batches(...)`.

        Args:
            timeout_ms: end when nothing came for so long, in ms, as "3s", or a timedelta; None
                goes on until `stop` or `close`.
        Raises: StateError: the consumer has a listener.
        """
        if unknown:
            refuse_unknown(AsyncConsumer.batches, unknown)
        consumer = self._use.iterated()
        return AsyncBatches(consumer, timeout_ms)

    # While it runs.

    def assigned_queues(self) -> list[MessageQueue]:
        """Return the queues assigned now, sorted; [] before the start and after the close."""
        return self._use.assigned_queues()

    async def pause(self, queue: MessageQueue) -> None:
        """Begin no batch of an assigned queue until `resume`; its lock is kept.

        Raises: StateError: it is not assigned.
        """
        await self._use.pause(queue)

    async def resume(self, queue: MessageQueue | None = None) -> None:
        """End a `pause`, or a stop by a failure policy or by `pause_after_dead_letters`, of a
        queue, or of all of them.

        Raises: StateError: the queue is not assigned.
        """
        await self._use.resume(queue)

    def seek(self, queue: MessageQueue, offset: int) -> Coroutine[Any, Any, None]:
        """Continue from `offset`, forwards or backwards, as `PushConsumer.seek` or, iterating,
        `LitePullConsumer.seek`; not in a listener of this queue.

        Raises: as these.
        """
        # No `async def`: an iteration forgets the batch of the task that calls it, as in
        # `LitePullConsumer.apoll`.
        return self._use.seek(queue, offset)

    async def parked_keys(self) -> dict[MessageQueue, list[str]]:
        """Return the sharding keys that `ParkKey` holds back at this member, by queue.

        Raises: StateError: it has no listener, or is not running.
        """
        return await in_thread(self._use.listened().parked_keys)

    async def unpark(self, key: str) -> bool:
        """Continue with a parked sharding key, as `PushConsumer.unpark`.

        Raises: StateError: it has no listener, or is not running.
        """
        return await in_thread(self._use.listened().unpark, key)

    async def lag(self) -> dict[MessageQueue, Lag]:
        """Return how far each held queue is behind, as `PushConsumer.lag`."""
        return await in_thread(self._use.consumer.lag)

    async def health(self) -> ConsumerHealth:
        """Return what this consumer can do at this moment, for a probe; never raises."""
        return await in_thread(self._use.consumer.health)


def _flat_names() -> frozenset[str]:
    """Return the settings of either use."""
    return ConsumerConfig.flat_names() | LitePullConsumerConfig.flat_names()


def _is_for_listener(
    config: ConsumerConfig | LitePullConsumerConfig | None,
    arguments: Collection[str],
    settings: Collection[str],
) -> bool | None:
    """Return whether these are for a listener or for iteration; None: for either.

    Raises: ConfigError: some are for one and some for the other, or there is no such setting.
    """
    if "ordered" in settings:
        raise ConfigError("ordered: an AsyncConsumer is iterated under queue locks in any case")
    known = ConsumerConfig.kinds().keys() | _OF_ITERATION
    for name in settings:
        if name not in known:
            own = [*_flat_names(), *arguments_of(AsyncConsumer)]
            meant = meaning_of(name, own, names_of_calls(AsyncConsumer))
            raise ConfigError(f"AsyncConsumer has no setting {name!r}{meant}")
    if not isinstance(config, ConsumerConfig | LitePullConsumerConfig | None):
        raise ConfigError(
            "config: expected a ConsumerConfig for a listener, or a LitePullConsumerConfig for "
            f"iteration, not a {type(config).__name__}"
        )
    given = {*arguments, *settings}
    listened, iterated = sorted(_OF_LISTENERS & given), sorted(_OF_ITERATION & given)
    if type(config) is ConsumerConfig:
        listened.append("config")
    elif config is not None:
        iterated.append("config")
    if listened and iterated:
        raise ConfigError(
            f"{listened[0]} is for a listener, {iterated[0]} for iteration: a consumer has one of "
            "these uses"
        )
    return bool(listened) if listened or iterated else None
