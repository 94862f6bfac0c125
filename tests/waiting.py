"""Waiting for what only another thread or process can tell."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import AnyStr


def eventually(condition: Callable[[], object], what: str, deadline_s: float = 60.0) -> None:
    """Poll until it is so; fail after the deadline."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        pause.wait(0.01)


@contextlib.contextmanager
def killed_on_error(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Wait for a process at the end of the block; after an exception it is killed before.

    `with process` waits for it then, too, and pytest-timeout has raised already: for ever.
    """
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
