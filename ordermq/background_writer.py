"""BackgroundWriter: writes for those who must not wait for a reader, a disk or a log handler.

An observer that blocks would stop what it observes: a supervisor whose output nobody reads, an I/O
thread whose log handler hangs. They hand what they write to a thread here. What it cannot write in
time waits in a bounded queue; what finds no room is dropped and counted.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ordermq.threads import NativeEvent, RLock, start_aside

_T = TypeVar("_T")
_START_S = 0.1  # a thread that does not run after this time is started again


class BackgroundWriter(Generic[_T]):
    """Writes items in order on a thread of its own, which lives only while there is work.

    Args:
        name: of the thread.
        write: writes one item; it may block, and must not raise.
        limit: the sum of the sizes of the items that may wait.
        idle_s: how long the thread waits for more before it ends. 0 leaves no thread behind for
            others to see or to fork beside.

    Any thread may call. A forked child begins with an empty queue: its parent writes what waits.
    """

    def __init__(
        self, name: str, write: Callable[[_T], object], limit: int, *, idle_s: float = 0.0
    ) -> None:
        self.dropped = 0  # items, since the start
        self._name = name
        self._write = write
        self._limit = limit
        self._idle_s = idle_s
        self._is_ended = False
        self._thread: threading.Thread | None = None
        self._size = 0
        self._expected_s = 0.0  # on the monotonic clock: the thread runs, or another one is started
        self._wake: NativeEvent | None = None  # of the thread
        self._reset()
        _writers.add(self)

    # Callers may be interrupted anywhere (docs/internals/semantics.md#asynchronous-exceptions).
    # They take a plain lock by `with`, wait and wake by events that have no lock to leave locked,
    # and what they leave half done costs no more than their own item.

    def put(self, item: _T, size: int = 1) -> bool:
        """Have an item written, and return at once; False if there was no room: it is dropped.

        Raises: RuntimeError: a thread cannot be started.
        """
        with self._lock:
            # An empty queue takes an item of any size.
            if self._items and self._size + size > self._limit:
                self.dropped += 1
                return False
            self._size += size
            self._items.append((item, size))
            if self._thread is not None and self._wake is not None:
                self._wake.set()
                # One whose start an exception has ended never runs; if it does after all, it finds
                # that it is not the one.
                if self._thread.is_alive() or time.monotonic() < self._expected_s:
                    return True
            self._wake = wake = NativeEvent()
            self._thread = threading.Thread(
                target=self._run, args=(wake,), name=self._name, daemon=True
            )
            self._expected_s = time.monotonic() + _START_S
            try:
                start_aside(self._thread)
            except BaseException:
                self._thread = None
                self._items.pop()
                raise
            return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything put so far is written; return False if it took too long."""
        end = time.monotonic() + timeout_s
        written = NativeEvent()
        with self._lock:
            if not self._items:
                return True
            last = self._items[-1]
            self._flushing.append((last, written))
        while self._is_waiting(last) and (left_s := end - time.monotonic()) > 0:
            written.wait(left_s)
        return not self._is_waiting(last)

    def _is_waiting(self, wanted: tuple[_T, int]) -> bool:
        with self._lock:
            return any(item is wanted for item in self._items)

    def end_idling(self) -> None:
        """End the thread once nothing waits, as its owner closes; a later item starts another."""
        self._is_ended = True
        if (wake := self._wake) is not None:
            wake.set()

    def waiting(self) -> int:
        """Return the sum of the sizes of what is not written yet."""
        return self._size

    def is_own_thread(self) -> bool:
        """Return whether the caller is `write` itself, which must not wait for its own end."""
        return threading.current_thread() is self._thread

    def _reset(self) -> None:
        # Reentrant, because a finalizer that runs inside may log.
        self._lock = RLock()
        self._wake = None
        self._items: deque[tuple[_T, int]] = deque()
        self._flushing: list[tuple[tuple[_T, int], NativeEvent]] = []
        self._size = 0
        self._expected_s = 0.0
        self._thread = None

    def _run(self, wake: NativeEvent) -> None:
        while (item := self._next(wake)) is not None:
            try:
                self._write(item[0])
            finally:
                with self._lock:
                    self._items.popleft()
                    # Whatever an exception in `put` has left counted is forgotten once none waits.
                    self._size = self._size - item[1] if self._items else 0
                    told = [each for each in self._flushing if each[0] is item]
                    self._flushing = [each for each in self._flushing if each[0] is not item]
                for _, written in told:
                    written.set()

    def _next(self, wake: NativeEvent) -> tuple[_T, int] | None:
        """Return the next item; None once the thread is to end."""
        end = time.monotonic() + self._idle_s
        while True:
            with self._lock:
                if self._thread is not threading.current_thread():
                    return None  # another one was started
                if self._items:
                    # It stays in the queue until it is written: what blocks takes room, too.
                    return self._items[0]
                left_s = end - time.monotonic()
                if self._is_ended or left_s <= 0:
                    self._thread = None
                    return None
            wake.wait(left_s)


_writers: weakref.WeakSet[BackgroundWriter[Any]] = weakref.WeakSet()


def _forget_threads() -> None:
    # The child has neither the thread nor whoever held the lock at the fork.
    for writer in list(_writers):
        writer._reset()


os.register_at_fork(after_in_child=_forget_threads)
