"""Citations of our own documents: each one leads to a file and a heading that exist."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READ = {".py", ".pyx", ".pxd", ".pyi", ".c", ".h", ".sh", ".md", ".toml", ".yml"}
# A path of ours in the code, or the target of a Markdown link.
_CITATION = re.compile(r"(?<![\w/])(docs/[\w/.-]+\.md)(?:#([\w-]+))?")
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([\w-]+))?(?: \"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6} (.+?)\s*#*$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# Section numbers of notes that the project does not contain.
_OUTSIDE = re.compile(
    r"\b(?:semantics|protocol)(?:\.md)?,? (?:section |§ ?)?\d+(?:\.\d+)?\b"
    r"|\b(?:design|words|style|moves|faults)\.md\b"
)
# The version of RocketMQ's protocol is not a section of ours.
_PROTOCOL_VERSION = re.compile(r"protocol,? (?:4\.9|5\.\d)")


@cache
def sources() -> dict[str, str]:
    """Return the text of every file under version control that may cite."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return {
        name: (ROOT / name).read_text()
        for name in listed
        if Path(name).suffix in READ and (ROOT / name).is_file() and ROOT / name != Path(__file__)
    }


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


@cache
def anchors(document: Path) -> frozenset[str]:
    return frozenset(map(slug, _HEADING.findall(_FENCED.sub("", document.read_text()))))


def is_missing(document: Path, anchor: str | None) -> bool:
    if not document.exists():
        return True
    return bool(anchor) and document.suffix == ".md" and anchor not in anchors(document)


def test_every_citation_leads_to_a_heading() -> None:
    missing = {
        f"{name}: {file}#{anchor}"
        for name, text in sources().items()
        for file, anchor in _CITATION.findall(text)
        if is_missing(ROOT / file, anchor)
    }
    assert sorted(missing) == []


def test_every_link_of_a_document_leads_somewhere() -> None:
    missing = {
        f"{name}: {target}#{anchor}"
        for name, text in sources().items()
        if name.endswith(".md")
        for target, anchor in _LINK.findall(_FENCED.sub("", text))
        if is_missing(folder_of(name) / target if target else ROOT / name, anchor)
    }
    assert sorted(missing) == []


def folder_of(name: str) -> Path:
    """Return where the links of a document begin; parts of the changelog will be in its folder."""
    is_fragment = name.startswith("changes/+")
    return ROOT if is_fragment else (ROOT / name).parent


def test_no_citation_leaves_the_project() -> None:
    outside = [
        f"{name}: {found[0]}"
        for name, text in sources().items()
        for found in _OUTSIDE.finditer(_PROTOCOL_VERSION.sub("", text))
    ]
    assert outside == []


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Leases and renewal", "leases-and-renewal"),
        ("TLS", "tls"),
        ("`on_revoked`, and after", "on_revoked-and-after"),
        ("[Order](order.md) of keys", "order-of-keys"),
    ],
)
def test_an_anchor_is_made_as_github_does(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor
