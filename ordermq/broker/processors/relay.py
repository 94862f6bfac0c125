"""What an admin tool asks a group's member through the broker
(docs/internals/protocol.md#requests-to-consumers)."""

from __future__ import annotations

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext, Handler, NotClaimed
from ordermq.broker.groups import Member
from ordermq.broker.processors.topics import required
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.signing import SIGNED_BY

_OFFSET_AT = -16  # a stored message's id ends with its physical offset, 16 hex digits


def running_info(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    _pass_on(context, connection, request, request.body)


def consume_directly(
    context: BrokerContext, connection: BrokerConnection, request: Command
) -> None:
    """The member's listener gets one stored message, out of any order."""
    message_id = required(request, "msgId")
    try:
        record = context.store.record_at(int(message_id[_OFFSET_AT:], 16))
    except ValueError:
        record = None
    if record is None:
        raise NotClaimed(ResponseCode.SYSTEM_ERROR, f"no message is stored as {message_id!r}")
    _pass_on(context, connection, request, record)


def _pass_on(
    context: BrokerContext, connection: BrokerConnection, request: Command, body: bytes
) -> None:
    member = _member(context, required(request, "consumerGroup"), required(request, "clientId"))
    # Without the signature: whoever has a signed request may send it again.
    ext = {name: value for name, value in request.ext.items() if name not in SIGNED_BY}
    forwarded = Command.request(request.code, ext, body)

    def answered(answer: Command | None) -> None:
        if answer is None:
            connection.reply(
                request,
                ResponseCode.CONSUME_MSG_TIMEOUT,
                remark=f"client {member.client_id!r} did not answer",
            )
            return
        connection.reply(request, answer.code, answer.ext, answer.body, answer.remark)

    context.ask(member.connection, forwarded, answered)


def _member(context: BrokerContext, name: str, client_id: str) -> Member:
    group = context.groups.get(name)
    for member in group.members.values() if group is not None else ():
        if member.client_id == client_id:
            return member
    raise NotClaimed(ResponseCode.SYSTEM_ERROR, f"group {name!r} has no live member {client_id!r}")


HANDLERS: dict[int, Handler] = {
    RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
}
