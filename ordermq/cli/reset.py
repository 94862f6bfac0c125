"""`ordermq reset`: move a group to other offsets."""

from __future__ import annotations

import click

from ordermq.admin.admin import Admin
from ordermq.admin.topics import Place
from ordermq.cli.client_options import Servers, client_options, exit_on_error
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
from ordermq.cli.place import PLACE_HELP, parse_place, queues_option, spoken


@click.command(epilog=EXIT_CODES)
@click.argument("group")
@click.argument("topic")
@click.option(
    "--to",
    "place",
    type=parse_place,
    metavar="PLACE",
    required=True,
    help=f"{PLACE_HELP}.",
)
@queues_option
@yes_option
@client_options
@json_option
def reset(
    group: str,
    topic: str,
    place: Place,
    queues: tuple[int, ...],
    yes: bool,
    servers: Servers,
    as_json: bool,
) -> None:
    """Move GROUP to other offsets of TOPIC, forward or back.

    Live members are asked to move, each after its running batch; this waits up to 30 s until all
    have heard of it. While no member is online the offsets are stored under the queues' locks.
    Live members of brokers before RocketMQ 5.2 can be moved on all queues of a topic only, and not
    to an offset: stop them for that.

    \b
    Example:
      ordermq reset billing orders --to 2h
      ordermq reset billing orders --to 1042 --queue 3 --yes
    """
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
    print_table(
        f"{group}: {counted(len(found), 'queue')} moved",
        ["queue", "before", "after", "change"],
        rows,
    )
    if any(each.by_members for each in found):
        note("each live member goes there as soon as its running batch has ended")
    if silent := [str(each.queue) for each in found if not each.is_confirmed]:
        note(
            f"not confirmed by the member that has it: {', '.join(silent)}; look at ordermq lag, "
            "and reset these again if they did not move"
        )
