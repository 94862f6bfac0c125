"""The listening socket: accepts connections within the limits, and their TLS handshakes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from ordermq import forking
from ordermq.broker.connection import BrokerConnection
from ordermq.broker.connection_limits import ConnectionLimits
from ordermq.remoting.tls import SHUTDOWN_TIMEOUT_S, RenewedContext

log = logging.getLogger("ordermq.broker")

_BACKLOG = 1_024  # a whole cluster of clients reconnects at once after a restart
_ACCEPTS_AT_ONCE = 128  # connections accepted before requests get the loop
_HANDSHAKE_TIMEOUT_S = 10.0
_PAUSE_S = 1.0  # without free descriptors


class Listener:
    """Accepts connections on one address; on the loop thread.

    Not asyncio's server: that one makes a transport of every connection, and begins its
    handshake, before the program can count it.

    Args:
        new_connection: makes the connection of an admitted client.
        tls: of the handshakes.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        new_connection: Callable[[], BrokerConnection],
        tls: RenewedContext,
    ) -> None:
        self._limits = limits
        self._new_connection = new_connection
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        self._tls = tls

    def open(self, host: str, port: int) -> int:
        """Listen; return the port.

        Raises: OSError: the address is not available.
        """
        # Not by the loop: uvloop looks names up on threads of libuv, and a forked child, which has
        # none of these, then crashes as it exits. Not on a thread of the loop's executor either:
        # to end that, asyncio starts one more, which Python 3.12 refuses while a program exits.
        # Here it keeps nobody waiting, for a broker that does not listen yet has no connections.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            # A name may have several addresses, and each is listened on.
            for family, address in dict.fromkeys((each[0], each[4]) for each in found):
                listening = socket.create_server(address, family=family, backlog=_BACKLOG)
                listening.setblocking(False)
                # A child that kept it would keep the port after the broker's end.
                forking.keep_from_children(listening.fileno())
                self._sockets.append(listening)
        except OSError:
            self._close_sockets()
            raise
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)
        return int(self._sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Accept no more connections, and end the handshakes that are under way."""
        for listening in self._sockets:
            self._loop.remove_reader(listening)
        self._close_sockets()
        for task in self._handshakes:
            task.cancel()
        accepted = list(self._handshakes.values())
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        # A task that was cancelled before it began has closed nothing.
        for each in accepted:
            each.close()

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            forking.closes(listening.fileno())
            listening.close()
        self._sockets.clear()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptor is free. The socket stays readable, so the loop would call here
                # without end.
                self._limits.out_of_descriptors(error)
                self._loop.remove_reader(listening)
                self._loop.call_later(_PAUSE_S, self._resume, listening)
                return
            if not self._limits.admit(peer[0]):
                accepted.close()
                continue
            accepted.setblocking(False)
            connection = self._new_connection()
            self._limits.watch(connection, peer[0])
            task = self._loop.create_task(self._connect(connection, accepted))
            # Kept, because the loop holds tasks only weakly.
            self._handshakes[task] = accepted
            task.add_done_callback(self._handshakes.pop)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _handshake(self) -> dict[str, Any]:
        tls = self._tls.current()
        if tls is None:
            return {}
        return {
            "ssl": tls,
            "ssl_handshake_timeout": _HANDSHAKE_TIMEOUT_S,
            "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT_S,
        }

    async def _connect(self, connection: BrokerConnection, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, **self._handshake()
            )
        except OSError as error:
            # A client that gives up, or speaks no TLS: its own error says why. The connection was
            # never opened, so it will not be reported as closed.
            log.debug("connection ended before it was open: reason=%s", error)
            self._limits.release(connection)
            accepted.close()
