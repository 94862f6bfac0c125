"""Headings of docs/troubleshooting.md are texts that a user can meet."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADINGS = re.findall(
    r"^### `(.*)`$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE
)
CELLS = re.findall(
    r"^\| .+ \| `(.*)` \|$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE
)


@cache
def texts() -> str:
    """Return every text of the package, those in pieces joined."""
    return "\n".join(
        node.value
        for path in sorted((ROOT / "ordermq").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_the_page_has_headings() -> None:
    assert len(HEADINGS) > 20
    assert len(CELLS) > 10


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_heading_is_a_text_of_the_code(heading: str) -> None:
    assert heading in texts()


@pytest.mark.parametrize("text", CELLS)
def test_a_text_of_the_table_of_mistakes_is_one_of_the_code(text: str) -> None:
    assert text in texts()
