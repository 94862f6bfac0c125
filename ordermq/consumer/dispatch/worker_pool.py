"""Where listeners run: on threads, or, those that are coroutines, on an event loop of their own.

A queue is in a pool at most once, by its dispatch flag.
"""

from __future__ import annotations

import asyncio
import collections
import inspect
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, Protocol

from ordermq.client.runtime import Runtime
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.queue.assigned_queue import AssignedQueue

_QUICK_CALL_NS = 100_000  # of listeners that take less, one thread is enough
_LOOK_AFTER_S = 0.001  # how long a queue may wait behind a listener that does not return


class ListenerPool(Protocol):
    """What a consume service needs of either."""

    def submit(self, assigned: AssignedQueue) -> None:
        """Serve a queue soon; any thread."""

    def goes_on(self, calls: int) -> bool:
        """Tell that the listener was called, from the thread or task that serves a queue.

        Args:
            calls: how often since it was told last, or since the queue was given out.
        Returns: False if the caller must submit its queue again, if it has more, and return.
        """

    def resize(self, size: int) -> None:
        """Have at most so many threads from now on; any thread."""

    def stack_of(self, assigned: AssignedQueue, thread: int) -> str:
        """What the listener that a queue was given to on this thread is at."""

    def close(self, timeout_s: float) -> bool:
        """End the threads; False if a listener still ran after `timeout_s` seconds."""


def pool_for(
    listener: Callable[..., object],
    size: int,
    serve: Callable[[AssignedQueue], None],
    serve_async: Callable[[AssignedQueue], Coroutine[Any, Any, None]],
    name: str,
    runtime: Runtime,
) -> ListenerPool:
    """Make the pool a listener needs: `size` threads, or a loop for an `async def` one."""
    if inspect.iscoroutinefunction(listener):
        return ListenerLoop(serve_async, f"{name}-listeners")
    return WorkerPool(size, serve, name, lambda look: runtime.post_after(_LOOK_AFTER_S, look))


class _Worker:
    __slots__ = ("ident", "is_hired", "is_quick", "is_retired", "since_ns", "wake")

    def __init__(self) -> None:
        self.ident = 0
        self.is_hired = False  # woken for a queue that waits, whoever is on duty
        self.is_quick = True  # as far as it was told
        self.is_retired = False
        self.since_ns = 0  # when it last was given a queue, or told of calls
        self.wake = threading.Lock()
        self.wake.acquire()


async def call_alone(
    pool: ListenerPool, listener: Callable[..., Any], context: ConsumeContext
) -> tuple[object, BaseException | None]:
    """Call a listener beside the pool's work; from the I/O thread. What came of it."""
    try:
        if isinstance(pool, ListenerLoop):
            return await pool.call(listener(context.messages, context)), None
        return await asyncio.to_thread(listener, context.messages, context), None
    except Exception as error:  # noqa: BLE001 - the user's; told to whoever asked
        return None, error


class WorkerPool:
    """At most `size` daemon threads, started as work needs them.

    Threads that share one interpreter lock do not run quick listeners any faster than one
    thread does, and fight for the lock with the I/O thread. So one worker is *on duty* and
    serves queue after queue while the listener is quick. As soon as it is not, each queue that
    waits gets a thread: a worker that was told of a slow call goes off duty with its queue, and
    one whose listener does not return is taken off duty by a look, a millisecond after something
    began to wait for it. A worker off duty keeps its queue until the listener is quick again.

    Args:
        run: consumes one queue until it is empty, revoked, out of its time slice, or `goes_on`
            said no; it tells of its calls by `goes_on`.
        later: has what it is given called in about a millisecond, on any thread.
        clock_ns: how long calls take.
    """

    def __init__(
        self,
        size: int,
        run: Callable[[AssignedQueue], None],
        name: str,
        later: Callable[[Callable[[], None]], None],
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._size = size
        self._run = run
        self._name = name
        self._later = later
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._work: collections.deque[AssignedQueue] = collections.deque()
        self._threads: list[threading.Thread] = []
        self._workers: dict[int, _Worker] = {}  # by ident
        self._idle: list[_Worker] = []
        self._on_duty: _Worker | None = None
        self._steps = 0  # of the worker on duty: queues taken and calls told
        self._steps_seen = -1  # at the last look
        self._is_looked_after = False
        self._is_closing = False

    def submit(self, assigned: AssignedQueue) -> None:
        with self._lock:
            self._work.append(assigned)
            if self._on_duty is None:
                self._hire(1)
            else:
                self._look_after()

    def goes_on(self, calls: int) -> bool:
        worker = self._workers[threading.get_ident()]
        now_ns = self._clock_ns()
        worker.is_quick = now_ns - worker.since_ns <= calls * _QUICK_CALL_NS
        worker.since_ns = now_ns
        if worker is self._on_duty:
            if worker.is_quick:
                self._steps += 1
                return not self._work  # others wait for this thread
            with self._lock:
                self._relieve()
            return True
        if not worker.is_quick:
            return len(self._threads) <= self._size
        with self._lock:
            if self._on_duty is None:
                self._on_duty = worker
                self._look_after()
            return worker is self._on_duty and not self._work

    def resize(self, size: int) -> None:
        with self._lock:
            self._size = size
            for worker in self._idle[: max(len(self._threads) - size, 0)]:
                worker.wake.release()  # it looks for work, finds none, and retires
                self._idle.remove(worker)
            self._hire(len(self._work))
            self._look_after()

    def stack_of(self, assigned: AssignedQueue, thread: int) -> str:
        return _stack_of_thread(thread)

    def close(self, timeout_s: float) -> bool:
        with self._lock:
            self._is_closing = True
            for worker in self._idle:
                worker.wake.release()
            self._idle.clear()
        for thread in list(self._threads):
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)

    # With the lock held.

    def _hire(self, most: int) -> None:
        """Wake idle workers, or start new ones; the first is on duty if nobody is."""
        for _ in range(most):
            if self._idle:
                worker = self._idle.pop()
                worker.wake.release()
            elif len(self._threads) < self._size and not self._is_closing:
                worker = self._start()
            else:
                return  # all are with slow listeners: the first to end looks for work
            worker.is_hired = True
            if self._on_duty is None:
                self._on_duty = worker

    def _start(self) -> _Worker:
        worker = _Worker()
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._serve, args=(worker,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return worker

    def _look_after(self) -> None:
        """Look soon whether the worker on duty gets to what waits for it, if anything does."""
        if self._work and self._on_duty and not self._is_looked_after and not self._is_closing:
            self._is_looked_after = True
            self._steps_seen = self._steps
            self._later(self._look)

    def _relieve(self) -> None:
        """The worker on duty is with a slow listener: nobody waits for it."""
        self._on_duty = None
        self._hire(len(self._work))
        self._look_after()

    def _retire(self, worker: _Worker) -> None:
        worker.is_retired = True
        self._threads.remove(threading.current_thread())
        del self._workers[worker.ident]

    # The look after the worker on duty.

    def _look(self) -> None:
        with self._lock:
            self._is_looked_after = False
            if self._on_duty is None or not self._work:
                return
            if self._steps != self._steps_seen:
                self._look_after()
            else:
                self._relieve()

    # A worker's thread.

    def _serve(self, worker: _Worker) -> None:
        worker.ident = threading.get_ident()
        self._workers[worker.ident] = worker
        while True:
            assigned = self._next(worker)
            if assigned is not None:
                worker.since_ns = self._clock_ns()
                self._run(assigned)
            elif self._is_closing or worker.is_retired:
                return
            else:
                worker.wake.acquire()

    def _next(self, worker: _Worker) -> AssignedQueue | None:
        """The next queue, or None: the worker is noted as idle or retired, or the pool closes."""
        with self._lock:
            if len(self._threads) > self._size and worker is not self._on_duty:
                self._retire(worker)
                self._hire(len(self._work) if self._on_duty is None else 0)
                self._look_after()
                return None
            if self._on_duty is None and self._work:
                self._on_duty = worker
            is_on_duty = worker is self._on_duty
            if self._work and (is_on_duty or worker.is_hired or not worker.is_quick):
                worker.is_hired = False
                self._steps += is_on_duty
                assigned = self._work.popleft()
                self._look_after()
                return assigned
            if is_on_duty:
                self._on_duty = None
            worker.is_hired = False
            if len(self._threads) > self._size:
                self._retire(worker)
            elif not self._is_closing:
                self._idle.append(worker)
            return None


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

    async def call(self, work: Any) -> object:
        """Run a listener's coroutine; from another loop."""
        return await asyncio.wrap_future(self._runtime.submit(work))

    def submit(self, assigned: AssignedQueue) -> None:
        self._runtime.post(self._start, assigned)

    def goes_on(self, calls: int) -> bool:
        return True

    def resize(self, size: int) -> None:
        """Coroutines need no threads."""

    def stack_of(self, assigned: AssignedQueue, thread: int) -> str:
        return _stacks_of_tasks(self._runtime.loop, str(assigned.queue))

    def close(self, timeout_s: float) -> bool:
        """Cancel what runs and end the thread; always True."""
        self._runtime.release()
        return True

    def _start(self, assigned: AssignedQueue) -> None:
        self._runtime.spawn(self._run(assigned), str(assigned.queue))


def stacks_of_all_threads() -> str:
    """Every thread of this process, as jstack tells it of Java's."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def _stack_of_thread(ident: int) -> str:
    """One thread, outermost call first; empty if it has ended."""
    frame = sys._current_frames().get(ident)
    return "" if frame is None else "".join(traceback.format_stack(frame))


def _stacks_of_tasks(loop: asyncio.AbstractEventLoop, name: str) -> str:
    """The tasks of a loop that have this name, outermost coroutine first; from any thread."""
    named = [task for task in asyncio.all_tasks(loop) if task.get_name() == name]
    return "\n".join("".join(_coroutine_frames(task.get_coro())) for task in named)


def _coroutine_frames(coroutine: Any) -> Iterator[str]:
    while coroutine is not None:
        frame: FrameType | None = getattr(coroutine, "cr_frame", None)
        if frame is not None:
            yield from traceback.format_stack(frame, limit=1)
        coroutine = getattr(coroutine, "cr_await", None)
