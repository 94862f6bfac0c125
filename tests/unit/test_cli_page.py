"""docs/cli.md says what the commands take."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import click

from ordermq.cli.main import main
from ordermq.cli.output import EXIT_CODES

# They print a line or nothing, or what goes on until they are ended.
WITHOUT_JSON = {
    "ordermq broker backup", "ordermq broker restore", "ordermq topics delete",
    "ordermq groups delete", "ordermq exporter", "ordermq run",
}  # fmt: skip
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


def test_every_command_has_an_example_and_its_exit_codes_and_json_if_it_tells_something() -> None:
    for path, command in SCRIPT["commands"](main, "ordermq"):
        names = {option for each in command.params for option in each.opts}
        assert path in str(command.help).partition("Example")[2], path
        assert command.epilog == EXIT_CODES, path
        assert "--json" in names or path in WITHOUT_JSON, path


def test_an_example_is_code_whatever_its_heading_adds() -> None:
    page = SCRIPT["PAGE"].read_text()
    assert "\nordermq run billing:consumer --processes 4 --metrics-port 9100\n" in page
    assert "Example" not in page.partition("## ordermq run")[2].partition("```")[0]


def test_the_documents_name_only_commands_that_there_are() -> None:
    words = {path.partition(" ")[2] for path, _ in SCRIPT["commands"](main, "ordermq")}
    firsts = {each.partition(" ")[0] for each in words}
    # Those of the prose; a block of code is what a test runs, or the output of something.
    named = {
        (path.name, command)
        for path in [*(SCRIPT["ROOT"] / "docs").rglob("*.md"), *SCRIPT["ROOT"].glob("*.md")]
        for command in re.findall(r"`ordermq ([a-z]+)[ `]", path.read_text())
    } - {("benchmarks.md", "on")}  # `ordermq on asyncio` is a row of a table
    assert len(named) > 20
    assert [each for each in sorted(named) if each[1] not in firsts] == []
