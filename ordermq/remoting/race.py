"""Attempts at one thing that start one after the other, not waiting for the ones before."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TypeVar

from ordermq.clock import Clock, wait_until_set

_T = TypeVar("_T")
# The delay that RFC 8305 (happy eyeballs) recommends: longer than a round trip to a server that
# works, and hardly noticed where the first one does not answer.
NEXT_AFTER_MS = 250


async def staggered(
    attempts: Iterable[Callable[[], asyncio.Task[_T]]], clock: Clock, wake: asyncio.Event
) -> AsyncGenerator[list[asyncio.Task[_T]], None]:
    """Start each attempt when the one before has ended, or after `NEXT_AFTER_MS`.

    Args:
        wake: set when an attempt has ended; set it to be given the next look at once.
    Yields: the attempts that have ended since the last look, perhaps none. The caller owns them:
        who stops early cancels what is left, or lets it run on.
    """
    untried, running = deque(attempts), list[asyncio.Task[_T]]()
    while untried or running:
        if untried:
            task = untried.popleft()()
            task.add_done_callback(lambda _: wake.set())
            running.append(task)
        if untried:
            await wait_until_set(wake, clock, NEXT_AFTER_MS)
        else:
            await wake.wait()
        wake.clear()
        ended = [task for task in running if task.done()]
        running = [task for task in running if task not in ended]
        yield ended
