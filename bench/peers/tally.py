"""What a peer that is called once a message counts; nothing but the standard library."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable


class Tally:
    """Counts what arrives, the clock from `warm` on; until then it looks at every offset."""

    def __init__(self, warm: int, wanted: int) -> None:
        self.done = threading.Event()
        self._lock = threading.Lock()
        self._warm, self._wanted = warm, wanted
        self._next: dict[int, int] = {}
        self.counted = 0
        self.wall = self.cpu = 0.0  # seconds, once done

    def take(self, place: Callable[[], tuple[int, int]]) -> None:
        """A message arrived; `place` tells its queue and offset."""
        with self._lock:
            if self.counted <= self._warm:
                self._check(*place())
                if self.counted == self._warm:
                    self.wall, self.cpu = time.perf_counter(), time.process_time()
            self.counted += 1
            if self.counted == self._wanted:
                self.wall = time.perf_counter() - self.wall
                self.cpu = time.process_time() - self.cpu
                self.done.set()

    def _check(self, queue: int, offset: int) -> None:
        expected = self._next.get(queue, 0)
        if offset != expected:
            # On a thread of the client's, which would swallow an error.
            print(f"queue {queue}: offset {offset}, expected {expected}", file=sys.stderr)
            os._exit(1)
        self._next[queue] = offset + 1
