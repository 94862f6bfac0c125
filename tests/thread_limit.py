"""A system that gives a process no further thread."""

from __future__ import annotations

import threading

import pytest


class ThreadLimit:
    """A system that gives no more than so many threads, `limit` at this moment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
        self.limit = limit
        self._start = threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self._start_one(thread))

    def _start_one(self, thread: threading.Thread) -> None:
        if self.limit == 0:
            raise RuntimeError("can't start new thread")
        self.limit -= 1
        self._start(thread)
