"""TraceConsumption: traces of consumers with `enable_msg_trace=True`; loaded by those only."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from ordermq import core
from ordermq.callables import is_async
from ordermq.client.runtime import timed_result_of
from ordermq.client.trace import TraceDispatcher
from ordermq.clock import Clock
from ordermq.config import ConsumeConfig
from ordermq.consumer.listener import (
    AnyListener,
    ConsumeContext,
    ConsumeReturn,
    ListenerResults,
)
from ordermq.errors import ConfigError, ProtocolError
from ordermq.model import properties as props
from ordermq.model.identifiers import unique_message_id
from ordermq.model.message import MessageView
from ordermq.model.status import ConsumeResult
from ordermq.remoting.trace import DEFAULT_REGION, ConsumeBegun, ConsumeEnded

# Ordinals of Java's ConsumeReturnType.
_CODES = {
    ConsumeReturn.SUCCESS: 0,
    ConsumeReturn.TIME_OUT: 1,
    ConsumeReturn.EXCEPTION: 2,
    ConsumeReturn.RETURN_NULL: 3,
    ConsumeReturn.FAILED: 4,
}


class TraceConsumption:
    """Writes two trace records per message: its call began, its call ended.

    Natively, where the messages are those that were pulled, and the call simply succeeds.
    """

    def __init__(self, dispatcher: TraceDispatcher, group: str, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._group = group
        self.records = dispatcher.records
        self.wall_ms = clock.wall_ms

    def around(self, listener: AnyListener, results: ListenerResults, config: ConsumeConfig) -> Any:
        """Return the listener, traced; plain or `async def` as it was."""
        results = replace(results, is_strict=config.strict_results)
        rules = _TraceRules(self, self._group, results, config.consume_timeout_ms)

        async def traced_async(messages: Sequence[MessageView], context: ConsumeContext) -> object:
            request_id = unique_message_id()
            self.add_begun(messages, request_id, self.wall_ms())
            returned = listener(messages, context)
            return await rules.finish(messages, context, returned, 0, request_id)

        return traced_async if is_async(listener) else core.TracedListener(listener, rules)

    def add_begun(self, messages: Sequence[MessageView], request_id: str, at_ms: int) -> None:
        for message in messages:
            with self._readable():
                if _is_on(message):
                    begun = ConsumeBegun(
                        at_ms,
                        message.get_property(props.REGION) or DEFAULT_REGION,
                        self._group,
                        request_id,
                        message.message_id,
                        message.reconsume_times,
                        " ".join(message.keys) or None,
                    )
                    self.records.add(begun.to_text(), begun.message_id, begun.keys)

    def add_ended(
        self,
        messages: Sequence[MessageView],
        request_id: str,
        spent_ms: int,
        is_success: bool,
        outcome: ConsumeReturn,
    ) -> None:
        now_ms, cost_ms = self.wall_ms(), spent_ms // len(messages)
        for message in messages:
            with self._readable():
                if _is_on(message):
                    ended = ConsumeEnded(
                        request_id,
                        message.message_id,
                        cost_ms,
                        is_success,
                        " ".join(message.keys) or None,
                        _CODES[outcome],
                        now_ms,
                        self._group,
                    )
                    self.records.add(ended.to_text(), ended.message_id, ended.keys)

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Drop the record of a message whose properties cannot be read; its call goes on."""
        try:
            yield
        except ProtocolError as error:
            self._dispatcher.drop(1, str(error))


class _TraceRules:
    """The traces of one listener's calls, as far as they are not native
    (`core.contract.TraceRules`)."""

    success: object = ConsumeResult.SUCCESS

    def __init__(
        self, traces: TraceConsumption, group: str, results: ListenerResults, timeout_ms: int
    ) -> None:
        self.records = traces.records
        self.group = group.encode()
        self.one_id = unique_message_id
        self.wall_ms = traces.wall_ms
        self.other_success = ConsumeResult.SUCCESS if results.is_strict else None
        self.timeout_ms = timeout_ms
        self.on_begin = traces.add_begun
        self._add_ended = traces.add_ended
        self._results = results

    def on_end(
        self,
        messages: Sequence[MessageView],
        context: ConsumeContext,
        value: object,
        error: BaseException | None,
        spent_ns: int,
        request_id: str,
    ) -> object:
        if error is None and value is not None and inspect.isawaitable(value):
            return self.finish(messages, context, value, spent_ns, request_id)
        done = 0
        # As the dispatcher will judge it; a result that nobody understands does nothing.
        with contextlib.suppress(ConfigError):
            if error is None:
                done = context.judge(value, self._results, len(messages)).done
        spent_ms = spent_ns // 1_000_000
        outcome = ConsumeReturn.SUCCESS if done == len(messages) else ConsumeReturn.FAILED
        if error is not None:
            outcome = ConsumeReturn.EXCEPTION
        elif value is None and self._results.is_strict:
            outcome = ConsumeReturn.RETURN_NULL
        elif spent_ms >= self.timeout_ms:
            outcome = ConsumeReturn.TIME_OUT
        self._add_ended(messages, request_id, spent_ms, done == len(messages), outcome)
        return value

    def finish(
        self,
        messages: Sequence[MessageView],
        context: ConsumeContext,
        awaited: object,
        before_ns: int,
        request_id: str,
    ) -> Awaitable[object]:
        """Await what a call returned, and record its end."""
        ended = partial(self.on_end, messages, context, request_id=request_id)
        return timed_result_of(cast(Awaitable[object], awaited), before_ns, ended)


def _is_on(message: MessageView) -> bool:
    # Set by the broker that stored the message; one whose region traces nothing sets "false".
    return message.get_property(props.TRACE_ON) != "false"
