"""Durations of the sends of producers, for metrics (docs/metrics.md)."""

from __future__ import annotations

from ordermq import core

_Kind = tuple[str, str]  # topic, and `error.type`: empty if it was stored


class SendTimes:
    """Histograms of sends by topic and error, from the call to the receipt; any thread.

    Each message counts. One may be given to several producers, whose sends are added up. What is
    stored is counted natively, so a scrape reads what costs a send next to nothing.
    """

    def __init__(self) -> None:
        self._counts: dict[_Kind, core.contract.DurationCounts] = {}

    def durations(self) -> dict[_Kind, core.contract.DurationCounts]:
        """Return the histogram of each topic and error."""
        return self._counts.copy()

    def of(self, topic: str, error: str = "") -> core.contract.DurationCounts:
        """Return the histogram of a topic and error; it is made if there is none."""
        counts = self._counts.get((topic, error))
        if counts is None:
            # One of the threads that come here together makes it.
            counts = self._counts.setdefault((topic, error), core.DurationCounts())
        return counts


class SendTimers:
    """The timers of one producer's topics, which count into the histograms of all its observers."""

    def __init__(self) -> None:
        self.are_used = False  # messages have to be timed
        self._observers: tuple[SendTimes, ...] = ()
        self._by_topic: dict[str, core.contract.SendTimer] = {}

    def count_into(self, times: SendTimes) -> None:
        """Count into `times`, too; before the first send."""
        self._observers += (times,)
        self.are_used = True

    def of(self, topic: str) -> core.contract.SendTimer:
        """Return the timer of a topic; any thread."""
        found = self._by_topic.get(topic)
        if found is None:
            observers = self._observers

            def failed(error: BaseException, count: int, spent_ns: int) -> None:
                for times in observers:
                    times.of(topic, type(error).__qualname__).add(spent_ns, count)

            stored = tuple(times.of(topic) for times in observers)
            found = self._by_topic.setdefault(topic, core.SendTimer(stored, failed))
        return found
