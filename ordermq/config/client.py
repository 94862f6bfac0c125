"""Group and name servers of clients; configurations from a dict, a URL or the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

from ordermq.config.checks import Flat, hint, require_bare_addresses, require_groups
from ordermq.errors import ConfigError

ENVIRONMENT_PREFIX: Final = "ORDERMQ_"
_NAME_SERVERS_VARIABLE: Final = "ORDERMQ_NAME_SERVERS"
_DEFAULT_PORT = 9876
_SERVER = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\])(:[0-9]{1,5})?"
_FLAGS = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip


class ClientConfig(Flat, kw_only=True):
    """Group and name servers of a client, where its constructor is not given them."""

    # Group, if the first argument of the client is left out.
    group: str = ""
    # Name servers, if `name_servers` of the client is left out; empty: those of the environment
    # variable ORDERMQ_NAME_SERVERS.
    name_servers: str | Sequence[str] = ""

    def __post_init__(self) -> None:
        require_groups(self)
        require_bare_addresses(self.name_servers)

    def group_or(self, given: str | None) -> str:
        """Return the group that the client's constructor was given, else this one.

        Raises: ConfigError: there is none.
        """
        found = given if given is not None else self.group
        if given is None and not found:
            raise ConfigError(
                "the client has no group: give one as its first argument, or as `group` in its "
                "config"
            )
        return found

    def name_servers_or(self, given: str | Sequence[str] | None) -> str | Sequence[str]:
        """Return the name servers the constructor was given, else these, else the environment's.

        Raises: ConfigError: there are none.
        """
        if given is not None:
            return given
        found = self.name_servers or os.environ.get(_NAME_SERVERS_VARIABLE, "")
        if not found:
            raise ConfigError(
                "the client has no name servers: expected host:port, as 127.0.0.1:9876; give "
                f"name_servers, or set {_NAME_SERVERS_VARIABLE}"
            )
        return found

    @classmethod
    def from_dict(cls, settings: Mapping[str, object]) -> Self:
        """Make a configuration of a mapping, as of a TOML or YAML file: flat, or in groups.

        `{"group": "shop", "send": {"retry_times": 2}}` and `{"group": "shop", "retry_times": 2}`
        are the same.

        Raises: ConfigError: as `of`, or a setting that is given twice.
        """
        groups = cls.groups()
        flat: dict[str, object] = {}
        for name, value in settings.items():
            inside = isinstance(value, Mapping) and name in groups
            for setting, one in value.items() if inside else ((name, value),):  # type: ignore[attr-defined]
                if inside and setting not in groups[name]:
                    raise ConfigError(
                        f"{cls.__name__}: {name!r} has no setting {setting!r}"
                        f"{hint(setting, groups[name])}"
                    )
                if setting in flat:
                    raise ConfigError(f"{cls.__name__}: {setting!r} is given twice")
                flat[setting] = one
        return cls.of(**flat)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Make a configuration of `rocketmq://access:secret@host:9876,host?group=shop&tls=true`.

        The account and the port (9876) may be left out; what follows the `?` are settings. What
        is special in a URL is written `%40` and the like; no error shows the URL or a part of it.

        Raises: ConfigError: no such URL, or as `of`.
        """
        if not isinstance(url, str):
            raise _bad_url(cls)
        from urllib.parse import parse_qsl, unquote, urlsplit  # here, as few give a URL

        # `from None` throughout: the cause would show what was read, and with it the secret.
        try:
            scheme, _, rest = url.partition("://")
            netloc = re.split("[/?#]", rest, maxsplit=1)[0]
            # What is behind it alone: newer Pythons refuse an address of IPv6 in a list of hosts.
            parts = urlsplit(rest[len(netloc) :])
            query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError:
            raise _bad_url(cls) from None
        account, at, hosts = netloc.rpartition("@")
        # An account with an unescaped / ? or # ends up behind the hosts.
        behind = f"{parts.netloc}{parts.path.removeprefix('/')}{parts.fragment}{parts.query}"
        if (
            scheme.lower() != "rocketmq"
            or not hosts
            or parts.netloc
            or parts.path.strip("/")
            or "@" in behind
            or not {*"[]"}.isdisjoint(account)
        ):
            raise _bad_url(cls)
        settings: dict[str, object] = {}
        if at:
            access, colon, secret = account.partition(":")
            if not (access and colon and secret):
                raise ConfigError(
                    f"{cls.__name__}.from_url: expected access:secret before the '@', both"
                )
            settings |= {"access_key": unquote(access), "secret_key": unquote(secret)}
        servers = [host for host in hosts.replace(",", ";").split(";") if host]
        # An account without its host looks like a host with a strange port.
        if not servers or not all(re.fullmatch(_SERVER, server) for server in servers):
            raise _bad_url(cls)
        settings["name_servers"] = ";".join(map(_with_port, servers))
        for name, text in query:
            if name in settings:
                raise ConfigError(f"{cls.__name__}.from_url: {name!r} is given twice")
            settings[name] = cls._read(name, text, f"{name!r} in the URL")
        return cls.of(**settings)

    @classmethod
    def from_env(
        cls, prefix: str = ENVIRONMENT_PREFIX, environ: Mapping[str, str] | None = None
    ) -> Self:
        """Make a configuration of environment variables: ORDERMQ_GROUP, ORDERMQ_RETRY_TIMES.

        Each is a setting in capitals behind the prefix. Settings of other clients are left to
        them: one environment may configure a producer and a consumer.

        Args:
            environ: default `os.environ`.
        Raises: ConfigError: a name that is nearly one of a setting, or as `of`.
        """
        settings: dict[str, object] = {}
        own = cls.kinds()
        for variable, text in (os.environ if environ is None else environ).items():
            name = variable.removeprefix(prefix).lower()
            if not variable.startswith(prefix) or not name:
                continue
            if name in own:
                settings[name] = cls._read(name, text, variable)
            # Only what is nearly a setting is a mistake. Others share the prefix: ORDERMQ_CORE,
            # or ORDERMQ_PORT, which Kubernetes sets beside a service of this name.
            elif name not in _of_any_client() and (near := hint(name, _of_any_client(), 0.85)):
                raise ConfigError(f"{variable} in the environment is no setting{near}")
        return cls.of(**settings)

    @classmethod
    def _read(cls, name: str, text: str, where: str) -> object:
        """Convert a text to the type of a setting; `of` refuses a name that is none."""
        kind = cls.kinds().get(name, "str")
        reader = _READERS.get(kind)
        try:
            return text if reader is None else reader(text)
        except (ValueError, KeyError):
            expected = "an int" if kind == "int" else "true or false"
            raise ConfigError(f"{where} is {text!r}: expected {expected}") from None


def _bad_url(kind: type) -> ConfigError:
    return ConfigError(
        f"{kind.__name__}.from_url: expected rocketmq://access:secret@host:9876?group=name; the "
        "account may be left out, and / ? # @ : in it are percent-encoded"
    )


def _with_port(host: str) -> str:
    # The port of an IPv6 address follows its bracket.
    return host if ":" in host.rpartition("]")[2] else f"{host}:{_DEFAULT_PORT}"


_READERS: dict[str, Callable[[str], Any]] = {
    "int": lambda text: int(text.strip()),
    "bool": lambda text: _FLAGS[text.strip().lower()],
    "Moment": lambda text: int(text) if text.strip().isdecimal() else text,
}


def _of_any_client() -> set[str]:
    from ordermq import config  # here, because it imports this module

    clients = (
        config.ProducerConfig,
        config.ConsumerConfig,
        config.LitePullConsumerConfig,
        config.PullConsumerConfig,
    )
    return {name for kind in clients for name in kind.flat_names()}
