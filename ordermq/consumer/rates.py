"""How fast a topic is pulled and consumed, in the last minute
(docs/internals/semantics.md#admin-requests)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields

_STEP_MS = 10_000  # counted together
_MINUTE = 6  # steps
_HOUR = 360


@dataclass(slots=True)
class Step:
    """What happened within ten seconds."""

    number: int
    pulled: int = 0
    pulls: int = 0
    pull_ms: int = 0
    done: int = 0
    failed: int = 0
    calls: int = 0
    call_ms: int = 0


@dataclass(frozen=True, slots=True)
class TopicRates:
    """Java's ConsumeStatus of a topic: messages a second and times of the last minute.

    Args:
        pull_rt_ms: a pull that brought messages, on average; long polls wait within it.
        consume_rt_ms: a listener call, on average.
        consume_failed_messages: of the last hour.
    """

    pull_tps: float
    pull_rt_ms: float
    consume_ok_tps: float
    consume_failed_tps: float
    consume_rt_ms: float
    consume_failed_messages: int


class TopicCounts:
    """The counts behind `TopicRates`; the caller keeps threads apart.

    Args:
        now_ms: on the monotonic clock, when counting began.
    """

    def __init__(self, now_ms: int) -> None:
        self._began_ms = now_ms
        self._steps: deque[Step] = deque(maxlen=_HOUR)

    def step(self, now_ms: int) -> Step:
        """This moment's, to count into."""
        number = now_ms // _STEP_MS
        if not self._steps or self._steps[-1].number != number:
            self._steps.append(Step(number))
        return self._steps[-1]

    def rates(self, now_ms: int) -> TopicRates:
        """The rates at this moment. O(hour / step)."""
        total = self._sum(now_ms, _MINUTE)
        # The oldest step of the minute may have begun within it, and so may we.
        since_ms = max((now_ms // _STEP_MS - _MINUTE + 1) * _STEP_MS, self._began_ms)
        seconds = max(now_ms - since_ms, 1_000) / 1_000
        return TopicRates(
            pull_tps=total.pulled / seconds,
            pull_rt_ms=total.pull_ms / max(total.pulls, 1),
            consume_ok_tps=total.done / seconds,
            consume_failed_tps=total.failed / seconds,
            consume_rt_ms=total.call_ms / max(total.calls, 1),
            consume_failed_messages=self._sum(now_ms, _HOUR).failed,
        )

    def _sum(self, now_ms: int, steps: int) -> Step:
        total = Step(0)
        for step in self._steps:
            if step.number > now_ms // _STEP_MS - steps:
                for part in _COUNTS:
                    setattr(total, part, getattr(total, part) + getattr(step, part))
        return total


_COUNTS = tuple(part.name for part in fields(Step) if part.name != "number")
