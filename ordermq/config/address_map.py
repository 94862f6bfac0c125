"""Addresses of brokers as this process reaches them: behind NAT, forwarded ports, in containers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ordermq.config.checks import join_address, split_address
from ordermq.errors import ConfigError

_ANY: Final = "*"
_EXAMPLE: Final = "10.0.0.5:10911=localhost:10911"
# Host and port; None: the entry is a host alone, and leaves ports as they are.
_Place = tuple[str, int | None]


class AddressMap(Mapping[str, str]):
    """Reachable addresses of brokers, by the addresses that name servers tell.

    An entry leads from `host:port` to `host:port`, or from a host to a host, which keeps the port.
    `*` as a host stands for any. The most exact entry counts: host and port, host, `*` and port,
    `*`. An address without an entry stays as it is; what an entry leads to is not looked up again.

    Args:
        entries: a mapping, or as text `10.0.0.5:10911=localhost:10911;10.0.0.6=gateway`.
    Raises: ConfigError: an entry that is none, or is given twice.
    """

    __slots__ = ("_entries", "_reachable")

    def __init__(self, entries: Mapping[str, str] | str) -> None:
        self._entries: dict[str, str] = {}  # as they were given
        self._reachable: dict[_Place, _Place] = {}
        for told, reachable in _pairs(entries):
            source, target = _place(told), _place(reachable)
            if (source[1] is None) != (target[1] is None):
                raise _wrong(
                    f"{told!r} and {reachable!r}: give both a port, or neither, which keeps the "
                    "broker's"
                )
            if target[0] == _ANY:
                raise _wrong(f"{reachable!r} is no address: * stands for hosts that are told")
            if source in self._reachable:
                raise _wrong(f"{told!r} is given twice")
            self._entries[told] = reachable
            self._reachable[source] = target

    def __getitem__(self, told: str) -> str:
        return self._entries[told]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __hash__(self) -> int:  # Spark keeps a session per configuration
        return hash(frozenset(self._entries.items()))

    def __repr__(self) -> str:
        return repr(self._entries)

    def translate(self, address: str) -> str:
        """Return the reachable address of a broker that a name server tells."""
        try:
            host, port = split_address(address)
        except ConfigError:
            return address  # whoever uses the route skips it, and says where it came from
        for source in ((host.lower(), port), (host.lower(), None), (_ANY, port), (_ANY, None)):
            if (target := self._reachable.get(source)) is not None:
                to_host, to_port = target
                return join_address(to_host, port if to_port is None else to_port)
        return address

    def require_apart(self, told: Iterable[tuple[str, str]]) -> None:
        """Raise ConfigError if the addresses of two brokers lead to the same place.

        Brokers do not check that a request is meant for them: one would serve the other's queues.
        Brokers that are told with one address are left alone: RocketMQ's proxy tells its own.

        Args:
            told: broker and address, as the name server tells them.
        """
        found: dict[str, tuple[str, str]] = {}
        for broker, address in told:
            reachable = self.translate(address)
            other, other_address = found.setdefault(reachable, (broker, address))
            if other != broker and other_address != address:
                raise _wrong(
                    f"{other} ({other_address}) and {broker} ({address}) both become {reachable}: "
                    "give each broker an address of its own"
                )


def _pairs(entries: object) -> Iterator[tuple[str, str]]:
    if isinstance(entries, str):
        for part in entries.replace(",", ";").split(";"):
            if part.strip():
                told, equals, reachable = part.partition("=")
                if not equals:
                    raise _wrong(f"{_shown(part)}: expected told=reachable, as {_EXAMPLE}")
                yield told.strip(), reachable.strip()
    elif isinstance(entries, Mapping):
        for told, reachable in entries.items():
            if not isinstance(told, str) or not isinstance(reachable, str):
                raise _wrong(f"{told!r}: {reachable!r}: expected texts, host:port or a host")
            yield told.strip(), reachable.strip()
    else:
        raise _wrong(
            f"expected a dict of addresses or a text such as {_EXAMPLE}, not a "
            f"{type(entries).__name__}"
        )


def _place(text: str) -> _Place:
    """Return host and port of one side of an entry; host names are the same in capitals."""
    has_port = ":" in text.rpartition("]")[2]
    try:
        # Nothing of a URL, a user or a secret is an address, and split_address would let some by.
        if any(sign in text for sign in "@/"):
            raise ConfigError("no address")
        host, port = split_address(text if has_port else f"{text}:1")
    except ConfigError:
        raise _wrong(
            f"{_shown(text)}: expected host:port, or a host alone, as in {_EXAMPLE}; an IPv6 host "
            "is in brackets"
        ) from None
    return host.lower(), port if has_port else None


def _shown(text: str) -> str:
    return "(an entry with an '@', not shown)" if "@" in text else repr(text)


def _wrong(problem: str) -> ConfigError:
    return ConfigError(f"RemotingConfig.address_map: {problem}")
