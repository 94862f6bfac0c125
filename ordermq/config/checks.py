"""Checks of values, and construction from flat settings, for all groups of settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any, NoReturn, Self

from ordermq.errors import ConfigError
from ordermq.value import Value

DAY_MS = 86_400_000
_MOST_LETTERS, _LETTER_WINDOW = "pause_after_dead_letters", "dead_letter_window"


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
    from ordermq.config.foreign_names import FOREIGN_VALUES  # only for a mistake

    meant = FOREIGN_VALUES.get(value.lower()) if isinstance(value, str) else None
    return f"; did you mean {meant!r}?" if meant in set(choice) else ""


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
    import difflib  # only for a mistake: it takes longer to load than all of this package's checks

    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def meaning_of(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown setting: what to give instead, or nothing.

    A name of another client comes before the most similar one, which often misleads:
    auto_offset_reset is nearest to offset_store.
    """
    from ordermq.config.foreign_names import find_foreign_name  # only for a mistake

    names = frozenset(known)
    foreign = find_foreign_name(name)
    if foreign is None or name.replace("_", "").lower() in {
        each.replace("_", "") for each in names
    }:
        return hint(name, sorted(names))
    return foreign.explained(names)


def arguments_of(call: Callable[..., object] | None) -> list[str]:
    """Return the names of the arguments of a method, or of a constructor, which are no settings."""
    import inspect  # only for a mistake, as above

    return [] if call is None else list(inspect.signature(call).parameters)


def refuse_unknown(call: Callable[..., object], unknown: Mapping[str, object]) -> NoReturn:
    """Raise TypeError, as Python does for a misspelt keyword, with the one that was meant.

    For a call that takes `**unknown: Never`: type checkers report such a keyword all the same.
    """
    name = next(iter(unknown))
    known = [each for each in arguments_of(call) if each != "unknown"]
    raise TypeError(
        f"{call.__qualname__}() got an unexpected keyword argument {name!r}"
        f"{meaning_of(name, known)}"
    )


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
    def of(cls, **settings: Any) -> Self:
        """Create a configuration from flat settings: `ConsumerConfig.of(pull_batch_size=64)`.

        Raises: ConfigError: unknown setting (with the most similar name), or a value out of its
            range.
        """
        return cls._of(settings, None)

    @classmethod
    def _of(cls, settings: Mapping[str, Any], client: type | None) -> Self:
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
                known = [*own, *home, *arguments_of(client)]
                given = cls.__name__ if client is None else client.__name__
                raise ConfigError(f"{given} has no setting {name!r}{meaning_of(name, known)}")
        for name, values in parts.items():
            factory = own[name].default_factory
            if name in direct and values:
                raise ConfigError(
                    f"{cls.__name__}: give {name!r} or its settings {', '.join(values)}, not both"
                )
            if name not in direct and callable(factory):
                direct[name] = factory(**values)
        return cls(**direct)

    @classmethod
    def given(
        cls, config: Self | None, settings: Mapping[str, object], client: type | None = None
    ) -> Self:
        """Return `config`, or a configuration of flat settings.

        Args: client: the class that was given them; one of its own arguments may be meant, too.
        Raises: ConfigError: both are given, or as `of`.
        """
        if config is None:
            return cls._of(settings, client)
        if settings:
            names = ", ".join(settings)
            raise ConfigError(f"give `config` or flat settings, not both: config and {names}")
        return config
