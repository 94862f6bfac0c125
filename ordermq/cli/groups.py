"""`ordermq groups`: list, describe, create and delete consumer groups."""

from __future__ import annotations

import time

import click

from ordermq.admin.admin import Admin
from ordermq.cli.client_options import Servers, client_options, exit_on_error, group_argument
from ordermq.cli.lag import lag_document, lag_rows, note_absent, note_withdrawn, require_known
from ordermq.cli.output import (
    EXIT_CODES,
    confirm,
    counted,
    json_option,
    note,
    print_json,
    print_json_list,
    print_table,
    short_client_ids,
    yes_option,
)


@click.group(epilog=EXIT_CODES)
def groups() -> None:
    """List, describe, create and delete consumer groups.

    \b
    Example:
      ordermq groups list
      ordermq groups describe billing
      ordermq groups create billing --orderly
      ordermq groups delete billing
    """


@groups.command("list", epilog=EXIT_CODES)
@client_options
@json_option
def list_groups(servers: Servers, as_json: bool) -> None:
    """List the groups with their members, topics and lag.

    \b
    Example:
      ordermq groups list
      ordermq groups list --json
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        found = admin.groups()
    if as_json:
        print_json_list(found)
        return
    rows = [(each.group, list(each.topics) or "-", each.members, each.lag) for each in found]
    print_table(counted(len(found), "group"), ["group", "topics", "members", "lag"], rows, right=2)


@groups.command("create", epilog=EXIT_CODES)
@click.argument("group")
@click.option(
    "--orderly",
    is_flag=True,
    help="RocketMQ 5's proxy gives gRPC clients of the group each queue's messages in order "
    "(consumeMessageOrderly). Other clients choose by their listeners.",
)
@client_options
@json_option
def create_group(group: str, orderly: bool, servers: Servers, as_json: bool) -> None:
    """Create GROUP at all brokers, before its first member joins.

    Brokers create groups themselves, unless autoCreateSubscriptionGroup=false. A group that exists
    is left as it is, and the command fails.

    \b
    Example:
      ordermq groups create billing
      ordermq groups create billing --orderly
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        admin.create_group(group, is_orderly=orderly)
    if as_json:
        print_json({"group": group, "is_orderly": orderly})
    else:
        click.echo(f"group {group!r} is created" + (", for ordered consumption" if orderly else ""))


@groups.command("delete", epilog=EXIT_CODES)
@click.argument("group")
@click.option(
    "--force",
    is_flag=True,
    help="Also while members are online, which make the group again with their next commits.",
)
@click.option("--dead-letters", is_flag=True, help="Also delete its dead letters; else they stay.")
@yes_option
@client_options
def delete_group(group: str, force: bool, dead_letters: bool, yes: bool, servers: Servers) -> None:
    """Delete GROUP at all brokers, with its offsets.

    Its retry topic goes, too, with what waits there; those that RocketMQ has for a popping group,
    one for each topic, stay. While members are online the command fails. A later group of this name
    is a new one, and begins where its consume_from_where says.

    \b
    Example:
      ordermq groups delete billing
      ordermq groups delete billing --dead-letters --yes
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        state = admin.group(group, ask_members=False)
        letters = ", and its dead letters" if dead_letters else ""
        members = f" and {counted(len(state.members), 'member')} online" if state.members else ""
        confirm(
            f"Delete group {group!r}, {counted(state.lag, 'message')} behind{members}, with its "
            f"offsets{letters}?",
            is_agreed=yes,
        )
        is_whole = admin.delete_group(group, force=force, with_dead_letters=dead_letters)
    note(f"group {group!r} is deleted")
    if not is_whole:
        note("a broker keeps its offsets, as those before RocketMQ 5 do, or members are online")


@groups.command("describe", epilog=EXIT_CODES)
@group_argument
@client_options
@json_option
def describe_group(group: str, servers: Servers, as_json: bool) -> None:
    """Show members of GROUP, their subscriptions, queues and offsets.

    \b
    Example:
      ordermq groups describe billing
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        state = admin.group(group)
    require_known(state)
    held = {
        member.client_id: [
            str(queue)
            for queue, (name, _) in sorted(state.holdings.items())
            if name == member.client_id
        ]
        for member in state.members
    }
    if as_json:
        members = [
            {
                "client_id": member.client_id,
                "address": member.address,
                "language": member.language,
                "subscriptions": state.subscriptions.get(member.client_id),
                "queues": held[member.client_id],
            }
            for member in state.members
        ]
        document = lag_document(state, time.time_ns() // 1_000_000)
        more = {"members": members, "silent": state.silent, "absent": list(state.absent)}
        print_json(document | {"mode": "pop" if state.pops else "pull"} | more)
        return
    short = short_client_ids(member.client_id for member in state.members)
    rows = [
        (
            short[member.client_id],
            member.language.lower(),
            _spoken(state.subscriptions.get(member.client_id)),
            len(held[member.client_id]),
        )
        for member in state.members
    ]
    title = f"{group}: {counted(len(state.members), 'member')}"
    title += ", popping" if state.pops else ""
    print_table(title, ["member", "language", "subscriptions", "queues"], rows, right=3)
    title = f"{counted(state.lag, 'message')} behind"
    columns, progress = lag_rows(state, time.time_ns() // 1_000_000)
    print_table(title, columns, progress)
    note_absent(state)
    note_withdrawn(state)


def _spoken(subscriptions: dict[str, str] | None) -> list[str]:
    if subscriptions is None:
        return ["did not answer"]
    shown = (f"{topic} [{tags}]" for topic, tags in sorted(subscriptions.items()))
    return [each for each in shown if not each.startswith("%RETRY%")]
