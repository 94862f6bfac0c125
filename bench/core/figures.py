"""How a figure is taken, and the one JSON line in which a process hands its figures on."""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ordermq.core import IMPLEMENTATION

# What is timed runs in one thread and waits for nothing: its processor time is its time, and
# what else the machine does meanwhile is left out. Java's peers count the same, without GC.
CLOCK_NS = time.thread_time_ns


@dataclass(frozen=True, slots=True)
class Work:
    """Something to time, ready to run; both the rounds beside peers and the matrix time it.

    Args:
        items: how many messages, keys or locks one run handles.
        check: asserts, after the last run, that it did what it is timed for.
        setup: called before each run, untimed.
        times: runs that the median is taken of.
    """

    case: str
    items: int
    run: Callable[[], object]
    check: Callable[[], None]
    setup: Callable[[], object] | None = None
    times: int = 1


class Figures:
    """The rows of one process: a case and its nanoseconds an item."""

    def __init__(self, peer: str, work: str, **detail: Any) -> None:
        self._line: dict[str, Any] = {
            "peer": peer,
            "work": work,
            "detail": {"python": sys.version.split()[0]} | detail,
        }
        self._rows: dict[str, float] = {}

    def take(self, case: str, items: int, run: Callable[[], object], times: int = 1) -> None:
        """Time a run over so many items, the median of several where it can be repeated."""
        gc.collect()  # of what the preparation left
        spent = []
        for _ in range(times):
            start = CLOCK_NS()
            run()
            spent.append((CLOCK_NS() - start) / items)
        self._rows[case] = statistics.median(spent)

    def time(self, work: Work) -> None:
        """Time a work, and check what it did."""
        gc.collect()
        spent = []
        for _ in range(work.times):
            if work.setup is not None:
                work.setup()
            start = CLOCK_NS()
            work.run()
            spent.append((CLOCK_NS() - start) / work.items)
        work.check()
        self._rows[work.case] = statistics.median(spent)

    def put(self, case: str, value: float) -> None:
        """Add a figure that was taken elsewhere."""
        self._rows[case] = value

    def print(self) -> None:
        print(json.dumps(self._line | {"rows": self._rows}))


def ours(work: str, **detail: Any) -> Figures:
    """The figures of our core.

    Raises: SystemExit: it is the reference, which is made to be read and not to be fast.
    """
    if IMPLEMENTATION == "reference":
        sys.exit("the reference core is not measured: build the native one, unset ORDERMQ_CORE")
    return Figures("ordermq", work, core=IMPLEMENTATION, **detail)
