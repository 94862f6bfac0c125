"""Replies to requests: pushed to the client that asked, never stored."""

from __future__ import annotations

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext, Handler, NotClaimed
from ordermq.broker.hot_frames import read_send_header
from ordermq.model import properties as props
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import LongSendHeader, PushReplyHeader, SendHeader, SendReplyHeader

_NOT_STORED = "0"  # the message id of what lies nowhere, as RocketMQ answers it


def reply_long(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    _push(context, connection, request, LongSendHeader.from_ext(request.ext).short())


def reply(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    _push(context, connection, request, read_send_header(request.ext))


def _push(
    context: BrokerContext, connection: BrokerConnection, request: Command, header: SendHeader
) -> None:
    properties = props.decode(header.properties)
    asker = properties.get(props.REPLY_TO_CLIENT)
    if asker is None:
        raise NotClaimed(
            ResponseCode.SYSTEM_ERROR,
            f"the reply has no property {props.REPLY_TO_CLIENT}, so nobody to go to",
        )
    target = context.producers.client(asker)
    if target is None:
        raise NotClaimed(
            ResponseCode.SYSTEM_ERROR, f"push reply message fail, channel of <{asker}> not found."
        )

    def answered(answer: Command | None) -> None:
        if answer is None or answer.code != ResponseCode.SUCCESS:
            why = "it did not answer" if answer is None else answer.remark
            connection.reply(
                request,
                ResponseCode.SYSTEM_ERROR,
                remark=f"push reply message to {asker} fail: {why}",
            )
            return
        context.statistics.replies_pushed += 1
        told = SendReplyHeader(_NOT_STORED, max(header.queue_id, 0), 0, None, None, "true")
        connection.reply(request, ResponseCode.SUCCESS, told.to_ext())

    context.ask(target, _pushed(context, connection, request, header, properties), answered)


def _pushed(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    header: SendHeader,
    properties: dict[str, str],
) -> Command:
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
        born_host=f"/{connection.peer}",
        store_host=f"/{connection.local_address}",
        default_topic=header.default_topic,
        default_topic_queue_nums=header.default_topic_queue_nums,
        properties=props.encode(properties),
        reconsume_times=header.reconsume_times,
        unit_mode=bool(header.unit_mode),
    )
    return Command.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push.to_ext(), request.body)


HANDLERS: dict[int, Handler] = {
    RequestCode.SEND_REPLY_MESSAGE: reply_long,
    RequestCode.SEND_REPLY_MESSAGE_V2: reply,
}
