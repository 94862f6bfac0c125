"""One client id with all it needs to talk: connections, routes, heartbeats, requests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from ordermq.client.broker_api import BrokerApi
from ordermq.client.connections import Answer, Connections
from ordermq.client.heartbeats import Heartbeats
from ordermq.client.name_server_api import NameServerApi, parse_name_servers
from ordermq.client.routes import Routes
from ordermq.client.runtime import Runtime, cancelled, repeat
from ordermq.clock import Clock
from ordermq.config import RemotingConfig
from ordermq.errors import OrderMQError
from ordermq.model.identifiers import unique_instance
from ordermq.remoting.bodies import Heartbeat
from ordermq.remoting.command import Command
from ordermq.remoting.connection import split_address

DEFAULT_INSTANCE = "DEFAULT"
_LOOPBACK = "127.0.0.1"


def _ignore_request(address: str, command: Command) -> Command | None:
    return None


def _ignore(text: str) -> None:
    return None


class ClientSession:
    """The talking part of a producer or consumer; its methods run on the I/O thread.

    Args:
        describe: what the heartbeat says of us.
        on_request: the request of a broker at this address; answers it or returns None.
        on_lost: a connection to this address broke.
        on_route_change: the queues of this topic changed.
    """

    def __init__(
        self,
        runtime: Runtime,
        clock: Clock,
        config: RemotingConfig,
        name_servers: str | Sequence[str],
        client_id: str,
        *,
        describe: Callable[[], Heartbeat],
        on_request: Callable[[str, Command], Answer] = _ignore_request,
        on_lost: Callable[[str], None] = _ignore,
        on_route_change: Callable[[str], None] = _ignore,
    ) -> None:
        self.runtime = runtime
        self.clock = clock
        self.config = config
        self.client_id = client_id
        self.connections = Connections(clock, config, on_request, on_lost)
        self.api = BrokerApi(self.connections, config, client_id)
        self.name_servers = NameServerApi(
            self.connections, parse_name_servers(name_servers), config
        )
        self.routes = Routes(self.name_servers, on_route_change)
        self.heartbeats = Heartbeats(self.api, self.routes, describe)
        self._loops: list[asyncio.Task[object]] = []

    def start_loops(self) -> None:
        """Begin the periodic heartbeat and route refresh."""
        self._loops = [
            self.runtime.spawn(
                repeat(self.heartbeats.beat, self.clock, lambda: self.config.heartbeat_interval_ms),
                f"heartbeat {self.client_id}",
            ),
            self.runtime.spawn(
                repeat(self.routes.refresh_all, self.clock, lambda: self.config.route_interval_ms),
                f"routes {self.client_id}",
            ),
        ]

    async def group_members(self, group: str) -> list[str]:
        """The client ids of a group, by the first broker that answers; [] without a broker.

        Raises: RemotingError, RouteError: none of the brokers answered; the last one's error.
        """
        failure: OrderMQError | None = None
        for address in self.routes.masters():
            try:
                return await self.api.consumer_ids(address, group)
            except OrderMQError as error:
                failure = error
        if failure is not None:
            raise failure
        return []

    async def stop_loops(self) -> None:
        """End the periodic heartbeat and route refresh."""
        await cancelled(*self._loops)
        self._loops = []

    async def close(self) -> None:
        """Stop the loops and close the connections; the caller has unregistered before."""
        await self.stop_loops()
        await self.connections.close()


def new_client_id(
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
