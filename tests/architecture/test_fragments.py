"""Files of changes/: their form, and the part of the changelog that a release makes of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"\+[a-z0-9-]+\.(added|changed|deprecated|removed|fixed)\.md")
LONGEST = 110


def faults(name: str, text: str) -> list[str]:
    """Return what is wrong with one part of the changelog."""
    lines = text.splitlines()
    found = {
        "named otherwise": not NAME.fullmatch(name),
        "empty": not text.strip(),
        "no sentence": not re.match(r"[A-Z`]", text) or not text.endswith((".\n", ")\n", "`\n")),
        "more than one paragraph, or a list": any(re.match(r"$|[-*#] ", line) for line in lines),
        "long lines": max(map(len, lines), default=0) > LONGEST,
    }
    return [fault for fault, is_there in found.items() if is_there]


def test_every_part_of_the_next_changelog_has_its_form() -> None:
    parts = [path for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    found = {path.name: faults(path.name, path.read_text()) for path in parts}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("+pop.added.md", "Members pop.\n", None),
        ("+pop.added.md", "`pop` is new\n([pop](docs/pop.md))\n", None),
        ("pop.added.md", "Members pop.\n", "named otherwise"),  # towncrier takes it for an issue
        ("+pop.new.md", "Members pop.\n", "named otherwise"),
        ("+pop.added.md", "", "empty"),
        ("+pop.added.md", "members pop\n", "no sentence"),
        ("+pop.added.md", "Members pop.\n\nMore.\n", "more than one paragraph, or a list"),
        ("+pop.added.md", f"Members {'p' * 110}.\n", "long lines"),
    ],
)
def test_a_form_that_would_not_read_well_is_found(name: str, text: str, fault: str | None) -> None:
    assert (fault in faults(name, text)) if fault else (faults(name, text) == [])


def test_a_release_makes_a_part_with_its_heading_of_them(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "+pop.added.md").write_text("Members pop\n([pop](docs/pop.md)).\n")
    build = ["build", "--yes", "--version", "9.8.7", "--date", "2026-12-01"]
    subprocess.run(
        [sys.executable, "-m", "towncrier", *build],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=60,
    )
    changed = (tmp_path / "CHANGELOG.md").read_text()
    part = "## 9.8.7, 2026-12-01\n\n### Added\n\n- Members pop\n  ([pop](docs/pop.md)).\n\n"
    marker = "<!-- parts of changes/ are inserted here -->\n"
    before, after = (ROOT / "CHANGELOG.md").read_text().split(marker)
    assert changed.startswith(f"{before}{marker}\n{part}")
    assert changed.endswith(after.lstrip())
