"""The demo's flights on Spark: source, a stage with state, sink, read back; checked.

python ci/pipeline/run.py --out FOLDER, after `ordermq demo --out FOLDER`; ci/demo.sh runs both.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from check import Outcome, check
from course import play
from picture import draw

from ordermq.cli.demo.processes import DemoFailed
from ordermq.cli.output import fail, note, out, print_json, print_table, progress_bar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="as the demo's")
    parser.add_argument("--limit", type=int, help="as the demo's")
    parser.add_argument("--json", action="store_true")
    asked, _ = parser.parse_known_args()  # the others are the demo's alone
    data = asked.out / "broker"
    if not data.is_dir():
        fail(f"{data} is not there: run `ordermq demo --out {asked.out}` first")
    folder = asked.out / "spark"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        outcome = run(data, folder, asked.limit)
    except DemoFailed as error:
        fail(str(error))
    if asked.json:
        print_json(outcome.to_dict())
    else:
        show(outcome, folder)
    for failure in outcome.failures:
        note(f"FAILED: {failure}")
    sys.exit(1 if outcome.failures else 0)


def run(data: Path, folder: Path, limit: int | None) -> Outcome:
    """Play, check and draw, with a line of progress."""
    with progress_bar() as progress:
        bar = progress.add_task("flights on Spark", total=None, note="Spark starts")

        def say(rows: int, text: str) -> None:
            progress.update(bar, completed=rows, note=text)
            if not progress.console.is_terminal:
                note(f"  {rows:,} rows  {text}")

        course = play(data, folder, say)
        progress.update(bar, total=course.rows, completed=course.rows, note="checking")
        outcome = check(course, limit)
        draw(course, folder / "batches.png")
    return outcome


def show(outcome: Outcome, folder: Path) -> None:
    course = outcome.course
    print_table(
        "flights on Spark",
        ["", "value"],
        [
            ("messages of the topic", course.total),
            ("rows the stage got, those of the killed micro-batch again", course.rows),
            ("micro-batches", len(course.batches)),
            ("logs written to the sink's topic", outcome.written),
            ("aircraft", outcome.logs),
            ("seconds from kill -9 to the next micro-batch done", course.back_t - course.killed_t),
            ("seconds in all, Spark's start twice included", course.seconds),
        ],
    )
    if not outcome.failures:
        out.print(
            f"[bold green]in order[/]: {outcome.logs:,} logs read back equal pandas' on every "
            "figure, and no queue had two owners",
            highlight=False,
            soft_wrap=True,
        )
    out.print(f"picture: {folder / 'batches.png'}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
