"""Where listeners run: on threads, or, those that are coroutines, on an event loop of their own.

A queue is in a pool at most once, by its dispatch flag.
"""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ordermq.client.runtime import Runtime
from ordermq.consumer.assigned_queue import AssignedQueue


class ListenerPool(Protocol):
    """What a consume service needs of either."""

    def submit(self, assigned: AssignedQueue) -> None:
        """Serve a queue soon; any thread."""

    def close(self, timeout_s: float) -> bool:
        """End the threads; False if a listener still ran after `timeout_s` seconds."""


def pool_for(
    listener: Callable[..., object],
    size: int,
    serve: Callable[[AssignedQueue], None],
    serve_async: Callable[[AssignedQueue], Coroutine[Any, Any, None]],
    name: str,
) -> ListenerPool:
    """Make the pool a listener needs: `size` threads, or a loop for an `async def` one."""
    if inspect.iscoroutinefunction(listener):
        return ListenerLoop(serve_async, f"{name}-listeners")
    return WorkerPool(size, serve, name)


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


class ListenerLoop:
    """A thread with an event loop for listeners that are coroutines; a task a queue.

    Args:
        run: consumes one queue until it is empty, revoked or out of its time slice.
    """

    def __init__(
        self, run: Callable[[AssignedQueue], Coroutine[Any, Any, None]], name: str
    ) -> None:
        self._run = run
        self._runtime = Runtime(name)

    def submit(self, assigned: AssignedQueue) -> None:
        """Start a task for a queue; any thread."""
        self._runtime.post(self._start, assigned)

    def close(self, timeout_s: float) -> bool:
        """Cancel what runs and end the thread; always True."""
        self._runtime.release()
        return True

    def _start(self, assigned: AssignedQueue) -> None:
        self._runtime.spawn(self._run(assigned), str(assigned.queue))
