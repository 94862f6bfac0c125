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
from ordermq.errors import BrokerError, ConnectFailed, ProtocolError, RequestTimeout
from ordermq.grpc.messages import (
    Code,
    ReceiveMessageResponse,
    RecoverOrphanedTransaction,
    Resource,
    Status,
)
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import SendHeader
from ordermq.remoting.rare_headers import CheckTransactionHeader

_COMPRESSOR_BITS = COMPRESSED | 0x700
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
    is_zipped = bool(header.sys_flag & COMPRESSED)
    if is_zipped and header.sys_flag & _COMPRESSOR_BITS not in (COMPRESSED, ZLIB):
        raise _cannot("other compressors than zlib: give compress_type='zlib'", header)
    request = core.encode_proxy_send(
        _resource_of(config.namespace_v2, header.topic),
        body,
        None if header.batch else header.properties,
        flag=header.flag,
        is_zipped=is_zipped,
        born_ms=header.born_timestamp_ms or wall_ms,
        now_ms=wall_ms,
    )
    if request is None:
        raise _cannot(
            "`delay_level` (give `delay_ms` or `deliver_at_ms`), a message's `flag` (put it into a "
            "property) or a time that is no number",
            header,
        )
    return request


@lru_cache(maxsize=1024)
def _resource_of(namespace: str, topic: str) -> bytes:
    return Resource(namespace=namespace, name=topic).to_bytes()


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
