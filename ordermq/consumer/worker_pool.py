"""Threads that run listeners; a queue is in here at most once, by its dispatch flag."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from ordermq.consumer.assigned_queue import AssignedQueue


class WorkerPool:
    """At most `size` daemon threads, started as work needs them.

    Args:
        run: consumes one queue until it is empty, revoked or out of its time slice.
    """

    def __init__(self, size: int, run: Callable[[AssignedQueue], None], name: str) -> None:
        self._size = size
        self._run = run
        self._name = name
        self._work: queue.SimpleQueue[AssignedQueue | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        # Threads that wait for work, less the work that waits for a thread: an idle thread
        # serves one of two queues that come at once, not both.
        self._spare = 0

    def submit(self, assigned: AssignedQueue) -> None:
        """Hand a queue to the next free worker; any thread."""
        self._work.put(assigned)
        with self._lock:
            self._spare -= 1
            if self._spare >= 0 or len(self._threads) >= self._size:
                return
            thread = threading.Thread(
                target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True
            )
            self._threads.append(thread)
        thread.start()

    def close(self, timeout_s: float) -> bool:
        """Let running listeners end, at most `timeout_s` each; False if one still runs."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._spare += 1
            assigned = self._work.get()
            if assigned is None:
                return
            self._run(assigned)
