"""`ordermq dlq`: list, show, re-drive and skip dead letters."""

from __future__ import annotations

from dataclasses import asdict
from typing import BinaryIO

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
from ordermq.cli.peek import show_dead_letters
from ordermq.cli.place import count_option, from_option
from ordermq.errors import RouteError
from ordermq.model.names import dead_letter_topic


@click.group(epilog=EXIT_CODES)
def dlq() -> None:
    """List, show and send again the messages that groups gave up.

    \b
    Example:
      ordermq dlq list
      ordermq dlq show billing --waiting
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
    print_table(title, ["group", "letters", "waiting", "newest"], rows)


@dlq.command("show", epilog=EXIT_CODES)
@group_argument
@from_option
@count_option("Number of messages.")
@click.option(
    "--waiting",
    "is_waiting",
    is_flag=True,
    help="Only those that were neither sent again nor skipped.",
)
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
            letters = (
                admin.waiting_letters(group, count, start=place)
                if is_waiting
                else admin.peek(dead_letter_topic(group), count, start=place)
            )
        except RouteError:
            # No such topic; or nobody can say so, and then this raises, too.
            if all(each.group != group for each in admin.dead_letters()):
                fail(f"group {group!r} has no dead letters")
            raise
    with exit_on_error():  # a library that a body needs may be missing
        show_dead_letters(f"dead letters of {group}", letters, as_json)


@dlq.command("redrive", epilog=EXIT_CODES)
@group_argument
@click.option("--count", type=click.IntRange(1), help="Send at most this many; default all.")
@click.option("--id", "message_id", help="Send only the letter with this id, as `dlq show` has it.")
@click.option("--body", type=click.File("rb"), metavar="FILE",
              help="With --id: send the content of FILE as its body; - is stdin.")  # fmt: skip
@click.option("--to-topic", help="Send them to this topic; default the topic each came from.")
@yes_option
@client_options
@json_option
def redrive(
    group: str,
    count: int | None,
    message_id: str | None,
    body: BinaryIO | None,
    to_topic: str | None,
    yes: bool,
    servers: Servers,
    as_json: bool,
) -> None:
    """Send the dead letters of GROUP again, in the order of each key.

    They go behind the messages that were sent to their topics meanwhile: where later messages of a
    key were consumed, its order is broken, and sending again does not mend it. Groups that must
    keep it hold failing keys back with ParkKey: `ordermq parked`.

    Those that were sent again are remembered, and not sent by the next call. With --id one letter
    is sent, with another body if you give one. It is refused while older letters of its key wait:
    send those again first, or `dlq skip` them.

    \b
    Example:
      ordermq dlq redrive billing
      ordermq dlq redrive billing --count 100 --yes
      ordermq dlq redrive billing --id 7F00000100002A9F00000000000000C8 --body mended.json
    """
    if message_id is None and body is not None:
        raise click.UsageError("--body is of one letter: give its --id, too.")
    if message_id is not None and count is not None:
        raise click.UsageError("--id names one letter: leave out --count.")
    with exit_on_error(), Admin(**servers.settings()) as admin:
        waiting = next((each.waiting for each in admin.dead_letters() if each.group == group), None)
        if waiting is None:
            fail(f"group {group!r} has no dead letters")
        most = waiting if count is None else min(count, waiting)
        where = f"to {to_topic!r}" if to_topic else "to the topics they came from"
        if message_id is not None:
            where = f"to {to_topic!r}" if to_topic else "to the topic it came from"
            confirm(f"Send dead letter {message_id} of {group!r} {where}?", is_agreed=yes)
        elif most:
            confirm(f"Send {counted(most, 'dead letter')} of {group!r} {where}?", is_agreed=yes)
        new_body = None if body is None else body.read()
        done = admin.redrive(
            group, count=count, to_topic=to_topic, message_id=message_id, body=new_body
        )
    if as_json:
        print_json(asdict(done))
    else:
        keys = f" of {counted(done.keys, 'key')}" if done.keys else ""  # as those without one have
        note(f"{counted(done.sent, 'dead letter')}{keys} sent again, {done.left:,} left")
        if done.overtaken_by:
            note(
                f"{counted(done.overtaken_by, 'message')} of their queues were stored behind them "
                "before that: keys of which some were consumed are out of order. "
                "on_failure=ParkKey() keeps the order of a key"
            )


@dlq.command("skip", epilog=EXIT_CODES)
@group_argument
@click.argument("message_ids", nargs=-1, required=True, metavar="IDS...")
@yes_option
@client_options
@json_option
def skip(
    group: str, message_ids: tuple[str, ...], yes: bool, servers: Servers, as_json: bool
) -> None:
    """Have dead letters IDS count as handled, unsent.

    `dlq redrive` leaves them out from now on. They can be read until the broker deletes them for
    their age.

    \b
    Example:
      ordermq dlq show billing --waiting
      ordermq dlq skip billing 7F00000100002A9F00000000000000C8
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        confirm(
            f"Leave {counted(len(message_ids), 'dead letter')} of {group!r} unsent for good?",
            is_agreed=yes,
        )
        for each in message_ids:
            admin.skip_letter(group, each)
        left = next((each.waiting for each in admin.dead_letters() if each.group == group), 0)
    if as_json:
        print_json({"group": group, "skipped": len(message_ids), "left": left})
    else:
        note(f"{counted(len(message_ids), 'dead letter')} skipped, {left:,} left")
