"""Threads, events that wake them, and locks, where an exception may come at any place.

Python's own events are Python code under locks. Whoever sets a `threading.Event` waits for the
thread that waits, and an exception that a signal handler raises in such a wait may come out as a
RuntimeError.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ordermq.errors import NoThread

if sys.version_info[:2] == (3, 14):
    # This Python looks for signals between the acquisition by `with` and the block. What a handler
    # raises there leaves the lock held for ever (issue 148874 of CPython; not so in 3.15).
    class Lock:
        """A `threading.Lock` that no exception leaves held: it comes before, or in the block."""

        __slots__ = ("__exit__", "_takes", "acquire", "locked", "release")

        def __init__(self) -> None:
            self._wrap(threading.Lock())

        def _wrap(self, lock: threading.Lock | threading.RLock) -> None:
            # Python looks for signals behind calls, but not behind `in`, for which the iterator
            # calls `acquire`.
            self._takes = iter(lock.acquire, None)
            # Native, as Python looks for signals at the beginning of a function of its own, too.
            self.__exit__ = lock.__exit__
            self.acquire = lock.acquire
            self.locked = lock.locked
            self.release = lock.release

        def __enter__(self) -> bool:
            return True in self._takes

    class RLock(Lock):
        """A `threading.RLock`; likewise."""

        __slots__ = ()

        def __init__(self) -> None:
            self._wrap(threading.RLock())

else:
    Lock = threading.Lock
    RLock = threading.RLock


# How long a wait of the main thread may be, in seconds. The kernel may deliver a signal on any
# thread, such as one that is just starting another, or in the instant before the wait. Then nothing
# interrupts the wait, and Python calls the handler only after it.
SIGNAL_CHECK_S = 0.5
_CHECKS_OF_A_START = 10


class NativeEvent:
    """An event that one thread waits for, and that any thread sets without waiting itself."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Let the current wait return, or the next one; from any thread."""
        with contextlib.suppress(RuntimeError):  # it is set
            self._lock.release()

    def wait(self, timeout_s: float = -1) -> bool:
        """Return True once set, or False after the time; the caller checks its condition again."""
        return self._lock.acquire(timeout=timeout_s)


def _start_plainly(work: Callable[[], None]) -> None:
    try:
        _thread.start_new_thread(work, ())
    except RuntimeError as error:
        if type(error) is RuntimeError:  # else of a signal handler
            raise _no_thread(error) from error
        raise


def _no_thread(error: RuntimeError) -> NoThread:
    from ordermq.errors import NoThread  # here: `import ordermq` loads next to nothing

    return NoThread(
        f"{error}: end threads of this process, or raise the limit of memory or of processes "
        "(`ulimit -u`, `pids.max` of a container)"
    )


def start_thread(thread: threading.Thread) -> None:
    """Start a thread and wait until it runs; an exception in the wait is raised as it came.

    By a thread in between: after an exception in `Thread.start` Python releases a lock that it has
    not taken again, raises a RuntimeError, and may end the new thread by another one. Either of the
    two may end before its first line, as without memory, and nobody is told.

    Raises: NoThread: the system gives none, or it did not begin within 5 s, and never will.
    """
    started, errors = NativeEvent(), list[BaseException]()
    begins = threading.Lock()  # taken once: by the thread, or by who gives it up

    def run() -> None:
        del thread.run
        if begins.acquire(blocking=False):
            thread.run()

    def start() -> None:
        try:
            thread.start()
        except RuntimeError as error:  # no handler's: signals come to the main thread
            errors.append(_no_thread(error))
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
        finally:
            started.set()

    thread.run = run  # type: ignore[method-assign]
    _start_plainly(start)
    checks = 0
    while not started.wait(SIGNAL_CHECK_S):
        checks += 1
        if begins.locked():
            return
        if checks >= _CHECKS_OF_A_START and begins.acquire(blocking=False):
            raise _no_thread(RuntimeError(f"the thread {thread.name} did not begin"))
    if errors:
        raise errors[0]


def wait_for_thread(event: NativeEvent, thread: threading.Thread) -> None:
    """Wait until a started thread has set an event.

    Raises: StateError: it has ended without.
    """
    while not event.wait(SIGNAL_CHECK_S):
        # What it set as the last thing it did counts.
        if not thread.is_alive() and not event.wait(0):
            from ordermq.errors import StateError  # as in `_no_thread`

            raise StateError(
                f"the thread {thread.name} ended at once, by the exception that "
                "threading.excepthook told of: a function of threading.settrace or "
                "threading.setprofile that raises?"
            )


def start_aside(thread: threading.Thread) -> None:
    """Start a thread, and do not wait until it runs: an exception may come to the caller.

    By a thread in between, which ends at once. CPython takes a thread that is being started for
    its parent: an exception that is sent to that one may end it before it runs, and `Thread.start`
    would wait for it for ever. So it may never run, but nobody hangs.

    Raises: NoThread
    """
    _start_plainly(thread.start)
