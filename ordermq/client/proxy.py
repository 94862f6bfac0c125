"""A client behind RocketMQ's proxy, over gRPC: connections, routes and requests
(docs/internals/protocol.md#grpc).

The three classes stand in for those of a client that speaks to name servers and brokers. What the
proxy does not serve, as locks, offsets and the requests of admins, ends in an error that says so.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar, cast

from ordermq import core
from ordermq.client.broker_api import BrokerApi, is_about_size, with_remedy
from ordermq.client.connections import Answer, Connections
from ordermq.client.name_server_api import NameServerApi
from ordermq.client.proxy_messages import (
    half_message_request,
    raise_if_unserved,
    send_request,
)
from ordermq.client.runtime import Runtime
from ordermq.clock import Clock
from ordermq.config import RemotingConfig
from ordermq.config.checks import join_address, split_address
from ordermq.core.contract import StoredByProxy
from ordermq.errors import (
    BrokerError,
    ConnectionLost,
    OrderMQError,
    RemotingError,
    RequestTimeout,
    RequestTooLarge,
    RouteError,
)
from ordermq.grpc.connection import Call, GrpcConnection, GrpcEvents
from ordermq.grpc.messages import (
    PYTHON,
    Address,
    AddressScheme,
    ClientType,
    Code,
    Endpoints,
    EndTransactionRequest,
    FilterExpression,
    FilterType,
    HeartbeatRequest,
    NotifyClientTerminationRequest,
    Permission,
    Publishing,
    QueryRouteRequest,
    QueryRouteResponse,
    RecallMessageRequest,
    RecallMessageResponse,
    Resolution,
    Resource,
    SendMessageResponse,
    Settings,
    Status,
    StatusResponse,
    Subscription,
    SubscriptionEntry,
    TelemetryCommand,
    TransactionSource,
    UserAgent,
)
from ordermq.grpc.metadata import CallMetadata
from ordermq.grpc.protobuf import ProtoMessage
from ordermq.model.message import MessageView
from ordermq.model.message_queue import UNTOLD
from ordermq.model.names import AUTO_CREATE_TOPIC
from ordermq.remoting.bodies import (
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    ConsumerData,
    Heartbeat,
    QueueData,
    TopicRoute,
)
from ordermq.remoting.codes import (
    PROTOCOL_VERSION,
    RequestCode,
    ResponseCode,
    TransactionFlag,
)
from ordermq.remoting.command import Command
from ordermq.remoting.connection import Connection
from ordermq.remoting.headers import SendHeader, SendReplyHeader
from ordermq.remoting.rare_headers import EndTransactionHeader, RecallHeader
from ordermq.remoting.reading import transport_reading
from ordermq.remoting.response_futures import ResponseFuture
from ordermq.remoting.time_limit import time_limit
from ordermq.version import VERSION

_log = logging.getLogger("ordermq.client")
_M = TypeVar("_M", bound=ProtoMessage)
_CODES = {
    Code.UNAUTHORIZED: ResponseCode.NO_PERMISSION,
    Code.FORBIDDEN: ResponseCode.NO_PERMISSION,
    Code.TOPIC_NOT_FOUND: ResponseCode.TOPIC_NOT_EXIST,
    Code.CONSUMER_GROUP_NOT_FOUND: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Code.TOO_MANY_REQUESTS: ResponseCode.FLOW_CONTROL,
    Code.MESSAGE_BODY_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    Code.NOT_IMPLEMENTED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    Code.UNSUPPORTED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
}
# A proxy that is just starting refuses connections, and then needs seconds on a busy machine for
# its first route, which it gives at once when it is asked again.
_COLD_PROXY_MS, _COLD_PROXY_PAUSE_MS = 30_000, 500
_WRONG_ORDER = {
    True: "the group is not an ordered one, so its messages would come in no order: make it one, "
    "mqadmin updateSubGroup -g {group} -o true (each update without -o takes that back)",
    False: "the group is an ordered one, in which a message that failed holds its queue: take "
    "@consumer.orderly, or a group that is none (mqadmin updateSubGroup -g {group} -o false)",
}


def problem_of(status: Status | None, what: str, **fields: Any) -> RemotingError | None:
    """Return the error that a status stands for; None: it is no error.

    Args: fields: topic, group and the like, for the error.
    """
    if status is None or status.code == Code.OK:
        return None
    text = f"{what}: {status.message or 'the proxy refused'} (status {status.code})"
    if status.code == Code.MESSAGE_TYPE_CONFLICT:
        text += (
            "; a proxy checks the topic's attribute message.type: make it MIXED, or FIFO for "
            "messages with keys, DELAY for timed ones, TRANSACTION for half messages"
        )
    if status.code in (Code.REQUEST_TIMEOUT, Code.PROXY_TIMEOUT):
        return RequestTimeout(f"{text}; its outcome is unknown", **fields)
    code = next((ours for theirs, ours in _CODES.items() if theirs == status.code), None)
    return BrokerError(
        text, response_code=ResponseCode.SYSTEM_ERROR if code is None else code, **fields
    )


def check(status: Status | None, what: str, **fields: Any) -> None:
    """Raise the error that a status stands for; see `problem_of`."""
    problem = problem_of(status, what, **fields)
    if problem is not None:
        raise problem


class ProxyConnections(Connections):
    """Connections of one client to proxies, by address."""

    def __init__(
        self,
        clock: Clock,
        config: RemotingConfig,
        client_id: str,
        on_request: Callable[[str, Command], Answer],
        on_lost: Callable[[str], None],
    ) -> None:
        super().__init__(clock, config, on_request, on_lost, transport_reading)
        self._metadata = CallMetadata(config, client_id)

    async def _open_one(self, address: str, tls: ssl.SSLContext | None) -> Connection:
        opened = await GrpcConnection.open(
            address, self._clock, self._config, cast(GrpcEvents, self), tls, self._dialer
        )
        # The base needs its state, its end and its address only, which both kinds have.
        return cast(Connection, opened)

    async def grpc(self, address: str) -> GrpcConnection:
        """Return the open connection to a proxy; raises as `get`."""
        return cast(GrpcConnection, await self.get(address))

    async def ask(
        self, address: str, method: str, request: ProtoMessage, answer: type[_M], timeout_ms: int
    ) -> _M:
        """Call a method and return its answer, whatever its status; raises as `ask_bytes`."""
        data = await self.ask_bytes(address, method, request.to_bytes(), timeout_ms)
        return answer.from_bytes(data)

    async def ask_bytes(self, address: str, method: str, request: bytes, timeout_ms: int) -> bytes:
        """Call a method and return its answer as it came.

        Raises: as `get` and `GrpcConnection.unary`.
        """
        connection = await self.grpc(address)
        await connection.writable()
        data = await connection.unary(method, request, self.call_metadata(), timeout_ms)
        self.has_answered(address)
        return data

    def ready_now(self, address: str) -> GrpcConnection | None:
        """Return the connection to a proxy if a call may begin on it at once; else None."""
        connection = cast(GrpcConnection | None, super().writable_now(address))
        return connection if connection is not None and connection.has_room else None

    def has_answered(self, address: str) -> None:
        """Note that a proxy is there."""
        self.answered_ms[address] = self._clock.now_ms()
        if address in self.outages.ongoing:
            self.outages.answered(address)

    async def begin(self, address: str, method: str, timeout_ms: int | None) -> Call:
        """Begin a call whose answers are read one by one; raises as `get`."""
        connection = await self.grpc(address)
        await connection.room()
        return connection.call(method, self.call_metadata(), timeout_ms)

    def call_metadata(self) -> bytes:
        """Return the metadata of one call."""
        return self._metadata.of_call(self._clock.wall_ms())

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        name = RequestCode(command.code).name
        raise BrokerError(
            f"RocketMQ's proxy does not serve {name} over gRPC: give the addresses of name "
            "servers, or of the proxy's remoting port, for this",
            response_code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            address=address,
        )

    def writable_now(self, address: str) -> NoReturn:
        raise BrokerError(
            "RocketMQ's proxy serves no requests and replies over gRPC",
            response_code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            address=address,
        )


class ProxyRoutes(NameServerApi):
    """Routes by the method QueryRoute, from the endpoint that answered last."""

    no_answer = "no proxy answers"

    def __init__(
        self,
        connections: ProxyConnections,
        addresses: Sequence[str],
        config: RemotingConfig,
        clock: Clock,
        on_topic: Callable[[str], None],
    ) -> None:
        super().__init__(connections, addresses, config, clock)
        self._proxies = connections
        self._on_topic = on_topic
        self._endpoints = endpoints_of(addresses)
        self._has_answered = False

    async def topic_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, None if the proxy knows none.

        Raises: as of a name server; before its first answer of all only after 30 s.
        """
        if topic == AUTO_CREATE_TOPIC:
            return None  # proxies show nobody the template of new topics
        self._on_topic(topic)
        until_ms = self._clock.now_ms() + _COLD_PROXY_MS
        while True:
            try:
                route = await self._ask(partial(self._route_from, topic), topic)
            except (RouteError, BrokerError) as error:
                is_cold = not self._has_answered and (
                    isinstance(error, RouteError)
                    or error.response_code == ResponseCode.SYSTEM_ERROR
                )
                if not is_cold or self._clock.now_ms() + _COLD_PROXY_PAUSE_MS >= until_ms:
                    raise
            else:
                self._has_answered = True
                return route
            await self._clock.sleep_ms(_COLD_PROXY_PAUSE_MS)

    async def is_answering(self, address: str) -> None:
        await self._route_from(AUTO_CREATE_TOPIC, address)

    async def _route_from(self, topic: str, address: str) -> TopicRoute | None:
        request = QueryRouteRequest(topic=resource(self._config, topic), endpoints=self._endpoints)
        timeout_ms = self._config.request_timeout_ms
        answer = await self._proxies.ask(
            address, "QueryRoute", request, QueryRouteResponse, timeout_ms
        )
        if answer.status is not None and answer.status.code == Code.TOPIC_NOT_FOUND:
            return None
        check(answer.status, "the proxy gave no route", topic=topic, address=address)
        return self._route(answer, address)

    def _route(self, answer: QueryRouteResponse, asked: str) -> TopicRoute:
        brokers: dict[str, BrokerData] = {}
        counts: dict[str, list[int]] = {}
        for queue in answer.message_queues:
            broker = queue.broker
            if broker is None:
                continue
            told = broker.endpoints.addresses if broker.endpoints is not None else []
            texts = [join_address(each.host, each.port) for each in told]
            # A proxy that answers is better than the first of several.
            at = asked if asked in texts or not texts else self._address_map.translate(texts[0])
            brokers[broker.name] = BrokerData(broker.name, {broker.id: at})
            numbers = counts.setdefault(broker.name, [0, 0])
            if queue.permission in (Permission.READ, Permission.READ_WRITE):
                numbers[0] = max(numbers[0], queue.id + 1)
            if queue.permission in (Permission.WRITE, Permission.READ_WRITE):
                numbers[1] = max(numbers[1], queue.id + 1)
        queues = [
            QueueData(name, read, write, PERM_READ * bool(read) | PERM_WRITE * bool(write))
            for name, (read, write) in sorted(counts.items())
        ]
        return TopicRoute(tuple(brokers[name] for name in sorted(brokers)), tuple(queues))


class ProxyApi(BrokerApi):
    """Requests of one client to proxies; `address` is the proxy's."""

    def __init__(
        self,
        connections: ProxyConnections,
        config: RemotingConfig,
        client_id: str,
        addresses: Sequence[str],
        runtime: Runtime,
        clock: Clock,
        on_request: Callable[[str, Command], Answer],
    ) -> None:
        super().__init__(connections, config, client_id)
        self.proxies = connections
        self._runtime = runtime
        self._clock = clock
        self._on_request_of = on_request
        self._endpoints = endpoints_of(addresses)
        self._topics: set[str] = set()  # of a producer: what it has asked a route of
        self._streams: dict[str, _Telemetry] = {}
        self._left: set[str] = set()  # proxies that were told of the end
        self._transactions: dict[str, str] = {}  # the proxy's id, by the message's
        # Set by a member that pops: moves a message of its batch to the dead letters.
        self.forward: Callable[[MessageView, str, int], Awaitable[None]] | None = None
        self.needs_order = True  # likewise: of its group

    def add_topic(self, topic: str) -> None:
        """Note a topic that this client may send to."""
        self._topics.add(topic)

    # Registration.

    async def heartbeat(self, address: str, heartbeat: Heartbeat) -> int:
        problem = None if address in self._left else await self._beat(address, heartbeat)
        if problem is not None and address not in self._left:
            # A proxy drops the settings of a client that was silent for long, or of whose id
            # another one has left, and refuses all that it asks until it has told them again.
            self._streams[address].forget()
            problem = await self._beat(address, heartbeat)
        if problem is not None and address not in self._left:
            raise problem
        return PROTOCOL_VERSION

    async def _beat(self, address: str, heartbeat: Heartbeat) -> RemotingError | None:
        """Make a proxy know this client; return why it refused the heartbeat itself."""
        timeout_ms = self._config.request_timeout_ms
        told = await self._settled(address, self._settings_of(heartbeat))
        for member in heartbeat.consumers:
            if not self._is_as_needed(told):
                raise self.order_problem(member.group, address)
        groups = [
            HeartbeatRequest(
                group=self.resource(member.group), client_type=ClientType.PUSH_CONSUMER
            )
            for member in heartbeat.consumers
        ]
        for request in groups or [HeartbeatRequest(client_type=ClientType.PRODUCER)]:
            answer = await self.proxies.ask(
                address, "Heartbeat", request, StatusResponse, timeout_ms
            )
            problem = problem_of(answer.status, "the proxy refused the heartbeat", address=address)
            if problem is not None:
                return problem
        return None

    async def require_order(self, address: str) -> None:
        """Ask a proxy again whether the group of this client's member is ordered.

        Raises: BrokerError: not as the member needs it. ConnectionLost, RequestTimeout: no answer.
        """
        stream = self._streams.get(address)
        if stream is None or stream.is_over:
            why = "Telemetry: the stream has ended; the next heartbeat begins another one"
            raise ConnectionLost(why, address=address)
        told = await stream.settle_again(self._config.request_timeout_ms)
        if not self._is_as_needed(told):
            group = None if told.subscription is None else told.subscription.group
            raise self.order_problem("" if group is None else group.name, address)

    def _is_as_needed(self, told: Settings) -> bool:
        return (told.subscription is not None and bool(told.subscription.fifo)) == self.needs_order

    def order_problem(self, group: str, address: str) -> BrokerError:
        """Return the error of a member whose group is not ordered as it needs it."""
        return BrokerError(
            _WRONG_ORDER[self.needs_order].format(group=group),
            response_code=ResponseCode.NO_PERMISSION,
            group=group,
            address=address,
        )

    async def unregister(
        self, address: str, *, consumer_group: str | None = None, producer_group: str | None = None
    ) -> None:
        # A member's receives go on for a while, and its proxy would answer them with an error. It
        # calls `terminate` after the last one.
        if consumer_group is None:
            await self.terminate(address, None)

    async def terminate(self, address: str, group: str | None) -> None:
        """Tell a proxy that this client ends; one that does not know it is told nothing.

        Raises: RemotingError: it did not answer, or refused.
        """
        if address not in self._streams:
            return
        self._left.add(address)  # a heartbeat behind it would register this client again
        answer = await self.proxies.ask(
            address,
            "NotifyClientTermination",
            NotifyClientTerminationRequest(group=None if group is None else self.resource(group)),
            StatusResponse,
            self._config.request_timeout_ms,
        )
        check(answer.status, "the proxy refused the end of this client", address=address)

    def resource(self, name: str) -> Resource:
        """Return a topic or group as the proxy names it."""
        return resource(self._config, name)

    async def _settled(self, address: str, settings: Settings) -> Settings:
        """Make a proxy know these settings; return those that hold."""
        stream = self._streams.get(address)
        if stream is None or stream.is_over:
            call = await self.proxies.begin(address, "Telemetry", None)
            stream = _Telemetry(call, partial(self._commanded, address))
            self._streams[address] = stream
            stream.reading = self._runtime.spawn(stream.read(), f"telemetry {address}")
        return await stream.settle(settings, self._config.request_timeout_ms)

    def _settings_of(self, heartbeat: Heartbeat) -> Settings:
        settings = Settings(
            client_type=ClientType.PRODUCER,
            access_point=self._endpoints,
            user_agent=UserAgent(language=PYTHON, version=VERSION),
        )
        if heartbeat.consumers:
            settings.client_type = ClientType.PUSH_CONSUMER
            settings.subscription = self._subscription_of(heartbeat.consumers[0])
        else:
            topics = [self.resource(topic) for topic in sorted(self._topics)]
            settings.publishing = Publishing(topics=topics)
        return settings

    def _subscription_of(self, member: ConsumerData) -> Subscription:
        entries = [
            SubscriptionEntry(
                topic=self.resource(each.topic),
                expression=FilterExpression(
                    type=FilterType.SQL if each.is_sql else FilterType.TAG,
                    expression=each.expression,
                ),
            )
            for each in member.subscriptions
        ]
        # A proxy that cannot ask a broker, as while that restarts, believes the member. By itself
        # it takes every group for one without order, and hands its messages out so.
        return Subscription(
            group=self.resource(member.group), subscriptions=entries, fifo=self.needs_order
        )

    def _commanded(self, address: str, command: TelemetryCommand) -> None:
        recovery = command.recover_orphaned_transaction
        if recovery is None or recovery.message is None:
            return  # of stack traces and the like, which are refused by silence
        request, message_id = half_message_request(recovery)
        self._transactions[message_id] = recovery.transaction_id
        self._on_request_of(address, request)

    # Sends.

    async def send(
        self, address: str, header: SendHeader, body: bytes, timeout_ms: int
    ) -> tuple[int, SendReplyHeader]:
        request, is_keyed = send_request(self._config, header, body, self._clock.wall_ms())
        data = await self.proxies.ask_bytes(address, "SendMessage", request, timeout_ms)
        place = header.topic, header.queue_id if is_keyed else UNTOLD, len(body)
        return ResponseCode.SUCCESS, self.read_stored(data, address, *place)

    def begin_send(
        self,
        address: str,
        header: SendHeader,
        frames: object,
        body: bytes,
        timeout_ms: int,
        waiting: ResponseFuture | None,
    ) -> bool:
        # Calls begin on the I/O thread only.
        if not self._runtime.is_io_thread or (ready := self.proxies.ready_now(address)) is None:
            return False
        # Encoded now: the header is filled anew for the next request.
        request, is_keyed = send_request(self._config, header, body, self._clock.wall_ms())
        place = header.topic, header.queue_id if is_keyed else UNTOLD, len(body)
        sent = _Sent(self, address, place, waiting)
        ready.ask("SendMessage", request, self.proxies.call_metadata(), timeout_ms, sent)
        if waiting is not None:
            waiting.callers, waiting.is_asked = None, True
            waiting.code = RequestCode.SEND_MESSAGE_V2
        return True

    def stored(
        self, address: str, header: SendHeader, body_bytes: int, answer: Command
    ) -> tuple[int, SendReplyHeader]:
        assert isinstance(answer, _StoredAnswer)
        return answer.code, answer.reply_header

    def read_stored(
        self, data: bytes, address: str, topic: str, queue_id: int, body_bytes: int
    ) -> SendReplyHeader:
        """Return what a broker would answer to a send of `body_bytes` bytes.

        Args: queue_id: UNTOLD: the proxy has chosen the queue, and does not name it.
        Raises: BrokerError, ConnectFailed: nothing is stored. RequestTimeout: something may be.
        """
        stored = core.stored_by_proxy(data)
        if stored is None:
            said = SendMessageResponse.from_bytes(data)
            stored = self._told_by(said, address, topic, body_bytes)
        ids, offset, transaction_id, recall_handle = stored
        if transaction_id:
            self._transactions[ids] = transaction_id
        return SendReplyHeader(ids, queue_id, offset, recall_handle=recall_handle or None)

    def _told_by(
        self, said: SendMessageResponse, address: str, topic: str, body_bytes: int
    ) -> StoredByProxy:
        """Return the places of messages, or raise why one has none."""
        failure = "the proxy did not store the message"
        statuses = [said.status, *(entry.status for entry in said.entries)]
        for status in statuses:
            if status is None:
                continue
            # What its broker says of that, a proxy hands on as an internal error.
            if status.code == Code.MESSAGE_BODY_TOO_LARGE or is_about_size(
                status.message, body_bytes
            ):
                raise RequestTooLarge(
                    f"{failure}: {with_remedy(status.message, body_bytes)}",
                    response_code=ResponseCode.MESSAGE_ILLEGAL,
                    topic=topic,
                    address=address,
                )
        raise_if_unserved(statuses, failure, topic=topic, address=address)
        for status in statuses:
            check(status, failure, topic=topic, address=address)
        if not said.entries:
            raise RequestTimeout(f"{failure}: it named none", topic=topic, address=address)
        first = said.entries[0]
        ids = ",".join(entry.message_id for entry in said.entries)
        return ids, first.offset, first.transaction_id, first.recall_handle

    async def writable(self, address: str) -> None:
        await (await self.proxies.grpc(address)).ready()

    async def recall(self, address: str, header: RecallHeader, timeout_ms: int) -> str:
        request = RecallMessageRequest(
            topic=self.resource(header.topic), recall_handle=header.recall_handle
        )
        answer = await self.proxies.ask(
            address, "RecallMessage", request, RecallMessageResponse, timeout_ms
        )
        check(answer.status, "the proxy did not recall the message", topic=header.topic)
        return answer.message_id

    async def end_transaction(
        self,
        address: str,
        header: EndTransactionHeader,
        timeout_ms: int | None = None,
        remark: str | None = None,
    ) -> None:
        resolution = {
            TransactionFlag.COMMIT: Resolution.COMMIT,
            TransactionFlag.ROLLBACK: Resolution.ROLLBACK,
        }.get(TransactionFlag(header.commit_or_rollback))
        if resolution is None:
            return  # not known yet: the proxy asks again by itself
        source = (
            TransactionSource.SERVER_CHECK if header.is_from_check else TransactionSource.CLIENT
        )
        request = EndTransactionRequest(
            topic=self.resource(header.topic or ""),
            message_id=header.message_id,
            transaction_id=self._transactions.pop(header.message_id, ""),
            resolution=resolution,
            source=source,
        )
        # Awaited in any case: over HTTP/2 nothing is one-way.
        timeout_ms = timeout_ms or self._config.request_timeout_ms
        answer = await self.proxies.ask(
            address, "EndTransaction", request, StatusResponse, timeout_ms
        )
        check(answer.status, "the proxy did not end the transaction", group=header.producer_group)


class _StoredAnswer(Command):
    """The answer to a send that is stored, for `ProxyApi.stored`: its fields are read already."""

    def __init__(self, reply_header: SendReplyHeader) -> None:
        super().__init__(ResponseCode.SUCCESS, {}, b"")
        self.reply_header = reply_header


class _Sent:
    """A send that was asked for; tells its producer the answer."""

    __slots__ = ("_address", "_api", "_place", "_waiting")

    def __init__(
        self,
        api: ProxyApi,
        address: str,
        place: tuple[str, int, int],
        waiting: ResponseFuture | None,
    ) -> None:
        self._api = api
        self._address = address
        self._place = place
        self._waiting = waiting  # None: nobody wants to know

    def answered(self, data: bytes) -> None:
        self._api.proxies.has_answered(self._address)
        if self._waiting is None:
            return
        try:
            reply_header = self._api.read_stored(data, self._address, *self._place)
        except OrderMQError as error:
            self._waiting.failed(error)
        else:
            self._waiting.answered(_StoredAnswer(reply_header))

    def failed(self, error: RemotingError) -> None:
        if self._waiting is not None:
            self._waiting.failed(error)


class _Telemetry:
    """The stream by which a proxy and a client tell each other settings and commands."""

    def __init__(self, call: Call, on_command: Callable[[TelemetryCommand], None]) -> None:
        self._call = call
        self._on_command = on_command
        self._settings = Settings()
        self._sent: bytes = b""
        self._told: Settings | None = None
        self._waiting: list[asyncio.Future[Settings]] = []
        self.reading: asyncio.Task[None] | None = None  # held here: loops keep weak references

    @property
    def is_over(self) -> bool:
        return self._call.is_over

    async def settle(self, settings: Settings, timeout_ms: int) -> Settings:
        """Send settings that differ from the last; return those that the proxy answered.

        Raises: BrokerError: it refused them. RequestTimeout, ConnectionLost: no answer.
        """
        self._settings = settings
        data = TelemetryCommand(settings=settings).to_bytes()
        if data == self._sent and self._told is not None:
            return self._told
        told: asyncio.Future[Settings] = asyncio.get_running_loop().create_future()
        self._waiting.append(told)
        self._call.send(data)
        try:
            async with time_limit(timeout_ms / 1_000):
                self._told = await told
        except TimeoutError as error:
            if isinstance(error, RemotingError):
                raise
            raise RequestTimeout("Telemetry: no answer to the settings") from None
        self._sent = data
        return self._told

    async def settle_again(self, timeout_ms: int) -> Settings:
        """Send the last settings again; return and raise as `settle`."""
        self.forget()
        return await self.settle(self._settings, timeout_ms)

    def forget(self) -> None:
        """Have the next `settle` send the settings again."""
        self._sent = b""

    async def read(self) -> None:
        """Take what the proxy says, until the end of the stream."""
        problem: RemotingError = ConnectionLost("Telemetry: the proxy ended the stream")
        try:
            while (data := await self._call.receive()) is not None:
                self._take(TelemetryCommand.from_bytes(data))
        except RemotingError as error:
            problem = error
        finally:
            self._call.cancel()
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_exception(problem)

    def _take(self, command: TelemetryCommand) -> None:
        problem = problem_of(command.status, "the proxy refused the settings")
        if command.settings is None and problem is None:
            self._on_command(command)
            return
        for waiting in self._waiting:
            if waiting.done():
                continue
            if problem is not None:
                waiting.set_exception(problem)
            elif command.settings is not None:
                waiting.set_result(command.settings)
        self._waiting.clear()


def resource(config: RemotingConfig, name: str) -> Resource:
    """Return a topic or group as proxies name it."""
    return Resource(namespace=config.namespace_v2, name=name)


def endpoints_of(addresses: Sequence[str]) -> Endpoints:
    """Return addresses as proxies write them."""
    places = [split_address(address) for address in addresses]
    hosts = [host for host, _ in places]
    if all(":" in host for host in hosts):
        scheme = AddressScheme.IPV6
    elif all(host.replace(".", "").isdecimal() for host in hosts):
        scheme = AddressScheme.IPV4
    else:
        scheme = AddressScheme.DOMAIN_NAME
    return Endpoints(scheme=scheme, addresses=[Address(host=h, port=p) for h, p in places])
