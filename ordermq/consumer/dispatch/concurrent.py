"""ConcurrentDispatcher: calls the listener with many batches of a queue at once
(docs/internals/semantics.md#concurrent-consumption).

A worker that serves a queue claims one batch, submits the queue for the next worker if it has
more, and only then calls the listener. So as many batches run as there are threads, from whichever
queues have messages. It claims on for a millisecond, while the request for the next worker waits in
the pool. Batches finish in any order; the commit goes up to the smallest offset that is not done.
The broker first stores failed messages again for later, in the group's retry topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, cast

from ordermq import core
from ordermq.config import PullConfig
from ordermq.consumer.dispatch.consume_loop import (
    MOST_UNREPORTED,
    ConsumeLoop,
    DispatcherParts,
    Outcome,
    Settling,
    failure_text,
)
from ordermq.consumer.dispatch.failure_policy import (
    DeadLetter,
    FailureHandler,
    cause_of,
    send_back,
    send_dead_letter,
    stack_of,
)
from ordermq.consumer.listener import (
    CONCURRENT,
    ConcurrentContext,
    Settlement,
    verdict_of,
)
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    QueueCallbacks,
    RunningCall,
)
from ordermq.consumer.queue.receiver import (
    DeliverLater,
    DirectResult,
    FillLimits,
    Flow,
    flow_by_fill_and_span,
    limits_by_fill_and_span,
)
from ordermq.errors import RemotingError, RouteError, StateError
from ordermq.events import EventType
from ordermq.leases.lease import UNLOCKED, Lease
from ordermq.model.message import MessageBatch, MessageRun, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import RETRY_PREFIX

_log = logging.getLogger("ordermq.consumer")
_TO_DEAD_LETTERS = -1  # as a delay level
_TIMED_OUT_DELAY_LEVEL = 3  # 10 s, as in Java's cleanExpireMsg
# A listener that only counts takes 0.2 us, passing a queue on to the next worker some 5 us. But
# meanwhile other queues wait, and the pool learns nothing of slow calls: hence a millisecond.
_RUN_MS = 1


class SendBack(NamedTuple):
    """Treatment of failed messages.

    Args:
        delay_level: as of `ConcurrentContext`; None: they are retried here.
        error: what failed; None: the listener returned so.
        since_ms: start of the call.
    """

    delay_level: int | None
    error: BaseException | None
    since_ms: int


class ConcurrentDispatcher(ConsumeLoop[AssignedQueue]):
    """Calls a listener for batches of any queue at once; fulfils `Receiver`.

    Args:
        deliver_later: has failed messages delivered again, in a group that pops; else the brokers
            store them in its retry topic.
        is_broadcasting: failed messages are dropped, as in Java: a copy in a retry topic would be
            delivered to all members.
    """

    is_ordered = False
    _slow_consequence = "its batch is sent back to the broker"

    def __init__(
        self,
        parts: DispatcherParts,
        policy: DeadLetter,
        deliver_later: DeliverLater | None,
        *,
        is_broadcasting: bool,
    ) -> None:
        super().__init__(parts, CONCURRENT, limits_tasks=True)
        self._policy = policy
        self._max_retries = policy.max_attempts - 1
        self._failures = FailureHandler(parts.member, parts.config, policy, parts.guard)
        self._guard = parts.guard
        self._pops = deliver_later is not None
        self._deliver_later = deliver_later or self._deliver_by_retry_topic
        self._is_broadcasting = is_broadcasting
        differing: dict[str, Any] = {
            "context": ConcurrentContext,
            "is_shared": True,
            "is_judged": False,
            "most_ms": _RUN_MS,
            "most_unreported": MOST_UNREPORTED,
        }
        size = parts.config.consume_message_batch_max_size
        self._plan = self._make_plan(size, **differing)
        # One by one, where an exception decides on the one message that has raised it.
        retry_size = 1 if policy.dead_letter_on else size
        self._retry_plan = self._make_plan(retry_size, on_start=self._add_attempts, **differing)

    def make_queue(
        self, queue: MessageQueue, lease: Lease, offset: int, callbacks: QueueCallbacks
    ) -> AssignedQueue:
        return AssignedQueue(queue, self._group, lease, offset, callbacks)

    def flow(self, assigned: AssignedQueue, config: PullConfig) -> Flow:
        queue, span = assigned.process_queue, assigned.unfinished_span
        return flow_by_fill_and_span(config, queue.message_count, queue.size_bytes, span)

    def fill_limits(self, config: PullConfig) -> FillLimits:
        return limits_by_fill_and_span(config)

    def _running_calls(self, assigned: Sequence[AssignedQueue]) -> list[RunningCall]:
        return [
            RunningCall(run.assigned, *call)
            for run in self._runs.copy()
            if (call := run.call) is not None
        ]

    async def consume_directly(
        self, batch: MessageBatch, assigned: AssignedQueue | None
    ) -> DirectResult:
        # A queue and a claim of its own: whoever holds the real queue must not see this call, and
        # no offset moves.
        callbacks = QueueCallbacks(lambda *_: None, lambda _: None, lambda _: None, lambda: None)
        alone = AssignedQueue(batch.queue, self._group, UNLOCKED, batch.offset_at(0), callbacks)
        run = MessageRun([(batch, 0, 1)])
        claim = BatchClaim(run, UNLOCKED, alone.generation)
        return await self._call_directly(
            ConcurrentContext(alone, claim, run, run[0].reconsume_times)
        )

    # A run.

    def _plan_of(self, assigned: AssignedQueue) -> core.contract.ConsumePlan:
        # A popped queue has either, and its runs keep their plan.
        is_retry = self._pops or assigned.queue.topic.startswith(RETRY_PREFIX)
        return self._retry_plan if is_retry else self._plan

    def _add_attempts(self, context: ConcurrentContext) -> None:
        # Whatever is in a retry topic has failed before: attempts in other processes count, too.
        context.attempt += context.messages[0].reconsume_times

    def _settle(
        self, run: core.contract.ConsumeRun, context: ConcurrentContext, outcome: Outcome
    ) -> Settling:
        yield from ()  # it waits for nothing: what follows is done by the I/O thread
        call = run.call
        # Its worker and the watch for slow listeners may both want to settle a call. If the watch
        # was first, the messages are sent back, and the result comes too late.
        if call is not None and run.take(call[0]) is not None:
            self._settle_call(RunningCall(run.assigned, *call), context, outcome)
        return True

    def _settle_call(self, call: RunningCall, context: ConcurrentContext, outcome: Outcome) -> None:
        assigned, run = call.assigned, call.messages
        size = len(run)
        verdict = self._judge(context, outcome)
        done, error = verdict.done, verdict.error
        if self._recorder.enabled:
            self._records.ended(context, verdict)
        spent_ms = self._clock.now_ms() - call.since_ms
        self._statistics.consumed(assigned.queue, done, size - done, 1, spent_ms)
        assigned.internal_errors = 0
        if done == size:
            assigned.finish(context.claim, run.offsets())
            return
        self._statistics.add("batches_failed")
        is_outage, is_hopeless = self._failures.look(error)
        # Nobody knows which one of several messages has raised: the retry topic has them one by
        # one.
        is_dead = is_hopeless and size - done == 1
        if error is not None:
            follows = "will be sent back to the broker"
            if self._is_broadcasting:
                follows = "are dropped"
            elif is_outage:
                follows = "will be retried here"
            elif is_dead:
                follows = "will be moved to the dead-letter topic"
            _log.error(
                "%s: %s; offsets %d-%d %s (attempt %d)",
                assigned.queue,
                failure_text(error),
                run.first_offset,
                run.last_offset,
                follows,
                context.attempt + 1,
                exc_info=stack_of(error),
                extra=self._fields(assigned.queue, offset=run.first_offset),
            )
        level: int | None = context.delay_level
        if is_outage:
            level = None
        elif is_dead:
            level = _TO_DEAD_LETTERS
        self._finish_soon(call, context, done, SendBack(level, error, call.since_ms))

    # Failed messages; on the I/O thread.

    def _on_slow(self, call: RunningCall) -> None:
        """Send back a batch whose listener has not returned for `consume_timeout_ms`."""
        # The listener is not stopped, so a slow message can be consumed twice at once (rmq#1600).
        # Without this a hung one would hold the queue's commit for ever.
        context = self._take(call.messages)
        if context is None:
            return  # it has just returned
        self._statistics.add("timed_out", len(call.messages))
        if self._recorder.enabled:
            verdict = verdict_of(Settlement.RETRY, 0)
            self._records.ended(context, verdict, detail="TIME_OUT")
        timed_out = TimeoutError(f"no result after {self._config.consume_timeout_ms} ms")
        self._finish_soon(
            call, context, 0, SendBack(_TIMED_OUT_DELAY_LEVEL, timed_out, call.since_ms)
        )

    def _take(self, messages: MessageRun) -> ConcurrentContext | None:
        for run in self._runs.copy():
            if (context := run.take(messages)) is not None:
                return cast(ConcurrentContext, context)
        return None

    def _finish_soon(
        self, call: RunningCall, context: ConcurrentContext, done: int, treatment: SendBack
    ) -> None:
        runtime, name = self._client.runtime, f"send back {call.assigned.queue}"
        runtime.post(lambda: runtime.spawn(self._finish(call, context, done, treatment), name))

    async def _finish(
        self, call: RunningCall, context: ConcurrentContext, done: int, treatment: SendBack
    ) -> None:
        """Finish a batch of which only the first `done` messages succeeded."""
        assigned, claim, run = call.assigned, context.claim, call.messages
        failed: list[MessageView] = []
        try:
            failed = list(run)[done:]
            kept = set(await self._send_back(assigned, failed, treatment))
        except Exception:  # noqa: BLE001 - messages in nobody's hands would hold the commit
            self._tell_internal_error(run.first_offset, assigned.queue)
            kept = set(run.offsets()[done:])
        finished = [offset for offset in run.offsets() if offset not in kept]
        if self._recorder.enabled:
            for message in failed:
                if message.queue_offset not in kept:
                    epoch = claim.lease.epoch
                    self._recorder.record_messages(
                        EventType.DIVERT, message.message_queue, epoch, [message]
                    )
        is_outage = treatment.delay_level is None
        counts = assigned.outages if is_outage else assigned.attempts
        for offset in kept:
            counts[offset] = counts.get(offset, 0) + 1
        assigned.finish(claim, finished)
        # After `finish`, so that a revocation does not wait for these.
        if kept:
            # Neither done nor stored again: they hold the commit, and are retried in place.
            first, retry_ms = min(kept), self._config.send_back_retry_ms
            pause_ms = self._member.refusals.pause_ms(assigned, retry_ms, first)
            if is_outage:
                pause_ms = self._failures.delay_of(assigned, first)
            await self._clock.sleep_ms(pause_ms)
            if assigned.requeue(claim, kept):
                self.submit(assigned)

    async def _send_back(
        self, assigned: AssignedQueue, messages: Sequence[MessageView], treatment: SendBack
    ) -> list[int]:
        """Store messages again for later; return the offsets of those that could not be."""
        if self._is_broadcasting:
            self._statistics.add("dropped", len(messages))
            _log.error(
                "%s: offsets %d-%d failed and are dropped: a broadcasting group has no retry topic",
                messages[0].message_queue,
                messages[0].queue_offset,
                messages[-1].queue_offset,
                extra=self._fields(messages[0].message_queue, offset=messages[0].queue_offset),
            )
            return []
        if treatment.delay_level is None:
            return [message.queue_offset for message in messages]
        stored = await asyncio.gather(
            *(self._send_back_one(assigned, each, treatment) for each in messages)
        )
        return [
            m.queue_offset for m, is_stored in zip(messages, stored, strict=True) if not is_stored
        ]

    async def _send_back_one(
        self, assigned: AssignedQueue, message: MessageView, treatment: SendBack
    ) -> bool:
        try:
            return await self._move_one(assigned, message, treatment)
        except Exception:  # noqa: BLE001 - an internal error must not lose the message
            self._tell_internal_error(message.queue_offset, message.message_queue)
            return False

    def _tell_internal_error(self, offset: int, queue: MessageQueue) -> None:
        self._statistics.add("internal_errors")
        _log.exception(
            "%s: internal error while sending offset %d back (please report)",
            queue,
            offset,
            extra=self._fields(queue, offset=offset),
        )

    async def _move_one(
        self, assigned: AssignedQueue, message: MessageView, treatment: SendBack
    ) -> bool:
        max_retries, delay_level = self._max_retries, treatment.delay_level
        assert delay_level is not None
        cause = treatment.error
        if delay_level >= 0 and message.reconsume_times < max_retries:
            send = self._deliver_later(assigned, message, delay_level, max_retries)
            return await self._is_sent(assigned, message, "sending a message back", send)
        async with self._guard.moving(treatment.since_ms) as may_move:
            if not may_move:
                return False  # it waits like those that are not consumed at all
            # Not by the broker, which would copy it as it is: its story goes along.
            attempts = message.reconsume_times + 1
            first_ms = self._clock.now_ms() if attempts == 1 else None
            story = self._failures.story(message, cause, attempts, first_ms)
            send = send_dead_letter(self._client, self._group, message, attempts, story)
            is_sent = await self._is_sent(assigned, message, "storing a dead letter", send)
            if is_sent:
                self._statistics.add("dead_letters", queue=message.message_queue)
                self._guard.note(message.message_queue, cause_of(cause))
                self._failures.log_dead_letter(
                    message.message_queue, message.queue_offset, attempts
                )
            return is_sent

    async def _deliver_by_retry_topic(
        self, assigned: AssignedQueue, message: MessageView, delay_level: int, max_retries: int
    ) -> None:
        await send_back(self._client, self._group, message, delay_level, max_retries)

    async def _is_sent(
        self,
        assigned: AssignedQueue,
        message: MessageView,
        action: str,
        send: Coroutine[Any, Any, None],
    ) -> bool:
        try:
            await send
        except (RemotingError, RouteError) as error:
            self._statistics.add("send_back_errors")
            self._member.refusals.failed(assigned, action, error, message.queue_offset)
            return False
        except StateError as error:  # of a listener that returned after the end of `close`
            _log.info(
                "%s: offset %d not sent back, whoever has the queue next gets it again: %s",
                message.message_queue,
                message.queue_offset,
                error,
                extra=self._fields(message.message_queue, offset=message.queue_offset),
            )
            return False
        self._member.refusals.ended(assigned, message.queue_offset)
        self._statistics.add("sent_back")
        return True
