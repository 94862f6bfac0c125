"""PullConnections: the pull engine of one client and its connections, one per broker.

The engine is a native thread that pulls messages without the interpreter
(docs/internals/architecture.md#pulls). This side opens its connections, takes its events, and says
in words why a connection ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from itertools import islice
from typing import Any, Protocol

from ordermq import core, forking
from ordermq.client.connections import Connections
from ordermq.clock import CLOCK_ID
from ordermq.config import RemotingConfig
from ordermq.core.streams import ConnectionEnd, StreamEnd
from ordermq.errors import (
    ConnectionLost,
    OrderMQError,
    ProtocolError,
    RemotingError,
    RequestTimeout,
    StateError,
)
from ordermq.forking import ProcessBound
from ordermq.remoting.command import Command, Framer
from ordermq.remoting.connecting import taking_descriptors
from ordermq.remoting.shared_tasks import SharedTasks
from ordermq.remoting.tls import TlsSession, describe_tls_error

_log = logging.getLogger("ordermq.client")
_GOES_ON = int(StreamEnd.GOES_ON)


class StreamOwner(Protocol):
    """Whoever started a stream of pulls; called on the I/O thread.

    A thread that consumes may take the queue of a stream by `PullConnections.take_ready` instead of
    the second and later calls of `on_filled`.
    """

    def on_filled(self, is_dispatched: bool) -> None:
        """Note that messages were buffered: the first ones, or while the queue had none.

        Args: is_dispatched: the queue must be submitted: its dispatch flag was set.
        """

    def on_end(self, end: StreamEnd, is_dispatched: bool, offset: int, frame: bytes) -> None:
        """Take the end of the stream.

        Args:
            is_dispatched: as of `on_filled`.
            offset: of the last pull.
            frame: the answer that ended it, or empty.
        """


class PullConnection:
    """One connection of the engine.

    Attributes:
        native: the engine's half of it.
        error: why it ended; None while it is open.
    """

    def __init__(
        self,
        address: str,
        opened: socket.socket,
        tls: TlsSession | None,
        engine: core.contract.PullEngine,
    ) -> None:
        self.address = address
        self.error: ConnectionLost | None = None
        self._socket = opened
        self._tls = tls
        self._lost: list[Callable[[RemotingError], object]] = []
        forking.keep_from_children(opened.fileno())
        self.native = core.PullConnection(engine, opened.fileno(), self, tls)

    def when_lost(self, action: Callable[[RemotingError], object]) -> None:
        """Call `action` with the error, as soon as it is known; a stream has ended with it."""
        if self.error is not None:
            action(self.error)
        else:
            self._lost.append(action)

    def end(self, error: ConnectionLost) -> None:
        """Close the socket, and tell who waits for the error."""
        self.error = error
        if self._tls is not None:
            with contextlib.suppress(OSError):  # full, or broken: the peer sees the end anyway
                self._socket.send(self._tls.close_notify())
        forking.closes(self._socket.fileno())
        self._socket.close()
        lost, self._lost = self._lost, []
        for action in lost:
            action(error)


def settle_end(
    ended: asyncio.Future[Command | None],
    connection: PullConnection,
    end: StreamEnd,
    frame: bytes,
    max_frame_bytes: int,
) -> None:
    """Fulfil the future of a stream's end, unless it is done.

    With the answer that was no batch of messages, None where the stream was stopped, or the error
    that `Connection.request` raises.

    Args: end, frame: of `StreamOwner.on_end`.
    """

    def failed(error: OrderMQError) -> None:
        if not ended.done():
            ended.set_exception(error)

    if ended.done():
        return
    if end is StreamEnd.ENDED:
        ended.set_result(None)
    elif end is StreamEnd.TIMED_OUT:
        failed(RequestTimeout("pull: no response in time", address=connection.address))
    elif end is StreamEnd.LOST:
        connection.when_lost(failed)
    elif end is StreamEnd.ANSWERED:
        try:
            answer = Framer(max_frame_bytes).feed(frame)[0]
        except OrderMQError as error:
            failed(error)
        else:
            ended.set_result(answer)


class PullConnections(ProcessBound):
    """Connections of the pull engine by address; on the I/O thread, except where it says so."""

    _engine: core.contract.PullEngine | None = None  # also of one that is being made, at a fork

    def __init__(self, config: RemotingConfig, connections: Connections) -> None:
        self._config = config
        self._connections = connections
        self._sockets: list[socket.socket] = []  # the engine's two ends, and both of its events
        self._open: dict[str, PullConnection] = {}
        self._opening = SharedTasks[str, PullConnection]()
        self._is_closed = False

    async def get(self, address: str) -> PullConnection:
        """Return the engine's open connection to a broker; open it first if needed.

        Raises: as `Connections.writable`, which opens the client's own connection before: that
            one has the heartbeats, and a pause after each failed connect.
        """
        connection = self._open.get(address)
        if connection is not None:
            return connection
        return await self._opening.result(
            address, lambda: asyncio.create_task(self._connect(address))
        )

    def drop(self, address: str) -> None:
        """End the connection to an address that no broker has any more."""
        connection = self._open.pop(address, None)
        if connection is not None:
            connection.native.close()

    def take_ready(self, taken: list[Any]) -> StreamOwner | None:
        """Return a stream whose queue must be submitted; None: there is none. Any thread.

        Args: taken: gets it before an exception can come to the thread.
        """
        engine, count = self._engine, len(taken)
        if engine is not None:
            # Native code from the taking to the end of the list: no bytecode runs in between.
            taken.extend(islice(iter(engine.take_ready, None), 1))
        return taken[count] if len(taken) > count else None

    def wait_ready(self) -> bool:
        """Wait until there may be such a stream, or for `interrupt`; any thread, one at a time.

        Returns: False, at once, while there is no engine.
        """
        engine = self._engine
        return engine is not None and engine.wait_ready()

    def interrupt(self) -> None:
        """End the wait for a stream; any thread."""
        engine = self._engine
        if engine is not None:
            engine.interrupt()

    async def close(self) -> None:
        """End the engine's thread, every connection and every stream."""
        self._is_closed = True
        for opening in self._opening.running:
            opening.cancel()
        if self._engine is None:
            return
        self._engine.close()
        self._collect()
        asyncio.get_running_loop().remove_reader(self._sockets[2])
        for each in self._sockets:
            forking.closes(each.fileno())
            each.close()
        self._engine, self._sockets = None, []

    # ProcessBound

    def _before_fork(self) -> None:
        # A mutex that the engine's thread holds at the fork would be held in the child for ever.
        if self._engine is not None:
            self._engine.rest()

    def _after_fork_in_parent(self) -> None:
        if self._engine is not None:
            self._engine.resume()

    # The rest is called on the I/O thread.

    async def _connect(self, address: str) -> PullConnection:
        opened, tls = await self._connections.open_socket(address)
        if self._is_closed:
            opened.close()
            raise StateError("client is closed: create a new one", address=address)
        try:
            with taking_descriptors("cannot start the pull engine", address):
                connection = PullConnection(address, opened, tls, self._started())
        except BaseException:
            opened.close()
            raise
        self._open[address] = connection
        return connection

    def _started(self) -> core.contract.PullEngine:
        if self._engine is None:
            with contextlib.ExitStack() as undo:
                sockets = list[socket.socket]()
                for _ in range(2):
                    sockets += map(undo.enter_context, socket.socketpair())
                for each in sockets:
                    each.setblocking(False)
                wake_read, wake_write, tell_read, tell_write = sockets
                engine = core.PullEngine(
                    wake_read.fileno(),
                    wake_write.fileno(),
                    tell_write.fileno(),
                    CLOCK_ID,
                    self._config.max_frame_bytes,
                )
                undo.pop_all()
            for each in sockets:
                forking.keep_from_children(each.fileno())
            self._engine, self._sockets = engine, sockets
            asyncio.get_running_loop().add_reader(tell_read, self._on_told)
        return self._engine

    def _on_told(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._sockets[2].recv(64)
        self._collect()

    def _collect(self) -> None:
        assert self._engine is not None
        ended, events = self._engine.collect()
        # One that raises must not silence the others: each is the only notice of its queue's
        # messages, or of its end.
        for connection, end, number, data in ended:
            try:
                self._on_ended(connection, ConnectionEnd(end), number, data)
            except Exception as error:  # noqa: BLE001 - reported to the loop's owner
                self._report(error)
        for owner, end, is_dispatched, offset, frame in events:
            try:
                if end == _GOES_ON:  # in a catch-up at every pull
                    owner.on_filled(is_dispatched)
                else:
                    owner.on_end(StreamEnd(end), is_dispatched, offset, frame)
            except Exception as error:  # noqa: BLE001 - as above
                self._report(error)

    def _report(self, error: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "an event of the pull engine", "exception": error}
        )

    def _on_ended(
        self, connection: PullConnection, end: ConnectionEnd, number: int, data: bytes
    ) -> None:
        address = connection.address
        is_lost = self._open.get(address) is connection
        if is_lost:
            del self._open[address]
        cause = self._cause(connection, end, number, data)
        error = ConnectionLost(f"connection for pulls is closed: {cause}", address=address)
        error.__cause__ = cause
        connection.end(error)
        if is_lost and not self._is_closed:
            # Its streams have failed and open another one. Leases are not in doubt: they are with
            # the client's own connection, which a broker's restart breaks, too.
            _log.info("%s: connection for pulls lost: %s", address, cause)

    def _cause(
        self, connection: PullConnection, end: ConnectionEnd, number: int, data: bytes
    ) -> Exception:
        if end is ConnectionEnd.TLS:
            error = connection.native.tls_error
            assert error is not None
            return ConnectionError(describe_tls_error(error, connection.address))
        if end is ConnectionEnd.BROKEN:
            return OSError(number, os.strerror(number))
        if end is ConnectionEnd.GARBAGE:
            return self._garbage(data)
        if end is ConnectionEnd.SILENT:
            return RequestTimeout("not a byte came since a pull that timed out")
        if end is ConnectionEnd.STUCK:
            return ProtocolError("a frame never became whole: a part of it was lost on the way")
        return ConnectionError("closed by peer" if number else "closed here")

    def _garbage(self, data: bytes) -> ProtocolError:
        try:
            Framer(self._config.max_frame_bytes).feed(data)
        except ProtocolError as error:
            return error
        return ProtocolError("the header of an answer cannot be read")
