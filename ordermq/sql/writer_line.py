"""A line of the transactions of one store that write to a SQLite file, first come, first served.

SQLite has one writer at a time, and those that wait have no order: each looks again after a pause
of up to 100 ms, and whoever has just written is there first. So the queues of a backlog would
starve the others of the same process. Other processes wait as ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from sqlalchemy.util import await_only

from ordermq.threads import NativeEvent, RLock

# A wait looks again after so long: an exception that a signal handler raises in `Turn.end` may come
# between the removal and the wake.
_LOOK_AGAIN_S = 0.5


class Event(Protocol):
    """An event that is waited for by one transaction."""

    def set(self) -> None:
        """Let the wait return; from any thread."""

    def wait(self, timeout_s: float, /) -> object:
        """Return once set, or after the time."""


class LoopEvent:
    """An event for greenlets of SQLAlchemy's: the event loop goes on meanwhile."""

    __slots__ = ("_event", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            self._loop.call_soon_threadsafe(self._event.set)

    def wait(self, timeout_s: float, /) -> None:
        with contextlib.suppress(TimeoutError):
            await_only(asyncio.wait_for(self._event.wait(), timeout_s))


class WriterLine:
    """The line of one store.

    Args:
        make_event: of the store's kind.
    Attributes:
        timeout_s: how long a transaction waits here at most. Then it tries SQLite itself, which
            says that the file is locked.
    """

    def __init__(self, make_event: Callable[[], Event] = NativeEvent) -> None:
        self.timeout_s = 5.0  # that of Python's sqlite3
        self.make_event = make_event
        # Reentrant: a collection of garbage, which ends turns that were left, may begin anywhere.
        self._lock = RLock()
        self._events: deque[Event] = deque()  # of the turn that writes, and of those that wait

    def __len__(self) -> int:
        return len(self._events)

    def take(self) -> Turn:
        """Return a turn once it has come, or after the time."""
        turn = Turn(self)
        try:
            end_s = time.monotonic() + self.timeout_s
            while not self.is_first(turn.event) and (left_s := end_s - time.monotonic()) > 0:
                turn.event.wait(min(left_s, _LOOK_AGAIN_S))
        except BaseException:
            turn.end()
            raise
        return turn

    def is_first(self, event: Event) -> bool:
        with self._lock:
            return self._events[0] is event

    def join(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)

    def leave(self, event: Event) -> None:
        """Leave the line; the next one is woken. A second call does nothing."""
        with self._lock:
            with contextlib.suppress(ValueError):
                self._events.remove(event)
            if self._events:
                self._events[0].set()


class Turn:
    """A place in the line, for one transaction; it ends with the object at the latest."""

    __slots__ = ("_line", "event")

    def __init__(self, line: WriterLine) -> None:
        self._line = line
        self.event = line.make_event()
        line.join(self.event)

    def end(self) -> None:
        """Let the next transaction begin; a second call does nothing."""
        self._line.leave(self.event)

    def __del__(self) -> None:
        # It is of a call that was interrupted between its begin and its end.
        if hasattr(self, "event"):
            self.end()


class NoLine:
    """The line of a database whose transactions write side by side: each has its turn at once."""

    timeout_s = 0.0

    def take(self) -> NoTurn:
        return _NO_TURN


class NoTurn:
    """A turn that nobody waits behind."""

    def end(self) -> None:
        """Nothing waits."""


_NO_TURN = NoTurn()
