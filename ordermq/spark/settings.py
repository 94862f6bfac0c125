"""How options of a Spark format are read: text to value, every fault in one error.

A format's options are one table of `Setting`s, which `docs/spark.md` is held against by a test.
Spark brings keys in lower case; ours are compared without their underscores too, so that
`startingOffsets` and `starting_offsets` are one option.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from ordermq.errors import ConfigError

_E = TypeVar("_E", bound=StrEnum)

# What Spark itself hands on, and that means nothing here: of sinks, then of CREATE TABLE.
_SPARKS_OWN: Final = frozenset(
    {"checkpointlocation", "queryname", "provider", "owner", "location", "comment", "external"}
    | {"is_managed_location", "collation"}
)
_OF_TABLE: Final = "option."  # before each option while CREATE TABLE asks for the schema
_SECRET: Final = frozenset({"secret_key", "security_token"})


@dataclass(frozen=True, slots=True)
class Setting:
    """One option.

    Args:
        name: in snake_case.
        read: text to value; raises ValueError, whose text is not shown.
        allowed: what is allowed, for the error and the page.
        default: its value where it is not given.
        says: what it does, for the page.
    """

    name: str
    read: Callable[[str], Any]
    allowed: str
    default: Any
    says: str


def read_options(settings: Iterable[Setting], given: Mapping[str, str]) -> dict[str, Any]:
    """The value of every setting.

    Raises: ConfigError: names each option that is unknown or wrong, its value, what is allowed.
    """
    table = {_folded(setting.name): setting for setting in settings}
    values = {setting.name: setting.default for setting in table.values()}
    faults: list[str] = []
    for told, text in given.items():
        key = told[len(_OF_TABLE) :] if told.lower().startswith(_OF_TABLE) else told
        setting = table.get(_folded(key))
        if setting is None:
            faults += _unknown(key, table)
            continue
        try:
            values[setting.name] = setting.read(text.strip())
        except ValueError:
            shown = "(not shown)" if setting.name in _SECRET else repr(text)
            faults.append(f"option {setting.name}={shown}: expected {setting.allowed}")
    if faults:
        raise ConfigError("; ".join(faults))
    return values


def missing(*names: str) -> ConfigError:
    """The error for options that are needed and were not given.

    A table made by CREATE TABLE is named too: Spark forgets its options.
    """
    text = " and ".join(names)
    return ConfigError(
        f"option {text} is missing: give it by .option(...). Of a table made by CREATE TABLE ... "
        "USING ordermq Spark forgets the OPTIONS: read it as SELECT * FROM t WITH (topic '...', "
        "name_servers '...'), by spark.read.option(...).table('t'), or make it a TEMPORARY VIEW"
    )


def _folded(name: str) -> str:
    return name.lower().replace("_", "")


def _unknown(key: str, table: Mapping[str, Setting]) -> list[str]:
    if key.lower() in _SPARKS_OWN:
        return []
    if key.lower() == "path":
        return ["a path, as load('...') gives it, means nothing here: use option topic"]
    near = difflib.get_close_matches(_folded(key), table, n=1)
    hint = f"; did you mean {table[near[0]].name}?" if near else ""
    return [f"no option {key!r}{hint}"]


# Readers of values; each raises ValueError.


def text(value: str) -> str:
    """Any text but an empty one."""
    if not value:
        raise ValueError
    return value


def whole(low: int, high: int) -> Callable[[str], int]:
    """A whole number of a range."""

    def read(value: str) -> int:
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return read


def flag(value: str) -> bool:
    """true or false, in any case."""
    if value.lower() not in ("true", "false"):
        raise ValueError
    return value.lower() == "true"


def choice(kind: type[_E]) -> Callable[[str], _E]:
    """A member of an enumeration by its value; case and underscores do not count."""
    members = {_folded(member.value): member for member in kind}

    def read(value: str) -> _E:
        member = members.get(_folded(value))
        if member is None:
            raise ValueError
        return member

    return read


def config_settings(kind: type[Any], **says: str) -> tuple[Setting, ...]:
    """Settings of the fields of a dataclass of `ordermq.config`, which checks their ranges.

    Args:
        kind: the dataclass; each field a flag, a whole number, a text or a choice.
        says: a field's name and what it does; only these become settings.
    """
    defaults = kind()
    return tuple(_of_field(name, getattr(defaults, name), said) for name, said in says.items())


def config_of(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """The dataclass of these values; what is not in them keeps its default.

    Raises: ConfigError: a value out of its range.
    """
    fields = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in fields})


def _of_field(name: str, default: Any, says: str) -> Setting:
    if isinstance(default, bool):
        return Setting(name, flag, "true or false", default, says)
    if isinstance(default, StrEnum):
        kind = type(default)
        allowed = "one of " + ", ".join(member.value for member in kind)
        return Setting(name, choice(kind), allowed, default, says)
    if isinstance(default, int):
        return Setting(name, whole(0, 1 << 62), "a whole number", default, says)
    return Setting(name, str, "a text", default, says)
