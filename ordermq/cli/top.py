"""`ordermq top`: a live view of a group."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import click
from rich import box
from rich.live import Live
from rich.table import Table

from ordermq.cli.connecting import Servers, explained, servers_options
from ordermq.cli.lag import behind
from ordermq.cli.output import EXIT_CODES, json_option, out, print_json
from ordermq.client.group_inspector import GroupInspector, GroupState
from ordermq.model.message_queue import MessageQueue


@click.command(epilog=EXIT_CODES)
@click.argument("group")
@click.argument("topics", nargs=-1)
@servers_options
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True,
              help="Seconds between two looks.")  # fmt: skip
@click.option("--count", type=click.IntRange(1), help="Stop after so many looks.")
@json_option
def top(
    group: str,
    topics: tuple[str, ...],
    servers: Servers,
    every: float,
    count: int | None,
    as_json: bool,
) -> None:
    """Watch GROUP: what comes in, what is done, who does it, queue by queue; until Ctrl-C.

    Rates are of the time since the look before. With --json, a document a look.

    \b
    Example:
      ordermq top billing
      ordermq top billing orders --every 5
    """
    stop = threading.Event()
    before = signal.signal(signal.SIGINT, lambda _number, _frame: stop.set())
    try:
        with explained(), GroupInspector(**servers.settings()) as inspector:
            looks = _Looks(lambda: inspector.look(group, topics))
            if as_json:
                _print(looks, stop, every, count)
            else:
                _show(looks, stop, every, count)
    finally:
        signal.signal(signal.SIGINT, before)


class _Looks:
    """The group's states, each with the rates since the one before."""

    def __init__(self, look: Callable[[], GroupState]) -> None:
        self._look = look
        self.state = look()
        self._before = self.state
        self._taken_s = self._before_s = time.monotonic()

    def again(self) -> None:
        self._before, self._before_s = self.state, self._taken_s
        self.state, self._taken_s = self._look(), time.monotonic()

    def rates(self, queue: MessageQueue) -> tuple[float, float] | None:
        """Messages a second stored and done; None at the first look."""
        seconds = self._taken_s - self._before_s
        now, then = self.state.progress[queue], self._before.progress.get(queue)
        if not seconds or then is None:
            return None
        done = (now.committed or 0) - (then.committed or 0)
        return (now.end - then.end) / seconds, done / seconds


def _show(looks: _Looks, stop: threading.Event, every: float, count: int | None) -> None:
    left = count
    with Live(_table(looks), console=out, auto_refresh=False, screen=out.is_terminal) as live:
        while (left := None if left is None else left - 1) != 0 and not stop.wait(every):
            looks.again()
            live.update(_table(looks), refresh=True)
    if out.is_terminal:
        out.print(_table(looks))  # the screen of the live view is gone


def _print(looks: _Looks, stop: threading.Event, every: float, count: int | None) -> None:
    left = count
    while True:
        print_json(_document(looks))
        left = None if left is None else left - 1
        if left == 0 or stop.wait(every):
            return
        looks.again()


def _table(looks: _Looks) -> Table:
    state, now_ms = looks.state, time.time_ns() // 1_000_000
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{state.group}: {state.lag:,} behind, {len(state.members)} members",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("queue")
    table.add_column("member")
    for column in ("in/s", "done/s", "lag", "behind", "buffered"):
        table.add_column(column, justify="right")
    for queue, done in state.progress.items():
        member, said = state.holdings.get(queue, ("-", None))
        rates = looks.rates(queue)
        speeds = ("-", "-") if rates is None else tuple(f"{rate:,.0f}" for rate in rates)
        lock = " (locked)" if said is not None and said.is_locked else ""
        table.add_row(
            str(queue), member + lock, *speeds, f"{done.lag:,}", behind(done, now_ms) or "-",
            "-" if said is None else f"{said.buffered:,}",
        )  # fmt: skip
    for name, reason in state.silent.items():
        table.add_row("", f"{name}: {reason}", style="yellow")
    return table


def _document(looks: _Looks) -> dict[str, object]:
    rows = []
    for queue, done in looks.state.progress.items():
        member, said = looks.state.holdings.get(queue, (None, None))
        rates = looks.rates(queue) or (None, None)
        rows.append({
            "queue": str(queue),
            "member": member,
            "locked": None if said is None else said.is_locked,
            "lag": done.lag,
            "stored_per_second": rates[0],
            "done_per_second": rates[1],
            "buffered": None if said is None else said.buffered,
        })  # fmt: skip
    state = looks.state
    return {"group": state.group, "lag": state.lag, "queues": rows, "silent": state.silent}
