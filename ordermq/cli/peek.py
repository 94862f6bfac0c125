"""`ordermq peek`: print messages without joining a group."""

from __future__ import annotations

from collections.abc import Iterable
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
    print_json_list,
    print_table,
)
from ordermq.cli.place import count_option, from_option, queues_option
from ordermq.model.failure_story import FailureStory
from ordermq.model.message import MessageView

_MOST_BODY = 60  # characters of a body in a table; --json has all of it


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
    show_messages(topic, messages, as_json)


def show_messages(
    title: str, messages: list[MessageView], as_json: bool, *, with_origin: bool = False
) -> None:
    """Print messages as a table, or as a JSON list with whole bodies.

    Args: with_origin: also the topic that each was sent to, where it is stored in another one.
    """
    if as_json:
        print_json_list(
            {**message_document(each), **(_origin(each) if with_origin else {})}
            for each in messages
        )
    elif not messages:
        note(f"{title}: no message there")
    else:
        columns = ["queue", "key", "body", "offset", "stored"]
        rows = [list(row) for row in _rows(messages)]
        if with_origin:
            columns[1:1] = ["topic", "why"]
            for row, message in zip(rows, messages, strict=True):
                story = FailureStory.of(message)
                why = "" if story is None else _line(f"{story.attempts} x {story.error}")
                row[1:1] = [message.topic, why]
        print_table(title, columns, rows, right=len(columns) - 2, text="body")


def _origin(letter: MessageView) -> dict[str, object]:
    """Return what JSON has of a dead letter besides the message."""
    story = FailureStory.of(letter)
    return {"sent_to": letter.topic, "failure": None if story is None else asdict(story)}


def _line(text: str) -> str:
    # A line of its own per message: a text with line ends would tear the table apart.
    line = " ".join(text.split())
    return line if len(line) <= _MOST_BODY else f"{line[: _MOST_BODY - 1]}…"


def _rows(messages: Iterable[MessageView]) -> Iterable[tuple[object, ...]]:
    for message in messages:
        document = message_document(message)
        shown = _line(str(document.get("body") or document.get("body_base64")))
        yield (
            f"{message.message_queue.broker_name}/{message.queue_id}",
            message.sharding_key,
            shown,
            message.queue_offset,
            local_time(message.store_timestamp_ms),
        )
