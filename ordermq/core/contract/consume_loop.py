"""Consume loops: claims, calls of a listener, settlements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ordermq.core.contract.assigned_queue import AssignedQueue
    from ordermq.core.contract.event_lines import EventLines
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
    def attempt(self) -> int:
        """Failed attempts before this call; a dispatcher may add to them before the call."""

    @attempt.setter
    def attempt(self, attempt: int) -> None: ...
    @property
    def claim(self) -> Any: ...
    @property
    def messages(self) -> Any: ...
    @property
    def _suspend_ms(self) -> Any:
        """-1 until a listener sets it."""

    @property
    def _ack_index(self) -> Any:
        """Of concurrent calls: None until a listener sets it."""

    @property
    def _delay_level(self) -> Any:
        """Of concurrent calls: 0 until a listener sets it."""


class CallRecords(Protocol):
    """Records of a history: the start of each call, and its end if it simply succeeded.

    A line is added to `lines` natively, or, where that cannot be, by `started` and `succeeded`.
    Whoever judges a call, or takes it, records its end.
    """

    @property
    def lines(self) -> EventLines | None:
        """The lines of the history; None if each has to be written at once."""

    @property
    def lane(self) -> int:
        """The member `lane` of the start of each call, 0 for none."""

    @property
    def line_head(self) -> Callable[[Any], bytes]:
        """Returns, given a context, the members that tell its queue and its epoch, as JSON; once
        per lease.
        """

    @property
    def started(self) -> Callable[[Any], object]:
        """Records the start of a call, given its context."""

    @property
    def succeeded(self) -> Callable[[Any], object]:
        """Records the end of a call that simply succeeded."""


class ConsumeRules(Protocol):
    """The rules by which runs claim, call and settle; each dispatcher makes its own."""

    @property
    def run(self) -> type:
        """Class of the batches, derived from MessageRun."""

    @property
    def context(self) -> type:
        """Class of the contexts, derived from CallContext."""

    @property
    def size(self) -> int:
        """Maximum number of messages of a call, >= 1."""

    @property
    def is_shared(self) -> bool:
        """Other runs serve the queue beside this one, each claim is one call, and its messages
        finish in any order. False: one run, and claims of up to `most_batches` calls.
        """

    @property
    def is_ordered(self) -> bool:
        """A result counts only under the lease of its claim. False: whatever became of that; and
        claims behind a run's first one leave the dispatch flag alone.
        """

    @property
    def most_ms(self) -> int:
        """Time after which a run claims no more."""

    @property
    def hold_ns(self) -> int:
        """Time after which a run lets other tasks of its event loop go on."""

    @property
    def clock_ms(self) -> Callable[[], int]:
        """The time, monotonic."""

    @property
    def clock_id(self) -> int | None:
        """The id of the system's clock that `clock_ms` reads; None: it must be asked."""

    @property
    def is_judged(self) -> bool:
        """Every call ends `perform`."""

    @property
    def success(self) -> object:
        """It and `other_success` do not, if they need no judging."""

    @property
    def other_success(self) -> object: ...
    @property
    def outcome_of(self) -> Callable[[object, Any], object]:
        """Makes the outcome of any other result; given the result and what waits for an awaitable
        one.
        """

    @property
    def outcome_raised(self) -> Callable[[BaseException], object]:
        """Makes the outcome of a call of an `async def` listener that raised."""

    @property
    def awaiting(self) -> Callable[[object], object]:
        """Returns a coroutine that awaits a result, or a result that is not to be awaited."""

    @property
    def is_closed(self) -> Callable[[], bool]:
        """Tells, behind each call of such a listener, that its result is void."""

    @property
    def on_start(self) -> Callable[[Any], object] | None:
        """Called with each context before its listener, if there is anything to do."""

    @property
    def records(self) -> CallRecords | None:
        """The records of calls, if a history is kept; behind `on_start`."""

    @property
    def auto_commit(self) -> bool:
        """The auto commit of each claim, until a listener changes it."""

    @property
    def commits_each(self) -> bool:
        """A run wants a commit behind each claim whose results commit."""

    @property
    def most_batches(self) -> int:
        """Largest number of calls of a claim. Doubled up to this in eight claims; a slow one begins
        anew.
        """

    @property
    def quick_ms(self) -> int:
        """Time after which a claim has no further call, and is slow."""

    @property
    def most_unreported(self) -> int:
        """Calls within a millisecond that the pool is not told of; it is told behind a claim."""


class ConsumePlan(Protocol):
    """The rules of a dispatcher, read once for all of its runs."""

    def __init__(self, rules: ConsumeRules) -> None:
        """Raises: ValueError: a size below 1."""


class ConsumeRun(Protocol):
    """Serves a queue: claims, calls a listener, settles, and claims again; a step of a dispatcher.

    `perform` returns the first outcome of a call that does not simply succeed, together with its
    context, and continues behind that call when it is performed again. It returns None once the
    run has ended, or wants a commit. Whatever the dispatcher has not taken by then counts as done.

    Every claim and settlement is the queue's own; what follows of it goes to the queue's `follow`.
    A run is used again and again, each time between `begin` and `rest`, by one worker.
    """

    def __init__(
        self,
        plan: ConsumePlan,
        assigned: AssignedQueue,
        report_calls: Callable[[int], bool],
        submit: Callable[[Any], object],
    ) -> None:
        """Make the run of a queue.

        Args:
            report_calls: to the pool; False: the run ends, others wait for its thread.
            submit: has the queue served by a further worker.
        """

    @property
    def assigned(self) -> Any:
        """The queue it serves."""

    @property
    def is_running(self) -> bool:
        """True between `begin` and `rest`."""

    @property
    def has_ended(self) -> bool:
        """True once it claims no more."""

    @property
    def submits(self) -> bool:
        """True once it has ended before its queue was empty: the caller submits the queue."""

    @property
    def wants_commit(self) -> bool:
        """True while it waits for a commit of what it has just settled."""

    @property
    def commits(self) -> bool:
        """The present call, without auto commit, commits what was held before, too."""

    @commits.setter
    def commits(self, commits: bool) -> None: ...
    @property
    def claim(self) -> Any:
        """The present claim; None if there is none, or its call is taken."""

    @property
    def claimed_ms(self) -> int:
        """Time of the present claim."""

    @property
    def done_calls(self) -> int:
        """Calls of the present claim that are done, without the present one."""

    @property
    def done_messages(self) -> int:
        """Messages of these calls."""

    @property
    def call(self) -> tuple[Any, int, int] | None:
        """The call in progress: its messages, the time of its claim, its thread; any thread."""

    def begin(self) -> None:
        """Start anew, on the thread that performs it."""

    def rest(self) -> None:
        """Drop what is claimed; the counts stay."""

    def take(self, messages: Any) -> Any:
        """Leave the call of these messages, and its claim, to the caller, who settles it; any
        thread.

        Returns: its context; None if it is not in progress.
        """

    def take_counts(self) -> tuple[int, int, int]:
        """Return calls, messages and ms spent of what it has settled since the last time; any
        thread.
        """

    def perform(self, listener: Any, runtime: Any, awaited: Any) -> Any:
        """Call on this thread. Args: awaited: waits for the result of an awaitable one."""

    def perform_async(self, listener: Any, runtime: Any) -> Any:
        """Return an awaitable that does the same with an `async def` listener."""
