"""Values of a type from JSON: dataclasses, TypedDicts, enumerations, dates, and what holds them.

What pydantic does besides, as coercion and validators, `PydanticCodec` has.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

from ordermq.errors import ConfigError

Convert = Callable[[Any, str], Any]  # a value of JSON and its path, to a value of the type


class JsonMismatch(ValueError):
    """A value of JSON is not of the type; the text has its path and kinds, and nothing of it."""


def converter(kind: Any) -> tuple[Convert, bool]:
    """Return the function that makes values of a type, built once for all messages.

    Returns: it, and whether the type has floats or times, of which some are null in JSON.
    Raises: ConfigError: a type that JSON has no one form for.
    """
    builder = _Builder()
    convert = builder.convert(kind)
    return convert, not builder.kinds.isdisjoint((float, datetime.datetime, datetime.date))


def _mismatch(path: str, expected: str, value: object) -> JsonMismatch:
    return JsonMismatch(f"{path}: expected {expected}, got {_JSON_NAMES.get(type(value), '?')}")


_JSON_NAMES: dict[type, str] = {
    dict: "an object", list: "an array", str: "a str", int: "an int", float: "a float",
    bool: "a bool", type(None): "null",
}  # fmt: skip


class _Builder:
    """Builds converters; one per type, so that a type may contain itself."""

    def __init__(self) -> None:
        self._made: dict[Any, Convert] = {}

    @property
    def kinds(self) -> Set[Any]:
        """The types that were met."""
        return self._made.keys()

    def convert(self, kind: Any) -> Convert:
        try:
            known = self._made.get(kind)
        except TypeError:  # no hash, so nothing that contains itself
            return self._make(kind)
        if known is not None:
            return known
        # While it is made, whoever refers to it gets a function that looks it up later.
        self._made[kind] = lambda value, path: self._made[kind](value, path)
        self._made[kind] = made = self._make(kind)
        return made

    def _make(self, kind: Any) -> Convert:
        origin, arguments = get_origin(kind), get_args(kind)
        if kind in (Any, object):
            return lambda value, path: value
        if origin in (typing.Annotated, Required, NotRequired):
            return self.convert(arguments[0])
        if origin in (Union, types.UnionType):
            return self._union(arguments)
        if origin is Literal:
            return _literal(arguments)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return self._dataclass(kind)
        if typing.is_typeddict(kind):
            return self._typed_dict(kind)
        container = origin or kind
        if container in (list, tuple, set, frozenset, Sequence):
            return self._array(container, arguments)
        if container in (dict, Mapping):
            return self._mapping(arguments)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return _parsed(kind.__name__, (str, int), kind)
        if kind in _SCALARS:
            return _SCALARS[kind]
        raise ConfigError(
            f"JsonCodec({kind!r}): no dataclass, TypedDict, enumeration, date, UUID, Decimal, str, "
            "number, bool, None, or list, tuple, set, dict or union of them; "
            "PydanticCodec has more types, FunctionCodec takes functions of yours"
        )

    def _dataclass(self, kind: type) -> Convert:
        hints = get_type_hints(kind, include_extras=True)
        taken = [each for each in dataclasses.fields(kind) if each.init]
        fields = {each.name: self.convert(hints[each.name]) for each in taken}
        missing = dataclasses.MISSING
        needed = [
            each.name
            for each in taken
            if each.default is missing and each.default_factory is missing
        ]
        read = _fields_of(kind.__name__, fields, needed)
        return lambda value, path: kind(**read(value, path))

    def _typed_dict(self, kind: Any) -> Convert:
        hints = get_type_hints(kind, include_extras=True)
        fields = {name: self.convert(hint) for name, hint in hints.items()}
        # Python takes a NotRequired for required where annotations are texts, as with `from
        # __future__ import annotations`; the resolved hints tell.
        needed = [
            name
            for name, hint in hints.items()
            if get_origin(hint) is Required
            or (name in kind.__required_keys__ and get_origin(hint) is not NotRequired)
        ]
        return _fields_of(kind.__name__, fields, needed)

    def _array(self, container: Any, arguments: tuple[Any, ...]) -> Convert:
        make = list if container is Sequence else container
        if container is tuple and arguments and arguments[-1] is not Ellipsis:
            each_of = [self.convert(argument) for argument in arguments]

            def positions(value: Any, path: str) -> Any:
                if type(value) is not list or len(value) != len(each_of):
                    raise _mismatch(path, f"an array of {len(each_of)}", value)
                return tuple(
                    convert(item, f"{path}[{number}]")
                    for number, (convert, item) in enumerate(zip(each_of, value, strict=True))
                )

            return positions
        item_of = self.convert(arguments[0] if arguments else Any)

        def array(value: Any, path: str) -> Any:
            if type(value) is not list:
                raise _mismatch(path, "an array", value)
            return make(item_of(item, f"{path}[{number}]") for number, item in enumerate(value))

        return array

    def _mapping(self, arguments: tuple[Any, ...]) -> Convert:
        key_of = self.convert(arguments[0] if arguments else str)
        value_of = self.convert(arguments[1] if arguments else Any)

        def mapping(value: Any, path: str) -> Any:
            if type(value) is not dict:
                raise _mismatch(path, "an object", value)
            return {
                key_of(name, f"{path}, a name"): value_of(item, f"{path}.{name}")
                for name, item in value.items()
            }

        return mapping

    def _union(self, arguments: tuple[Any, ...]) -> Convert:
        kinds = [self.convert(argument) for argument in arguments]
        expected = " or ".join(getattr(each, "__name__", str(each)) for each in arguments)

        def union(value: Any, path: str) -> Any:
            deepest: JsonMismatch | None = None
            for convert in kinds:
                try:
                    return convert(value, path)
                except JsonMismatch as error:
                    # With `Order | None` the order's own fault is the one to tell, not "or None".
                    if not str(error).startswith(f"{path}:") and deepest is None:
                        deepest = error
            raise deepest or _mismatch(path, expected, value)

        return union


def _fields_of(name: str, fields: Mapping[str, Convert], needed: Sequence[str]) -> Convert:
    def read(value: Any, path: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise _mismatch(path, f"an object of {name}", value)
        for each in needed:
            if each not in value:
                raise JsonMismatch(f"{path}.{each}: missing in {name}")
        # What the type does not have is left out: a newer sender may give more.
        return {
            each: fields[each](item, f"{path}.{each}")
            for each, item in value.items()
            if each in fields
        }

    return read


def _literal(values: tuple[Any, ...]) -> Convert:
    def literal(value: Any, path: str) -> Any:
        for each in values:
            if type(each) is type(value) and each == value:
                return each
        raise JsonMismatch(f"{path}: expected one of {', '.join(map(repr, values))}")

    return literal


def _exactly(kind: type) -> Convert:
    def exact(value: Any, path: str) -> Any:
        if type(value) is not kind:
            raise _mismatch(path, _JSON_NAMES[kind], value)
        return value

    return exact


def _number(value: Any, path: str) -> float:
    if type(value) not in (int, float):
        raise _mismatch(path, "a number", value)
    return float(value)


def _parsed(name: str, kinds: tuple[type, ...], parse: Callable[[Any], Any]) -> Convert:
    def parsed(value: Any, path: str) -> Any:
        if type(value) not in kinds:
            raise _mismatch(path, f"a {name}", value)
        try:
            return parse(value)
        except (ValueError, ArithmeticError):
            raise JsonMismatch(f"{path}: not a {name}") from None  # its text may show the value

    return parsed


_SCALARS: dict[Any, Convert] = {
    str: _exactly(str),
    int: _exactly(int),
    bool: _exactly(bool),
    float: _number,
    None: _exactly(type(None)),
    type(None): _exactly(type(None)),
    datetime.datetime: _parsed("datetime", (str,), datetime.datetime.fromisoformat),
    datetime.date: _parsed("date", (str,), datetime.date.fromisoformat),
    datetime.time: _parsed("time", (str,), datetime.time.fromisoformat),
    uuid.UUID: _parsed("UUID", (str,), uuid.UUID),
    decimal.Decimal: _parsed(
        "Decimal", (str, int, float), lambda value: decimal.Decimal(str(value))
    ),
}
