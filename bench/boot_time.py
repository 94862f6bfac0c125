"""The difference between Java's clock and that of histories, for events of Java members."""

from __future__ import annotations

import time
from collections.abc import Callable

from ordermq.clock import CLOCK_ID


def to_boot_time_ns(
    read_ns: Callable[[int], int] = time.clock_gettime_ns, readings: int = 100
) -> int:
    """Return the difference between Java's System.nanoTime() and the clock of the audit.

    A process that is not run between two readings would shift all events of a Java member, and so
    have two owners where there was one. Of many readings that one counts which took the least time,
    and it is off by half of that at the most.
    """
    found = []
    for _ in range(readings):
        before_ns = read_ns(time.CLOCK_MONOTONIC)
        boot_ns = read_ns(CLOCK_ID)
        after_ns = read_ns(time.CLOCK_MONOTONIC)
        found.append((after_ns - before_ns, boot_ns - (before_ns + after_ns) // 2))
    return min(found)[1]
