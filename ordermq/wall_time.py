"""Times that users give, in ms since 1970; apart from the clocks, which load asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ordermq.errors import ConfigError

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    Span = int | str | timedelta  # ms, a text as "3s", or a timedelta
    Moment = int | str | datetime  # ms since 1970, an age as "2h", or a datetime

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_YEAR_1973_MS = 100_000_000_000  # as seconds, the year 5138: no number can mean both


def require_wall_ms(name: str, value: int) -> None:
    """Raise ConfigError if a time in ms since 1970 was given in seconds; 0 stands for none."""
    if not -(1 << 63) <= value < 1 << 63:
        raise ConfigError(f"{name}={value}: expected ms since 1970, within 64 bits")
    if 0 < value < _YEAR_1973_MS:
        raise ConfigError(
            f"{name}={value}: expected ms since 1970, and this looks like seconds: write "
            f"{value * 1_000}"
        )


def span_ms(name: str, span: Span) -> int:
    """Return a length of time in ms.

    Raises: ConfigError: it is none, or negative.
    """
    found: int | None = None
    if type(span) is int:
        found = span
    elif isinstance(span, str):
        found = _text_ms(span)
    else:
        from datetime import timedelta  # here, as few give one

        if isinstance(span, timedelta):
            found = span // timedelta(milliseconds=1)
    if found is None:
        raise ConfigError(
            f"{name}={span!r}: expected ms as an int, a text with a unit (500ms, 3s, 2m, 1h), or a "
            "timedelta"
        )
    if found < 0:
        raise ConfigError(f"{name}={span!r}: expected 0 or more")
    return found


def moment_ms(name: str, moment: Moment, now_ms: int) -> int:
    """Return a time in ms since 1970; a datetime without a zone is this machine's.

    Args: now_ms: what ages are counted from.
    Raises: ConfigError: it is none, or in seconds.
    """
    found: int | None = None
    if type(moment) is int:
        require_wall_ms(name, moment)
        found = moment
    elif isinstance(moment, str):
        age_ms = _text_ms(moment)
        found = None if age_ms is None else now_ms - age_ms
    else:
        from datetime import datetime  # here, as few give one

        found = wall_ms_of(moment) if isinstance(moment, datetime) else None
    if found is None:
        raise ConfigError(
            f"{name}={moment!r}: expected ms since 1970 as an int, a datetime, or an age (15m, 2h, "
            "1d)"
        )
    return found


def wall_ms_of(moment: datetime) -> int:
    """Return a time as ms since 1970, rounded down; one without a zone is this machine's."""
    from datetime import UTC, datetime, timedelta  # here, as few give one

    # Exactly: as a float, .033 of a second can be 32.99 ms, and a message would come twice.
    return (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def time_of_age(text: str, now_ms: int) -> datetime | None:
    """Return the time that was an age ago; None of any other text, and before the year 1."""
    from datetime import UTC, datetime, timedelta  # here, as few give one

    age_ms = _text_ms(text)
    if age_ms is None:
        return None
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=now_ms - age_ms)
    except OverflowError:
        return None


def _text_ms(text: str) -> int | None:
    """Return the ms of a number with its unit; None of any other text."""
    number = text.strip().rstrip("mshd").rstrip()
    unit = text.strip()[len(number) :].strip()
    # In ASCII, and short: `isdecimal` is true of digits of every script.
    is_number = number.isascii() and number.isdecimal() and len(number) <= 12
    return int(number) * _UNITS_MS[unit] if is_number and unit in _UNITS_MS else None
