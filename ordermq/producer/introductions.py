"""Brokers that have heard of us, so that they can speak to us."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ordermq.client.session import ClientSession
from ordermq.errors import RemotingError
from ordermq.remoting.bodies import Heartbeat

_log = logging.getLogger("ordermq.producer")
_AGAIN_MS = 1_000


class Introductions:
    """A broker speaks to a client over the connection its last heartbeat came by.

    On the I/O thread.

    Args:
        describe: makes the heartbeat of this moment.
    """

    def __init__(self, client: ClientSession, describe: Callable[[], Heartbeat]) -> None:
        self._client = client
        self._describe = describe
        self._introduced: set[str] = set()  # addresses
        self._under_way: dict[str, asyncio.Task[bool]] = {}
        self._is_closed = False

    async def introduce(self, address: str) -> bool:
        """Tell a broker of us, if it has not heard; False if it does not hear us now."""
        if address in self._introduced:
            return True
        task = self._under_way.get(address)
        if task is None:
            task = self._client.runtime.spawn(self._introduce(address), f"introduce {address}")
            self._under_way[address] = task
            task.add_done_callback(lambda _: self._under_way.pop(address, None))
        # Shielded: one impatient caller must not end it for the others.
        return await asyncio.shield(task)

    def lost(self, address: str) -> None:
        """A connection broke: what had heard of us hears again."""
        if address in self._introduced and not self._is_closed:
            self._introduced.discard(address)
            self._client.runtime.spawn(self._introduce_again(address), f"introduce {address}")

    def close(self) -> None:
        """Introduce us no more."""
        self._is_closed = True

    async def _introduce(self, address: str) -> bool:
        try:
            await self._client.api.heartbeat(address, self._describe())
        except RemotingError as error:
            _log.warning("%s: has not heard of us yet, cannot ask or reply: %s", address, error)
            return False
        self._introduced.add(address)
        return True

    async def _introduce_again(self, address: str) -> None:
        while not self._is_closed and address in self._client.routes.masters():
            if await self.introduce(address):
                return
            await self._client.clock.sleep_ms(_AGAIN_MS)
