"""The line of queues that wait for pollers, and the batches that pollers have."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from ordermq.core.contract.message_codec import MessageRun


class PolledRun(MessageRun, Protocol):
    """Messages of one queue in a poller's hands; an empty one is of no queue.

    Attributes:
        assigned: the queue they come from.
        claim: on that queue.
        next_offset: what to commit once all of them are done.
        settle: as `PollLine` was given it.
        thread: that polled them, as `threading.get_ident`.
    """

    def __init__(
        self,
        segments: Any,
        next_offset: int,
        assigned: Any = None,
        claim: Any = None,
        settle: Any = None,
    ) -> None: ...

    @property
    def assigned(self) -> Any: ...
    @property
    def claim(self) -> Any: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def settle(self) -> Any: ...
    @property
    def thread(self) -> int: ...


class PollLine(Protocol):
    """Ends the batch of a poller and hands it the next one, of the queue whose turn it is.

    Its owner calls it under a lock. A call is one step, within which no Python code runs: the
    handler of a signal finds nothing half done. What follows for a queue is kept in `follows`, for
    the owner to act on.

    Args:
        ready: queues with messages, in turn.
        out: the batches of pollers. Its owner may change both between two calls.
        is_ordered: one batch of a queue is out at a time, and its lease is looked at when it ends.
        settle: of each batch; see `PolledRun`.
    """

    def __init__(
        self,
        ready: deque[Any],
        out: dict[Hashable, Any],
        *,
        is_ordered: bool,
        settle: Callable[..., Any] | None,
    ) -> None: ...

    @property
    def follows(self) -> list[tuple[Any, int]]:
        """Queues, each with flags for its `follow`; the owner removes what it has acted on."""

    def take(self, kind: type, poller: Hashable, limit: int, now_ms: int) -> Any:
        """End the poller's batch as done, and hand out the next one.

        Args: kind: class of the batch, derived from PolledRun.
        Returns: None if no queue of the line has anything for it; they have left the line.
        Raises: MemoryError: the line and the batches may not agree with the queues.
        """

    def end(self, poller: Hashable, now_ms: int) -> None:
        """End the poller's batch as done, if it has one."""

    def take_counts(self) -> tuple[int, list[tuple[Any, int, int]]]:
        """Return what happened since the last call: messages that were handed out, and of queues,
        in order, each with its finished batches and the messages in them.
        """
