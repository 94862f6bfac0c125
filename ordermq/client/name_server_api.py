"""Requests to name servers: routes of topics, addresses of masters."""

from __future__ import annotations

from collections.abc import Sequence

from ordermq.client.connections import Connections
from ordermq.config import RemotingConfig
from ordermq.errors import BrokerError, ConfigError, RemotingError, RouteError
from ordermq.remoting.bodies import TopicRoute, masters_from_body
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.connection import split_address
from ordermq.remoting.headers import RouteHeader


def parse_name_servers(text: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses in `host:port;host:port` or in a list.

    Raises: ConfigError: no address, or one that is not host:port.
    """
    is_list = isinstance(text, Sequence) and all(isinstance(part, str) for part in text)
    if not is_list:
        raise ConfigError(
            f"name_servers is a {type(text).__name__}: expected host:port, as 127.0.0.1:9876, or "
            "a list of them"
        )
    # Looked at before it is cut, and not shown: whatever stands here may be a secret, and a
    # secret may hold any separator.
    whole = text if isinstance(text, str) else ";".join(text)
    if "@" in whole:
        raise ConfigError(
            "name_servers has a user or a secret before an '@': expected host:port alone; give "
            "access_key= and secret_key="
        )
    if "://" in whole:
        raise ConfigError(
            "name_servers has a scheme before '://': expected host:port alone, as 127.0.0.1:9876; "
            "tls=True asks for TLS"
        )
    # RocketMQ separates by `;`. Users of other systems write a comma, which no host contains.
    parts = text.replace(",", ";").split(";") if isinstance(text, str) else list(text)
    addresses = tuple(part.strip() for part in parts if part.strip())
    if not addresses:
        raise ConfigError("name_servers is empty: expected host:port, as 127.0.0.1:9876")
    for address in addresses:
        split_address(address)
    return addresses


class NameServerApi:
    """Typed requests, sent to the first name server that answers."""

    def __init__(
        self, connections: Connections, addresses: Sequence[str], config: RemotingConfig
    ) -> None:
        self.addresses = tuple(addresses)
        self._connections = connections
        self._config = config

    async def topic_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, None if no broker has it yet.

        Raises:
            RouteError: no name server answers; the last one's error is the cause.
            BrokerError: the name server refused the request.
        """
        ext = RouteHeader(topic, accept_standard_json=True).to_ext()
        address, answer = await self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, topic)
        # Not an error: consumers may start before their topic exists.
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        self._check(address, answer, topic)
        return TopicRoute.from_body(answer.body)

    async def masters(self) -> dict[str, str]:
        """Return the address of every broker's master, by broker name.

        Raises: as `topic_route`.
        """
        address, answer = await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        self._check(address, answer)
        return masters_from_body(answer.body)

    async def _ask(
        self, code: RequestCode, ext: dict[str, str] | None = None, topic: str | None = None
    ) -> tuple[str, Command]:
        failure: RemotingError | None = None
        # In the configured order each time. While the first server is down, each request first
        # waits for the pause of its next connect; the routes in memory serve meanwhile.
        for address in self.addresses:
            command = Command.request(code, ext)
            timeout_ms = self._config.request_timeout_ms
            try:
                return address, await self._connections.request(address, command, timeout_ms)
            except RemotingError as error:
                self._connections.outages.failed(address, "route request", error)
                failure = error
        raise RouteError(
            f"no name server answers ({'; '.join(self.addresses)}): {failure}", topic=topic
        ) from failure

    @staticmethod
    def _check(address: str, answer: Command, topic: str | None = None) -> None:
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(
                answer.remark or "the name server refused the request",
                response_code=answer.code,
                topic=topic,
                address=address,
            )
