"""The build steps of the site: links of docstrings, and lines of Chinese pages."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

SCRIPT: dict[str, Any] = runpy.run_path(
    str(Path(__file__).resolve().parents[2] / "ci" / "docs_site.py")
)


def test_a_page_that_a_docstring_names_becomes_a_link() -> None:
    linked = SCRIPT["linked_pages"]
    assert linked("<p>twice (docs/order.md#failures).</p>") == (
        '<p>twice (<a href="../order.html#failures">order</a>).</p>'
    )
    assert linked("docs/internals/semantics.md") == (
        '<a href="../internals/semantics.html">semantics</a>'
    )
    kept = '<a title="docs/order.md">order</a>'
    assert linked(kept) == kept


def test_lines_of_chinese_are_joined_and_those_of_programs_are_not() -> None:
    joined = SCRIPT["joined_chinese"]
    assert joined("消息。\n按顺序") == "消息。按顺序"
    assert joined("消息\n- 顺序") == "消息\n- 顺序"
    assert joined("消息\n\n顺序") == "消息\n\n顺序"
    assert joined("Spark\n消息") == "Spark\n消息"
    code = "```python\n# 消息\n消息\n```"
    assert joined(code) == code


def test_every_example_that_a_page_links_to_is_on_the_page_of_examples() -> None:
    root = Path(__file__).resolve().parents[2]
    linked = {
        name
        for page in (root / "docs").rglob("*.md")
        for name in re.findall(
            r"\]\((?:\.\./)+examples/(?:[\w/]*/)?([\w.-]+\.\w+)\)", page.read_text()
        )
    }
    shown = re.findall(r"^## (.+)$", SCRIPT["_examples"](), re.MULTILINE)
    assert linked, "no page links to an example"
    assert linked <= set(shown)


def test_a_pipe_in_code_of_a_table_is_shown_and_one_between_two_pieces_is_left() -> None:
    shown = SCRIPT["_with_pipes"]
    assert shown(r"| `a \| b` | c |") == "| <code>a &#124; b</code> | c |"
    row = r"| `tags` | * or tags joined by \|\| | `*` | only these |"
    assert shown(row) == row
    assert shown(r"not of a table: `a \| b`") == r"not of a table: `a \| b`"
