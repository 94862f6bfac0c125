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
from concurrent.futures import Executor, Future
from typing import Any, Protocol, TypeVar, cast

from ordermq.client.runtime import Runtime, result_of
from ordermq.errors import StateError, error_text
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue

_T = TypeVar("_T")
QueueCallback = Callable[[MessageQueue], object]  # `on_assigned`, `on_revoked`
TopicCallback = Callable[[str, list[MessageQueue]], object]  # a topic, its queues
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

    def release(self, *, timeout_s: float) -> None:
        """Cancel the tasks that are left; call from another thread.

        Args: timeout_s: how long to wait for their end, where it is waited for.
        """


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
        await on_thread(self._call_on_own_loop, callback, *arguments)

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
        raised = await asyncio.wrap_future(self.submit(_called(callback, *arguments)))
        if raised is not None:
            raise raised

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

    def release(self, *, timeout_s: float) -> None:
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


async def on_thread(
    call: Callable[..., _T], *arguments: object, threads: Executor | None = None
) -> _T:
    """Call a plain function of the user on a thread, and return its result.

    What it raises comes as a value through the future, for asyncio takes some exceptions for its
    own: a future refuses StopIteration, so that nobody wakes; GeneratorExit ends every coroutine
    that waits, and no `except` sees it; CancelledError is a cancellation of who waits.

    Args: threads: whose threads; those of the event loop if None.
    Raises: what `call` raises. RuntimeError: that was StopIteration or CancelledError.
    """
    run = contextvars.copy_context().run  # as `asyncio.to_thread`
    loop = asyncio.get_running_loop()
    done, raised = await loop.run_in_executor(threads, run, _outcome, call, arguments)
    if raised is None:
        return cast("_T", done)
    if isinstance(raised, (StopIteration, asyncio.CancelledError)):
        raise RuntimeError(f"user code raised {error_text(raised)}") from raised
    raise raised


def _outcome(
    call: Callable[..., _T], arguments: tuple[object, ...]
) -> tuple[_T, None] | tuple[None, BaseException]:
    try:
        return call(*arguments), None
    except BaseException as error:  # noqa: BLE001 - the user's; raised again by who waits
        return None, error


async def _called(callback: Callable[..., object], *arguments: object) -> GeneratorExit | None:
    # Not raised: through a future it would end all that wait on the I/O thread.
    try:
        returned = callback(*arguments)
        if inspect.isawaitable(returned):
            await returned
    except GeneratorExit as error:
        return error
    return None
