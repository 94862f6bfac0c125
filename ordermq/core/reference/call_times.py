"""Reference histogram of durations, timer of sends and timed listener; see contract/."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ordermq.core.reference.consume_loop import CallContext
from ordermq.threads import Lock

if TYPE_CHECKING:
    from ordermq.core import contract

BOUNDARIES_MS: Final = (5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10_000)
_BOUNDARIES_NS = [ms * 1_000_000 for ms in BOUNDARIES_MS]


class DurationCounts:
    """See contract.DurationCounts."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._buckets = [0] * (len(_BOUNDARIES_NS) + 1)
        self._spent_ns = 0

    def add(self, ns: int, count: int = 1) -> None:
        with self._lock:
            self._buckets[bisect_left(_BOUNDARIES_NS, ns)] += count
            self._spent_ns += ns * count

    def add_many(self, buckets: Sequence[int], spent_ns: int) -> None:
        with self._lock:
            pairs = zip(self._buckets, buckets, strict=True)
            self._buckets = [count + more for count, more in pairs]
            self._spent_ns += spent_ns

    def read(self) -> tuple[tuple[int, ...], int]:
        with self._lock:
            return tuple(self._buckets), self._spent_ns


class SendTimer:
    """See contract.SendTimer."""

    def __init__(
        self,
        stored: tuple[contract.DurationCounts, ...],
        on_failed: Callable[[BaseException, int, int], object],
    ) -> None:
        self._stored = stored
        self._on_failed = on_failed

    def count(self, spent_ns: int, count: int, error: BaseException | None) -> None:
        if error is not None:
            self._on_failed(error, count, spent_ns)
            return
        for counts in self._stored:
            counts.add(spent_ns, count)


class TimedListener:
    """See contract.TimedListener."""

    def __init__(
        self,
        listener: Callable[[Any, Any], Any],
        success: object,
        other_success: object,
        by_topic: Mapping[str, Any],
        on_other: Callable[..., Any],
    ) -> None:
        self._listener = listener
        self._successes = success, other_success
        self._by_topic = by_topic
        self._on_other = on_other

    def __call__(self, messages: Any, context: CallContext) -> Any:
        begun_ns = time.monotonic_ns()
        try:
            value = self._listener(messages, context)
        except BaseException as error:
            spent_ns = time.monotonic_ns() - begun_ns
            self._on_other(messages, context, None, error, spent_ns)
            raise
        spent_ns = time.monotonic_ns() - begun_ns
        is_success = any(value is success for success in self._successes)
        if is_success and not context.attempt and getattr(context, "_ack_index", None) is None:
            times = self._by_topic.get(context._assigned.queue.topic)
            if times is not None:
                times.add(spent_ns)
                return value
        return self._on_other(messages, context, value, None, spent_ns)
