"""The feature tables of docs/comparison.md and docs/proxy.md: each link of ours leads to a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r'\]\(\.\./(tests/[^ )"]+)(?: "([^"]+)")?\)')


def rows() -> list[str]:
    found = []
    for page in ("comparison.md", "proxy.md"):
        text = (ROOT / "docs" / page).read_text()
        table = text.split("<!-- features:begin -->")[1].split("<!-- features:end -->")[0]
        found += [line for line in table.strip().splitlines()[2:] if "talks to" not in line]
    return found


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip())
def test_every_feature_we_claim_links_to_its_test(row: str) -> None:
    links = _LINK.findall(row.split("|")[2])
    assert links, row
    for file, name in links:
        text = (ROOT / file).read_text()
        assert "def test_" in text
        assert not name or f"def {name}(" in text, f"{file} has no {name}"
