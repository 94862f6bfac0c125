"""Clocks: time is an argument everywhere, so that tests can move it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from ordermq.threads import Lock

# CLOCK_BOOTTIME also counts while the host sleeps, so a lease ages during a suspend
# (docs/internals/semantics.md#process-queue); where it is missing, the monotonic clock is the
# nearest thing.
CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

MINUTE_MS = 60_000


class Clock(Protocol):
    """Source of time of clients and broker."""

    def now_ms(self) -> int:
        """Return milliseconds of a monotonic clock; only differences have a meaning."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, for timestamps only; it may jump."""

    async def sleep_ms(self, delay_ms: int) -> None:
        """Return once `delay_ms` have passed on this clock."""


class SystemClock:
    """Time of the operating system."""

    def now_ms(self) -> int:
        return time.clock_gettime_ns(CLOCK_ID) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_ms(self, delay_ms: int) -> None:
        await asyncio.sleep(max(delay_ms, 0) / 1000)


def system_clock_id(clock: Clock) -> int | None:
    """Return the system's clock that `clock.now_ms` reads, for native code; None: a time of its
    own.
    """
    # By the method, not by the class: one that derives from SystemClock may add to its time.
    is_system = getattr(clock.now_ms, "__func__", None) is SystemClock.now_ms
    return CLOCK_ID if is_system else None


class ManualClock:
    """Clock for tests that moves only by `advance`; from any thread.

    Args:
        now_ms: start of the monotonic time.
        wall_ms: start of the wall time, ms since 1970.
    """

    def __init__(self, now_ms: int = 1_000_000, wall_ms: int = 1_700_000_000_000) -> None:
        self._lock = Lock()
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._order = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        return self._now_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    async def sleep_ms(self, delay_ms: int) -> None:
        if delay_ms <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        with self._lock:
            entry = (self._now_ms + delay_ms, next(self._order), loop, woken)
            heapq.heappush(self._sleepers, entry)
        await woken

    def advance(self, delta_ms: int) -> None:
        """Move both times forward by `delta_ms` and wake every sleeper that is due."""
        if delta_ms < 0:
            raise ValueError("a monotonic clock cannot go back: use jump_wall")
        due: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        with self._lock:
            self._now_ms += delta_ms
            self._wall_ms += delta_ms
            while self._sleepers and self._sleepers[0][0] <= self._now_ms:
                _, _, loop, woken = heapq.heappop(self._sleepers)
                due.append((loop, woken))
        for loop, woken in due:
            # Sleepers belong to several loops, and a test may have closed one of them already.
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, woken)

    def jump_wall(self, delta_ms: int) -> None:
        """Move only the wall time, forwards or backwards, as a change of the system clock does."""
        self._wall_ms += delta_ms


class SteadyWall:
    """Wall time as it was when this object was made, continued by the monotonic clock.

    It never jumps. A delay is measured by it, so that a change of the system's clock makes none
    longer or shorter.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = clock.wall_ms() - clock.now_ms()

    def ms(self) -> int:
        """Return milliseconds since 1970."""
        return self._clock.now_ms() + self._ahead_ms


def growing_pause_ms(first_ms: int, doublings: int, longest_ms: int) -> int:
    """Return a pause that has been doubled so often: at most `longest_ms`, at least `first_ms`."""
    # A shift by as much as an outage has tries would make numbers of thousands of digits.
    return min(first_ms << min(doublings, 20), max(first_ms, longest_ms))


async def poll_until(
    check: Callable[[], Awaitable[bool]], clock: Clock, checks: int, pause_ms: int
) -> bool:
    """Check so many times, with pauses, for what nothing tells of; return True once it is so."""
    for _ in range(checks):
        if await check():
            return True
        await clock.sleep_ms(pause_ms)
    return False


async def wait_until_set(event: asyncio.Event, clock: Clock, timeout_ms: int) -> bool:
    """Wait for `event`, at most `timeout_ms` of the clock; return True if it is set."""
    if event.is_set():
        return True
    # Two tasks, not asyncio.wait_for: only `clock` may measure the time, or a test that moves the
    # clock would wait for real seconds.
    sleeper = asyncio.ensure_future(clock.sleep_ms(timeout_ms))
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((sleeper, waiter), return_when=asyncio.FIRST_COMPLETED)
        return event.is_set()
    finally:
        # Awaited too: a cancelled task that nobody awaits is reported by asyncio when it is freed.
        for task in (sleeper, waiter):
            task.cancel()
        await asyncio.gather(sleeper, waiter, return_exceptions=True)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():  # the sleeper may have been cancelled between due and now
        woken.set_result(None)
