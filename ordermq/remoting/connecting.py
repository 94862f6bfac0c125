"""Connecting the protocol of one connection to `host:port`, over TCP or TLS."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from ordermq.config import RemotingConfig
from ordermq.config.checks import join_address, split_address
from ordermq.errors import ConnectFailed
from ordermq.remoting.dialer import Dialer, SocketAddress
from ordermq.remoting.time_limit import time_limit
from ordermq.remoting.tls import SHUTDOWN_TIMEOUT_S, TlsSession, describe_tls_error

_P = TypeVar("_P", bound=asyncio.Protocol)


async def connect(
    make: Callable[[], _P],
    address: str,
    config: RemotingConfig,
    tls: ssl.SSLContext | None,
    dialer: Dialer,
) -> tuple[_P, SocketAddress]:
    """Connect what `make` returns; return it, and which of the host's addresses it reached.

    Args: tls: None connects without TLS.
    Raises: ConnectFailed: refused, unknown host, no answer in `connect_timeout_ms`, or the TLS
        handshake failed.
    """

    async def finish(sock: socket.socket) -> _P:
        _, connection = await asyncio.get_running_loop().create_connection(
            make,
            sock=sock,
            ssl=tls,
            server_hostname=None if tls is None else split_address(address)[0],
            ssl_shutdown_timeout=None if tls is None else SHUTDOWN_TIMEOUT_S,
        )
        return connection

    return await _connected(finish, address, config, dialer, is_tls=tls is not None)


async def connect_plainly(
    make: Callable[[TlsSession | None], _P],
    address: str,
    config: RemotingConfig,
    tls: ssl.SSLContext | None,
    dialer: Dialer,
) -> tuple[_P, SocketAddress]:
    """`connect` of a protocol that enciphers and deciphers itself, by the session that it is made
    with; its transport is one without TLS.
    """
    session = None if tls is None else TlsSession(tls, split_address(address)[0])

    async def finish(sock: socket.socket) -> _P:
        if session is not None:
            await session.shake_hands(sock)
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: make(session), sock=sock
        )
        return connection

    return await _connected(finish, address, config, dialer, is_tls=tls is not None)


async def _connected(
    finish: Callable[[socket.socket], Awaitable[_P]],
    address: str,
    config: RemotingConfig,
    dialer: Dialer,
    *,
    is_tls: bool,
) -> tuple[_P, SocketAddress]:
    sock = None
    try:
        async with time_limit(config.connect_timeout_ms / 1000):
            sock = await dialer.open(*split_address(address))
            # Before the connection has it: a server that hangs up now is one that did not accept.
            peer = SocketAddress(sock.family, sock.getpeername())
            connection = await finish(sock)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, OSError | TimeoutError):
            raise connect_failed(error, address, dialer, is_tls=is_tls) from error
        raise
    return connection, peer


def own_address(transport: asyncio.BaseTransport | None) -> str:
    """Return this side's address of a connection; empty if it has none."""
    own = None if transport is None else transport.get_extra_info("sockname")
    return join_address(*own[:2]) if isinstance(own, tuple) else ""


def descriptors_used_up(
    error: OSError, doing: str, address: str | None = None
) -> ConnectFailed | None:
    """Return the error for a process, or a host, that has no file descriptor left; else None.

    Nothing was asked of a server, so nothing is wrong with it or its TLS.

    Args: doing: what has failed, as "cannot connect".
    """
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    return ConnectFailed(
        f"{doing}: {error.strerror}: close files or clients in this process, or raise its limit "
        "(`ulimit -n`)",
        address=address,
    )


@contextlib.contextmanager
def taking_descriptors(doing: str, address: str | None = None) -> Iterator[None]:
    """Raise what `descriptors_used_up` returns for an error of the block, if any."""
    try:
        yield
    except OSError as error:
        if used_up := descriptors_used_up(error, doing, address):
            raise used_up from error
        raise


def connect_failed(
    error: OSError | TimeoutError, address: str, dialer: Dialer, *, is_tls: bool = False
) -> ConnectFailed:
    """Return the error of a failed connect, with what to do about it."""
    host, port = split_address(address)
    if used_up := descriptors_used_up(error, "cannot connect", address):
        return used_up
    if isinstance(error, socket.gaierror) or dialer.is_looking_up(host, port):
        why = error.strerror if isinstance(error, socket.gaierror) else "no answer in time"
        return ConnectFailed(
            f"cannot find the host {host}: {why}; check the name, and the DNS server of "
            "this machine",
            address=address,
        )
    # A refused or unknown host is not a matter of TLS, whatever the settings.
    if is_tls and not isinstance(error, ConnectionRefusedError):
        return ConnectFailed(describe_tls_error(error, host), address=address)
    return ConnectFailed(
        f"cannot connect: {str(error) or type(error).__name__}; check that the server is "
        "running and the address is right",
        address=address,
    )
