"""Requests that wait for a consumer's reply, and the replies.

A reply goes through no queue: the broker pushes it to the requester, over the connection of its
last heartbeat. So a requester registers with every broker that a reply may come through.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ordermq import core
from ordermq.client.session import ClientSession
from ordermq.config import SendConfig
from ordermq.config.checks import split_address
from ordermq.errors import (
    ConfigError,
    ConnectFailed,
    OrderMQError,
    ProtocolError,
    RemotingError,
    ReplyTimeout,
    RouteError,
    StateError,
)
from ordermq.model import properties as props
from ordermq.model.log_fields import log_fields
from ordermq.model.message import Message, MessageBatch, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import reply_topic
from ordermq.producer.pending_message import PendingMessage
from ordermq.producer.queue_selector import QueueRouting
from ordermq.producer.retry_policy import AfterFailure
from ordermq.producer.send_protocol import SendProtocol
from ordermq.remoting.bodies import TopicRoute
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import SendReplyHeader
from ordermq.remoting.response_futures import ResponseFuture
from ordermq.remoting.time_limit import sleep_and_read

if TYPE_CHECKING:
    from ordermq.producer.trace_sends import TraceSends
    from ordermq.remoting.rare_headers import PushReplyHeader

_log = logging.getLogger("ordermq.producer")
_REGISTRATION_S = 0.5  # longer than a live broker takes, shorter than a caller notices
_RESERVED = (
    props.CORRELATION_ID,
    props.REPLY_TO_CLIENT,
    props.TTL,
    props.MESSAGE_TYPE,
    props.CLUSTER,
)
_NO_HOST = bytes(8)


class BrokerRegistration:
    """The requirement that a broker knows this client, and can therefore send it requests."""

    def __init__(self, client: ClientSession) -> None:
        self._heartbeats = client.heartbeats

    def is_met(self, address: str) -> bool:
        return self._heartbeats.is_registered(address)

    async def meet(self, address: str) -> None:
        """Register with a broker.

        Raises: ConnectFailed: it did not accept. Never a time-out: the message itself was not
            sent, so its outcome is not unknown.
        """
        if not await self._heartbeats.register_with(address):
            raise ConnectFailed(
                "the broker accepted no heartbeat, which must precede this message", address=address
            )


class Request:
    """A message waiting for its reply; it is the `Requirement` of its pending message.

    Raises: ConfigError: the time-out, or a property that requests use.
    """

    def __init__(
        self, requests: Requests, message: Message, timeout_ms: int, client_id: str
    ) -> None:
        if not 1 <= timeout_ms <= 1 << 31:
            raise ConfigError(f"timeout_ms={timeout_ms}: expected 1..{1 << 31}")
        _require_unreserved(message)
        self._requests = requests
        self._message = message
        self.timeout_ms = timeout_ms
        self.correlation_id = str(uuid.uuid4())
        self.properties = {
            props.CORRELATION_ID: self.correlation_id,
            props.REPLY_TO_CLIENT: client_id,  # the broker pushes the reply to this client
            props.TTL: str(timeout_ms),
        }
        self.pending: PendingMessage | None = None
        self.reply = requests.new_future()
        self._is_sent = False  # or is being sent at this moment
        self._is_withdrawn = False  # its caller waits no more

    def on_done(self, pending: PendingMessage) -> None:
        """End a request that was not stored; one that was keeps waiting for its reply."""
        if pending.error is not None:
            self._requests.fail(self, pending.error)

    def fail(self, error: BaseException) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)

    # Requirement

    def is_met(self, address: str) -> bool:
        if not self._requests.is_reachable(self._message.topic, address):
            return False
        # The other order than in `withdraw`: at least one of two threads sees the other.
        self._is_sent = True
        if self._is_withdrawn:
            raise StateError("the request ended before it was sent", topic=self._message.topic)
        return True

    async def meet(self, address: str) -> None:
        await self._requests.become_reachable(self._message.topic, address)

    def withdraw(self, error: BaseException) -> None:
        """Let a message that was not sent yet never be sent; hooks get `error`."""
        self._is_withdrawn = True
        if not self._is_sent and self.pending is not None:
            self.pending.finish(None, error)

    def timed_out(self) -> ReplyTimeout:
        topic = self._message.topic
        if not self._is_sent:
            return ReplyTimeout(
                f"the request {self.correlation_id} was not sent within {self.timeout_ms} ms: the "
                "name server or the brokers did not answer in that time. Raise timeout_ms; the "
                "first request of a topic also registers with its brokers in that time",
                topic=topic,
            )
        if self.pending is None or not self.pending.receipts:
            return ReplyTimeout(
                f"no broker acknowledged the request {self.correlation_id} within "
                f"{self.timeout_ms} ms, and no reply came: it may yet arrive and be carried out. "
                "Raise timeout_ms above send_timeout_ms, or check why the broker is slow",
                topic=topic,
            )
        receipt = self.pending.receipt()
        return ReplyTimeout(
            f"no reply to the request {self.correlation_id} within {self.timeout_ms} ms; the "
            "broker has it, so it may yet be carried out. Check that a consumer of the topic "
            "runs and calls `reply` in time, or raise timeout_ms",
            topic=topic,
            broker=receipt.message_queue.broker_name,
            queue_id=receipt.message_queue.queue_id,
            offset=receipt.queue_offset,
        )


def _require_unreserved(message: Message) -> None:
    reserved = [name for name in _RESERVED if name in message.properties]
    if reserved:
        raise ConfigError(
            f"property {reserved[0]!r} is reserved for requests and replies: leave it out here",
            topic=message.topic,
        )


class Requests:
    """The requests of one producer that wait for replies; on the I/O thread, except `add`."""

    def __init__(
        self,
        client: ClientSession,
        routing: QueueRouting,
        registration: BrokerRegistration,
        namespace: str,
    ) -> None:
        self._client = client
        self._routing = routing
        self._registration = registration
        self._namespace = namespace  # of the client; the topics of replies leave it out
        self._waiting: dict[str, Request] = {}  # by correlation id
        # Topics whose brokers know this client, as of this route; None for a topic that its
        # first request is to create.
        self._reachable: dict[str, TopicRoute | None] = {}

    def new_future(self) -> asyncio.Future[MessageView]:
        return self._client.runtime.loop.create_future()

    def add(self, request: Request) -> None:
        """Accept replies to `request`; before it is sent, from any thread."""
        self._waiting[request.correlation_id] = request

    def fail(self, request: Request, error: BaseException) -> None:
        """End a request; from any thread, because its queue may be chosen on the caller's."""
        self._client.runtime.post(request.fail, error)

    async def reply_to(self, request: Request) -> MessageView:
        """Wait for the reply to a request that was handed in.

        Raises: ReplyTimeout: none came in time. The error of the send, if that failed.
        """
        loop, clock = self._client.runtime.loop, self._client.clock
        timer = loop.create_task(sleep_and_read(clock, request.timeout_ms))
        try:
            await asyncio.wait((request.reply, timer), return_when=asyncio.FIRST_COMPLETED)
            if not request.reply.done():
                raise request.timed_out()
            return request.reply.result()
        except BaseException as error:
            self.give_up(request, error)
            raise
        finally:
            self._waiting.pop(request.correlation_id, None)
            timer.cancel()

    def give_up(self, request: Request, error: BaseException) -> None:
        """Wait no longer for a request; it is not sent any more if it was not yet."""
        self._waiting.pop(request.correlation_id, None)
        request.reply.cancel()  # a later error of the send has nobody to raise it to
        request.withdraw(error)

    def close(self, error: BaseException) -> None:
        """Fail all requests that wait."""
        for request in list(self._waiting.values()):
            request.fail(error)

    def take_reply(self, address: str, command: Command) -> Command:
        """Hand a reply that a broker pushed to its request; return the answer for the broker."""
        from ordermq.remoting.rare_headers import PushReplyHeader  # of few: most get no replies

        try:
            header = PushReplyHeader.from_ext(command.ext)
            found = props.decode(header.properties or "")
            view = self._view(header, command.body)
        except ProtocolError as error:
            _log.warning(
                "%s: reply dropped, it cannot be decoded: %s",
                address,
                error,
                extra=log_fields(broker=address, member=self._client.client_id),
            )
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        # The broker does not tell whose reply it is; the id among its properties does.
        correlation_id = found.get(props.CORRELATION_ID, "")
        request = self._waiting.get(correlation_id)
        if request is None or request.reply.done():
            _log.warning(
                "%s: a reply from %s came too late, or twice: nobody waits for request %s",
                address, header.born_host, correlation_id,
                extra=log_fields(broker=address, member=self._client.client_id),
            )  # fmt: skip
        else:
            request.reply.set_result(view)
        return command.reply(ResponseCode.SUCCESS)

    def is_reachable(self, topic: str, address: str) -> bool:
        """Return True if consumers of a topic can reply, also by the broker at `address`."""
        return self._is_registered_with_all(topic) and self._registration.is_met(address)

    async def become_reachable(self, topic: str, address: str) -> None:
        """Register with every broker a reply may come through: the replier chooses one.

        Raises: BrokerError, ConnectFailed: the broker at `address` did not accept.
        """
        if not self._is_registered_with_all(topic):
            await self._register_with_all(topic)
        await self._registration.meet(address)

    def _is_registered_with_all(self, topic: str) -> bool:
        known = self._client.routes.known(topic)
        return topic in self._reachable and self._reachable[topic] is known

    async def _register_with_all(self, topic: str) -> None:
        routes = self._client.routes
        route = routes.known(topic)
        for cluster in sorted({broker.cluster for broker in route.brokers} if route else ()):
            await self._routing.learn(routes, reply_topic(cluster))
        registering = [
            asyncio.ensure_future(self._client.heartbeats.register_with(address))
            for address in routes.masters()
        ]
        # One that is away must not take the time that the others need to reply.
        await asyncio.wait(registering, timeout=_REGISTRATION_S)
        self._reachable[topic] = route

    def _view(self, header: PushReplyHeader, body: bytes) -> MessageView:
        # A reply is encoded as a stored record, so that it reads like any other message.
        plain = MessageQueue(header.topic, header.broker_name or "", header.queue_id)
        try:
            writer = core.RecordWriter(
                header.topic, header.queue_id, _host(header.born_host), _host(header.store_host)
            )
            block = writer.write(
                body,
                (header.properties or "").encode(),
                flag=header.flag,
                sys_flag=header.sys_flag,
                born_ms=header.born_timestamp_ms,
                stored_ms=header.store_timestamp_ms,
                reconsume_times=header.reconsume_times,
            )
        except (OverflowError, ValueError) as error:
            raise ProtocolError(f"no message can be made of a reply: {error}") from None
        ((_, _, record),) = block.rows(0, 0)
        batch = MessageBatch(plain, bytes(record), namespace=self._namespace)
        return batch.sole_message()


def _host(text: str | None) -> bytes:
    from ordermq.model.stored_message import host_bytes  # here: few producers get replies

    # Java writes hosts as `/1.2.3.4:5` or `name/1.2.3.4:5`.
    try:
        return host_bytes(*split_address((text or "").rpartition("/")[2]))
    except (ConfigError, ValueError):  # a name, or nothing: the host is informational
        return _NO_HOST


def reply_message(
    request: MessageView,
    body: bytes,
    tags: str | None,
    keys: Sequence[str],
    properties: Mapping[str, str] | None,
) -> tuple[Message, dict[str, str]]:
    """Return the reply to a request, and the properties that tell the broker where it goes.

    Raises: ConfigError: `request` is no request, or the reply no valid message.
    """
    correlation_id = request.get_property(props.CORRELATION_ID)
    requester = request.get_property(props.REPLY_TO_CLIENT)
    if not correlation_id or not requester:
        raise ConfigError(
            f"message {request.message_id} is no request: its sender waits for no reply",
            topic=request.topic,
            broker=request.message_queue.broker_name,
            queue_id=request.message_queue.queue_id,
            offset=request.queue_offset,
        )
    cluster = request.get_property(props.CLUSTER)
    if not cluster:
        raise ConfigError(
            f"request {correlation_id} does not name its cluster, which brokers add to each: "
            "was it sent in a batch, or copied to another topic?",
            topic=request.topic,
            broker=request.message_queue.broker_name,
        )
    message = Message(reply_topic(cluster), body, tags, keys, properties or {})
    _require_unreserved(message)
    return message, {
        props.MESSAGE_TYPE: "reply",
        props.CORRELATION_ID: correlation_id,
        props.REPLY_TO_CLIENT: requester,
        props.TTL: request.get_property(props.TTL) or "",
    }


class ReplyProtocol(SendProtocol):
    """Requests that have a broker push one reply to its requester.

    The broker of the request is tried first, because the requester sent by it; then the other
    brokers of the topic, which all know the requester. The requester drops a second copy.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        request: MessageView,
        topic: str,
        config: SendConfig,
        traces: TraceSends | None,
    ) -> None:
        queue = MessageQueue(topic, request.message_queue.broker_name, 0)
        super().__init__(client, group, queue, config, traces=traces)
        self._request_topic = request.topic
        self._tried = [self.queue.broker_name]  # each broker once
        self._first_error: OrderMQError | None = None

    def _write(self, address: str, body: bytes, answer: ResponseFuture | None) -> bool:
        assert answer is not None
        timeout_ms = self._config.send_timeout_ms
        return self._client.api.begin_reply(address, self._header, body, timeout_ms, answer)

    def _read(self, body_bytes: int, answer: Command) -> tuple[int, SendReplyHeader]:
        return ResponseCode.SUCCESS, self._client.api.pushed(self._address, answer)

    def after_failure(
        self, error: OrderMQError, attempts: int, outcome_unknown: bool
    ) -> tuple[AfterFailure, OrderMQError]:
        """Try the topic's next broker; if none is left, report what the first one answered."""
        # The first broker's error is the useful one: the others may never have seen the requester.
        self._first_error = self._first_error or error
        route = self._client.routes.known(self._request_topic)
        brokers = {b.broker_name for b in route.brokers if b.master} if route else set[str]()
        left = sorted(brokers - set(self._tried))
        if not left or not isinstance(error, RemotingError | RouteError):
            return AfterFailure.REFUSED, self._first_error
        self._tried.append(left[0])
        self.queue = self.queue._replace(broker_name=left[0])
        self._header.broker_name = left[0]
        return AfterFailure.SEND_AGAIN, error
