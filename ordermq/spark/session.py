"""One process's line to name servers and brokers: the I/O thread and a client on it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from ordermq.client.name_server_api import parse_name_servers
from ordermq.client.routes import subscribe_queues
from ordermq.client.runtime import Runtime
from ordermq.client.session import ClientSession, new_client_id
from ordermq.clock import Clock, SystemClock
from ordermq.config import RemotingConfig
from ordermq.errors import RouteError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import Heartbeat

_T = TypeVar("_T")


def _ignore(address: str) -> None:
    return None


class Link:
    """A client, and waiting for what it does on the I/O thread.

    Args:
        describe: what the heartbeat says; without it none is sent.
        on_lost: the connection to this address broke; on the I/O thread.
    """

    def __init__(
        self,
        name_servers: str,
        remoting: RemotingConfig,
        *,
        client_id: str | None = None,
        describe: Callable[[], Heartbeat] | None = None,
        on_lost: Callable[[str], None] = _ignore,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock if clock is not None else SystemClock()
        self._runtime = Runtime.acquire()
        name = client_id or new_client_id(remoting, parse_name_servers(name_servers))
        self.client = ClientSession(
            self._runtime,
            self.clock,
            remoting,
            name_servers,
            name,
            describe=describe or (lambda: Heartbeat(name)),
            on_lost=on_lost,
        )

    def call(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """Run on the I/O thread and wait for the result."""
        return self._runtime.call(work, timeout_s)

    def submit(self, work: Coroutine[Any, Any, _T]) -> Any:
        """Start on the I/O thread; a future."""
        return self._runtime.submit(work)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task, from the I/O thread."""
        return self._runtime.spawn(work, name)

    async def queues(self, topics: Sequence[str]) -> list[MessageQueue]:
        """The readable queues of these topics, sorted.

        Raises: RouteError: no broker has one of the topics.
        """
        found: list[MessageQueue] = []
        for topic in topics:
            route = await self.client.routes.get(topic)
            if route is None:
                raise RouteError("no broker has this topic: create it, or send to it", topic=topic)
            found += subscribe_queues(topic, route)
        return sorted(found)

    async def known(self, topics: Iterable[str]) -> None:
        """Ask for the routes of these topics, so that their brokers' addresses are known."""
        for topic in set(topics):
            await self.client.routes.get(topic)

    def close(self) -> None:
        """Disconnect; the I/O thread ends with its last user."""
        self._runtime.call(self.client.close())
        self._runtime.release()


_links: dict[tuple[int, str, RemotingConfig], Link] = {}
_links_lock = threading.Lock()


def shared_link(name_servers: str, remoting: RemotingConfig) -> Link:
    """The link of this process to these name servers, opened at its first use and then kept.

    Spark kills idle workers without notice, so nothing here needs to be closed in order. A
    worker is forked from a process that may have had links: the process id keeps them apart.
    """
    key = (os.getpid(), name_servers, remoting)
    with _links_lock:
        link = _links.get(key)
        if link is None:
            link = _links[key] = Link(name_servers, remoting)
        return link
