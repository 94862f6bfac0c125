"""Taking a timed message back before it is due, as RocketMQ's brokers do since 5.3.2."""

from __future__ import annotations

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext, Handler, NotClaimed
from ordermq.broker.group_commit import Write
from ordermq.broker.processors.topics import existing_topic
from ordermq.errors import ConfigError, StoreError
from ordermq.model.recall_handle import RecallHandle
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import RecallHeader, RecallReplyHeader


def recall(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = RecallHeader.from_ext(request.ext)
    existing_topic(context, header.topic)
    handle = _handle(context, header)
    offset = context.timers.take(handle)
    if offset is None:
        raise NotClaimed(
            ResponseCode.ILLEGAL_OPERATION,
            f"message {handle.message_id!r} of topic {handle.topic!r} does not wait: it was "
            "delivered or recalled before",
        )
    removal = context.timers.removal(offset)

    def finish(error: StoreError | None) -> None:
        if error is not None:
            context.timers.put_back([(offset, handle.deliver_at_ms)])
            context.refuse_write(connection, request, error)
            return
        context.timers.left(removal)
        context.statistics.messages_recalled += 1
        reply = RecallReplyHeader(handle.message_id)
        connection.reply(request, ResponseCode.SUCCESS, reply.to_ext())

    context.store.submit(Write(finish, statements=removal.statements))


def _handle(context: BrokerContext, header: RecallHeader) -> RecallHandle:
    try:
        handle = RecallHandle.of_text(header.recall_handle)
    except ConfigError as error:
        raise NotClaimed(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
    if (handle.topic, handle.broker_name) != (header.topic, context.config.broker_name):
        raise NotClaimed(
            ResponseCode.ILLEGAL_OPERATION,
            f"the recall handle is of topic {handle.topic!r} at broker {handle.broker_name!r}",
        )
    return handle


HANDLERS: dict[int, Handler] = {RequestCode.RECALL_MESSAGE: recall}
