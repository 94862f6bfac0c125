"""What runs around a listener: hooks before and after each call, filters before them.

They are wrapped around the listener when the consumer starts, so that a consumer without any
pays nothing for them.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from ordermq.clock import Clock
from ordermq.consumer.listener import ConcurrentContext, ConsumeContext
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import ConsumeResult

_log = logging.getLogger("ordermq.consumer")


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
