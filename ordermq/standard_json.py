"""JSON text by the standard library, read and written as orjson does it; see `json_text`.

What one refuses, the other refuses: bytes that are no UTF-8, halves of surrogate pairs, NaN,
numbers beyond a double, keys that are no texts. A float may be written in other digits of the same
number, also as a key (https://github.com/ijl/orjson#serialize).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from enum import Enum
from json import JSONDecodeError
from math import isfinite
from typing import Any, NoReturn
from uuid import UUID

OPT_INDENT_2 = 1  # lines with two spaces per level
OPT_NON_STR_KEYS = 4  # keys may be numbers, dates and more, written as texts
_INTEGERS = range(-(1 << 63), 1 << 64)
_MOST_DEFAULTS = 254  # calls of `default` within each other

_Default = Callable[[Any], Any]


def dumps(value: Any, /, default: _Default | None = None, option: int | None = None) -> bytes:
    """Write a value: dicts, lists, tuples, texts, numbers, dataclasses, enums, times and UUIDs.

    Args:
        default: makes a value that can be written of any other.
        option: of OPT_INDENT_2 and OPT_NON_STR_KEYS, added.
    Raises: TypeError: the value, a part of it or a key cannot be written.
    """
    option = option or 0
    separators = (",", ": ") if option & OPT_INDENT_2 else (",", ":")
    try:
        text = json.dumps(
            _Plain(default, has_other_keys=bool(option & OPT_NON_STR_KEYS)).of(value, 0),
            ensure_ascii=False,
            indent=2 if option & OPT_INDENT_2 else None,
            separators=separators,
        )
        return text.encode()
    except UnicodeEncodeError as error:
        raise TypeError(f"str is not valid UTF-8: {error.reason}") from error
    except (RecursionError, ValueError) as error:
        raise TypeError(f"Recursion limit reached: {error}") from error


class _Plain:
    """Values as the standard library writes them.

    Args: has_other_keys: keys may be other than texts.
    """

    def __init__(self, default: _Default | None, *, has_other_keys: bool) -> None:
        self._default = default
        self._has_other_keys = has_other_keys

    def of(self, value: Any, defaults: int) -> Any:
        """Return a value without objects. Args: defaults: calls of `default` around it."""
        if value is None or value is True or value is False:
            return value
        if isinstance(value, Enum):
            return self.of(value.value, defaults)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            number = int(value)
            if number not in _INTEGERS:
                raise TypeError("Integer exceeds 64-bit range")
            return number
        if type(value) is float:  # of others, as NumPy's, `default` decides
            return value if isfinite(value) else None
        if isinstance(value, dict):
            return {self._key(key): self.of(each, defaults) for key, each in value.items()}
        if isinstance(value, list) or type(value) is tuple:
            return [self.of(each, defaults) for each in value]
        if (text := _text_of(value)) is not None:
            return text
        if is_dataclass(value) and not isinstance(value, type):
            return {
                each.name: self.of(getattr(value, each.name), defaults)
                for each in fields(value)
                if not each.name.startswith("_")
            }
        if self._default is None or defaults == _MOST_DEFAULTS:
            raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")
        try:
            other = self._default(value)
        except Exception as error:
            raise TypeError(f"Type is not JSON serializable: {type(value).__name__}") from error
        return self.of(other, defaults + 1)

    def _key(self, key: Any) -> str:
        if isinstance(key, str) and (type(key) is str or self._has_other_keys):
            return str.__str__(key.value if isinstance(key, Enum) else key)
        if not self._has_other_keys:
            raise TypeError("Dict key must be str")
        if isinstance(key, Enum):
            return self._key(key.value)
        if key is None or isinstance(key, (bool, int)) or type(key) is float:
            # A key is compared as a text: the exponent as orjson writes it.
            return json.dumps(self.of(key, 0)).replace("e-0", "e-")
        if (text := _text_of(key)) is not None:
            return text
        raise TypeError("Dict key must a type serializable with OPT_NON_STR_KEYS")


def _text_of(value: object) -> str | None:
    """Return a time or UUID as text; None for anything else."""
    if type(value) is time and value.tzinfo is not None:
        raise TypeError("datetime.time must not have tzinfo set")
    # About other classes of theirs, as pandas', `default` decides.
    if isinstance(value, (date, time)) and type(value) in (datetime, date, time):
        return value.isoformat()
    return str(value) if type(value) is UUID else None


def loads(text: bytes | bytearray | memoryview | str, /) -> Any:
    """Read a value: dicts, lists, texts, numbers, True, False and None.

    Raises: JSONDecodeError: the text is no JSON, or no UTF-8.
    """
    if not isinstance(text, str):
        try:
            text = str(text, "utf-8")
        except UnicodeDecodeError as error:
            raise JSONDecodeError(f"str is not valid UTF-8: {error.reason}", "", 0) from None
        except TypeError:
            raise JSONDecodeError(
                "Input must be bytes, bytearray, memoryview, or str", "", 0
            ) from None
    try:
        value = _DECODER.decode(text)
        if "\\u" in text:  # a half of a pair is a text that cannot be written again
            json.dumps(value, ensure_ascii=False).encode()
    except (RecursionError, UnicodeEncodeError, _OutOfRange) as error:
        raise JSONDecodeError(str(error), text, 0) from None
    return value


class _OutOfRange(Exception):
    """A number that no double holds."""


def _integer(digits: str) -> int | float:
    if len(digits) <= 20 and (number := int(digits)) in _INTEGERS:
        return number
    return _double(digits)


def _double(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise _OutOfRange("number is infinity when parsed as double")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise _OutOfRange(f"{name} is no JSON")


_DECODER = json.JSONDecoder(
    parse_float=_double, parse_int=_integer, parse_constant=_refuse_constant
)
