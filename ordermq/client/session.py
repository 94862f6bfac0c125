"""One client of the cluster: its client id, connections, routes, heartbeats and requests."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ordermq.client.broker_api import BrokerApi
from ordermq.client.connections import Answer, Connections
from ordermq.client.heartbeats import Heartbeats, Registration
from ordermq.client.name_server_api import NameServerApi, are_proxies, parse_name_servers
from ordermq.client.pull_connections import PullConnections
from ordermq.client.routes import IF_IT_EXISTS, MASTER_ID, Routes, subscribe_queues
from ordermq.client.runtime import ENDED, NotDoneInTime, Runtime, cancelled
from ordermq.clock import Clock, SystemClock
from ordermq.config import RemotingConfig
from ordermq.config.checks import GRPC, split_address
from ordermq.errors import ConnectFailed, OrderMQError, RouteError, StateError
from ordermq.forking import ProcessBound
from ordermq.loggers import LogErrors, dropped_lines
from ordermq.model.identifiers import unique_instance
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_instance, wrapped
from ordermq.remoting.bodies import Heartbeat
from ordermq.remoting.command import Command
from ordermq.remoting.dialer import addresses_within
from ordermq.remoting.reading import shared_reading, transport_reading
from ordermq.supervisor import Supervisor, every
from ordermq.threads import RLock
from ordermq.value import Value

if TYPE_CHECKING:
    from ordermq.client.proxy import ProxyApi
    from ordermq.health import ClientHealth

_log = logging.getLogger("ordermq.client")
_T = TypeVar("_T")
_H = TypeVar("_H")
_HEARTBEATS_MISSED = 3
_DEFAULT_INSTANCE = "DEFAULT"  # Java's name of a client without one
_LOOPBACK = "127.0.0.1"
_LOOK_UP_S = 3.0
_RETURN_CHECKS, _RETURN_CHECK_MS = 10, 1_000  # of the routes, after a broker answers again
_LOSS_CHECK_MS, _LOSS_CHECK_MS_EACH = 500, 10  # of the route of a topic that was deleted or closed
_LOSS_CHECKS_MS = 60_000  # for so long


def _ignore_request(address: str, command: Command) -> Command | None:
    return None


def _ignore(text: str) -> None:
    return None


def _count_nothing() -> None:
    return None


class SessionEvents(Value, kw_only=True):
    """Functions that a client session calls, on the I/O thread, as something happens.

    Args:
        on_request: called with the broker's address and its request; returns the answer or None.
        on_connection_lost: called with an address whose connection broke.
        on_broker_back: called when the session is registered again with a broker whose connection
            broke. Members of a group pass it: they reconnect at once, other clients with their
            next request.
        on_route_change: called with a topic whose queues changed.
        on_master_moved: called with a broker whose master has another address now.
        on_internal_error: called with each error of a loop, to count it.
    """

    on_request: Callable[[str, Command], Answer] = _ignore_request
    on_connection_lost: Callable[[str], None] = _ignore
    on_broker_back: Callable[[], None] | None = None
    on_route_change: Callable[[str], None] = _ignore
    on_master_moved: Callable[[str], None] = _ignore
    on_internal_error: Callable[[], object] = _count_nothing


class ClientSession(ProcessBound):
    """Everything a producer, consumer or tool needs to talk to name servers and brokers.

    It holds the process's I/O thread from its construction until `close`. Its parts
    (`connections`, `api`, `routes`, `heartbeats`) and its coroutines are used on that thread;
    `call`, `acall`, `submit`, `start` and `close` from any other.

    Args:
        client_id: default a new, unique one.
        producer_groups: groups that the heartbeat registers as producers.
        describe: makes the heartbeat of this moment; default one with `producer_groups` only.
        events: of brokers and routes, for its owner.
        are_reads_shared: threads that wait for answers read them themselves, where the connection
            allows it; only if `can_share_reads`.
    Attributes:
        supervisor: runs the client's loops, those of its owner too; on the I/O thread.
    Raises: ConfigError: `name_servers` is not host:port.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        config: RemotingConfig,
        client_id: str | None = None,
        *,
        clock: Clock | None = None,
        producer_groups: Sequence[str] = (),
        describe: Callable[[], Heartbeat] | None = None,
        events: SessionEvents | None = None,
        are_reads_shared: bool = False,
    ) -> None:
        addresses = parse_name_servers(name_servers)  # before the thread is held: this may raise
        own_id = client_id if client_id is not None else new_client_id(config, addresses)
        # One object for all heartbeats of a client whose registration never changes.
        own_heartbeat = Heartbeat(own_id, (), tuple(producer_groups))
        self.config = config
        self.client_id = own_id
        self.clock = clock if clock is not None else SystemClock()
        self._events = events = events if events is not None else SessionEvents()
        self.runtime = Runtime.acquire(self)
        self.supervisor = Supervisor(self.clock, _log, events.on_internal_error)
        # The requests of a client of proxies, for those who use what only a proxy has; else None.
        self.proxy: ProxyApi | None = None
        if are_proxies(addresses):
            self._speak_to_proxies(
                [each.removeprefix(GRPC) for each in addresses], events.on_request
            )
        else:
            self.connections = Connections(
                self.clock,
                config,
                events.on_request,
                self._connection_lost,
                shared_reading if are_reads_shared else transport_reading,
            )
            self.api = BrokerApi(self.connections, config, own_id)
            self.name_servers = NameServerApi(self.connections, addresses, config, self.clock)
        self.pulls = PullConnections(config, self.connections)
        self.outages = self.connections.outages
        self.routes = Routes(
            self.name_servers,
            self.clock,
            config.forget_broker_after_ms,
            events=self,
            is_connected=self.is_connected,
        )
        registration = Registration(
            describe if describe is not None else lambda: own_heartbeat,
            None if events.on_broker_back is None else self._broker_back,
        )
        self.heartbeats = Heartbeats(
            self.runtime,
            self.supervisor,
            self.clock,
            config,
            self.outages,
            self.api,
            self.routes,
            registration,
        )
        self._loops: list[asyncio.Task[None]] = []
        self._background: set[asyncio.Task[object]] = set()
        self._lost: set[str] = set()  # topics that are looked for; on the I/O thread
        self._closing = RLock()  # one `close` at a time; a signal handler's, too
        self._is_released = False

    def _speak_to_proxies(
        self, addresses: Sequence[str], on_request: Callable[[str, Command], Answer]
    ) -> None:
        from ordermq.client.proxy import ProxyApi, ProxyConnections, ProxyRoutes  # of an extra

        config, clock = self.config, self.clock
        connections = ProxyConnections(
            clock, config, self.client_id, on_request, self._connection_lost
        )
        self.connections = connections
        self.api = self.proxy = ProxyApi(
            connections, config, self.client_id, addresses, self.runtime, clock, on_request
        )
        self.name_servers = ProxyRoutes(connections, addresses, config, clock, self.proxy.add_topic)

    # From any thread but the I/O thread.

    def start(self, join: Callable[[], Awaitable[None]] | None = None) -> None:
        """Run `join`, if given, then begin the periodic heartbeats and route refreshes.

        Raises: whatever `join` raised; the session is closed then.
        """

        async def begin() -> None:
            if join is not None:
                await join()
            self.start_loops()

        try:
            self.call(begin())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Disconnect and let the I/O thread go; a second call does nothing.

        After an exception in it, as of Ctrl-C, all this happens nevertheless.

        Raises: StateError: called on the I/O thread.
        """
        with self._closing:
            if not self._is_released:
                if self.runtime.is_halted:  # the end of the process disconnects
                    _log.error(
                        "client %s: closed too late, when the program had ended its I/O thread: "
                        "register the exit handler after the import of ordermq",
                        self.client_id,
                        extra=log_fields(member=self.client_id),
                    )
                    return
                try:
                    self.runtime.complete(self.end)
                except StateError:
                    # A call that an exception ended goes on by itself, and this one came as that
                    # let the thread go.
                    if not self._is_released:
                        raise
        self.runtime.join()

    @property
    def is_closed(self) -> bool:
        """True once `close` has disconnected; nothing can be called any more."""
        return self._is_released

    def call(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """Run `work` on the I/O thread and wait for its result; raises as `Runtime.call`."""
        return self.runtime.call(work, timeout_s)

    def submit(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Start `work` on the I/O thread."""
        return self.runtime.submit(work)

    async def acall(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` on the I/O thread and await its result, on any loop.

        Raises: StateError: that thread has ended, also meanwhile.
        """
        # A caller's coroutine may run on the I/O thread itself, as a hook does.
        if self.runtime.is_io_thread:
            return await work
        try:
            return await asyncio.wrap_future(self.runtime.submit(work))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # Who waits was not cancelled, only the work, by the end of its thread.
            if self.runtime.is_stopping and task is not None and not task.cancelling():
                raise StateError(ENDED) from None
            raise

    def ask_health(self, collect: Callable[[], _H], kind: Callable[..., _H]) -> _H:
        """Return what `collect` returns on the I/O thread; of one that hangs, say so."""
        from ordermq.health import ANSWER_TIMEOUT_S

        if self.runtime.is_io_thread:
            return collect()

        async def work() -> _H:
            return collect()

        try:
            return self.call(work(), ANSWER_TIMEOUT_S)
        except NotDoneInTime:
            reason = (
                f"the I/O thread has not answered for {ANSWER_TIMEOUT_S:.0f} s: something blocks "
                "it, or this machine has no time for it"
            )
            return kind(is_alive=False, is_ready=False, reasons=(reason,))

    # On the I/O thread.

    def health(self) -> ClientHealth:
        """Return the health of connections, heartbeats and loops at this moment."""
        from ordermq.health import ClientHealth, are_alive, loop_reasons

        now_ms, masters = self.clock.now_ms(), self.routes.masters()
        connected = tuple(each for each in masters if self.connections.is_open(each))
        loops = self.supervisor.troubled()
        reasons = loop_reasons(loops)
        if masters and not connected:
            reasons.append(f"no broker is connected; known are {', '.join(masters)}")
            errors = map(self.outages.last_error, masters)
            if error := next((each for each in errors if each is not None), None):
                reasons[-1] += f"; last error: {error}"
        # What a broker refuses, it goes on refusing: told before the intervals below are over. A
        # member's `Membership` says what follows from it.
        for address in masters if self._events.on_broker_back is None else ():
            if refusal := self.heartbeats.refusal_of(address):
                reasons.append(f"heartbeats are refused: {refusal}")
        acknowledged_ms = self.heartbeats.acknowledged_ms
        heartbeat_age_ms = None if acknowledged_ms is None else now_ms - acknowledged_ms
        # Brokers drop a client after a few intervals without one.
        longest_ms = _HEARTBEATS_MISSED * self.config.heartbeat_interval_ms
        if heartbeat_age_ms is not None and heartbeat_age_ms > longest_ms:
            reasons.append(
                f"no broker has acknowledged a heartbeat for {heartbeat_age_ms / 1_000:.0f} s"
            )
        answered = self.connections.answered_ms
        routed = [answered[each] for each in self.name_servers.addresses if each in answered]
        is_alive = are_alive(loops)
        return ClientHealth(
            is_alive=is_alive,
            is_ready=is_alive and not reasons,
            reasons=tuple(reasons),
            loops=loops,
            internal_errors=self.runtime.errors,
            log_errors=LogErrors.count,
            log_lines_dropped=dropped_lines(),
            connected=connected,
            not_connected=tuple(each for each in masters if each not in connected),
            heartbeat_age_ms=heartbeat_age_ms,
            route_age_ms=now_ms - max(routed) if routed else None,
        )

    def start_loops(self) -> None:
        """Begin the periodic heartbeats and route refreshes."""
        # The first heartbeat and the first routes are the caller's: it must see their errors.
        config, beat, refresh = self.config, self.heartbeats.beat, self.routes.refresh_all
        start, clock, own_id = self.supervisor.start, self.clock, self.client_id
        self._loops = [
            start("heartbeat", every(clock, config.heartbeat_interval_ms, beat), own_id),
            start("routes", every(clock, config.route_interval_ms, refresh), own_id),
        ]
        if self.proxy is not None:
            # No connection to a broker breaks here, whose return would ask for the routes.
            look = every(clock, _RETURN_CHECK_MS, self._look_for_brokers)
            self._loops.append(start("brokers", look, own_id))

    async def leave(
        self, *, consumer_group: str | None = None, producer_group: str | None = None
    ) -> None:
        """Stop the heartbeats, one of which would register again, and unregister."""
        async with contextlib.AsyncExitStack() as turns:
            # A broker that is not connected has forgotten the client together with its connection,
            # and is not worth a connect's time-out. One that is just back is in no route yet.
            known = {*self.routes.masters(), *self.heartbeats.listing_brokers()}
            connected = [each for each in sorted(known) if self.connections.is_open(each)]
            for address in connected:
                await turns.enter_async_context(self.heartbeats.none_under_way(address))
            await self.stop_loops()
            await self._unregister(connected, consumer_group, producer_group)

    async def stop_loops(self) -> None:
        """End the periodic heartbeats and route refreshes, and reconnects under way."""
        await self.heartbeats.stop()  # first: a reconnect would send another heartbeat
        loops, self._loops = self._loops, []  # first: a new master gets no heartbeat any more
        await cancelled(*loops, *self._background)

    async def withdraw(self) -> None:
        """Leave the member list of a group that the heartbeats describe no more, at each broker."""
        await self.heartbeats.withdraw(self.connections.is_open)

    async def _unregister(
        self, addresses: list[str], consumer_group: str | None, producer_group: str | None
    ) -> None:
        async def unregister(address: str) -> None:
            try:
                await self.api.unregister(
                    address, consumer_group=consumer_group, producer_group=producer_group
                )
            except OrderMQError as error:
                self.outages.failed(address, "unregistration", error)

        await asyncio.gather(*map(unregister, addresses))

    async def disconnect(self) -> None:
        """Stop the loops and close the connections; later requests raise `StateError`."""
        await self.stop_loops()
        await self.pulls.close()
        await self.connections.close()

    async def end(self) -> None:
        """Disconnect and let the I/O thread go: `close` without waiting for that thread.

        No exception in a caller of another thread can come between the two.
        """
        try:
            await self.disconnect()
        finally:
            if not self._is_released:
                self._is_released = True
                self.runtime.release(self)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted.

        Raises: RouteError: topic not found on any broker, or no name server answers.
        """
        route = await self.routes.get(topic)
        if route is None:
            raise _no_such_topic(topic, self.config.namespace)
        return subscribe_queues(topic, route)

    async def address_of(self, queue: MessageQueue) -> str:
        """Return the address of a queue's master, from memory or from the name server.

        Raises: RouteError: no broker has the topic, or its broker has no master.
        """
        # Not by `queues`, which lists and sorts all of the topic's queues: this runs per request.
        if await self.routes.get(queue.topic) is None:
            raise _no_such_topic(queue.topic, self.config.namespace)
        return self.routes.master_of(queue.broker_name)

    def report_failure(
        self, broker_name: str, action: str, error: Exception, *, meanwhile: str = "retrying"
    ) -> None:
        """Log a failed request to a broker's master, as part of its outage if there is one.

        For requests that are retried: without it each queue would log each of its attempts.
        """
        # Without a route the name stands for the address.
        address = self.routes.replicas_of(broker_name).get(MASTER_ID, broker_name)
        self.outages.failed(address, action, error, meanwhile=meanwhile)

    def is_connected(self, broker_name: str) -> bool:
        """Return True if there is a connection to the broker's master now."""
        try:
            return self.connections.is_open(self.routes.master_of(broker_name))
        except (RouteError, ConnectFailed):
            return False

    def doubt_route(self, topic: str) -> None:
        """Ask for a topic's route in the background, after a failure: its broker may have moved."""
        self._spawn(self.routes.refresh_soon(topic), f"route {topic}")

    async def group_members(self, group: str) -> list[str]:
        """Return the client ids of a group, from the first broker that answers; [] without one.

        Raises: RemotingError, RouteError: none of the brokers answered; the last one's error.
        """
        # Members register with every broker of their topics, so any of these has the list. The
        # order is the same for all members, but for a broker that fails: it would cost each
        # rebalance pass the time-out of a request.
        failure: OrderMQError | None = None
        ongoing = self.outages.ongoing
        for address in sorted(self.routes.masters(), key=lambda address: address in ongoing):
            try:
                return await self.api.consumer_ids(address, group)
            except OrderMQError as error:
                failure = error
        if failure is not None:
            raise failure
        return []

    # RouteEvents

    def on_route_change(self, topic: str) -> None:
        self._events.on_route_change(topic)

    def on_loss(self, topic: str) -> None:
        if topic not in self._lost:
            self._lost.add(topic)
            self._spawn(self._look_for_topic(topic), f"lost {topic}")

    def on_new_master(self, address: str) -> None:
        # Now, not with the next periodic beat: until then the broker lists a group without this
        # member, and other members take its share of the new queues. Before the loops run, the
        # owner sends the first heartbeat itself. Producers register where a broker must reach them.
        if self._loops and self._events.on_broker_back is not None:
            self._spawn(self.heartbeats.beat_to(address), f"first heartbeat {address}")

    def on_master_moved(self, broker_name: str) -> None:
        self._events.on_master_moved(broker_name)

    def on_unused(self, address: str) -> None:
        # The embedded broker is its own name server.
        if address not in self.name_servers.addresses:
            self.connections.drop(address, "no route has this address any more")
            self.pulls.drop(address)

    def _broker_back(self) -> None:
        # The name server dropped the broker while it was away, and hears of it again only a
        # moment after it answers us.
        self._spawn(self._look_until_found(), f"routes {self.client_id}")
        if self._events.on_broker_back is not None:
            self._events.on_broker_back()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self.runtime.spawn(work, name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _look_for_brokers(self) -> None:
        if self.routes.has_broker_away:
            await self.routes.refresh_all()

    async def _look_until_found(self) -> None:
        await self.routes.refresh_all()  # this client may not know yet that one is away
        for _ in range(_RETURN_CHECKS):
            if not self.routes.has_broker_away:
                return
            await self.clock.sleep_ms(_RETURN_CHECK_MS)
            await self._look_for_brokers()

    async def _look_for_topic(self, topic: str) -> None:
        """Look for a topic that was deleted until it is made anew, or closed until it is open.

        With the periodic refresh, members of its groups would not see the queues that it did not
        have before for half a minute, and sends would be refused for as long.
        """
        clock, routes = self.clock, self.routes
        until_ms = clock.now_ms() + _LOSS_CHECKS_MS
        try:
            while routes.has_lost(topic) and clock.now_ms() < until_ms:
                # A name server that was restarted lists none of a thousand topics.
                await clock.sleep_ms(max(len(self._lost) * _LOSS_CHECK_MS_EACH, _LOSS_CHECK_MS))
                route = routes.known(topic)
                # While its brokers are away, the return of one asks for all routes.
                if route and any(self.is_connected(data.broker_name) for data in route.queues):
                    await routes.refresh_soon(topic)
        finally:
            self._lost.discard(topic)

    def _connection_lost(self, address: str) -> None:
        # The owner first: a member marks leases of that broker as doubtful before anything is
        # sent over a new connection.
        try:
            self._events.on_connection_lost(address)
        finally:
            # Whatever broke this one, as a middlebox that went silent, has the other in its hands,
            # too; a pull would notice that only after its long poll.
            self.pulls.drop(address)
            self.heartbeats.connection_lost(address)


def _no_such_topic(topic: str, namespace: str) -> RouteError:
    remedy = f"create it first, or send a message to it; {IF_IT_EXISTS}"
    if namespace:
        remedy += f". With namespace={namespace!r} brokers know it as {wrapped(namespace, topic)!r}"
    return RouteError(f"topic not found on any broker: {remedy}", topic=topic)


def new_client_id(
    config: RemotingConfig,
    name_servers: Sequence[str],
    instance: str | None = None,
    *,
    is_broadcasting: bool = False,
) -> str:
    """Return a client id, `ip@instance[@unit]` (docs/internals/protocol.md#identifiers).

    No other client has it, whatever its name, except that of a broadcasting member.

    Args:
        name_servers: the local address on the way to the first of them is the id's address,
            unless `client_ip` is set.
        instance: a name to know the client by; Java's "DEFAULT" is none.
        is_broadcasting: keep the name as it is, "DEFAULT" without one: a broadcasting member
            finds its offset file by its id, and owns nothing.
    Raises: ConfigError: `instance` has a character that no part of an id may have.
    """
    # Two members with one client id both "own" a queue, and a broker pushes a reply to the client
    # that sent a heartbeat with its id last (docs/internals/semantics.md#duplicate-client-ids).
    if instance is not None:
        check_instance(instance)
    if is_broadcasting:
        instance = instance or _DEFAULT_INSTANCE
    else:
        instance = unique_instance("" if instance in (None, _DEFAULT_INSTANCE) else instance)
    parts = [config.client_ip or _address_towards(name_servers[0]), instance]
    if config.unit_name:
        parts.append(config.unit_name)
    return "@".join(parts)


def _address_towards(server: str) -> str:
    """Return the local address of the route to a server."""
    # A DNS server that is away must not hold up the construction of a client for longer.
    found = addresses_within(*split_address(server.removeprefix(GRPC)), _LOOK_UP_S)
    if not found:
        # The server cannot be reached now. The first request will say so, with its address.
        return _LOOPBACK
    try:
        with socket.socket(found[0].family, socket.SOCK_DGRAM) as probe:
            # Connecting a datagram socket only chooses the local address; no packet is sent.
            probe.connect(found[0].place)
            address: str = probe.getsockname()[0]
            return address
    except OSError as error:
        if error.errno is None:
            raise  # not of the system: a TimeoutError that a signal handler has raised
        return _LOOPBACK
