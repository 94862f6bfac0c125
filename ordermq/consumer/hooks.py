"""Hooks and filters. They are wrapped around the listener when the consumer starts, so that a
consumer without any pays nothing per call.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field, replace
from enum import Enum
from typing import Any, Protocol, cast

from ordermq.callables import is_async, require_plain_result
from ordermq.client.runtime import result_of
from ordermq.clock import Clock
from ordermq.config import ConsumeConfig
from ordermq.consumer.listener import AnyListener, ConsumeContext, ListenerResults
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.errors import ConfigError
from ordermq.model.log_fields import log_fields
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import ConsumeResult
from ordermq.value import Record

_log = logging.getLogger("ordermq.consumer")


class ConsumeReturn(Enum):
    """The outcome of a listener call, as Java's ConsumeReturnType names it
    (docs/internals/semantics.md#hook-return-types)."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"  # it took `consume_timeout_ms` or more, whatever it returned
    EXCEPTION = "EXCEPTION"
    RETURN_NULL = "RETURNNULL"  # it returned None, with `strict_results=True`
    FAILED = "FAILED"  # SUSPEND, ROLLBACK, or fewer than all messages are done


class ConsumeCall(Record):
    """One listener call, as hooks see it; the fields from `result` to `spent_ms` are for `after`
    only."""

    group: str
    message_queue: MessageQueue
    messages: Sequence[MessageView]
    attempt: int  # failed attempts of the first message in this process
    result: object = None  # what the listener returned
    exception: BaseException | None = None
    outcome: ConsumeReturn | None = None
    done: int = 0  # messages that are done, from the first on; as counted for the commit
    spent_ms: int = 0
    notes: dict[str, Any] = field(default_factory=dict)  # from a hook's `before` to its `after`
    # Of RocketMQ 4, which group and topics leave out; "" for none. Java's hooks are told it, too.
    namespace: str = ""

    # Made for each call: that of `Record` takes longer than the rest of a call without messages.
    def __init__(
        self,
        group: str,
        message_queue: MessageQueue,
        messages: Sequence[MessageView],
        attempt: int,
        result: object = None,
        exception: BaseException | None = None,
        outcome: ConsumeReturn | None = None,
        done: int = 0,
        spent_ms: int = 0,
        notes: dict[str, Any] | None = None,
        namespace: str = "",
    ) -> None:
        self.group = group
        self.message_queue = message_queue
        self.messages = messages
        self.attempt = attempt
        self.result = result
        self.exception = exception
        self.outcome = outcome
        self.done = done
        self.spent_ms = spent_ms
        self.notes = {} if notes is None else notes
        self.namespace = namespace

    @property
    def is_success(self) -> bool:
        """True if every message of the batch is done."""
        return self.done == len(self.messages)


class ConsumeHook(Protocol):
    """Is called around each listener call, on its thread, in the order hooks were added.

    An exception of a hook is logged and counted (`hook_errors`); the call continues.
    """

    def before(self, call: ConsumeCall, /) -> None: ...

    def after(self, call: ConsumeCall, /) -> None: ...


MessageFilter = Callable[[MessageView], bool]  # False keeps the message from the listener


def wrapped(
    listener: AnyListener,
    group: str,
    namespace: str,
    clock: Clock,
    config: ConsumeConfig,
    statistics: ConsumerStatistics,
    hooks: Sequence[ConsumeHook],
    filters: Sequence[MessageFilter],
    results: ListenerResults,
) -> Any:
    """Return the listener with hooks and filters around it; plain or `async def` as it was."""
    results = replace(results, is_strict=config.strict_results)
    befores, afters = [each.before for each in hooks], [each.after for each in hooks]
    around = _Around(group, config, statistics, afters, filters, results)
    now_ms, timeout_ms, is_strict = clock.now_ms, config.consume_timeout_ms, results.is_strict
    success, succeeded = ConsumeResult.SUCCESS, ConsumeReturn.SUCCESS  # names of enums are slow

    # Two wrappers that differ in one `await`: a plain listener cannot be driven by the async
    # one without an event loop per thread.
    async def call_async(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        returned = call_plain(messages, context)
        return await returned if inspect.isawaitable(returned) else returned

    def call_plain(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        kept = around.filtered(messages) if filters else messages
        if not kept:
            return ConsumeResult.SUCCESS
        if not hooks and len(kept) == len(messages):
            return listener(kept, context)  # nothing is left to do around it
        # What nearly every call passes is written out here: a function for each step takes longer.
        call = ConsumeCall(group, context._assigned.source, kept, context.attempt)
        call.namespace = namespace
        around.tell(befores, call)
        begun_ms = now_ms()  # after the hooks: their time is not the listener's
        try:
            result = listener(kept, context)
        except BaseException as error:
            around.ended(call, context, None, error, now_ms() - begun_ms)
            raise
        if (result is success or (result is None and not is_strict)) and context._ack_index is None:
            call.result = result
            call.done = len(kept)
            spent_ms = call.spent_ms = now_ms() - begun_ms
            call.outcome = succeeded if spent_ms < timeout_ms else ConsumeReturn.TIME_OUT
            around.tell(afters, call)
            return result if kept is messages else around.result(call, messages, context)
        # To ask whether a value is awaitable takes 0.4 us.
        if result is not None and inspect.isawaitable(result):
            # Awaited by the dispatcher, hooks and all.
            return finish(call, messages, context, result, begun_ms)
        around.ended(call, context, result, None, now_ms() - begun_ms)
        return around.result(call, messages, context)

    async def finish(
        call: ConsumeCall,
        messages: Sequence[MessageView],
        context: ConsumeContext,
        awaited: object,
        begun_ms: int,
    ) -> object:
        try:
            result = await result_of(cast(Awaitable[object], awaited))
        except BaseException as error:
            around.ended(call, context, None, error, now_ms() - begun_ms)
            raise
        around.ended(call, context, result, None, now_ms() - begun_ms)
        return around.result(call, messages, context)

    return call_async if is_async(listener) else call_plain


class _Around(Record):
    """The steps of a wrapped call."""

    group: str
    config: ConsumeConfig
    statistics: ConsumerStatistics
    afters: Sequence[Callable[[ConsumeCall], None]]  # steps of hooks
    filters: Sequence[MessageFilter]
    results: ListenerResults
    failed: list[Callable[[ConsumeCall], None]] = field(default_factory=list)  # steps of hooks

    def filtered(self, messages: Sequence[MessageView]) -> Sequence[MessageView]:
        """Return the messages every filter keeps; a filter that raises fails the call."""
        kept: list[MessageView] = []
        for message in messages:
            for keep in self.filters:
                answer: object = keep(message)
                # A coroutine is true, whatever it would say.
                if answer is not True and not require_plain_result("filter", keep, answer):
                    break
            else:
                kept.append(message)
        if len(kept) < len(messages):
            self.statistics.add("filtered", len(messages) - len(kept))
        return kept

    def ended(
        self,
        call: ConsumeCall,
        context: ConsumeContext,
        result: object,
        error: BaseException | None,
        spent_ms: int,
    ) -> None:
        """Tell the hooks of a call that did not simply succeed."""
        size = len(call.messages)
        call.result, call.exception, call.spent_ms = result, error, spent_ms
        if error is None:
            # As the dispatcher will judge it: `ack_index` and a result that nobody understands
            # send messages back, too, and a hook must not be told of success then.
            with contextlib.suppress(ConfigError):
                call.done = context.judge(result, self.results, size).done
        if error is not None:
            call.outcome = ConsumeReturn.EXCEPTION
        elif result is None and self.config.strict_results:
            call.outcome = ConsumeReturn.RETURN_NULL
        elif spent_ms >= self.config.consume_timeout_ms:
            call.outcome = ConsumeReturn.TIME_OUT
        elif call.done < size:
            call.outcome = ConsumeReturn.FAILED
        else:
            call.outcome = ConsumeReturn.SUCCESS
        self.tell(self.afters, call)

    def tell(self, steps: Sequence[Callable[[ConsumeCall], None]], call: ConsumeCall) -> None:
        """Take one step of each hook."""
        for step in steps:
            try:
                returned: object = step(call)
                if returned is not None:
                    require_plain_result("hook", step, returned)
            # Also sys.exit(): a hook watches the call and does not decide it.
            except BaseException:  # noqa: BLE001 - the user's; logged and counted
                self._raised(step, call)

    def _raised(self, step: Callable[[ConsumeCall], None], call: ConsumeCall) -> None:
        """Count what a step of a hook has raised; at its first time log it."""
        self.statistics.add("hook_errors")
        if step in self.failed:
            return
        self.failed.append(step)  # one line per hook: it may raise at each message
        _log.exception(
            "%s: consume hook raised; the listener call continues, further errors of this "
            "hook are counted in hook_errors",
            call.message_queue,
            extra=log_fields(call.message_queue, group=self.group),
        )

    def result(
        self, call: ConsumeCall, messages: Sequence[MessageView], context: ConsumeContext
    ) -> object:
        """Translate the result for the kept messages into one for the whole batch."""
        kept, result = call.messages, call.result
        if len(kept) == len(messages):
            return result
        # A dropped message counts as done, but only together with the kept one behind it: what
        # follows an unfinished message must not be committed.
        wanted = {message.queue_offset for message in kept}
        ends = [place for place, each in enumerate(messages) if each.queue_offset in wanted]
        ends.append(len(messages))
        context.count_dropped(ends)
        if type(result) is int and 0 <= result <= len(kept):
            return ends[result]
        return result
