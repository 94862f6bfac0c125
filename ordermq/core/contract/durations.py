"""Histograms of durations, and what counts into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class DurationCounts(Protocol):
    """A histogram of durations, in the buckets of `ordermq.metrics.instruments.BOUNDARIES`; any
    thread.
    """

    def add(self, ns: int, count: int = 1) -> None:
        """Count `count` durations of `ns`."""

    def add_many(self, buckets: Sequence[int], spent_ns: int) -> None:
        """Count durations that are counted already.

        Raises: ValueError: there are more buckets or fewer.
        """

    def read(self) -> tuple[tuple[int, ...], int]:
        """Return the number of durations in each bucket, not those below it, and their sum, ns."""


class SendTimer(Protocol):
    """Counts the messages that are sent to one topic, by the system's monotonic clock.

    Args:
        stored: the histograms that count a message which has no error.
        on_failed: called with the error, the number of messages and ns of others; quick, on the
            thread that finishes them.
    """

    def __init__(
        self,
        stored: tuple[DurationCounts, ...],
        on_failed: Callable[[BaseException, int, int], object],
    ) -> None: ...

    def count(self, spent_ns: int, count: int, error: BaseException | None) -> None:
        """Count `count` messages that took `spent_ns` each."""
