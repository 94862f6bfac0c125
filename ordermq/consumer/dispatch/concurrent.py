"""The concurrent consume service: batches of a queue on many threads at once
(docs/internals/semantics.md#concurrent-consumption).

A queue is in the pool at most once, by its dispatch flag. Whoever serves it claims one batch,
hands the queue on to the next thread if there is more, and only then calls the listener: so
as many batches run as there are threads, of whichever queues have messages. What is done is
committed up to the smallest offset that is not; what failed is first stored again by the
broker, for later, in the group's retry topic.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ordermq.client.runtime import repeat
from ordermq.client.session import ClientSession
from ordermq.config import ConsumeConfig, PullConfig
from ordermq.consumer.dispatch.failure_policy import send_back
from ordermq.consumer.dispatch.worker_pool import call_alone, pool_for
from ordermq.consumer.listener import ConcurrentContext, ConcurrentListener, judge_concurrent
from ordermq.consumer.queue.assigned_queue import (
    UNLOCKED,
    AssignedQueue,
    BatchClaim,
    Lease,
    NotClaimed,
    QueueCallbacks,
)
from ordermq.consumer.queue.event_recorder import EventRecorder
from ordermq.consumer.queue.receiver import Flow, Loop, flow_by_fill_and_span
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.errors import ConfigError, RemotingError, RouteError
from ordermq.events import EventType
from ordermq.model.message import MessageBatch, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import RETRY_PREFIX

_log = logging.getLogger("ordermq.consumer")
_TIMED_OUT_DELAY_LEVEL = 3  # 10 s, as in Java
_LOOKS_A_TIMEOUT = 10  # how often a consume timeout the running batches are looked at


@dataclass(slots=True, eq=False)
class Flight:
    """A batch with the listener: where it came from, and since when it runs."""

    assigned: AssignedQueue
    context: ConcurrentContext
    started_ms: int
    thread: int


class ConcurrentDispatcher:
    """Consumes assigned queues that have messages; `submit` comes from any thread.

    Args:
        is_broadcasting: what fails is dropped, as in Java: a copy would come to all members.
    """

    is_ordered = False

    def __init__(
        self,
        client: ClientSession,
        group: str,
        config: ConsumeConfig,
        listener: ConcurrentListener,
        history: EventRecorder,
        statistics: ConsumerStatistics,
        is_broadcasting: bool,
    ) -> None:
        self._is_broadcasting = is_broadcasting
        self._client = client
        self._clock = client.clock
        self._group = group
        self._config = config
        self._listener = listener
        self._history = history
        self._statistics = statistics
        self._lock = threading.Lock()
        self._flights: set[Flight] = set()
        self._slots = asyncio.Semaphore(config.consume_thread_count)  # of coroutines
        self._pool = pool_for(
            listener,
            config.consume_thread_count,
            self._serve,
            self._serve_async,
            f"ordermq-{group}",
            client.runtime,
        )

    def make_queue(
        self, queue: MessageQueue, lease: Lease, offset: int, callbacks: QueueCallbacks
    ) -> AssignedQueue:
        return AssignedQueue(queue, self._group, lease, offset, callbacks)

    async def prepare(self, assigned: AssignedQueue) -> None:
        """Nothing has to be known before the first pull."""

    def flow(self, assigned: AssignedQueue, config: PullConfig) -> Flow:
        queue, span = assigned.process_queue, assigned.unfinished_span
        return flow_by_fill_and_span(config, queue.message_count, queue.size_bytes, span)

    def unpark(self, assigned: AssignedQueue, key: bytes) -> bool:
        return False  # no key is ever parked: failed messages go to the retry topic

    def loops(self, assigned: Callable[[], Sequence[AssignedQueue]]) -> Sequence[Loop]:
        return [("consume timeouts", self._run)]

    def submit(self, assigned: AssignedQueue) -> None:
        """Claim the queue's next batch as soon as a thread is free; the caller holds its flag."""
        self._pool.submit(assigned)

    def close(self, timeout_s: float) -> bool:
        """End the threads; False if a listener still ran after `timeout_s`."""
        return self._pool.close(timeout_s)

    def resize(self, size: int) -> None:
        """Run at most so many batches at once from now on; those that run may end first."""
        self._slots = asyncio.Semaphore(size)
        self._pool.resize(size)

    async def _run(self) -> None:
        """Take batches away from listeners that do not return, for ever; on the I/O thread."""
        interval_ms = max(self._config.consume_timeout_ms // _LOOKS_A_TIMEOUT, 1)
        await repeat(self.send_back_overdue, self._clock, lambda: interval_ms)

    async def consume_directly(self, batch: MessageBatch) -> tuple[str, str | None]:
        # A queue of its own: whoever holds the real one must not see this call.
        callbacks = QueueCallbacks(lambda *_: None, lambda _: None, lambda _: None)
        offset = batch.offset_at(0)
        alone = AssignedQueue(batch.queue, self._group, UNLOCKED, offset, callbacks)
        alone.accept(alone.generation, batch, offset + 1)
        claim = alone.begin_batch(1, self._clock.now_ms())
        assert isinstance(claim, BatchClaim)
        run = claim.messages
        context = ConcurrentContext(alone, claim, run, run[0].reconsume_times)
        value, raised = await call_alone(self._pool, self._listener, context)
        if raised is not None:
            return "CR_THROW_EXCEPTION", f"{type(raised).__name__}: {raised}"
        try:
            done = judge_concurrent(value, context.ack_index, 1)
        except ConfigError as error:
            return "CR_LATER", str(error)
        return ("CR_SUCCESS" if done else "CR_LATER"), None

    # The course of a batch; on a worker, or on the listeners' loop.

    def _serve(self, assigned: AssignedQueue) -> None:
        flight = self._take_off(assigned)
        if flight is None:
            return
        value: object = None
        raised: BaseException | None = None
        try:
            value = self._listener(flight.context.messages, flight.context)
        # BaseException: a listener's sys.exit() must fail its batch, not end our thread.
        except BaseException as error:  # noqa: BLE001 - judged as the outcome
            raised = error
        self._land(flight, value, raised)
        self._pool.goes_on(1)  # only to tell: a batch is all that is served at once

    async def _serve_async(self, assigned: AssignedQueue) -> None:
        async with self._slots:
            flight = self._take_off(assigned)
            if flight is None:
                return
            value: object = None
            raised: BaseException | None = None
            try:
                answer = self._listener(flight.context.messages, flight.context)
                value = await answer if inspect.isawaitable(answer) else answer
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - judged as the outcome
                raised = error
            self._land(flight, value, raised)

    def _take_off(self, assigned: AssignedQueue) -> Flight | None:
        now_ms = self._clock.now_ms()
        claim = assigned.begin_batch(self._config.consume_message_batch_max_size, now_ms)
        if isinstance(claim, NotClaimed):
            return None
        if assigned.has_more():
            self.submit(assigned)
        run = claim.messages
        attempt = assigned.attempts.get(run.first_offset, 0)
        if assigned.queue.topic.startswith(RETRY_PREFIX):
            attempt += run[0].reconsume_times
        flight = Flight(
            assigned,
            ConcurrentContext(assigned, claim, run, attempt),
            now_ms,
            threading.get_ident(),
        )
        if self._history.enabled:
            self._record(EventType.START, assigned, run, attempt=attempt)
        with self._lock:
            self._flights.add(flight)
        return flight

    def _land(self, flight: Flight, value: object, raised: BaseException | None) -> None:
        if not self._end(flight):
            return  # it ran out of time and was sent back: the answer comes too late
        context, assigned = flight.context, flight.assigned
        done = self._done(flight, value, raised)
        if self._history.enabled:
            self._record(EventType.END, assigned, context.messages, done=done)
        size, spent_ms = len(context.messages), self._clock.now_ms() - flight.started_ms
        self._statistics.consumed(assigned.queue.topic, done, size - done, 1, spent_ms)
        if done == size:
            assigned.finish(context.claim, context.messages.offsets())
            return
        self._statistics.add("batches_failed")
        self._settle_soon(flight, done, context.delay_level)

    def _done(self, flight: Flight, value: object, raised: BaseException | None) -> int:
        context, queue = flight.context, flight.assigned.queue
        if raised is None:
            try:
                return judge_concurrent(value, context.ack_index, len(context.messages))
            except ConfigError as error:
                _log.error("%s: %s", queue, error)
                return 0
        self._statistics.add("listener_errors")
        _log.error(
            "%s: the listener raised at offsets %d..%d; they come again later",
            queue,
            context.messages.first_offset,
            context.messages.last_offset,
            exc_info=raised,
        )
        return 0

    def _end(self, flight: Flight) -> bool:
        """Take the flight off the list; False if someone else did: one settles it, not two."""
        with self._lock:
            if flight not in self._flights:
                return False
            self._flights.remove(flight)
            return True

    def _settle_soon(self, flight: Flight, done: int, delay_level: int) -> None:
        runtime, name = self._client.runtime, f"send back {flight.assigned.queue}"
        runtime.post(lambda: runtime.spawn(self._settle(flight, done, delay_level), name))

    # What failed; on the I/O thread.

    async def send_back_overdue(self) -> None:
        """Send back what listeners have had for longer than `consume_timeout_ms`.

        Such a listener is not stopped, so a slow message can be consumed twice at once
        (rmq#1600); without this a hung one would hold the queue's offset back for ever.
        """
        oldest_ms = self._clock.now_ms() - self._config.consume_timeout_ms
        with self._lock:
            overdue = [flight for flight in self._flights if flight.started_ms < oldest_ms]
        for flight in overdue:
            if not self._end(flight):
                continue  # it has just returned
            messages = flight.context.messages
            self._statistics.add("timed_out", len(messages))
            _log.error(
                "%s: the listener has not returned for %d ms at offsets %d..%d; sending them back. "
                "It is at:\n%s",
                flight.assigned.queue,
                self._config.consume_timeout_ms,
                messages.first_offset,
                messages.last_offset,
                self._pool.stack_of(flight.assigned, flight.thread),
            )
            if self._history.enabled:
                self._record(EventType.END, flight.assigned, messages, done=0, detail="TIME_OUT")
            self._settle_soon(flight, 0, _TIMED_OUT_DELAY_LEVEL)

    async def _settle(self, flight: Flight, done: int, delay_level: int) -> None:
        """Finish a batch of which only the first `done` messages succeeded."""
        assigned, claim, run = flight.assigned, flight.context.claim, flight.context.messages
        failed = list(run)[done:]
        kept = set(await self._send_back(failed, delay_level))
        finished = [offset for offset in run.offsets() if offset not in kept]
        if self._history.enabled:
            for message in failed:
                if message.queue_offset not in kept:
                    self._record(EventType.DIVERT, assigned, [message])
        for offset in finished:
            assigned.attempts.pop(offset, None)
        for offset in kept:
            assigned.attempts[offset] = assigned.attempts.get(offset, 0) + 1
        assigned.finish(claim, finished)
        if kept:
            # Not done and not given back: they hold the offset, and are tried here again.
            await self._clock.sleep_ms(self._config.send_back_retry_ms)
            if assigned.bring_back(claim, kept):
                self.submit(assigned)

    def _record(
        self,
        event: EventType,
        assigned: AssignedQueue,
        messages: Sequence[MessageView],
        **members: Any,
    ) -> None:
        self._history.record(
            event,
            assigned.queue,
            offs=[message.queue_offset for message in messages],
            keys=[message.sharding_key for message in messages],
            **members,
        )

    async def _send_back(self, messages: Sequence[MessageView], delay_level: int) -> list[int]:
        """Store messages again for later; the offsets of those that could not be."""
        if self._is_broadcasting:
            self._statistics.add("dropped", len(messages))
            _log.error(
                "%s: offsets %d..%d failed and are dropped: broadcasting has no retry topic",
                messages[0].message_queue,
                messages[0].queue_offset,
                messages[-1].queue_offset,
            )
            return []
        stored = await asyncio.gather(*(self._send_back_one(m, delay_level) for m in messages))
        return [
            m.queue_offset for m, is_stored in zip(messages, stored, strict=True) if not is_stored
        ]

    async def _send_back_one(self, message: MessageView, delay_level: int) -> bool:
        most = self._config.max_reconsume_times
        try:
            await send_back(self._client, self._group, message, delay_level, most)
        except (RemotingError, RouteError) as error:
            self._statistics.add("send_back_errors")
            _log.warning(
                "%s: offset %d was not sent back, it is tried here again: %s",
                message.message_queue,
                message.queue_offset,
                error,
            )
            return False
        except Exception:  # noqa: BLE001 - a defect of ours; the message must not be lost by it
            self._statistics.add("internal_errors")
            _log.exception("%s: error while sending a message back", message.message_queue)
            return False
        self._statistics.add("sent_back")
        return True
