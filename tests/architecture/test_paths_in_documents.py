"""Paths and names in the documents for contributors: each is one of the project."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "glossary.md",
    *sorted((ROOT / "docs" / "internals").glob("*.md")),
]
_ROOMS = "ordermq|ext|tests|bench|ci|docs|examples|pyspark_ordermq"
_PATH = re.compile(rf"`((?:{_ROOMS})/[\w./-]*)(?:::\w+)?`")
# Names in these are ours; semantics.md and protocol.md also name what RocketMQ alone has.
OF_OUR_NAMES = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "glossary.md",
    ROOT / "docs" / "internals" / "architecture.md",
]
_NAME = re.compile(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`")
_CODE = {".py", ".pyx", ".pxd", ".pyi", ".c", ".h", ".sh", ".toml"}
_WORD = re.compile(r"[A-Za-z_]\w*")
_CLASS = re.compile(r"^(?:cdef )?class (\w+)", re.MULTILINE)


def test_every_path_named_for_contributors_exists() -> None:
    missing = [
        f"{document.name}: {path}"
        for document in DOCUMENTS
        for path in _PATH.findall(document.read_text())
        if not (ROOT / path).exists()
    ]
    assert missing == []


def test_every_folder_is_on_the_map() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## The map")[2].partition("\n## ")[0]
    told = {path.strip("/") for path in re.findall(r"`([\w/]+)`", text)}
    there = {name.partition("/")[0] for name in tracked() if "/" in name}
    there |= {"/".join(name.split("/")[:2]) for name in tracked("tests") if name.count("/") > 1}
    assert {name for name in there if not name.startswith(".")} - told == {"tests"}


def test_every_page_is_in_the_site() -> None:
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    told = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert pages <= told, "list it under nav in mkdocs.yml"


def tracked(*folders: str) -> list[str]:
    command = ["git", "ls-files", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def code() -> dict[str, set[str]]:
    """Return the words of each source that git knows, those of its path included."""
    return {
        name: set(_WORD.findall(name + " " + (ROOT / name).read_text()))
        for name in tracked(*_ROOMS.split("|"), "pyproject.toml")
        if Path(name).suffix in _CODE and (ROOT / name).is_file()
    }


def test_every_name_given_to_contributors_is_one_of_the_code() -> None:
    sources = code()
    words = set().union(*sources.values())
    homes: dict[str, set[str]] = {}  # of a class: the words of every source that has one so named
    for name, found in sources.items():
        for owner in _CLASS.findall((ROOT / name).read_text()):
            homes.setdefault(owner, set()).update(found)
    wrong = [
        f"{document.name}: {name}"
        for document in OF_OUR_NAMES
        for name in _NAME.findall(document.read_text())
        for first, *rest in [name.strip(".").split(".")]
        if first not in words or not homes.get(first, words).issuperset(rest)
    ]
    assert wrong == []
