"""The lists of Spark's short and long legs name tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.spark.legs import LONG, MUST_EXIST, OLDEST, Row

FOLDER = Path(__file__).resolve().parents[1] / "spark"
THERE = {
    f"{path.stem}::{name}"
    for path in FOLDER.glob("test_*.py")
    for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)
}
LONG_ONLY = {f"{file}::{name}" for file, names in LONG.items() for name in names}


def test_every_long_test_is_there() -> None:
    assert sorted(LONG_ONLY - THERE) == []


def test_every_test_of_the_oldest_spark_is_there() -> None:
    named = {f"{file}::{name}" for file, names in OLDEST.items() for name in names}
    assert named
    assert sorted(named - THERE) == []


@pytest.mark.parametrize("row", MUST_EXIST.values(), ids=MUST_EXIST.keys())
def test_what_must_exist_is_there_and_shown_by_the_short_leg(row: Row) -> None:
    assert row.short
    assert sorted({*row.short, *row.long} - THERE) == []
    assert sorted(set(row.short) & LONG_ONLY) == []
    assert sorted(set(row.long) - LONG_ONLY) == []
