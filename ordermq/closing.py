"""Context managers for objects with `close`, or with `start` and `close`, plain or coroutines; the
error of who uses them before or after, and the warning of who never closes them.
"""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from ordermq.errors import StateError
from ordermq.forking import ProcessBound

_T = TypeVar("_T")
_log = logging.getLogger("ordermq.client")


# What the end of the program costs, by what was not closed. Weak keys: a producer that nobody holds
# any more is as good as closed.
_losses: weakref.WeakKeyDictionary[Any, Callable[[Any], str]] = weakref.WeakKeyDictionary()
CLOSED_BY_ITSELF = "close() in a listener or callback would wait for itself: call stop() there"
_LAST = -1_000_000  # the priority of a finalizer of multiprocessing: users' own come first
_is_forked = False
_is_child_watched = False


def _begin_in_child() -> None:
    global _is_forked, _is_child_watched
    _losses.clear()  # they are the parent's to close
    _is_forked, _is_child_watched = True, False


os.register_at_fork(after_in_child=_begin_in_child)


def note_open(thing: _T, loss: Callable[[_T], str]) -> None:
    """Warn at the end of the program, unless `note_closed` comes first.

    Args: loss: a function of `thing` that returns what is lost then; "" for nothing.
    """
    _losses[thing] = loss
    _watch_end_of_child()


def _watch_end_of_child() -> None:
    """Warn at the end of a process of multiprocessing, also where it runs no exit handlers.

    Those made by fork or forkserver, such as the workers of `concurrent.futures`, run none before
    Python 3.13, and then only those that were registered in themselves. All run the finalizers of
    multiprocessing. A process made by spawn runs both, the finalizers before the user's handlers.
    """
    global _is_child_watched
    processes = sys.modules.get("multiprocessing.process")
    if _is_child_watched or processes is None or processes.parent_process() is None:
        return
    _is_child_watched = True
    if _is_forked or "--multiprocessing-fork" not in sys.orig_argv:  # so spawn names its children
        from multiprocessing.util import Finalize

        Finalize(None, warn_of_forgotten, exitpriority=_LAST)


def note_closed(thing: object) -> None:
    """Note that its user has closed it; whether that succeeded, `close` says itself."""
    _losses.pop(thing, None)


def warn_of_forgotten() -> None:
    """Log a WARNING for each that was left open, at the end of the program."""
    for thing, loss in list(_losses.items()):
        if text := loss(thing):
            _log.warning("the program ended without close(): %s; use `with`, or call close()", text)
    _losses.clear()


def not_running(kind: str, group: str, *, was_closed: bool) -> StateError:
    """Return the error of a call that a client cannot serve, with what to do about it.

    Args: kind: "producer" or "consumer".
    """
    remedy = (
        "it was closed; create a new one"
        if was_closed
        else "call start() (asyncio: await start()), or use it in a `with` or `async with` block"
    )
    return StateError(f"the {kind} is not running: {remedy}", group=group)


class Closing(ProcessBound):
    """Base of classes whose `close` is called at the end of a `with` block."""

    def close(self) -> object:
        """Release everything."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Starting(Closing):
    """Base of classes whose `start` is also called, at the beginning of the block."""

    def start(self) -> Self:
        """Begin to work; return self, so that `client = Client(...).start()` is one line."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self.start()


class AsyncStarting(ProcessBound):
    """Base of classes for `async with`, whose `start` and `close` are coroutines."""

    async def start(self) -> Self:
        """Begin to work; return self."""
        raise NotImplementedError

    async def close(self) -> object:
        """Release everything."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
