"""OrderlyDispatcher: calls the listener with one batch of a queue at a time, in order
(docs/internals/semantics.md#orderly-consumption)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from ordermq import core
from ordermq.config import ConsumeConfig, PullConfig
from ordermq.consumer.dispatch.consume_loop import (
    ConsumeLoop,
    DispatcherParts,
    OnIoThread,
    Outcome,
    Settling,
    Steps,
)
from ordermq.consumer.dispatch.failure_policy import (
    FailureHandler,
    FailurePolicy,
    NextStep,
)
from ordermq.consumer.listener import (
    AUTO_COMMIT,
    MANUAL_COMMIT,
    ConsumeContext,
    Settlement,
    Verdict,
)
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    Pause,
    QueueCallbacks,
    QueueState,
    RunningCall,
)
from ordermq.consumer.queue.receiver import (
    DirectResult,
    FillLimits,
    Flow,
    Queue,
    flow_by_fill,
    limits_by_fill,
)
from ordermq.errors import StateError
from ordermq.events import EventType
from ordermq.leases.lease import Lease
from ordermq.model.message import MessageBatch, MessageRun
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import ConsumeResult

_log = logging.getLogger("ordermq.consumer")

# A listener that only counts takes 0.2 us, claiming and settling 6 us. So a claim holds many
# batches, as long as all of them together take about a millisecond: a claim's messages count as
# done when it ends, and that must not be late.
MAX_MESSAGES_PER_CLAIM = 256
_QUICK_MS = 1
_MANUAL_ONLY = (ConsumeResult.COMMIT, ConsumeResult.ROLLBACK)
# RocketMQ's broker gives a request to a client up after 10 s: the listener needs the rest of it.
_DIRECT_WAIT_MS = 5_000
_DIRECT_CHECK_MS = 20


class OrderedDispatcher(ConsumeLoop[Queue]):
    """The parts that both ordered dispatchers share: failures, commits, slow listeners.

    Args:
        on_failure: what follows when a message has failed, and after how many attempts.
    """

    is_ordered = True
    _slow_consequence = "its queue waits and keeps its lock"
    _plan: core.contract.ConsumePlan  # each dispatcher makes its own

    def __init__(
        self, parts: DispatcherParts, on_failure: FailurePolicy, offsets: OffsetCommitter
    ) -> None:
        config = parts.config
        results = AUTO_COMMIT if config.auto_commit else MANUAL_COMMIT
        # Where one attempt is all, a failed batch could not say which of its messages failed.
        self._batch_size = (
            1 if on_failure.max_attempts == 1 else config.consume_message_batch_max_size
        )
        super().__init__(parts, results, lane=self._most_in_lanes(config))
        self._offsets = offsets
        strict = config.strict_results
        self._results_of = {
            True: replace(AUTO_COMMIT, is_strict=strict),
            False: replace(MANUAL_COMMIT, is_strict=strict),
        }
        # Otherwise None and SUCCESS are done without being judged.
        self._judges_all = not config.auto_commit
        self._failure_handler = FailureHandler(parts.member, config, on_failure, parts.guard)
        self._direct: set[Queue] = set()  # queues with a message consumed directly; I/O thread
        self._commits_each = config.commit_interval_ms == 0

    def _most_in_lanes(self, config: ConsumeConfig) -> int:
        return 0  # as of `CallRecords`: calls are not by key

    def flow(self, assigned: Queue, config: PullConfig) -> Flow:
        queue = assigned.process_queue
        return flow_by_fill(config, queue.message_count, queue.pending_count, queue.size_bytes)

    def fill_limits(self, config: PullConfig) -> FillLimits:
        return limits_by_fill(config)

    def _plan_of(self, assigned: Queue) -> core.contract.ConsumePlan:
        return self._plan

    def _running_calls(self, assigned: Sequence[Queue]) -> list[RunningCall]:
        return [call for item in assigned for call in item.running_calls()]

    def _on_slow(self, call: RunningCall) -> None:
        self._statistics.add("slow_listeners")

    async def _commit(self, assigned: Queue) -> None:
        await self._offsets.commit(assigned)

    def _commits_now(self, done: int, step: NextStep) -> bool:
        """Return whether what a call has done is committed at once, and not with the next ones."""
        # A crash before the next commit would store a letter a second time.
        return done > 0 and (self._commits_each or step is NextStep.DEAD_LETTER)

    async def consume_directly(self, batch: MessageBatch, assigned: Queue | None) -> DirectResult:
        if assigned is None:
            # Java calls its listener even so, beside the one of the member that holds the queue.
            raise self._not_consumed(
                batch.queue,
                "this member does not hold the queue, and the one that does may be consuming it: "
                "ask the holder, see `ordermq locks` or `mqadmin consumerStatus`",
            )
        if self._offsets.is_transactional:
            raise self._not_consumed(
                batch.queue,
                "its effects are counted in the database of the offsets, and would be there twice",
            )
        if assigned in self._direct:
            raise self._not_consumed(
                batch.queue, "another message of the queue is being consumed directly: ask again"
            )
        self._direct.add(assigned)
        assigned.pause(Pause.DIRECT)
        try:
            run = MessageRun([(batch, 0, 1)])
            claim = await self._claim_alone(assigned, run)
            try:
                attempt = assigned.attempts.get(run.first_offset, 0)
                assigned.auto_commit = self._config.auto_commit  # as at the start of each claim
                return await self._call_directly(ConsumeContext(assigned, claim, run, attempt))
            finally:
                assigned.end_alone()
        finally:
            self._direct.discard(assigned)
            if assigned.resume(Pause.DIRECT):
                self.submit(assigned)

    async def _claim_alone(self, assigned: Queue, run: MessageRun) -> BatchClaim:
        """Wait until no batch of a paused queue runs, and claim it; for a limited time."""
        last_ms = self._clock.now_ms() + _DIRECT_WAIT_MS
        while (claim := assigned.begin_alone(run, now_ms := self._clock.now_ms())) is None:
            if assigned.state is not QueueState.ACTIVE:
                raise self._not_consumed(
                    assigned.queue, "the queue moves to another member: ask that one"
                )
            if now_ms >= last_ms:
                reason = "its batch has not ended" if assigned.is_running else "its lease is lost"
                raise self._not_consumed(
                    assigned.queue, f"{reason}, waited for {_DIRECT_WAIT_MS} ms: ask again later"
                )
            await self._clock.sleep_ms(_DIRECT_CHECK_MS)
        return claim

    def _not_consumed(self, queue: MessageQueue, reason: str) -> StateError:
        return StateError(
            f"message not consumed directly, to keep one listener per queue: {reason}",
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            group=self._group,
        )


class OrderlyDispatcher(OrderedDispatcher[AssignedQueue]):
    """Calls a listener for each queue in order, one batch at a time; fulfils `Receiver`."""

    _is_warned = False  # of COMMIT or ROLLBACK with auto commit

    def __init__(
        self, parts: DispatcherParts, on_failure: FailurePolicy, offsets: OffsetCommitter
    ) -> None:
        super().__init__(parts, on_failure, offsets)
        auto_commit = parts.config.auto_commit
        # One batch per claim, where each is committed by itself or by the listener: there it
        # would show that messages count as done only when their claim ends.
        is_single = self._commits_each or not auto_commit
        most = 1 if is_single else MAX_MESSAGES_PER_CLAIM // self._batch_size
        self._plan = self._make_plan(
            self._batch_size,
            is_shared=False,
            is_judged=self._judges_all,
            auto_commit=auto_commit,
            commits_each=self._commits_each,
            most_batches=max(1, most),
            quick_ms=_QUICK_MS,
        )

    def make_queue(
        self, queue: MessageQueue, lease: Lease, offset: int, callbacks: QueueCallbacks
    ) -> AssignedQueue:
        return AssignedQueue(queue, self._group, lease, offset, callbacks)

    def _settle(
        self, run: core.contract.ConsumeRun, context: ConsumeContext, outcome: Outcome
    ) -> Settling:
        # Whatever ends a batch badly ends the claim at that batch, and the rest of it was never
        # handed out.
        assigned = run.assigned
        verdict = self._judged(assigned, context, outcome)
        if verdict.settlement is Settlement.RETRY:
            self._count_call(run, verdict.done, len(context.messages) - verdict.done)
            yield from self._retry(assigned, context, run.done_messages, verdict)
            return False
        if verdict.settlement is Settlement.ROLLBACK:
            self._roll_back(assigned, context, run.done_messages)
            return False
        # A call without auto commit is the last of its claim, and the only one if the consumer has
        # none. Its COMMIT commits everything that was held before, too.
        run.commits = not assigned.auto_commit and verdict.settlement is Settlement.DONE
        return True

    def _judged(
        self, assigned: AssignedQueue, context: ConsumeContext, outcome: Outcome
    ) -> Verdict:
        is_auto = assigned.auto_commit
        verdict = self._judge(context, outcome, self._results_of[is_auto])
        if is_auto and outcome[0] in _MANUAL_ONLY and not self._is_warned:
            self._is_warned = True
            _log.warning(
                "%s: listener returned %s with auto_commit=True, which commits as SUCCESS does, as "
                "in Java; return SUSPEND to retry, or set auto_commit=False",
                assigned.queue,
                cast(ConsumeResult, outcome[0]).name,
                extra=self._fields(assigned.queue),
            )
        if self._recorder.enabled:
            self._records.ended(context, verdict)
        return verdict

    def _roll_back(self, assigned: AssignedQueue, context: ConsumeContext, before: int) -> None:
        if assigned.rollback_held(context.claim, before):
            epoch = context.claim.lease.epoch
            self._recorder.record(EventType.ROLLBACK, assigned.queue, epoch)
            self._submit_after(assigned, self._failure_handler.delay_ms(assigned, context), "retry")

    def _retry(
        self, assigned: AssignedQueue, context: ConsumeContext, before: int, verdict: Verdict
    ) -> Steps:
        """Redeliver the unfinished part after a pause, or carry the failure policy out.

        Args:
            before: messages of the claim that earlier batches have finished.
        """
        claim, run, done = context.claim, context.messages, verdict.done
        assigned.batches_per_claim = 1
        step = self._failure_handler.next_step(assigned, context, verdict)
        # Only ever the first unfinished message: a failed batch is retried one by one.
        if step is NextStep.DEAD_LETTER:
            done += yield from self._failure_handler.move_to_dead_letters(
                assigned, claim, run[done], verdict.error
            )
        held = 0 if assigned.auto_commit else done
        if not assigned.end_batch(claim, before + done, self._clock.now_ms(), held=held):
            return
        if not held and self._commits_now(done, step):
            yield OnIoThread(self._commit(assigned))
        if step is NextStep.STOP:
            self._failure_handler.stop(assigned, run[done].queue_offset)
        elif done == len(run):
            self.submit(assigned)  # nothing left that failed: no reason to pause
        else:
            delay_ms = self._failure_handler.delay_ms(assigned, context, done)
            self._submit_after(assigned, delay_ms, "retry")
