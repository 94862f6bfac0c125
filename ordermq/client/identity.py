"""Who we are to brokers: `ip@instance[@unit]` (docs/internals/protocol.md#identifiers)."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from ordermq.config import RemotingConfig
from ordermq.model.identifiers import unique_instance
from ordermq.remoting.connection import split_address

DEFAULT_INSTANCE = "DEFAULT"
_LOOPBACK = "127.0.0.1"


def client_id(
    config: RemotingConfig,
    name_servers: Sequence[str],
    instance: str | None = None,
    *,
    is_broadcasting: bool = False,
    is_producer: bool = False,
) -> str:
    """The client id; unique in the cluster unless an instance name makes it a fixed one.

    The same id in two processes makes both "own" a queue
    (docs/internals/semantics.md#duplicate-client-ids), so no name, and
    Java's "DEFAULT", become process, time and chance. A broadcasting member finds its offset
    file by its id, and keeps "DEFAULT". A fixed name is told apart by the host's address.

    A producer's id is unique whatever its name: a broker pushes a reply to the connection that
    came with that id last, which must not be another client's of the same name.

    Args:
        name_servers: the address we reach the first of them from is ours, if none is set.
    """
    if is_broadcasting:
        instance = instance or DEFAULT_INSTANCE
    elif instance is None or instance == DEFAULT_INSTANCE:
        instance = unique_instance()
    elif is_producer:
        instance = f"{instance}#{unique_instance()}"
    parts = [config.client_ip or _address_towards(name_servers[0]), instance]
    if config.unit_name:
        parts.append(config.unit_name)
    return "@".join(parts)


def _address_towards(server: str) -> str:
    """Our address on the way to a server; a datagram socket finds it without a packet."""
    host, port = split_address(server)
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)
            found: str = probe.getsockname()[0]
            return found
    except OSError:  # it cannot be reached now; connecting says so better than we could
        return _LOOPBACK
