"""SIGINT and SIGTERM at a command: the first ends it in order, the second at once."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

from ordermq.threads import SIGNAL_CHECK_S, NativeEvent

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[Sequence[int]]:
    """End the command in its block at SIGINT or SIGTERM: its `with` and `finally` run, then a line.

    Commands with signal handlers of their own, such as `run`, have those while they run. Yields the
    signals that have come.
    """
    numbers = _handled()
    received: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if received:
            end_by(number)
        received.append(number)
        # The kernel ends the process at the next one, also while no Python code runs: in a sync of
        # a slow disk. Not process 1 of a container, which ends only by a handler.
        if os.getpid() != 1:
            for each in numbers:
                signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield received
    except KeyboardInterrupt:
        number = received[0] if received else signal.SIGINT
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        _say_stopped(number)
        end_by(number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """End the process at once at a signal in the block: nothing has begun.

    An exception of a signal handler in the import of a module in C may crash it (orjson 3.11).
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        _say_stopped(number)
        end_by(number)

    before = {number: signal.signal(number, leave) for number in _handled()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handled() -> list[signal.Signals]:
    # Only the main thread may handle signals; one that the starter ignores, as `nohup` does, stays
    # ignored.
    if threading.current_thread() is not threading.main_thread():
        return []
    return [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def _say_stopped(number: int) -> None:
    # Not by a stream or rich: the code that was interrupted may hold their locks.
    with contextlib.suppress(OSError):
        os.write(2, f"error: stopped by {signal.Signals(number).name} before its end\n".encode())


class StopRequest:
    """An event that a signal handler sets while the main thread may be waiting for it.

    That of `threading` has a lock, which the handler would wait for in the instant in which its own
    thread has it.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._event = NativeEvent()

    def set(self) -> None:
        """Let the current wait return, and all later ones."""
        self.is_set = True
        self._event.set()

    def wait(self, timeout_s: float = math.inf) -> bool:
        """Return once set, or after the time; True if it is set."""
        end = time.monotonic() + timeout_s
        while not self.is_set and (left_s := end - time.monotonic()) > 0:
            self._event.wait(min(left_s, SIGNAL_CHECK_S))
        return self.is_set


@contextlib.contextmanager
def stop_at(*numbers: int) -> Iterator[StopRequest]:
    """Yield what the first of these signals sets; a second one is not waited for."""
    stop = StopRequest()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        if not stop.is_set:
            stop.set()
            return
        handler = before[number]
        if not callable(handler):
            end_by(number)
        handler(number, frame)

    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, ask_to_stop)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_by(number: int) -> NoReturn:
    """End the process as the signal itself does: a shell sees 128 + its number, and stops loops."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)  # process 1 of a container, which no such signal ends
