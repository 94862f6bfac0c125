"""What a listener is given, what it may answer, and what the answer means."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Any

from ordermq.consumer.claim import Claim
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.errors import ConfigError, StateError
from ordermq.model.message import MessageRun, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import ConsumeResult


class ConsumeContext:
    """A listener's second argument: which queue, which try, and whether to go on.

    Args of interest: `suspend_ms` may be set by the listener; -1 takes the consumer's
    `suspend_current_queue_time_ms`, other values are clamped to 10..30000.
    """

    __slots__ = ("_assigned", "attempt", "claim", "messages", "suspend_ms")

    def __init__(
        self, assigned: AssignedQueue, claim: Claim, messages: MessageRun, attempt: int
    ) -> None:
        self._assigned = assigned
        self.claim = claim
        self.messages = messages
        self.attempt = attempt  # failed tries of the first message in this process
        self.suspend_ms = -1

    @property
    def message_queue(self) -> MessageQueue:
        return self._assigned.queue

    def is_revoked(self) -> bool:
        """True once the queue is to move away or its lease is lost: stop early, return how far.

        After a loss nothing of this batch counts any more.
        """
        return self._assigned.is_revoked() or self._assigned.generation != self.claim.generation

    @property
    def fence_token(self) -> tuple[int, int]:
        """(lock epoch, first offset of the batch), for conditional writes of your own.

        Epochs of a queue only grow from owner to owner (docs/internals/semantics.md#fencing): a
        store that
        remembers the greatest one seen can refuse a paused former owner.
        """
        return self.claim.lease.epoch, self.messages.first_offset


class ConcurrentContext(ConsumeContext):
    """The context in a concurrent group (docs/internals/semantics.md#concurrent-consumption).

    A listener may set, before it returns:
        ack_index: the last message of the batch that is done, counted from 0, -1 for none;
            None, the default, is all of them. An answer of SUSPEND or an int overrules it.
        delay_level: how long the others wait: 0 = longer with each try, 1..18 = the broker's
            levels, 1 s to 2 h, negative = to the dead-letter topic now.
    """

    __slots__ = ("ack_index", "delay_level")

    def __init__(
        self, assigned: AssignedQueue, claim: Claim, messages: MessageRun, attempt: int
    ) -> None:
        super().__init__(assigned, claim, messages, attempt)
        self.ack_index: int | None = None
        self.delay_level = 0

    @property
    def fence_token(self) -> tuple[int, int]:
        raise StateError(
            "a concurrent group holds no locks, so nothing fences its members; use "
            "@consumer.orderly where a late writer must be told",
            topic=self.message_queue.topic,
        )


ListenerAnswer = ConsumeResult | int | None
Listener = Callable[
    [Sequence[MessageView], ConsumeContext], ListenerAnswer | Awaitable[ListenerAnswer]
]
ConcurrentListener = Callable[
    [Sequence[MessageView], ConcurrentContext], ListenerAnswer | Awaitable[ListenerAnswer]
]


def require_listener(listener: Any, group: str) -> None:
    """Refuse at once what could not be called for any message.

    Raises: ConfigError: it is not callable, or not as `listener(messages, context)`.
    """
    if not callable(listener):
        raise ConfigError(
            f"listener {listener!r}: expected a function of (messages, context)", group=group
        )
    try:
        inspect.signature(listener).bind(None, None)
    except TypeError as error:
        raise ConfigError(
            f"listener {listener!r} is called as listener(messages, context): {error}", group=group
        ) from None
    except ValueError:  # one in C that does not tell its arguments
        return


class Settlement(Enum):
    """What is to be done with a batch after its listener call
    (docs/internals/semantics.md#listener-results)."""

    DONE = auto()  # commit it
    HOLD = auto()  # manual mode: finished, committed later
    RETRY = auto()  # the unfinished part comes again after a pause
    ROLLBACK = auto()  # manual mode: all that is not committed comes again after a pause


@dataclass(frozen=True, slots=True)
class Verdict:
    """A listener's answer, understood.

    Args:
        done: how many messages of the batch, from the first, are finished.
    """

    settlement: Settlement
    done: int


@lru_cache(maxsize=4096)
def verdict_of(settlement: Settlement, done: int) -> Verdict:
    """A verdict; the few there are, are made once."""
    return Verdict(settlement, done)


_AUTO_COMMIT = {
    ConsumeResult.SUCCESS: Settlement.DONE,
    ConsumeResult.COMMIT: Settlement.DONE,
    ConsumeResult.ROLLBACK: Settlement.DONE,  # acks, as in Java; warned once
    ConsumeResult.SUSPEND: Settlement.RETRY,
}
_MANUAL = _AUTO_COMMIT | {
    ConsumeResult.SUCCESS: Settlement.HOLD,
    ConsumeResult.ROLLBACK: Settlement.ROLLBACK,
}


def judge(answer: object, size: int, auto_commit: bool) -> Verdict:
    """Understand a listener's answer for a batch of `size` messages.

    Raises: ConfigError: neither a ConsumeResult, nor None, nor a count in 0..size.
    """
    if answer is None:
        answer = ConsumeResult.SUCCESS
    if isinstance(answer, ConsumeResult):
        settlement = (_AUTO_COMMIT if auto_commit else _MANUAL)[answer]
        done = size if settlement in (Settlement.DONE, Settlement.HOLD) else 0
        return verdict_of(settlement, done)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer <= size:
        if answer == size:
            return judge(ConsumeResult.SUCCESS, size, auto_commit)
        return verdict_of(Settlement.RETRY, answer)
    raise ConfigError(
        f"the listener returned {answer!r}: expected None, a ConsumeResult, or how many of the "
        f"{size} messages are done"
    )


def judge_concurrent(answer: object, ack_index: int | None, size: int) -> int:
    """How many of a concurrent batch's `size` messages, from the first, are done
    (docs/internals/semantics.md#concurrent-consumption).

    Raises: ConfigError: neither None, SUCCESS or SUSPEND, nor a count in 0..size; or an
        `ack_index` that is no number.
    """
    if answer is ConsumeResult.SUSPEND:
        return 0
    if answer is None or answer is ConsumeResult.SUCCESS:
        if ack_index is None:
            return size
        if isinstance(ack_index, int) and not isinstance(ack_index, bool):
            return min(max(ack_index + 1, 0), size)
        raise ConfigError(f"context.ack_index is {ack_index!r}: expected a number from -1, or None")
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer <= size:
        return answer
    raise ConfigError(
        f"the concurrent listener returned {answer!r}: expected None, SUCCESS, SUSPEND, or how "
        f"many of the {size} messages are done"
    )
