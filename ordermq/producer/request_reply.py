"""Requests under way, and the replies that brokers push to us."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable

from ordermq import core
from ordermq.client.session import ClientSession
from ordermq.errors import ConfigError, ProtocolError, ReplyTimeout
from ordermq.model import properties as props
from ordermq.model.message import Message, MessageBatch, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import reply_topic
from ordermq.model.stored_message import host_bytes
from ordermq.producer.pending_message import Entry
from ordermq.producer.queue_selector import Targets
from ordermq.producer.selectors import ShardingKey
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.connection import split_address
from ordermq.remoting.headers import PushReplyHeader

_log = logging.getLogger("ordermq.producer")
_INTRODUCTION_S = 0.5  # longer than a live broker takes, and less than a caller notices
_MARKS = (props.CORRELATION_ID, props.REPLY_TO_CLIENT, props.TTL, props.MESSAGE_TYPE, props.CLUSTER)
_NO_HOST = bytes(8)


class Request:
    """A message that wants a reply; made by the thread that asks.

    Args:
        client_id: ours, which the reply goes to.
    """

    def __init__(
        self,
        message: Message,
        key: ShardingKey | None,
        queue: MessageQueue | None,
        timeout_ms: int,
        client_id: str,
    ) -> None:
        if not 1 <= timeout_ms <= 1 << 31:
            raise ConfigError(f"timeout_ms={timeout_ms}: expected 1..{1 << 31}")
        require_unmarked(message)
        self.message = message
        self.key = key
        self.queue = queue
        self.timeout_ms = timeout_ms
        self.correlation_id = str(uuid.uuid4())
        self.marks = {
            props.CORRELATION_ID: self.correlation_id,
            props.REPLY_TO_CLIENT: client_id,
            props.TTL: str(timeout_ms),
        }
        self.entry: Entry | None = None
        self.is_handed_in = False
        self.answer: asyncio.Future[MessageView] | None = None

    def on_sent(self, entry: Entry) -> None:
        """On the I/O thread: what was not stored gets no reply."""
        if entry.error is not None:
            self.fail(entry.error)

    def fail(self, error: BaseException) -> None:
        assert self.answer is not None
        if not self.answer.done():
            self.answer.set_exception(error)

    def not_sent(self, error: BaseException) -> None:
        """It ended before it was handed in; hooks hear of that, too."""
        assert self.entry is not None
        if not self.is_handed_in and not self.entry.is_done:
            self.entry.finish(None, error)

    def timed_out(self) -> ReplyTimeout:
        if not self.is_handed_in:
            return ReplyTimeout(
                f"the request {self.correlation_id} was not sent within {self.timeout_ms} ms: the "
                "name server or the brokers did not answer in that time. Raise timeout_ms; that "
                "of a topic's first request holds the introductions to its brokers, too",
                topic=self.message.topic,
            )
        if self.entry is None or self.entry.receipts is None:
            return ReplyTimeout(
                f"no broker acknowledged the request {self.correlation_id} within "
                f"{self.timeout_ms} ms, and no reply came: it may yet arrive and be carried out. "
                "Raise timeout_ms above send_timeout_ms, or look why the broker is slow",
                topic=self.message.topic,
            )
        receipt = self.entry.outcome()
        return ReplyTimeout(
            f"no reply to the request {self.correlation_id} within {self.timeout_ms} ms; the "
            "broker has it, so it may yet be carried out. Does a consumer of the topic run that "
            "calls `reply`, and is it that quick? Else raise timeout_ms",
            topic=self.message.topic,
            broker=receipt.message_queue.broker_name,
            queue_id=receipt.message_queue.queue_id,
            offset=receipt.queue_offset,
        )


def require_unmarked(message: Message) -> None:
    """Refuse a message whose properties would be mistaken for those of a request or reply.

    Raises: ConfigError: it has one of them.
    """
    marked = [name for name in _MARKS if name in message.properties]
    if marked:
        raise ConfigError(
            f"property {marked[0]!r} tells requests and replies: leave it out here",
            topic=message.topic,
        )


class Requests:
    """Those of one producer; on the I/O thread.

    Args:
        hand_in: sends a request to a queue; its `on_sent` tells what became of it.
        namespace: of the client, which topics of replies leave out; empty for none.
    """

    def __init__(
        self,
        client: ClientSession,
        targets: Targets,
        hand_in: Callable[[Request, MessageQueue], None],
        namespace: str,
    ) -> None:
        self._client = client
        self._targets = targets
        self._hand_in = hand_in
        self._namespace = namespace
        self._waiting: dict[str, Request] = {}
        self._prepared: set[str] = set()  # topics whose brokers have heard of us

    async def ask(self, request: Request) -> MessageView:
        """Send, and wait for the reply.

        Raises: ReplyTimeout: there was none in time. What the send failed with.
        """
        runtime, clock = self._client.runtime, self._client.clock
        answer = request.answer = runtime.loop.create_future()
        self._waiting[request.correlation_id] = request
        timer = runtime.loop.create_task(clock.sleep_ms(request.timeout_ms))
        sending = runtime.loop.create_task(self._send(request))
        try:
            await asyncio.wait((answer, timer), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise request.timed_out()
            reply: MessageView = answer.result()
            return reply
        except BaseException as error:
            sending.cancel()
            answer.cancel()  # what fails from here on has nobody to tell
            request.not_sent(error)
            raise
        finally:
            del self._waiting[request.correlation_id]
            timer.cancel()

    def close(self, error: BaseException) -> None:
        """Wait no longer."""
        for request in self._waiting.values():
            request.fail(error)

    def take(self, address: str, command: Command) -> Command:
        """Take a reply from a broker; what to answer."""
        try:
            header = PushReplyHeader.from_ext(command.ext)
            found = props.decode(header.properties or "")
            view = self._view(header, command.body)
        except ProtocolError as error:
            _log.warning("%s: a reply cannot be read: %s", address, error)
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        correlation_id = found.get(props.CORRELATION_ID, "")
        request = self._waiting.get(correlation_id)
        if request is None or request.answer is None or request.answer.done():
            _log.warning(
                "%s: a reply from %s came too late, or twice: nobody waits for request %s",
                address, header.born_host, correlation_id,
            )  # fmt: skip
        else:
            request.answer.set_result(view)
        return command.reply(ResponseCode.SUCCESS)

    async def _send(self, request: Request) -> None:
        topic, routes = request.message.topic, self._client.routes
        try:
            await self._targets.learn(routes, topic)
            target = self._targets.choose(routes, request.message, request.key, request.queue)
            if topic not in self._prepared:
                await self._prepare(topic)
            await self._client.heartbeats.register_with(routes.master_of(target.broker_name))
            request.is_handed_in = True
            self._hand_in(request, target)
        except Exception as error:  # noqa: BLE001 - raised where the reply is waited for
            request.fail(error)

    async def _prepare(self, topic: str) -> None:
        """Tell every broker of us that a reply may come by: consumers choose one of them."""
        routes = self._client.routes
        route = routes.known(topic)
        for cluster in sorted({broker.cluster for broker in route.brokers} if route else ()):
            await self._targets.learn(routes, reply_topic(cluster))
        telling = [
            asyncio.ensure_future(self._client.heartbeats.register_with(address))
            for address in routes.masters()
        ]
        # One that is away must not take the time that the others are asked in.
        await asyncio.wait(telling, timeout=_INTRODUCTION_S)
        if route is not None:
            self._prepared.add(topic)

    def _view(self, header: PushReplyHeader, body: bytes) -> MessageView:
        """A reply as a message like any other.

        Raises: ProtocolError: a number or its properties would fit in none.
        """
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
        return batch[0]


def _host(text: str | None) -> bytes:
    """The bytes of a host as Java writes them, `/1.2.3.4:5` or `name/1.2.3.4:5`."""
    try:
        return host_bytes(*split_address((text or "").rpartition("/")[2]))
    except (ConfigError, ValueError):  # a name, or nothing: who replied is only told
        return _NO_HOST
