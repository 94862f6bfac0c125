"""BackgroundWriter: writes for those who must not wait for a reader, a disk or a log handler.

An observer that blocks would stop what it observes: a supervisor whose output nobody reads, an I/O
thread whose log handler hangs. They hand what they write to a thread here. What it cannot write in
time waits in a bounded queue; what finds no room is dropped and counted.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


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
        self._reset()
        _writers.add(self)

    def put(self, item: _T, size: int = 1) -> bool:
        """Have an item written, and return at once; False if there was no room: it is dropped.

        Raises: RuntimeError: a thread cannot be started.
        """
        with self._changed:
            # An empty queue takes an item of any size.
            if self._items and self._size + size > self._limit:
                self.dropped += 1
                return False
            self._items.append((item, size))
            self._size += size
            self._count += 1
            if self._thread is not None:
                self._changed.notify_all()
                return True
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except BaseException:
                self._items.pop()
                self._size -= size
                self._count -= 1
                raise
            self._thread = thread
            return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything put so far is written; return False if it took too long."""
        with self._changed:
            until = self._count
            return self._changed.wait_for(lambda: self._written >= until, timeout_s)

    def end_idling(self) -> None:
        """End the thread once nothing waits, as its owner closes; a later item starts another."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def waiting(self) -> int:
        """Return the sum of the sizes of what is not written yet."""
        return self._size

    def is_own_thread(self) -> bool:
        """Return whether the caller is `write` itself, which must not wait for its own end."""
        return threading.current_thread() is self._thread

    def _reset(self) -> None:
        # Reentrant, because a finalizer that runs inside may log.
        self._changed = threading.Condition(threading.RLock())
        self._items: deque[tuple[_T, int]] = deque()
        self._size = 0
        self._count = 0
        self._written = 0
        self._thread = None

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._items and not self._is_ended:
                    self._changed.wait_for(lambda: self._items or self._is_ended, self._idle_s)
                if not self._items:
                    self._thread = None
                    return
                # It stays in the queue until it is written: what blocks takes room, too.
                item, size = self._items[0]
            try:
                self._write(item)
            finally:
                with self._changed:
                    self._items.popleft()
                    self._size -= size
                    self._written += 1
                    self._changed.notify_all()


_writers: weakref.WeakSet[BackgroundWriter[Any]] = weakref.WeakSet()


def _forget_threads() -> None:
    # The child has neither the thread nor whoever held the lock at the fork.
    for writer in list(_writers):
        writer._reset()


os.register_at_fork(after_in_child=_forget_threads)
