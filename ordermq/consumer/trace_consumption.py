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
from ordermq.consumer.hooks import ConsumeReturn
from ordermq.consumer.listener import AnyListener, ConsumeContext, ListenerResults
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
        self._records = dispatcher.records
        self._group = group
        self._clock = clock

    def around(self, listener: AnyListener, results: ListenerResults, config: ConsumeConfig) -> Any:
        """Return the listener, traced; plain or `async def` as it was."""
        judged = replace(results, is_strict=config.strict_results)

        def ended(
            messages: Sequence[MessageView],
            context: ConsumeContext,
            value: object,
            error: BaseException | None,
            spent_ns: int,
            request_id: str,
        ) -> object:
            if error is None and value is not None and inspect.isawaitable(value):
                return finish(messages, context, value, spent_ns, request_id)
            done = 0
            # As the dispatcher will judge it; a result that nobody understands does nothing.
            with contextlib.suppress(ConfigError):
                if error is None:
                    done = context.judge(value, judged, len(messages)).done
            spent_ms = spent_ns // 1_000_000
            outcome = ConsumeReturn.SUCCESS if done == len(messages) else ConsumeReturn.FAILED
            if error is not None:
                outcome = ConsumeReturn.EXCEPTION
            elif value is None and judged.is_strict:
                outcome = ConsumeReturn.RETURN_NULL
            elif spent_ms >= config.consume_timeout_ms:
                outcome = ConsumeReturn.TIME_OUT
            self._add_ended(messages, request_id, spent_ms, done == len(messages), outcome)
            return value

        def finish(
            messages: Sequence[MessageView],
            context: ConsumeContext,
            awaited: object,
            before_ns: int,
            request_id: str,
        ) -> Awaitable[object]:
            told = partial(ended, messages, context, request_id=request_id)
            return timed_result_of(cast(Awaitable[object], awaited), before_ns, told)

        async def traced_async(messages: Sequence[MessageView], context: ConsumeContext) -> object:
            request_id = unique_message_id()
            self._add_begun(messages, request_id, self._clock.wall_ms())
            return await finish(messages, context, listener(messages, context), 0, request_id)

        if is_async(listener):
            return traced_async
        return core.TracedListener(
            listener,
            ConsumeResult.SUCCESS,
            ConsumeResult.SUCCESS if judged.is_strict else None,
            self._records,
            self._group.encode(),
            unique_message_id,
            self._clock.wall_ms,
            config.consume_timeout_ms,
            self._add_begun,
            ended,
        )

    def _add_begun(self, messages: Sequence[MessageView], request_id: str, at_ms: int) -> None:
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
                    self._records.add(begun.to_text(), begun.message_id, begun.keys)

    def _add_ended(
        self,
        messages: Sequence[MessageView],
        request_id: str,
        spent_ms: int,
        is_success: bool,
        outcome: ConsumeReturn,
    ) -> None:
        now_ms, cost_ms = self._clock.wall_ms(), spent_ms // len(messages)
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
                    self._records.add(ended.to_text(), ended.message_id, ended.keys)

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Drop the record of a message whose properties cannot be read; its call goes on."""
        try:
            yield
        except ProtocolError as error:
            self._dispatcher.drop(1, str(error))


def _is_on(message: MessageView) -> bool:
    # Set by the broker that stored the message; one whose region traces nothing sets "false".
    return message.get_property(props.TRACE_ON) != "false"
