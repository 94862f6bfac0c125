"""Messages that a concurrent consumer gives back for another try
(docs/internals/protocol.md#sending)."""

from __future__ import annotations

from ordermq import core
from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext, Handler, NotClaimed
from ordermq.broker.group_commit import Append
from ordermq.broker.groups import Group
from ordermq.broker.placing import place
from ordermq.model import properties as props
from ordermq.model.names import dead_letter_topic, retry_topic
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import SendBackHeader

_FIRST_RETRY_LEVEL = 3  # retry n waits at level 3 + n, 10 s at first


def send_back(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = SendBackHeader.from_ext(request.ext)
    group = context.groups.get(header.group)
    if group is None:
        raise NotClaimed(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {header.group!r} is not known"
        )
    if int(group.settings.get("retryQueueNums", 1)) <= 0:
        connection.reply(request, ResponseCode.SUCCESS)
        return
    record = context.store.record_at(header.physical_offset)
    if record is None:
        raise NotClaimed(
            ResponseCode.SYSTEM_ERROR, f"no message is stored at {header.physical_offset}"
        )
    append = _again(context, header, group, StoredMessage.read(record))

    context.append((append,), context.when_written(connection, request))


def _again(
    context: BrokerContext, header: SendBackHeader, group: Group, message: StoredMessage
) -> Append:
    properties = props.decode_bytes(message.properties)
    properties.setdefault(props.RETRY_TOPIC, message.topic)
    properties.setdefault(
        props.ORIGIN_MESSAGE_ID,
        f"{message.store_host.hex().upper()}{message.physical_offset:016X}",
    )
    most = header.max_reconsume_times
    if most is None:
        most = group.retry_max_times
    if message.reconsume_times >= most or header.delay_level < 0:
        topic = dead_letter_topic(group.name)
        properties.pop(props.DELAY, None)
    else:
        topic = retry_topic(group.name)
        level = header.delay_level or _FIRST_RETRY_LEVEL + message.reconsume_times
        properties[props.DELAY] = str(level)
    context.topics.ensure_internal(topic)
    target = place(context, topic, 0, props.encode(properties))
    writer = core.RecordWriter(
        target.log.topic, target.log.queue_id, message.born_host, message.store_host
    )
    again = writer.write(
        message.body,
        target.properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_ms=message.born_ms,
        stored_ms=target.stored_ms,
        reconsume_times=message.reconsume_times + 1,
        tag=target.due_ms,
    )
    return Append(target.log, again)


HANDLERS: dict[int, Handler] = {RequestCode.CONSUMER_SEND_MSG_BACK: send_back}
