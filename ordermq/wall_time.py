"""Times that users give, in ms since 1970; apart from the clocks, which load asyncio."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from ordermq.errors import ConfigError

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    Span = int | str | timedelta  # ms, a text as "3s", or a timedelta
    # ms since 1970, a datetime, the same as a text, or an age: "2h" or a timedelta
    Moment = int | str | datetime | timedelta

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_YEAR_1973_MS = 100_000_000_000  # as seconds, the year 5138: no number can mean both
_YEAR_9999_MS = 253_402_300_799_999  # as microseconds, 1978: beyond it are all topics' times
_MOMENTS = (
    "expected ms since 1970 as an int, a datetime or one as a text (2026-11-22T09:30), or an age "
    "(15m, 2h, 1d, or a timedelta)"
)


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
    found = whole_number(span)
    if found is None:
        found = _length_ms(span)
    if found is None:
        raise ConfigError(
            f"{name}={span!r}: expected ms as an int, a text with a unit (500ms, 3s, 2m, 1h), or a "
            "timedelta"
        )
    if found < 0:
        raise ConfigError(f"{name}={span!r}: expected 0 or more")
    return found


def moment_ms(name: str, moment: Moment, now_ms: int) -> int:
    """Return a time in ms since 1970; one without a zone is this machine's.

    Args: now_ms: what ages are counted from.
    Raises: ConfigError: it is none, or in another unit.
    """
    found = whole_number(moment)
    if found is not None:
        require_wall_ms(name, found)
        if found > _YEAR_9999_MS:
            raise ConfigError(
                f"{name}={moment!r}: expected ms since 1970, and this looks like microseconds or "
                "nanoseconds"
            )
        return found
    found = _given_ms(moment, now_ms)
    if found is None:
        raise ConfigError(f"{name}={moment!r}: {_MOMENTS}{unit_hint(moment)}")
    return found


def is_like_ms(number: int) -> bool:
    """Return whether a number that is given as another one, as an offset, looks like a time."""
    return number >= _YEAR_1973_MS


def unit_hint(moment: object) -> str:
    """Return what an error says further of a number with a fraction, as `time.time()`; else ""."""
    if not isinstance(moment, float) or not abs(moment) < _YEAR_9999_MS:
        return ""
    if 0 < moment < _YEAR_1973_MS:
        return f"; this looks like seconds: write {int(moment * 1_000)}"
    return f"; write {int(moment)}"


def age_text(moment: object) -> str:
    """Return an age as a text; "" of any other time."""
    if isinstance(moment, str):
        return "" if _text_ms(moment) is None else moment
    age_ms = _length_ms(moment)
    return "" if age_ms is None else f"{age_ms}ms"


def time_of(moment: object, now_ms: int) -> datetime | None:
    """Return the time of an age, a datetime, or one as a text; None of anything else.

    Args: now_ms: what ages are counted from.
    """
    from datetime import UTC, datetime, timedelta  # here, as few give one

    found = _given_ms(moment, now_ms)
    if found is None:
        return None
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=found)
    except OverflowError:
        return None  # before the year 1


def wall_ms_of(moment: datetime) -> int:
    """Return a time as ms since 1970, rounded down; one without a zone is this machine's.

    Raises: ValueError: pandas' NaT, or a time that this machine has no zone of.
    """
    from datetime import UTC, datetime, timedelta  # here, as few give one

    if type(moment) is not datetime:
        # pandas' Timestamp is one, and refuses to be taken as a local time.
        moment = datetime.combine(moment.date(), moment.timetz())
    # Exactly: as a float, .033 of a second can be 32.99 ms, and a message would come twice.
    return (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _given_ms(moment: object, now_ms: int) -> int | None:
    """Return ms since 1970 of an age, a datetime, or one as a text; None of anything else."""
    from datetime import datetime  # here, as few give one

    age_ms = _length_ms(moment)
    if age_ms is not None:
        return now_ms - age_ms if age_ms >= 0 else None  # no age is in the future
    try:
        # Digits alone may be an offset, seconds or milliseconds as well as a date.
        if isinstance(moment, str) and not moment.strip().isdecimal():
            moment = datetime.fromisoformat(moment.strip())
        return wall_ms_of(moment) if isinstance(moment, datetime) else None
    except (ValueError, OverflowError, OSError):
        return None


def whole_number(number: object) -> int | None:
    """Return an int, NumPy's included; None of anything else, and of a bool."""
    if type(number) is int:
        return number
    try:
        return None if isinstance(number, bool) else operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        return None


def _length_ms(span: object) -> int | None:
    """Return the ms of a text with a unit, or of a timedelta; None of anything else."""
    if isinstance(span, str):
        return _text_ms(span)
    from datetime import timedelta  # here, as few give one

    return span // timedelta(milliseconds=1) if isinstance(span, timedelta) else None


def _text_ms(text: str) -> int | None:
    """Return the ms of a number with its unit; None of any other text."""
    number = text.strip().rstrip("mshd").rstrip()
    unit = text.strip()[len(number) :].strip()
    # In ASCII, and short: `isdecimal` is true of digits of every script.
    is_number = number.isascii() and number.isdecimal() and len(number) <= 12
    return int(number) * _UNITS_MS[unit] if is_number and unit in _UNITS_MS else None
