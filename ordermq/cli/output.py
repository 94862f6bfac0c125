"""What all commands share: exit codes, tables, JSON, progress bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NoReturn, TypeVar

import click
import orjson
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

_F = TypeVar("_F", bound=Callable[..., Any])


class ExitCode(IntEnum):
    """What a script can rely on."""

    OK = 0
    FAILED = 1  # a check failed, or not everything could be done
    USAGE = 2  # wrong option, unreadable file
    UNREACHABLE = 3  # no broker answers


EXIT_CODES = """\b
Exit codes:
  0  all is well
  1  a check failed, or not everything was done
  2  a wrong option or an unreadable file
  3  no broker answers"""

out = Console()
err = Console(stderr=True)


def json_option(function: _F) -> _F:
    """The option --json: one JSON document on stdout, nothing else."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(
        function
    )


def print_json(document: Mapping[str, Any]) -> None:
    """Write one indented JSON document to stdout."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    click.echo(orjson.dumps(document, option=options, default=str).decode())


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: int = 1
) -> None:
    """Write a table to stdout; columns from number `right` on are figures."""
    table = Table(box=box.SIMPLE_HEAD)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place >= right else "left")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    out.print(f"[bold]{_escape(title)}[/]", highlight=False, soft_wrap=True)
    out.print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def fail(message: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """Say on stderr why, and leave."""
    err.print(f"[bold red]error[/]: {_escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(code)


def note(message: str) -> None:
    """Say something on stderr that is no result."""
    err.print(_escape(message), highlight=False, soft_wrap=True)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Bars on stderr, shown only if that is a terminal."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=err,
        redirect_stdout=False,  # results belong to stdout, also while a bar is drawn
        disable=not err.is_terminal,
        transient=True,
    ) as progress:
        yield progress
