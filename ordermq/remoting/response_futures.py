"""The requests of one connection that wait for an answer, and until when."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from ordermq.clock import Clock
from ordermq.remoting.command import Command

_TICK_MS = 100  # how late a time-out may be noticed


class ResponseFuture:
    """Whoever waits for an answer; told on the loop's thread, once a request."""

    __slots__ = ("code", "deadline_ms", "heard_bytes")

    code: int  # of the request
    deadline_ms: int
    heard_bytes: int  # by the connection, when the request left

    @property
    def is_over(self) -> bool:
        """Nobody waits any more."""
        raise NotImplementedError

    def answered(self, command: Command) -> None:
        """The answer came, whatever its code; raises nothing."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """None will come; the errors are those of `Connection.request`."""
        raise NotImplementedError


class ResponseFutures:
    """Who waits, by opaque; on the loop's thread, but for `add_from_outside`.

    Args:
        lock: of the socket; held, no other thread asks.
        on_tick: called with the time while anybody waits; `due` has whose time is up.
    """

    def __init__(self, clock: Clock, lock: threading.Lock, on_tick: Callable[[int], None]) -> None:
        self._clock = clock
        self._lock = lock
        self._on_tick = on_tick
        self._waiting: dict[int, ResponseFuture] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._was_added = False  # since the last tick

    @property
    def is_ticking(self) -> bool:
        """Whether somebody looks after time-outs now."""
        return self._ticking is not None

    def add(self, opaque: int, waiting: ResponseFuture) -> None:
        self._waiting[opaque] = waiting
        self._was_added = True
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().create_task(self._tick())

    def add_from_outside(self, opaque: int, waiting: ResponseFuture) -> None:
        """`add` on another thread, with the lock held, while it `is_ticking`."""
        self._waiting[opaque] = waiting
        self._was_added = True

    def pop(self, opaque: int) -> ResponseFuture | None:
        """Who waits for this answer; None if nobody does any more."""
        return self._waiting.pop(opaque, None)

    def due(self, now_ms: int) -> list[ResponseFuture]:
        """Remove and return whose time is up."""
        waiting = list(self._waiting.items())  # in one go: other threads may add to it
        found = [opaque for opaque, item in waiting if item.deadline_ms <= now_ms]
        return [self._waiting.pop(opaque) for opaque in found]

    def end(self) -> list[ResponseFuture]:
        """Remove and return all; nobody asks any more."""
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        left, self._waiting = list(self._waiting.values()), {}
        return left

    async def _tick(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while self._goes_on():
                await self._clock.sleep_ms(_TICK_MS)
                self._on_tick(self._clock.now_ms())

    def _goes_on(self) -> bool:
        with self._lock:  # another thread may be asking
            if not self._waiting and not self._was_added:
                self._ticking = None
            self._was_added = False
            return self._ticking is not None
