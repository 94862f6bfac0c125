"""`ordermq topics`: list, describe, create and delete topics."""

from __future__ import annotations

import click

from ordermq.admin.admin import Admin
from ordermq.admin.topics import MAX_QUEUES, MESSAGE_TYPES, TopicState
from ordermq.cli.client_options import Servers, client_options, exit_on_error
from ordermq.cli.output import (
    EXIT_CODES,
    confirm,
    counted,
    json_option,
    local_time,
    note,
    print_json,
    print_json_list,
    print_table,
    yes_option,
)


@click.group(epilog=EXIT_CODES)
def topics() -> None:
    """List, describe, create and delete topics.

    \b
    Example:
      ordermq topics list
      ordermq topics create orders --queues 8
    """


@topics.command("list", epilog=EXIT_CODES)
@client_options
@click.option(
    "--all",
    "with_internal",
    is_flag=True,
    help="Also retry and dead-letter topics, and the brokers' own.",
)
@json_option
def list_topics(servers: Servers, with_internal: bool, as_json: bool) -> None:
    """List the topics of the cluster.

    \b
    Example:
      ordermq topics list
      ordermq topics list --all --json
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        found = admin.topics(with_internal=with_internal)
    if as_json:
        print_json_list(found)
        return
    rows = [
        (
            each.name,
            each.queues,
            _access(each.is_readable, each.is_writable),
            *[", ".join(each.brokers)],
        )
        for each in found
    ]
    print_table(counted(len(found), "topic"), ["topic", "queues", "access", "brokers"], rows)


@topics.command("describe", epilog=EXIT_CODES)
@click.argument("topic")
@client_options
@json_option
def describe_topic(topic: str, servers: Servers, as_json: bool) -> None:
    """Show the queues and offsets of TOPIC, and its groups.

    \b
    Example:
      ordermq topics describe orders
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        _show(admin.topic(topic), as_json)


@topics.command("create", epilog=EXIT_CODES)
@click.argument("topic")
@click.option(
    "--queues",
    type=click.IntRange(1, MAX_QUEUES),
    default=8,
    show_default=True,
    help="Number of queues at each broker.",
)
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    help="Name of a broker that gets it; may be repeated. Default: all brokers.",
)
@click.option(
    "--type",
    "message_type",
    type=click.Choice(MESSAGE_TYPES, case_sensitive=False),
    help="Messages that RocketMQ 5's proxy lets into it; default there: NORMAL.",
)
@click.option(
    "--batches",
    "stores_batches",
    is_flag=True,
    help="RocketMQ 5: store what Spark's sink sends in one request as one record.",
)
@client_options
@json_option
def create_topic(
    topic: str,
    queues: int,
    brokers: tuple[str, ...],
    message_type: str | None,
    stores_batches: bool,
    servers: Servers,
    as_json: bool,
) -> None:
    """Create TOPIC, and wait until producers find all of its queues.

    A topic that exists is left as it is, and the command fails: with another number of queues,
    keys would move to other queues.

    \b
    Example:
      ordermq topics create orders --queues 8
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        made = admin.create_topic(
            topic,
            queues,
            brokers=brokers,
            message_type=message_type,
            stores_batches=stores_batches,
        )
        _show(made, as_json)


@topics.command("delete", epilog=EXIT_CODES)
@click.argument("topic")
@yes_option
@client_options
def delete_topic(topic: str, yes: bool, servers: Servers) -> None:
    """Delete TOPIC with its messages at all brokers and name servers.

    \b
    Example:
      ordermq topics delete orders
      ordermq topics delete orders --yes
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        state = admin.topic(topic)
        users = f", consumed by {', '.join(state.groups)}" if state.groups else ""
        confirm(
            f"Delete topic {topic!r} with {counted(state.messages, 'message')}{users}?",
            is_agreed=yes,
        )
        admin.delete_topic(topic)
    note(f"topic {topic!r} is deleted")


def _access(is_readable: bool, is_writable: bool) -> str:
    return " ".join(["read"] * is_readable + ["write"] * is_writable) or "none"


def _show(state: TopicState, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": state.name,
                "messages": state.messages,
                "groups": state.groups,
                "queues": [
                    {
                        "broker": queue.broker_name,
                        "queue": queue.queue_id,
                        "first": ends.first,
                        "end": ends.end,
                        "last_stored_ms": ends.last_stored_ms or None,
                    }
                    for queue, ends in state.queues.items()
                ],
            }
        )
        return
    rows = [
        (queue, ends.messages, ends.first, ends.end, local_time(ends.last_stored_ms))
        for queue, ends in state.queues.items()
    ]
    title = f"{state.name}: {counted(state.messages, 'message')}"
    print_table(title, ["queue", "messages", "first", "end", "last stored"], rows)
    note(f"groups: {', '.join(state.groups) or 'none has a member or an offset here'}")
