"""Handlers of requests that the broker passes on to a client and answers with its response:
replies of request-reply, and what admin tools ask a member
(docs/internals/protocol.md#requests-to-consumers)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ordermq.broker.connection import BrokerConnection, RequestRefused
from ordermq.broker.context import BrokerContext, Handler, required_field
from ordermq.broker.groups import Member
from ordermq.broker.processors.fast_path import read_send_header
from ordermq.model import properties as props
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import SendHeader, SendReplyHeader
from ordermq.remoting.rare_headers import LongSendHeader, PushReplyHeader
from ordermq.remoting.signing import SIGNED_BY

_NOT_STORED = "0"  # the message id of a reply: as in RocketMQ, replies are never stored
_NOTHING_MORE: Mapping[str, str] = MappingProxyType({})
_OFFSET_AT = -16  # a stored message's id ends with its physical offset, 16 hex digits


def running_info(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    _pass_on(context, connection, request, request.body)


def consume_directly(
    context: BrokerContext, connection: BrokerConnection, request: Command
) -> None:
    """Let a member's listener consume one stored message now, out of order."""
    message_id = required_field(request, "msgId")
    try:
        record = context.store.record_at(int(message_id[_OFFSET_AT:], 16))
    except ValueError:
        record = None
    if record is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"no message is stored with id {message_id!r}"
        )
    # The record does not name its broker, and the member must know the queue: as RocketMQ's does.
    _pass_on(context, connection, request, record, {"brokerName": context.config.broker_name})


def _pass_on(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    body: bytes,
    more: Mapping[str, str] = _NOTHING_MORE,
) -> None:
    group, client_id = required_field(request, "consumerGroup"), required_field(request, "clientId")
    member = _member(context, group, client_id)
    # Without the signature: whoever receives a signed request could send it again.
    ext = {name: value for name, value in request.ext.items() if name not in SIGNED_BY}
    ext.update(more)
    # A new request id: the tool's may collide with one of the broker's own.
    forwarded = Command.request(request.code, ext, body)

    def answer(response: Command | None) -> None:
        if response is None:
            connection.reply(
                request,
                ResponseCode.CONSUME_MSG_TIMEOUT,
                remark=f"client {client_id!r} of group {group!r} did not answer",
            )
            return
        connection.reply(request, response.code, response.ext, response.body, response.remark)

    context.ask(member.connection, forwarded, answer)


def _member(context: BrokerContext, name: str, client_id: str) -> Member:
    group = context.groups.get(name)
    for member in group.members.values() if group is not None else ():
        if member.client_id == client_id:
            return member
    raise RequestRefused(
        ResponseCode.SYSTEM_ERROR, f"group {name!r} has no live member {client_id!r}"
    )


def reply_long(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    _push_reply(context, connection, request, LongSendHeader.from_ext(request.ext).short())


def reply(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    _push_reply(context, connection, request, read_send_header(request.ext))


def _push_reply(
    context: BrokerContext, connection: BrokerConnection, request: Command, header: SendHeader
) -> None:
    """Push a reply to the client that sent the request it answers."""
    properties = props.decode(header.properties)
    requester = properties.get(props.REPLY_TO_CLIENT)
    if requester is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"the reply has no property {props.REPLY_TO_CLIENT}: it names the client to reply to",
        )
    # The requester waits on the connection of its producer, found by its client id.
    target = context.producers.client(requester)
    if target is None:
        # The remarks of this function are Java's; its clients show them as they are.
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"push reply message fail, channel of <{requester}> not found.",
        )

    def answer(response: Command | None) -> None:
        if response is None or response.code != ResponseCode.SUCCESS:
            why = "it did not answer" if response is None else response.remark
            connection.reply(
                request,
                ResponseCode.SYSTEM_ERROR,
                remark=f"push reply message to {requester} fail: {why}",
            )
            return
        context.statistics.replies_pushed += 1
        sent = SendReplyHeader(_NOT_STORED, max(header.queue_id, 0), 0, None, None, "true")
        connection.reply(request, ResponseCode.SUCCESS, sent.to_ext())

    now_ms = context.clock.wall_ms()
    properties[props.PUSH_REPLY_TIME] = str(now_ms)
    push = PushReplyHeader(
        producer_group=header.producer_group,
        topic=header.topic,
        queue_id=header.queue_id,
        sys_flag=header.sys_flag,
        born_timestamp_ms=header.born_timestamp_ms,
        store_timestamp_ms=now_ms,
        flag=header.flag,
        # With a slash, as Java's broker formats addresses.
        born_host=f"/{connection.peer}",
        store_host=f"/{connection.local_address}",
        default_topic=header.default_topic,
        default_topic_queue_nums=header.default_topic_queue_nums,
        properties=props.encode(properties),
        reconsume_times=header.reconsume_times,
        unit_mode=bool(header.unit_mode),
    )
    pushed = Command.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push.to_ext(), request.body)
    context.ask(target, pushed, answer)


HANDLERS: dict[int, Handler] = {
    RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
    RequestCode.SEND_REPLY_MESSAGE: reply_long,
    RequestCode.SEND_REPLY_MESSAGE_V2: reply,
}
