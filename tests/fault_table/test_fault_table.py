"""The short run of the fault table, and what it would say if something were wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ordermq.model.message_queue import MessageQueue
from tests.fault_table.rows import ROWS
from tests.fault_table.run import PAGE, described, line, placed, play
from tests.fault_table.scene import Clients, Figures, TableRun, no_offsets, order_breaks


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_row_that_takes_seconds_finds_nothing(tmp_path: Path, is_guarded: bool) -> None:
    figures = play(ROWS["cut"], None, tmp_path, is_guarded=is_guarded)
    assert figures.problems == []
    assert figures.faults == 30
    assert (figures.lost, figures.overlaps, figures.order_breaks) == (0, 0, 0)
    assert not (tmp_path / "cut").exists()


def test_the_page_describes_every_row() -> None:
    page = PAGE.read_text()
    assert placed(page, "rows", described()) == page, "run ci/chaos.sh --table --write"


def test_a_line_tells_the_repeats_by_their_cause() -> None:
    figures = Figures(1_200, 3, repeats={"crash of a member": 7}, silence_s=0.25, seconds=9.7)
    assert line(ROWS["cut"], figures) == (
        "| cut | 1,200 | 3 | 0 | 7 crash of a member | 0 | 0 | 0.2 s | 10 s |"
    )


def test_a_line_tells_that_a_row_found_problems() -> None:
    figures = Figures(problems=["Failed: a member did not start", "a queue stayed silent"])
    assert line(ROWS["cut"], figures).endswith("| 0 s, **problems: 2** |")


def test_first_deliveries_out_of_order_are_found(tmp_path: Path) -> None:
    run = TableRun(Clients("127.0.0.1:1", no_offsets), tmp_path, "x", is_told=True)
    history = tmp_path / "member.jsonl"
    run.histories.append(history)
    ends = []
    for t, (queue, offset, number) in enumerate([(0, 0, 1), (1, 0, 3), (0, 1, 2), (0, 2, 3)]):
        run.deliver(
            "member",
            {"topic": "t", "broker": "b", "queue": queue, "offset": offset, "key": "k",
             "body": str(number)},
        )  # fmt: skip
        ends.append(
            {"type": "END", "t": t, "broker": "b", "queue": queue, "offs": [offset], "done": 1}
        )
    history.write_text("".join(f"{json.dumps(end)}\n" for end in ends))
    assert run.deliveries[0].queue == MessageQueue("t", "b", 0)
    # The second delivery of 3 is a repeat and breaks nothing.
    assert list(order_breaks(run)) == ["key k: 2 after 3"]
    run.close()
