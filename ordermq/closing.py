"""Context managers for objects with `close`, or with `start` and `close`, plain or coroutines; the
error of who uses them before or after, and the warning of who never closes them.
"""

from __future__ import annotations

import logging
import os
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
os.register_at_fork(after_in_child=_losses.clear)  # they are the parent's to close


def note_open(thing: _T, loss: Callable[[_T], str]) -> None:
    """Warn at the end of the program, unless `note_closed` comes first.

    Args: loss: a function of `thing` that returns what is lost then; "" for nothing.
    """
    _losses[thing] = loss


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
