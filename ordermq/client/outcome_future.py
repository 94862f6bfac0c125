"""A future for callers on other threads that its setter never waits for."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from ordermq.threads import SIGNAL_CHECK_S, NativeEvent

if TYPE_CHECKING:
    from ordermq.client.runtime import Runtime

_T = TypeVar("_T")
_log = logging.getLogger("ordermq.producer")
_LOCKED_S, _LOCKED_MAX_S = 0.001, 1.0  # until a locked future is looked at again


class OutcomeFuture(concurrent.futures.Future[_T]):
    """An outcome that any thread may wait for, and that any thread sets without waiting.

    `concurrent.futures` is Python code under a lock. A signal handler that raises an exception
    while a thread waits for the outcome may leave that lock taken, and comes out of the wait as
    a RuntimeError. So waits are native here and take no lock, and who sets the outcome never waits
    for the lock, which callbacks and `concurrent.futures.wait` need.

    Args: runtime: the one whose I/O thread looks again at a future that was locked.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._outcomes: list[tuple[_T | None, BaseException | None]] = []  # the first one counts
        self._sleepers: list[NativeEvent] = []  # one for each waiting thread
        self._settling = 0  # ident of the thread that settles, under the lock

    def result(self, timeout: float | None = None) -> _T:
        result, error = self._waited_for(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del self, error  # else the traceback keeps this frame, and the frame the error
        return cast(_T, result)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        _, error = self._waited_for(timeout)
        if isinstance(error, concurrent.futures.CancelledError):
            raise error
        return error

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        if is_cancelled:
            self._wake_all(None, concurrent.futures.CancelledError())
        return is_cancelled

    def tell(self, result: _T | None, error: BaseException | None) -> None:
        """Set the result, or the error unless that is None; any thread, which does not wait."""
        self._wake_all(result, error)
        if error is not None:
            self._settle(partial(self.set_exception, error))
        else:
            self._settle(partial(self.set_result, cast(_T, result)))

    def tell_cancelled(self) -> None:
        """Say that nothing comes any more, as `cancel` does."""
        self._wake_all(None, concurrent.futures.CancelledError())
        self._settle(super().cancel)

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[_T]], object]) -> None:
        # Not a method of this future: it would hold itself.
        super().add_done_callback(partial(_call_back, self._runtime, fn))

    def done(self) -> bool:
        return bool(self._outcomes)

    def _settle(self, settle: Callable[[], object], wait_s: float = _LOCKED_S) -> None:
        # On the I/O thread, which runs no signal handler: none comes between a lock and its `try`.
        if not self._runtime.is_io_thread:
            try:
                self._runtime.post(self._settle, settle)
                return
            except RuntimeError:  # it has ended, so this thread holds up nobody else
                self._condition.acquire()
        elif not self._condition.acquire(blocking=False):
            later_s = min(2 * wait_s, _LOCKED_MAX_S)
            self._runtime.loop.call_later(wait_s, self._settle, settle, later_s)
            return
        self._settling = threading.get_ident()
        was_done = super().done()
        try:
            if not was_done:  # cancelled, or told before: a send that was interrupted tells twice
                settle()
            if self._state == "CANCELLED":
                self.set_running_or_notify_cancel()  # which tells `concurrent.futures.wait`
        finally:
            self._settling = 0
            self._condition.release()
        if not was_done:
            self._invoke_callbacks()

    def _waited_for(self, timeout_s: float | None) -> tuple[_T | None, BaseException | None]:
        """Return the result and the error once they are set, or raise TimeoutError.

        Raises: StateError: they are not set, and the caller is the I/O thread, which sets them.
        """
        if not self._outcomes and (timeout_s is None or timeout_s > 0):
            self._runtime.require_other_thread()
        end = None if timeout_s is None else time.monotonic() + timeout_s
        woken = NativeEvent()
        self._sleepers.append(woken)
        try:
            # Looked at behind the entry in the list: they are set before the list is read.
            while not self._outcomes:
                left_s = SIGNAL_CHECK_S if end is None else end - time.monotonic()
                if left_s <= 0:
                    raise concurrent.futures.TimeoutError
                woken.wait(min(left_s, SIGNAL_CHECK_S))
        finally:
            with contextlib.suppress(ValueError):
                self._sleepers.remove(woken)
        return self._outcomes[0]

    def _wake_all(self, result: _T | None, error: BaseException | None) -> None:
        self._outcomes.append((result, error))
        for sleeper in tuple(self._sleepers):
            sleeper.set()

    def _invoke_callbacks(self) -> None:
        # Not under the lock: a callback may wait for a thread that asks for the outcome.
        if self._settling != threading.get_ident():  # another one may have cancelled it
            super()._invoke_callbacks()  # type: ignore[misc]


def _call_back(
    runtime: Runtime,
    callback: Callable[[concurrent.futures.Future[_T]], object],
    future: concurrent.futures.Future[_T],
) -> None:
    try:
        callback(future)
    except BaseException as error:
        if isinstance(error, Exception) or not runtime.is_io_thread:
            raise
        # As of sys.exit(): whoever else waits for an answer of the same read would wait for ever.
        _log.exception("a callback of a send's future raised")
