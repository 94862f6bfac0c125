"""Time limits that end no attempt for time in which this process stood still.

A stopped or frozen process, a suspended machine, a callback that blocks the event loop: afterwards
the timers of that time are all due at once, before anybody has read what the servers sent meanwhile
(docs/internals/semantics.md#ordered-sends).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from ordermq.clock import Clock

_LATE_S = 0.1  # later than this, a timer does not mean what it says
# Within it the loop reads what has come, and tasks of a few steps take theirs.
_READ_S = 0.2
_MOST_PAUSES = 5  # of a loop that is always late


@contextlib.asynccontextmanager
async def time_limit(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError in the body once it has run for `seconds`, as `asyncio.timeout`.

    Time by which the event loop was late is given back, up to `seconds` in all.
    """
    loop = asyncio.get_running_loop()
    left = seconds
    timer: asyncio.TimerHandle
    async with asyncio.timeout(None) as limit:

        def end() -> None:
            nonlocal timer, left
            late = min(loop.time() - timer.when(), left)
            if late > _LATE_S:
                left -= late
                timer = loop.call_later(max(late, _READ_S), end)
            else:
                limit.reschedule(loop.time())

        timer = loop.call_later(seconds, end)
        try:
            yield
        finally:
            timer.cancel()


async def sleep_and_read(clock: Clock, delay_ms: int) -> None:
    """Sleep; if it took longer by far, return only after what has come meanwhile was read."""
    began_ms = clock.now_ms()
    await clock.sleep_ms(delay_ms)
    is_late = clock.now_ms() - began_ms > delay_ms + _LATE_S * 1_000
    loop, pauses = asyncio.get_running_loop(), 0
    while is_late and pauses < _MOST_PAUSES:
        began = loop.time()
        await asyncio.sleep(_READ_S)
        # Late again: the loop may have had no turn in which to read.
        is_late, pauses = loop.time() - began > _READ_S + _LATE_S, pauses + 1
