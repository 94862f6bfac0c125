"""Routes from a name server of the test, and what they told their client."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from ordermq.client.routes import Routes
from ordermq.clock import ManualClock

FORGET_AFTER_MS = 60_000


class ToldEvents:
    """Collects the events of routes, in their order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def take(self) -> list[tuple[str, str]]:
        """Return what was told since the last call."""
        told, self.told = self.told, []
        return told

    def on_route_change(self, topic: str) -> None:
        self.told.append(("changed", topic))

    def on_loss(self, topic: str) -> None:
        self.told.append(("lost", topic))

    def on_new_master(self, address: str) -> None:
        self.told.append(("new", address))

    def on_master_moved(self, broker_name: str) -> None:
        self.told.append(("moved", broker_name))

    def on_unused(self, address: str) -> None:
        self.told.append(("unused", address))


def routes_from(
    server: Any,
    events: ToldEvents | None = None,
    clock: ManualClock | None = None,
    connected: Container[str] = (),
) -> Routes:
    """Make the routes of a client that asks this server, and is connected to some brokers."""
    return Routes(
        server,
        clock or ManualClock(),
        FORGET_AFTER_MS,
        events or ToldEvents(),
        connected.__contains__,
    )
