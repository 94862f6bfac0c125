"""`ordermq peek`: print messages without joining a group."""

from __future__ import annotations

from dataclasses import asdict

import click

from ordermq.admin.admin import Admin
from ordermq.admin.topics import Place
from ordermq.cli.client_options import Servers, client_options, exit_on_error
from ordermq.cli.consume import message_document
from ordermq.cli.output import (
    EXIT_CODES,
    json_option,
    local_time,
    note,
    out,
    print_json_list,
    print_table,
)
from ordermq.cli.place import count_option, from_option, queues_option
from ordermq.model.failure_story import FailureStory
from ordermq.model.message import MessageView

_SHOWN_BODY = "body_error", "body", "body_base64"  # the first of a document's fields
_MOST_BODY = 60  # characters of a body in a table; --json has all of it
_WIDTH_WITH_IDS = 130  # columns of a terminal


@click.command(epilog=EXIT_CODES)
@click.argument("topic")
@from_option
@count_option("Number of messages, of all queues together.")
@queues_option
@client_options
@json_option
def peek(
    topic: str, place: Place, count: int, queues: tuple[int, ...], servers: Servers, as_json: bool
) -> None:
    """Print messages of TOPIC, the oldest first; nothing is committed.

    \b
    Example:
      ordermq peek orders
      ordermq peek orders --from 15m --count 100 --json
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        messages = admin.peek(topic, count, start=place, queues=queues)
    with exit_on_error():  # a library that a body needs may be missing
        show_messages(topic, messages, as_json)


def show_messages(title: str, messages: list[MessageView], as_json: bool) -> None:
    """Print messages as a table, or as a JSON list with whole bodies."""
    if as_json:
        print_json_list(map(message_document, messages))
    elif not messages:
        note(f"{title}: no message there")
    else:
        columns = ["queue", "key", "tags", "body", "offset", "stored"]
        rows = [message_row(each) for each in messages]
        print_table(title, columns, rows, right=4, text="body")


def show_dead_letters(title: str, letters: list[MessageView], as_json: bool) -> None:
    """Print dead letters: also the topic each was sent to, why it failed, and its id."""
    if as_json:
        print_json_list({**message_document(each), **_origin(each)} for each in letters)
    elif not letters:
        note(f"{title}: no message there")
    else:
        columns = ["queue", "topic", "why", "key", "tags", "body", "offset", "stored", "id"]
        print_with_ids(title, columns, [_letter_row(each) for each in letters], right=6)


def print_with_ids(title: str, columns: list[str], rows: list[list[object]], *, right: int) -> None:
    """Print a table of messages, of which the last column has the ids.

    Args: right: as of `print_table`.
    """
    # An id that is cut or wrapped cannot be copied.
    is_narrow = out.is_terminal and out.width < _WIDTH_WITH_IDS
    if is_narrow:
        left = [place for place, name in enumerate(columns) if name not in ("tags", "id")]
        columns, rows = [columns[at] for at in left], [[row[at] for at in left] for row in rows]
    print_table(title, columns, rows, right=right - is_narrow, text="body")
    if is_narrow:
        note(f"tags and ids need a terminal of {_WIDTH_WITH_IDS} columns, a pipe or --json")


def _origin(letter: MessageView) -> dict[str, object]:
    """Return what JSON has of a dead letter besides the message."""
    story = FailureStory.of(letter)
    return {"sent_to": letter.topic, "failure": None if story is None else asdict(story)}


def _line(text: str) -> str:
    # A line of its own per message: a text with line ends would tear the table apart.
    line = " ".join(text.split())
    return line if len(line) <= _MOST_BODY else f"{line[: _MOST_BODY - 1]}…"


def message_row(message: MessageView) -> list[object]:
    """Return queue, sharding key, tags, body, offset and time of a message, as cells."""
    document = message_document(message)
    return [
        f"{message.message_queue.broker_name}/{message.queue_id}",
        message.sharding_key,
        message.tags,
        _line(str(next(document[name] for name in _SHOWN_BODY if name in document))),
        message.queue_offset,
        local_time(message.store_timestamp_ms),
    ]


def _letter_row(letter: MessageView) -> list[object]:
    queue, *rest = message_row(letter)
    story = FailureStory.of(letter)
    why = "" if story is None else _line(f"{story.attempts} x {story.error}")
    return [queue, letter.topic, why, *rest, letter.message_id]
