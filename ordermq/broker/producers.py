"""The live producers of each group: whom to ask how a transaction stands (protocol 3.7)."""

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

    def register(self, group: str, connection: BrokerConnection, now_ms: int) -> None:
        """Take a heartbeat."""
        self._groups.setdefault(group, {})[connection] = now_ms

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

    def next_of(self, group: str, now_ms: int) -> BrokerConnection | None:
        """A live producer of the group, each in turn; None if there is none."""
        members = self._groups.get(group, {})
        for connection, heartbeat_ms in list(members.items()):
            del members[connection]
            if now_ms - heartbeat_ms <= self._expiry_ms:
                members[connection] = heartbeat_ms  # behind the others
                return connection
        return None
