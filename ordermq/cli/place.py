"""Places in a queue as users write them: first, last, an offset, a time, an age."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click

from ordermq.admin.topics import Place

PLACE_HELP = "first, last, an offset, a time (2026-11-22T09:30) or an age (15m, 2h, 1d)"
_AGE = re.compile(r"(\d+)\s*([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_place(text: str | Place) -> Place:
    """Return the place that an option names; ages count from now."""
    if not isinstance(text, str) or text in ("first", "last"):
        return text
    try:
        if text.isascii() and text.isdecimal():
            return int(text)
        if age := _AGE.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
        return datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r}: expected {PLACE_HELP}.") from None


def spoken(place: Place) -> str:
    """Return a place for a question to the user."""
    if isinstance(place, datetime):
        return f"messages from {place.astimezone():%Y-%m-%d %H:%M:%S} on"
    if isinstance(place, int):
        return f"offset {place:,}"
    return {"first": "the oldest message", "last": "the end, past all messages"}[place]
