"""What a consumer counts; read by the CLI and by metrics."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass, fields

from ordermq.clock import Clock, SystemClock

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


class ConsumerStatistics:
    """Counters of one consumer, and rates of each of its topics; any thread.

    Names: messages_done, batches, batches_failed, listener_errors, pulls, pulls_from_slaves,
    pull_errors, commits, commit_errors, fenced_commits, lock_errors, leases_lost, hand_offs,
    diverted, parked, skipped, filtered, slow_listeners, hook_errors, callback_errors,
    internal_errors; of concurrent groups also sent_back, send_back_errors, timed_out, dropped; of
    lite pull consumers polled, in messages.

    Args:
        clock: for the rates.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock if clock is not None else SystemClock()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._topics: dict[str, TopicCounts] = {}

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def pulled(self, topic: str, messages: int, asked_ms: int) -> None:
        """A pull brought messages that were asked for then, on the monotonic clock."""
        now_ms = self._clock.now_ms()
        with self._lock:
            self._counts["pulls"] += 1
            step = self._step(topic, now_ms)
            step.pulls += 1
            step.pulled += messages
            step.pull_ms += now_ms - asked_ms

    def consumed(self, topic: str, done: int, failed: int, calls: int, spent_ms: int) -> None:
        """Listener calls have ended, with so many messages done and failed."""
        now_ms = self._clock.now_ms()
        with self._lock:
            self._counts["batches"] += calls
            self._counts["messages_done"] += done
            step = self._step(topic, now_ms)
            step.done += done
            step.failed += failed
            step.calls += calls
            step.call_ms += spent_ms

    def rates(self, topic: str) -> TopicRates:
        """How fast a topic is pulled and consumed now; zeros for one that never was."""
        now_ms = self._clock.now_ms()
        with self._lock:
            return self._topics.get(topic, TopicCounts(now_ms)).rates(now_ms)

    def topics(self) -> list[str]:
        """The topics with rates, sorted."""
        with self._lock:
            return sorted(self._topics)

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    def as_dict(self) -> dict[str, int]:
        """A copy of the counters, sorted by name."""
        with self._lock:
            return dict(sorted(self._counts.items()))

    def _step(self, topic: str, now_ms: int) -> Step:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = TopicCounts(now_ms)
        return found.step(now_ms)
