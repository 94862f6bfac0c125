"""Commands of ordermq in documents and examples: the command line takes each of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from ordermq.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".yaml")),
]
# A line of a block of code or of a docstring, perhaps with variables before it.
_COMMAND = re.compile(r"^ *(?:[A-Z_]+=\S+ )*ordermq (.+)$", re.MULTILINE)
_BEHIND = {"|", "||", "&", "&&", ">"}


def lines_of(path: Path) -> list[str]:
    names = main.list_commands(click.Context(main))
    found = [each[1] for each in _COMMAND.finditer(path.read_text())]
    # Sentences begin with the name of the project, too; the pages have a pattern per command.
    return [each for each in found if each.split()[0] in names and "[OPTIONS]" not in each]


FOUND = [
    pytest.param(line, id=f"{path.relative_to(ROOT)}: {line}")
    for path in sorted(SOURCES)
    for line in lines_of(path)
]


@pytest.mark.parametrize("line", FOUND)
def test_the_command_line_takes_it(line: str) -> None:
    words = shlex.split(line, comments=True)
    words = words[: next((n for n, word in enumerate(words) if word in _BEHIND), None)]
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name!r}"
        command, context = found, click.Context(found, parent=context)
    # Raises for an option that there is not. Values are not looked at: files need not exist.
    command.make_parser(context).parse_args(words)


def test_there_are_commands_in_documents_and_examples() -> None:
    told = " ".join(str(param.id) for param in FOUND)
    assert "docs/getting-started.md: " in told
    assert "examples/orders_service.py: broker --data " in told
