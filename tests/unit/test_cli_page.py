"""docs/cli.md says what the commands take."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import click

from ordermq.cli.main import main

SCRIPT: dict[str, Any] = runpy.run_path(
    str(Path(__file__).resolve().parents[2] / "ci" / "cli_page.py")
)


def test_the_page_is_up_to_date() -> None:
    page = SCRIPT["PAGE"].read_text()
    assert page == SCRIPT["filled"](page), "run ci/cli_page.py"
    assert "| `--queues INTEGER RANGE` | `8` | Number of queues at each broker. |" in page


def test_every_command_and_every_option_says_what_it_does() -> None:
    silent = [
        f"{path} {each.name}"
        for path, command in SCRIPT["commands"](main, "ordermq")
        for each in command.params
        if isinstance(each, click.Option) and not each.help
    ]
    assert silent == []
