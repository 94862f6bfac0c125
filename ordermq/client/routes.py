"""Routes: the queues of topics and the addresses of their brokers, from the name servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ordermq.client.name_server_api import NameServerApi
from ordermq.errors import ConfigError, OrderMQError, RouteError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import PERM_READ, PERM_WRITE, TopicRoute
from ordermq.remoting.connection import split_address

_log = logging.getLogger("ordermq.client")
MASTER_ID = 0


def publish_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return the queues a producer may send to, sorted: writable, and with a live master.

    Where the topic has an order configuration, that alone defines them
    (docs/internals/semantics.md#ordered-sends).
    """
    if route.order_conf:
        # `broker:count;...`. Dead brokers stay in: leaving them out would move keys to other
        # queues for the time of an outage, which is what the configuration is there to prevent.
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
    """Return True if `now` is `before` without all queues of one or more brokers.

    This is so while a broker is down, and after a restart of a name server: each broker
    registers with it at its own time.
    """
    present = {queue.broker_name for queue in now}
    return len(now) < len(before) and list(now) == [
        queue for queue in before if queue.broker_name in present
    ]


def subscribe_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return the queues that the members of a group share, sorted: the readable ones."""
    return sorted(
        MessageQueue(topic, data.broker_name, number)
        for data in route.queues
        if data.perm & PERM_READ
        for number in range(data.read_queue_nums)
    )


def without_malformed_addresses(route: TopicRoute) -> tuple[TopicRoute, list[str]]:
    """Return the route with the addresses that a client can connect to, and the others."""
    malformed: list[str] = []
    brokers = []
    for broker in route.brokers:
        kept = {number: text for number, text in broker.addresses.items() if _is_address(text)}
        malformed += [
            f"{broker.broker_name} ({number}) {text!r}"
            for number, text in broker.addresses.items()
            if number not in kept
        ]
        brokers.append(replace(broker, addresses=kept))
    return (replace(route, brokers=tuple(brokers)) if malformed else route), malformed


def _is_address(text: str) -> bool:
    try:
        split_address(text)
    except ConfigError:
        return False
    return True


class Routes:
    """Routes of the topics that this client uses; on the I/O thread.

    Args:
        on_change: called with a topic whose route differs from the last known one.
    """

    def __init__(self, name_servers: NameServerApi, on_change: Callable[[str], None]) -> None:
        self._name_servers = name_servers
        self._on_change = on_change
        self._routes: dict[str, TopicRoute] = {}
        # By broker name. Never cleared: a broker that leaves the route for the time of a restart
        # is still asked at its last address, which is where it mostly comes back.
        self._masters: dict[str, str] = {}
        self._replicas: dict[str, Mapping[int, str]] = {}
        self._watched: set[str] = set()
        self._malformed: dict[str, list[str]] = {}  # by topic, as they were logged last
        self._asking: dict[str, asyncio.Task[TopicRoute | None]] = {}

    async def get(self, topic: str) -> TopicRoute | None:
        """Return the route, from memory or the name server; None if no broker has the topic."""
        self._watched.add(topic)
        known = self._routes.get(topic)
        return known if known is not None else await self.refresh(topic)

    def known(self, topic: str) -> TopicRoute | None:
        """Return the route from memory, None if it is not there."""
        return self._routes.get(topic)

    def is_known(self, topic: str) -> bool:
        """Return True if `get` would answer from memory."""
        return topic in self._routes

    async def refresh(self, topic: str) -> TopicRoute | None:
        """Ask the name server now and return the route; None if no broker has the topic.

        Raises: RouteError: no name server answers. BrokerError: it refused the request.
        """
        self._watched.add(topic)
        route = await self._name_servers.topic_route(topic)
        if route is None:
            # The name server forgets a topic when its last broker is gone. The last known route
            # stays in use, or a restart of that broker would revoke every queue.
            return self._routes.get(topic)
        route = self._usable(topic, route)
        before = self._routes.get(topic)
        if before == route:
            return before  # the same object: callers cache by identity what they computed from it
        self._routes[topic] = route
        for broker in route.brokers:
            self._replicas[broker.broker_name] = broker.addresses
            if broker.master:
                self._masters[broker.broker_name] = broker.master
        if before is not None:
            _log.info("topic %s: route changed", topic)
            self._on_change(topic)
        return route

    def _usable(self, topic: str, route: TopicRoute) -> TopicRoute:
        # One broker that registered with a wrong `brokerIP1` must not keep a client from all the
        # others: the route is used without its address.
        route, malformed = without_malformed_addresses(route)
        if malformed != self._malformed.get(topic, []):
            self._malformed[topic] = malformed
            if malformed:
                _log.warning(
                    "topic %s: skipped addresses of brokers that are not host:port: %s; check "
                    "brokerIP1 and listenPort of these brokers",
                    topic,
                    ", ".join(malformed),
                )
        return route

    async def refresh_soon(self, topic: str) -> None:
        """Refresh after a failure; queues that fail together share one request.

        A name server that does not answer leaves the known route in use.
        """
        # All queues of a dead broker fail at once, and each asks for a new route.
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
        """Refresh the route of every topic in use; a failure leaves the known route in use."""
        for topic in sorted(self._watched):
            try:
                await self.refresh(topic)
            except RouteError as error:
                # NameServerApi has reported the outage, once for all topics.
                _log.debug("topic %s: route refresh failed: %s", topic, error)
            except OrderMQError as error:
                _log.warning("topic %s: route refresh failed: %s", topic, error)

    def master_of(self, broker_name: str) -> str:
        """Return the address of a broker's master.

        Raises: RouteError: no known route contains this broker.
        """
        address = self._masters.get(broker_name)
        if address is None:
            raise RouteError(
                "no known route has a master of this broker: check that it is registered with the "
                "name server",
                broker=broker_name,
            )
        return address

    def replicas_of(self, broker_name: str) -> Mapping[int, str]:
        """Return a broker's addresses by id, 0 is the master; {} if no route contains it."""
        return self._replicas.get(broker_name, {})

    def replica_of(self, broker_name: str, wanted: int) -> tuple[int, str]:
        """Return the id and address of the wanted replica, else of the next slave, else of any.

        Raises: RouteError: no known route contains the broker.
        """
        replicas = self.replicas_of(broker_name)
        # As Java: a broker's suggestion may name a slave that is gone, and the next one will do.
        if wanted not in replicas and wanted and wanted + 1 in replicas:
            wanted += 1
        if wanted not in replicas:
            wanted = min(replicas, default=0)
        return wanted, replicas.get(wanted) or self.master_of(broker_name)

    def slaves(self) -> list[str]:
        """Return the addresses of all slaves of the brokers in known routes, sorted."""
        return sorted(
            {
                address
                for replicas in self._replicas.values()
                for number, address in replicas.items()
                if number != 0
            }
        )

    def masters(self) -> list[str]:
        """Return the addresses of all masters in known routes, sorted."""
        return sorted(set(self._masters.values()))


class PullSource:
    """Replica that the next pull of one queue goes to (Java's PullAPIWrapper); on the I/O thread.

    With `slaveReadEnable`, a broker suggests in every pull response the replica to pull from
    next: a slave for messages that have left the master's memory, or the master again. Only
    pulls go to a slave: it keeps no locks, and an offset committed there is lost.
    """

    def __init__(self, routes: Routes, queue: MessageQueue) -> None:
        self._routes = routes
        self._queue = queue
        self._wanted = MASTER_ID

    @property
    def wanted(self) -> int:
        """Return the broker id that was suggested last."""
        return self._wanted

    def choose(self) -> tuple[int, str]:
        """Return the broker id, 0 is the master, and the address to pull from now.

        Raises: RouteError: no known route contains the broker.
        """
        return self._routes.replica_of(self._queue.broker_name, self._wanted)

    def suggest(self, broker_id: int) -> bool:
        """Take the broker's suggestion; return True if the next pull goes to another replica."""
        # A suggestion that leads to the same address is no change: the connection stays.
        if broker_id == self._wanted:
            return False
        before = self.choose()
        self._wanted = broker_id
        return self.choose() != before

    async def failed(self) -> None:
        """Choose another replica after a pull without answer, and refresh the route."""
        # The name server takes a killed master out of the route at once, but a silent one only
        # after two minutes. Trying the next replica without waiting for that costs one request.
        asked, _ = self.choose()
        await self._routes.refresh_soon(self._queue.topic)
        others = set(self._routes.replicas_of(self._queue.broker_name)) - {asked}
        self._wanted = min(others, default=MASTER_ID)
