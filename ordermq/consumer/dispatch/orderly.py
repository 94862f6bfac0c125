"""OrderlyDispatcher: calls the listener with one batch of a queue at a time, in order
(docs/internals/semantics.md#orderly-consumption)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import Protocol, cast

from ordermq import core
from ordermq.client.runtime import Runtime
from ordermq.client.session import ClientSession
from ordermq.client.user_code import UserCode
from ordermq.config import ConsumeConfig, ConsumePathKind, PullConfig
from ordermq.consumer.dispatch.consume_loop import (
    AnyListener,
    CallOutcome,
    ConsumeLoop,
    OnIoThread,
    Step,
    Steps,
    call_plan,
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
    Listener,
    Settlement,
    Verdict,
)
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    NotClaimed,
    Pause,
    QueueCallbacks,
    QueueState,
    RunningCall,
)
from ordermq.consumer.queue.dead_letter_guard import DeadLetterGuard
from ordermq.consumer.queue.receiver import (
    DirectResult,
    FillLimits,
    Flow,
    Queue,
    flow_by_fill,
    limits_by_fill,
)
from ordermq.consumer.queue.statistics import GATHER_MS, ConsumerStatistics, EventRecorder
from ordermq.errors import StateError
from ordermq.events import EventType
from ordermq.leases.lease import Lease
from ordermq.model.log_fields import log_fields
from ordermq.model.message import MessageBatch, MessageRun
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import ConsumeResult

_log = logging.getLogger("ordermq.consumer")

# A listener that only counts takes 0.2 us, claiming and settling 6 us. So a claim holds many
# batches, as long as all of them together take about a millisecond: a claim's messages count as
# done when it ends, and that must not be late.
_MAX_MESSAGES_PER_CLAIM = 256
_QUICK_MS = 1
_MANUAL_ONLY = (ConsumeResult.COMMIT, ConsumeResult.ROLLBACK)
# RocketMQ's broker gives a request to a client up after 10 s: the listener needs the rest of it.
_DIRECT_WAIT_MS = 5_000
_DIRECT_CHECK_MS = 20


class RunEnd(Enum):
    """Reasons why a run claims no more."""

    OVER = auto()  # nothing may be claimed now, and the dispatch flag is cleared
    SUBMIT = auto()  # there is more, and its time is up or other queues wait for the thread


class ClaimRun(Step, Protocol):
    """Claims of one queue, called and settled one after the other, until something is to decide:
    what `OrderlyDispatcher` does in Python, natively.

    It returns the first outcome of a call that does not simply succeed, and continues behind that
    call when it is performed again. It returns None at its `end`. It is used again and again: each
    time between `begin` and `rest`, by one worker.

    Attributes:
        assigned: the queue.
        is_running: True between `begin` and `rest`.
        end: why nothing more is claimed; None until then.
        calls: of the present claim.
        is_open: the calls of that claim are not all done.
        commits: the present call, without auto commit, commits what was held before, too.
        now_ms: when the last claim ended, on the monotonic clock.
    """

    is_open: bool
    commits: bool

    @property
    def assigned(self) -> AssignedQueue: ...
    @property
    def is_running(self) -> bool: ...
    @property
    def end(self) -> RunEnd | None: ...
    @property
    def calls(self) -> core.contract.BatchCalls: ...
    @property
    def now_ms(self) -> int: ...

    def begin(self) -> None:
        """Start anew, whatever became of the last time."""

    def rest(self) -> None:
        """Let go of what is claimed; the counts stay."""

    def advance(self) -> bool:
        """Settle the claim whose calls are done, and claim again; True: there are calls to make."""

    def count_failed(self, done: int) -> None:
        """Count the present claim up to a call of which only `done` messages are done."""

    def take_counts(self) -> tuple[int, int, int]:
        """Return batches, messages and ms spent in claims since the last time; any thread."""


class MakeRun(Protocol):
    """Makes the native run of a queue."""

    def __call__(self, assigned: AssignedQueue, goes_on: Callable[[int], bool]) -> ClaimRun:
        """Make it.

        Args: goes_on: as of `ListenerPool`.
        """


def _is_single(config: ConsumeConfig) -> bool:
    """Return True if each batch is committed by itself, or by the listener."""
    return not config.auto_commit or config.commit_interval_ms == 0


def native_runs(
    config: ConsumeConfig, calls: core.contract.CallPlan, most_batches: int
) -> MakeRun | None:
    """Return what makes native runs; None if the core or the settings do not allow them.

    Args:
        calls: of the dispatcher.
        most_batches: largest number of batches per claim.
    """
    # A run that commits its batches one by one waits for the broker after each of them.
    if config.consume_path is ConsumePathKind.PYTHON or _is_single(config):
        return None
    if core.RunPlan is None or core.OrderlyRun is None:
        return None
    plan = core.RunPlan(
        calls=calls,
        over=RunEnd.OVER,
        submit=RunEnd.SUBMIT,
        most_ms=config.max_time_consume_continuously_ms,
        quick_ms=_QUICK_MS,
        most_batches=most_batches,
        perform_async=_perform_async,
    )
    return partial(core.OrderlyRun, plan)


async def _perform_async(run: ClaimRun, listener: AnyListener, runtime: Runtime) -> CallOutcome:
    """Make the calls of one claim. The run advances once it is known that the loop goes on."""
    if not run.advance():
        return None
    called: CallOutcome = await run.calls.perform_async(listener, runtime)
    run.is_open = called is not None
    return called


class OrderedDispatcher(ConsumeLoop[Queue]):
    """The parts that both ordered dispatchers share: failures, commits, slow listeners.

    Args:
        on_failure: what follows when a message has failed, and after how many attempts.
    """

    is_ordered = True
    _slow_consequence = "its queue waits and keeps its lock"

    def __init__(
        self,
        client: ClientSession,
        group: str,
        config: ConsumeConfig,
        listener: Listener,
        on_failure: FailurePolicy,
        offsets: OffsetCommitter,
        recorder: EventRecorder,
        statistics: ConsumerStatistics,
        user_code: UserCode,
        guard: DeadLetterGuard,
    ) -> None:
        results = AUTO_COMMIT if config.auto_commit else MANUAL_COMMIT
        # Where one attempt is all, a failed batch could not say which of its messages failed.
        self._batch_size = (
            1 if on_failure.max_attempts == 1 else config.consume_message_batch_max_size
        )
        super().__init__(client, group, config, listener, results, recorder, statistics, user_code)
        self._offsets = offsets
        strict = config.strict_results
        self._results_of = {
            True: replace(AUTO_COMMIT, is_strict=strict),
            False: replace(MANUAL_COMMIT, is_strict=strict),
        }
        # Otherwise None and SUCCESS are done without being judged.
        self._judges_all = recorder.enabled or not config.auto_commit
        self._failure_handler = FailureHandler(
            client, group, config, on_failure, recorder, statistics, guard
        )
        self._direct: set[Queue] = set()  # queues with a message consumed directly; I/O thread

    def flow(self, assigned: Queue, config: PullConfig) -> Flow:
        queue = assigned.process_queue
        return flow_by_fill(config, queue.message_count, queue.pending_count, queue.size_bytes)

    def _running_calls(self, assigned: Sequence[Queue]) -> list[RunningCall]:
        return [call for item in assigned for call in item.running_calls()]

    def _on_slow(self, call: RunningCall) -> None:
        self._statistics.add("slow_listeners")

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
        self,
        client: ClientSession,
        group: str,
        config: ConsumeConfig,
        listener: Listener,
        on_failure: FailurePolicy,
        offsets: OffsetCommitter,
        recorder: EventRecorder,
        statistics: ConsumerStatistics,
        user_code: UserCode,
        guard: DeadLetterGuard,
    ) -> None:
        super().__init__(
            client,
            group,
            config,
            listener,
            on_failure,
            offsets,
            recorder,
            statistics,
            user_code,
            guard,
        )
        # One batch per claim, where each is committed by itself or by the listener: there it
        # would show that messages count as done only when their claim ends.
        most = 1 if _is_single(config) else _MAX_MESSAGES_PER_CLAIM // self._batch_size
        self._max_batches_per_claim = max(1, most)
        on_start = self._record_start if recorder.enabled else None
        calls = call_plan(
            client.clock, self._batch_size, self._judges_all, self._other_success, on_start
        )
        self._calls = partial(core.BatchCalls, calls)
        self._make_run = native_runs(config, calls, self._max_batches_per_claim)
        # Runs that may have counts to take: taken by those who read them, and once a second, they
        # cost a pull nothing.
        self._to_count: set[ClaimRun] = set()
        statistics.gather_with(self._count_runs)

    def make_queue(
        self, queue: MessageQueue, lease: Lease, offset: int, callbacks: QueueCallbacks
    ) -> AssignedQueue:
        return AssignedQueue(queue, self._group, lease, offset, callbacks)

    def fill_limits(self, config: PullConfig) -> FillLimits:
        return limits_by_fill(config)

    def _consume(self, assigned: AssignedQueue) -> Steps:
        """Claim, call batch by batch, settle, again; until nothing is pending or time is up.

        Whatever ends a batch badly, or revokes the queue, ends the claim at that batch, and the
        rest of it was never handed out.
        """
        make_run = self._make_run
        return self._in_python(assigned) if make_run is None else self._natively(assigned, make_run)

    def _in_python(self, assigned: AssignedQueue) -> Steps:
        size, auto_commit = self._batch_size, self._config.auto_commit
        most_ms = self._config.max_time_consume_continuously_ms
        clock_ms = self._clock.now_ms
        queue = assigned.queue
        batches = messages = failed = spent_ms = 0
        try:
            started_ms = counted_ms = now_ms = clock_ms()
            while now_ms - started_ms <= most_ms:
                claim = assigned.begin_batch(size * assigned.batches_per_claim, now_ms)
                if isinstance(claim, NotClaimed):
                    return  # the queue cleared its dispatch flag together with the refusal
                begun_ms, commits = now_ms, False
                assigned.auto_commit = auto_commit  # a listener may change it, for one call
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
                        self._roll_back(assigned, called[0], calls.messages)
                        return
                    # A call without auto commit is the last of its claim, and the only one if the
                    # consumer has none. Its COMMIT commits everything that was held before, too.
                    commits = not assigned.auto_commit and verdict.settlement is Settlement.DONE
                assigned.internal_errors = 0
                batches += calls.batches
                messages += calls.messages
                now_ms = clock_ms()
                spent_ms += now_ms - begun_ms
                # Doubled up to the maximum in eight claims; one slow claim starts over.
                is_quick = now_ms - begun_ms <= _QUICK_MS
                doubled = min(2 * assigned.batches_per_claim, self._max_batches_per_claim)
                assigned.batches_per_claim = doubled if is_quick else 1
                held = 0
                if not assigned.auto_commit and not commits and assigned.calling is not None:
                    held = len(assigned.calling)
                if not assigned.end_batch(claim, calls.messages, now_ms, held=held):
                    return
                if now_ms - counted_ms > GATHER_MS:  # a run may last a minute
                    self._statistics.consumed(queue, messages, 0, batches, spent_ms)
                    batches = messages = spent_ms = 0
                    counted_ms = now_ms
                if self._config.commit_interval_ms == 0 and not held:
                    yield OnIoThread(self._offsets.commit(assigned))
                    now_ms = clock_ms()  # the next lease check must see how long the commit took
                if not self._pool.goes_on(calls.batches):
                    if not assigned.has_more():
                        return  # submitting a run to find that out costs as much as a pull
                    break
            self.submit(assigned)  # other queues wait for this thread; the flag stays set
        finally:
            if batches:
                self._statistics.consumed(queue, messages, failed, batches, spent_ms)

    def _natively(self, assigned: AssignedQueue, make_run: MakeRun) -> Steps:
        try:  # one atomic call: two runs may begin at once, see `resting_runs`
            run = cast(ClaimRun, assigned.resting_runs.pop())
        except IndexError:
            run = make_run(assigned, self._pool.goes_on)
        run.begin()
        self._to_count.add(run)
        try:
            while run.end is None:
                if (called := (yield run)) is not None:
                    verdict = self._judged(assigned, called)
                    before = run.calls.messages
                    if verdict.settlement is Settlement.RETRY:
                        run.count_failed(verdict.done)
                        self._count(run, len(called[0].messages) - verdict.done)
                        yield from self._retry(assigned, called[0], before, verdict)
                        return
                    if verdict.settlement is Settlement.ROLLBACK:
                        self._roll_back(assigned, called[0], before)
                        return
                    run.commits = not assigned.auto_commit and verdict.settlement is Settlement.DONE
                elif run.end is None:
                    run.advance()  # before a task pauses: what is done counts from now on
            if run.end is RunEnd.SUBMIT:
                self.submit(assigned)
        finally:
            run.rest()
            self._to_count.add(run)  # its counts were perhaps taken meanwhile, but not the last
            assigned.resting_runs.append(run)

    def _count_runs(self) -> None:
        for run in self._to_count.copy():
            self._to_count.discard(run)  # first: a run that counts meanwhile adds itself again
            self._count(run)
            if run.is_running:
                self._to_count.add(run)

    def _judged(self, assigned: AssignedQueue, called: CallOutcome) -> Verdict:
        assert called is not None
        context, outcome = called
        is_auto = assigned.auto_commit
        verdict = self._judge(context, outcome, self._results_of[is_auto])
        if is_auto and outcome[0] in _MANUAL_ONLY and not self._is_warned:
            self._is_warned = True
            _log.warning(
                "%s: listener returned %s with auto_commit=True, which commits as SUCCESS does, as "
                "in Java; return SUSPEND to retry, or set auto_commit=False",
                assigned.queue,
                cast(ConsumeResult, outcome[0]).name,
                extra=log_fields(assigned.queue, group=self._group, member=self._client.client_id),
            )
        if self._recorder.enabled:
            self._record_end(context, verdict)
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
        if step is NextStep.STOP:
            self._failure_handler.stop(assigned, run[done].queue_offset)
        elif done == len(run):
            self.submit(assigned)  # nothing left that failed: no reason to pause
        else:
            delay_ms = self._failure_handler.delay_ms(assigned, context, done)
            self._submit_after(assigned, delay_ms, "retry")
