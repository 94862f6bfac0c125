"""Telling every broker of our topics that we live, and as whom."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ordermq.client.broker_api import BrokerApi
from ordermq.client.routes import Routes
from ordermq.errors import RemotingError
from ordermq.remoting.bodies import Heartbeat

_log = logging.getLogger("ordermq.client")


class Heartbeats:
    """Sends heartbeats to all masters; on the I/O thread.

    Args:
        describe: makes the heartbeat of this moment.
    """

    def __init__(self, api: BrokerApi, routes: Routes, describe: Callable[[], Heartbeat]) -> None:
        self._api = api
        self._routes = routes
        self._describe = describe

    async def beat(self) -> None:
        """One heartbeat to each master; a broker that cannot be reached is logged."""
        heartbeat = self._describe()
        await asyncio.gather(
            *(self._beat_one(address, heartbeat) for address in self._routes.masters())
        )

    async def _beat_one(self, address: str, heartbeat: Heartbeat) -> None:
        try:
            await self._api.heartbeat(address, heartbeat)
        except RemotingError as error:
            _log.warning("%s: heartbeat failed: %s", address, error)
