"""The consume loop: claims, calls of a listener, settlements."""

from __future__ import annotations

import inspect
import threading
import time
import types
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from ordermq.core import status
from ordermq.core.reference.arguments import out_of_range
from ordermq.threads import Lock

if TYPE_CHECKING:
    from ordermq.core.contract import ConsumeRules


class CallContext:
    """See contract.CallContext."""

    __slots__ = (
        "_ack_index",
        "_assigned",
        "_delay_level",
        "_suspend_ms",
        "attempt",
        "claim",
        "messages",
    )

    def __init__(self, assigned: Any, claim: Any, messages: Any, attempt: int) -> None:
        self._assigned = assigned
        self.claim = claim
        self.messages = messages
        self.attempt = attempt
        self._suspend_ms: Any = -1
        self._ack_index: Any = None
        self._delay_level: Any = 0


class ConsumePlan:
    """See contract.ConsumePlan."""

    def __init__(self, rules: ConsumeRules) -> None:
        if rules.size < 1:
            raise out_of_range(f"ConsumePlan: calls of {rules.size}")
        self._rules = rules


@types.coroutine
def _next_turn() -> Generator[None, None, None]:
    yield  # to the event loop, whichever it is


class ConsumeRun:
    """See contract.ConsumeRun."""

    def __init__(
        self,
        plan: ConsumePlan,
        assigned: Any,
        report_calls: Callable[[int], bool],
        submit: Callable[[Any], object],
    ) -> None:
        self._rules = plan._rules
        self._assigned = assigned
        self._report_calls = report_calls
        self._submit = submit
        self._lock = Lock()  # guards the call in progress, and the counts
        self._counts = (0, 0, 0)
        self._commits = False
        self._now_ms = self._claimed_ms = self._thread = 0
        self.begin()
        self._is_running = False

    @property
    def assigned(self) -> Any:
        return self._assigned

    @property
    def is_running(self) -> bool:
        return self._is_running

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    @property
    def submits(self) -> bool:
        return self._submits

    @property
    def wants_commit(self) -> bool:
        return self._wants_commit

    @property
    def commits(self) -> bool:
        return self._commits

    @commits.setter
    def commits(self, commits: bool) -> None:
        self._commits = commits

    @property
    def claim(self) -> Any:
        return self._claim

    @property
    def claimed_ms(self) -> int:
        return self._claimed_ms

    @property
    def done_calls(self) -> int:
        return self._done_calls

    @property
    def done_messages(self) -> int:
        return self._done_messages

    @property
    def call(self) -> tuple[Any, int, int] | None:
        with self._lock:
            if self._context is None or self._batch is None:
                return None
            return self._batch, self._claimed_ms, self._thread

    def begin(self) -> None:
        self.rest()
        self._is_running = True
        self._thread = threading.get_ident()
        self._started_ms = self._reported_ms = self._now_ms = self._rules.clock_ms()
        self._kind = status.CLAIM_SHARED if self._rules.is_shared else status.CLAIM_ALONE
        self._unreported = 0
        self._has_ended = self._submits = self._wants_commit = False

    def rest(self) -> None:
        self._is_running = False
        self._context: Any = None  # of the call in progress; whoever takes it settles the call
        self._claim: Any = None
        self._batch: Any = None  # of the call made last, until it is looked at
        self._batches: Iterator[Any] = iter(())  # further ones of the claim
        self._following: Any = None  # the next one of them, if it begins
        self._has_succeeded = False  # the call in progress, simply
        self._done_calls = self._done_messages = self._last_size = 0

    def take(self, messages: Any) -> Any:
        with self._lock:
            return self._taken() if self._batch is messages else None

    def _taken(self) -> Any:
        context, self._context = self._context, None
        if context is not None:
            self._claim = None
        return context

    def take_counts(self) -> tuple[int, int, int]:
        with self._lock:
            counts, self._counts = self._counts, (0, 0, 0)
        return counts

    def _advance(self) -> bool:
        """Settle what has simply succeeded; False: no call follows now."""
        if self._has_ended:
            return False
        if self._batch is not None:
            self._now_ms = self._rules.clock_ms()
            self._following = self._end_call()
            if self._has_succeeded:
                self._has_succeeded = False
                self._record_success()
            if self._following is None and not self._settle():
                return False
        elif self._wants_commit:
            self._now_ms = self._rules.clock_ms()  # the lease is looked at behind the commit
        if self._following is not None:
            return True
        self._wants_commit = False
        return not self._unreported or self._may_claim()

    def _begin(self) -> Any:
        """Begin the next call, of a new claim if need be; None: there is none, and the run ends."""
        batch, self._following = self._following, None
        return self._begin_claim() if batch is None else self._begin_call(batch)

    def _end_call(self) -> Any:
        """Count the call in progress as done; return the next batch of its claim, if it has one."""
        with self._lock:
            batch, self._batch = self._batch, None
            self._unreported += 1
            if self._context is None:
                return None  # taken
        self._done_calls += 1
        self._done_messages += len(batch)
        self._last_size = len(batch)
        # Not after the lease either: each batch must start under a valid one.
        before_ms = min(self._claimed_ms + self._rules.quick_ms + 1, self._claim.lease.deadline_ms)
        following = next(self._batches, None)
        ends = self._assigned.should_end_claim or self._now_ms >= before_ms
        return None if ends else following

    def _settle(self) -> bool:
        """Settle the claim whose calls are done; False: nothing is claimed now."""
        rules, assigned, done = self._rules, self._assigned, self._done_messages
        with self._lock:
            claim = self._claim
            if self._taken() is None:
                return True
            spent_ms = self._now_ms - self._claimed_ms
            calls, messages, all_ms = self._counts
            self._counts = calls + self._done_calls, messages + done, all_ms + spent_ms
        assigned.internal_errors = 0
        held = 0
        if assigned.lanes is not None:
            flags = assigned.finish_lanes(claim, done, self._now_ms, leaves=True)
        elif rules.is_shared:
            flags = assigned.finish_offsets(claim, claim.messages.offsets())
        else:
            if not assigned.auto_commit and not self._commits:
                held = self._last_size
            doubled = min(2 * assigned.batches_per_claim, rules.most_batches)
            assigned.batches_per_claim = doubled if spent_ms <= rules.quick_ms else 1
            flags = assigned.settle(claim, done, self._now_ms, held=held)
        if flags & ~status.COUNTS:
            assigned.follow(flags & ~status.COUNTS)
        if not flags & status.COUNTS and not rules.is_shared:
            self._end()  # the queue has cleared its dispatch flag
            return False
        self._wants_commit = bool(rules.commits_each and flags & status.COUNTS and done > held)
        return not self._wants_commit

    def _may_claim(self) -> bool:
        """Report calls to the pool where it is time; False: the run ends early."""
        rules, assigned = self._rules, self._assigned
        if self._now_ms == self._reported_ms and self._unreported < rules.most_unreported:
            return True
        self._reported_ms = self._now_ms
        if self._report() and self._now_ms - self._started_ms < rules.most_ms:
            return True
        # Submitting a run to find out that there is no more costs as much as a pull.
        flags = assigned.begin_run() if rules.is_shared else assigned.end_run()
        self._submits = bool(flags & status.DISPATCH)
        if flags & status.IDLE:
            assigned.follow(flags)
        self._end()
        return False

    def _report(self) -> bool:
        calls, self._unreported = self._unreported, 0
        return self._report_calls(calls)

    def _end(self) -> None:
        self._has_ended = True
        if self._unreported:
            self._report()

    def _begin_claim(self) -> Any:
        rules, assigned = self._rules, self._assigned
        limit = rules.size * assigned.batches_per_claim
        claim, flags = assigned.claim(limit, self._now_ms, kind=self._kind)
        if not rules.is_ordered:
            self._kind = status.CLAIM_FURTHER
        self._claim = None if isinstance(claim, int) else claim
        if flags & ~status.DISPATCH:
            assigned.follow(flags & ~status.DISPATCH)
        if self._claim is None:
            self._end()
            return None
        self._claimed_ms = self._now_ms
        self._commits = False
        self._done_calls = self._done_messages = 0
        # Before the call: the next worker claims what is next while this one runs.
        if flags & status.DISPATCH:
            self._submit(assigned)
        if rules.is_shared:
            return self._begin_call(claim.messages)
        assigned.auto_commit = rules.auto_commit  # a listener may change it, for one call
        self._batches = claim.messages.cut(rules.run, rules.size)
        return self._begin_call(next(self._batches))

    def _begin_call(self, batch: Any) -> Any:
        rules, assigned = self._rules, self._assigned
        attempt = assigned.attempts.get(batch.first_offset, 0)
        context = rules.context(assigned, self._claim, batch, attempt)
        if not rules.is_shared:
            assigned.calling = batch
        if rules.on_start is not None:
            rules.on_start(context)
        if (records := rules.records) is not None:
            lines = records.lines
            head = b"" if lines is None else records.line_head(context)
            if lines is None or not lines.add_start(head, context, records.lane):
                records.started(context)
        with self._lock:
            self._batch, self._context = batch, context
        return context

    def _record_success(self) -> None:
        """Record the end of a call that nobody judges, unless it was taken."""
        rules, context = self._rules, self._context
        if context is None or (records := rules.records) is None:
            return  # who has taken it records it
        holds = not rules.is_shared and not self._assigned.auto_commit
        lines = records.lines
        head = b"" if lines is None else records.line_head(context)
        if lines is None or not lines.add_end(head, context, b"HOLD" if holds else b"DONE"):
            records.succeeded(context)

    def _is_plain(self, context: Any, value: object) -> bool:
        rules = self._rules
        is_success = value is rules.success or value is rules.other_success
        self._has_succeeded = is_success and not rules.is_judged and context._ack_index is None
        return self._has_succeeded

    def perform(self, listener: Any, runtime: Any, awaited: Any) -> Any:
        while self._advance() and (context := self._begin()) is not None:
            try:
                value = listener(context.messages, context)
            # BaseException: a listener's sys.exit() must fail its batch, not end the worker.
            except BaseException as error:  # noqa: BLE001 - judged as the outcome
                return context, (None, error)
            if not self._is_plain(context, value):
                return context, self._rules.outcome_of(value, awaited)
        return None

    async def perform_async(self, listener: Any, runtime: Any) -> Any:
        rules = self._rules
        since_ns = time.monotonic_ns()
        while self._advance():
            # A listener that never waits would keep the loop for as long as messages come.
            if time.monotonic_ns() - since_ns > rules.hold_ns:
                await _next_turn()
                since_ns = time.monotonic_ns()
            if (context := self._begin()) is None:
                break
            try:
                value = listener(context.messages, context)
                if inspect.isawaitable(value):
                    value = await value
            except BaseException as error:
                # Ctrl-C is of the program, whose loop may be the one this runs on. On another
                # thread nobody's Ctrl-C is raised, so the listener has raised it itself.
                if isinstance(error, KeyboardInterrupt) and (
                    threading.current_thread() is threading.main_thread()
                ):
                    raise
                return context, rules.outcome_raised(error)
            if rules.is_closed():
                return None  # cancelled: it stays unfinished
            if not self._is_plain(context, value):
                return context, (value, None)
        return None
