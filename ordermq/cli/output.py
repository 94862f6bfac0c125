"""Output of all commands: exit codes, tables, JSON, progress bars, errors."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import IntEnum
from itertools import groupby
from textwrap import wrap
from typing import Any, NoReturn, TypeVar

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from ordermq import json_text
from ordermq.model.message_queue import MessageQueue

_F = TypeVar("_F", bound=Callable[..., Any])


class ExitCode(IntEnum):
    """Exit codes that scripts can rely on."""

    OK = 0
    FAILED = 1  # a check failed, or not everything could be done
    USAGE = 2  # wrong option, unreadable file
    UNREACHABLE = 3  # no name server or broker answers, or none has the topic


EXIT_CODES = """\b
Exit codes:
  0  success
  1  a check failed, or the command could not finish
  2  invalid option or unreadable file
  3  no name server or broker answers, or none has the topic
  130, 143  stopped by SIGINT or SIGTERM before its end"""

_NARROWEST_NAME = 10

out = Console()
err = Console(stderr=True)


def json_option(function: _F) -> _F:
    """Add the option --json: stdout gets one JSON document and nothing else."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(
        function
    )


def print_json(document: Mapping[str, Any]) -> None:
    """Write one indented JSON document to stdout."""
    options = json_text.OPT_INDENT_2 | json_text.OPT_NON_STR_KEYS
    click.echo(json_text.dumps(document, option=options, default=str).decode())


def print_line(line: Text) -> None:
    """Write a line to stdout; in files and pipes it stays one, for who searches in them."""
    out.print(line, highlight=False, soft_wrap=not out.is_terminal)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: int = 1,
    text: str | None = None,
) -> None:
    """Write a table to stdout, or only its title; the arguments are those of `fitted_table`."""
    out.print(f"[bold]{_escape(title)}[/]", highlight=False, soft_wrap=True)
    if rows:
        out.print(fitted_table(columns, rows, right=right, text=text), crop=False)


def fitted_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: int = 1,
    text: str | None = None,
) -> RenderableType:
    """Return a table that fits the terminal; elsewhere it is as wide as its words.

    On a terminal that is too narrow for queues with their topics, each topic stands above the rows
    of its queues. What is too wide even then is shortened. Files and pipes get whole names, one
    row on each line, for who searches in them.

    Args:
        rows: a cell that is a list of names has one on each line.
        right: columns from this number on are aligned to the right, and never shortened.
        text: column that is shortened at its end. Others are in their middle, so that a queue keeps
            its number.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    widths = _fitting_widths(columns, cells)
    queues = [row[0] for row in rows if isinstance(row[0], MessageQueue)]
    sections: list[tuple[str | None, list[list[Text]]]] = [(None, cells)]
    if out.is_terminal and queues and len(queues) == len(rows) and _table_width(widths) > out.width:
        for queue, line in zip(queues, cells, strict=True):
            line[0] = Text(f"{queue.broker_name}/{queue.queue_id}")
        widths = _fitting_widths(columns, cells)
        pairs = groupby(zip(queues, cells, strict=True), lambda pair: pair[0].topic)
        sections = [(topic, [line for _, line in lines]) for topic, lines in pairs]
    if out.is_terminal:
        _shorten_names(cells, widths, right, None if text is None else columns.index(text))
    parts: list[RenderableType] = []
    for topic, lines in sections:
        if topic is not None:
            parts.append(Text(topic, no_wrap=True, overflow="ellipsis"))
        parts.append(_table(columns, lines, widths, right))
    return Group(*parts)


def _table(
    columns: Sequence[str], cells: Sequence[Sequence[Text]], widths: Sequence[int], right: int
) -> Table:
    table = new_table()
    for place, column in enumerate(columns):
        is_name = place < right
        # In a column of names only the heading is wrapped.
        heading = "\n".join(wrap(column, widths[place]))
        table.add_column(
            heading, justify="left" if is_name else "right", no_wrap=is_name, width=widths[place]
        )
    for row in cells:
        table.add_row(*row)
    # Otherwise rich would cut what does not fit.
    needed = _table_width(widths)
    table.width = needed if needed > out.width else None
    return table


def _fitting_widths(columns: Sequence[str], cells: Sequence[Sequence[Text]]) -> list[int]:
    widths = _widths(columns, cells, [len(each) for each in columns])
    if _table_width(widths) <= out.width:
        return widths
    # Headings may wrap; cells never do, or nobody could copy what is in them.
    return _widths(columns, cells, [max(map(len, each.split())) for each in columns])


def _widths(
    columns: Sequence[str], cells: Sequence[Sequence[Text]], headings: Sequence[int]
) -> list[int]:
    return [
        max(headings[place], *(_width(row[place]) for row in cells), 0)
        for place in range(len(columns))
    ]


def _width(cell: Text) -> int:
    return max((cell_len(line) for line in cell.plain.split("\n")), default=0)


def _table_width(widths: Sequence[int]) -> int:
    # Beside the cells: an edge at each end, a pad behind each column, a gap between two.
    return sum(widths) + 2 + len(widths) + len(widths) - 1


def _shorten_names(
    cells: Sequence[Sequence[Text]], widths: list[int], right: int, at_its_end: int | None
) -> None:
    """Shorten cells of the left columns, the widest first, until the table fits the terminal."""
    while _table_width(widths) > out.width:
        widest = max(range(right), key=lambda place: widths[place])
        if widths[widest] <= _NARROWEST_NAME:
            break
        widths[widest] -= 1
    for row in cells:
        for place, (cell, width) in enumerate(zip(row[:right], widths, strict=False)):
            lines = cell.plain.split("\n")
            # More of the end: it has the number of a queue, and the process of a member.
            head = width - 1 if place == at_its_end else (width - 1) // 3
            cell.plain = "\n".join(_shortened(line, width, head) for line in lines)


def _shortened(whole: str, width: int, head: int) -> str:
    if len(whole) <= width:
        return whole
    return f"{whole[:head]}…{whole[len(whole) - (width - 1 - head) :]}"


def new_table(**settings: Any) -> Table:
    """Return an empty table in the style of all commands."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), **settings)


def counted(count: int, noun: str) -> str:
    """Return `1 member` or `2 members`."""
    return f"{count:,} {noun}" + "s" * (count != 1)


def _cell(value: object) -> Text:
    if value is None:
        return Text("-")
    if isinstance(value, float):
        return Text(f"{value:,.1f}")
    if isinstance(value, int) and not isinstance(value, bool):
        return Text(f"{value:,}")
    if isinstance(value, list):
        return Text(("\n" if out.is_terminal else ", ").join(_cell(each).plain for each in value))
    # Bodies and tags are others' text: no markup of rich, and no commands to the terminal.
    return Text("".join(each if each.isprintable() else "\ufffd" for each in str(value)))


def short_client_ids(client_ids: Iterable[str]) -> dict[str, str]:
    """Return client id -> its shortest beginning that tells it from the others.

    An id ends with random digits, behind `#`; what stays is `ip@pid`, of a named client `ip@name`
    or `ip@name#pid`.
    """
    ids = list(client_ids)
    shorts = {each: each for each in ids}
    for parts in (2, 1):
        cut = {each: "#".join(each.split("#")[:parts]) for each in ids}
        counts = Counter(cut.values())
        shorts |= {each: short for each, short in cut.items() if counts[short] == 1}
    return shorts


def yes_option(function: _F) -> _F:
    """Add the option --yes: do it without asking."""
    return click.option("--yes", is_flag=True, help="Do it without asking.")(function)


def confirm(question: str, *, is_agreed: bool) -> None:
    """Ask before something that cannot be undone; end the command without a yes."""
    if is_agreed:
        return
    # A script must say so itself: nobody reads its questions.
    if not _is_attended():
        fail(f"{question} Nobody is here to ask: add --yes to do it", ExitCode.USAGE)
    if not click.confirm(question, err=True):
        fail("nothing was changed")


def _is_attended() -> bool:
    return sys.stdin.isatty()


def print_json_list(rows: Iterable[object]) -> None:
    """Write a list of dataclasses to stdout as one JSON document."""
    click.echo(json_text.dumps(list(rows), option=json_text.OPT_INDENT_2, default=str).decode())


def local_time(wall_ms: int) -> str | None:
    """Return a time as people read it, in this machine's time zone; None for 0."""
    if not wall_ms:
        return None
    return datetime.fromtimestamp(wall_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def fail(message: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """Print an error to stderr and exit."""
    err.print(f"[bold red]error[/]: {_escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(code)


def fail_to_write(error: OSError) -> NoReturn:
    """End a command whose output cannot be written, without another attempt at its exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    reason, remedy = error.strerror, "free space, or send it elsewhere"
    if error.errno == errno.EBADF:
        reason, remedy = "standard output is closed", "send it elsewhere"
    fail(f"the output cannot be written ({reason}): {remedy}")


def note(message: str) -> None:
    """Print to stderr, for people: stdout has results only."""
    err.print(_escape(message), highlight=False, soft_wrap=True)


def _escape(text: str) -> str:
    # rich reads [...] as markup, and error texts contain IPv6 addresses and Python lists.
    return text.replace("[", r"\[")


@contextmanager
def progress_bar(*, of_bytes: bool = False) -> Iterator[Progress]:
    """Yield progress bars on stderr, shown only if that is a terminal.

    Args:
        of_bytes: what is counted are bytes, not messages.
    """
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if of_bytes else MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=err,
        redirect_stdout=False,  # results belong to stdout, also while a bar is drawn
        disable=not err.is_terminal,
        transient=True,
    ) as progress:
        yield progress
