"""Messages of the proxy from sends and to stored records (docs/internals/protocol.md#grpc).

Everything above the wire of this client knows stored records. A message of the proxy becomes one,
so that views, filters, receivers and traces are those of messages from brokers.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from ordermq import core
from ordermq.config import RemotingConfig
from ordermq.core.compression import COMPRESSED, ZLIB
from ordermq.core.contract import RecordWriter
from ordermq.errors import BrokerError, ConnectFailed, ProtocolError, RequestTimeout
from ordermq.grpc.messages import (
    BodyEncoding,
    Code,
    Duration,
    Message,
    MessageType,
    ReceiveMessageResponse,
    RecoverOrphanedTransaction,
    Resource,
    SendMessageRequest,
    Status,
    SystemProperties,
    Timestamp,
)
from ordermq.model import properties as props
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import SendHeader
from ordermq.remoting.rare_headers import CheckTransactionHeader

_COMPRESSOR_BITS = COMPRESSED | 0x700
_TRACE_CONTEXT = "TRACE_CONTEXT"
_NO_HOST = bytes(8)
_UNKNOWN_TYPE = "expected type is UNSPECIFIED"  # of a topic: no broker has told the proxy
# The proxy hides what a broker answered behind these; the broker may have stored the message.
_UNCLEAR = (50000, 50001, Code.REQUEST_TIMEOUT, Code.PROXY_TIMEOUT)


def send_request(
    config: RemotingConfig, header: SendHeader, body: bytes, wall_ms: int
) -> tuple[bytes, bool]:
    """Return the request that sends what a request to a broker would, and whether the proxy puts
    its message into the queue of a message group.

    Raises: BrokerError: the proxy has no way to say it.
    """
    parts = _parts(header.topic, body) if header.batch else [(header.flag, body, header.properties)]
    topic = _resource_of(config.namespace_v2, header.topic)
    messages = []
    key: str | None = None
    for flag, part, text in parts:
        if flag:
            raise _cannot("a message's `flag`: put it into a property", header)
        properties = props.decode(text)
        key = properties.get(props.SHARDING_KEY)
        messages.append(
            Message.encoded(
                topic=topic,
                user_properties=props.of_the_user(properties),
                system_properties=_system_properties(properties, key, header, wall_ms),
                body=part,
            )
        )
    is_keyed = key is not None and len(messages) == 1
    return SendMessageRequest.encoded(messages=messages), is_keyed


@lru_cache(maxsize=1024)
def _resource_of(namespace: str, topic: str) -> bytes:
    return Resource.encoded(namespace=namespace, name=topic)


def _system_properties(
    properties: dict[str, str], key: str | None, header: SendHeader, wall_ms: int
) -> bytes:
    if header.sys_flag & COMPRESSED and header.sys_flag & _COMPRESSOR_BITS not in (
        COMPRESSED,
        ZLIB,
    ):
        raise _cannot("other compressors than zlib: give compress_type='zlib'", header)
    deliver_ms = _deliver_ms(properties, header, wall_ms)
    immunity_s = properties.get(props.CHECK_IMMUNITY_S)
    return SystemProperties.encoded(
        tag=properties.get(props.TAGS),
        keys=props.split_keys(properties.get(props.KEYS, "")),
        message_id=properties.get(props.UNIQ_KEY, ""),
        body_encoding=(
            BodyEncoding.GZIP if header.sys_flag & COMPRESSED else BodyEncoding.IDENTITY
        ),
        message_type=_type_of(properties, key, deliver_ms),
        born_timestamp=_timestamp(header.born_timestamp_ms or wall_ms),
        message_group=key,
        delivery_timestamp=None if deliver_ms is None else _timestamp(deliver_ms),
        trace_context=properties.get(_TRACE_CONTEXT),
        orphaned_transaction_recovery=(
            None if immunity_s is None else Duration(seconds=int(immunity_s))
        ),
    )


def _timestamp(ms: int) -> bytes:
    return Timestamp.encoded(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


def _type_of(properties: dict[str, str], key: str | None, deliver_ms: int | None) -> MessageType:
    if props.TRANSACTION_PREPARED in properties:
        return MessageType.TRANSACTION
    if deliver_ms is not None:
        return MessageType.DELAY
    return MessageType.NORMAL if key is None else MessageType.FIFO


def _deliver_ms(properties: dict[str, str], header: SendHeader, wall_ms: int) -> int | None:
    if props.DELAY in properties:
        raise _cannot("`delay_level`: give `delay_ms` or `deliver_at_ms`", header)
    if (text := properties.get(props.TIMER_DELIVER_MS)) is not None:
        return int(text)
    if (text := properties.get(props.TIMER_DELAY_MS)) is not None:
        return wall_ms + int(text)
    if (text := properties.get(props.TIMER_DELAY_S)) is not None:
        return wall_ms + int(text) * 1_000
    return None


def _parts(topic: str, body: bytes) -> list[tuple[int, bytes, str]]:
    """Return flag, body and properties of each message of a batch body."""
    block = _writer_of(topic, 0).write_batch(body, sys_flag=0, born_ms=0, stored_ms=0)
    messages = [StoredMessage.read(bytes(record)) for _, _, record in block.rows(0, 0)]
    return [(each.flag, each.body, each.properties.decode()) for each in messages]


def _cannot(what: str, header: SendHeader) -> BrokerError:
    return BrokerError(
        f"RocketMQ's proxy does not take {what}",
        response_code=ResponseCode.MESSAGE_ILLEGAL,
        topic=header.topic,
    )


def raise_if_unserved(
    statuses: Iterable[Status | None], failure: str, *, topic: str, address: str
) -> None:
    """Raise what a producer repeats: no broker has answered the proxy for these messages.

    Raises:
        RequestTimeout: the proxy cannot tell whether they are stored.
        ConnectFailed: they are not. Nobody is registered for the topic at this moment; with an
            address of a broker that is away, this client could not have connected to it.
    """
    for status in statuses:
        if status is not None and (
            status.code == Code.TOPIC_NOT_FOUND
            or (status.code == Code.MESSAGE_TYPE_CONFLICT and _UNKNOWN_TYPE in status.message)
        ):
            raise ConnectFailed(
                f"{failure}: its brokers are away, or the topic was deleted (status "
                f"{status.code}: {status.message})",
                topic=topic,
                address=address,
            )
        if status is not None and status.code in _UNCLEAR:
            raise RequestTimeout(
                f"{failure}: {status.message} (status {status.code}); its outcome is unknown",
                topic=topic,
                address=address,
            )


@lru_cache(maxsize=1024)
def _writer_of(topic: str, queue_id: int) -> RecordWriter:
    return core.RecordWriter(topic, queue_id, _NO_HOST, _NO_HOST)


def half_message_request(recovery: RecoverOrphanedTransaction) -> tuple[Command, str]:
    """Return a broker's question about a half message, and the id of that message.

    Raises: ProtocolError: the proxy's question holds none.
    """
    message = recovery.message
    if message is None or message.topic is None or message.system_properties is None:
        raise ProtocolError("the proxy asked about no message")
    system, topic = message.system_properties, message.topic.name
    if system.queue_offset is None:
        system.queue_offset = 0  # of a half message it means nothing to its producer
    header = CheckTransactionHeader(
        half_offset=0,
        physical_offset=0,
        message_id=system.message_id,
        transaction_id=recovery.transaction_id,
        topic=topic,
    )
    part = ReceiveMessageResponse(message=message.to_bytes()).to_bytes()
    read = core.read_proxy_message(part, topic)
    assert read is not None
    *_, body = read
    request = Command.request(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), body)
    return request, system.message_id
