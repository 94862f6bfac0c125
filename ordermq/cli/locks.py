"""`ordermq locks`: who holds which queue of a group."""

from __future__ import annotations

import click

from ordermq.cli.connecting import Servers, explained, servers_options
from ordermq.cli.lag import require_known
from ordermq.cli.output import EXIT_CODES, fail, json_option, note, print_json, print_table
from ordermq.client.group_inspector import GroupInspector, GroupState
from ordermq.model.message_queue import MessageQueue

_SAID_BY_MEMBERS = {
    "queue": "queue",
    "member": "member",
    "says locked": "locked",
    "buffered": "buffered",
    "in listener": "in_listener",
}
_COLUMNS = _SAID_BY_MEMBERS | {
    "broker's owner": "owner",
    "epoch": "epoch",
    "runs out in ms": "left_ms",
}


@click.command(epilog=EXIT_CODES)
@click.argument("group")
@click.argument("topics", nargs=-1)
@servers_options
@json_option
def locks(group: str, topics: tuple[str, ...], servers: Servers, as_json: bool) -> None:
    """Show who holds each queue of GROUP, by its members and by the broker.

    Members are asked through their broker, Java's too. The embedded broker also tells each
    lock's epoch and when it runs out; RocketMQ's has no request for that. Exits with 1 if a
    member says it holds what the broker has given to another.

    \b
    Example:
      ordermq locks billing
    """
    with explained(), GroupInspector(**servers.settings()) as inspector:
        state = inspector.look(group, topics)
    require_known(state)
    rows = [_row(state, queue) for queue in state.progress]
    if as_json:
        print_json({"group": group, "queues": rows, "silent": state.silent})
    else:
        title = f"{group}: {len(state.members)} members"
        columns = ["queue", "member", "says locked", "buffered", "in listener"]
        if state.locks is not None:
            columns += ["broker's owner", "epoch", "runs out in ms"]
        names = (
            "queue",
            "member",
            "locked",
            "buffered",
            "in_listener",
            "owner",
            "epoch",
            "left_ms",
        )
        cells = [[row[name] for name in names[: len(columns)]] for row in rows]
        print_table(title, columns, cells, right=3)
        for name, reason in state.silent.items():
            note(f"{name} did not answer: {reason}")
        if state.locks is None:
            note("this broker does not tell its locks: only what members say is shown")
    wrong = [
        row for row in rows if row["locked"] and row["owner"] and row["owner"] != row["member"]
    ]
    if wrong:
        names_of = ", ".join(str(row["queue"]) for row in wrong)
        fail(f"held by another than the member says: {names_of}")


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
