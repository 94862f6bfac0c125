"""`ordermq produce`: send lines or CSV rows as messages, in order per sharding key."""

from __future__ import annotations

import csv
import itertools
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import click

from ordermq import json_text
from ordermq.cli.client_options import Servers, client_options, exit_on_error
from ordermq.cli.output import (
    EXIT_CODES,
    ExitCode,
    fail,
    json_option,
    note,
    print_json,
    print_table,
    progress_bar,
)
from ordermq.errors import ConfigError, ConnectFailed, ConnectionLost, OrderMQError, RouteError
from ordermq.model.message import Message
from ordermq.model.receipts import SendReceipt
from ordermq.producer.producer import Producer

Pair = tuple[Message, str | None]


@click.command(epilog=EXIT_CODES)
@click.argument("topic")
@click.argument("file", type=click.File("r", encoding="utf-8"), default="-")
@client_options
@click.option("--csv", "is_csv", is_flag=True, help="Send each row of a CSV file as JSON.")
@click.option("--no-header", is_flag=True, help="The CSV has no header; send rows as JSON lists.")
@click.option("--key-column", help="CSV column of the sharding key: its name, or number from 0.")
@click.option("--lenient", is_flag=True, help="Send CSV rows with missing or surplus fields, too.")
@click.option("--key", help="Sharding key of all messages.")
@click.option("--tags", help="Tag of all messages.")
@click.option("--rate", type=click.FloatRange(min=0.001), help="Maximum messages per second.")
@click.option("--skip", type=click.IntRange(0), default=0, help="Skip the first N messages.")
@click.option(
    "--in-flight",
    type=click.IntRange(2),
    default=256,
    show_default=True,
    help="Maximum number of messages sent and not acknowledged yet.",
)
@json_option
def produce(
    topic: str,
    file: IO[str],
    servers: Servers,
    is_csv: bool,
    no_header: bool,
    key_column: str | None,
    lenient: bool,
    key: str | None,
    tags: str | None,
    rate: float | None,
    skip: int,
    in_flight: int,
    as_json: bool,
) -> None:
    """Send each line of FILE to TOPIC as a message.

    FILE defaults to stdin. Messages of one sharding key are stored in the order of the file. If
    sending fails, the error says where to resume.

    A CSV row must have as many fields as the header. With --lenient missing fields are left out of
    the JSON, and surplus ones are dropped.

    \b
    Example:
      ordermq produce orders events.txt --key o-17
      ordermq produce orders orders.csv --csv --key-column order_id --rate 500
    """
    if (key_column is not None or no_header or lenient) and not is_csv:
        raise click.UsageError("--key-column, --no-header and --lenient need --csv")
    if is_csv:
        pairs = _rows(topic, file, no_header, lenient, key_column, key, tags)
    else:
        pairs = _lines(topic, file, key, tags)
    # Skipped messages are still read and checked, so the numbers are those of the first run.
    events = itertools.islice(pairs, skip, None)
    tally = _send(servers, _paced(events, rate), in_flight, _Reading(file))
    tally.first = skip
    if as_json:
        print_json(tally.to_dict())
    elif tally.stored:
        _show(topic, tally)
    elif tally.error is None:
        note(f"0 messages stored in {topic}: the input is empty" + " after --skip" * bool(skip))
    if tally.error is not None:
        _explain(tally, in_flight)


@dataclass(slots=True)
class _Tally:
    """Acknowledged messages, counted in the order of the input."""

    stored: int = 0
    first: int = 0  # messages skipped
    seconds: float = 0.0
    queues: dict[str, list[int]] = field(default_factory=dict)  # count, first and last offset
    error: BaseException | None = None

    def add(self, receipt: SendReceipt) -> None:
        self.stored += 1
        name, offset = str(receipt.message_queue), receipt.queue_offset
        if name in self.queues:
            self.queues[name][0] += 1
            self.queues[name][2] = offset
        else:
            self.queues[name] = [1, offset, offset]

    def reason(self) -> str:
        """Return why it ended before the end of the input."""
        if isinstance(self.error, KeyboardInterrupt):
            return "interrupted"
        if isinstance(self.error, UnicodeDecodeError):
            remedy = "convert it, for example with iconv -t UTF-8"
            return f"the input is not UTF-8 ({self.error}): {remedy}"
        return str(self.error)

    def to_dict(self) -> dict[str, object]:
        return {
            "stored": self.stored,
            "seconds": round(self.seconds, 3),
            # Receipts come in the order of the input, so their number is where to go on.
            "resume_with_skip": None if self.error is None else self.first + self.stored,
            "error": None if self.error is None else self.reason(),
            "queues": [
                {"queue": name, "messages": count, "first_offset": first, "last_offset": last}
                for name, (count, first, last) in sorted(self.queues.items())
            ],
        }


class _Reading:
    """The size of the input and how much of it was read; the size is None of a pipe."""

    def __init__(self, file: IO[str]) -> None:
        self._raw: Any = getattr(getattr(file, "buffer", None), "raw", None)
        self.size: int | None = None
        if self._raw is not None and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            self.size = os.fstat(file.fileno()).st_size

    def done(self) -> int:
        """Return the bytes read: at most a block ahead of the messages."""
        # Asked of the file below the text: while lines are read, the text itself does not tell.
        return int(self._raw.tell())


def _send(servers: Servers, events: Iterable[Pair], in_flight: int, reading: _Reading) -> _Tally:
    tally = _Tally()
    started = time.monotonic()
    with (
        exit_on_error(),
        Producer("ordermq-cli", **servers.settings()) as producer,
        progress_bar(of_bytes=reading.size is not None) as progress,
    ):
        # A file is counted in bytes, because how many messages it has is not known before its end.
        bar = progress.add_task("stored", total=reading.size, note="")
        try:
            for receipt in producer.send_stream(events, max_in_flight=in_flight):
                tally.add(receipt)
                if reading.size is None:
                    progress.update(bar, completed=tally.stored)
                else:
                    progress.update(
                        bar, completed=reading.done(), note=f"{tally.stored:,} messages"
                    )
        # Kept, not raised: the user first sees what was stored, and then where to resume.
        except (OrderMQError, UnicodeDecodeError, csv.Error, KeyboardInterrupt) as error:
            tally.error = error
    tally.seconds = time.monotonic() - started
    return tally


def _lines(topic: str, file: IO[str], key: str | None, tags: str | None) -> Iterator[Pair]:
    for line in file:
        body = line.rstrip("\n")
        if body:  # an empty line is no message
            yield Message(topic, body.encode(), tags=tags), key


def _rows(
    topic: str,
    file: IO[str],
    no_header: bool,
    lenient: bool,
    key_column: str | None,
    key: str | None,
    tags: str | None,
) -> Iterator[Pair]:
    rows = csv.reader(file)
    header = [] if no_header else next(rows, [])
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice and not lenient:
        raise ConfigError(
            f"the header has {twice[0]!r} twice, and a JSON object has each name once: rename one, "
            "or go on with --lenient, which keeps the last"
        )
    place = _place(header, key_column)
    for number, row in enumerate(rows, start=1):
        if not row:
            continue
        if place is not None and place >= len(row):
            raise ConfigError(
                f"row {number} has {len(row)} columns, so none with number {place} for the key"
            )
        if header and len(row) != len(header) and not lenient:
            raise ConfigError(
                f"row {number} (line {rows.line_num}) has {len(row)} fields, the header has "
                f"{len(header)}: correct it, or go on with --lenient"
            )
        # Not strict, for --lenient: rows may be shorter; cells beyond the header have no name.
        body = json_text.dumps(row if no_header else dict(zip(header, row, strict=False)))
        yield Message(topic, body, tags=tags), key if place is None else row[place]


def _place(header: list[str], column: str | None) -> int | None:
    if column is None:
        return None
    # A name wins over a number: a header may be "2024".
    if column in header:
        return header.index(column)
    if column.isdecimal():
        return int(column)
    raise ConfigError(f"no column {column!r}: the file has {', '.join(header) or 'no header'}")


def _paced(events: Iterable[Pair], rate: float | None) -> Iterator[Pair]:
    started = time.monotonic()
    for number, event in enumerate(events):
        if rate is not None:
            # From the start, not from the last message: a late one does not slow the others down.
            ahead = number / rate - (time.monotonic() - started)
            if ahead > 0:
                time.sleep(ahead)
        yield event


def _show(topic: str, tally: _Tally) -> None:
    rate = tally.stored / tally.seconds if tally.seconds else 0.0
    print_table(
        f"{tally.stored:,} messages stored in {topic}, {rate:,.0f} per second",
        ["queue", "messages", "first offset", "last offset"],
        [(name, *counts) for name, counts in sorted(tally.queues.items())],
    )


def _explain(tally: _Tally, in_flight: int) -> None:
    error, reached = tally.error, tally.first + tally.stored
    reason = tally.reason()
    if tally.stored == 0 and isinstance(error, RouteError):
        fail(reason, ExitCode.UNREACHABLE)
    if tally.stored == 0 and isinstance(error, ConfigError | UnicodeDecodeError | csv.Error):
        fail(reason, ExitCode.USAGE)
    # Messages behind the first one without a receipt were on their way: they may be stored, too.
    where = (
        f"{reason}\nThe first {reached:,} messages are stored, and some of the next "
        f"{in_flight:,} may be. Resume with --skip {reached}."
    )
    if isinstance(error, KeyboardInterrupt):
        note(where)
        raise error  # for the exit code
    is_away = tally.stored == 0 and isinstance(error, ConnectFailed | ConnectionLost)
    fail(where, ExitCode.UNREACHABLE if is_away else ExitCode.FAILED)
