"""What a listener is given, what it may answer, and what the answer means."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Protocol

from ordermq.client.trace import TraceDispatcher
from ordermq.clock import Clock
from ordermq.consumer.queue.assigned_queue import AssignedQueue, BatchClaim
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.errors import ConfigError, StateError
from ordermq.model import properties as props
from ordermq.model.identifiers import unique_message_id
from ordermq.model.message import MessageRun, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import ConsumeResult
from ordermq.remoting.trace import DEFAULT_REGION, ConsumeBegun, ConsumeEnded

_log = logging.getLogger("ordermq.consumer")


class ConsumeContext:
    """A listener's second argument: which queue, which try, and whether to go on.

    Args of interest: `suspend_ms` may be set by the listener; -1 takes the consumer's
    `suspend_current_queue_time_ms`, other values are clamped to 10..30000.
    """

    __slots__ = ("_assigned", "attempt", "claim", "messages", "suspend_ms")

    def __init__(
        self, assigned: AssignedQueue, claim: BatchClaim, messages: MessageRun, attempt: int
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
        self, assigned: AssignedQueue, claim: BatchClaim, messages: MessageRun, attempt: int
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


class ConsumeReturn(Enum):
    """How a listener call ended, as Java's hooks are told
    (docs/internals/semantics.md#hook-return-types)."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"  # it took `consume_timeout_ms` or more, whatever it returned
    EXCEPTION = "EXCEPTION"
    FAILED = "FAILED"  # SUSPEND, or less than all is done


@dataclass(slots=True)
class ConsumeCall:
    """One listener call, as hooks see it; what follows `messages` is set for `after` only."""

    group: str
    message_queue: MessageQueue
    messages: Sequence[MessageView]
    attempt: int  # failed tries of the first message in this process
    result: object = None  # what the listener returned
    exception: BaseException | None = None
    outcome: ConsumeReturn | None = None
    spent_ms: int = 0
    notes: dict[str, Any] = field(default_factory=dict)  # from a hook's `before` to its `after`

    @property
    def is_success(self) -> bool:
        """Whether everything is done."""
        return self.outcome in (ConsumeReturn.SUCCESS, ConsumeReturn.TIME_OUT) and (
            self.exception is None and not _is_failure(self.result, len(self.messages))
        )


class ConsumeHook(Protocol):
    """Called around each listener call, on its thread, in the order hooks were added.

    What a hook raises is logged and counted (`hook_errors`); the call goes on.
    """

    def before(self, call: ConsumeCall) -> None: ...

    def after(self, call: ConsumeCall) -> None: ...


MessageFilter = Callable[[MessageView], bool]  # whether the listener shall get the message

_AnyListener = Callable[[Sequence[MessageView], Any], Any]


def wrapped(
    listener: _AnyListener,
    group: str,
    clock: Clock,
    consume_timeout_ms: int,
    statistics: ConsumerStatistics,
    hooks: Sequence[ConsumeHook],
    filters: Sequence[MessageFilter],
) -> Any:
    """The listener with all of them around it; plain or `async def` as it was."""
    if not hooks and not filters:
        return listener
    around = _Around(group, clock, consume_timeout_ms, statistics, hooks, filters)
    if inspect.iscoroutinefunction(listener):

        async def call_async(messages: Sequence[MessageView], context: ConsumeContext) -> object:
            kept = around.filtered(messages)
            if not kept:
                return None
            call = around.begin(kept, context)
            try:
                call.result = await listener(kept, context)
            except BaseException as error:
                call.exception = error
                raise
            finally:
                around.end(call)
            return around.answer(call.result, messages, kept, context)

        return call_async

    def call_plain(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        kept = around.filtered(messages)
        if not kept:
            return None
        call = around.begin(kept, context)
        try:
            call.result = listener(kept, context)
        except BaseException as error:
            call.exception = error
            raise
        finally:
            around.end(call)
        return around.answer(call.result, messages, kept, context)

    return call_plain


@dataclass(frozen=True, slots=True)
class _Around:
    """The steps of a wrapped call."""

    group: str
    clock: Clock
    consume_timeout_ms: int
    statistics: ConsumerStatistics
    hooks: Sequence[ConsumeHook]
    filters: Sequence[MessageFilter]

    def filtered(self, messages: Sequence[MessageView]) -> Sequence[MessageView]:
        """What every filter lets through; a filter that raises fails the call."""
        if not self.filters:
            return messages
        kept = [message for message in messages if all(keep(message) for keep in self.filters)]
        if len(kept) < len(messages):
            self.statistics.add("filtered", len(messages) - len(kept))
        return kept

    def begin(self, messages: Sequence[MessageView], context: ConsumeContext) -> ConsumeCall:
        call = ConsumeCall(self.group, context.message_queue, messages, context.attempt)
        for hook in self.hooks:
            self._run(hook.before, call)
        call.spent_ms = -self.clock.now_ms()
        return call

    def end(self, call: ConsumeCall) -> None:
        call.spent_ms += self.clock.now_ms()
        if call.exception is not None:
            call.outcome = ConsumeReturn.EXCEPTION
        elif call.spent_ms >= self.consume_timeout_ms:
            call.outcome = ConsumeReturn.TIME_OUT
        elif _is_failure(call.result, len(call.messages)):
            call.outcome = ConsumeReturn.FAILED
        else:
            call.outcome = ConsumeReturn.SUCCESS
        for hook in self.hooks:
            self._run(hook.after, call)

    def _run(self, step: Callable[[ConsumeCall], None], call: ConsumeCall) -> None:
        try:
            step(call)
        except Exception:  # noqa: BLE001 - the user's; logged and counted
            self.statistics.add("hook_errors")
            _log.exception("%s: a consume hook raised", call.message_queue)

    def answer(
        self,
        result: object,
        messages: Sequence[MessageView],
        kept: Sequence[MessageView],
        context: ConsumeContext,
    ) -> object:
        """The listener's answer about what it got, as one about the whole batch."""
        if len(kept) == len(messages):
            return result
        ends = [*_places(messages, kept), len(messages)]  # so many are done before the nth kept
        if isinstance(context, ConcurrentContext) and isinstance(context.ack_index, int):
            context.ack_index = ends[min(max(context.ack_index + 1, 0), len(kept))] - 1
        if isinstance(result, int) and not isinstance(result, bool) and 0 <= result <= len(kept):
            return ends[result]
        return result


def _places(messages: Sequence[MessageView], kept: Sequence[MessageView]) -> list[int]:
    wanted = {message.queue_offset for message in kept}
    return [place for place, message in enumerate(messages) if message.queue_offset in wanted]


def _is_failure(result: object, size: int) -> bool:
    if result in (ConsumeResult.SUSPEND, ConsumeResult.ROLLBACK):
        return True
    return isinstance(result, int) and not isinstance(result, ConsumeResult) and result < size


# Java's ordinals; 3 is a listener that returned null, which here is SUCCESS.
_CODES = {
    ConsumeReturn.SUCCESS: 0,
    ConsumeReturn.TIME_OUT: 1,
    ConsumeReturn.EXCEPTION: 2,
    ConsumeReturn.FAILED: 4,
}
_NOTE = "ordermq.trace"


class TraceConsumption:
    """Two records a message: when its call began, how it ended."""

    def __init__(self, dispatcher: TraceDispatcher, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._clock = clock

    def before(self, call: ConsumeCall) -> None:
        begun = self._begun(call)
        call.notes[_NOTE] = begun
        if begun:
            self._dispatcher.append(begun)

    def after(self, call: ConsumeCall) -> None:
        begun: list[ConsumeBegun] = call.notes.get(_NOTE, [])
        if not begun:
            return
        assert call.outcome is not None
        cost_ms, now_ms = call.spent_ms // len(call.messages), self._clock.wall_ms()
        code = _CODES[call.outcome]
        self._dispatcher.append(
            [
                ConsumeEnded(
                    each.request_id, each.message_id, cost_ms, call.is_success, each.keys, code,
                    now_ms, call.group,
                )
                for each in begun
            ]
        )  # fmt: skip

    def _begun(self, call: ConsumeCall) -> list[ConsumeBegun]:
        request_id, now_ms = unique_message_id(), self._clock.wall_ms()
        return [
            ConsumeBegun(
                now_ms,
                message.get_property(props.REGION) or DEFAULT_REGION,
                call.group,
                request_id,
                message.message_id,
                message.reconsume_times,
                " ".join(message.keys) or None,
            )
            for message in call.messages
            if _is_on(message)
        ]


def _is_on(message: MessageView) -> bool:
    """The switch of the broker it was stored at."""
    return message.get_property(props.TRACE_ON) != "false"
