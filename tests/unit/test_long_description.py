"""Links of the README as a package index shows it (ci/long_description.py)."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
absolute_links = runpy.run_path(str(ROOT / "ci" / "long_description.py"))["absolute_links"]


def linked(text: str) -> str:
    return str(absolute_links(text, "https://example.org/o/", "v1.2.3"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[order](docs/order.md)", "[order](https://example.org/o/blob/v1.2.3/docs/order.md)"),
        (
            "[cost](docs/security.md#tls)",
            "[cost](https://example.org/o/blob/v1.2.3/docs/security.md#tls)",
        ),
        ("![demo](docs/demo.png)", "![demo](https://example.org/o/raw/v1.2.3/docs/demo.png)"),
        (
            "[![ci](docs/ci.svg)](docs/order.md)",
            "[![ci](https://example.org/o/raw/v1.2.3/docs/ci.svg)]"
            "(https://example.org/o/blob/v1.2.3/docs/order.md)",
        ),
        ("[here](#ten-lines)", "[here](#ten-lines)"),
        ("[there](https://example.org/x)", "[there](https://example.org/x)"),
    ],
)
def test_a_relative_link_leads_to_the_file_of_the_tag(text: str, expected: str) -> None:
    assert linked(text) == expected


def test_no_link_of_the_readme_stays_relative() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", linked((ROOT / "README.md").read_text()))
    assert targets
    assert [to for to in targets if not to.startswith(("https://", "http://", "#"))] == []
