"""An exception at a chosen line, as a signal may raise one anywhere."""

from __future__ import annotations

import _weakrefset
import contextlib
import gc
import linecache
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import ordermq

HOUSE = str(Path(ordermq.__file__).parent)
# Not in the test itself, and not where Python's own library would lose the exception (it drops what
# finalizers raise, and an OSError in `_write_to_self`) or a lock of its own (logging, imports). The
# finalizer of a socket that nobody closed calls `socket.__repr__` for its warning.
_NOT_IN = (
    str(Path(__file__).parent.parent),
    _weakrefset.__file__,
    logging.__file__,
    "<frozen importlib",
)
_NOT_AT = frozenset({"BaseSelectorEventLoop._write_to_self", "socket.__repr__"})


@contextlib.contextmanager
def quick_collections() -> Iterator[None]:
    """Have `gc.collect` look at what is made in the block only; also around a function.

    By the end of a whole run its process holds so much that each collection takes a third of a
    second, and a test that is interrupted at each place needs one behind each.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class InterruptedAt:
    """Raises `error` in this thread, before the `at`-th line of ours that runs in the block.

    Args: again: raise it once more, this many lines later; 0 for once.
    """

    def __init__(self, at: int, again: int = 0, error: type[BaseException] = KeyboardInterrupt):
        self._at = {at, at + again}
        self._error = error
        self._lines = 0
        self.raised = 0

    def __enter__(self) -> InterruptedAt:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(HOUSE):
            return None
        # Python handles signals at calls and jumps only. So not at a `with`, whose line comes again
        # between its block and `__exit__`, nor between the assignment and the `os.close` behind it.
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not source.startswith(("with ", "os.close(")):
            self._lines += 1
            if self._lines in self._at:
                self.raised += 1
                raise self._error
        return self._trace


_IS_SAFE_WITH = sys.version_info >= (3, 15)
# Waits that a signal ends before they have done anything; other functions written in C end first.
_INTERRUPTIBLE = frozenset({"acquire", "read", "poll", "select", "wait"})


class InterruptedCall:
    """Raises `error` in this thread at the `at`-th place where Python itself may, in the block.

    Python calls the handlers of signals at the beginning of a function, behind a call of a function
    written in C, and in a wait. Unlike a line, each of these places can be met by a signal.
    """

    def __init__(self, at: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self._at = at
        self._error = error
        self.places = 0
        self.raised_at = ""

    def __enter__(self) -> InterruptedCall:
        # What earlier calls left behind is not finalized in this one, which would lose the error.
        gc.disable()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_filename.startswith(_NOT_IN) or code.co_qualname in _NOT_AT:
            return
        if "__del__" in (frame.f_code.co_name, frame.f_back and frame.f_back.f_code.co_name):
            return
        # From 3.15 on `with` calls a lock's `__enter__` where profiles see it, and signals do not.
        if event == "c_return" and _IS_SAFE_WITH and argument.__name__ == "__enter__":
            return
        # One that is dropped is entered once more, to end it, where Python looks at no signal.
        if event == "call" and code.co_name == "<genexpr>":
            return
        is_place = event in ("call", "c_return") or (
            event == "c_call" and getattr(argument, "__name__", "") in _INTERRUPTIBLE
        )
        if not is_place:
            return
        self.places += 1
        if self.places == self._at:
            sys.setprofile(None)
            called = "" if event == "call" else f" {event} {argument!r}"
            self.raised_at = f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}{called}"
            self.interrupt()

    def interrupt(self) -> None:
        raise self._error


class HandledCall(InterruptedCall):
    """Calls `handler` in this thread at the `at`-th such place, and goes on."""

    def __init__(self, at: int, handler: Callable[[], object]) -> None:
        super().__init__(at)
        self.interrupt = handler  # type: ignore[method-assign]
