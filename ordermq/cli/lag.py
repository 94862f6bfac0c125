"""`ordermq lag`: how many messages a group is behind."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click
from rich.console import Group, RenderableType
from rich.text import Text

from ordermq.admin.admin import Admin
from ordermq.admin.groups import GroupState
from ordermq.cli.client_options import Servers, client_options, exit_on_error, group_argument
from ordermq.cli.output import (
    EXIT_CODES,
    counted,
    fail,
    fitted_table,
    json_option,
    note,
    print_json,
    print_table,
)
from ordermq.cli.watch import rounds, watch
from ordermq.client.withdrawn_queues import problem_of
from ordermq.remoting.admin_bodies import QueueProgress


@click.command(epilog=EXIT_CODES)
@group_argument
@click.argument("topics", nargs=-1)
@client_options
@click.option("--at-most", type=click.IntRange(0), help="Exit with 1 if the total lag is greater.")
@click.option("--watch", "is_watched", is_flag=True, help="Show it again and again until Ctrl-C.")
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True,
              help="With --watch: refresh interval in seconds.")  # fmt: skip
@click.option("--count", type=click.IntRange(1), help="With --watch: stop after N tables.")
@json_option
def lag(
    group: str,
    topics: tuple[str, ...],
    servers: Servers,
    at_most: int | None,
    is_watched: bool,
    every: float,
    count: int | None,
    as_json: bool,
) -> None:
    """Show how many messages GROUP is behind on each queue.

    TOPICS limits the queues; the default is every topic that the group consumes. Members are
    asked what they have consumed, for they commit it some seconds later; of a member that does not
    answer, what is committed counts. "behind" is the age of the last committed message, where its
    queue has newer ones; "-" without these, or if nothing of the queue was ever committed.

    \b
    Example:
      ordermq lag billing
      ordermq lag billing --watch
      ordermq lag billing orders --at-most 1000 || echo "billing is too slow"
    """
    if is_watched and at_most is not None:
        raise click.UsageError("--watch and --at-most: give one of them")
    with exit_on_error(), Admin(**servers.settings()) as admin:

        def look() -> GroupState:
            return admin.group(group, topics)

        state = look()
        require_known(state)
        if is_watched and not as_json:

            def refresh() -> None:
                nonlocal state
                state = look()

            watch(lambda: _view(state), refresh, every, count)
        elif as_json:
            print_json(lag_document(state, _now_ms()))
            for _ in rounds(every, count if is_watched else 1):
                print_json(lag_document(look(), _now_ms()))
        else:
            columns, rows = lag_rows(state, _now_ms())
            print_table(_title(state), columns, rows)
            for name, reason in state.silent.items():
                note(f"member {name} did not answer: {reason}")
            note_absent(state)
            note_withdrawn(state)
    # After the output, so that a script that fails still shows by how much.
    if at_most is not None and state.lag > at_most:
        fail(f"group {group!r} is {state.lag:,} messages behind, more than {at_most:,}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _title(state: GroupState) -> str:
    behind_by = counted(state.lag, "message")
    return f"{state.group}: {behind_by} behind, {counted(len(state.members), 'member')}"


def _view(state: GroupState) -> RenderableType:
    columns, rows = lag_rows(state, _now_ms())
    return Group(Text(_title(state), style="bold"), fitted_table(columns, rows))


def require_known(state: GroupState) -> None:
    """End the command if the brokers do not know the group."""
    # Brokers know a group by its members and its committed offsets; a new group may have neither.
    if not state.progress and not state.members:
        fail(
            f"group {state.group!r} has no member and no offset: check its name, or start a member "
            "(ordermq lag GROUP TOPIC needs none)"
        )


def note_absent(state: GroupState) -> None:
    """Name the topics of a group's members that no broker has."""
    for topic in state.absent:
        note(f"topic {topic}, which members subscribe to, is on no broker: create it, or wait")


def note_withdrawn(state: GroupState) -> None:
    """Tell what is unread in queues that the group's topics have no more."""
    for topic in sorted({queue.topic for queue in state.withdrawn}):
        left = {queue: one for queue, one in state.withdrawn.items() if queue.topic == topic}
        note(f"{topic}: withdrawn queues: {problem_of(left)}")


def behind(done: QueueProgress, now_ms: int) -> str | None:
    """Return the age of the last committed message; None without lag, or if it is not known."""
    # Without lag the age only says how old the last message is.
    if not done.lag or not done.last_done_ms:
        return None
    # The time is the broker's, and its clock may be ahead of this machine's.
    seconds = max(now_ms - done.last_done_ms, 0) / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def lag_rows(state: GroupState, now_ms: int) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """Return the columns and rows of a group's progress, for a table."""
    rows = [
        (queue, done.committed, done.consumed, done.end, done.lag, behind(done, now_ms))
        for queue, done in state.progress.items()
    ]
    return ("queue", "committed", "consumed", "end offset", "lag", "behind"), rows


def lag_document(state: GroupState, now_ms: int) -> dict[str, object]:
    """Return a group's progress, for JSON."""
    return {
        "group": state.group,
        "lag": state.lag,
        "members": [member.client_id for member in state.members],
        "queues": [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "committed": done.committed,
                "consumed": done.consumed,
                "end": done.end,
                "lag": done.lag,
                # 0 where the broker does not know it.
                "last_done_ms": done.last_done_ms or None,
            }
            for queue, done in state.progress.items()
        ],
        # Queues that their topics have no more, or that are closed for reads; not in the lag.
        "withdrawn": [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "offset": one.offset,
                "unread": one.count,
            }
            for queue, one in state.withdrawn.items()
        ],
    }
