"""What a member complains of, told once for as long as it stays the same."""

from __future__ import annotations

import logging

_log = logging.getLogger("ordermq.consumer")


class Complaints:
    """Once: a broker that is away for a minute would otherwise fill the log. On the I/O thread."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def note(self, what: str, problem: str) -> None:
        """Tell what is wrong with `what` now, unless that was told last; empty: nothing is."""
        if problem and self._told.get(what) != problem:
            _log.warning("%s: %s", what, problem)
        self._told[what] = problem
