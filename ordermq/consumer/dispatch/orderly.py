"""The orderly consume service: one batch of a queue at a time, in order
(docs/internals/semantics.md#orderly-consumption)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ordermq.client.session import ClientSession
from ordermq.config import ConsumeConfig, PullConfig
from ordermq.consumer.dispatch.consume_loop import (
    ConsumeLoop,
    ListenerCalls,
    OnIoThread,
    Outcome,
    Turn,
)
from ordermq.consumer.dispatch.failure_policy import (
    FailurePolicy,
    GiveUp,
    decide,
    defect_delay_ms,
    resume_delay_ms,
    send_dead_letter,
)
from ordermq.consumer.dispatch.slow_listeners import SlowListenerWatch
from ordermq.consumer.dispatch.worker_pool import pool_for
from ordermq.consumer.listener import (
    ConsumeContext,
    Listener,
    Settlement,
    Verdict,
    judge,
    verdict_of,
)
from ordermq.consumer.offsets.local_offsets import LocalOffsets
from ordermq.consumer.offsets.offset_store import Offsets
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    Lease,
    NotClaimed,
    QueueCallbacks,
    RunningCall,
)
from ordermq.consumer.queue.event_recorder import EventRecorder
from ordermq.consumer.queue.receiver import Flow, Loop, flow_by_fill
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.errors import ConfigError, RemotingError, RouteError, StateError
from ordermq.events import EventType
from ordermq.model.message import MessageBatch, MessageRun, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import ConsumeResult

_log = logging.getLogger("ordermq.consumer")


_BURST_MESSAGES = 256  # most in a claim of several batches
_COUNT_MS = 1_000  # how long what was done may wait to be counted
_QUICK_MS = 1  # a claim of several batches takes about this long at most


class OrderlyDispatcher:
    """Consumes assigned queues that have messages; `submit` comes from any thread.

    Args:
        on_failure: what happens to a message after `max_attempts`.
    """

    is_ordered = True

    def __init__(
        self,
        client: ClientSession,
        group: str,
        config: ConsumeConfig,
        listener: Listener,
        on_failure: FailurePolicy,
        offsets: Offsets | LocalOffsets,
        history: EventRecorder,
        statistics: ConsumerStatistics,
    ) -> None:
        self._client = client
        self._clock = client.clock
        self._group = group
        self._config = config
        self._listener = listener
        self._on_failure = on_failure
        self._offsets = offsets
        self._history = history
        self._statistics = statistics
        self._rollback_warned = False
        self._most_burst = _most_burst(config)
        driver = ConsumeLoop(listener, client.runtime, self._turn, self._recover)
        self._pool = pool_for(
            listener,
            config.consume_thread_count,
            driver.drive,
            driver.drive_async,
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
        queue = assigned.process_queue
        return flow_by_fill(config, queue.message_count, queue.pending_count, queue.size_bytes)

    def unpark(self, assigned: AssignedQueue, key: bytes) -> bool:
        return False  # parking is per key, and here no key stands still by itself

    async def consume_directly(self, batch: MessageBatch) -> tuple[str, str | None]:
        raise StateError(
            "an orderly listener of ordermq is called for messages of the queues its member holds, "
            "in their order, and for no other: reset the group's offset, or send the message again",
            group=self._group,
        )

    def loops(self, assigned: Callable[[], Sequence[AssignedQueue]]) -> Sequence[Loop]:
        watch = SlowListenerWatch(
            self._clock,
            assigned,
            self._stack_of,
            self._config.consume_timeout_ms,
            self._statistics,
        )
        return [("slow listeners", watch.run)]

    def submit(self, assigned: AssignedQueue) -> None:
        """Give the queue a turn; the caller holds its dispatch flag."""
        if assigned.defects:
            # What broke may break again at once, and fill the log.
            self._after(assigned, defect_delay_ms(assigned.defects), "restart")
        else:
            self._pool.submit(assigned)

    def close(self, timeout_s: float) -> bool:
        """End the threads; False if a listener still ran after `timeout_s`."""
        return self._pool.close(timeout_s)

    def resize(self, size: int) -> None:
        """Run listeners on at most so many threads from now on."""
        self._pool.resize(size)

    def _stack_of(self, assigned: AssignedQueue, call: RunningCall) -> str:
        """What a listener call is at."""
        return self._pool.stack_of(assigned, call.thread)

    def _recover(self, assigned: AssignedQueue) -> None:
        # A defect of ours. Without a successor the queue would stand still for ever
        # (docs/internals/semantics.md#process-queue, no lost wake-up), so it starts again from the
        # committed offset.
        assigned.defects += 1
        _log.exception(
            "%s: error in the consume service; the queue starts again in %d ms",
            assigned.queue,
            defect_delay_ms(assigned.defects),
        )
        assigned.abandon_turn("an error in the consume service")

    # The turn.

    def _turn(self, assigned: AssignedQueue) -> Turn:
        """Consume what is there: claim, call the listener batch by batch, settle, again.

        A claim holds several batches while the listener is quick: claiming and settling cost
        more than the call of a listener that only counts. Whatever ends a batch badly, or
        moves the queue away, ends the claim at that batch, and the rest was never touched.
        """
        size = self._config.consume_message_batch_max_size
        most_ms = self._config.max_time_consume_continuously_ms
        clock_ms = self._clock.now_ms
        topic = assigned.queue.topic
        batches = messages = failed = spent_ms = 0
        try:
            started_ms = counted_ms = now_ms = clock_ms()
            while now_ms - started_ms <= most_ms:
                claim = assigned.begin_batch(size * assigned.burst, now_ms)
                if isinstance(claim, NotClaimed):
                    return
                begun_ms, hold = now_ms, False
                calls = self._calls(assigned, claim, begun_ms + _QUICK_MS)
                while (called := (yield calls)) is not None:
                    verdict = self._judged(assigned, called)
                    if verdict.settlement is Settlement.RETRY:
                        batches += calls.batches + 1
                        messages += calls.messages + verdict.done
                        failed = len(called[0].messages) - verdict.done
                        spent_ms += clock_ms() - begun_ms
                        yield from self._retry(assigned, called[0], calls.messages, verdict)
                        return
                    if verdict.settlement is Settlement.ROLLBACK:
                        self._roll_back(assigned, called[0])
                        return
                    hold = verdict.settlement is Settlement.HOLD
                assigned.defects = 0
                batches += calls.batches
                messages += calls.messages
                now_ms = clock_ms()
                spent_ms += now_ms - begun_ms
                is_quick = now_ms - begun_ms <= _QUICK_MS
                assigned.burst = min(2 * assigned.burst, self._most_burst) if is_quick else 1
                if not assigned.end_batch(claim, calls.messages, now_ms, hold=hold):
                    return
                if now_ms - counted_ms > _COUNT_MS:  # a busy queue's turn is long
                    self._statistics.consumed(topic, messages, 0, batches, spent_ms)
                    batches = messages = spent_ms = 0
                    counted_ms = now_ms
                if self._config.commit_interval_ms == 0 and not hold:
                    yield OnIoThread(self._offsets.commit(assigned))
                    now_ms = clock_ms()  # a slow commit must not stretch the lease
                if not self._pool.goes_on(calls.batches):
                    if not assigned.has_more():
                        return  # a turn to find that out costs as much as a pull's messages
                    break
            self.submit(assigned)  # other queues wait for this thread; the flag stays set
        finally:
            if batches:
                self._statistics.consumed(topic, messages, failed, batches, spent_ms)

    def _calls(self, assigned: AssignedQueue, claim: BatchClaim, until_ms: int) -> ListenerCalls:
        """The batches of a claim; none begins after `until_ms`.

        All the claim has done counts only as it ends, so it must not be long.
        """
        calls = ListenerCalls()
        calls.is_judged = self._history.enabled or not self._config.auto_commit
        calls.messages = calls.batches = 0
        calls.contexts = self._contexts(assigned, claim, until_ms, calls)
        return calls

    def _contexts(
        self, assigned: AssignedQueue, claim: BatchClaim, until_ms: int, calls: ListenerCalls
    ) -> Iterator[ConsumeContext]:
        clock_ms, attempts = self._clock.now_ms, assigned.attempts
        before_ms = min(until_ms + 1, claim.lease.deadline_ms)
        for run in claim.messages.parts(self._config.consume_message_batch_max_size):
            if calls.batches and (assigned.ends_claim or clock_ms() >= before_ms):
                return
            attempt = attempts.get(run.first_offset, 0) if attempts else 0
            context = ConsumeContext(assigned, claim, run, attempt)
            assigned.calling = run
            if self._history.enabled:
                self._record_start(assigned, claim, context)
            yield context
            calls.messages += len(run)
            calls.batches += 1
            if attempts:
                attempts.clear()

    def _judged(self, assigned: AssignedQueue, called: tuple[ConsumeContext, Outcome]) -> Verdict:
        context, outcome = called
        verdict = self._judge(assigned, context.messages, outcome)
        if self._history.enabled:
            self._record_end(assigned, context.claim, context.messages, verdict)
        return verdict

    def _judge(self, assigned: AssignedQueue, run: MessageRun, outcome: Outcome) -> Verdict:
        value, raised = outcome
        if raised is not None:
            self._statistics.add("listener_errors")
            _log.error(
                "%s: the listener raised at offsets %d..%d; they come again",
                assigned.queue,
                run.first_offset,
                run.last_offset,
                exc_info=raised,
            )
            return verdict_of(Settlement.RETRY, 0)
        try:
            verdict = judge(value, len(run), self._config.auto_commit)
        except ConfigError as error:
            _log.error("%s: %s", assigned.queue, error)
            return verdict_of(Settlement.RETRY, 0)
        if value is ConsumeResult.ROLLBACK and self._config.auto_commit:
            self._warn_of_rollback(assigned)
        return verdict

    def _warn_of_rollback(self, assigned: AssignedQueue) -> None:
        if not self._rollback_warned:
            self._rollback_warned = True
            _log.warning(
                "%s: ROLLBACK with auto_commit commits, as in Java; return SUSPEND, or set "
                "auto_commit=False",
                assigned.queue,
            )

    def _roll_back(self, assigned: AssignedQueue, context: ConsumeContext) -> None:
        if assigned.rollback_held(context.claim):
            self._record(EventType.ROLLBACK, assigned, context.claim)
            self._submit_later(assigned, context)

    def _retry(
        self, assigned: AssignedQueue, context: ConsumeContext, before: int, verdict: Verdict
    ) -> Turn:
        """Bring the unfinished part back, or give a message up; the queue waits meanwhile.

        Args:
            before: messages of the claim that batches before this one have finished.
        """
        claim, run = context.claim, context.messages
        self._statistics.add("batches_failed")
        assigned.burst = 1
        done = verdict.done
        give_up = self._count_failures(assigned, run, done)
        if give_up is GiveUp.DIVERT:
            # Only ever the first unfinished message: a failed batch is retried one by one.
            _, error = yield OnIoThread(self._divert(assigned, claim, run[done]))
            if error is None:
                done += 1
            elif isinstance(error, RemotingError | RouteError):
                _log.warning(
                    "%s: dead letter of offset %d not stored, tried again later: %s",
                    assigned.queue,
                    run[done].queue_offset,
                    error,
                )
            else:
                raise error
        counts = assigned.end_batch(
            claim, before + done, self._clock.now_ms(), hold=not self._config.auto_commit
        )
        if give_up is GiveUp.STOP and counts:
            assigned.stop()
            _log.error(
                "%s: stopped at offset %d after %d attempts; its lock is kept, resume() goes on",
                assigned.queue,
                run[done].queue_offset,
                self._config.max_attempts,
            )
            return
        if not counts:
            return
        if done == len(run):
            self.submit(assigned)  # everything was settled: no reason to wait
        else:
            self._submit_later(assigned, context)

    def _count_failures(self, assigned: AssignedQueue, run: MessageRun, done: int) -> GiveUp:
        failed = run.offsets()[done:]
        # After a partial answer the first unfinished message failed, those behind it were
        # not tried; after none, any of them may have failed.
        blamed = failed[:1] if done else failed
        for offset in blamed:
            assigned.attempts[offset] = assigned.attempts.get(offset, 0) + 1
        if self._config.max_attempts and len(failed) > 1:
            assigned.isolate_until = failed[-1]
            return GiveUp.TRY_AGAIN
        attempts = assigned.attempts[failed[0]]
        return decide(self._on_failure, attempts, self._config.max_attempts)

    async def _divert(
        self, assigned: AssignedQueue, claim: BatchClaim, message: MessageView
    ) -> None:
        attempts = assigned.attempts[message.queue_offset]
        await send_dead_letter(self._client, self._group, message, attempts)
        self._statistics.add("diverted")
        self._record(
            EventType.DIVERT,
            assigned,
            claim,
            offs=[message.queue_offset],
            keys=[message.sharding_key],
        )
        _log.warning(
            "%s: offset %d moved to the dead-letter topic after %d attempts",
            assigned.queue,
            message.queue_offset,
            attempts,
        )

    def _submit_later(self, assigned: AssignedQueue, context: ConsumeContext) -> None:
        delay_ms = resume_delay_ms(context.suspend_ms, self._config.suspend_current_queue_time_ms)
        self._after(assigned, delay_ms, "resume")

    def _after(self, assigned: AssignedQueue, delay_ms: int, what: str) -> None:
        """Give the queue a turn after a pause, from any thread."""

        async def submit() -> None:
            await self._clock.sleep_ms(delay_ms)
            self._pool.submit(assigned)

        runtime = self._client.runtime
        runtime.post(lambda: runtime.spawn(submit(), f"{what} {assigned.queue}"))

    # History; nothing of a message is read unless someone wants it.

    def _record_start(
        self, assigned: AssignedQueue, claim: BatchClaim, context: ConsumeContext
    ) -> None:
        contents = _contents(context.messages)
        self._record(EventType.START, assigned, claim, attempt=context.attempt, **contents)

    def _record_end(
        self, assigned: AssignedQueue, claim: BatchClaim, run: MessageRun, verdict: Verdict
    ) -> None:
        self._record(
            EventType.END,
            assigned,
            claim,
            done=verdict.done,
            detail=verdict.settlement.name,
            **_contents(run),
        )

    def _record(
        self, event: EventType, assigned: AssignedQueue, claim: BatchClaim, **members: Any
    ) -> None:
        self._history.record(event, assigned.queue, claim.lease.epoch, **members)


def _most_burst(config: ConsumeConfig) -> int:
    """The most batches a claim may have; more than one only where nobody could tell.

    A claim's offsets are done when it ends: where a commit is wanted after each batch, or is
    the listener's own, it has one batch.
    """
    if not config.auto_commit or config.commit_interval_ms == 0:
        return 1
    return max(1, _BURST_MESSAGES // config.consume_message_batch_max_size)


def _contents(messages: MessageRun) -> dict[str, Any]:
    return {
        "offs": messages.offsets(),
        "keys": [message.sharding_key for message in messages],
    }
