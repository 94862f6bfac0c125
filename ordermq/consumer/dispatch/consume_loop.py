"""ConsumeLoop: the base of every dispatcher, from a submitted queue to settled batches.

A run serves one queue on one worker. It claims messages, calls the listener batch by batch, settles
the claim and claims again: all of that is the core's (`core.ConsumeRun`), and the three dispatchers
differ in its rules (`ConsumeRules`). Python decides what follows from a call that did not simply
succeed. `_consume` is a generator that yields the steps that wait:

    the run       until a result needs a decision, a commit is due, or there is no more
    `OnIoThread`  a commit, a move to the dead letters

A thread performs the steps for plain listeners and a task performs them for `async def` ones, so
both follow the same rules. An exception of the listener is an outcome, `_judge` makes a `Verdict`
of it, and the dispatcher asks `failure_policy.py` what follows.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, cast

from ordermq import core
from ordermq.client.runtime import Runtime, result_of
from ordermq.client.user_code import HOLD_S, UserCode
from ordermq.clock import Clock, growing_pause_ms, system_clock_id
from ordermq.config import ConsumeConfig, PullConfig
from ordermq.consumer.dispatch.call_records import CallRecords
from ordermq.consumer.dispatch.worker_pool import ListenerPool, Runs, Serving, pool_for
from ordermq.consumer.listener import ConsumeContext, ListenerResults, Settlement, Verdict
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    QueueCallbacks,
    RunningCall,
)
from ordermq.consumer.queue.dead_letter_guard import DeadLetterGuard
from ordermq.consumer.queue.receiver import (
    DirectResult,
    FillLimits,
    Flow,
    Loop,
    Queue,
    ReadyQueues,
)
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.errors import ConfigError, Fenced, StoreError, error_text
from ordermq.leases.lease import Lease
from ordermq.model.log_fields import log_fields
from ordermq.model.message import MessageBatch, MessageRun
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import ConsumeResult
from ordermq.supervisor import every
from ordermq.value import Value

_log = logging.getLogger("ordermq.consumer")
_SUCCESS = ConsumeResult.SUCCESS
_DIRECT_RESULTS = {ConsumeResult.COMMIT: "CR_COMMIT", ConsumeResult.ROLLBACK: "CR_ROLLBACK"}
_CHECKS_PER_TIMEOUT = 10  # so a slow call is found at most a tenth of its time-out late
_THREADS_LOOK_MS = 1_000
_FIRST_RESTART_MS = 1_000
_MAX_RESTART_MS = 60_000
# Calls within a millisecond: a run that has made so many looks whether other queues wait.
MOST_UNREPORTED = 256

AnyListener = Callable[..., Any]
Awaited = Callable[[Awaitable[object]], object]  # waits for what a plain listener returned
_PLAIN_RESULTS = (ConsumeResult, int, type(None))
# What came of a call or of work on the I/O thread: (value, None) or (None, what it raised).
Outcome = tuple[object, BaseException | None]
# The first call that did not simply succeed, and its outcome; None if all did.
CallOutcome = tuple[ConsumeContext, Outcome] | None


class ListenerCancelled(Exception):
    """The task of a listener was cancelled, by user code: no failure of its messages."""


class BatchLeft(Exception):
    """A poller asked for other messages, or ended, with a batch that it had not finished."""


class Step(Protocol):
    """A step that a run yields; it is sent what `perform` returns."""

    def perform(self, listener: AnyListener, runtime: Runtime, awaited: Awaited) -> object:
        """Perform it on a worker thread.

        Args: awaited: waits for the result of a listener that returned an awaitable.
        """

    async def perform_async(self, listener: AnyListener, runtime: Runtime) -> object:
        """Perform it in a task on the listeners' event loop."""


Steps = Generator[Step, Any, None]
Settling = Generator[Step, Any, bool]  # returns whether the run may claim on


def _outcome_of(value: object, awaited: Awaited) -> Outcome:
    """Return the outcome of a call that returned; one that returned an awaitable is waited for."""
    # Off the path of a plain success: a lambda, say, that calls an `async def`. Untried it would
    # count as a result that nobody understands.
    if type(value) not in _PLAIN_RESULTS and inspect.isawaitable(value):
        try:
            value = awaited(value)
        except BaseException as error:  # noqa: BLE001 - judged as the outcome
            return None, error
    return value, None


class OnIoThread:
    """Run a coroutine on the I/O thread and wait for it; the run is sent its Outcome."""

    __slots__ = ("work",)

    def __init__(self, work: Any) -> None:
        self.work = work

    def perform(self, listener: AnyListener, runtime: Runtime, awaited: Awaited) -> Outcome:
        try:
            return runtime.call(self.work), None
        except BaseException as error:  # noqa: BLE001 - handed on as the outcome
            return None, error

    async def perform_async(self, listener: AnyListener, runtime: Runtime) -> Outcome:
        try:
            return await asyncio.wrap_future(runtime.submit(self.work)), None
        except BaseException as error:  # noqa: BLE001 - handed on as the outcome
            return None, _told_apart(error)


def _awaiting(value: object) -> object:
    """Return a coroutine that awaits what a listener returned; or the value, if it is a result."""
    return result_of(value) if inspect.isawaitable(value) else value


def _outcome_raised(error: BaseException) -> Outcome:
    """Return the outcome of a call on an event loop that raised."""
    return None, _told_apart(error)


def _told_apart(error: BaseException) -> BaseException:
    """Return the error a call ended with, or `ListenerCancelled` if its task was cancelled.

    A listener that awaits something cancelled raises CancelledError, too, and has failed.
    """
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        return ListenerCancelled("the listener's task was cancelled")
    return error


class SlowListenerWatch:
    """Finds listener calls that do not return, and logs each once with its stack; on the I/O thread
    (docs/internals/semantics.md#hung-listeners).

    Args:
        timeout_ms: a call that runs longer is slow.
        calls: returns the calls in progress.
        consequence: what follows, for the log.
        stack_of: returns the stack of the listener that a thread runs for a queue.
        on_slow: called once per slow call.
    """

    # Nothing stops a running listener. In an ordered group its lease is still renewed, because
    # giving the queue to another member would break its order. A concurrent group has no order
    # to keep and sends the batch back to the broker.

    def __init__(
        self,
        clock: Clock,
        timeout_ms: int,
        calls: Callable[[], Iterable[RunningCall]],
        consequence: str,
        stack_of: Callable[[AssignedQueue, int], str],
        on_slow: Callable[[RunningCall], None],
    ) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._calls = calls
        self._consequence = consequence
        self._stack_of = stack_of
        self._on_slow = on_slow
        self._notified: set[RunningCall] = set()

    async def check(self) -> None:
        """Log each call that has become slow since the last check."""
        now_ms = self._clock.now_ms()
        # A call is identified by all its fields: a retry of the same batch is another call.
        running = set(self._calls())
        for call in running - self._notified:
            if call.since_ms < now_ms - self._timeout_ms:
                self._notified.add(call)
                self._log(call, now_ms)
                self._on_slow(call)
        self._notified &= running  # the others have returned

    def _log(self, call: RunningCall, now_ms: int) -> None:
        # The stack distinguishes a deadlock from a slow database. It is taken here because the
        # call may return at any moment.
        _log.error(
            "%s: listener has not returned for %d ms at offsets %d-%d; %s. Its stack:\n%s",
            call.assigned.queue,
            now_ms - call.since_ms,
            call.messages.first_offset,
            call.messages.last_offset,
            self._consequence,
            self._stack_of(call.assigned, call.thread),
            extra=log_fields(call.assigned.queue, offset=call.messages.first_offset),
        )


class ConsumeRules(Value, kw_only=True):
    """Fulfils `core.contract.ConsumeRules`, which says what each means."""

    run: type
    context: type
    size: int
    is_shared: bool
    is_ordered: bool
    most_ms: int
    hold_ns: int
    clock_ms: Callable[[], int]
    clock_id: int | None
    is_judged: bool
    success: object
    other_success: object
    outcome_of: Callable[[object, Any], object]
    outcome_raised: Callable[[BaseException], object]
    awaiting: Callable[[object], object]
    is_closed: Callable[[], bool]
    on_start: Callable[[Any], object] | None = None
    records: CallRecords | None = None
    auto_commit: bool = True
    commits_each: bool = False
    most_batches: int = 1
    quick_ms: int = 0
    most_unreported: int = 1


class DispatcherParts(Value, kw_only=True):
    """Everything that a dispatcher of any kind calls, reads and counts.

    Args:
        user_code: has the event loop of an `async def` listener.
        guard: stops the consumer after too many dead letters.
    """

    member: MemberContext
    config: ConsumeConfig
    listener: AnyListener
    user_code: UserCode
    guard: DeadLetterGuard


class ConsumeLoop(ABC, Generic[Queue]):
    """Calls a group's listener for its assigned queues: the parts all dispatchers share.

    Args:
        results: the results this listener may return.
        limits_tasks: an `async def` listener has at most `consume_thread_count` calls at once.
            Not needed where each queue has one call anyway.
        lane: as of `CallRecords`.
    """

    is_ordered: bool

    def __init__(
        self,
        parts: DispatcherParts,
        results: ListenerResults,
        *,
        limits_tasks: bool = False,
        lane: int = 0,
    ) -> None:
        member, config = parts.member, parts.config
        client, recorder, statistics = member.client, member.recorder, member.statistics
        self._member = member
        self._client = client
        self._clock = client.clock
        self._group = member.group
        self._fields = member.fields
        self._config = config
        self._listener = parts.listener
        self._results = results = replace(results, is_strict=config.strict_results)
        # Without SUCCESS twice, None would be done before anybody judges it.
        self._other_success = _SUCCESS if results.is_strict else None
        self._recorder = recorder
        self._records = CallRecords(recorder, lane)
        self._statistics = statistics
        self._pool: ListenerPool[Queue] = pool_for(
            parts.listener,
            config.consume_thread_count,
            Runs(self._run, self._run_async, self._recover),
            f"ordermq-{member.group}",
            client.runtime,
            parts.user_code,
            limits_tasks=limits_tasks,
        )
        self._is_closed = False
        # Runs that may have counts to take, and calls in progress. Taken by those who read them,
        # and once a second, the counts cost a pull nothing.
        self._runs: set[core.contract.ConsumeRun] = set()
        statistics.gather_with(self._count_runs)

    def _make_plan(
        self,
        size: int,
        *,
        is_shared: bool,
        is_judged: bool,
        **differing: Any,
    ) -> core.contract.ConsumePlan:
        """Make the rules of runs. Args: as of `ConsumeRules`, which has defaults for the others."""
        rules: dict[str, Any] = {
            "run": MessageRun,
            "context": ConsumeContext,
            "is_ordered": self.is_ordered,
            "most_ms": self._config.max_time_consume_continuously_ms,
            "hold_ns": int(HOLD_S * 1e9),
            "clock_ms": self._clock.now_ms,
            "clock_id": system_clock_id(self._clock),
            "success": _SUCCESS,
            "other_success": self._other_success,
            "outcome_of": _outcome_of,
            "outcome_raised": _outcome_raised,
            "awaiting": _awaiting,
            "is_closed": lambda: self._is_closed,
            "records": self._records if self._recorder.enabled else None,
        }
        return core.ConsumePlan(
            ConsumeRules(
                size=size,
                is_shared=is_shared,
                is_judged=is_judged,
                **(rules | differing),
            )
        )

    # Receiver, as in consumer/queue/receiver.py; each dispatcher adds the rest.

    @abstractmethod
    def make_queue(
        self, queue: MessageQueue, lease: Lease, offset: int, callbacks: QueueCallbacks
    ) -> Queue: ...

    async def prepare(self, assigned: Queue) -> None:
        """By default, nothing must be known before the first pull."""

    @abstractmethod
    def flow(self, assigned: Queue, config: PullConfig) -> Flow: ...

    @abstractmethod
    def fill_limits(self, config: PullConfig) -> FillLimits: ...

    def submit(self, assigned: Queue) -> None:
        if assigned.internal_errors:
            # What broke may break again at once; without the pause it would fill the log.
            self._submit_after(assigned, restart_delay_ms(assigned.internal_errors), "restart")
        else:
            self._pool.submit(assigned)

    def take_from(self, ready: ReadyQueues) -> None:
        self._pool.take_from(ready)

    def unpark(self, assigned: Queue, key: bytes) -> bool:
        return False  # keys are parked by the key-ordered dispatcher only

    @abstractmethod
    async def consume_directly(
        self, batch: MessageBatch, assigned: Queue | None
    ) -> DirectResult: ...

    async def _call_directly(self, context: ConsumeContext) -> DirectResult:
        """Call the listener once, outside of any run; settle nothing."""
        begun_ms = self._clock.now_ms()
        outcome = await self._pool.call_alone(self._listener, context)
        spent_ms = self._clock.now_ms() - begun_ms
        name, remark = _direct_answer(context, outcome, self._results)
        return DirectResult(name, remark, context.auto_commit, spent_ms)

    def loops(self, assigned: Callable[[], Sequence[Queue]]) -> Sequence[Loop]:
        watch = SlowListenerWatch(
            self._clock,
            self._config.consume_timeout_ms,
            lambda: self._running_calls(assigned()),
            self._slow_consequence,
            self._pool.stack_of,
            self._on_slow,
        )
        interval_ms = max(self._config.consume_timeout_ms // _CHECKS_PER_TIMEOUT, 1)
        return [
            ("slow listeners", every(self._clock, interval_ms, watch.check)),
            ("listeners' threads", every(self._clock, _THREADS_LOOK_MS, self._look_at_threads)),
        ]

    async def _look_at_threads(self) -> None:
        self._pool.look()

    def calls_from_here(self) -> bool:
        return self._pool.calls_from_here()

    def resize(self, size: int) -> None:
        self._pool.resize(size)

    def close(self, timeout_s: float) -> bool:
        self._is_closed = True  # first: the pool cancels the tasks that are left
        return self._pool.close(timeout_s)

    # Slow listeners; what follows differs between ordered and concurrent groups.

    _slow_consequence: str  # for the log

    @abstractmethod
    def _running_calls(self, assigned: Sequence[Queue]) -> list[RunningCall]: ...

    @abstractmethod
    def _on_slow(self, call: RunningCall) -> None: ...

    # A run.

    @abstractmethod
    def _plan_of(self, assigned: Queue) -> core.contract.ConsumePlan:
        """Return the rules by which a queue is served."""

    @abstractmethod
    def _settle(self, run: core.contract.ConsumeRun, context: Any, outcome: Outcome) -> Settling:
        """Decide what follows from a call that did not simply succeed.

        Returns: False if the run ends: the queue was submitted, or will be, or rests. True if it
            may go on, behind this call; unless that was taken it counts as done.
        """

    async def _commit(self, assigned: Queue) -> None:
        """Commit what a run has settled; only ordered groups have runs that want it."""

    def _give_back(self, run: core.contract.ConsumeRun, context: Any) -> None:
        """Settle what a run has claimed, that an error has ended; by default it is abandoned.

        Args: context: of the call that was being settled, if any.
        """

    def _ended(self, assigned: Queue) -> None:
        """Note that nothing more could be claimed; by default nothing follows."""

    def _consume(self, assigned: Queue, serving: Serving) -> Steps:
        """Consume what is pending of a queue; the caller holds its dispatch flag.

        It guards nothing: what an error breaks is put right by `_recover`.
        """
        try:  # one atomic call: two runs may begin at once, see `resting_runs`
            run = cast(core.contract.ConsumeRun, assigned.resting_runs.pop())
        except IndexError:
            report_calls, plan = self._pool.report_calls, self._plan_of(assigned)
            run = core.ConsumeRun(plan, assigned, report_calls, self.submit)
        run.begin()
        serving.run = run
        self._runs.add(run)
        while not run.has_ended:
            if (called := (yield cast(Step, run))) is not None:
                serving.context = called[0]
                if not (yield from self._settle(run, *called)):
                    break
            elif run.wants_commit:
                yield OnIoThread(self._commit(assigned))
        self._finish_run(run, serving)

    def _finish_run(self, run: core.contract.ConsumeRun, serving: Serving) -> None:
        submits = run.submits  # other queues wait for this thread; the flag stays set
        if run.has_ended and not submits:
            self._ended(run.assigned)
        self._rest(run, serving, submits=submits)

    def _rest(self, run: core.contract.ConsumeRun, serving: Serving, *, submits: bool) -> None:
        run.rest()
        self._runs.add(run)  # its counts were perhaps taken meanwhile, but not the last
        serving.submits = submits
        run.assigned.resting_runs.append(run)  # last: from here on it is another one's

    def _run(self, assigned: Queue, serving: Serving) -> None:
        steps, listener = self._consume(assigned, serving), self._listener
        runtime = self._client.runtime
        try:
            step = next(steps)
            while True:
                step = steps.send(step.perform(listener, runtime, self._pool.awaited))
        except StopIteration:
            return

    async def _run_async(self, assigned: Queue, begun: asyncio.Event) -> None:
        begun.set()
        if self._is_closed:
            return  # begun by the user's loop, behind the close
        serving = Serving()
        steps, listener = self._consume(assigned, serving), self._listener
        runtime = self._client.runtime
        # Not the loop's time: uvloop reads its clock once per turn.
        turn_s = time.monotonic()
        try:
            step = next(steps)
            while True:
                outcome = await step.perform_async(listener, runtime)
                if self._is_closed:
                    return  # cancelled: the batch stays unfinished and is redelivered elsewhere
                step = steps.send(outcome)
                # A listener that never waits would keep the loop for as long as messages come.
                if time.monotonic() - turn_s > HOLD_S:
                    await asyncio.sleep(0)
                    turn_s = time.monotonic()
        except StopIteration:
            return
        except (asyncio.CancelledError, KeyboardInterrupt):
            # Between two calls, or of the program. Nobody else comes back to this queue.
            if not self._is_closed:
                self._abandon(assigned, serving, "the task of its listener was cancelled")
            raise
        except GeneratorExit:
            raise  # the loop is gone, and the coroutine is collected
        # SystemExit, too: it would end the task, and the queue would have nobody who claims it.
        except BaseException as error:  # noqa: BLE001 - logged, and the queue restarts
            self._recover(assigned, serving, error)
        finally:
            steps.close()
            self._give_up(serving)
            if serving.submits:
                self.submit(assigned)

    def _recover(self, assigned: Queue, serving: Serving, error: BaseException) -> None:
        """End a run for an error, of ours or sent to its thread from outside."""
        run = serving.run
        if run is not None and (run.has_ended or not run.is_running):
            _log.warning(
                "%s: %s behind the last call of a listener; its queue goes on",
                assigned.queue,
                type(error).__name__,
                extra=self._fields(assigned.queue),
            )
            self._finish_run(run, serving)
            assigned.tell_drained()
            return
        # The dispatch flag would have no run behind it, and the queue would stand still for ever
        # (docs/internals/semantics.md#process-queue, no lost wake-up). So the lease is given up,
        # and once it is regained the queue restarts.
        assigned.internal_errors += 1
        self._statistics.add("internal_errors")
        _log.error(
            "%s: internal error while consuming (please report); restarting from the committed "
            "offset in %d ms",
            assigned.queue,
            restart_delay_ms(assigned.internal_errors),
            exc_info=error,
            extra=self._fields(assigned.queue),
        )
        self._abandon(assigned, serving, "internal error while consuming")
        assigned.tell_drained()

    def _abandon(self, assigned: Queue, serving: Serving, reason: str) -> None:
        """Give back what a run has claimed, then the lease of its queue; last, let the run rest."""
        run = serving.run if serving.submits is None else None  # else it is another one's by now
        if run is not None:
            self._give_back(run, serving.context)
        assigned.abandon_batch(reason)
        if run is not None:
            self._rest(run, serving, submits=False)

    def _give_up(self, serving: Serving) -> None:
        """End a run that has begun, and has not ended by itself: what it claimed is given back."""
        run = serving.run
        if run is not None and serving.submits is None:
            self._give_back(run, serving.context)
            self._rest(run, serving, submits=False)

    def _submit_after(self, assigned: Queue, delay_ms: int, action: str) -> None:
        """Submit the queue after a pause; any thread."""

        async def submit() -> None:
            await self._clock.sleep_ms(delay_ms)
            self._pool.submit(assigned)

        runtime = self._client.runtime
        runtime.post(lambda: runtime.spawn(submit(), f"{action} {assigned.queue}"))

    def _count_runs(self) -> None:
        """Add to the statistics what runs have counted."""
        for run in self._runs.copy():
            if not run.is_running:
                self._runs.discard(run)
            calls, messages, spent_ms = run.take_counts()
            if calls:
                self._statistics.consumed(run.assigned.queue, messages, 0, calls, spent_ms)
            if run.is_running:  # it has begun meanwhile
                self._runs.add(run)

    def _count_call(self, run: core.contract.ConsumeRun, done: int, failed: int) -> None:
        """Add a call that the run does not settle, and with it those of its claim before it."""
        self._statistics.consumed(
            run.assigned.queue,
            run.done_messages + done,
            failed,
            run.done_calls + 1,
            self._clock.now_ms() - run.claimed_ms,
        )

    # Judging.

    def _judge(
        self, context: ConsumeContext, outcome: Outcome, results: ListenerResults | None = None
    ) -> Verdict:
        """Decide what the outcome of a call means; log nothing yet.

        Args:
            results: those allowed for this call, if not the usual ones.
        """
        value, raised = outcome
        if raised is None:
            try:
                verdict = context.judge(value, results or self._results)
            except ConfigError as error:
                verdict = Verdict(Settlement.RETRY, 0, error)
        else:
            self._statistics.add("listener_errors")
            verdict = Verdict(Settlement.RETRY, 0, raised)
        return verdict


def _direct_answer(
    context: ConsumeContext, outcome: Outcome, results: ListenerResults
) -> tuple[str, str | None]:
    """Return the result of a direct call by its name in Java, and what was wrong with it."""
    value, raised = outcome
    if raised is not None:
        return "CR_THROW_EXCEPTION", error_text(raised)
    try:
        verdict = context.judge(value, results)
    except ConfigError as error:
        return "CR_LATER", str(error)
    # The names tell what was returned, as in Java, also where a ROLLBACK would commit.
    if isinstance(value, ConsumeResult) and value in _DIRECT_RESULTS:
        return _DIRECT_RESULTS[value], None
    if value is None and results.is_strict:
        return "CR_RETURN_NULL", None
    return ("CR_LATER" if verdict.settlement is Settlement.RETRY else "CR_SUCCESS"), None


def restart_delay_ms(count: int) -> int:
    """Return the pause after `count` internal errors in a row, >= 1: 1 s, 2 s, 4 s .. 60 s."""
    return growing_pause_ms(_FIRST_RESTART_MS, count - 1, _MAX_RESTART_MS)


def failure_text(error: BaseException) -> str:
    """Describe a failed call for the log: what the listener raised, or what it returned."""
    if type(error) is ConfigError or isinstance(
        error, (StoreError, Fenced, ListenerCancelled, BatchLeft)
    ):
        return str(error)
    return f"listener raised {type(error).__name__}"
