"""Telling every broker of our topics that we live, and as whom."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ordermq.client.broker_api import BrokerApi
from ordermq.client.connections import is_denied
from ordermq.client.routes import Routes
from ordermq.errors import BrokerError, RemotingError
from ordermq.remoting.bodies import Heartbeat

_log = logging.getLogger("ordermq.client")


class Heartbeats:
    """Sends heartbeats to all masters, and those of consumers to slaves; on the I/O thread.

    A slave serves pulls only to groups it has heard of.

    Args:
        describe: makes the heartbeat of this moment.
    """

    def __init__(self, api: BrokerApi, routes: Routes, describe: Callable[[], Heartbeat]) -> None:
        self._api = api
        self._routes = routes
        self._describe = describe

    async def beat(self) -> None:
        """One heartbeat to each broker; what one of them refuses is logged."""
        for address, error in await self._beat_all():
            _log.warning("%s: heartbeat failed: %s", address, error)

    async def introduce(self) -> None:
        """The first heartbeat: as `beat`, but a broker that denies us is an error.

        Raises: BrokerError: wrong keys, or an account without this permission.
        """
        for address, error in await self._beat_all():
            if isinstance(error, BrokerError) and is_denied(error.response_code, str(error)):
                raise error
            _log.warning("%s: heartbeat failed: %s", address, error)

    async def version_of(self, address: str) -> int:
        """The version a broker speaks, as its answer to a heartbeat says
        (docs/internals/protocol.md#flags-and-request-ids).

        Raises: RemotingError: it does not answer.
        """
        return await self._api.heartbeat(address, self._describe())

    async def _beat_all(self) -> list[tuple[str, RemotingError]]:
        heartbeat = self._describe()
        addresses = self._routes.masters()
        if heartbeat.consumers:
            addresses += self._routes.slaves()
        outcomes = await asyncio.gather(
            *(self._beat_one(address, heartbeat) for address in addresses)
        )
        return [outcome for outcome in outcomes if outcome is not None]

    async def _beat_one(
        self, address: str, heartbeat: Heartbeat
    ) -> tuple[str, RemotingError] | None:
        try:
            await self._api.heartbeat(address, heartbeat)
        except RemotingError as error:
            return address, error
        return None
