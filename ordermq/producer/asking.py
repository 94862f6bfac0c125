"""What a producer does besides sending: it asks, and it replies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ordermq.client.session import ClientSession
from ordermq.closing import Starting
from ordermq.config import ProducerConfig
from ordermq.errors import StateError
from ordermq.model.message import Message, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import SendReceipt
from ordermq.producer.accumulator import Parcel
from ordermq.producer.entries import Entries
from ordermq.producer.pending_message import Entry
from ordermq.producer.queue_selector import Targets
from ordermq.producer.replies import Reply, send_reply
from ordermq.producer.request_reply import Request, Requests
from ordermq.producer.selectors import ShardingKey
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command

_MOVES = 2  # of an unordered message, as Java tries it again


class Asking(Starting):
    """Requests that wait for a reply, and replies; the producer says how messages are sent."""

    group: str
    client_id: str
    config: ProducerConfig
    _entries: Entries
    _requests: Requests | None = None

    def request(
        self,
        message: Message,
        timeout_ms: int = 3_000,
        *,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
    ) -> MessageView:
        """Send, and wait for what a consumer of the topic replies.

        Args:
            timeout_ms: for both together, 1 and more; it is told to consumers as TTL.
            sharding_key, queue: as of `send`.
        Returns: the reply, of the first consumer if several do.
        Raises:
            ReplyTimeout: none came in time; the request may yet be carried out.
            ConfigError: a property of the message is one of requests and replies.
            StateError: the producer was closed meanwhile. Else as `send`.
        """
        client = self._live()
        asked = self._request(message, timeout_ms, sharding_key, queue)
        assert self._requests is not None
        return client.runtime.call(self._requests.ask(asked))

    async def arequest(
        self,
        message: Message,
        timeout_ms: int = 3_000,
        *,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
    ) -> MessageView:
        """`request` for asyncio code, on any loop; keep the order by awaiting in order."""
        client = self._live()
        asked = self._request(message, timeout_ms, sharding_key, queue)
        assert self._requests is not None
        return await asyncio.wrap_future(client.runtime.submit(self._requests.ask(asked)))

    def reply(
        self,
        request: MessageView,
        body: bytes,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> SendReceipt:
        """Answer a request, from a listener or wherever else; returns when the asker has it.

        Args:
            request: the message that was consumed.
            body, tags, keys, properties: of the reply, as of `Message`.
        Raises:
            ConfigError: the message is no request, or the reply no message.
            BrokerError: the asker waits no more, or is not connected to the broker.
            RequestTimeout, ConnectionLost, ConnectFailed: a broker did not answer; whether
                the reply arrived is unknown.
        """
        client, reply = self._live(), self._reply(request, body, tags, keys, properties)
        return client.runtime.call(send_reply(client, self.group, reply, self.config.send))

    async def areply(
        self,
        request: MessageView,
        body: bytes,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> SendReceipt:
        """`reply` for asyncio code, on any loop."""
        client, reply = self._live(), self._reply(request, body, tags, keys, properties)
        sending = send_reply(client, self.group, reply, self.config.send)
        return await asyncio.wrap_future(client.runtime.submit(sending))

    # Of the producer.

    def _live(self) -> ClientSession:
        raise NotImplementedError

    def _hand_in(self, parcel: Parcel) -> None:
        raise NotImplementedError

    # On the caller's thread.

    def _begin_asking(self, client: ClientSession, targets: Targets) -> None:
        namespace = self.config.remoting.namespace
        self._requests = Requests(client, targets, self._hand_in_request, namespace)

    def _request(
        self,
        message: Message,
        timeout_ms: int,
        key: ShardingKey | None,
        queue: MessageQueue | None,
    ) -> Request:
        asked = Request(message, key, queue, timeout_ms, self.client_id)
        entry = asked.entry = self._entries.one(message, key, asked.on_sent, asked.marks)
        entry.is_alone = True  # brokers mark no message of a batch with what a reply needs
        if key is None and queue is None:
            self._let_move(entry)
        return asked

    def _let_move(self, entry: Entry) -> None:
        """A message that any queue will do for may go to another broker, if that is wanted."""
        if self.config.send.retry_another_broker:
            entry.moves_left = _MOVES

    def _reply(
        self,
        request: MessageView,
        body: bytes,
        tags: str | None,
        keys: Sequence[str],
        properties: Mapping[str, str] | None,
    ) -> Reply:
        reply = Reply(request, body, tags, keys, properties or {})
        reply.entry = self._entries.one(reply.message, None, reply.on_sent, reply.marks)
        return reply

    # On the I/O thread.

    def _hand_in_request(self, asked: Request, target: MessageQueue) -> None:
        assert asked.entry is not None
        self._hand_in(Parcel(asked.message, asked.key, target, [asked.entry]))

    def _on_request(self, address: str, request: Command) -> Command | None:
        if request.code != RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT or self._requests is None:
            return None
        return self._requests.take(address, request)

    def _stop_asking(self) -> None:
        if self._requests is not None:
            self._requests.close(
                StateError(
                    "the producer was closed while it waited for a reply; the request may yet be "
                    "carried out",
                    group=self.group,
                )
            )
