"""Paths that the documents for contributors name: each file or folder exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "glossary.md",
    *sorted((ROOT / "docs" / "internals").glob("*.md")),
]
_ROOMS = "ordermq|ext|tests|bench|ci|docs|examples|pyspark_ordermq"
_PATH = re.compile(rf"`((?:{_ROOMS})/[\w./-]*)(?:::\w+)?`")


def test_every_path_named_for_contributors_exists() -> None:
    missing = [
        f"{document.name}: {path}"
        for document in DOCUMENTS
        for path in _PATH.findall(document.read_text())
        if not (ROOT / path).exists()
    ]
    assert missing == []


def test_every_page_is_in_the_site() -> None:
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    told = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert pages <= told, "list it under nav in mkdocs.yml"
