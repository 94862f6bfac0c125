"""`ordermq reset`: move a group to other offsets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from ordermq.admin.admin import Admin
from ordermq.admin.topics import Place
from ordermq.cli.client_options import Servers, client_options, exit_on_error, group_argument
from ordermq.cli.output import (
    EXIT_CODES,
    confirm,
    counted,
    json_option,
    note,
    print_json_list,
    print_table,
    yes_option,
)
from ordermq.cli.place import TIME_HELP, parse_end_or_time, parse_time, queues_option, spoken


def _parse_time(text: str | datetime) -> datetime:
    if text in ("now", "first", "last"):  # mqadmin has "now"
        raise click.BadParameter(
            f"{text!r} is no time: --to last is the end, --to first the oldest message."
        )
    return parse_time(text)


def _only(places: Sequence[Place | None]) -> Place:
    """Return the one place that was given."""
    given = [place for place in places if place is not None]
    if len(given) != 1:
        raise click.UsageError("give one of --to, --to-offset and --to-time")
    return given[0]


@click.command(epilog=EXIT_CODES)
@group_argument
@click.argument("topic")
@click.option(
    "--to",
    "end",
    type=parse_end_or_time,
    metavar="PLACE",
    help="first, the oldest message; last, the end, past all messages; or a time, as --to-time.",
)
@click.option(
    "--to-offset",
    "offset",
    type=click.IntRange(0),
    metavar="N",
    help="An offset that each of the queues has.",
)
@click.option(
    "--to-time",
    "moment",
    type=_parse_time,
    metavar="TIME",
    help=f"The first message stored then or later: {TIME_HELP}.",
)
@queues_option
@yes_option
@client_options
@json_option
def reset(
    group: str,
    topic: str,
    end: Place | None,
    offset: int | None,
    moment: datetime | None,
    queues: tuple[int, ...],
    yes: bool,
    servers: Servers,
    as_json: bool,
) -> None:
    """Move GROUP to other offsets of TOPIC, forward or back.

    Live members are asked to move, each after its running batch; this waits up to 30 s until all
    have heard of it. While no member is online the offsets are stored under the queues' locks.
    Live members of brokers before RocketMQ 5.2 can be moved on all queues of a topic only, and not
    to an offset: stop them for that. Members that keep their offsets in a database move while they
    are live only, and have the effects of what they consume again once more.

    \b
    Example:
      ordermq reset billing orders --to-time 2h
      ordermq reset billing orders --to-offset 1042 --queue 3 --yes
    """
    place = _only([end, offset, moment])
    with exit_on_error(), Admin(**servers.settings()) as admin:
        members = len(admin.group(group, [topic], ask_members=False).members)
        confirm(
            f"Move group {group!r} ({counted(members, 'live member')}) on topic {topic!r} to "
            f"{spoken(place)}? Messages are consumed again, or skipped.",
            is_agreed=yes,
        )
        found = admin.reset(group, topic, place, queues=queues)
    if as_json:
        print_json_list(
            {
                "queue": str(each.queue),
                "before": each.before,
                "after": each.after,
                "by_members": each.by_members,
                "confirmed": each.is_confirmed,
            }
            for each in found
        )
        return
    rows = [
        (each.queue, each.before, each.after, each.after - (each.before or 0)) for each in found
    ]
    moved = sum(each.after != each.before for each in found)
    print_table(
        f"{group}: {moved:,} of {counted(len(found), 'queue')} moved",
        ["queue", "before", "after", "change"],
        rows,
    )
    if not members and all(each.before is None for each in found):
        note(f"group {group!r} had no member and no offset before: is its name right?")
    elif not members:
        note(
            "stored at the brokers: members that keep their offsets in a database (offset_store=) "
            "start at those; reset such a group while a member is live, or move its rows, too "
            "(docs/exactly-once.md#moving-a-stopped-group)"
        )
    if any(each.by_members for each in found):
        note("each live member goes there as soon as its running batch has ended")
    if silent := [str(each.queue) for each in found if not each.is_confirmed]:
        note(
            f"not confirmed by the member that has it: {', '.join(silent)}; look at ordermq lag, "
            "and reset these again if they did not move"
        )
