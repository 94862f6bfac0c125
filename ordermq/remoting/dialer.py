"""Opening sockets to `host:port`: host names with several addresses, in a bounded time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import os
import socket
import threading
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from ordermq.clock import Clock, wait_until_set
from ordermq.remoting.race import staggered
from ordermq.remoting.shared_tasks import SharedTasks
from ordermq.threads import NativeEvent, start_thread
from ordermq.value import Value

_FRESH_MS = 1_000  # the longest wait for a look-up of a host whose addresses are known from before
_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class SocketAddress(Value):
    """One address of a host, as `socket.getaddrinfo` gives it."""

    family: int
    place: tuple[Any, ...]


def look_up(host: str, port: int) -> concurrent.futures.Future[list[SocketAddress]]:
    """Start to look up a host's addresses; the future gets them, or `OSError`.

    Raises: NoThread
    """
    found: concurrent.futures.Future[list[SocketAddress]] = concurrent.futures.Future()

    def work() -> None:
        try:
            addresses = _addresses(host, port, 0)
        except OSError as error:
            found.set_exception(error)
        else:
            found.set_result(addresses)

    # A thread of its own: a look-up cannot be cancelled and takes up to half a minute while a DNS
    # server is away. A pool's threads would be used up by that, and be waited for at exit.
    start_thread(threading.Thread(target=work, name=f"ordermq-dns-{host}", daemon=True))
    return found


def addresses_within(host: str, port: int, timeout_s: float) -> list[SocketAddress]:
    """Look up a host's addresses; none where that fails, or takes longer."""
    found, has_ended = list[SocketAddress](), NativeEvent()

    def work() -> None:
        try:
            found.extend(_addresses(host, port, 0))
        except OSError:
            pass  # who connects there will say so
        finally:
            has_ended.set()

    # The caller's wait is native: what a signal handler raises in a future's is lost.
    start_thread(threading.Thread(target=work, name=f"ordermq-dns-{host}", daemon=True))
    has_ended.wait(timeout_s)
    return list(found)


async def _connect(opened: socket.socket, address: SocketAddress) -> None:
    # Not by the loop's `sock_connect`: uvloop's looks even numbers up, on threads of libuv, and a
    # forked child, which has none of these, then crashes as it exits.
    error = opened.connect_ex(address.place)
    if error == errno.EINPROGRESS:
        loop = asyncio.get_running_loop()
        is_decided = asyncio.Event()
        loop.add_writer(opened, is_decided.set)
        try:
            await is_decided.wait()
        finally:
            loop.remove_writer(opened)
        error = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, f"{os.strerror(error)}: {address.place[0]}")


def _addresses(host: str, port: int, flags: int) -> list[SocketAddress]:
    # As bytes: a str would load the codec of international names, as in `_is_host` of the checks.
    name = host.encode() if host.isascii() else host
    infos = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=flags)
    return [SocketAddress(family, place) for family, _, _, _, place in infos]


class Dialer:
    """Opens sockets for the connections of one client; on the I/O thread.

    A host name is looked up for each connect, one look-up at a time. All its addresses are tried,
    each soon after the one before; those that failed last are tried last. While the name cannot be
    looked up, its last known addresses are used.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looking = SharedTasks[tuple[str, int], list[SocketAddress]]()
        self._known: dict[tuple[str, int], list[SocketAddress]] = {}
        self._failed: dict[tuple[str, int], set[SocketAddress]] = defaultdict(set)

    async def open(self, host: str, port: int) -> socket.socket:
        """Return a socket that is connected to one of the host's addresses.

        Raises: OSError: the host is not known, or none of its addresses accepts. It has no
            time-out of its own.
        """
        addresses = await self._in_order(host, port)
        opening: list[asyncio.Task[socket.socket]] = []
        error: OSError | None = None

        def start(address: SocketAddress) -> asyncio.Task[socket.socket]:
            task = asyncio.get_running_loop().create_task(self._open_one(host, port, address))
            opening.append(task)
            return task

        winner: asyncio.Task[socket.socket] | None = None
        attempts = [partial(start, address) for address in addresses]
        race = staggered(attempts, self._clock, asyncio.Event())
        try:
            async for look in race:
                for ended in look:
                    error = _error_of(ended)
                    if error is None:
                        winner = ended
                        return ended.result()
        finally:
            await race.aclose()
            for task in opening:
                if task is not winner:
                    # One may have ended just now, and its socket is nobody's.
                    task.cancel()
                    task.add_done_callback(_close)
        raise error or OSError(f"the host {host} has no address")

    def is_looking_up(self, host: str, port: int) -> bool:
        """Return True while the host's addresses are awaited."""
        return (host, port) in self._looking

    def failed(self, host: str, port: int, address: SocketAddress) -> None:
        """Try an address last from now on: it accepted a connection and never answered."""
        self._failed[host, port].add(address)

    async def _open_one(self, host: str, port: int, address: SocketAddress) -> socket.socket:
        failed = self._failed[host, port]
        opened = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            opened.setblocking(False)
            # Requests are small and wait for their answers: none may be held back for the next.
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await _connect(opened, address)
        except BaseException:
            failed.add(address)  # also one that was too slow, and is cancelled
            opened.close()
            raise
        failed.discard(address)
        return opened

    async def _in_order(self, host: str, port: int) -> Sequence[SocketAddress]:
        failed = self._failed[host, port]
        return sorted(await self._look_up(host, port), key=lambda address: address in failed)

    async def _look_up(self, host: str, port: int) -> list[SocketAddress]:
        with contextlib.suppress(socket.gaierror):  # a name, not an address in numbers
            return _addresses(host, port, _NUMERIC)
        looking = self._looking.task((host, port), lambda: asyncio.wrap_future(look_up(host, port)))
        known = self._known.get((host, port))
        if known is not None:
            ended = asyncio.Event()
            looking.add_done_callback(lambda _: ended.set())
            await wait_until_set(ended, self._clock, _FRESH_MS)
            if not looking.done() or looking.exception() is not None:
                return known
        # Shielded: others wait for it, too.
        found = self._known[host, port] = await asyncio.shield(looking)
        return found


def _error_of(opened: asyncio.Task[socket.socket]) -> OSError | None:
    error = opened.exception()
    if error is not None and not isinstance(error, OSError):
        raise error
    return error


def _close(opened: asyncio.Task[socket.socket]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()
