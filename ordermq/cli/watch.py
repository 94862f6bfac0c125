"""Tables that are refreshed until Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.live import Live

from ordermq.cli.output import out
from ordermq.cli.signals import stop_at


def watch(
    show: Callable[[], RenderableType],
    refresh: Callable[[], None],
    every: float,
    count: int | None,
) -> None:
    """Show a view now and after each `refresh`; `count` of them in all, or until Ctrl-C."""
    if not out.is_terminal:
        # One table below the other, for a file or a pipe.
        out.print(show(), crop=False)
        for _ in rounds(every, count):
            refresh()
            out.print(show(), crop=False)
        return
    with Live(show(), console=out, auto_refresh=False, screen=True) as live:
        for _ in rounds(every, count):
            refresh()
            live.update(show(), refresh=True)
    # The live view used the alternate screen, which the terminal has just discarded.
    out.print(show(), crop=False)


def rounds(every: float, count: int | None) -> Iterator[None]:
    """Yield after each pause of `every` seconds, until Ctrl-C.

    A second Ctrl-C does not wait for the round that the first one interrupts.

    Args:
        count: rounds in all, with the one before the first pause.
    """
    with stop_at(signal.SIGINT) as stop:
        left = count
        while (left := None if left is None else left - 1) != 0 and not stop.wait(every):
            yield
