"""The fault table of docs/reliability.md: ci/chaos.sh --table runs this."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.fault_table.lease_rows import LEASE_ROWS
from tests.fault_table.rows import ROWS as OTHER_ROWS
from tests.fault_table.rows import Missing, Row
from tests.fault_table.scene import Figures
from tests.fault_table.servers import (
    BROKERS,
    EMBEDDED,
    LOCAL_PROXY,
    Embedded,
    Rocketmq,
    Servers,
    rocketmq,
)
from tests.interop.cluster import ROOT, Cluster

PAGE = ROOT / "docs" / "reliability.md"
ROWS = OTHER_ROWS | LEASE_ROWS
COLUMNS = (
    "row", "messages", "faults", "lost", "repeated", "overlaps", "order breaks", "longest silence",
    "time",
)  # fmt: skip
HEAD = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]


@contextlib.contextmanager
def servers_of(
    broker: str, rows: Iterable[Row], at: Path | None, *, is_guarded: bool = False
) -> Iterator[Servers | None]:
    """RocketMQ is shared by these rows; an embedded broker is started for each.

    Args: at: the folder of a RocketMQ that runs.
    """
    if broker == EMBEDDED:
        yield None
        return
    if at is not None:
        yield Rocketmq(Cluster(at), is_guarded=is_guarded)
        return
    options = ["--brokers=2"]
    if broker == LOCAL_PROXY:
        options.append("--proxy=local")
    elif any(row.name.startswith("grpc-") for row in rows):
        options.append("--proxy=cluster")
    version = broker.partition("-")[0]
    folder = ROOT / "build" / f"table-{os.getpid()}"
    with rocketmq(version, folder, *options, is_guarded=is_guarded) as shared:
        yield shared


def play(row: Row, shared: Servers | None, keep: Path, *, is_guarded: bool = False) -> Figures:
    """Run a row; its folder stays under `keep` if it found a problem.

    Args: is_guarded: of the embedded broker that is started without `shared`.
    """
    folder = keep / row.name
    folder.mkdir(parents=True)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        servers = shared
        if servers is None:
            embedded = servers = Embedded(folder, is_guarded=is_guarded)
            stack.callback(embedded.close)
        try:
            scene = stack.enter_context(row.play(servers, folder))
            figures = scene.judged()
        except Missing:
            raise
        except (Exception, pytest.fail.Exception) as error:
            notes = getattr(error, "__notes__", [])
            figures = Figures(problems=["\n".join([f"{type(error).__name__}: {error}", *notes])])
    figures.seconds = time.monotonic() - began
    if not figures.problems:
        shutil.rmtree(folder)
    return figures


def line(row: Row, figures: Figures) -> str:
    """Return a line of the table."""
    found = bool(figures.problems)  # a row that broke off has lost nothing, either
    repeats = ", ".join(f"{n} {cause}" for cause, n in sorted(figures.repeats.items())) or "0"
    cells = (
        row.name, f"{figures.messages:,}", f"{figures.faults:,}", figures.lost, repeats,
        figures.overlaps, figures.order_breaks, f"{figures.silence_s:.1f} s",
        f"{figures.seconds:.0f} s" + (f", **problems: {len(figures.problems)}**" * found),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def lines_at(page: str, place: str) -> re.Match[str]:
    """Find what the page has in one of its places."""
    pattern = f"(?<=<!-- {re.escape(place)} -->\n).*?(?=<!-- end -->)"
    found = re.search(pattern, page, re.DOTALL)
    if found is None:
        raise SystemExit(f"docs/reliability.md has no place <!-- {place} -->")
    return found


def placed(page: str, place: str, lines: list[str]) -> str:
    """Return the page with these lines in one of its places."""
    before = lines_at(page, place)
    new = "".join(f"{each}\n" for each in lines)
    return f"{page[: before.start()]}{new}{page[before.end() :]}"


def merged(page: str, place: str, lines: dict[str, str]) -> list[str]:
    """Return a place's table with new lines, by row, and the old ones of the rows not run now."""
    old = {
        row: line
        for line in lines_at(page, place).group().splitlines()
        if (row := line.removeprefix("| ").partition(" ")[0]) in ROWS
    }
    both = old | lines
    return [*HEAD, *(both[row] for row in ROWS if row in both)]


def write(place: str, lines: dict[str, str]) -> None:
    """Put lines of a broker's table into the page."""
    page = placed(PAGE.read_text(), "rows", described())
    PAGE.write_text(placed(page, place, merged(page, place, lines)))


def shown(broker: str) -> str:
    return "the embedded broker" if broker == EMBEDDED else broker


def described() -> list[str]:
    """Return the table of the rows: a line for each, with its fault."""
    rows = [
        f"| {row.name} | {row.fault}{row.only and f' (only on {shown(row.only)})'} |"
        for row in ROWS.values()
    ]
    # The mark stands before the head: one inside the table would end it.
    return ["| row | fault |", "|---|---|", *rows]


def main() -> None:
    parser = argparse.ArgumentParser(prog="ci/chaos.sh --table")
    parser.add_argument("--on", choices=BROKERS, help="one broker only")
    parser.add_argument(
        "--row", action="append", choices=ROWS, help="one row only; repeat for more"
    )
    parser.add_argument(
        "--at", type=Path, help="of ci/rocketmq.sh, with two brokers, which runs already"
    )
    parser.add_argument("--list", action="store_true", help="name the rows")
    parser.add_argument(
        "--write", action="store_true", help="write what was run to docs/reliability.md"
    )
    parser.add_argument(
        "--guarded",
        action="store_true",
        help="clients speak TLS, sign as an account, and have their metrics read; the embedded "
        "broker refuses all others",
    )
    asked = parser.parse_args()
    if asked.list:
        for row in ROWS.values():
            print(f"{row.name:20} {row.fault}{row.only and f' ({shown(row.only)})'}")
        return
    # Processes inherit it where it is ignored, as in the background of a shell; a row sends it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A line for each try to reach a broker that is dead on purpose.
    logging.getLogger("ordermq").setLevel(logging.CRITICAL)
    kept = Path(tempfile.mkdtemp(prefix="fault-table-"))
    problems = 0
    for broker in [asked.on] if asked.on else BROKERS:
        rows = [row for row in ROWS.values() if row.is_for(broker)]
        rows = [row for row in rows if not asked.row or row.name in asked.row]
        lines: dict[str, str] = {}
        with servers_of(broker, rows, asked.at, is_guarded=asked.guarded) as shared:
            for row in rows:
                try:
                    figures = play(row, shared, kept / broker, is_guarded=asked.guarded)
                except Missing as missing:
                    print(f"{broker}: {row.name}: SKIPPED: {missing}", flush=True)
                    lines[row.name] = f"| {row.name} | not run: {missing} {'| ' * 8}|"
                else:
                    lines[row.name] = line(row, figures)
                    print(f"{broker}: {lines[row.name]}", flush=True)
                    for problem in figures.problems:
                        problems += 1
                        print(f"    PROBLEM: {problem}", file=sys.stderr, flush=True)
                if asked.write:  # each, for a run may be interrupted
                    write(f"faults on {broker}{', guarded' * asked.guarded}", lines)
    if problems:
        sys.exit(f"ordermq: {problems} problems; what the processes told is in {kept}")
    shutil.rmtree(kept)


if __name__ == "__main__":
    main()
