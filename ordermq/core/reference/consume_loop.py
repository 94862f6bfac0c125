"""The calls of a listener for one claim, and their contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


class CallContext:
    """See contract.CallContext."""

    __slots__ = (
        "_ack_index",
        "_assigned",
        "_delay_level",
        "attempt",
        "claim",
        "messages",
        "suspend_ms",
    )

    def __init__(self, assigned: Any, claim: Any, messages: Any, attempt: int) -> None:
        self._assigned = assigned
        self.claim = claim
        self.messages = messages
        self.attempt = attempt
        self.suspend_ms = -1
        self._ack_index: Any = None
        self._delay_level: Any = 0


class CallPlan:
    """See contract.CallPlan."""

    def __init__(
        self,
        *,
        run: type,
        context: type,
        size: int,
        clock_ms: Callable[[], int],
        clock_id: int | None,
        is_judged: bool,
        success: object,
        other_success: object,
        on_start: Callable[[Any], object] | None,
        outcome_of: Callable[[object, Any], object],
        call_async: Callable[[Iterable[Any], Any], Any],
    ) -> None:
        if size < 1:
            raise ValueError(f"calls of {size} messages: expected 1 or more")
        self._run = run
        self._context = context
        self._size = size
        self._clock_ms = clock_ms
        self._is_judged = is_judged
        self._success = success
        self._other_success = other_success
        self._on_start = on_start
        self._outcome_of = outcome_of
        self._call_async = call_async


class BatchCalls:
    """See contract.BatchCalls."""

    def __init__(self, plan: CallPlan, assigned: Any, claim: Any, until_ms: int) -> None:
        self._plan = plan
        self._batches = self._messages = 0
        # One generator for the life of the step: performed again, it continues where it was.
        self._contexts = self._cut(assigned, claim, until_ms)

    @property
    def batches(self) -> int:
        return self._batches

    @property
    def messages(self) -> int:
        return self._messages

    def _cut(self, assigned: Any, claim: Any, until_ms: int) -> Iterator[Any]:
        plan = self._plan
        # Not after the lease either: each batch must start under a valid one.
        before_ms = min(until_ms + 1, claim.lease.deadline_ms)
        for run in claim.messages.cut(plan._run, plan._size):
            if self._batches and (assigned.should_end_claim or plan._clock_ms() >= before_ms):
                return
            attempt = assigned.attempts.get(run.first_offset, 0)
            context = plan._context(assigned, claim, run, attempt)
            assigned.calling = run
            if plan._on_start is not None:
                plan._on_start(context)
            yield context
            self._messages += len(run)
            self._batches += 1

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._contexts)

    def perform(self, listener: Any, runtime: Any, awaited: Any) -> Any:
        plan = self._plan
        for context in self._contexts:
            try:
                value = listener(context.messages, context)
            # BaseException: a listener's sys.exit() must fail its batch, not end the worker.
            except BaseException as error:  # noqa: BLE001 - judged as the outcome
                return context, (None, error)
            is_plain = value is plan._success or value is plan._other_success
            if plan._is_judged or not is_plain:
                return context, plan._outcome_of(value, awaited)
        return None

    def perform_async(self, listener: Any, runtime: Any) -> Any:
        return self._plan._call_async(self, listener)
