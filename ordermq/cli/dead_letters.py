"""`ordermq dlq`: list, show and re-drive dead letters."""

from __future__ import annotations

from dataclasses import asdict

import click

from ordermq.admin.admin import Admin
from ordermq.admin.topics import Place
from ordermq.cli.client_options import Servers, client_options, exit_on_error, group_argument
from ordermq.cli.output import (
    EXIT_CODES,
    confirm,
    counted,
    fail,
    json_option,
    local_time,
    note,
    print_json,
    print_json_list,
    print_table,
    yes_option,
)
from ordermq.cli.peek import show_messages
from ordermq.cli.place import count_option, from_option
from ordermq.errors import RouteError
from ordermq.model.names import dead_letter_topic


@click.group(epilog=EXIT_CODES)
def dlq() -> None:
    """List, show and send again the messages that groups gave up.

    \b
    Example:
      ordermq dlq list
      ordermq dlq redrive billing
    """


@dlq.command("list", epilog=EXIT_CODES)
@client_options
@json_option
def list_letters(servers: Servers, as_json: bool) -> None:
    """List the groups that have dead letters.

    \b
    Example:
      ordermq dlq list
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        found = admin.dead_letters()
    if as_json:
        print_json_list(found)
        return
    rows = [
        (each.group, each.messages, each.waiting, local_time(each.last_stored_ms)) for each in found
    ]
    title = f"{counted(len(found), 'group')} with dead letters"
    print_table(title, ["group", "letters", "not sent again", "newest"], rows)


@dlq.command("show", epilog=EXIT_CODES)
@group_argument
@from_option
@count_option("Number of messages.")
@click.option("--waiting", "is_waiting", is_flag=True, help="Only those that were not sent again.")
@client_options
@json_option
def show_letters(
    group: str, place: Place, count: int, is_waiting: bool, servers: Servers, as_json: bool
) -> None:
    """Print dead letters of GROUP, the oldest first.

    "topic" is the one that each was sent to, and goes back to with `dlq redrive`. "why" says how
    often it failed, and with which exception in the end, as ordermq's consumers store it with the
    letter.

    \b
    Example:
      ordermq dlq show billing --from first --json
      ordermq dlq show billing --waiting --from first --count 100
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        try:
            if is_waiting:
                first = admin.redrive_offsets(group)
                # The first of them, not of all: else letters sent again would use up the count.
                place = min(first.values()) if place == "first" else place
                letters = [
                    letter
                    for letter in admin.peek(dead_letter_topic(group), count, start=place)
                    if letter.queue_offset >= first[letter.message_queue]
                ]
            else:
                letters = admin.peek(dead_letter_topic(group), count, start=place)
        except RouteError:
            # No such topic; or nobody can say so, and then this raises, too.
            if all(each.group != group for each in admin.dead_letters()):
                fail(f"group {group!r} has no dead letters")
            raise
    show_messages(f"dead letters of {group}", letters, as_json, with_origin=True)


@dlq.command("redrive", epilog=EXIT_CODES)
@group_argument
@click.option("--count", type=click.IntRange(1), help="Send at most this many; default all.")
@click.option("--to-topic", help="Send them to this topic; default the topic each came from.")
@yes_option
@client_options
@json_option
def redrive(
    group: str, count: int | None, to_topic: str | None, yes: bool, servers: Servers, as_json: bool
) -> None:
    """Send the dead letters of GROUP again, in the order of each key.

    They go behind the messages that were sent to their topics meanwhile: where later messages of a
    key were consumed, its order is broken, and sending again does not mend it. Groups that must
    keep it hold failing keys back with ParkKey: `ordermq parked`.

    Those that were sent again are remembered, and not sent by the next call.

    \b
    Example:
      ordermq dlq redrive billing
      ordermq dlq redrive billing --count 100 --yes
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        waiting = next((each.waiting for each in admin.dead_letters() if each.group == group), None)
        if waiting is None:
            fail(f"group {group!r} has no dead letters")
        most = waiting if count is None else min(count, waiting)
        where = f"to {to_topic!r}" if to_topic else "to the topics they came from"
        if most:
            confirm(f"Send {counted(most, 'dead letter')} of {group!r} {where}?", is_agreed=yes)
        done = admin.redrive(group, count=count, to_topic=to_topic)
    if as_json:
        print_json(asdict(done))
    else:
        keys = counted(done.keys, "key")
        note(f"{counted(done.sent, 'dead letter')} of {keys} sent again, {done.left:,} left")
        if done.overtaken_by:
            note(
                f"{counted(done.overtaken_by, 'message')} of their queues were stored behind them "
                "before that: keys of which some were consumed are out of order. "
                "on_failure=ParkKey() keeps the order of a key"
            )
