"""Waiting: the only place of the client that sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ordermq.clock import Clock


async def wait_until_set(event: asyncio.Event, clock: Clock, timeout_ms: int) -> bool:
    """Wait for `event`, at most `timeout_ms` of the clock; True if it is set."""
    if event.is_set():
        return True
    sleeper = asyncio.ensure_future(clock.sleep_ms(timeout_ms))
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((sleeper, waiter), return_when=asyncio.FIRST_COMPLETED)
        return event.is_set()
    finally:
        for task in (sleeper, waiter):
            task.cancel()
        await asyncio.gather(sleeper, waiter, return_exceptions=True)


async def repeat(
    action: Callable[[], Awaitable[None]], clock: Clock, interval_ms: Callable[[], int]
) -> None:
    """Run `action` after each interval, for ever; the interval is asked anew each time."""
    while True:
        await clock.sleep_ms(interval_ms())
        await action()


async def cancelled(*tasks: asyncio.Task[object] | None) -> None:
    """Cancel tasks and return when they have ended; an error of one was logged as it ended."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
