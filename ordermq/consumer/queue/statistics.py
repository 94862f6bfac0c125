"""What a consumer counts; read by the CLI and by metrics."""

from __future__ import annotations

import threading
from collections import Counter

from ordermq.clock import Clock, SystemClock
from ordermq.consumer.rates import Step, TopicCounts, TopicRates


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
