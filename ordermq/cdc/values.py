"""Values of changes as the columns of a copy take them.

What formats lack types for is made what the column takes; nothing loses digits. Each function takes
a value that is not None, and raises TypeError, ValueError or ArithmeticError for one that does not
fit.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from ordermq import json_text

_DAY = timedelta(days=1)


def expect(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"got {type(value).__name__}")
    return value


def as_bool(value: Any) -> bool:
    if value in (0, 1):
        return bool(value)
    raise ValueError("expected 0 or 1")


def as_int(value: Any) -> int:
    if int(expect(value, int, bool, Decimal)) != value:
        raise ValueError("not whole")
    return int(value)


def as_decimal(value: Any) -> Decimal:
    # A float becomes the shortest decimal that is it; the source's own digits are lost before.
    return (
        Decimal(repr(value))
        if isinstance(value, float)
        else Decimal(expect(value, int, Decimal, str))
    )


def as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (dict, list)):
        return json_text.dumps(value).decode()
    return str(expect(value, int, bool, float, UUID, timedelta))


def as_document(value: Any) -> Any:
    return json_text.loads(value) if isinstance(value, str) else value


def as_zoned(value: Any) -> datetime:
    moment: datetime = expect(value, datetime)
    if moment.tzinfo is None:
        raise ValueError("no zone: CanalCodec(time_zone=...) names that of MySQL's timestamps")
    return moment.astimezone(UTC)  # SQLite would drop another one


def as_unzoned(value: Any) -> datetime:
    moment: datetime = expect(value, datetime)
    if moment.tzinfo is not None:
        raise ValueError("it has a zone, and the column has none")
    return moment


def as_day(value: Any) -> date:
    if isinstance(value, datetime):
        raise TypeError("got datetime")
    day: date = expect(value, date)
    return day


def as_time(value: Any) -> time:
    if isinstance(value, timedelta) and timedelta() <= value < _DAY:
        return (datetime.min + value).time()  # MySQL's `time` is a span
    of_day: time = expect(value, time)
    return of_day


def as_float(value: Any) -> float:
    return float(expect(value, int, float, Decimal))


def as_binary(value: Any) -> bytes:
    octets: bytes = expect(value, bytes)
    return octets


def as_uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(expect(value, str))


def as_interval(value: Any) -> timedelta:
    span: timedelta = expect(value, timedelta)
    return span
