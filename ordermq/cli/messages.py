"""`ordermq messages`: find messages by key, id, offset or time."""

from __future__ import annotations

from datetime import datetime

import click

from ordermq.admin.admin import Admin
from ordermq.cli.client_options import Servers, client_options, exit_on_error
from ordermq.cli.consume import message_document
from ordermq.cli.output import (
    EXIT_CODES,
    counted,
    json_option,
    local_time,
    note,
    print_json_list,
    print_table,
)
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
    servers: Servers,
    as_json: bool,
) -> None:
    """Find messages of TOPIC by one of --key, --id, --offset and --at.

    Each group that has an offset of a message's queue is listed: "waiting" for what it has not
    committed yet, "done", or "dead" for what is among its dead letters.

    \b
    Example:
      ordermq messages find orders --key o-17
      ordermq messages find orders --at 15m --json
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
        )
    if as_json:
        print_json_list({**message_document(each.message), "groups": each.groups} for each in found)
        return
    if not found:
        note(f"{topic}: no such message")
        return
    rows = [
        (
            f"{each.message.message_queue.broker_name}/{each.message.queue_id}",
            each.message.sharding_key,
            [f"{group}: {state}" for group, state in sorted(each.groups.items())],
            each.message.queue_offset,
            local_time(each.message.store_timestamp_ms),
        )
        for each in found
    ]
    print_table(
        f"{counted(len(found), 'message')} of {topic}",
        ["queue", "key", "groups", "offset", "stored"],
        rows,
        right=3,
    )
