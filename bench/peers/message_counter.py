"""Command line and message counter of a peer in Python; standard library only."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

DEADLINE_S = 600
THREADS = 20  # Java's default


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the command line that bench_catch_up uses for every peer."""
    asked = argparse.ArgumentParser(description=description)
    asked.add_argument("address", help="of the name server")
    asked.add_argument("topic")
    asked.add_argument("--group", required=True)
    asked.add_argument("--messages", type=int, required=True)
    asked.add_argument("--batch", type=int, required=True)
    asked.add_argument(
        "--pull-size", type=int, required=True, help="ignored: the client has no such setting"
    )
    asked.add_argument("--warm", type=int, default=0, help="messages before the clock starts")
    asked.add_argument("--inside", action="store_true", help="run inside the virtual environment")
    return asked


class MessageCounter:
    """Counts messages; times those after the first `warm` and checks the offsets of those."""

    def __init__(self, warm: int, wanted: int) -> None:
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._warm, self._wanted = warm, wanted
        self._next: dict[int, int] = {}
        self._counted = 0
        self._wall = self._cpu = 0.0  # seconds, once done

    def take(self, place: Callable[[], tuple[int, int]]) -> None:
        """Count a message; `place` returns its queue and offset."""
        with self._lock:
            if self._counted <= self._warm:
                self._check(*place())
                if self._counted == self._warm:
                    self._wall, self._cpu = time.perf_counter(), time.process_time()
            self._counted += 1
            if self._counted == self._wanted:
                self._wall = time.perf_counter() - self._wall
                self._cpu = time.process_time() - self._cpu
                self._done.set()

    def _check(self, queue: int, offset: int) -> None:
        expected = self._next.get(queue, 0)
        if offset != expected:
            # On a thread of the client's, which would swallow an error.
            print(f"queue {queue}: offset {offset}, expected {expected}", file=sys.stderr)
            os._exit(1)
        self._next[queue] = offset + 1

    def finish(self, peer: str, package: str) -> NoReturn:
        """Wait for the last message, print the row and end without the client's shutdown."""
        if not self._done.wait(DEADLINE_S):
            print(f"only {self._counted} of {self._wanted} messages", file=sys.stderr)
            os._exit(1)
        python = sys.version.split()[0]
        row = {
            "peer": peer,
            "messages": self._wanted - self._warm,
            "seconds": self._wall,
            "cpu_seconds": self._cpu,
            "detail": {"package": package, "python": python, "threads": THREADS},
        }
        print(json.dumps(row), flush=True)
        os._exit(0)
