"""How a figure is taken, and the one JSON line in which a process hands its figures on."""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from ordermq.core import IMPLEMENTATION


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
            start = time.perf_counter_ns()
            run()
            spent.append((time.perf_counter_ns() - start) / items)
        self._rows[case] = statistics.median(spent)

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
