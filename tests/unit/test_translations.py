"""The Chinese pages are kept in step with the English ones."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT: dict[str, Any] = runpy.run_path(
    str(Path(__file__).resolve().parents[2] / "ci" / "translations.py")
)
PAIRS: list[tuple[Path, Path]] = SCRIPT["pairs"]()
both = pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda path: path.name)


def test_there_are_six_of_them() -> None:
    assert len(PAIRS) == 6


@both
def test_a_chinese_page_has_the_programs_of_the_english_one(english: Path, chinese: Path) -> None:
    ours, theirs = (SCRIPT["code_of"](page.read_text()) for page in (english, chinese))
    if english.name == "README.md":
        ours = [code for code in ours if not code.startswith("```sh\npip install ordermq")]
        theirs = [code for code in theirs if not code.startswith("```sh\npip install ordermq")]
    assert theirs == ours
    assert theirs


@both
def test_a_chinese_page_has_the_sections_and_table_rows_of_the_english_one(
    english: Path, chinese: Path
) -> None:
    shape = SCRIPT["shape_of"]
    assert shape(chinese.read_text()) == shape(english.read_text())


def test_no_english_page_changed_since_its_chinese_one_was_looked_at() -> None:
    stale = SCRIPT["stale"]()
    assert stale == [], (
        f"bring {', '.join(stale)} up to date, then run .venv/bin/python ci/translations.py"
    )


@pytest.mark.parametrize(
    ("changed", "is_stale"),
    [("| 1 |", True), ("# B", True), ("```sh\nls\n```", True), ("Some words.", False)],
)
def test_a_changed_heading_program_or_row_makes_a_page_stale(changed: str, is_stale: bool) -> None:
    english, chinese = "# A\n\nOne.\n", "# 甲\n\n一。\n"
    noted = SCRIPT["noted"]
    done = noted(english, chinese)
    assert noted(english, done) == done
    assert (noted(f"{english}\n{changed}\n", done) != done) is is_stale
