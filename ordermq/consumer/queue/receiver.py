"""Receiver: where the messages of a member's assigned queues go.

A group member joins, rebalances, locks, fetches and commits the same way for every consumer. It
is given one receiver at construction, and asks it for everything that differs: the dispatchers
(ordered, key-ordered, concurrent) call listeners, the poll buffer waits for the caller to poll.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ordermq.config import PullConfig
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueCallbacks
from ordermq.leases.lease import Lease
from ordermq.model.message import MessageBatch, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.supervisor import Round
from ordermq.value import Value

if TYPE_CHECKING:
    from ordermq.core.contract import SharedRoom

Queue = TypeVar("Queue", bound=AssignedQueue)
_NO_LIMIT = 1 << 62  # offsets
# Has a failed message delivered again, at a delay level, or makes it a dead letter after so many
# retries. Raises RemotingError or RouteError if it is not known whether it did.
DeliverLater = Callable[[AssignedQueue, MessageView, int, int], Coroutine[Any, Any, None]]
Loop = tuple[str, Round]  # its kind, and what it repeats until cancelled


class Flow(Enum):
    """Flow control: pull now, or wait for what."""

    PULL = auto()
    WAIT_FOR_COUNT = auto()  # the queue calls `on_room` when its buffer is half empty
    WAIT_FOR_ROOM = auto()  # the receiver calls the queue's `on_room`
    WAIT = auto()  # nothing notifies: look again after a moment


class FillLimits(Value):
    """Flow control of a queue in numbers, for the pull engine.

    Args:
        fills_if_none_pending: fill in any case while no message is pending.
        messages: buffered messages above which it waits until half as many are left.
        size_bytes: of buffered bodies, above which it ends.
        span: offsets from the oldest unfinished one to the newest, above which it ends.
        counts_pending: `messages` is of those that nobody has yet.
        room: that the queue shares with others; it waits for room there, too.
    """

    fills_if_none_pending: bool
    messages: int
    size_bytes: int
    span: int = _NO_LIMIT
    counts_pending: bool = False
    room: SharedRoom | None = None


class DirectResult(Value):
    """The outcome of one message consumed directly, as Java's ConsumeMessageDirectlyResult.

    Args:
        name: CR_SUCCESS, CR_COMMIT, CR_ROLLBACK, CR_LATER, CR_RETURN_NULL or CR_THROW_EXCEPTION.
        remark: what the listener raised, or why its result was not understood.
        auto_commit: as the listener left it.
        spent_ms: in the listener.
    """

    name: str
    remark: str | None
    auto_commit: bool
    spent_ms: int


class ReadyQueues(Protocol):
    """Queues whose dispatch flag was set by the pull engine, for threads that would sleep else.

    What no thread takes within 2 ms is submitted.
    """

    def take(self, taken: list[Any]) -> AssignedQueue | None:
        """Return one to serve; None: there is none. Any thread.

        Args:
            taken: gets what `queue_of` takes in the same native step: an exception that comes to
                the thread before this returns must not lose the queue.
        """

    def queue_of(self, taken: Any) -> AssignedQueue:
        """Return the queue that was taken so."""

    def wait(self) -> bool:
        """Wait until there may be one, or for `interrupt`; one thread at a time.

        Returns: False, at once, if there is no engine to wait for.
        """

    def interrupt(self) -> None:
        """End that wait, or the next one; any thread."""


class Receiver(Protocol[Queue]):
    """Takes the messages of assigned queues; made once, before the member joins its group.

    The member passes each method only queues that this receiver's `make_queue` has made.

    Attributes:
        is_ordered: members of an ordered group and of a concurrent one must not meet in one
            group; admin tools show which this is.
    """

    is_ordered: bool

    def make_queue(
        self, queue: MessageQueue, lease: Lease, offset: int, callbacks: QueueCallbacks
    ) -> Queue:
        """Make the state of a queue that was just assigned; on the I/O thread."""

    async def prepare(self, assigned: Queue) -> None:
        """Get ready for a queue's first pull, or its first from another offset."""

    def flow(self, assigned: Queue, config: PullConfig) -> Flow:
        """Decide whether to pull; after each pull answer, on the I/O thread.

        Args:
            config: with the queue's own share of its topic's thresholds.
        """

    def fill_limits(self, config: PullConfig) -> FillLimits:
        """Return the limits that `flow` keeps, for the pull engine, which buffers in the process
        queue itself, without `accept`; only after `take_from`.
        """

    def submit(self, assigned: Queue) -> None:
        """Have the queue's messages consumed; any thread that holds its dispatch flag."""

    def take_from(self, ready: ReadyQueues) -> None:
        """Serve these queues, too; before the first one is assigned."""

    def unpark(self, assigned: Queue, key: bytes) -> bool:
        """Continue with a parked key; False if it is not parked here. On the I/O thread."""

    async def consume_directly(self, batch: MessageBatch, assigned: Queue | None) -> DirectResult:
        """Call the listener with one message, for an admin tool; nothing is committed by it.

        Args:
            assigned: the queue of the message, if this member holds it.
        Raises: StateError: it cannot be called now beside what runs, or there is no listener.
        """

    def loops(self, assigned: Callable[[], Sequence[Queue]]) -> Sequence[Loop]:
        """Name the loops the member must run on the I/O thread while it is in the group.

        Args:
            assigned: returns the queues held at this moment.
        """

    def calls_from_here(self) -> bool:
        """Return True on a thread of its listeners, which must not wait for them."""

    def resize(self, size: int) -> None:
        """Set the maximum number of concurrent listener calls; any thread."""

    def close(self, timeout_s: float) -> bool:
        """End the threads; False if a listener still ran after `timeout_s` seconds."""


def flow_by_fill(config: PullConfig, messages: int, pending: int, size_bytes: int) -> Flow:
    """Decide by the number and size of buffered messages, for ordered groups.

    Args:
        pending: buffered messages that no listener has yet.
    """
    # With nothing pending always pull: under manual commit the listener may have been given the
    # whole buffer, and only a further call could commit it
    # (docs/internals/semantics.md#listener-results).
    if pending == 0:
        return Flow.PULL
    return _by_thresholds(config, messages, size_bytes)


def limits_by_fill(config: PullConfig) -> FillLimits:
    """Return the limits of `flow_by_fill`."""
    size_bytes = config.pull_threshold_size_for_queue_mib << 20
    return FillLimits(True, config.pull_threshold_for_queue, size_bytes)


def limits_by_fill_and_span(config: PullConfig) -> FillLimits:
    """Return the limits of `flow_by_fill_and_span`."""
    span = config.consume_concurrently_max_span
    return replace(limits_by_fill(config), fills_if_none_pending=False, span=span)


def flow_by_fill_and_span(config: PullConfig, messages: int, size_bytes: int, span: int) -> Flow:
    """Decide by fill and by how far consumption is spread out, for concurrent groups.

    Args:
        span: offsets from the oldest unfinished one to the newest.
    """
    flow = _by_thresholds(config, messages, size_bytes)
    # One message that does not end holds the commit of all behind it. This bounds what a crash
    # repeats (docs/internals/semantics.md#concurrent-consumption).
    if flow is Flow.PULL and span > config.consume_concurrently_max_span:
        return Flow.WAIT
    return flow


def _by_thresholds(config: PullConfig, messages: int, size_bytes: int) -> Flow:
    if messages > config.pull_threshold_for_queue:
        return Flow.WAIT_FOR_COUNT
    if size_bytes > config.pull_threshold_size_for_queue_mib << 20:
        return Flow.WAIT
    return Flow.PULL
