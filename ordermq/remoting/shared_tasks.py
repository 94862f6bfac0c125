"""Work of one event loop that several callers wait for together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Generic, TypeVar

_K = TypeVar("_K")
_T = TypeVar("_T")


class SharedTasks(Generic[_K, _T]):
    """Work by key that is begun once for all who ask for it while it goes on."""

    def __init__(self) -> None:
        self._tasks: dict[_K, asyncio.Future[_T]] = {}

    async def result(self, key: _K, begin: Callable[[], asyncio.Future[_T]]) -> _T:
        """Return what `task` comes to; a caller that is cancelled leaves it to the others."""
        return await asyncio.shield(self.task(key, begin))

    def task(self, key: _K, begin: Callable[[], asyncio.Future[_T]]) -> asyncio.Future[_T]:
        """Return the work under way; begin it if there is none."""
        task = self._tasks.get(key)
        # Done, but its callback has not run yet: what it came to may be over again, and whoever
        # asks until it is not would never let the loop go on.
        if task is None or task.done():
            task = self._tasks[key] = begin()
            task.add_done_callback(partial(self._ended, key))
        return task

    def __contains__(self, key: _K) -> bool:
        task = self._tasks.get(key)
        return task is not None and not task.done()

    @property
    def running(self) -> Collection[asyncio.Future[_T]]:
        """Return all work under way."""
        return list(self._tasks.values())

    def _ended(self, key: _K, task: asyncio.Future[_T]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
