"""KeyOrderedDispatcher: calls the listener for several keys of a queue at once, in order per key
(docs/internals/semantics.md#key-lanes).

A worker that serves a queue claims the messages of one listener call, submits the queue for a
further worker if another key may run, and only then calls the listener. So the number of calls
grows with the keys that have messages, up to `max_in_flight_per_queue`. Messages finish in any
order; the commit goes up to the oldest one that is not done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Protocol

from ordermq import core
from ordermq.client.session import ClientSession
from ordermq.client.user_code import UserCode
from ordermq.config import ConsumeConfig, ConsumePathKind, PullConfig
from ordermq.consumer.dispatch.consume_loop import (
    HOLD_S,
    ListenerCalls,
    OnIoThread,
    Outcome,
    Step,
    Steps,
    awaiting,
    call_plan,
    outcome_raised,
)
from ordermq.consumer.dispatch.failure_policy import FailurePolicy, NextStep
from ordermq.consumer.dispatch.orderly import OrderedDispatcher, RunEnd
from ordermq.consumer.dispatch.parked_keys import ParkedKeys, run_of
from ordermq.consumer.dispatch.parking_log import offset_of
from ordermq.consumer.listener import ConsumeContext, Listener
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.consumer.queue.assigned_queue import (
    BatchClaim,
    NotClaimed,
    QueueCallbacks,
)
from ordermq.consumer.queue.dead_letter_guard import DeadLetterGuard
from ordermq.consumer.queue.key_ordered_queue import KeyOrderedQueue
from ordermq.consumer.queue.receiver import FillLimits, limits_by_fill
from ordermq.consumer.queue.statistics import ConsumerStatistics, EventRecorder
from ordermq.events import EventType
from ordermq.leases.lease import Lease
from ordermq.model.log_fields import log_fields
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue

_log = logging.getLogger("ordermq.consumer")
_MOST_UNREPORTED = 64  # calls within a millisecond; as in ext/cython/lane_run.pyx


class LaneCalls(Step, Protocol):
    """Calls for the keys of one queue, claimed and settled one after the other, until something is
    to decide: what `KeyOrderedDispatcher` does in Python, natively.

    It returns the first outcome of a call that does not simply succeed, whose claim the dispatcher
    settles, and continues behind that call when it is performed again. It returns None at its
    `end`.

    Attributes:
        assigned: the queue.
        begun_ms: when the present call began, on the monotonic clock.
        claim: of the present call; None if it is settled.
        end: why nothing more is claimed; None until then.
    """

    @property
    def assigned(self) -> KeyOrderedQueue: ...
    @property
    def begun_ms(self) -> int: ...
    @property
    def claim(self) -> BatchClaim | None: ...
    @property
    def end(self) -> RunEnd | None: ...

    def let_go(self) -> None:
        """Leave the claim of the present call to the caller, who settles it."""

    def take_counts(self) -> tuple[int, int, int]:
        """Return calls, messages and ms spent of what was settled natively since the last time; any
        thread.
        """


class MakeLaneCalls(Protocol):
    """Makes the native run of a queue."""

    def __call__(
        self,
        assigned: KeyOrderedQueue,
        goes_on: Callable[[int], bool],
        submit: Callable[[KeyOrderedQueue], None],
    ) -> LaneCalls:
        """Make it.

        Args:
            goes_on: as of `ListenerPool`.
            submit: has the queue served by a further worker.
        """


def native_lanes(
    config: ConsumeConfig,
    calls: core.contract.CallPlan,
    is_closed: Callable[[], bool],
) -> MakeLaneCalls | None:
    """Return what makes native runs; None if the core or the settings do not allow them.

    Args: calls: of the dispatcher.
    """
    # A call that is committed by itself waits for the broker.
    if config.consume_path is ConsumePathKind.PYTHON or config.commit_interval_ms == 0:
        return None
    if core.LanePlan is None or core.LaneRun is None:
        return None
    plan = core.LanePlan(
        calls=calls,
        over=RunEnd.OVER,
        submit=RunEnd.SUBMIT,
        most_ms=config.max_time_consume_continuously_ms,
        hold_ns=int(HOLD_S * 1e9),
        is_closed=is_closed,
        outcome_raised=outcome_raised,
        awaiting=awaiting,
    )
    return partial(core.LaneRun, plan)


class KeyOrderedDispatcher(OrderedDispatcher[KeyOrderedQueue]):
    """Calls a listener for each key in order, several keys at once; fulfils `Receiver`."""

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
        self._record_begin = partial(self._record_start, lane=config.max_in_flight_per_queue)
        calls = call_plan(
            client.clock,
            self._batch_size,
            self._judges_all,
            self._other_success,
            self._record_begin if recorder.enabled else None,
        )
        self._make_run = native_lanes(config, calls, lambda: self._is_closed)
        self._runs: set[LaneCalls] = set()
        statistics.gather_with(self._count_runs)

    @cached_property
    def _parked(self) -> ParkedKeys | None:
        """The parking topic, if the failure policy has one."""
        topic = self._failure_handler.parking_topic
        if not topic:
            return None
        return ParkedKeys(
            self._client,
            self._group,
            topic,
            self._recorder,
            self._statistics,
            self._call_parked,
            self.submit,
        )

    def make_queue(
        self, queue: MessageQueue, lease: Lease, offset: int, callbacks: QueueCallbacks
    ) -> KeyOrderedQueue:
        return KeyOrderedQueue(queue, self._group, lease, offset, self._config, callbacks)

    async def prepare(self, assigned: KeyOrderedQueue) -> None:
        # Before the first pull: a newer message of a parked key must not run ahead of those that
        # an earlier owner has moved to the parking topic.
        if self._parked is not None:
            await self._parked.restore(assigned)

    def fill_limits(self, config: PullConfig) -> FillLimits:
        return limits_by_fill(config)

    def unpark(self, assigned: KeyOrderedQueue, key: bytes) -> bool:
        if self._parked is not None:
            return self._parked.replay_soon(assigned, key)
        begins = assigned.unpark(key)
        if begins:
            self.submit(assigned)
        return begins is not None

    def _consume(self, assigned: KeyOrderedQueue) -> Steps:
        make_run = self._make_run
        return self._in_python(assigned) if make_run is None else self._natively(assigned, make_run)

    def _in_python(self, assigned: KeyOrderedQueue) -> Steps:
        size = self._batch_size
        most_ms = self._config.max_time_consume_continuously_ms
        # This request is served now. A message that arrives from here on submits another one,
        # and what arrived before is seen below: no wake-up is lost.
        assigned.process_queue.end_dispatch()
        started_ms = reported_ms = now_ms = self._clock.now_ms()
        unreported = 0  # calls
        while now_ms - started_ms <= most_ms:
            claim = assigned.begin_batch(size, now_ms)
            if isinstance(claim, NotClaimed):
                self._move_parked(assigned)
                return
            # Before the call: the next worker serves another key while this one runs.
            if assigned.request_another():
                self.submit(assigned)
            yield from self._call(assigned, claim)
            now_ms = self._clock.now_ms()
            unreported += 1
            # Not after each call: while keys are ready the queue itself waits in the pool, which
            # would end the run, and a run costs more than many quick calls.
            if now_ms != reported_ms or unreported == _MOST_UNREPORTED:
                reported_ms, calls, unreported = now_ms, unreported, 0
                if not self._pool.goes_on(calls):
                    break
        if assigned.request_next():
            self.submit(assigned)  # other queues wait for this thread

    def _natively(self, assigned: KeyOrderedQueue, make_run: MakeLaneCalls) -> Steps:
        assigned.process_queue.end_dispatch()  # as above
        run = make_run(assigned, self._pool.goes_on, self.submit)
        self._runs.add(run)
        try:
            while run.end is None:
                if (called := (yield run)) is not None:
                    run.let_go()
                    yield from self._settle(assigned, called[0], called[1], run.begun_ms)
        except BaseException:
            if (claim := run.claim) is not None:
                self._give_back(assigned, claim)
            raise
        finally:
            self._runs.discard(run)
            self._count(run)
        if run.end is RunEnd.OVER:
            self._move_parked(assigned)
        elif assigned.request_next():
            self.submit(assigned)

    def _count_runs(self) -> None:
        for run in self._runs.copy():
            self._count(run)

    def _move_parked(self, assigned: KeyOrderedQueue) -> None:
        # What is left may be of parked keys only; their messages must leave the queue, or they
        # would hold its commit.
        if self._parked is not None and assigned.parked_keys():
            self._client.runtime.post(self._parked.move_soon, assigned)

    def _give_back(self, assigned: KeyOrderedQueue, claim: BatchClaim) -> None:
        # An internal error, or the listeners' loop was closed. The lanes must not wait for this
        # call for ever.
        assigned.end_batch(claim, 0, self._clock.now_ms())
        if assigned.release(claim, 0):
            self.submit(assigned)

    def _call(self, assigned: KeyOrderedQueue, claim: BatchClaim) -> Steps:
        """Call the listener once and settle its messages."""
        run = claim.messages
        attempt = assigned.attempts.get(run.first_offset, 0) if assigned.attempts else 0
        context = ConsumeContext(assigned, claim, run, attempt)
        begun_ms = self._clock.now_ms()
        try:
            if self._recorder.enabled:
                self._record_begin(context)
            called = yield ListenerCalls((context,), self._judges_all, self._other_success)
        except BaseException:
            self._give_back(assigned, claim)
            raise
        yield from self._settle(assigned, context, None if called is None else called[1], begun_ms)

    def _settle(
        self,
        assigned: KeyOrderedQueue,
        context: ConsumeContext,
        outcome: Outcome | None,
        begun_ms: int,
    ) -> Steps:
        """Settle the messages of a call.

        Args: outcome: None: it has simply succeeded.
        """
        claim, run = context.claim, context.messages
        step = NextStep.RETRY  # what follows if fewer than all are done
        try:
            spent_ms = self._clock.now_ms() - begun_ms
            done = succeeded = len(run)
            if outcome is not None:
                verdict = self._judge(context, outcome)
                if self._recorder.enabled:
                    self._record_end(context, verdict)
                done = succeeded = verdict.done
                if done < len(run):
                    step = self._failure_handler.next_step(assigned, context, verdict)
                if step is NextStep.DEAD_LETTER:
                    done += yield from self._failure_handler.move_to_dead_letters(
                        assigned, claim, run[done], verdict.error
                    )
            failed = len(run) - succeeded
            self._statistics.consumed(assigned.queue, succeeded, failed, 1, spent_ms)
        except BaseException:
            self._give_back(assigned, claim)
            raise
        assigned.internal_errors = 0
        if not assigned.end_batch(claim, done, self._clock.now_ms()):
            return
        # After `end_batch`: it suspends the keys that failed, and a release must come later.
        if done < len(run):
            self._hold_back(assigned, context, done, step)
        if done and self._config.commit_interval_ms == 0:
            yield OnIoThread(self._offsets.commit(assigned))

    def _hold_back(
        self, assigned: KeyOrderedQueue, context: ConsumeContext, done: int, step: NextStep
    ) -> None:
        """Keep the lanes of failed messages closed: for a pause, or until somebody asks."""
        claim = context.claim
        offset = claim.messages[done].queue_offset
        if step is NextStep.STOP:
            self._failure_handler.stop(assigned, offset)
        elif step is NextStep.PARK and (key := assigned.park(claim, done)) is not None:
            self._statistics.add("parked", queue=assigned.queue)
            _log.error(
                "%s: key %r parked at offset %d after %d attempts; call unpark() to continue with "
                "it",
                assigned.queue,
                key.decode(errors="replace"),
                offset,
                assigned.attempts.get(offset, 0),
                extra=log_fields(
                    assigned.queue, offset=offset, group=self._group, member=self._client.client_id
                ),
            )
        else:
            self._release_later(assigned, context, done)
            return
        # The suspension of the other keys of the call ends at once; a parked key stays parked.
        if assigned.release(claim, done):
            self.submit(assigned)

    def _release_later(self, assigned: KeyOrderedQueue, context: ConsumeContext, done: int) -> None:
        delay_ms = self._failure_handler.delay_ms(assigned, context, done)

        async def release() -> None:
            await self._clock.sleep_ms(delay_ms)
            if assigned.release(context.claim, done):
                self.submit(assigned)

        runtime = self._client.runtime
        runtime.post(lambda: runtime.spawn(release(), f"retry a key of {assigned.queue}"))

    async def _call_parked(
        self, assigned: KeyOrderedQueue, claim: BatchClaim, message: MessageView
    ) -> bool:
        """Call the listener for a parked message; on the I/O thread. True if it is done."""
        run = run_of(message)
        context = ConsumeContext(assigned, claim, run, 0)
        # In the history it keeps the offset it had in its own queue.
        about: dict[str, Any] = {"offs": [offset_of(message)]}
        record, epoch = self._recorder.record_messages, claim.lease.epoch
        if self._recorder.enabled:
            lane = self._config.max_in_flight_per_queue
            record(EventType.START, assigned.queue, epoch, run, attempt=1, lane=lane, **about)
        begun_ms = self._clock.now_ms()
        outcome = await self._pool.call_alone(self._listener, context)
        verdict = self._judge(context, outcome)
        if verdict.error is not None:
            self._failure_handler.log_parked(assigned, offset_of(message), verdict.error)
        if self._recorder.enabled:
            detail = verdict.settlement.name
            record(
                EventType.END, assigned.queue, epoch, run, done=verdict.done, detail=detail, **about
            )
        spent_ms = self._clock.now_ms() - begun_ms
        self._statistics.consumed(assigned.queue, verdict.done, 1 - verdict.done, 1, spent_ms)
        return verdict.done == 1
