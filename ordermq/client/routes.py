"""Routes: the queues of topics and the addresses of their brokers, from the name servers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, cast

from ordermq.client.name_server_api import NameServerApi
from ordermq.clock import Clock
from ordermq.config.checks import split_address
from ordermq.errors import ConfigError, ConnectFailed, OrderMQError, RouteError
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import MAX_QUEUES, PERM_READ, PERM_WRITE, BrokerData, TopicRoute
from ordermq.remoting.shared_tasks import SharedTasks

_log = logging.getLogger("ordermq.client")
MASTER_ID = 0
_MOST_TOGETHER = 32  # route requests under way at once: a thousand topics do not flood the server


def publish_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return the queues a producer may send to, sorted: writable, and with a live master.

    Where the topic has an order configuration, that alone defines them
    (docs/internals/semantics.md#ordered-sends).
    """
    if route.order_conf:
        # `broker:count;...`. Dead brokers stay in: leaving them out would move keys to other
        # queues for the time of an outage, which is what the configuration is there to prevent.
        counts, _ = read_order_conf(route.order_conf)
        return sorted(
            MessageQueue(topic, name, number)
            for name, count in counts.items()
            for number in range(count)
        )
    masters = {broker.broker_name for broker in route.brokers if broker.master}
    return sorted(
        MessageQueue(topic, data.broker_name, number)
        for data in route.queues
        if data.perm & PERM_WRITE and data.broker_name in masters
        for number in range(data.write_queue_nums)
    )


def read_order_conf(text: str) -> tuple[dict[str, int], list[str]]:
    """Return the number of queues by broker, and the entries that are not `broker:count`."""
    counts: dict[str, int] = {}
    malformed = []
    for entry in filter(None, map(str.strip, text.split(";"))):
        name, _, count = (part.strip() for part in entry.partition(":"))
        # In ASCII: `isdecimal` is true of digits of every script.
        is_number = count.isascii() and count.isdecimal() and len(count) <= len(str(MAX_QUEUES))
        if name and is_number and int(count) < MAX_QUEUES:
            counts[name] = int(count)
        else:
            malformed.append(entry)
    return counts, malformed


def order_conf_problem(text: str) -> str:
    """Return what is wrong with an order configuration, and what to do; empty: nothing."""
    counts, malformed = read_order_conf(text)
    if not malformed and any(counts.values()):
        return ""
    what = ", ".join(f"{entry!r:.60} is not broker:count" for entry in malformed) or "no queue"
    left = "they are ignored" if any(counts.values()) else "it names no queue, so nothing is sent"
    return (
        f"order configuration {text!r:.100}: {what}; {left}. Mend it (mqadmin updateOrderConf -m "
        "put -v 'broker-a:4;broker-b:4') or delete it (-m delete)"
    )


# Said of a topic that no name server lists: they may have been started anew, or be others'.
IF_IT_EXISTS = "if it exists, check that its brokers reach these name servers"


def why_no_queue(route: TopicRoute) -> str:
    """Return why `publish_queues` of a route is empty, and what to do."""
    if route.order_conf:
        return order_conf_problem(route.order_conf)
    masters = {broker.broker_name for broker in route.brokers if broker.master}
    here = [data for data in route.queues if data.broker_name in masters]
    if here and not any(data.perm & PERM_WRITE for data in here):
        return (
            "no queue of this topic may be written to (its perm lacks 2; an admin has withdrawn "
            "it, as before moving a topic or stopping a broker): have it opened (mqadmin "
            "updateTopicPerm -p 6), or send to another topic"
        )
    return "no broker accepts messages of this topic now: no writable queue has a live master"


def are_brokers_away(
    route: TopicRoute, now: Sequence[MessageQueue], before: Sequence[MessageQueue]
) -> bool:
    """Return True if `now` is `before` without all queues of brokers that are down.

    This is so while a broker restarts, and after a restart of a name server: each broker
    registers with it at its own time. A broker that is up and whose queues are not writable any
    more is not away: its operator has withdrawn it, as before a shutdown for good.
    """
    present = {queue.broker_name for queue in now}
    withdrawn = {broker.broker_name for broker in route.brokers if broker.master} - present
    return (
        len(now) < len(before)
        and not any(queue.broker_name in withdrawn for queue in before)
        and list(now) == [queue for queue in before if queue.broker_name in present]
    )


def subscribe_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return the queues that the members of a group share, sorted: the readable ones."""
    return sorted(
        MessageQueue(topic, data.broker_name, number)
        for data in route.queues
        if data.perm & PERM_READ
        for number in range(data.read_queue_nums)
    )


def has_closed_queues(route: TopicRoute) -> bool:
    """Return True if a queue may not be read, or not be written to."""
    return not all(data.perm & PERM_READ and data.perm & PERM_WRITE for data in route.queues)


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


class RouteEvents(Protocol):
    """Callbacks of changes in routes, on the I/O thread."""

    def on_route_change(self, topic: str) -> None:
        """Handle queues of a topic that differ from the last known ones, or are back."""

    def on_loss(self, topic: str) -> None:
        """Handle a topic that no name server lists any more, or of which queues were closed."""

    def on_new_master(self, address: str) -> None:
        """Handle a broker that was in no route before, or has another master now."""

    def on_master_moved(self, broker_name: str) -> None:
        """Handle a broker whose master has another address now: locks of the old one are void."""

    def on_unused(self, address: str) -> None:
        """Handle an address that no broker has any more."""


class _Broker:
    """A broker as the last route told it."""

    def __init__(
        self, addresses: Mapping[int, str], master: str | None, away_since_ms: int | None
    ) -> None:
        self.addresses = addresses
        self.master = master  # the last one, also while the route has slaves only
        self.away_since_ms = away_since_ms  # in no route since then
        self.has_followed = False  # it came to its master's address after another broker


class Routes:
    """Routes of the topics that this client uses; on the I/O thread.

    Name servers drop a broker as soon as its connection closes, for a restart as for ever. A
    broker that is in no route any more is *away*: its queues are given up, no heartbeat and no
    member list is asked of it, but it is still expected back at its last address. After
    `forget_broker_after_ms`, during which name servers have answered, it is forgotten
    (docs/internals/semantics.md#routes).

    Args:
        is_connected: returns True of a broker, by its name, that the client is connected to.
    """

    def __init__(
        self,
        name_servers: NameServerApi,
        clock: Clock,
        forget_after_ms: int,
        events: RouteEvents,
        is_connected: Callable[[str], bool],
    ) -> None:
        self._name_servers = name_servers
        self._is_connected = is_connected
        self._clock = clock
        self._forget_after_ms = forget_after_ms
        self._events = events
        self._routes: dict[str, TopicRoute] = {}
        self._missing_since_ms: dict[str, int] = {}  # topics that no name server has any more
        self._brokers: dict[str, _Broker] = {}
        # The brokers in the last answer for each topic, and how many topics each broker has:
        # counted, for a client may have a thousand topics, and they all change at once.
        self._counted: dict[str, tuple[BrokerData, ...]] = {}
        self._topics_of: Counter[str] = Counter()
        self._forgotten: set[str] = set()
        self._are_proxies = False  # whoever answers is at the address of several brokers
        self._are_servers_empty = False  # the name servers, as they said last; told once
        self._unanswered_ms = 0  # when no name server answered, the last time
        self._watched: set[str] = set()
        self._malformed: dict[str, list[str]] = {}  # by topic, as they were logged last
        self._order_confs: dict[str, str] = {}  # by topic, as they were looked at last
        self._asking = SharedTasks[str, TopicRoute | None]()

    async def get(self, topic: str) -> TopicRoute | None:
        """Return the route, from memory or the name server; None if no broker has the topic."""
        self._watched.add(topic)
        known = self._routes.get(topic)
        return known if known is not None else await self.refresh(topic)

    async def get_all(self, topics: Iterable[str]) -> dict[str, TopicRoute | None]:
        """Return the routes of several topics; unknown ones are asked for together."""
        wanted = list(topics)
        together = asyncio.Semaphore(_MOST_TOGETHER)

        async def get(topic: str) -> TopicRoute | None:
            async with together:
                return await self.get(topic)

        # Every request ends before an error is raised; the first topic's comes first.
        found = await asyncio.gather(*map(get, wanted), return_exceptions=True)
        for outcome in found:
            if isinstance(outcome, BaseException):
                raise outcome
        return dict(zip(wanted, cast(list[TopicRoute | None], found), strict=True))

    def known(self, topic: str) -> TopicRoute | None:
        """Return the route from memory, None if it is not there."""
        return self._routes.get(topic)

    def is_missing(self, topic: str) -> bool:
        """Return True if no name server lists the topic any more; its last route may be in use."""
        return topic in self._missing_since_ms

    def has_lost(self, topic: str) -> bool:
        """Return True if a topic with a known route is missing, or has closed queues."""
        route = self._routes.get(topic)
        return route is not None and (self.is_missing(topic) or has_closed_queues(route))

    def is_known(self, topic: str) -> bool:
        """Return True if `get` would answer from memory."""
        return topic in self._routes

    async def refresh(self, topic: str) -> TopicRoute | None:
        """Ask the name server now and return the route; None if no broker has the topic.

        Raises: RouteError: no name server answers. BrokerError: it refused the request.
        """
        self._watched.add(topic)
        route = await self._name_servers.topic_route(topic)
        before = self._routes.get(topic)
        if route is not None:
            self._are_servers_empty = False
        elif (
            before is not None
            and not self.is_missing(topic)
            and await self._is_nothing_told(before)
        ):
            route = before
        if route is None:
            # The name server forgets a topic when its last broker is gone. The last known route
            # stays in use for a time, or a restart of that broker would revoke every queue.
            if before is not None and topic not in self._missing_since_ms:
                self._missing_since_ms[topic] = self._clock.now_ms()
                self._count(topic, ())
                self._events.on_loss(topic)
            return before
        was_missing = self._missing_since_ms.pop(topic, None) is not None
        if route is not before:
            route = self._usable(topic, route)
            self._warn_of_order_conf(topic, route.order_conf or "")
        if before == route:
            if was_missing:
                self._count(topic, route.brokers)
                _log.info("topic %s: in a route again", topic)
                self._events.on_route_change(topic)  # it may have been made anew
            return before  # the same object: callers cache by identity what they computed from it
        self._routes[topic] = route
        for broker in route.brokers:
            self._learn(broker)
        self._count(topic, route.brokers)
        if before is not None:
            _log.info("topic %s: route changed", topic)
            self._events.on_route_change(topic)
            if has_closed_queues(route):
                self._events.on_loss(topic)
        return route

    async def _is_nothing_told(self, route: TopicRoute) -> bool:
        # Name servers without any broker were started anew, or no broker reaches them. What they
        # do not list says nothing of a broker that this client talks to. Once that connection has
        # broken, another broker may have its address.
        if not any(self._is_connected(broker.broker_name) for broker in route.brokers):
            return False
        are_empty = not await self._name_servers.lists_a_broker()
        if are_empty and not self._are_servers_empty:
            _log.warning(
                "the name servers list no broker, though this client is connected to some; going "
                "on with the routes known before. Check that the brokers reach these name servers "
                "(namesrvAddr)"
            )
        self._are_servers_empty = are_empty
        return are_empty

    def _warn_of_order_conf(self, topic: str, text: str) -> None:
        if text != self._order_confs.get(topic, ""):
            self._order_confs[topic] = text
            if problem := order_conf_problem(text) if text else "":
                _log.warning("topic %s: %s", topic, problem, extra=log_fields(topic=topic))

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
                    extra=log_fields(topic=topic),
                )
        return route

    async def refresh_soon(self, topic: str) -> None:
        """Refresh after a failure; queues that fail together share one request.

        A name server that does not answer leaves the known route in use.
        """
        # All queues of a dead broker fail at once, and each asks for a new route.
        try:
            await self._asking.result(topic, lambda: asyncio.create_task(self.refresh(topic)))
        except OrderMQError as error:
            # No warning: whoever failed and asks for a new route has reported its own failure.
            _log.debug("topic %s: route refresh failed: %s", topic, error)

    async def refresh_all(self) -> None:
        """Refresh the route of every topic in use; a failure leaves the known route in use.

        Topics are asked for together: one after the other, a name server that does not answer
        would cost its time-out for each of them.
        """
        together = asyncio.Semaphore(_MOST_TOGETHER)
        await asyncio.gather(
            *(self._refresh_one(topic, together) for topic in sorted(self._watched))
        )
        self._forget()

    async def _refresh_one(self, topic: str, together: asyncio.Semaphore) -> None:
        try:
            async with together:
                await self.refresh(topic)
        except RouteError as error:
            # NameServerApi has reported the outage, once for all topics.
            _log.debug("topic %s: route refresh failed: %s", topic, error)
            self._unanswered_ms = self._clock.now_ms()
        except OrderMQError as error:
            _log.warning(
                "topic %s: route refresh failed: %s", topic, error, extra=log_fields(topic=topic)
            )

    def master_of(self, broker_name: str) -> str:
        """Return the address of a broker's master: the last known one while it is away.

        Raises: RouteError: no known route contains this broker. ConnectFailed: it is away, and its
            last address is that of another broker.
        """
        broker = self._brokers.get(broker_name)
        if broker is not None and broker.master is not None:
            return broker.master
        if broker is not None and broker.away_since_ms is not None:
            raise ConnectFailed(
                "the broker is away, and another one has its last address now: try again once it "
                "has registered with the name server",
                broker=broker_name,
            )
        if broker_name in self._forgotten:
            why = (
                f"it has been in no route for {self._forget_after_ms // 1000} s, as after it was "
                "decommissioned"
            )
        else:
            why = "check that it is registered with the name server"
        raise RouteError(f"no known route has a master of this broker: {why}", broker=broker_name)

    def brokers_at(self, address: str) -> set[str]:
        """Return the names of the brokers whose last known master has this address."""
        return {name for name, broker in self._brokers.items() if broker.master == address}

    def is_away(self, broker_name: str) -> bool:
        """Return True if no route contains the broker: it is restarting, or decommissioned."""
        return not self._topics_of[broker_name]

    def has_master(self, broker_name: str) -> bool:
        """Return True if a route names a master of the broker now, not slaves alone."""
        return not self.is_away(broker_name) and MASTER_ID in self.replicas_of(broker_name)

    def last_master_of(self, broker_name: str) -> str | None:
        """Return the address of a broker's last known master, None once it is forgotten."""
        broker = self._brokers.get(broker_name)
        return None if broker is None else broker.master

    @property
    def has_broker_away(self) -> bool:
        """True while a broker is in no route, and not forgotten yet."""
        return any(broker.away_since_ms is not None for broker in self._brokers.values())

    def is_expected(self, address: str) -> bool:
        """Return True if a master has this address, or may come back to it."""
        return any(broker.master == address for broker in self._brokers.values())

    def is_in_route(self, address: str) -> bool:
        """Return True if a broker of a route has this address now."""
        return any(
            address == broker.master or address in broker.addresses.values()
            for broker in self._brokers.values()
            if broker.away_since_ms is None
        )

    def replicas_of(self, broker_name: str) -> Mapping[int, str]:
        """Return a broker's addresses by id, 0 is the master; {} if no route contains it."""
        broker = self._brokers.get(broker_name)
        return {} if broker is None else broker.addresses

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
        """Return the addresses of all slaves of the brokers in routes, sorted."""
        return sorted(
            {
                address
                for broker in self._brokers.values()
                if broker.away_since_ms is None
                for number, address in broker.addresses.items()
                if number != MASTER_ID
            }
        )

    def masters(self) -> list[str]:
        """Return the addresses of all masters in routes, sorted; without brokers that are away."""
        return sorted(
            {
                master
                for broker in self._brokers.values()
                if broker.away_since_ms is None and (master := broker.addresses.get(MASTER_ID))
            }
        )

    # Brokers that come, move and go.

    def _learn(self, told: BrokerData) -> None:
        name = told.broker_name
        before = self._brokers.get(name)
        last_master = None if before is None else before.master
        self._forgotten.discard(name)
        self._brokers[name] = now = _Broker(
            told.addresses,
            told.master or last_master,
            None if before is None else before.away_since_ms,
        )
        if before is not None:
            now.has_followed = (
                before.has_followed
                if now.master == before.master
                else any(name != other for other in self.brokers_at(now.master or ""))
            )
        if told.master and told.master != last_master:
            if last_master is not None:
                _log.warning(
                    "broker %s: its master is %s now, no longer %s",
                    name,
                    told.master,
                    last_master,
                    extra=log_fields(broker=name),
                )
                # Before anything is asked of the new master: it knows nothing of these locks.
                self._events.on_master_moved(name)
            self._events.on_new_master(told.master)
        if before is not None:
            self._drop_unused({*before.addresses.values(), before.master})

    def _count(self, topic: str, brokers: tuple[BrokerData, ...]) -> None:
        counted = self._counted.get(topic, ())
        if counted == brokers:
            return
        self._counted[topic] = brokers
        names = {broker.broker_name for broker in brokers}
        before = {broker.broker_name for broker in counted}
        self._topics_of.update(names - before)
        self._topics_of.subtract(before - names)
        now_ms = self._clock.now_ms()
        for name in before - names:
            if not self._topics_of[name]:
                self._brokers[name].away_since_ms = now_ms
                _log.warning(
                    "broker %s: in no route any more, decommissioned or restarting; it is "
                    "forgotten unless it is back in %d s",
                    name,
                    self._forget_after_ms // 1000,
                    extra=log_fields(broker=name),
                )
        for name in names - before:
            since_ms = self._brokers[name].away_since_ms
            if since_ms is not None:
                self._brokers[name].away_since_ms = None
                _log.info(
                    "broker %s: in a route again after %d s", name, (now_ms - since_ms) // 1000
                )
        if not self._are_proxies:
            self._take_addresses()

    def _take_addresses(self) -> None:
        """Take the last address of a broker that is away from it, if another one has it now.

        As where two brokers of one host, or of one pool of addresses, restart together. Neither of
        them looks whose queue a request is for: the other one would store messages in its own, and
        hand out its own messages, and locks.
        """
        here = {
            name: broker
            for name, broker in self._brokers.items()
            if broker.away_since_ms is None and broker.master is not None
        }
        settled = [broker.master for broker in here.values() if not broker.has_followed]
        if len(set(settled)) < len(settled):
            # Neither of the two came to where the other was: it is the address of a proxy, which
            # leads to all brokers, also to one that is away now.
            self._are_proxies = True
            return
        taken = {broker.master: name for name, broker in here.items()}
        for name, broker in self._brokers.items():
            if broker.away_since_ms is None or broker.master not in taken:
                continue
            _log.warning(
                "broker %s: its last address, %s, is that of %s now; waiting until it is in a "
                "route again",
                name,
                broker.master,
                taken[broker.master],
                extra=log_fields(broker=name),
            )
            broker.addresses, broker.master = {}, None
            self._events.on_master_moved(name)

    def _forget(self) -> None:
        """Forget brokers and topics that have been away for too long to be restarting."""
        before_ms = self._clock.now_ms() - self._forget_after_ms
        # One that was restarted knows no broker until each has registered again: if it is away
        # once more, a broker that it did not name may well be there.
        if self._unanswered_ms > before_ms:
            return
        for topic, since_ms in list(self._missing_since_ms.items()):
            if since_ms <= before_ms:
                del self._missing_since_ms[topic], self._routes[topic]
                _log.warning(
                    "topic %s: no broker has it any more", topic, extra=log_fields(topic=topic)
                )
                self._events.on_route_change(topic)
        for name, broker in list(self._brokers.items()):
            if broker.away_since_ms is not None and broker.away_since_ms <= before_ms:
                del self._brokers[name]
                self._forgotten.add(name)
                _log.warning(
                    "broker %s: forgotten after %d s in no route",
                    name,
                    self._forget_after_ms // 1000,
                    extra=log_fields(broker=name),
                )
                self._drop_unused({*broker.addresses.values(), broker.master})

    def _drop_unused(self, addresses: Iterable[str | None]) -> None:
        used = {
            address
            for broker in self._brokers.values()
            for address in (*broker.addresses.values(), broker.master)
        }
        for address in addresses:
            if address is not None and address not in used:
                self._events.on_unused(address)


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
        try:
            asked, _ = self.choose()
        except (RouteError, ConnectFailed):  # lost or forgotten while the pull was on its way
            asked = self._wanted
        await self._routes.refresh_soon(self._queue.topic)
        others = set(self._routes.replicas_of(self._queue.broker_name)) - {asked}
        self._wanted = min(others, default=MASTER_ID)
