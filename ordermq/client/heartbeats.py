"""Heartbeats: registration with brokers, and re-registration after a lost connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial

from ordermq.client.broker_api import BrokerApi
from ordermq.client.connections import is_denied
from ordermq.client.outages import Outages
from ordermq.client.routes import Routes
from ordermq.client.runtime import Runtime, cancelled
from ordermq.clock import Clock
from ordermq.config import RemotingConfig
from ordermq.errors import BrokerError, OrderMQError, RemotingError
from ordermq.remoting.bodies import ConsumerData, Heartbeat
from ordermq.remoting.shared_tasks import SharedTasks
from ordermq.supervisor import Supervisor
from ordermq.value import Value


class Registration(Value):
    """Registration of a client: its heartbeat, and what follows when a lost broker is back.

    Args:
        describe: makes the heartbeat of this moment.
        on_broker_back: called after a registration with a broker whose connection was lost.
            None: only brokers named to `Heartbeats.register_with` are registered again.
    """

    describe: Callable[[], Heartbeat]
    on_broker_back: Callable[[], None] | None


class Heartbeats:
    """Sends heartbeats to all masters, and those of consumers to slaves; on the I/O thread.

    A slave serves pulls only to groups that registered with it. A broker drops the registration
    together with the connection it came over, and sends its own requests (a reply, a transaction
    check, a changed member list) over no other: a lost connection is therefore opened again and
    registered at once, not with the next send or pull.
    """

    def __init__(
        self,
        runtime: Runtime,
        supervisor: Supervisor,
        clock: Clock,
        config: RemotingConfig,
        outages: Outages,
        api: BrokerApi,
        routes: Routes,
        registration: Registration,
    ) -> None:
        self._runtime = runtime
        self._supervisor = supervisor
        self._clock = clock
        self._config = config
        self._outages = outages
        self._api = api
        self._routes = routes
        self._describe = registration.describe
        self._on_broker_back = registration.on_broker_back
        self._registered: set[str] = set()  # by `register_with`: must be able to send us requests
        self._registering = SharedTasks[str, bool]()
        self._reconnecting: dict[str, asyncio.Task[None]] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._groups_made: Counter[tuple[str, str]] = Counter()  # by `create_group`
        # By address: the groups whose member list there may have this client. A broker that is
        # just back is in no route for a moment, and lists a member nevertheless.
        self._listing: defaultdict[str, set[str]] = defaultdict(set)
        self._refusals: dict[str, BrokerError] = {}  # by address, of the last heartbeat
        self._is_stopped = False
        self.acknowledged_ms: int | None = None  # the last one, by any broker

    async def beat(self) -> None:
        """Send one heartbeat to each broker; a failure is logged, the next beat is the retry."""
        for address, error in await self._beat_all():
            self._outages.failed(address, "heartbeat", error)

    async def beat_to(self, address: str) -> None:
        """Send a heartbeat to one broker, as `beat`."""
        if not self._is_stopped and (failed := await self._beat_one(address)):
            self._outages.failed(failed[0], "heartbeat", failed[1])

    async def register(self) -> None:
        """Send the first heartbeat: as `beat`, but a broker that denies permission is an error.

        Raises: BrokerError: wrong keys, or an account without this permission.
        """
        # A broker that is down is no reason not to start: the group works on the other brokers. A
        # wrong key or a missing permission is: it does not go away by itself.
        for address, error in await self._beat_all():
            if isinstance(error, BrokerError) and is_denied(error.response_code, str(error)):
                raise error
            self._outages.failed(address, "heartbeat", error)

    def refusal_of(self, address: str) -> BrokerError | None:
        """Return why a broker has refused the last heartbeat; None if it has not."""
        return self._refusals.get(address)

    def is_registered(self, address: str) -> bool:
        """Return True if `register_with` succeeded and the connection has lasted; any thread."""
        return address in self._registered

    async def register_with(self, address: str) -> bool:
        """Make sure that a broker can send us requests, now and after each lost connection.

        Returns: False if it does not answer; the failure is logged.
        """
        if address in self._registered:
            return True
        name = f"register with {address}"
        return await self._registering.result(
            address, lambda: self._runtime.spawn(self._register_with(address), name)
        )

    async def version_of(self, address: str) -> int:
        """Return the version a broker speaks, from its answer to a heartbeat
        (docs/internals/protocol.md#flags-and-request-ids).

        Raises: RemotingError: it does not answer.
        """
        return await self._send(address)

    def listing_brokers(self) -> Collection[str]:
        """Return the addresses of the brokers that may list this client as a member of a group."""
        return [address for address, groups in self._listing.items() if groups]

    async def withdraw(self, is_connected: Callable[[str], bool]) -> None:
        """Leave the member lists of the groups that the heartbeats describe no more.

        A broker that fails is told again with the next heartbeat.

        Args:
            is_connected: returns True of the address of a broker that has a connection. Any other
                has forgotten this client together with its connection.
        """

        async def withdraw_from(address: str) -> None:
            try:
                async with self._turns[address]:
                    if is_connected(address):
                        await self._withdraw(address, self._describe())
            except OrderMQError as error:
                self._outages.failed(address, "unregistration", error)

        await asyncio.gather(*map(withdraw_from, self.listing_brokers()))

    @contextlib.asynccontextmanager
    async def none_under_way(self, address: str) -> AsyncIterator[None]:
        """Let nothing of a heartbeat be under way to a broker, for an unregistration.

        RocketMQ works the two in different threads. A heartbeat that is overtaken registers again
        for two minutes, in which the other members leave a share of the queues to nobody.
        """
        async with self._turns[address]:
            yield

    async def create_group(self, address: str, group: str) -> None:
        """Make a broker create a group, which it does at the heartbeat of a member.

        A consumer that was given its queues by hand must not stay one: brokers list whoever sends
        heartbeats, and the other members would leave a share of the queues to it.

        Raises: RemotingError: the broker does not answer, or refuses.
        """
        member = ConsumerData(group, (), consume_type="CONSUME_ACTIVELY")
        made = self._groups_made[address, group]
        # All in one turn. A heartbeat beside an unregistration leaves a member behind at
        # RocketMQ's proxy that nothing takes from its list for two minutes, neither another
        # unregistration nor the end of the connection.
        async with self._turns[address]:
            if self._groups_made[address, group] != made:
                return  # another queue's offset made it meanwhile
            described = self._describe()
            self._listing[address].add(group)
            await self._api.heartbeat(address, Heartbeat(described.client_id, (member,)))
            await self._unregister(address, group)
            if not self._is_stopped:
                await self._tell(address)
            self._groups_made[address, group] += 1

    def connection_lost(self, address: str) -> None:
        """Reconnect to a broker that must know us, and register again."""
        # The brokers that must be able to reach us: for a member of a group all masters, for a
        # producer those that it expects replies or transaction checks from.
        is_needed = self._on_broker_back is not None or address in self._registered
        self._registered.discard(address)
        # A broker that left the routes a moment ago is expected back at this address.
        is_needed = is_needed and self._routes.is_expected(address)
        if is_needed and not self._is_stopped and address not in self._reconnecting:
            self._reconnecting[address] = self._supervisor.start(
                "reconnect", partial(self._reconnect, address), address
            )

    async def stop(self) -> None:
        """Send no heartbeat any more: after an unregistration it would register us again."""
        self._is_stopped = True
        await cancelled(*self._reconnecting.values(), *self._registering.running)

    async def _reconnect(self, address: str) -> bool:
        """Try once to register again; return whether to try once more."""
        if not await self._is_registered_again(address):
            if self._routes.is_expected(address):
                # Connections pause between failed connects themselves; this pause is for a
                # broker that accepts the connection and refuses the heartbeat.
                await self._clock.sleep_ms(self._config.reconnect_delay_ms)
                return True
            # The broker has another address now, or is forgotten.
            self._reconnecting.pop(address, None)
            return False
        if self._on_broker_back is None:
            self._registered.add(address)
        else:
            self._on_broker_back()
        # Here and not when the task ends: a connection may be lost again in between.
        self._reconnecting.pop(address, None)
        return False

    async def _is_registered_again(self, address: str) -> bool:
        try:
            await self._send(address)
        except OrderMQError as error:
            if self._routes.is_expected(address):  # else it was forgotten meanwhile
                self._outages.failed(address, "reconnect", error)
            return False
        return True

    async def _register_with(self, address: str) -> bool:
        try:
            await self._send(address)
        except RemotingError as error:
            self._outages.failed(address, "registration", error)
            return False
        self._registered.add(address)
        return True

    async def _beat_all(self) -> list[tuple[str, RemotingError]]:
        addresses = self._routes.masters()
        # Concurrently: one broker that does not answer must not delay the others' heartbeats until
        # they drop the client.
        if self._describe().consumers:
            addresses += self._routes.slaves()
        outcomes = await asyncio.gather(*map(self._beat_one, addresses))
        return [outcome for outcome in outcomes if outcome is not None]

    async def _beat_one(self, address: str) -> tuple[str, RemotingError] | None:
        try:
            await self._send(address)
        except RemotingError as error:
            return address, error
        self.acknowledged_ms = self._clock.now_ms()
        return None

    async def _send(self, address: str) -> int:
        # Described in its turn: what was true before an unregistration is not after it.
        async with self._turns[address]:
            return await self._tell(address)

    async def _tell(self, address: str) -> int:
        described = self._describe()
        await self._withdraw(address, described)
        # Before the request: what becomes of one without an answer is not known.
        self._listing[address].update(each.group for each in described.consumers)
        try:
            version = await self._api.heartbeat(address, described)
        except BrokerError as error:
            self._refusals[address] = error
            raise
        self._refusals.pop(address, None)
        return version

    async def _withdraw(self, address: str, described: Heartbeat) -> None:
        # A heartbeat without a group takes the client from no list, and keeps it on all of them:
        # RocketMQ has one time of the last heartbeat for all groups of a connection.
        for group in self._listing[address] - {each.group for each in described.consumers}:
            await self._unregister(address, group)

    async def _unregister(self, address: str, group: str) -> None:
        await self._api.unregister(address, consumer_group=group)
        self._listing[address].discard(group)
