"""CallTimes: how long the listener calls of one consumer take, for metrics (docs/metrics.md)."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast

from ordermq import core
from ordermq.callables import is_async
from ordermq.client.runtime import timed_result_of
from ordermq.config import ConsumeConfig
from ordermq.consumer.listener import (
    AnyListener,
    ConsumeContext,
    ConsumeReturn,
    ListenerResults,
)
from ordermq.errors import ConfigError
from ordermq.model.message import MessageView
from ordermq.model.names import RETRY_PREFIX
from ordermq.model.status import ConsumeResult

_Kind = tuple[str, str]  # topic, and `error.type`: empty if all messages are done


class CallRecorder(Protocol):
    """Receiver of each call's duration, on the thread of the call: it must be quick."""

    def wants_each(self, *, has_hooks: bool) -> bool:
        """Tell, when the consumer starts, whether it wants them as they happen; else it reads."""

    def __call__(self, topic: str, error: str, spent_ns: int) -> object:
        """Take one."""


class CallTimes:
    """Histograms of listener calls, by topic and error; any thread.

    A call that succeeds at the first attempt is counted natively. So a scrape reads what costs a
    call next to nothing.

    Args:
        on_error: called with what a recorder raised.
    """

    def __init__(self, on_error: Callable[[BaseException], object]) -> None:
        self.redelivered: Counter[str] = Counter()  # messages by topic, of later attempts
        self._on_error = on_error
        # By topic and error; it may be kept, and read behind the end of the consumer.
        self.counts: dict[_Kind, core.contract.DurationCounts] = {}
        self._recorders: tuple[CallRecorder, ...] = ()
        # What native code counts into, by topic; not of retry topics, where each call is another
        # attempt.
        self._quick: dict[str, Any] = {}

    def record_with(self, recorder: CallRecorder) -> None:
        """Give `recorder` each duration, if it wants that; before the consumer starts."""
        self._recorders += (recorder,)

    def durations(self) -> dict[_Kind, core.contract.DurationCounts]:
        """Return the histogram of each topic and error."""
        return self.counts.copy()

    def around(
        self,
        listener: AnyListener,
        results: ListenerResults,
        config: ConsumeConfig,
        *,
        has_hooks: bool,
    ) -> Any:
        """Return the listener, timed; plain or `async def` as it was."""
        self._recorders = tuple(
            each for each in self._recorders if each.wants_each(has_hooks=has_hooks)
        )
        judged = replace(results, is_strict=config.strict_results)

        def ended(
            messages: Sequence[MessageView],
            context: ConsumeContext,
            value: object,
            error: BaseException | None,
            spent_ns: int,
        ) -> object:
            if error is None and value is not None and inspect.isawaitable(value):
                return finish(messages, context, value, spent_ns)
            topic = context.message_queue.topic
            # Those of a retry topic failed in a concurrent group, perhaps at another member.
            is_retry = topic.startswith(RETRY_PREFIX)
            if context.attempt or is_retry:
                self.redelivered[topic] += len(messages)
            kind = _error_of(len(messages), context, value, error, spent_ns, judged, config)
            times = self._times(topic, kind)
            times.add(spent_ns)
            if not kind and not is_retry:
                self._quick.setdefault(topic, times)
            return value

        def finish(
            messages: Sequence[MessageView],
            context: ConsumeContext,
            awaited: object,
            before_ns: int,
        ) -> Awaitable[object]:
            told = partial(ended, messages, context)
            return timed_result_of(cast(Awaitable[object], awaited), before_ns, told)

        async def timed_async(messages: Sequence[MessageView], context: ConsumeContext) -> object:
            return await finish(messages, context, listener(messages, context), 0)

        if is_async(listener):
            return timed_async
        other_success = ConsumeResult.SUCCESS if judged.is_strict else None
        return core.TimedListener(
            listener, ConsumeResult.SUCCESS, other_success, self._quick, ended
        )

    def _times(self, topic: str, error: str) -> Any:
        counts = self.counts.get((topic, error))
        if counts is None:
            # One of the threads that come here together makes it.
            counts = self.counts.setdefault((topic, error), core.DurationCounts())
        return _Recorded(self, counts, topic, error) if self._recorders else counts

    def _record(self, topic: str, error: str, spent_ns: int) -> None:
        for recorder in self._recorders:
            try:
                recorder(topic, error, spent_ns)
            except Exception as raised:  # noqa: BLE001 - it watches the call, and fails none
                self._on_error(raised)


class _Recorded:
    """Counts a duration and gives it to the recorders."""

    def __init__(
        self, times: CallTimes, counts: core.contract.DurationCounts, topic: str, error: str
    ) -> None:
        self._counts = counts
        self._record = times._record
        self._topic = topic
        self._error = error

    def add(self, ns: int) -> None:
        self._counts.add(ns)
        self._record(self._topic, self._error, ns)


def _error_of(
    size: int,
    context: ConsumeContext,
    value: object,
    error: BaseException | None,
    spent_ns: int,
    results: ListenerResults,
    config: ConsumeConfig,
) -> str:
    """Return the `error.type` of an ended call; empty if all of its messages are done."""
    if error is not None:
        return type(error).__qualname__
    # A result that nobody understands fails the call, too.
    with contextlib.suppress(ConfigError):
        if context.judge(value, results, size).done == size:
            return ""
    if value is None and results.is_strict:
        return ConsumeReturn.RETURN_NULL.value
    if spent_ns >= config.consume_timeout_ms * 1_000_000:
        return ConsumeReturn.TIME_OUT.value
    return ConsumeReturn.FAILED.value
