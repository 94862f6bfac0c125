"""The page for readers of the Java client: its examples run, its paths exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.component.docs_examples import examples, run_example

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "from-java.md").read_text()
PRINTS = {
    "Global order": "True",
    "A poison message": "[(b'good', 0), (b'poison', 3), (b'good', 0)]",
}


@pytest.mark.parametrize("section", PRINTS)
def test_the_example_of_a_section_prints_what_it_should(section: str, tmp_path: Path) -> None:
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    (code,) = examples(text)
    done = run_example(code, tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, PRINTS[section]), done.stderr


def test_every_file_named_on_the_page_exists() -> None:
    named = re.findall(r"`((?:ordermq|ext)/[\w/.]+)`", PAGE)
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []
