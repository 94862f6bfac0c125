"""`ordermq top`: a live view of a consumer group."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import click
from rich.live import Live
from rich.table import Table

from ordermq.admin.admin import Admin
from ordermq.admin.groups import GroupState
from ordermq.cli.client_options import Servers, client_options, exit_on_error
from ordermq.cli.lag import behind
from ordermq.cli.output import (
    EXIT_CODES,
    counted,
    json_option,
    new_table,
    out,
    print_json,
    short_client_ids,
)
from ordermq.model.message_queue import MessageQueue


@click.command(epilog=EXIT_CODES)
@click.argument("group")
@click.argument("topics", nargs=-1)
@client_options
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True,
              help="Refresh interval in seconds.")  # fmt: skip
@click.option("--count", type=click.IntRange(1), help="Stop after N refreshes.")
@json_option
def top(
    group: str,
    topics: tuple[str, ...],
    servers: Servers,
    every: float,
    count: int | None,
    as_json: bool,
) -> None:
    """Watch the rates, lag and owner of each queue of GROUP.

    It runs until Ctrl-C. Rates are averaged over the refresh interval. With --json, one document
    per refresh.

    \b
    Example:
      ordermq top billing
      ordermq top billing orders --every 5
    """
    stop = threading.Event()
    # Ctrl-C ends the view and restores the terminal, instead of a traceback over it.
    before = signal.signal(signal.SIGINT, lambda _number, _frame: stop.set())
    try:
        with exit_on_error(), Admin(**servers.settings()) as admin:
            samples = _Samples(lambda: admin.group(group, topics))
            if as_json:
                _print(samples, stop, every, count)
            else:
                _show(samples, stop, every, count)
    finally:
        signal.signal(signal.SIGINT, before)


class _Samples:
    """The group's latest state, and the rates since the one before."""

    def __init__(self, look: Callable[[], GroupState]) -> None:
        self._look = look
        self.state = look()
        self._before = self.state
        self._taken_s = self._before_s = time.monotonic()

    def refresh(self) -> None:
        """Take another sample."""
        self._before, self._before_s = self.state, self._taken_s
        self.state, self._taken_s = self._look(), time.monotonic()

    def rates(self, queue: MessageQueue) -> tuple[float, float] | None:
        """Return messages per second, stored and consumed; None before the first refresh."""
        seconds = self._taken_s - self._before_s
        now, then = self.state.progress[queue], self._before.progress.get(queue)
        # A queue without an earlier sample is new: its topic has just got more queues.
        if not seconds or then is None:
            return None
        return (now.end - then.end) / seconds, (now.done - then.done) / seconds


def _show(samples: _Samples, stop: threading.Event, every: float, count: int | None) -> None:
    left = count
    # The first table counts, too: with --count 1 it is the only one.
    with Live(_table(samples), console=out, auto_refresh=False, screen=out.is_terminal) as live:
        while (left := None if left is None else left - 1) != 0 and not stop.wait(every):
            samples.refresh()
            live.update(_table(samples), refresh=True)
    if out.is_terminal:
        # The live view used the alternate screen, which the terminal has just discarded.
        out.print(_table(samples))
    else:
        out.line()


def _print(samples: _Samples, stop: threading.Event, every: float, count: int | None) -> None:
    left = count
    while True:
        print_json(_document(samples))
        left = None if left is None else left - 1
        if left == 0 or stop.wait(every):
            return
        samples.refresh()


def _table(samples: _Samples) -> Table:
    state, now_ms = samples.state, time.time_ns() // 1_000_000
    title = f"{state.group}: {counted(state.lag, 'message')} behind, "
    title += counted(len(state.members), "member")
    table = new_table(title=title, title_justify="left", title_style="bold")
    table.add_column("queue", no_wrap=True)
    table.add_column("member", no_wrap=True)
    for column in ("stored/s", "done/s", "lag", "behind", "buffered"):
        table.add_column(column, justify="right")
    if not state.progress:
        table.caption = "no member and no offset yet; waiting"
    short = short_client_ids(member.client_id for member in state.members)
    for queue, done in state.progress.items():
        member, said = state.holdings.get(queue, ("-", None))
        member = short.get(member, member)
        rates = samples.rates(queue)
        speeds = ("-", "-") if rates is None else tuple(f"{rate:,.0f}" for rate in rates)
        lock = " (locked)" if said is not None and said.is_locked else ""
        table.add_row(
            str(queue), member + lock, *speeds, f"{done.lag:,}", behind(done, now_ms) or "-",
            "-" if said is None else f"{said.buffered:,}",
        )  # fmt: skip
    for name, reason in state.silent.items():
        table.add_row("", f"{name} did not answer: {reason}", style="yellow")
    return table


def _document(samples: _Samples) -> dict[str, object]:
    rows = []
    for queue, done in samples.state.progress.items():
        member, said = samples.state.holdings.get(queue, (None, None))
        rates = samples.rates(queue) or (None, None)
        rows.append({
            "queue": str(queue),
            "member": member,
            "locked": None if said is None else said.is_locked,
            "lag": done.lag,
            "stored_per_second": rates[0],
            "done_per_second": rates[1],
            "buffered": None if said is None else said.buffered,
        })  # fmt: skip
    state = samples.state
    return {"group": state.group, "lag": state.lag, "queues": rows, "silent": state.silent}
