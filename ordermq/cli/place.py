"""Places in a queue as users write them: first, last, an offset, a time, an age; their options."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from ordermq.admin.topics import Place
from ordermq.wall_time import time_of

TIME_HELP = "a time (2026-11-22T09:30) or an age (15m, 2h, 1d)"
PLACE_HELP = f"first, last, an offset, {TIME_HELP}"
_F = TypeVar("_F", bound=Callable[..., Any])


def parse_place(text: str | Place) -> Place:
    """Return the place that an option names; ages count from now."""
    if not isinstance(text, str) or text in ("first", "last"):
        return text
    if text.isascii() and text.isdecimal():
        return int(text)
    moment = _moment(text)
    if moment is None:
        raise click.BadParameter(f"{text!r}: expected {PLACE_HELP}.")
    return moment


def parse_time(text: str | datetime) -> datetime:
    """Return the time that an option names; ages count from now, times are this machine's."""
    moment = _moment(text) if isinstance(text, str) else text
    if moment is None:
        raise click.BadParameter(f"{text!r}: expected {TIME_HELP}; a number alone has no unit.")
    return moment


def parse_end_or_time(text: str | Place) -> Place:
    """Return the end of a queue, or the time, that an option names; never an offset."""
    if text in ("first", "last"):
        return text
    moment = _moment(text) if isinstance(text, str) else text
    if not isinstance(moment, datetime):
        raise click.BadParameter(f"{text!r}: expected first, last, {TIME_HELP}.")
    return moment


def _moment(text: str) -> datetime | None:
    return time_of(text, time.time_ns() // 1_000_000)


from_option = click.option(
    "--from",
    "place",
    type=parse_place,
    metavar="PLACE",
    default="last",
    show_default=True,
    help=f"{PLACE_HELP}; last: the newest.",
)
queues_option = click.option(
    "--queue",
    "queues",
    type=click.IntRange(0),
    multiple=True,
    help="Number of a queue; may be repeated. Default: all queues.",
)


def count_option(meaning: str) -> Callable[[_F], _F]:
    """Return the option for the number of messages to show."""
    return click.option(
        "--count",
        type=click.IntRange(1, 10_000),
        default=10,
        show_default=True,
        help=meaning,
    )


def spoken(place: Place) -> str:
    """Return a place for a question to the user."""
    if isinstance(place, datetime):
        return f"messages from {place.astimezone():%Y-%m-%d %H:%M:%S} on"
    if isinstance(place, int):
        return f"offset {place:,}"
    return {"first": "the oldest message", "last": "the end, past all messages"}[place]
