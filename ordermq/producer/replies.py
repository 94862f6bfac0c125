"""A reply on its way to who asked, by way of a broker both know."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from ordermq.client.session import ClientSession
from ordermq.config import SendConfig
from ordermq.errors import ConfigError, OrderMQError, RemotingError, RouteError
from ordermq.model import properties as props
from ordermq.model.message import Message, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import reply_topic
from ordermq.model.status import SendReceipt, SendStatus
from ordermq.producer.packing import packed
from ordermq.producer.pending_message import Entry
from ordermq.producer.request_reply import require_unmarked
from ordermq.remoting.headers import SendHeader

_log = logging.getLogger("ordermq.producer")


class Reply:
    """What answers a request; made by the thread that replies.

    Raises: ConfigError: the message is no request, or this no message.
    """

    def __init__(
        self,
        request: MessageView,
        body: bytes,
        tags: str | None,
        keys: Sequence[str],
        properties: Mapping[str, str],
    ) -> None:
        correlation_id = request.get_property(props.CORRELATION_ID)
        asker = request.get_property(props.REPLY_TO_CLIENT)
        if not correlation_id or not asker:
            raise ConfigError(
                f"message {request.message_id} is no request: whoever sent it waits for no reply",
                topic=request.topic,
                broker=request.message_queue.broker_name,
                queue_id=request.message_queue.queue_id,
                offset=request.queue_offset,
            )
        cluster = request.get_property(props.CLUSTER)
        if not cluster:
            raise ConfigError(
                f"request {correlation_id} does not tell its cluster, as brokers note it in each: "
                "was it sent in a batch, or copied to another topic?",
                topic=request.topic,
                broker=request.message_queue.broker_name,
            )
        self.request = request
        self.asker = asker
        self.message = Message(reply_topic(cluster), body, tags, keys, properties)
        require_unmarked(self.message)
        self.marks = {
            props.MESSAGE_TYPE: "reply",
            props.CORRELATION_ID: correlation_id,
            props.REPLY_TO_CLIENT: asker,
            props.TTL: request.get_property(props.TTL) or "",
        }
        self.entry: Entry | None = None

    def on_sent(self, entry: Entry) -> None:
        """Whoever replies waits for `send_reply`, which tells the outcome."""


async def send_reply(
    client: ClientSession, group: str, reply: Reply, config: SendConfig
) -> SendReceipt:
    """Have a broker push it, and wait until the asker has it; on the I/O thread.

    The request's broker first, for the asker sent by it; then the others of the topic, which
    have heard of the asker too. A reply that comes twice is dropped there.

    Raises: what the first broker answered, if none could push it.
    """
    entry = reply.entry
    assert entry is not None
    try:
        receipt = await _pushed(client, group, reply, entry, config)
    except OrderMQError as error:
        entry.finish(None, error)
        raise
    entry.finish((receipt,), None)
    return receipt


async def _pushed(
    client: ClientSession, group: str, reply: Reply, entry: Entry, config: SendConfig
) -> SendReceipt:
    body, sys_flag = await packed(entry.bodies[0], config)
    first: RemotingError | RouteError | None = None
    for broker in await _brokers(client, reply.request):
        header = SendHeader(
            producer_group=group,
            topic=reply.message.topic,
            queue_id=0,
            sys_flag=sys_flag,
            born_timestamp_ms=client.clock.wall_ms(),
            properties=entry.properties[0],
            broker_name=broker,
        )
        try:
            address = client.routes.master_of(broker)
            answer = await client.api.send_reply(address, header, body, config.send_timeout_ms)
        except (RemotingError, RouteError) as error:
            _log.warning("a reply to %s was not pushed: %s", reply.asker, error)
            first = first or error
            continue
        queue = MessageQueue(reply.message.topic, broker, answer.queue_id)
        return SendReceipt(
            queue, answer.queue_offset, entry.unique_ids[0], answer.message_id, SendStatus.SEND_OK
        )
    assert first is not None
    raise first


async def _brokers(client: ClientSession, request: MessageView) -> list[str]:
    own = request.message_queue.broker_name
    route = await client.routes.get(request.topic)
    others = {broker.broker_name for broker in route.brokers if broker.master} if route else set()
    return [own, *sorted(others - {own})]
