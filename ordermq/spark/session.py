"""One process's line to name servers and brokers: the I/O thread and a client on it."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ordermq import Producer
from ordermq.client.session import ClientSession
from ordermq.clock import Clock
from ordermq.config import ProducerConfig, RemotingConfig
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import Heartbeat
from ordermq.spark.options import CLIENT, config_of, read_options

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
        self.client = ClientSession(
            name_servers,
            remoting,
            client_id,
            clock=clock,
            describe=describe,
            on_connection_lost=on_lost,
        )
        self.clock = self.client.clock

    def call(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """Run on the I/O thread and wait for the result."""
        return self.client.call(work, timeout_s)

    def submit(self, work: Coroutine[Any, Any, _T]) -> Any:
        """Start on the I/O thread; a future."""
        return self.client.submit(work)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task, from the I/O thread."""
        return self.client.runtime.spawn(work, name)

    async def queues(self, topics: Sequence[str]) -> list[MessageQueue]:
        """The readable queues of these topics, sorted.

        Raises: RouteError: no broker has one of the topics.
        """
        found: list[MessageQueue] = []
        for topic in topics:
            found += await self.client.queues(topic)
        return sorted(found)

    async def known(self, topics: Iterable[str]) -> None:
        """Ask for the routes of these topics, so that their brokers' addresses are known."""
        for topic in set(topics):
            await self.client.routes.get(topic)

    def close(self) -> None:
        """Disconnect; the I/O thread ends with its last user."""
        self.client.close()


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


DEAD_LETTER_GROUP = "ordermq-spark-dead-letters"


class KeptClients(Generic[_T]):
    """Clients by what they were made of; made once, by the first who asks."""

    def __init__(self, make: Callable[..., _T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: dict[Any, _T] = {}

    def of(self, *key: Any) -> _T:
        with self._lock:
            if key not in self._made:
                self._made[key] = self._make(*key)
            return self._made[key]


def remoting_of(options: Mapping[str, str]) -> tuple[str, RemotingConfig]:
    """Name servers and connection settings among the options of a format; others are left out.

    Raises: ConfigError: a value out of its range.
    """
    known = {setting.name.replace("_", "") for setting in CLIENT}
    own = {name: text for name, text in options.items() if _folded(name) in known}
    values = read_options(CLIENT, own)
    return values["name_servers"], config_of(RemotingConfig, values)


def _folded(name: str) -> str:
    return name.lower().replace("_", "")


def _started_producer(name_servers: str, remoting: RemotingConfig) -> Producer:
    config = ProducerConfig(remoting=remoting)
    producer = Producer(DEAD_LETTER_GROUP, name_servers=name_servers, config=config)
    producer.start()
    return producer


_PRODUCERS = KeptClients(_started_producer)


def producer_of(options: Mapping[str, str]) -> Producer:
    """This process's producer for such options."""
    return _PRODUCERS.of(*remoting_of(options))


def new_lease() -> int:
    """A lease id nobody has: 1 .. 2^63 - 1, random."""
    return secrets.randbelow((1 << 63) - 1) + 1


def lease_client_id(group: str, lease: int) -> str:
    """The client id a run holds its queues as, and its executors ask under."""
    return f"{group}@spark@{lease:016x}"
