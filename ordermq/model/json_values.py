"""Values that JSON has no form of its own for: of pandas and NumPy, and errors about others.

Neither library is imported: a value of it is known by its class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from datetime import date, time, timedelta
from math import isfinite
from typing import Any

from ordermq import json_text

_MOST_LEVELS = 100  # of a value that contains itself
_NUMPY_KINDS = "biufMOU"  # flags, numbers, times, objects and texts; without lengths of time
_PLAIN = frozenset({str, int, bool, type(None)})
_HOMES = ("numpy", "pandas")


def plain_value(value: Any) -> Any:
    """Return what JSON can have for a value; gaps of pandas are None, as NaN is null.

    Raises: TypeError: there is nothing.
    """
    home = type(value).__module__.partition(".")[0]
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (date, time)):  # of a class of its own, as pandas' Timestamp
        return value.isoformat() if value == value else None  # NaT equals nothing
    if home == "pandas" and type(value).__name__ == "NAType":
        return None
    if home == "numpy" and (kind := getattr(value, "dtype", None)) and kind.kind in _NUMPY_KINDS:
        # In ns, as pandas has them, a time would become an int.
        plain = (value.astype("datetime64[us]") if kind.kind == "M" else value).tolist()
        if type(plain) is not type(value):
            return plain
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def explained(value: Any, error: TypeError, default: Any) -> TypeError:
    """Return the error of a value that cannot be written, with the place, and what to do."""
    path, part = "$", value
    for _ in range(_MOST_LEVELS):
        for name, inner in _parts(part):
            fault = _fault(inner, default)
            if fault is not None:
                path, part, error = f"{path}{name}", inner, fault
                break
        else:
            return TypeError(f"{path}: {error}: {_remedy(part)}")
    return error


def _fault(value: Any, default: Any) -> TypeError | None:
    try:
        json_text.dumps(value, default=default)
    except TypeError as error:
        return error
    return None


def _remedy(value: Any) -> str:
    name = type(value).__name__
    if isinstance(value, dict):
        return "give texts as keys, as str(key)"
    if isinstance(value, timedelta) or name == "timedelta64":
        return "give a number, as value.total_seconds()"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "give a text, as value.decode() or base64"
    if name in ("DataFrame", "Series"):
        return "give .to_dict('records') of a DataFrame, .to_list() of a Series"
    return "give a dict, text or number, or a codec of your functions (FunctionCodec)"


def may_have_gap(value: Any) -> bool:
    """Tell whether to look for `gaps`, of a value that could be written; it takes less time."""
    kind = type(value)
    if kind in _PLAIN:
        return False
    if kind is float:
        return not isfinite(value)
    if isinstance(value, dict):
        inner: Iterable[Any] = value.values()
    elif isinstance(value, (list, tuple)):
        inner = value
    elif (fields := getattr(kind, "__dataclass_fields__", None)) is not None:
        inner = [getattr(value, name, None) for name in fields]
    else:
        return kind.__module__.partition(".")[0] in _HOMES
    # Most parts are plain, for which there is no call.
    return any(type(each) not in _PLAIN and may_have_gap(each) for each in inner)


def gaps(value: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    """Yield the places of what JSON has as null without being None: NaN, infinities, NaT, NA.

    Args: value: one that could be written.
    """
    kind = type(value)
    if kind.__module__.partition(".")[0] in _HOMES:
        plain = plain_value(value)
        if isinstance(plain, list):
            yield from gaps(plain, path)
        elif plain is None or (type(plain) is float and not isfinite(plain)):
            yield path, value
    elif kind is float:
        if not isfinite(value):
            yield path, value
    else:
        for name, inner in _parts(value):
            yield from gaps(inner, f"{path}{name}")


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value contains, each with its name as paths have it."""
    if isinstance(value, dict):
        yield from ((f".{name}", inner) for name, inner in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{number}]", inner) for number, inner in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            if not each.name.startswith("_"):
                yield f".{each.name}", getattr(value, each.name)
