"""Hooks and filters. They are wrapped around the listener when the consumer starts, so that a
consumer without any pays nothing per call.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ordermq import core
from ordermq.callables import is_async, require_plain_result
from ordermq.client.runtime import result_of
from ordermq.clock import system_clock_id
from ordermq.config import ConsumeConfig
from ordermq.consumer.listener import (
    AnyListener,
    ConsumeContext,
    ConsumeReturn,
    ListenerResults,
)
from ordermq.consumer.queue.statistics import ConsumerStatistics, MemberContext
from ordermq.errors import ConfigError, exc_info_of
from ordermq.model.log_fields import log_fields
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import ConsumeResult

_log = logging.getLogger("ordermq.consumer")
_SUCCESS = ConsumeResult.SUCCESS  # names of enums are slow


class ConsumeCall(core.HookedCall):
    """One listener call, as hooks see it; the fields from `result` to `spent_ms` are for `after`
    only.

    Attributes:
        attempt: failed attempts of the first message in this process.
        result: what the listener returned.
        done: messages that are done, from the first on; as counted for the commit.
        notes: from a hook's `before` to its `after`.
        namespace: of RocketMQ 4, which group and topics leave out; "" for none. Java's hooks are
            told it, too.
    """

    # One is made per listener call, natively.
    __slots__ = ()

    group: str
    message_queue: MessageQueue
    messages: Sequence[MessageView]
    attempt: int
    result: object
    exception: BaseException | None
    outcome: ConsumeReturn | None
    done: int
    spent_ms: int
    notes: dict[str, Any]
    namespace: str

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

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.message_queue} messages={len(self.messages)} "
            f"attempt={self.attempt} outcome={self.outcome} done={self.done}>"
        )

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
    member: MemberContext,
    config: ConsumeConfig,
    hooks: Sequence[ConsumeHook],
    filters: Sequence[MessageFilter],
    results: ListenerResults,
) -> Any:
    """Return the listener with hooks and filters around it; plain or `async def` as it was."""
    results = replace(results, is_strict=config.strict_results)
    if hooks:
        rules = _HookRules(member, config, tuple(hooks), results)
        listener = _plain_or_async(core.HookedListener(listener, rules), listener)
    if filters:
        # Around the hooks, which are told of the messages that the listener gets.
        listener = _plain_or_async(_Filtered(listener, member.statistics, filters), listener)
    return listener


def _plain_or_async(around: Any, listener: AnyListener) -> Any:
    """Return what is around a listener, as `async def` if the listener is."""
    if not is_async(listener):
        return around

    # A plain listener cannot be driven by it without an event loop per thread.
    async def call_async(messages: Sequence[MessageView], context: ConsumeContext) -> object:
        returned = around(messages, context)
        return await returned if inspect.isawaitable(returned) else returned

    return call_async


class _HookRules:
    """The hooks of a consumer, and what they are told of its calls (`core.contract.HookRules`)."""

    call = ConsumeCall
    success: object = _SUCCESS
    succeeded: object = ConsumeReturn.SUCCESS
    timed_out: object = ConsumeReturn.TIME_OUT

    def __init__(
        self,
        member: MemberContext,
        config: ConsumeConfig,
        hooks: tuple[ConsumeHook, ...],
        results: ListenerResults,
    ) -> None:
        clock = member.client.clock
        self.group = member.group
        self.namespace = member.client.config.namespace
        self.befores = tuple(each.before for each in hooks)
        self.afters = tuple(each.after for each in hooks)
        self.other_success = _SUCCESS if results.is_strict else None
        self.timeout_ms = config.consume_timeout_ms
        self.clock_ms = clock.now_ms
        self.clock_id = system_clock_id(clock)
        self._statistics = member.statistics
        self._results = results
        self._failed: list[object] = []  # steps of hooks

    def on_other(
        self,
        call: ConsumeCall,
        context: ConsumeContext,
        result: object,
        error: BaseException | None,
        spent_ms: int,
    ) -> object:
        """Tell the hooks of a call that did not simply succeed, now or when it is awaited."""
        # To ask whether a value is awaitable takes 0.4 us.
        if error is None and result is not None and inspect.isawaitable(result):
            # Awaited by the dispatcher, hooks and all.
            return self._finish(call, context, result, self.clock_ms() - spent_ms)
        size = len(call.messages)
        call.result, call.exception, call.spent_ms = result, error, spent_ms
        if error is None:
            # As the dispatcher will judge it: `ack_index` and a result that nobody understands
            # send messages back, too, and a hook must not be told of success then.
            with contextlib.suppress(ConfigError):
                call.done = context.judge(result, self._results, size).done
        if error is not None:
            call.outcome = ConsumeReturn.EXCEPTION
        elif result is None and self._results.is_strict:
            call.outcome = ConsumeReturn.RETURN_NULL
        elif spent_ms >= self.timeout_ms:
            call.outcome = ConsumeReturn.TIME_OUT
        elif call.done < size:
            call.outcome = ConsumeReturn.FAILED
        else:
            call.outcome = ConsumeReturn.SUCCESS
        for step in self.afters:
            try:
                self.on_odd(step, call, step(call), None)
            # Also sys.exit(): a hook watches the call and does not decide it.
            except BaseException as raised:  # noqa: BLE001 - the user's; logged and counted
                self.on_odd(step, call, None, raised)
        return result

    async def _finish(
        self,
        call: ConsumeCall,
        context: ConsumeContext,
        awaited: Awaitable[object],
        begun_ms: int,
    ) -> object:
        try:
            result = await result_of(awaited)
        except BaseException as error:
            self.on_other(call, context, None, error, self.clock_ms() - begun_ms)
            raise
        self.on_other(call, context, result, None, self.clock_ms() - begun_ms)
        return result

    def on_odd(
        self,
        step: Callable[[ConsumeCall], object],
        call: ConsumeCall,
        returned: object,
        error: BaseException | None,
    ) -> None:
        """Refuse what a step of a hook has returned, if it is to be awaited; count an error, and at
        the hook's first one log it.
        """
        if error is None:
            require_plain_result("hook", step, returned)
            return
        self._statistics.add("hook_errors")
        if step in self._failed:
            return
        self._failed.append(step)  # one line per hook: it may raise at each message
        _log.error(
            "%s: consume hook raised; the listener call continues, further errors of this "
            "hook are counted in hook_errors",
            call.message_queue,
            exc_info=exc_info_of(error),
            extra=log_fields(call.message_queue, group=self.group),
        )


class _Filtered:
    """A listener that gets the messages which every filter keeps."""

    def __init__(
        self,
        listener: AnyListener,
        statistics: ConsumerStatistics,
        filters: Sequence[MessageFilter],
    ) -> None:
        self._listener = listener
        self._statistics = statistics
        self._filters = filters

    def __call__(self, messages: Sequence[MessageView], context: ConsumeContext) -> object:
        kept = self._kept(messages)
        if not kept:
            return _SUCCESS
        result = self._listener(kept, context)
        if len(kept) == len(messages):
            return result
        if result is not None and result is not _SUCCESS and inspect.isawaitable(result):
            return self._finish(kept, messages, context, result)
        return _of_whole(kept, messages, context, result)

    async def _finish(
        self,
        kept: Sequence[MessageView],
        messages: Sequence[MessageView],
        context: ConsumeContext,
        awaited: Awaitable[object],
    ) -> object:
        return _of_whole(kept, messages, context, await result_of(awaited))

    def _kept(self, messages: Sequence[MessageView]) -> Sequence[MessageView]:
        """Return the messages every filter keeps; a filter that raises fails the call."""
        kept: list[MessageView] = []
        for message in messages:
            for keep in self._filters:
                answer: object = keep(message)
                # A coroutine is true, whatever it would say.
                if answer is not True and not require_plain_result("filter", keep, answer):
                    break
            else:
                kept.append(message)
        if len(kept) < len(messages):
            self._statistics.add("filtered", len(messages) - len(kept))
        return kept


def _of_whole(
    kept: Sequence[MessageView],
    messages: Sequence[MessageView],
    context: ConsumeContext,
    result: object,
) -> object:
    """Translate the result for the kept messages into one for the whole batch."""
    # A dropped message counts as done, but only together with the kept one behind it: what
    # follows an unfinished message must not be committed.
    wanted = {message.queue_offset for message in kept}
    ends = [place for place, each in enumerate(messages) if each.queue_offset in wanted]
    ends.append(len(messages))
    context.count_dropped(ends)
    if type(result) is int and 0 <= result <= len(kept):
        return ends[result]
    return result
