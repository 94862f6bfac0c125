"""Order after shuffles that spill, retries of tasks, and blocks of two hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.two_hosts import two_hosts

HERE = Path(__file__).parent
EACH = 4 * 1_200


def run(master: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE / "ordered_run.py"), master],
        cwd=HERE.parents[1],
        env=os.environ | {"PYTHONPATH": str(HERE.parents[1])},
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def assert_ordered(told: dict[str, Any]) -> None:
    assert (told["rows"], told["distinct"], told["breaks"]) == (EACH, EACH, 0), told


@pytest.fixture(scope="module")
def spilling() -> dict[str, Any]:
    return run("local[2,4]")  # four attempts a task


@pytest.mark.timeout(900)
def test_a_spilled_shuffle_breaks_sparks_groups_but_not_the_ordered_stages(
    spilling: dict[str, Any],
) -> None:
    assert spilling["unordered"]["breaks"] > 0, "nothing spilled: the test shows nothing"
    assert_ordered(spilling["by_key"])
    assert_ordered(spilling["without AQE"])


@pytest.mark.timeout(900)
def test_a_stream_by_key_is_in_order_although_its_shuffle_spills(
    spilling: dict[str, Any],
) -> None:
    assert_ordered(spilling["streamed"])


@pytest.mark.timeout(900)
def test_a_task_that_runs_again_returns_each_row_once_and_has_its_attempt_number(
    spilling: dict[str, Any],
) -> None:
    assert_ordered(spilling["retried"])
    assert spilling["retried"]["attempts"] == [[0, 0], [1, 1], [2, 0], [3, 0]]


@pytest.mark.timeout(1_200)
def test_order_holds_on_two_hosts_where_blocks_arrive_in_any_order(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as master:
        told = run(master)
    for name in ("by_key", "without AQE", "streamed", "retried"):
        assert_ordered(told[name])
    assert told["unordered"]["breaks"] > 0
