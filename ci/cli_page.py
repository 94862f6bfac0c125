"""Writes docs/cli.md: every command with its arguments, options and examples.

.venv/bin/python ci/cli_page.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from ordermq.cli.main import main

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "cli.md"
BEGIN, END = "<!-- commands -->\n", "<!-- end -->"


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its whole name; those that only hold others are left out."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def section(path: str, command: click.Command) -> str:
    """Return one command: what it does, how it is called, its options."""
    text = inspect.cleandoc(command.help or "")
    # "Example:", or "Example, with so-and-so:".
    words, *rest = re.split(r"^\x08\nExample(?:, .*)?:\n", text, maxsplit=1, flags=re.MULTILINE)
    examples = "".join(rest)
    # Other blocks that must keep their lines are marked likewise.
    prose = words.replace("\b\n", "").strip()
    usage = " ".join([path, *command.collect_usage_pieces(click.Context(command))])
    lines = [f"## {path}", "", prose, "", "```sh", usage]
    if examples:
        lines += ["", *inspect.cleandoc(f"\n{examples}").splitlines()]
    lines += ["```"]
    options = [
        row(each) for each in command.params if isinstance(each, click.Option) and not each.hidden
    ]
    if options:
        lines += ["", "| option | default | meaning |", "|---|---|---|", *options]
    return "\n".join(lines) + "\n"


def row(option: click.Option) -> str:
    """Return an option as a row of a table."""
    context = click.Context(click.Command("page"))
    record = option.get_help_record(context)
    assert record is not None, option.name
    names = record[0].strip()
    meaning = (option.help or "").strip()
    if isinstance(option.envvar, str):
        meaning += f" Also from the environment: `{option.envvar}`."
    default = option.default if option.show_default else None
    shown = "" if default is None else f"`{default}`"
    cells = (each.replace("|", "\\|") for each in (f"`{names}`", shown, meaning))
    return f"| {' | '.join(cells)} |"


def filled(page: str) -> str:
    """Return the page with the commands as the code has them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    parts = [section(path, command) for path, command in commands(main, "ordermq")]
    return f"{before}{begin}\n" + "\n".join(parts) + f"\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
