"""Requests of one connection that wait for a response, with their deadlines.

One task per connection checks all deadlines every 100 ms while requests are pending, instead of
one timer per request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ordermq.clock import Clock
from ordermq.remoting.command import Command
from ordermq.remoting.time_limit import sleep_and_read
from ordermq.threads import Lock

if TYPE_CHECKING:
    from ordermq.remoting.reading import CallersAnswer

_TICK_MS = 100  # a time-out is noticed this much late at most


class ResponseFuture:
    """A pending response (RocketMQ's ResponseFuture); completed once, on the loop's thread.

    A base class and not an asyncio future: threads wait for theirs without a loop.
    """

    __slots__ = ("callers", "code", "deadline_ms", "heard_bytes", "is_asked")

    code: int  # of the request
    deadline_ms: int
    heard_bytes: int  # received on the connection when the request was sent
    is_awaited: bool = False  # the thread that asks waits next
    is_asked: bool  # set by `ask` in one step with the write: an answer or an error will follow
    callers: CallersAnswer | None  # set by `ask`: what that thread waits by; None if by an event

    @property
    def is_over(self) -> bool:
        """True if nobody waits any more."""
        raise NotImplementedError

    def answered(self, command: Command) -> None:
        """Take the response, whatever its code; must not raise."""
        raise NotImplementedError

    def answered_on_caller(self, command: Command) -> bool:
        """Take the response on another thread, the one that waited for it.

        Returns: False to get it by `answered` instead.
        """
        return False

    def stored_on_caller(self, message_ids: str, queue_id: int, queue_offset: int) -> bool:
        """Take the fields of a response to a send, as `answered_on_caller` takes all of it."""
        return False

    def failed(self, error: Exception) -> None:
        """Take the error instead; one of those of `Connection.request`. Must not raise."""
        raise NotImplementedError


class HasDeadline(Protocol):
    """Item that waits until `deadline_ms` on the clock."""

    deadline_ms: int


_W = TypeVar("_W", bound=HasDeadline)


class ResponseFutures(Generic[_W]):
    """Pending responses by number, as the opaque; on the loop's thread, except `add_on_caller`.

    Args:
        lock: the connection's; while it is held, no other thread adds a request.
        on_tick: called with the time every 100 ms while requests are pending; it fails those
            that `due` returns.
    """

    def __init__(self, clock: Clock, lock: Lock, on_tick: Callable[[int], None]) -> None:
        self._clock = clock
        self._lock = lock
        self._on_tick = on_tick
        self._waiting: dict[int, _W] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._was_added = False  # since the last check

    @property
    def is_ticking(self) -> bool:
        """True while the task that checks deadlines runs."""
        return self._ticking is not None

    def add(self, opaque: int, waiting: _W) -> None:
        """Add a request; start the deadline check if none runs."""
        self._waiting[opaque] = waiting
        self._was_added = True
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().create_task(self._tick())

    def add_on_caller(self, opaque: int, waiting: _W) -> None:
        """Add a request on another thread, with the lock held and while `is_ticking`."""
        self._waiting[opaque] = waiting
        self._was_added = True

    def look(self, opaque: int) -> _W | None:
        """Return the request with this opaque, without removing it; any thread."""
        return self._waiting.get(opaque)

    def pop(self, opaque: int) -> _W | None:
        """Remove and return the request with this opaque; None if it is no longer pending."""
        return self._waiting.pop(opaque, None)

    def due(self, now_ms: int) -> list[_W]:
        """Remove and return the requests whose deadline has passed."""
        waiting = list(self._waiting.items())  # one atomic call: other threads add meanwhile
        found = [opaque for opaque, item in waiting if item.deadline_ms <= now_ms]
        return [self._waiting.pop(opaque) for opaque in found]

    def end(self) -> list[_W]:
        """Remove and return all requests; called when no thread adds any more."""
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        left, self._waiting = list(self._waiting.values()), {}
        return left

    async def _tick(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            # The task ends with the last request, so that an idle connection wakes nobody.
            while self._is_needed():
                # What came while the process stood still is read before anything is late.
                await sleep_and_read(self._clock, _TICK_MS)
                # A check that raises must not be the last one: nothing would time out any more.
                try:
                    self._on_tick(self._clock.now_ms())
                except Exception as error:  # noqa: BLE001 - reported to the loop's owner
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": "time-outs were not checked", "exception": error}
                    )

    def _is_needed(self) -> bool:
        # Under the lock: another thread may have tested `is_ticking` and be about to add its
        # request, which would then have no deadline. A request added and answered between two
        # checks keeps the task for one more round: sends in a row do not restart it each time.
        # No `with`, which waits; the loop's thread runs no signal handler.
        if not self._lock.acquire(blocking=False):
            return True
        try:
            if not self._waiting and not self._was_added:
                self._ticking = None
            self._was_added = False
            return self._ticking is not None
        finally:
            self._lock.release()
