"""Context managers for objects with `close`, or with `start` and `close`, plain or coroutines, and
the error of who uses them before or after.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ordermq.errors import StateError
from ordermq.forking import ProcessBound


def not_running(kind: str, group: str, *, was_closed: bool) -> StateError:
    """Return the error of a call that a client cannot serve, with what to do about it.

    Args: kind: "producer" or "consumer".
    """
    remedy = (
        "it was closed; create a new one"
        if was_closed
        else "call start(), or use it in a `with` or `async with` block"
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

    def start(self) -> object:
        """Begin to work."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self


class AsyncStarting(ProcessBound):
    """Base of classes for `async with`, whose `start` and `close` are coroutines."""

    async def start(self) -> object:
        """Begin to work."""
        raise NotImplementedError

    async def close(self) -> object:
        """Release everything."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
