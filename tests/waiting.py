"""Waiting for what only another thread or process can tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], what: str, deadline_s: float = 60.0) -> None:
    """Poll until it is so; fail after the deadline."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        pause.wait(0.01)
