"""The live producers of each group: whom to ask how a transaction stands
(docs/internals/protocol.md#membership)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ordermq.config import BrokerConfig

if TYPE_CHECKING:
    from ordermq.broker.connection import BrokerConnection


class ProducerTable:
    """Connections by producer group, each with the time of its last heartbeat."""

    def __init__(self, config: BrokerConfig) -> None:
        self._expiry_ms = config.client_expiry_ms
        self._groups: dict[str, dict[BrokerConnection, int]] = {}
        self._clients: dict[str, BrokerConnection] = {}

    def register(
        self, group: str, client_id: str, connection: BrokerConnection, now_ms: int
    ) -> None:
        """Take a heartbeat."""
        self._groups.setdefault(group, {})[connection] = now_ms
        self._clients[client_id] = connection

    def client(self, client_id: str) -> BrokerConnection | None:
        """The connection a producer is spoken to over: that of its last heartbeat."""
        return self._clients.get(client_id)

    def leave(self, group: str, connection: BrokerConnection) -> None:
        """A producer says goodbye."""
        members = self._groups.get(group, {})
        members.pop(connection, None)
        if not members:
            self._groups.pop(group, None)

    def disconnect(self, connection: BrokerConnection) -> None:
        """Forget a closed connection."""
        for group in list(self._groups):
            self.leave(group, connection)
        for client_id in [name for name, own in self._clients.items() if own is connection]:
            del self._clients[client_id]

    def next_of(self, group: str, now_ms: int) -> BrokerConnection | None:
        """A live producer of the group, each in turn; None if there is none."""
        members = self._groups.get(group, {})
        for connection, heartbeat_ms in list(members.items()):
            del members[connection]
            if now_ms - heartbeat_ms <= self._expiry_ms:
                members[connection] = heartbeat_ms  # behind the others
                return connection
        return None
