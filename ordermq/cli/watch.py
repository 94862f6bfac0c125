"""Tables that are refreshed until Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.live import Live

from ordermq.cli.output import out


@contextmanager
def until_interrupted() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C sets, instead of a traceback over the view."""
    stop = threading.Event()
    before = signal.signal(signal.SIGINT, lambda _number, _frame: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def watch(
    show: Callable[[], RenderableType],
    refresh: Callable[[], None],
    stop: threading.Event,
    every: float,
    count: int | None,
) -> None:
    """Show a view now and after each `refresh`; `count` of them in all, or until `stop`."""
    if not out.is_terminal:
        # One table below the other, for a file or a pipe.
        out.print(show(), crop=False)
        for _ in rounds(stop, every, count):
            refresh()
            out.print(show(), crop=False)
        return
    with Live(show(), console=out, auto_refresh=False, screen=True) as live:
        for _ in rounds(stop, every, count):
            refresh()
            live.update(show(), refresh=True)
    # The live view used the alternate screen, which the terminal has just discarded.
    out.print(show(), crop=False)


def rounds(stop: threading.Event, every: float, count: int | None) -> Iterator[None]:
    """Yield after each pause of `every` seconds, until `stop`.

    Args:
        count: rounds in all, with the one before the first pause.
    """
    left = count
    while (left := None if left is None else left - 1) != 0 and not stop.wait(every):
        yield
