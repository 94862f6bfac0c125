"""Requests to name servers: routes of topics, addresses of masters."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ordermq.client.connections import Connections
from ordermq.clock import Clock
from ordermq.config import RemotingConfig
from ordermq.config.address_map import AddressMap
from ordermq.config.checks import GRPC, require_bare_addresses, split_address
from ordermq.errors import BrokerError, ConfigError, OrderMQError, RemotingError, RouteError
from ordermq.remoting.bodies import TopicRoute, cluster_names_from_body, masters_from_body
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import RouteHeader, TopicHeader
from ordermq.remoting.race import staggered

_log = logging.getLogger("ordermq.client")
_T = TypeVar("_T")
_Ask: TypeAlias = Callable[[str], Awaitable[_T | None]]


class _Reply(NamedTuple, Generic[_T]):
    """The outcome of asking one name server."""

    address: str
    found: _T | None
    error: OrderMQError | None


def parse_name_servers(text: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses in `host:port;host:port` or in a list; `grpc://host:port` of proxies.

    Raises: ConfigError: no address, or one that is not host:port.
    """
    is_list = isinstance(text, Sequence) and all(isinstance(part, str) for part in text)
    if not is_list:
        raise ConfigError(
            f"name_servers is a {type(text).__name__}: expected host:port, as 127.0.0.1:9876, or "
            "a list of them"
        )
    require_bare_addresses(text)
    # RocketMQ separates by `;`. Users of other systems write a comma, which no host contains.
    parts = text.replace(",", ";").split(";") if isinstance(text, str) else list(text)
    addresses = tuple(part.strip() for part in parts if part.strip())
    if not addresses:
        raise ConfigError("name_servers is empty: expected host:port, as 127.0.0.1:9876")
    for address in addresses:
        split_address(address.removeprefix(GRPC))
    of_proxies = [address.startswith(GRPC) for address in addresses]
    if any(of_proxies) and not all(of_proxies):
        raise ConfigError(
            "name_servers has endpoints of a proxy (grpc://) and name servers: expected one kind"
        )
    return addresses


def are_proxies(addresses: Sequence[str]) -> bool:
    """Return True if these are a proxy's endpoints, to be spoken to over gRPC."""
    return addresses[0].startswith(GRPC)


def refuse_proxies(addresses: Sequence[str], group: str) -> None:
    """Raise ConfigError if these are endpoints that no pull can go to."""
    if are_proxies(addresses):
        raise ConfigError(
            "grpc:// is for PushConsumer, AsyncConsumer and LitePullConsumer(ordered=True): a "
            "proxy answers no pulls and stores no positions; give addresses of name servers, or "
            "the proxy's remoting port (8080)",
            group=group,
        )


class NameServerApi:
    """Typed requests to the name servers: to the one that answered last, to the next if it is slow.

    A server that is down costs the first request at most `NEXT_AFTER_MS`, and later ones nothing:
    the server that answered is asked first from then on. The slow one is still waited for in the
    background, so that the log tells what is wrong with it.

    Addresses of brokers come out of here only, and `address_map` has been applied to them: whatever
    connects to a broker connects to an address that can be reached.

    Attributes: no_answer: the error when none of the servers answers.
    """

    no_answer = "no name server answers"

    def __init__(
        self,
        connections: Connections,
        addresses: Sequence[str],
        config: RemotingConfig,
        clock: Clock,
    ) -> None:
        self.addresses = tuple(addresses)
        self._connections = connections
        self._config = config
        self._address_map = AddressMap(config.address_map)
        self._clock = clock
        # The one that answered last, ..., the one that failed last.
        self._order = list(dict.fromkeys(addresses))
        self._failed: set[str] = set()  # those that have not answered since
        # By task, held here because the loop keeps only weak references.
        self._asking: dict[asyncio.Task[_Reply[Any]], str] = {}
        self._waiting: set[asyncio.Event] = set()  # of the requests under way

    async def topic_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, None if no broker has it yet.

        Raises:
            RouteError: no name server answers; the last one's error is the cause.
            BrokerError: every name server that answers refused the request.
            ConfigError: address_map leads to one address from two brokers.
        """
        ext = RouteHeader(topic, accept_standard_json=True).to_ext()

        def read(address: str, answer: Command) -> TopicRoute | None:
            # Not an error: consumers may start before their topic exists.
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise BrokerError(
                    "the server knows no routes, so it is no name server: a broker's port (10911) "
                    "was given for a name server's (9876)",
                    response_code=answer.code,
                    topic=topic,
                    address=address,
                )
            self._check(address, answer, topic)
            return self._reachable(TopicRoute.from_body(answer.body))

        return await self._ask(self._request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, read), topic)

    async def masters(self) -> dict[str, str]:
        """Return the address of every broker's master, by broker name.

        Raises: as `topic_route`.
        """

        def read(address: str, answer: Command) -> dict[str, str] | None:
            self._check(address, answer)
            told = masters_from_body(answer.body)
            self._address_map.require_apart(told.items())
            # None: another server may list some.
            return {name: self._address_map.translate(told[name]) for name in told} or None

        return await self._ask(self._request(RequestCode.GET_BROKER_CLUSTER_INFO, None, read)) or {}

    async def lists_a_broker(self) -> bool:
        """Return False only if each name server that answers says that it lists no broker at all.

        One that lists some is believed before one that lists none, as with routes.
        """
        try:
            return bool(await self.masters())
        except OrderMQError as error:  # a proxy does not tell, nor every server to every account
            _log.debug("whether name servers list a broker: %s", error)
            return True

    async def cluster_names(self) -> list[str]:
        """Return the names of the clusters that the brokers belong to, sorted.

        Raises: as `topic_route`.
        """

        def read(address: str, answer: Command) -> list[str]:
            self._check(address, answer)
            return cluster_names_from_body(answer.body)

        return await self._ask(self._request(RequestCode.GET_BROKER_CLUSTER_INFO, None, read)) or []

    async def delete_topic(self, topic: str) -> None:
        """Forget a topic at every name server; its brokers must have deleted it before.

        Raises: RemotingError: one of them did not; it would go on to give out the route.
        """
        ext = TopicHeader(topic).to_ext()
        for address in self.addresses:
            command = Command.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext)
            timeout_ms = self._config.request_timeout_ms
            self._check(address, await self._connections.request(address, command, timeout_ms))

    async def is_answering(self, address: str) -> None:
        """Ask this one name server for something, whatever it says.

        Raises: RemotingError: it does not answer, or denies access.
        """
        command = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(address, answer)

    def _request(
        self,
        code: RequestCode,
        ext: dict[str, str] | None,
        read: Callable[[str, Command], _T | None],
    ) -> _Ask[_T]:
        """Return what asks one server, whose address it is given."""

        async def ask(address: str) -> _T | None:
            timeout_ms = self._config.request_timeout_ms
            command = Command.request(code, ext)
            # Read here: a server that answers with garbage has failed, and the next one is asked.
            return read(address, await self._connections.request(address, command, timeout_ms))

        return ask

    async def _ask(self, ask: _Ask[_T], topic: str | None = None) -> _T | None:
        """Return the first answer that says something; None only if no server knows better."""
        unheard = set(self._order)
        is_unknown = False
        failure: OrderMQError | None = None
        attempts = [partial(self._start, address, ask) for address in self._order]
        wake = asyncio.Event()
        self._waiting.add(wake)
        try:
            async with contextlib.aclosing(staggered(attempts, self._clock, wake)) as looks:
                async for look in looks:
                    for ended in look:
                        reply = ended.result()
                        unheard.discard(reply.address)
                        if reply.error is not None:
                            if not isinstance(reply.error, RemotingError):
                                raise reply.error
                            # A refusal says more than a second server's silence.
                            failure = failure if isinstance(failure, BrokerError) else reply.error
                        elif reply.found is not None:
                            self._heard(reply.address, unheard)
                            return reply.found
                        else:
                            # A name server that was just restarted knows no topic until the
                            # brokers have registered again, which takes them up to 30 s.
                            is_unknown = True
                    if is_unknown and unheard <= self._failed:
                        break
        finally:
            self._waiting.remove(wake)
        if is_unknown:
            # Those that were down are asked, too, but nobody waits for them once more.
            for address in unheard.difference(self._asking.values()):
                self._start(address, ask)
            return None
        if isinstance(failure, BrokerError):
            raise failure
        raise RouteError(
            f"{self.no_answer} ({'; '.join(self.addresses)}): {failure}", topic=topic
        ) from failure

    def _heard(self, address: str, unheard: set[str]) -> None:
        """Ask this server first from now on; wait no longer for those asked before it."""
        self._failed |= unheard.intersection(self._asking.values())
        self._order.remove(address)
        self._order.insert(0, address)
        # Requests made at the same time may be waiting for one of these: they need not, either.
        for wake in self._waiting:
            wake.set()

    def _start(self, address: str, ask: _Ask[_T]) -> asyncio.Task[_Reply[_T]]:
        asking = asyncio.get_running_loop().create_task(self._ask_one(address, ask))
        self._asking[asking] = address
        asking.add_done_callback(self._asking.pop)
        return asking

    async def _ask_one(self, address: str, ask: _Ask[_T]) -> _Reply[_T]:
        try:
            found = await ask(address)
        except RemotingError as error:
            if not isinstance(error, BrokerError):  # the caller of a refused request is told
                self._connections.outages.failed(address, "route request", error)
            self._failed.add(address)
            self._order.remove(address)
            self._order.append(address)
            return _Reply(address, None, error)
        except OrderMQError as error:  # of this client: it was closed, or cannot read its key file
            return _Reply(address, None, error)
        self._failed.discard(address)
        return _Reply(address, found, None)

    def _reachable(self, route: TopicRoute) -> TopicRoute:
        if not self._address_map:
            return route
        translate = self._address_map.translate
        self._address_map.require_apart(
            (broker.broker_name, address)
            for broker in route.brokers
            for address in broker.addresses.values()
        )
        brokers = (
            replace(broker, addresses={n: translate(a) for n, a in broker.addresses.items()})
            for broker in route.brokers
        )
        return replace(route, brokers=tuple(brokers))

    @staticmethod
    def _check(address: str, answer: Command, topic: str | None = None) -> None:
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(
                answer.remark or "the name server refused the request",
                response_code=answer.code,
                topic=topic,
                address=address,
            )
