"""The I/O thread: one asyncio loop per process that owns all connections and timers."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from ordermq.client.outcome_future import OutcomeFuture
from ordermq.closing import warn_of_forgotten
from ordermq.errors import NoThread, OrderMQError, StateError
from ordermq.forking import ProcessBound
from ordermq.remoting.event_loop import new_event_loop
from ordermq.remoting.writing import LOCK_S
from ordermq.threads import SIGNAL_CHECK_S, NativeEvent, RLock, start_thread, wait_for_thread

_T = TypeVar("_T")
_log = logging.getLogger("ordermq.client")
_HURRIED_S = 5.0  # a bound that nothing should reach: a hurried end waits for nobody
ENDED = "the I/O thread has ended: the client was closed, or the program is ending"
ANSWER_S = 0.5  # longer than a live broker takes, shorter than whoever closes notices
_HALT_S = 2.0  # and this one: no callback on the I/O thread takes as long
_ERROR_PAUSE_S = 0.1  # for memory to come back, where the loop itself fails
_LAST_ROUNDS = 3  # of cancelling what still runs


class Runtime(ProcessBound):
    """An asyncio loop in a daemon thread, shared by all clients of the process.

    The thread ends with its last owner: when that releases it, or is gone without, because an
    exception has come before it was kept. After a fork the child gets a loop of its own.

    Args:
        owner: its first one; one without an owner is ended by its maker's `release`.
    Attributes:
        errors: errors that nobody expected, of tasks and callbacks; each is logged.
    Raises: ConnectFailed: this process has no descriptor left for it. NoThread
    """

    _shared: ClassVar[Runtime | None] = None
    # Reentrant: a signal handler may close or start a client, too.
    _shared_lock: ClassVar[RLock] = RLock()
    _made: ClassVar[weakref.WeakSet[Runtime]] = weakref.WeakSet()

    def __init__(self, owner: object = None, *, name: str = "ordermq-io") -> None:
        self.loop = new_event_loop()
        self._owners: set[weakref.ref[object]] = set()
        self.errors = 0
        self._is_stopping = False
        self._is_halted = False
        self._io_ident = 0  # while the thread runs: a later thread may get its number
        # The loop keeps only weak references: a task nobody holds may be collected while it runs.
        self._tasks: set[asyncio.Task[Any]] = set()
        if owner is not None:
            self._keep_for(owner)  # before the thread begins, which nobody else may know of
        # The constructor returns with a running loop, so that nobody posts to one that is not.
        started = NativeEvent()
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        try:
            start_thread(self._thread)
            wait_for_thread(started, self._thread)
        except (NoThread, StateError):
            self.loop.close()
            raise
        self._made.add(self)

    @classmethod
    def acquire(cls, owner: object) -> Runtime:
        """Return the process's runtime, started if need be, and note one more owner."""
        with cls._shared_lock:
            while True:
                runtime = cls._shared
                if runtime is None:
                    runtime = cls._shared = cls(owner)
                runtime._keep_for(owner)
                # A signal handler on top of this may have closed the last client.
                if not runtime._is_stopping:
                    return runtime

    def release(self, owner: object = None, timeout_s: float | None = None) -> None:
        """Forget an owner; with the last one the thread stops, and what still runs is cancelled.

        Args: timeout_s: how long to wait for its end; None: for as long as it takes.
        """
        released = None if owner is None else weakref.ref(owner)
        if self.is_io_thread:
            self._try_to_stop(released)
        else:
            with self._shared_lock:
                self._stop_unless_owned(released)
            self.join(timeout_s)

    def _keep_for(self, owner: object) -> None:
        self._owners.add(weakref.ref(owner, self._on_owner_gone))

    def _on_owner_gone(self, owner: weakref.ref[object]) -> None:
        # On whatever thread drops the last reference, perhaps in the middle of `acquire`: no lock.
        try:  # noqa: SIM105 - at the end of the interpreter `contextlib` may be gone
            self.loop.call_soon_threadsafe(self._try_to_stop, owner)
        except RuntimeError:
            pass  # the loop is closed

    def _try_to_stop(self, gone: weakref.ref[object] | None) -> None:
        # On the I/O thread, which does not wait: who has the lock may be suspended in its block, by
        # a signal handler that waits for this thread.
        if not self._shared_lock.acquire(timeout=LOCK_S):
            self.loop.call_later(LOCK_S, self._try_to_stop, gone)
            return
        try:
            self._stop_unless_owned(gone)
        finally:
            self._shared_lock.release()

    def _stop_unless_owned(self, gone: weakref.ref[object] | None) -> None:
        # One lock for the owners and for `_shared`: an `acquire` at the same time gets either this
        # runtime, still running, or a new one. The owner is forgotten last: of a caller that an
        # exception stops before, the thread stops when the owner is gone.
        if not self._owners - {gone}:
            if Runtime._shared is self:
                Runtime._shared = None
            self._is_stopping = True
            with contextlib.suppress(RuntimeError):  # a second call: the loop is closed already
                self.loop.call_soon_threadsafe(self.loop.stop)
        if gone is not None:
            self._owners.discard(gone)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the thread, if its last owner has let it go."""
        if self._is_halted:
            return
        # A client that is closed by a callback on the I/O thread cannot wait for that thread.
        if not self._owners and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    @property
    def is_stopping(self) -> bool:
        """True once the last owner has let the thread go, which cancels what still runs there."""
        return self._is_stopping

    @property
    def is_halted(self) -> bool:
        """True once the program ends: nothing runs on the I/O thread any more."""
        return self._is_halted

    @classmethod
    def _forget(cls) -> None:
        cls._shared = None
        cls._shared_lock = RLock()  # another thread may have held it during the fork
        cls._made = weakref.WeakSet()

    @classmethod
    def _halt_all(cls) -> None:
        """Stop the threads of clients that nobody has closed, while the program ends.

        Python stops a daemon thread where it next asks for the interpreter. After the interpreter
        has ended uvloop asks in a way that ends the process by a segmentation fault.
        """
        for runtime in list(cls._made):
            runtime._halt()
        # Only now: what was on its way may have arrived meanwhile.
        warn_of_forgotten()

    def _halt(self) -> None:
        halted = NativeEvent()

        def hold() -> None:
            # It refuses as a closed one does: what is posted from here on would never run.
            self.loop.call_soon_threadsafe = _refuse  # type: ignore[method-assign]
            self._is_halted = True
            halted.set()
            threading.Event().wait()

        with contextlib.suppress(RuntimeError):  # it was closed
            self.loop.call_soon_threadsafe(hold)
            halted.wait(_HALT_S)

    @property
    def is_io_thread(self) -> bool:
        """True on the I/O thread itself, where blocking would stop all clients."""
        return threading.get_ident() == self._io_ident

    def require_other_thread(self) -> None:
        """Refuse a wait for the I/O thread on that thread, before the caller changes anything.

        Raises: StateError: called on the I/O thread, where waiting would hang every client.
        """
        if self.is_io_thread:
            raise StateError(
                "a blocking call on the I/O thread, where callbacks run, would wait for ever: "
                "make it on another thread"
            )

    def call(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """Run `work` on the I/O thread and wait for its result, from another thread.

        Raises:
            StateError: called on the I/O thread itself, where waiting would hang for ever, or that
                thread has ended, also meanwhile.
            NotDoneInTime: not done in `timeout_s` seconds; `work` is cancelled.
        """
        try:
            self.require_other_thread()
        except StateError:
            work.close()
            raise
        return _Call(self, lambda: work).result(timeout_s)

    def complete(self, begin: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """`call` of work that is done to its end, also after an exception in the caller.

        Args: begin: makes the coroutine, on the I/O thread: of one that was made here, before an
            exception of a signal handler, Python would say that it was never awaited.
        Raises: StateError: called on the I/O thread.
        """
        self.require_other_thread()
        return _Call(self, begin, is_completed=True).result(None)

    def submit(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Start `work` on the I/O thread, from any thread.

        Raises: StateError: the thread has ended.
        """
        submitted = _SubmittedWork[_T](self, work)
        try:
            self.post(submitted.begin)
        except RuntimeError:
            work.close()  # else Python warns that it was never awaited
            raise StateError(ENDED) from None
        return submitted

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task; call on the I/O thread. An error that ends the task is logged once."""
        task = self.loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def post(self, action: Callable[..., object], *arguments: object) -> None:
        """Call `action` on the I/O thread soon, from any thread."""
        try:
            self.loop.call_soon_threadsafe(action, *arguments)
        except RuntimeError:  # the loop is closed
            raise
        except BaseException:
            # A signal handler's, perhaps after asyncio has added the call and before it has woken
            # the loop. Others rely on a call that was added.
            self.loop.call_soon_threadsafe(_nothing)
            raise

    def post_after(self, delay_s: float, action: Callable[[], object]) -> None:
        """Call `action` on the I/O thread `delay_s` seconds of real time later, from any thread."""
        if self.is_io_thread:
            self.loop.call_later(delay_s, action)
        else:
            self.post(self.loop.call_later, delay_s, action)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors += 1
            _log.error("task %s: internal error (please report)", task.get_name(), exc_info=error)

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take an error that no task or caller has got: of a callback, or of an abandoned task."""
        error = context.get("exception")
        if isinstance(error, OrderMQError):
            # A failed request whose caller gave up before: no defect.
            _log.debug("I/O thread: %s: %s", context["message"], error)
            return
        self.errors += 1
        _log.error(
            "I/O thread: internal error (please report): %s", context["message"], exc_info=error
        )

    def _run(self, started: threading.Event) -> None:
        self._io_ident = threading.get_ident()
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(self._on_error)
        self.loop.call_soon(started.set)
        try:
            while not self._is_stopping:
                self._run_loop()
        finally:
            self._cancel_all()
            self.loop.close()
            self._io_ident = 0

    def _run_loop(self) -> None:
        try:
            self.loop.run_forever()
        # A sys.exit() of user code, as of an allocation strategy, stops asyncio's loop. It must
        # not stop every client of the process.
        except (SystemExit, KeyboardInterrupt) as error:
            self.errors += 1
            _log.error("I/O thread: user code asked it to exit; it goes on", exc_info=error)
        # Nor must what the loop's own turn raises, as where there is no memory for it.
        except BaseException as error:  # noqa: BLE001 - logged and counted
            self.errors += 1
            with contextlib.suppress(MemoryError):
                _log.error("I/O thread: internal error (please report)", exc_info=error)
            time.sleep(_ERROR_PAUSE_S)

    def _cancel_all(self) -> None:
        # Their `finally` blocks must run, so the loop goes on until each task has ended. More than
        # once: what was posted last, and those blocks, may begin further ones.
        for _ in range(_LAST_ROUNDS):
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            remaining = asyncio.all_tasks(self.loop)
            for task in remaining:
                task.cancel()
            if remaining:
                self.loop.run_until_complete(asyncio.gather(*remaining, return_exceptions=True))


def _nothing() -> None: ...


class NotDoneInTime(TimeoutError):
    """The time of `Runtime.call` is over; a TimeoutError may also be a signal handler's."""


class _Call(Generic[_T]):
    """Work on the I/O thread that another thread waits for.

    Not a `concurrent.futures.Future`: its lock is held by whoever waits while a signal handler runs
    on top of it, and the I/O thread would wait for that.
    """

    def __init__(
        self,
        runtime: Runtime,
        make: Callable[[], Coroutine[Any, Any, _T]],
        *,
        is_completed: bool = False,
    ) -> None:
        self._runtime = runtime
        self._make = make
        self._is_completed = is_completed  # also if nobody waits any more
        self._task: asyncio.Task[_T] | None = None  # once the I/O thread has begun it
        self._is_given_up = False
        self._is_done = False
        self._done = NativeEvent()

    def result(self, timeout_s: float | None) -> _T:
        """Begin and wait; as `Runtime.call`."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            try:
                self._runtime.post(self._begin)
            except RuntimeError:
                raise StateError(ENDED) from None
            while not self._is_done:
                left_s = SIGNAL_CHECK_S if end is None else end - time.monotonic()
                if left_s <= 0:
                    raise NotDoneInTime
                self._done.wait(min(left_s, SIGNAL_CHECK_S))
        except BaseException:
            # Not only a time-out: after Ctrl-C nobody waits, either.
            try:
                self._runtime.post(self._begin if self._is_completed else self._give_up)
            except RuntimeError:  # the thread has ended
                if not self._is_completed:
                    self._give_up()
            raise
        assert self._task is not None
        if self._task.cancelled():
            if self._runtime.is_stopping:
                raise StateError(ENDED)
            raise concurrent.futures.CancelledError
        return self._task.result()

    # On the I/O thread.

    def _begin(self) -> None:
        if self._task is None and not self._is_given_up:
            self._task = self._runtime.loop.create_task(self._make())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[_T]) -> None:
        if not task.cancelled():
            task.exception()  # seen: nobody may be left to raise it to
        self._is_done = True
        self._done.set()

    def _give_up(self) -> None:
        self._is_given_up = True
        if self._task is None:
            self._make().close()  # else Python warns that it was never awaited
        else:
            self._task.cancel()


class _SubmittedWork(OutcomeFuture[_T]):
    """Work on the I/O thread whose outcome any thread may wait for."""

    def __init__(self, runtime: Runtime, work: Coroutine[Any, Any, _T]) -> None:
        super().__init__(runtime)
        self._work = work
        self._task: asyncio.Task[_T] | None = None

    def cancel(self) -> bool:
        """Cancel the work, from any thread; returns False if it is done."""
        is_cancelled = super().cancel()
        if is_cancelled and (self._task is None or not self._task.done()):
            with contextlib.suppress(RuntimeError):  # the thread has ended, and with it the work
                self._runtime.post(self._cancel_task)
        return is_cancelled

    # On the I/O thread.

    def begin(self) -> None:
        """Start the work."""
        self._task = self._runtime.loop.create_task(self._work)
        self._task.add_done_callback(self._ended)

    def _cancel_task(self) -> None:
        assert self._task is not None  # `begin` was posted before
        self._task.cancel()

    def _ended(self, task: asyncio.Task[_T]) -> None:
        if task.cancelled():
            self.tell_cancelled()
        else:
            error = task.exception()
            self.tell(task.result() if error is None else None, error)


def _refuse(*ignored: object, **also_ignored: object) -> NoReturn:
    raise StateError(ENDED)


os.register_at_fork(after_in_child=Runtime._forget)
# Handlers run in the reverse order of their registration. A program that closes its clients in one
# of its own has imported this module before, as a rule.
atexit.register(Runtime._halt_all)


async def result_of(returned: Awaitable[_T]) -> _T:
    """Await what a user's plain function returned, such as a lambda that calls an `async def`."""
    return await returned


async def timed_result_of(
    returned: Awaitable[object],
    before_ns: int,
    ended: Callable[[object, BaseException | None, int], object],
) -> object:
    """Await what a listener returned, and return what `ended` makes of it.

    Args:
        before_ns: that the call had taken.
        ended: gets the result, the error if there was one, which is raised again, and the ns.
    """
    begun_ns = time.monotonic_ns() - before_ns
    try:
        value = await returned
    except BaseException as error:
        ended(None, error, time.monotonic_ns() - begun_ns)
        raise
    return ended(value, None, time.monotonic_ns() - begun_ns)


async def in_thread(function: Callable[..., _T], *arguments: object) -> _T:
    """Call a function that blocks on a thread of its own, and await its end.

    Not on the loop's executor: the user's own calls may occupy all threads of that. A cancelled
    caller changes nothing for the function.

    Raises: NoThread
    """
    done: concurrent.futures.Future[_T] = concurrent.futures.Future()
    done.set_running_or_notify_cancel()  # so that a cancelled caller cannot cancel it

    def call() -> None:
        try:
            done.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            done.set_exception(error)

    start_thread(threading.Thread(target=call, name="ordermq-call", daemon=True))
    return await asyncio.wrap_future(done)


async def shielded(
    work: Coroutine[Any, Any, _T], on_cancel: Callable[[], object] | None = None
) -> _T:
    """Await `work` to its end, also if the caller is cancelled: then `on_cancel` hurries it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if on_cancel is not None:
            on_cancel()
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):  # hurried already
                await asyncio.wait((task,))
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("cancelled caller: what it waited for failed: %s", error)
        raise


async def _awaited(work: Awaitable[_T]) -> _T:
    return await work


class Shutdown:
    """The orderly end of a client: one task of the I/O thread, begun once.

    Whoever closes only waits for it. So no exception in a caller, such as a second Ctrl-C, can
    leave it half done: the task is hurried then, and ends in any case.

    Args:
        work: ends the client within a time, in seconds; returns False if it was not in order.
        is_hurried_by_second: a second caller ends the first one's wait; else it waits as well.
    """

    def __init__(
        self,
        runtime: Runtime,
        work: Callable[[float], Coroutine[Any, Any, bool]],
        *,
        is_hurried_by_second: bool,
    ) -> None:
        self._runtime = runtime
        self._work = work
        self._is_hurried_by_second = is_hurried_by_second
        self._is_asked_for = False
        self._task: asyncio.Task[bool] | None = None  # of the I/O thread
        self._is_over = False
        self._waiters: list[NativeEvent] = []  # of the threads that wait for the end
        self._hurried = asyncio.Event()
        self._end_s = math.inf  # of the time that was given, on the monotonic clock

    @property
    def is_late(self) -> bool:
        """True once the time that was given is over, or nobody waits any more."""
        return self.is_hurried or time.monotonic() >= self._end_s

    @property
    def is_hurried(self) -> bool:
        """True once nobody waits for the end any more."""
        return self._hurried.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Begin the end, or join the one under way; return its outcome, now and later.

        Whoever gets an exception calls `wait_hurried` next.
        """
        is_second = self._is_asked_for
        self._ask_for(timeout_s)
        if is_second and self._is_hurried_by_second:
            self._hurry()
        self._wait_for_end(math.inf)
        if self._task is None:
            return False  # the I/O thread had ended before this began
        if self._task.cancelled():
            raise concurrent.futures.CancelledError
        return self._task.result()

    def wait_hurried(self) -> None:
        """Hurry the end and wait for it: after an exception, which the caller raises again."""
        self.hurry()
        self._wait_for_end(_HURRIED_S)

    def _wait_for_end(self, timeout_s: float) -> None:
        end, waiter = time.monotonic() + timeout_s, NativeEvent()
        self._waiters.append(waiter)
        while not self._is_over and (left_s := end - time.monotonic()) > 0:
            waiter.wait(min(left_s, SIGNAL_CHECK_S))

    def hurry(self) -> None:
        """End the wait of the end; any thread.

        An end that has not begun begins now, because the thread that is about to begin it would
        wait for as long as it was told before.
        """
        self._ask_for(0.0)
        self._hurry()

    def left_s(self, part: float = 1.0) -> float:
        """Return the time that is left of what was given, or a part of it; in any case enough for
        a broker that answers."""
        return max((self._end_s - time.monotonic()) * part, ANSWER_S)

    async def unless_hurried(self, work: Awaitable[object], timeout_s: float | None = None) -> bool:
        """Do a part of the end; False if it took too long, or nobody waits any more.

        Args: timeout_s: None: what is left.
        """
        if timeout_s is None:
            timeout_s = self.left_s()
        # A task also of a future: of a `gather` that is cancelled, nobody would take the error.
        task = asyncio.ensure_future(_awaited(work))
        hurried = asyncio.ensure_future(self._hurried.wait())
        try:
            await asyncio.wait(
                (task, hurried), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            hurried.cancel()
        if not task.done():
            task.cancel()  # not awaited: the caller may still tell what was left
            return False
        task.result()
        return True

    def _ask_for(self, timeout_s: float) -> None:
        # Without a lock, for which the caller's event loop would wait while another thread asks.
        self._is_asked_for = True
        if self._task is not None:
            return
        # Asked for again by each caller until it has begun, which the I/O thread does once: an
        # exception may come before a caller can note that it has asked.
        try:
            self._runtime.post(self._begin, timeout_s)
        except RuntimeError:  # the thread has ended: an exception came before this began
            self._is_over = True

    def _begin(self, timeout_s: float) -> None:
        if self._task is None:
            self._end_s = time.monotonic() + timeout_s
            self._task = self._runtime.loop.create_task(self._work(timeout_s), name="close")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[bool]) -> None:
        if not task.cancelled():
            task.exception()  # seen: nobody may be left to raise it to
        self._is_over = True
        for waiter in self._waiters:
            waiter.set()

    def _hurry(self) -> None:
        if not self._is_over:
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._runtime.post(self._hurried.set)


async def cancelled(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks and return when they have ended; `Runtime` has logged an error of one."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
