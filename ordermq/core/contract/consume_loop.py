"""Consume loops: claims, calls of a listener, settlements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ordermq.core.contract.assigned_queue import AssignedQueue
    from ordermq.core.contract.message_codec import MessageRun


class TimedListener(Protocol):
    """A listener whose calls are timed, by the system's monotonic clock.

    Args:
        success, other_success: results of a call that is counted here, if it is the first attempt
            and has no `ack_index`.
        by_topic: the histograms of such calls, or others with an `add`. Of a topic that is missing
            a call is one of the others.
        on_other: called with messages, context, result, error and ns of each other call; the
            result of the call is its result, unless there was an error, which is raised again.
    """

    def __init__(
        self,
        listener: Callable[[Any, Any], Any],
        success: object,
        other_success: object,
        by_topic: dict[str, Any],
        on_other: Callable[..., Any],
    ) -> None: ...

    def __call__(self, messages: Any, context: Any) -> Any: ...


class CallContext(Protocol):
    """The values of one listener call; the base of the context that listeners get.

    It is made per call, so native code makes it without running `__init__`.
    """

    def __init__(self, assigned: Any, claim: Any, messages: MessageRun, attempt: int) -> None: ...

    @property
    def attempt(self) -> int: ...
    @property
    def claim(self) -> Any: ...
    @property
    def messages(self) -> Any: ...
    @property
    def suspend_ms(self) -> int:
        """-1 until a listener sets it."""

    @property
    def _ack_index(self) -> Any:
        """Of concurrent calls: None until a listener sets it."""

    @property
    def _delay_level(self) -> Any:
        """Of concurrent calls: 0 until a listener sets it."""


class CallPlan(Protocol):
    """Values that all listener calls of a dispatcher share; made once."""

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
        """Make one.

        Args:
            run: class of the batches, derived from MessageRun.
            context: class of the contexts, derived from CallContext.
            size: maximum number of messages per batch.
            clock_id: of the system's clock that `clock_ms` reads; None: it must be asked.
            is_judged: every call ends `perform`.
            success, other_success: results that do not, if they need no judging.
            on_start: called with each context before its listener.
            outcome_of: makes the outcome of any other result; given the result and what waits
                for an awaitable one.
            call_async: `perform_async`, given the calls and the listener.
        """


class BatchCalls(Protocol):
    """Calls a listener for the batches of one claim; an iterator of their contexts.

    Asking for the next context says that the batch before is done. None begins once the queue's
    `should_end_claim` is set, after `until_ms` or after the lease; but the first does.
    """

    def __init__(self, plan: CallPlan, assigned: AssignedQueue, claim: Any, until_ms: int) -> None:
        """Make the calls of a claim, which has `messages` and `lease.deadline_ms`."""

    @property
    def batches(self) -> int:
        """Batches done so far."""

    @property
    def messages(self) -> int:
        """Messages done so far."""

    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...

    def perform(self, listener: Any, runtime: Any, awaited: Any) -> Any:
        """Call until a call does not simply succeed; return its context and outcome, or None.

        Performed again, it continues behind that call, which then counts as done.
        """

    def perform_async(self, listener: Any, runtime: Any) -> Any:
        """Return a coroutine that does the same with an `async def` listener."""


class RunPlan(Protocol):
    """Values that all runs of a dispatcher share; made once."""

    def __init__(
        self,
        *,
        calls: CallPlan,
        over: object,
        submit: object,
        most_ms: int,
        quick_ms: int,
        most_batches: int,
        perform_async: Callable[[Any, Any, Any], Any],
    ) -> None:
        """Make one.

        Args:
            over, submit: ends of a run; see consumer/dispatch/orderly.py.
            most_ms: time after which a run claims no more.
            quick_ms: time after which a claim has no further batch, and the next claim has one.
            most_batches: largest number of batches per claim.
            perform_async: given the run, the listener and the runtime.
        """


class OrderlyRun(Protocol):
    """Claims of one queue, called and settled one after the other: the `ClaimRun` of
    consumer/dispatch/orderly.py, whose dispatcher does the same in Python.

    Every claim and settlement is the queue's own; what follows of it goes to the queue's `follow`.
    """

    def __init__(
        self, plan: RunPlan, assigned: AssignedQueue, goes_on: Callable[[int], bool]
    ) -> None: ...

    @property
    def assigned(self) -> Any: ...
    @property
    def is_running(self) -> bool: ...
    def begin(self) -> None: ...
    def rest(self) -> None: ...
    @property
    def is_open(self) -> bool: ...
    @is_open.setter
    def is_open(self, is_open: bool) -> None: ...
    @property
    def commits(self) -> bool: ...
    @commits.setter
    def commits(self, commits: bool) -> None: ...
    @property
    def end(self) -> Any: ...
    @property
    def calls(self) -> BatchCalls: ...
    @property
    def now_ms(self) -> int: ...
    def advance(self) -> bool: ...
    def count_failed(self, done: int) -> None: ...
    def take_counts(self) -> tuple[int, int, int]: ...
    def perform(self, listener: Any, runtime: Any, awaited: Any) -> Any: ...
    def perform_async(self, listener: Any, runtime: Any) -> Any: ...


class LanePlan(Protocol):
    """Values that all runs of a key-ordered dispatcher share; made once."""

    def __init__(
        self,
        *,
        calls: CallPlan,
        over: object,
        submit: object,
        most_ms: int,
        hold_ns: int,
        is_closed: Callable[[], bool],
        outcome_raised: Callable[[BaseException], object],
        awaiting: Callable[[object], object],
    ) -> None:
        """Make one.

        Args:
            over, submit: ends of a run; see consumer/dispatch/orderly.py.
            most_ms: time after which a run claims no more.
            hold_ns: time after which a run lets other tasks of its event loop go on.
            is_closed: tells, behind each call of an `async def` listener, that its result is void.
            outcome_raised: makes the outcome of a call of such a listener that raised.
            awaiting: returns a coroutine that awaits a result, or a result that is not to be.
        """


class LaneRun(Protocol):
    """Calls for the keys of one queue, claimed and settled one after the other: the `LaneCalls` of
    consumer/dispatch/key_ordered.py, whose dispatcher does the same in Python.

    Every claim and settlement is the queue's own; what follows of it goes to the queue's `follow`.
    """

    def __init__(
        self,
        plan: LanePlan,
        assigned: AssignedQueue,
        goes_on: Callable[[int], bool],
        submit: Callable[[Any], object],
    ) -> None: ...

    @property
    def assigned(self) -> Any: ...
    @property
    def begun_ms(self) -> int: ...
    @property
    def claim(self) -> Any: ...
    @property
    def end(self) -> Any: ...
    def let_go(self) -> None: ...
    def take_counts(self) -> tuple[int, int, int]: ...
    def perform(self, listener: Any, runtime: Any, awaited: Any) -> Any: ...
    def perform_async(self, listener: Any, runtime: Any) -> Any: ...


class ConcurrentPlan(Protocol):
    """Values that all runs of a concurrent dispatcher share; made once."""

    def __init__(
        self,
        *,
        calls: CallPlan,
        running_call: Callable[[Any, Any, int, int], object],
        is_closed: Callable[[], bool],
        most_ms: int,
        most_messages: int,
    ) -> None:
        """Make one.

        Args:
            running_call: makes what is told of a call in progress.
            is_closed: tells, behind each call of an `async def` listener, that its result is void.
            most_ms, most_messages: time, and messages, after which a run claims no more.
        """


class ConcurrentRun(Protocol):
    """Batches of one queue, each claimed, called and settled by itself: the `ConcurrentCalls` of
    consumer/dispatch/concurrent.py, whose dispatcher does the same in Python.

    Its first claim answers the dispatch flag; the further ones leave it alone. An iterator of
    contexts, for calls that are awaited.
    """

    def __init__(
        self, plan: ConcurrentPlan, assigned: AssignedQueue, submit: Callable[[Any], object]
    ) -> None: ...

    @property
    def assigned(self) -> Any: ...
    @property
    def calls(self) -> int: ...
    @property
    def call(self) -> Any: ...
    def take(self, messages: Any) -> Any: ...
    def let_go(self) -> None: ...
    def take_counts(self) -> tuple[int, int, int]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...
    def perform(self, listener: Any, runtime: Any, awaited: Any) -> Any: ...
    def perform_async(self, listener: Any, runtime: Any) -> Any: ...
