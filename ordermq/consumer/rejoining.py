"""Announcing ourselves again to a broker whose connection broke: it dropped us with it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ordermq.client.session import ClientSession
from ordermq.errors import OrderMQError
from ordermq.remoting.bodies import Heartbeat

_log = logging.getLogger("ordermq.consumer")


class Rejoining:
    """Sends heartbeats to a lost broker until it answers; on the I/O thread.

    Args:
        describe: makes the heartbeat of this moment.
        on_back: called when a broker answers again.
    """

    def __init__(
        self,
        client: ClientSession,
        describe: Callable[[], Heartbeat],
        on_back: Callable[[], None],
    ) -> None:
        self._client = client
        self._describe = describe
        self._on_back = on_back
        self._under_way: set[str] = set()
        self._is_stopped = False

    def lost(self, address: str) -> None:
        """The connection to this address broke."""
        is_broker = address in self._client.routes.masters()
        if is_broker and address not in self._under_way and not self._is_stopped:
            self._under_way.add(address)
            self._client.runtime.spawn(self._rejoin(address), f"rejoin {address}")

    def stop(self) -> None:
        """We leave: a heartbeat would make us a member again."""
        self._is_stopped = True

    async def _rejoin(self, address: str) -> None:
        try:
            while not self._is_stopped:
                try:
                    await self._client.api.heartbeat(address, self._describe())
                    break
                except OrderMQError as error:
                    _log.info("%s: not back yet: %s", address, error)
                    await self._client.clock.sleep_ms(self._client.config.reconnect_delay_ms)
        finally:
            self._under_way.discard(address)
        self._on_back()
