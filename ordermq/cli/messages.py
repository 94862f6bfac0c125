"""`ordermq messages`: find messages by key, id, offset or time."""

from __future__ import annotations

from datetime import datetime

import click

from ordermq.admin.admin import Admin
from ordermq.admin.message_search import FoundMessage
from ordermq.cli.client_options import Servers, client_options, exit_on_error
from ordermq.cli.consume import message_document
from ordermq.cli.output import (
    EXIT_CODES,
    counted,
    json_option,
    note,
    print_json_list,
)
from ordermq.cli.peek import message_row, print_with_ids
from ordermq.cli.place import TIME_HELP, count_option, parse_time, queues_option


@click.group(epilog=EXIT_CODES)
def messages() -> None:
    """Find messages, and where they are in each group.

    \b
    Example:
      ordermq messages find orders --key o-17
    """


@messages.command(epilog=EXIT_CODES)
@click.argument("topic")
@click.option("--key", help="One of the message's keys.")
@click.option("--id", "message_id", help="Id of the producer, as receipts have it, or the broker.")
@click.option("--offset", type=click.IntRange(0), help="Offset, of each queue or of --queue.")
@click.option("--at", type=parse_time, metavar="TIME", help=f"Stored then or later: {TIME_HELP}.")
@count_option("Number of messages; by a key the newest.")
@queues_option
@click.option("--parking-topic", metavar="TOPIC", help="Say what is parked there, by ParkKey.")
@client_options
@json_option
def find(
    topic: str,
    key: str | None,
    message_id: str | None,
    offset: int | None,
    at: datetime | None,
    count: int,
    queues: tuple[int, ...],
    parking_topic: str | None,
    servers: Servers,
    as_json: bool,
) -> None:
    """Find messages of TOPIC by one of --key, --id, --offset and --at.

    "groups" has each group with an offset of the message's queue: "waiting" for what it has not
    committed yet, "done", or "dead" for what is among its dead letters. What ParkKey has moved to a
    topic is "done", too, unless --parking-topic names that: then it is "parked". "sharding key" is
    what chose the queue; --key looks for one of the message's keys, which --json lists.

    \b
    Example:
      ordermq messages find orders --key o-17
      ordermq messages find orders --at 15m --json
      ordermq messages find orders --offset 17 --parking-topic parked-orders
    """
    if len([each for each in (key, message_id, offset, at) if each is not None]) != 1:
        raise click.UsageError("Give one of --key, --id, --offset and --at.")
    with exit_on_error(), Admin(**servers.settings()) as admin:
        found = admin.find_messages(
            topic,
            key=key,
            message_id=message_id,
            offset=offset,
            at=at,
            queues=queues,
            count=count,
            parking_topic=parking_topic,
        )
    with exit_on_error():  # a library that a body needs may be missing
        _print(topic, found, as_json)


def _print(topic: str, found: list[FoundMessage], as_json: bool) -> None:
    if as_json:
        print_json_list(
            {
                **message_document(each.message),
                "keys": list(each.message.keys),
                "stored_ms": each.message.store_timestamp_ms,
                "groups": each.groups,
            }
            for each in found
        )
        return
    if not found:
        note(f"{topic}: no such message")
        return
    # Not "key": --key means one of the message's keys, which need not have this one among them.
    columns = ["queue", "sharding key", "tags", "body", "groups", "offset", "stored", "id"]
    title = f"{counted(len(found), 'message')} of {topic}"
    print_with_ids(title, columns, [_row(each) for each in found], right=5)


def _row(found: FoundMessage) -> list[object]:
    queue, key, tags, body, *rest = message_row(found.message)
    states = [f"{group}: {state}" for group, state in sorted(found.groups.items())]
    return [queue, key, tags, body, states or None, *rest, found.message.message_id]
