"""`ordermq locks`: the holder of each queue of a group, by its members and by the broker."""

from __future__ import annotations

from collections.abc import Mapping

import click

from ordermq.admin.admin import Admin
from ordermq.admin.groups import GroupState
from ordermq.cli.client_options import Servers, client_options, exit_on_error, group_argument
from ordermq.cli.lag import require_known
from ordermq.cli.output import (
    EXIT_CODES,
    counted,
    fail,
    json_option,
    note,
    print_json,
    print_table,
    short_client_ids,
)
from ordermq.model.message_queue import MessageQueue

# Heading -> name in JSON. The first group is what members report, the second the broker's.
_BY_MEMBERS = {
    "queue": "queue",
    "held by member": "member",
    "locked": "locked",
    "buffered": "buffered",
    "in progress": "in_listener",
}
_BY_BROKER = {
    "lock holder (broker)": "owner",
    "epoch": "epoch",
    "expires in": "left_ms",
}


@click.command(epilog=EXIT_CODES)
@group_argument
@click.argument("topics", nargs=-1)
@client_options
@json_option
def locks(group: str, topics: tuple[str, ...], servers: Servers, as_json: bool) -> None:
    """Show which member of GROUP holds each queue.

    "locked" to "in progress" is the members' report: whether the member holds the lock, how
    many messages it has buffered, and how many its listener has now. The embedded broker also
    reports each lock's holder, epoch and remaining time; RocketMQ's broker has no request for
    that. Exits with 1 if a member believes to hold a queue that the broker gave to another.

    \b
    Example:
      ordermq locks billing
      ordermq locks billing orders --json
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        state = admin.group(group, topics)
    require_known(state)
    rows = [_row(state, queue) for queue in state.progress]
    if as_json:
        print_json({"group": group, "queues": rows, "silent": state.silent})
    else:
        # RocketMQ's brokers do not report locks: columns that are always empty are left out.
        columns = _BY_MEMBERS if state.locks is None else _BY_MEMBERS | _BY_BROKER
        short = short_client_ids(member.client_id for member in state.members)
        cells = [
            [queue, *(_cell(row, name, short) for name in columns.values() if name != "queue")]
            for queue, row in zip(state.progress, rows, strict=True)
        ]
        title = f"{group}: {counted(len(state.members), 'member')}"
        print_table(title, list(columns), cells, right=3)
        for name, reason in state.silent.items():
            note(f"member {name} did not answer: {reason}")
        if state.locks is None:
            note("this broker does not report its locks; only the members' reports are shown")
    # A lost lease shows up like this for a moment; if it stays, the member does not renew.
    wrong = [
        row for row in rows if row["locked"] and row["owner"] and row["owner"] != row["member"]
    ]
    if wrong:
        names = ", ".join(str(row["queue"]) for row in wrong)
        fail(f"a member believes to hold a queue that the broker has locked for another: {names}")


def _cell(row: dict[str, object], name: str, short: Mapping[str, str]) -> object:
    value = row[name]
    # The usual case in one short word, so that a row in which both differ stands out.
    if name == "owner" and value is not None and value == row["member"]:
        return "same"
    if name in ("member", "owner") and value is not None:
        return short.get(str(value), value)
    if name == "locked" and value is not None:
        return "yes" if value else "no"
    if name == "left_ms" and isinstance(value, int):
        return f"{value / 1000:.1f} s"
    return value


def _row(state: GroupState, queue: MessageQueue) -> dict[str, object]:
    member, said = state.holdings.get(queue, (None, None))
    held = (state.locks or {}).get(queue)
    return {
        "queue": str(queue),
        "member": member,
        "locked": None if said is None else said.is_locked,
        "buffered": None if said is None else said.buffered,
        "in_listener": None if said is None else said.in_listener,
        "owner": None if held is None else held.owner,
        "epoch": None if held is None else held.epoch,
        "left_ms": None if held is None else held.left_ms,
    }
