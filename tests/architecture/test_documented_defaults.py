"""Defaults that semantics.md names: they are those of ordermq.config."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from ordermq import config

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "semantics.md"
# | `name` | 1 000 ... |, and `name` (1000) within a sentence.
_IN_A_TABLE = re.compile(r"^\| `(\w+)` \| (\d[\d ]*)", re.MULTILINE)
_IN_A_SENTENCE = re.compile(r"`(\w+)` \((\d[\d ]*)\)")


def defaults() -> dict[str, set[Any]]:
    """Return the defaults of each setting's name; a name may be a setting of several groups."""
    found: dict[str, set[Any]] = {}
    for group in (getattr(config, name) for name in config.__all__):
        if dataclasses.is_dataclass(group) and isinstance(group, type):
            for part in dataclasses.fields(group):
                if isinstance(part.default, int):
                    found.setdefault(part.name, set()).add(part.default)
    return found


def documented() -> list[tuple[str, int]]:
    text = PAGE.read_text()
    rows = _IN_A_TABLE.findall(text) + _IN_A_SENTENCE.findall(text)
    return sorted({(name, int(number.replace(" ", ""))) for name, number in rows})


def test_the_page_names_defaults() -> None:
    assert len(documented()) > 15


@pytest.mark.parametrize(("name", "number"), documented())
def test_a_default_is_that_of_the_configuration(name: str, number: int) -> None:
    assert number in defaults().get(name, set())
