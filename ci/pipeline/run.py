"""Run the demo's flights on Spark: source, stage with keyed state, sink; check the result.

python ci/pipeline/run.py --out FOLDER, after `ordermq demo --out FOLDER`; ci/demo.sh runs both.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from check import Outcome, check
from picture import draw
from scenario import run_scenario

from ordermq.cli.demo.processes import DemoFailed
from ordermq.cli.output import fail, note, out, print_json, print_table, progress_bar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder of the demo")
    parser.add_argument("--limit", type=int, help="limit of the demo")
    parser.add_argument("--json", action="store_true")
    asked, _ = parser.parse_known_args()  # the demo has further options
    data = asked.out / "broker"
    if not data.is_dir():
        fail(f"{data} does not exist: run `ordermq demo --out {asked.out}` first")
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
    """Run the scenario, check it and draw it, with a progress bar."""
    with progress_bar() as progress:
        bar = progress.add_task("flights on Spark", total=None, note="starting Spark")

        def report(rows: int, text: str) -> None:
            progress.update(bar, completed=rows, note=text)
            if not progress.console.is_terminal:
                note(f"  {rows:,} rows  {text}")

        scenario = run_scenario(data, folder, report)
        progress.update(bar, total=scenario.rows, completed=scenario.rows, note="checking")
        outcome = check(scenario, limit)
        draw(scenario, folder / "batches.png")
    return outcome


def show(outcome: Outcome, folder: Path) -> None:
    scenario = outcome.scenario
    print_table(
        "flights on Spark",
        ["", "value"],
        [
            ("messages of the topic", scenario.total),
            ("rows through the stage, including repeated ones", scenario.rows),
            ("micro-batches", len(scenario.batches)),
            ("logs written to the sink's topic", outcome.written),
            ("aircraft", outcome.logs),
            (
                "seconds from kill -9 to the end of the next micro-batch",
                scenario.back_t - scenario.killed_t,
            ),
            ("seconds in total, including two starts of Spark", scenario.seconds),
        ],
    )
    if not outcome.failures:
        out.print(
            f"[bold green]OK[/]: {outcome.logs:,} logs equal those of pandas, and no queue had two "
            "owners",
            highlight=False,
            soft_wrap=True,
        )
    out.print(f"picture: {folder / 'batches.png'}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
