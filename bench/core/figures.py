"""Take a figure, and print the figures of a process as one line of JSON."""

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

# The timed code runs in one thread and waits for nothing, so its processor time is its time, and
# other work of the machine is left out. The Java peers count in the same way, without GC threads.
CLOCK_NS = time.thread_time_ns


@dataclass(frozen=True, slots=True)
class Work:
    """An operation to time, ready to run; the rounds with peers and the matrix both time it.

    Args:
        items: number of messages, keys or locks that one run handles.
        check: asserts, after the last run, that it did its work.
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
    """The rows of one process: case -> nanoseconds per item."""

    def __init__(self, peer: str, work: str, **detail: Any) -> None:
        self._line: dict[str, Any] = {
            "peer": peer,
            "work": work,
            "detail": {"python": sys.version.split()[0]} | detail,
        }
        self._rows: dict[str, float] = {}

    def take(self, case: str, items: int, run: Callable[[], object], times: int = 1) -> None:
        """Time a run over this many items; the median of several runs if it can be repeated."""
        gc.collect()  # of what the preparation left, which is not part of the run
        spent = []
        for _ in range(times):
            start = CLOCK_NS()
            run()
            spent.append((CLOCK_NS() - start) / items)
        self._rows[case] = statistics.median(spent)

    def time(self, work: Work) -> None:
        """Time a work, and check its result."""
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
        """Add a figure that was taken in another way."""
        self._rows[case] = value

    def print(self) -> None:
        print(json.dumps(self._line | {"rows": self._rows}))


def ours(work: str, **detail: Any) -> Figures:
    """Return the figures of ordermq's core.

    Raises: SystemExit: it is the reference core, which is made to be read, not to be fast.
    """
    if IMPLEMENTATION == "reference":
        sys.exit("the reference core is not measured: build the native one, unset ORDERMQ_CORE")
    return Figures("ordermq", work, core=IMPLEMENTATION, **detail)
