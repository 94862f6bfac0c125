"""The I/O thread: one asyncio loop a process that owns connections and timers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from ordermq.clock import Clock
from ordermq.clock import wait_until_set as wait_until_set
from ordermq.errors import StateError
from ordermq.remoting.event_loop import new_event_loop

_T = TypeVar("_T")
_log = logging.getLogger("ordermq.client")


class Runtime:
    """An asyncio loop in a daemon thread, shared by all clients of the process.

    Take it with `Runtime.acquire()` and give it back with `release()`; the thread ends with
    its last user. After a fork the child gets a loop of its own.
    """

    _shared: ClassVar[Runtime | None] = None
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str = "ordermq-io") -> None:
        self.loop = new_event_loop()
        self._users = 0
        self._pid = os.getpid()
        self._tasks: set[asyncio.Task[Any]] = set()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        started.wait()

    @classmethod
    def acquire(cls) -> Runtime:
        """The process's runtime, started if need be."""
        with cls._shared_lock:
            runtime = cls._shared
            if runtime is None or runtime._pid != os.getpid():
                runtime = cls._shared = cls()
            runtime._users += 1
            return runtime

    def release(self) -> None:
        """Give it back; the last user's release stops the thread."""
        with self._shared_lock:
            self._users -= 1
            if self._users > 0:
                return
            if Runtime._shared is self:
                Runtime._shared = None
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def is_io_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def call(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """Run `work` on the I/O thread and wait for its result, from another thread.

        Raises:
            StateError: called on the I/O thread itself, where waiting would hang for ever.
            TimeoutError: not done in `timeout_s` seconds; it is cancelled.
        """
        if self.is_io_thread:
            work.close()
            raise StateError("a blocking call on the I/O thread: use the async form there")
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if not future.done():
                future.cancel()
            raise

    def submit(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Start `work` on the I/O thread, from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task on the I/O thread, from it; an error that ends it is logged once."""
        task = self.loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def post(self, action: Callable[..., object], *arguments: object) -> None:
        """Call `action` on the I/O thread soon, from any thread."""
        self.loop.call_soon_threadsafe(action, *arguments)

    def post_after(self, delay_s: float, action: Callable[[], object]) -> None:
        """Call `action` on the I/O thread after real time, from any thread."""
        if self.is_io_thread:
            self.loop.call_later(delay_s, action)
        else:
            self.post(self.loop.call_later, delay_s, action)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task %s ended with an error", task.get_name(), exc_info=error)

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(started.set)
        try:
            self.loop.run_forever()
        finally:
            self._cancel_all()
            self.loop.close()

    def _cancel_all(self) -> None:
        remaining = asyncio.all_tasks(self.loop)
        for task in remaining:
            task.cancel()
        if remaining:
            self.loop.run_until_complete(asyncio.gather(*remaining, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())


async def repeat(
    action: Callable[[], Awaitable[None]], clock: Clock, interval_ms: Callable[[], int]
) -> None:
    """Run `action` after each interval, for ever; the interval is asked anew each time."""
    while True:
        await clock.sleep_ms(interval_ms())
        await action()


async def cancelled(*tasks: asyncio.Task[object] | None) -> None:
    """Cancel tasks and return when they have ended; an error of one was logged as it ended."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
