"""`ordermq parked`: list, show and re-drive keys that `ParkKey(topic)` holds back."""

from __future__ import annotations

import threading
import time

import click

from ordermq.admin.admin import Admin
from ordermq.admin.parked import ParkedKey
from ordermq.cli.client_options import Servers, client_options, exit_on_error, group_argument
from ordermq.cli.output import (
    EXIT_CODES,
    confirm,
    counted,
    fail,
    json_option,
    local_time,
    note,
    print_json_list,
    print_table,
    yes_option,
)
from ordermq.cli.peek import show_messages
from ordermq.model.message_queue import MessageQueue

_LOOK_AGAIN_S = 0.5


@click.group(epilog=EXIT_CODES)
def parked() -> None:
    """List, show and go on with keys that groups hold back.

    \b
    Example:
      ordermq parked list parked-orders
      ordermq parked redrive parked-orders billing o-17
    """


@parked.command("list", epilog=EXIT_CODES)
@click.argument("topic")
@click.option("--group", help="Only the keys of this group.")
@client_options
@json_option
def list_keys(topic: str, group: str | None, servers: Servers, as_json: bool) -> None:
    """List the keys that are parked in TOPIC.

    \b
    Example:
      ordermq parked list parked-orders --group billing
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        found = admin.parked(topic, group=group)
    if as_json:
        print_json_list(_document(each) for each in found)
        return
    rows = [
        (each.group, each.queue, each.key, each.messages, each.first_offset,
         local_time(each.parked_ms), "yes" if each.is_asked else "no")
        for each in found
    ]  # fmt: skip
    columns = ["group", "queue", "key", "messages", "first offset", "parked", "asked"]
    print_table(f"{topic}: {counted(len(found), 'parked key')}", columns, rows, right=3)


@parked.command("show", epilog=EXIT_CODES)
@click.argument("topic")
@group_argument
@click.argument("key")
@client_options
@json_option
def show_key(topic: str, group: str, key: str, servers: Servers, as_json: bool) -> None:
    """Print the messages of KEY that GROUP has parked, in order.

    \b
    Example:
      ordermq parked show parked-orders billing o-17
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        messages = admin.parked_messages(topic, group, key)
    show_messages(f"{group}: parked messages of {key}", messages, as_json)


@parked.command("redrive", epilog=EXIT_CODES)
@click.argument("topic")
@group_argument
@click.argument("keys", nargs=-1)
@click.option("--wait", type=click.FloatRange(0), default=10.0, show_default=True,
              help="Wait so many seconds for the members to do it.")  # fmt: skip
@yes_option
@client_options
@json_option
def redrive(
    topic: str,
    group: str,
    keys: tuple[str, ...],
    wait: float,
    yes: bool,
    servers: Servers,
    as_json: bool,
) -> None:
    """Have GROUP go on with KEYS of TOPIC, or with all of them.

    The member that holds a key's queue calls its listener with the parked messages, in order, and
    then with newer ones. What the listener fails at stays parked. Exits with 1 if a key is parked
    still when the time is over; the request stays in force.

    \b
    Example:
      ordermq parked redrive parked-orders billing o-17
      ordermq parked redrive parked-orders billing --yes
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        waiting = [
            each for each in admin.parked(topic, group=group) if not keys or each.key in keys
        ]
        if not waiting:
            fail(f"group {group!r} has parked nothing of this in {topic!r}")
        messages = sum(each.messages for each in waiting)
        what = f"{counted(len(waiting), 'key')} ({counted(messages, 'message')})"
        confirm(f"Have {group!r} go on with {what}?", is_agreed=yes)
        asked = {(each.queue, each.key) for each in admin.redrive_parked(topic, group, keys)}
        left = _left(admin, topic, group, asked, wait)
    if as_json:
        print_json_list(_document(each) for each in left)
    else:
        note(f"{len(asked) - len(left):,} of {counted(len(asked), 'key')} done")
    if left:
        fail(
            f"{counted(len(left), 'key')} parked still: no member holds the queue, its listener "
            "failed again (see its log), or it needs more time"
        )


def _left(
    admin: Admin, topic: str, group: str, asked: set[tuple[MessageQueue, str]], wait: float
) -> list[ParkedKey]:
    end, pause = time.monotonic() + wait, threading.Event()
    while True:
        left = [e for e in admin.parked(topic, group=group) if (e.queue, e.key) in asked]
        if not left or time.monotonic() >= end:
            return left
        pause.wait(_LOOK_AGAIN_S)


def _document(each: ParkedKey) -> dict[str, object]:
    return {
        "group": each.group,
        "queue": str(each.queue),
        "key": each.key,
        "messages": each.messages,
        "first_offset": each.first_offset,
        "parked_ms": each.parked_ms,
        "asked": each.is_asked,
    }
