"""Which broker holds which queue, asked of the name servers and kept fresh."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from ordermq.client.name_server_api import NameServerApi
from ordermq.errors import OrderMQError, RouteError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import PERM_READ, PERM_WRITE, TopicRoute

_log = logging.getLogger("ordermq.client")
MASTER_ID = 0


def publish_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The queues a producer may choose from, sorted: writable, and with a live master.

    An order configuration alone defines them where the topic has one
    (docs/internals/semantics.md#ordered-sends).
    """
    if route.order_conf:
        found = []
        for part in route.order_conf.split(";"):
            name, _, count = part.partition(":")
            if name and count.isdecimal():
                found += [MessageQueue(topic, name, number) for number in range(int(count))]
        return sorted(found)
    masters = {broker.broker_name for broker in route.brokers if broker.master}
    return sorted(
        MessageQueue(topic, data.broker_name, number)
        for data in route.queues
        if data.perm & PERM_WRITE and data.broker_name in masters
        for number in range(data.write_queue_nums)
    )


def are_brokers_away(now: Sequence[MessageQueue], before: Sequence[MessageQueue]) -> bool:
    """Whether a topic's queues are those of before but for all of some brokers'.

    So it is while a broker is down, and after a name server was started again: each broker
    registers with it at its own time.
    """
    present = {queue.broker_name for queue in now}
    return len(now) < len(before) and list(now) == [
        queue for queue in before if queue.broker_name in present
    ]


def subscribe_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The queues a group shares, sorted: readable ones."""
    return sorted(
        MessageQueue(topic, data.broker_name, number)
        for data in route.queues
        if data.perm & PERM_READ
        for number in range(data.read_queue_nums)
    )


class Routes:
    """The routes of the topics this client uses; on the I/O thread.

    Args:
        on_change: called with a topic whose route differs from the one known before.
    """

    def __init__(self, name_servers: NameServerApi, on_change: Callable[[str], None]) -> None:
        self._name_servers = name_servers
        self._on_change = on_change
        self._routes: dict[str, TopicRoute] = {}
        self._masters: dict[str, str] = {}
        self._replicas: dict[str, Mapping[int, str]] = {}
        self._watched: set[str] = set()
        self._asking: dict[str, asyncio.Task[TopicRoute | None]] = {}

    async def get(self, topic: str) -> TopicRoute | None:
        """The route, from memory or from the name server; None if no broker has the topic."""
        self._watched.add(topic)
        known = self._routes.get(topic)
        return known if known is not None else await self.refresh(topic)

    def known(self, topic: str) -> TopicRoute | None:
        """The route from memory."""
        return self._routes.get(topic)

    def is_known(self, topic: str) -> bool:
        """Whether `get` would answer from memory."""
        return topic in self._routes

    async def refresh(self, topic: str) -> TopicRoute | None:
        """Ask the name server now."""
        self._watched.add(topic)
        route = await self._name_servers.topic_route(topic)
        if route is None:
            return self._routes.get(topic)
        before = self._routes.get(topic)
        if before == route:
            return before  # the same object: callers keep what they made of it
        self._routes[topic] = route
        for broker in route.brokers:
            self._replicas[broker.broker_name] = broker.addresses
            if broker.master:
                self._masters[broker.broker_name] = broker.master
        if before is not None:
            _log.info("route of topic %s changed", topic)
            self._on_change(topic)
        return route

    async def refresh_soon(self, topic: str) -> None:
        """Ask after a failure: queues that fail together ask once; no answer changes nothing."""
        asking = self._asking.get(topic)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self.refresh(topic))
            self._asking[topic] = asking
            asking.add_done_callback(lambda _: self._asking.pop(topic, None))
        try:
            await asyncio.shield(asking)
        except OrderMQError as error:
            # No warning: whoever failed and asks for a new route has reported its own failure.
            _log.debug("topic %s: route refresh failed: %s", topic, error)

    async def refresh_all(self) -> None:
        """Ask for every topic in use; a name server that does not answer changes nothing."""
        for topic in sorted(self._watched):
            try:
                await self.refresh(topic)
            except RouteError as error:
                # NameServerApi has reported the outage, once for all topics.
                _log.debug("topic %s: route refresh failed: %s", topic, error)
            except OrderMQError as error:
                _log.warning("topic %s: route refresh failed: %s", topic, error)

    def master_of(self, broker_name: str) -> str:
        """The address of a broker's master.

        Raises: RouteError: no route names it.
        """
        address = self._masters.get(broker_name)
        if address is None:
            raise RouteError(
                "no route names a master of this broker: is it registered with the name server?",
                broker=broker_name,
            )
        return address

    def replicas_of(self, broker_name: str) -> Mapping[int, str]:
        """A broker's addresses by id, 0 is the master, as the last route told; {} without one."""
        return self._replicas.get(broker_name, {})

    def replica_of(self, broker_name: str, wanted: int) -> tuple[int, str]:
        """The id and address of the wanted replica, else of the next slave, else of any.

        Raises: RouteError: no route names the broker.
        """
        replicas = self.replicas_of(broker_name)
        if wanted not in replicas and wanted and wanted + 1 in replicas:
            wanted += 1
        if wanted not in replicas:
            wanted = min(replicas, default=0)
        return wanted, replicas.get(wanted) or self.master_of(broker_name)

    def slaves(self) -> list[str]:
        """The addresses of all slaves of the watched topics' brokers, sorted."""
        return sorted(
            {
                address
                for replicas in self._replicas.values()
                for number, address in replicas.items()
                if number != 0
            }
        )

    def masters(self) -> list[str]:
        """The addresses of all masters the watched topics need, sorted."""
        return sorted(set(self._masters.values()))


class PullSource:
    """The replica one queue's next pull goes to; on the I/O thread.

    A broker that may let its slaves be read says with every answer which of its replicas to
    ask next: a slave for what has left the master's memory, or the master again. Only pulls
    ever go to a slave: it keeps no locks, and what is committed there is lost.
    """

    def __init__(self, routes: Routes, queue: MessageQueue) -> None:
        self._routes = routes
        self._queue = queue
        self._wanted = MASTER_ID

    @property
    def wanted(self) -> int:
        """The broker id that was suggested last."""
        return self._wanted

    def choose(self) -> tuple[int, str]:
        """The broker id, 0 is the master, and the address to pull from now.

        Raises: RouteError: no route names the broker.
        """
        return self._routes.replica_of(self._queue.broker_name, self._wanted)

    def suggest(self, broker_id: int) -> bool:
        """An answer said which replica to ask next; True if that is another one."""
        if broker_id == self._wanted:
            return False
        before = self.choose()
        self._wanted = broker_id
        return self.choose() != before

    async def failed(self) -> None:
        """A pull got no answer: ask another replica next, if there is one, and for the route.

        The name server takes a killed master out of the route at once, a silent one after
        two minutes; trying the next replica without waiting for that costs one request.
        """
        asked, _ = self.choose()
        await self._routes.refresh_soon(self._queue.topic)
        others = set(self._routes.replicas_of(self._queue.broker_name)) - {asked}
        self._wanted = min(others, default=MASTER_ID)
