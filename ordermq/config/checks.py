"""Checks of values, and construction from flat settings, for all groups of settings."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from enum import StrEnum
from typing import Any, NoReturn, Self

from ordermq.errors import ConfigError
from ordermq.value import Value
from ordermq.wall_time import age_text, moment_ms

DAY_MS = 86_400_000
_RANGE = "range"  # in the metadata of a field
_MOST_LETTERS, _LETTER_WINDOW = "pause_after_dead_letters", "dead_letter_window"


def number(default: int, low: int, high: int) -> int:
    """Declare a field that is a number within a range; `require_ranges` holds it to that.

    Written once: the page of settings, the options of Spark and the tests read it from there.
    """
    found: int = field(default=default, metadata={_RANGE: (low, high)})
    return found


def ranges_of(kind: type) -> dict[str, tuple[int, int]]:
    """Return the range of each field of a class that has one."""
    every = fields(kind)
    return {each.name: each.metadata[_RANGE] for each in every if _RANGE in each.metadata}


def require_ranges(config: object) -> None:
    """Raise ConfigError unless each field with a range is a number within it."""
    require_range(config, **ranges_of(type(config)))


def require_range(config: object, **ranges: tuple[int, int]) -> None:
    """Raise ConfigError unless each of these fields is a number within its range."""
    for name, (low, high) in ranges.items():
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(
                f"{name}={value!r}: expected an int, {low}..{high}, not a {type(value).__name__}"
            )
        if not low <= value <= high:
            raise ConfigError(f"{name}={value!r}: expected {low}..{high}")


def require_dead_letter_window(config: object) -> None:
    """Raise ConfigError if the window cannot hold as many dead letters as stop the consumer."""
    most, window = getattr(config, _MOST_LETTERS), getattr(config, _LETTER_WINDOW)
    if 0 < window < most:
        raise ConfigError(
            f"{_LETTER_WINDOW}={window}: expected at least "
            f"{_MOST_LETTERS}={most}, or it never pauses"
        )


def require_flags(config: object) -> None:
    """Raise ConfigError unless each field declared as bool is one."""
    # The string "no", from a file or an environment variable, would count as true.
    for each in fields(config):  # type: ignore[arg-type]
        value = getattr(config, each.name)
        if each.type == "bool" and not isinstance(value, bool):
            raise ConfigError(
                f"{each.name}={value!r}: expected True or False, not a {type(value).__name__}"
            )


def require_groups(config: object) -> None:
    """Raise ConfigError unless each group of settings is one: `pull` a PullConfig."""
    for each in fields(config):  # type: ignore[arg-type]
        kind, value = each.default_factory, getattr(config, each.name)
        if isinstance(kind, type) and is_dataclass(kind) and not isinstance(value, kind):
            # The type and not the value, which may be a dict with a secret in it.
            names = [one.name for one in fields(kind)]
            given = value if isinstance(value, Mapping) else ()
            setting = next((name for name in names if name in given), names[0])
            raise ConfigError(
                f"{each.name}: expected a {kind.__name__}, which is a group of settings, not a "
                f"{type(value).__name__}; its settings are given flat, as {setting}="
            )


def require_paths(config: object, *names: str) -> None:
    """Raise ConfigError unless each of these fields is the path of a file, or empty."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, str | os.PathLike):
            raise ConfigError(f"{name}={value!r}: expected a path, not a {type(value).__name__}")


def require_moment(config: object, name: str) -> None:
    """Convert this field to ms since 1970, but for an age, to a text; 0 stands for none.

    Raises: ConfigError: it is no time, or negative.
    """
    value = getattr(config, name)
    # An age is checked alone: what it is counted from, the client will know.
    found = moment_ms(name, value, 0)
    if age := age_text(value):
        object.__setattr__(config, name, age)
        return
    if found < 0:
        raise ConfigError(f"{name}={value!r}: expected a time since 1970")
    object.__setattr__(config, name, found)


def require_choice(config: object, **choices: type[StrEnum]) -> None:
    """Convert each of these fields to a member of its enumeration, or raise ConfigError."""
    for name, choice in choices.items():
        value = getattr(config, name)
        try:
            object.__setattr__(config, name, choice(value))
        except ValueError:
            allowed = ", ".join(repr(member.value) for member in choice)
            raise ConfigError(
                f"{name}={value!r}: expected one of {allowed}{_meant_value(value, choice)}"
            ) from None


def _meant_value(value: object, choice: type[StrEnum]) -> str:
    return meant_value(value, [member.value for member in choice])


def meant_value(value: object, allowed: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` with the allowed value of another spelling, or nothing.

    That of another client comes first, as for names: "range" is Kafka's name of "avg".
    """
    from ordermq.config.foreign_names import FOREIGN_VALUES  # only for a mistake

    if not isinstance(value, str):
        return ""
    # Java's constants are in capitals, and some write them with their class.
    text, known = value.rpartition(".")[2].lower(), [*allowed]
    meant = FOREIGN_VALUES.get(text)
    return f"; did you mean {meant!r}?" if meant in known else hint(text, known)


def require_names(config: object, *names: str) -> None:
    """Raise ConfigError unless each of these fields is a str of letters, digits, | _ and -."""
    # The characters of topic names without `%`, which separates a namespace from the name.
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, str) or not re.fullmatch(r"[|a-zA-Z0-9_-]*", value):
            raise ConfigError(f"{name}={value!r}: expected letters, digits, | _ -")


def require_server_name(config: object, name: str, characters: str) -> None:
    """Raise ConfigError unless this field is 1..100 letters, digits and these characters."""
    # The name goes into the names of topics and files, and into texts joined with `@`.
    value = getattr(config, name)
    if not isinstance(value, str) or not re.fullmatch(
        rf"[a-zA-Z0-9{re.escape(characters)}]{{1,100}}", value
    ):
        raise ConfigError(
            f"{name}={value!r}: expected 1..100 letters, digits and any of {' '.join(characters)}"
        )


def hint(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `; did you mean 'x'?` with the most similar known name, or nothing."""
    nearest = nearest_name(name, known, cutoff)
    return f"; did you mean {nearest!r}?" if nearest else ""


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the most similar known name, or nothing."""
    import difflib  # only for a mistake: it takes longer to load than all of this package's checks

    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return near[0] if near else ""


def meaning_of(name: str, known: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """Return the end of an error about an unknown setting: what to give instead, or nothing.

    A name of another client comes before the most similar one, which often misleads:
    auto_offset_reset is nearest to offset_store.

    Args: elsewhere: names of other calls with what each is (`names_of_calls`).
    """
    from ordermq.config.foreign_names import (  # only for a mistake
        FOREIGN_NAMES,
        find_foreign_name,
        without_separators,
    )

    names = frozenset(known)
    others = (
        {}
        if elsewhere is None
        else {each: what for each, what in elsewhere.items() if each not in names}
    )
    if name in others and name not in FOREIGN_NAMES:
        return f": it is {others[name]}"
    # Java's namespaceV2 is nearer to namespace than to namespace_v2.
    letters = without_separators(name)
    same = next((each for each in sorted(names) if without_separators(each) == letters), "")
    if not same and (foreign := find_foreign_name(name)) is not None:
        return foreign.explained(names)
    nearest = same or nearest_name(name, [*names, *others])
    what = f", {others[nearest]}" if nearest in others else ""
    return f"; did you mean {nearest!r}{what}?" if nearest else ""


def arguments_of(call: Callable[..., object] | None) -> list[str]:
    """Return the names of the arguments of a method, or of a constructor, which are no settings."""
    import inspect  # only for a mistake, as above

    if call is None:
        return []
    # Without the names of `**settings` and `*topics`, which nobody gives.
    taken = inspect.signature(call).parameters.values()
    return [each.name for each in taken if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]


def names_of_calls(client: type | None, *sent: type) -> dict[str, str]:
    """Return the arguments of a client's methods, and these, each with what it is.

    Args: sent: what is given to these methods, as Message, whose arguments come first.
    """
    calls: dict[str, Callable[..., object]] = {each.__name__: each for each in sent}
    for base in [] if client is None else reversed(client.__mro__[:-1]):
        calls |= {
            name: each
            for name, each in vars(base).items()
            if not name.startswith("_") and callable(each) and not isinstance(each, type)
        }
    found: dict[str, str] = {}
    for name, call in calls.items():
        for argument in arguments_of(call):
            found.setdefault(argument, f"an argument of {name}()")
    found |= {name: "a method" for name, call in calls.items() if not isinstance(call, type)}
    found.pop("self", None)
    return found


def refuse_unknown(
    call: Callable[..., object],
    unknown: Mapping[str, object],
    elsewhere: Mapping[str, str] | None = None,
) -> NoReturn:
    """Raise TypeError, as Python does for a misspelt keyword, with the one that was meant.

    For a call that takes `**unknown: Never`: type checkers report such a keyword all the same.

    Args: elsewhere: as of `meaning_of`.
    """
    name = next(iter(unknown))
    raise TypeError(
        f"{call.__qualname__}() got an unexpected keyword argument {name!r}"
        f"{meaning_of(name, arguments_of(call), elsewhere)}"
    )


def refuse_misplaced(
    call: Callable[..., object], given: Sequence[object], example: str
) -> NoReturn:
    """Raise TypeError for arguments in the wrong place, or of the wrong kind; show a right call.

    For a call that takes `*misplaced: Never`: type checkers report such an argument all the same.

    Args: given: all arguments that were given by place.
    """
    # Their types and not their values: one may be a secret, or a body.
    kinds = ", ".join(type(each).__name__ for each in given)
    raise TypeError(f"{call.__qualname__}() was given ({kinds}) by place: write {example}")


def refuse_places(client: type, group: object, misplaced: Sequence[object]) -> NoReturn:
    """Raise TypeError for a client that was given more than its group by place."""
    example = f"{client.__name__}(group, name_servers='host:port')"
    refuse_misplaced(client, (group, *misplaced), example)


GRPC = "grpc://"  # before the address of a proxy's endpoint


def require_bare_addresses(text: object) -> None:
    """Raise ConfigError if there is more than `host:port` in name servers, such as a secret."""
    # Looked at before it is cut, and not shown: whatever stands here may be a secret, and a
    # secret may hold any separator.
    whole = text if isinstance(text, str) else ";".join(map(str, text or ()))  # type: ignore[call-overload]
    if "@" in whole:
        raise ConfigError(
            "name_servers has a user or a secret before an '@': expected host:port alone; give "
            "access_key= and secret_key="
        )
    if "://" in whole.replace(GRPC, ""):
        raise ConfigError(
            "name_servers has a scheme before '://': expected host:port alone, as 127.0.0.1:9876, "
            "or grpc://host:port of a proxy; tls=True asks for TLS"
        )


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`; an IPv6 host is in brackets.

    Raises: ConfigError: anything else.
    """
    host, _, port = address.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    # The length first: int() raises for thousands of digits.
    if not _is_host(host) or not (port.isdecimal() and len(port) < 6 and 0 < int(port) < 65_536):
        raise ConfigError(f"address {address!r}: expected host:port, as 127.0.0.1:9876")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return `host:port` for `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_host(host: str) -> bool:
    # Addresses also come from name servers. What cannot be a host must be found here: deep in a
    # connect it would be a UnicodeError, which nobody takes for a wrong address.
    if not host or any(sign in host for sign in "[]/") or any(map(str.isspace, host)):
        return False
    try:
        if ":" in host:
            import ipaddress  # here, as few addresses are of version 6

            ipaddress.IPv6Address(host)
        if not host.isascii():
            host.encode("idna")  # loads its codec, which takes longer than a connect
    except ValueError:
        return False
    *labels, last = host.split(".")  # that is empty where the name ends with its dot
    if not all(0 < len(label) < 64 for label in labels) or len(last) > 63:
        return False
    return host.isprintable()


class Flat(Value):
    """Base of configurations whose groups of settings may also be given flat."""

    __slots__ = ()

    @classmethod
    def groups(cls) -> dict[str, dict[str, str]]:
        """Return the settings of each group with their types, as they are declared."""
        return {
            group.name: {one.name: str(one.type) for one in fields(group.default_factory)}  # type: ignore[arg-type]
            for group in fields(cls)
            if is_dataclass(group.default_factory)
        }

    @classmethod
    def kinds(cls) -> dict[str, str]:
        """Return every setting, those of groups and the groups, with its type as declared."""
        own = {one.name: str(one.type) for one in fields(cls)}
        return own | {name: kind for one in cls.groups().values() for name, kind in one.items()}

    @classmethod
    def flat_names(cls) -> frozenset[str]:
        """Return every setting that is given flat: what an error proposes, which is no group."""
        return frozenset(cls.kinds().keys() - cls.groups().keys())

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """Create a configuration from flat settings: `ConsumerConfig.of(pull_batch_size=64)`.

        Raises: ConfigError: unknown setting (with the most similar name), or a value out of its
            range.
        """
        return cls._of(settings)

    @classmethod
    def _of(
        cls, settings: Mapping[str, Any], client: type | None = None, sent: Sequence[type] = ()
    ) -> Self:
        own = {f.name: f for f in fields(cls)}
        parts: dict[str, Any] = {}
        home: dict[str, str] = {}
        for name, part in own.items():
            if isinstance(part.default_factory, type):
                parts[name] = {}
                home |= {f.name: name for f in fields(part.default_factory)}
        direct: dict[str, Any] = {}
        for name, value in settings.items():
            if name in own:
                direct[name] = value
            elif name in home:
                parts[home[name]][name] = value
            else:
                known = [*cls.flat_names(), *arguments_of(client)]
                given = cls.__name__ if client is None else client.__name__
                meant = meaning_of(name, known, names_of_calls(client, *sent))
                raise ConfigError(f"{given} has no setting {name!r}{meant}")
        for name, values in parts.items():
            factory = own[name].default_factory
            if values and isinstance(direct.get(name), own[name].default_factory):  # type: ignore[arg-type]
                raise ConfigError(
                    f"{cls.__name__}: give {name!r} or its settings {', '.join(values)}, not both"
                )
            if name not in direct and callable(factory):
                direct[name] = factory(**values)
        return cls(**direct)

    @classmethod
    def given(
        cls,
        config: Self | None,
        settings: Mapping[str, object],
        client: type | None = None,
        *sent: type,
    ) -> Self:
        """Return `config`, or a configuration of flat settings.

        Args:
            client: the class that was given them; one of its own arguments, or one of its
                methods', may be meant, too.
            sent: what is given to these methods, as Message.
        Raises: ConfigError: both are given, or as `of`.
        """
        if config is None:
            return cls._of(settings, client, sent)
        if not isinstance(config, cls):
            raise ConfigError(
                f"config: expected a {cls.__name__}, not a {type(config).__name__}; or give its "
                "settings flat, as keywords"
            )
        if settings:
            names = ", ".join(settings)
            raise ConfigError(f"give `config` or flat settings, not both: config and {names}")
        return config
