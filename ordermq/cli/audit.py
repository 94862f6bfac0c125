"""`ordermq audit`: check the recorded histories of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import click

from ordermq.audit import AuditReport, HandOff, HistoryError, audit
from ordermq.audit.report import INVARIANTS
from ordermq.cli.output import (
    EXIT_CODES,
    ExitCode,
    counted,
    fail,
    json_option,
    note,
    out,
    print_json,
    print_table,
    progress_bar,
)


@click.command("audit", epilog=EXIT_CODES)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--tags", help="Tags the group subscribed to, for example 'paid || refunded'.")
@click.option(
    "--from-first", is_flag=True, help="Require that every message from offset 0 was consumed."
)
@click.option(
    "--partial",
    is_flag=True,
    help="The run was stopped early: do not count the rest as lost. Implied while it still runs.",
)
@json_option
def audit_command(
    files: Sequence[Path], tags: str | None, from_first: bool, partial: bool, as_json: bool
) -> None:
    """Check recorded histories for order, loss and duplicates.

    FILES are the JSONL histories of all processes of a run on one host, including the broker's;
    a folder means the *.jsonl files in it. Ten checks are made: I1 to I9, I16. The first violation
    of each is printed with its events.

    \b
    Example:
      ordermq broker --data ./data --history run/broker.jsonl
      ordermq consume billing orders --count 1000 --history run/consumer.jsonl
      ordermq audit run/
    """
    try:
        with progress_bar() as progress:
            bar = progress.add_task("events checked", total=None, note="")
            report = audit(
                list(_expand(files)),
                subscription_tags=_tags(tags),
                start_offsets=0 if from_first else None,
                complete=False if partial else None,
                on_progress=lambda count: progress.update(bar, completed=count),
            )
    except HistoryError as error:
        # A wrong file, not a failed check: scripts can tell the two apart.
        fail(str(error), ExitCode.USAGE)
    if as_json:
        print_json(report.to_dict())
    else:
        show(report)
    raise SystemExit(ExitCode.OK if report.ok else ExitCode.FAILED)


def show(report: AuditReport) -> None:
    """Print a report as tables, and the result last: it stays visible on the terminal."""
    print_table(
        f"{len(report.files)} files, {report.lines:,} events, "
        f"{counted(report.processes, 'process run')}, {report.crashes} crashed"
        + (f", {report.running} still running" if report.running else ""),
        ["messages", "count"],
        [
            ("stored by the broker", report.stored),
            ("processed", report.delivered),
            ("moved to a parking or dead-letter topic", report.diverted),
            ("sent back for a retry", report.sent_back),
            ("copies that were dropped", report.dropped),
            ("committed", report.committed),
        ],
    )
    duplicates = [(cause, count) for cause, count in report.duplicates.items() if count]
    none = ("none", 0)
    print_table("messages processed more than once", ["cause", "messages"], duplicates or [none])
    if report.hand_offs:
        print_hand_offs(report.hand_offs)
    # Without markup: events contain brackets, which Rich would take for styles.
    for violation in report.violations:
        out.print(f"[bold red]{violation.invariant} {violation.title}[/]", highlight=False)
        out.print(f"  {violation.sentence}", markup=False, highlight=False, soft_wrap=True)
        for event in violation.events:
            out.print(f"    {event}", markup=False, highlight=False, soft_wrap=True)
    broken = {violation.invariant for violation in report.violations}
    for name, title in INVARIANTS.items():
        mark = "[bold red]FAILED[/]" if name in broken else "[green]passed[/]"
        out.print(f"  {mark}  {name} {title}", highlight=False)
    if report.running:
        note("the run goes on: what is not finished yet is not counted as lost")
    if report.ok:
        out.print(f"[bold green]OK[/]: all {len(INVARIANTS)} checks passed", highlight=False)
    else:
        text = f"{len(broken)} of {len(INVARIANTS)} checks failed: {', '.join(sorted(broken))}"
        out.print(f"[bold red]FAILED[/]: {text}", highlight=False)


def print_hand_offs(hand_offs: Sequence[HandOff]) -> None:
    """Print one row per reason for which queues changed their owner; times in ms."""
    rows = []
    for kind in dict.fromkeys(each.kind for each in hand_offs):
        those = [each for each in hand_offs if each.kind is kind]
        # A queue after a crash was never unlocked, and one that got no more messages has no pause.
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
    print_table(
        "queues that changed their owner (times in ms, medians)",
        ["reason", "queues", "redelivered", "unlock to lock", "pause", "longest pause"],
        rows,
    )


def _expand(files: Sequence[Path]) -> Sequence[Path]:
    found: list[Path] = []
    for file in files:
        inside = sorted(file.glob("*.jsonl")) if file.is_dir() else [file]
        # An audit of no events would pass.
        if not inside:
            raise HistoryError(f"{file}: no *.jsonl file in it")
        found += inside
    return found


def _tags(expression: str | None) -> list[str] | None:
    # "*" selects every message, with or without a tag; the audit then looks at no tags.
    if expression is None or expression.strip() == "*":
        return None
    return [tag.strip() for tag in expression.split("||")]
