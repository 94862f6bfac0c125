"""UserCode: where a consumer runs its user's coroutines and callbacks.

Connections, heartbeats and lock renewals are on the I/O thread in any case, so nothing that happens
here, such as a loop that is blocked for minutes, costs a lease.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from ordermq.client.runtime import Runtime, result_of
from ordermq.errors import StateError
from ordermq.model.log_fields import log_fields

_T = TypeVar("_T")
_log = logging.getLogger("ordermq.consumer")
HOLD_S = 0.001  # so long consuming may keep an event loop from its other tasks


class TaskLoop(Protocol):
    """An event loop that other threads give work to: a `Runtime`, or the caller's own loop."""

    loop: asyncio.AbstractEventLoop

    def post(self, action: Callable[..., object], *arguments: object) -> None:
        """Call `action` on the loop soon; any thread."""

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task; call on the loop. An error that ends the task is logged once."""

    def submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start `work` on the loop, from any thread."""

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` on the loop and wait for its result, from another thread."""

    def release(self) -> None:
        """Cancel the tasks that are left; call from another thread."""


class UserCode(Protocol):
    """The place of a consumer's coroutines and callbacks, chosen when it starts."""

    def listener_loop(self, name: str) -> TaskLoop:
        """Return the loop for `async def` listeners; its user releases it."""

    async def call_back(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call `on_assigned` and the like, and await what it returns; on the I/O thread."""

    def calls_back_here(self) -> bool:
        """Return True on the thread of a callback, while it is called."""


class OwnThreads:
    """Coroutines run on a loop of their own; a callback has a thread to itself."""

    def __init__(self) -> None:
        self._calling: set[int] = set()  # idents of the callbacks' threads

    def listener_loop(self, name: str) -> Runtime:
        return Runtime(name=name)

    async def call_back(self, callback: Callable[..., object], *arguments: object) -> None:
        await asyncio.to_thread(self._call_on_own_loop, callback, *arguments)

    def calls_back_here(self) -> bool:
        return threading.get_ident() in self._calling

    def _call_on_own_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        self._calling.add(threading.get_ident())
        try:
            returned = callback(*arguments)
            if inspect.isawaitable(returned):  # its own loop: only this thread waits for it
                asyncio.run(result_of(returned))
        finally:
            self._calling.discard(threading.get_ident())


class CallersLoop:
    """Coroutines and callbacks run on the loop that started the consumer.

    They see the context variables of the task that started it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, group: str) -> None:
        self.loop = loop
        self._group = group
        self._context = contextvars.copy_context()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_reported = False  # that the loop is closed

    def listener_loop(self, name: str) -> CallersLoop:
        return self

    async def call_back(self, callback: Callable[..., object], *arguments: object) -> None:
        await asyncio.wrap_future(self.submit(_called(callback, *arguments)))

    def calls_back_here(self) -> bool:
        return False  # an AsyncConsumer knows its tasks, and is not closed by its loop's thread

    def post(self, action: Callable[..., object], *arguments: object) -> None:
        try:
            # A copy: it must not be entered twice, as where loops are nested.
            self.loop.call_soon_threadsafe(action, *arguments, context=self._context.copy())
        except RuntimeError:  # closed: nobody is left who could consume
            if not self._is_reported:
                self._is_reported = True
                _log.error(
                    "group %s: the event loop was closed before its consumer: nothing is consumed "
                    "any more; use `async with`, or await close()",
                    self._group,
                    extra=log_fields(group=self._group),
                )

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = self.loop.create_task(work, name=name)
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)
        return task

    def submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        tracked = self._tracked(work)
        start = self._context.copy().run
        try:
            return start(asyncio.run_coroutine_threadsafe, tracked, self.loop)
        except RuntimeError:
            tracked.close()  # else Python warns that they were never awaited
            work.close()
            raise StateError(
                "the event loop was closed before its consumer", group=self._group
            ) from None

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self.submit(work).result()

    def release(self) -> None:
        self.post(self._cancel_all)

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Return True if the consumer has started this task."""
        return task in self._tasks

    async def ended(self, timeout_s: float) -> None:
        """Wait until no task is left, for a limited time; on the loop."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def _tracked(self, work: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)

    def _cancel_all(self) -> None:
        for task in list(self._tasks):
            task.cancel()


def running_task() -> asyncio.Task[Any] | None:
    """Return the task that runs on this thread; None where no loop runs, or none of its tasks."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


async def _called(callback: Callable[..., object], *arguments: object) -> None:
    returned = callback(*arguments)
    if inspect.isawaitable(returned):
        await returned
