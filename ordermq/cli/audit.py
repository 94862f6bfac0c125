"""`ordermq audit`: check the histories of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import click

from ordermq.audit import AuditReport, HandOff, HistoryError, audit
from ordermq.audit.report import INVARIANTS, Cause
from ordermq.cli.output import (
    EXIT_CODES,
    ExitCode,
    fail,
    json_option,
    out,
    print_json,
    print_table,
    progress_bar,
)


@click.command("audit", epilog=EXIT_CODES)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--tags", help="The group's subscription, as in 'paid || refunded'.")
@click.option("--from-first", is_flag=True, help="The group owes every message from offset 0.")
@click.option("--partial", is_flag=True, help="The run was cut short: unfinished is not lost.")
@json_option
def audit_command(
    files: Sequence[Path], tags: str | None, from_first: bool, partial: bool, as_json: bool
) -> None:
    """Check the histories of a run against the invariants I1-I9.

    FILES are the JSONL histories of all its processes on one host, the broker's among them;
    a folder stands for the *.jsonl files in it. The first violation is named with its events.

    \b
    Example:
      ordermq broker --data ./data --history run/broker.jsonl
      ordermq consume billing orders --count 1000 --history run/consumer.jsonl
      ordermq audit run/
    """
    try:
        with progress_bar() as progress:
            bar = progress.add_task("events", total=None, note="")
            report = audit(
                list(_expand(files)),
                subscription_tags=_tags(tags),
                start_offsets=0 if from_first else None,
                complete=not partial,
                on_progress=lambda count: progress.update(bar, completed=count),
            )
    except HistoryError as error:
        fail(str(error), ExitCode.USAGE)
    if as_json:
        print_json(report.to_dict())
    else:
        show(report)
    raise SystemExit(ExitCode.OK if report.ok else ExitCode.FAILED)


def show(report: AuditReport) -> None:
    """Print a report as tables; the verdict last, where the eye is."""
    print_table(
        f"{len(report.files)} histories, {report.lines:,} events, {report.processes} processes, "
        f"{report.crashes} crashed",
        ["messages", "count"],
        [
            ("stored", report.stored),
            ("finished", report.delivered),
            ("diverted", report.diverted),
            ("sent back", report.sent_back),
            ("committed", report.committed),
        ],
    )
    duplicates = [(cause, count) for cause, count in report.duplicates.items() if count]
    never = (Cause.HAND_OFF.value, 0)
    print_table("finished more than once", ["because of", "messages"], duplicates or [never])
    if report.hand_offs:
        print_table(
            "hand-offs",
            ["kind", "queues", "repeated", "unlock to lock, ms", "silence, ms: median", "max"],
            hand_off_rows(report.hand_offs),
        )
    for violation in report.violations:
        out.print(f"[bold red]{violation.invariant} {violation.title}[/]", highlight=False)
        out.print(f"  {violation.sentence}", markup=False, highlight=False, soft_wrap=True)
        for event in violation.events:
            out.print(f"    {event}", markup=False, highlight=False, soft_wrap=True)
    if report.ok:
        first, last = min(INVARIANTS), max(INVARIANTS)
        out.print(f"[bold green]sound[/]: {first} to {last} hold", highlight=False)
    else:
        broken = ", ".join(violation.invariant for violation in report.violations)
        out.print(f"[bold red]not sound[/]: {broken} broken", highlight=False)


def hand_off_rows(
    hand_offs: Sequence[HandOff],
) -> list[tuple[str, int, int, float | None, float | None, float | None]]:
    """A row for each kind: queues, repeated messages, medians and worst in ms."""
    rows = []
    for kind in dict.fromkeys(each.kind for each in hand_offs):
        those = [each for each in hand_offs if each.kind is kind]
        unlocks = [each.unlock_to_lock_ms for each in those if each.unlock_to_lock_ms is not None]
        silences = [each.silence_ms for each in those if each.silence_ms is not None]
        rows.append(
            (
                kind.value,
                len(those),
                sum(each.duplicates for each in those),
                statistics.median(unlocks) if unlocks else None,
                statistics.median(silences) if silences else None,
                max(silences, default=None),
            )
        )
    return rows


def _expand(files: Sequence[Path]) -> Sequence[Path]:
    found: list[Path] = []
    for file in files:
        inside = sorted(file.glob("*.jsonl")) if file.is_dir() else [file]
        if not inside:
            raise HistoryError(f"{file}: no *.jsonl file in it")
        found += inside
    return found


def _tags(expression: str | None) -> list[str] | None:
    if expression is None or expression.strip() == "*":
        return None
    return [tag.strip() for tag in expression.split("||")]
