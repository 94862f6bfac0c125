"""`ordermq top`: a live view of a consumer group."""

from __future__ import annotations

import time
from collections.abc import Callable

import click
from rich.console import Group, RenderableType
from rich.text import Text

from ordermq.admin.admin import Admin
from ordermq.admin.groups import GroupState
from ordermq.cli.client_options import Servers, client_options, exit_on_error, group_argument
from ordermq.cli.lag import behind, require_known
from ordermq.cli.output import (
    EXIT_CODES,
    counted,
    fitted_table,
    json_option,
    print_json,
    short_client_ids,
)
from ordermq.cli.watch import rounds, watch
from ordermq.model.message_queue import MessageQueue


@click.command(epilog=EXIT_CODES)
@group_argument
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
    with exit_on_error(), Admin(**servers.settings()) as admin:
        samples = _Samples(lambda: admin.group(group, topics))
        # A mistyped name would show an empty table for ever.
        require_known(samples.state)
        if not as_json:
            watch(lambda: _view(samples), samples.refresh, every, count)
            return
        print_json(_document(samples))
        for _ in rounds(every, count):
            samples.refresh()
            print_json(_document(samples))


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


def _view(samples: _Samples) -> RenderableType:
    state, now_ms = samples.state, time.time_ns() // 1_000_000
    title = f"{state.group}: {counted(state.lag, 'message')} behind, "
    title += counted(len(state.members), "member")
    short = short_client_ids(member.client_id for member in state.members)
    rows = []
    for queue, done in state.progress.items():
        member, said = state.holdings.get(queue, ("-", None))
        rates = samples.rates(queue)
        speeds = ("-", "-") if rates is None else tuple(f"{rate:,.0f}" for rate in rates)
        lock = " (locked)" if said is not None and said.is_locked else ""
        buffered = None if said is None else said.buffered
        rows.append(
            (
                queue, short.get(member, member) + lock, *speeds, done.lag,
                behind(done, now_ms), buffered,
            )
        )  # fmt: skip
    columns = ("queue", "member", "stored/s", "done/s", "lag", "behind", "buffered")
    silent = (
        Text(f"{name} did not answer: {why}", style="yellow") for name, why in state.silent.items()
    )
    return Group(Text(title, style="bold"), fitted_table(columns, rows, right=2), *silent)


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
