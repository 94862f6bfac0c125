"""Sending (docs/internals/protocol.md#sending)."""

from __future__ import annotations

import random
from dataclasses import replace

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext, Handler, NotClaimed
from ordermq.broker.group_commit import Append
from ordermq.broker.hot_frames import read_send_header, send_answer
from ordermq.broker.placing import Place, place, place_half, stored_now
from ordermq.broker.topics import Topic, group_of_retry_topic, is_retry_topic
from ordermq.broker.transactions import KIND_BITS
from ordermq.errors import ConfigError, ProtocolError, StoreError
from ordermq.model import properties as props
from ordermq.model.names import check_sendable_topic, check_topic, dead_letter_topic
from ordermq.model.recall_handle import RecallHandle
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import LongSendHeader, SendHeader, SendReplyHeader


def send_long(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    _send(context, connection, request, LongSendHeader.from_ext(request.ext).short())


def send(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    _send(context, connection, request, read_send_header(request.ext))


def _send(
    context: BrokerContext, connection: BrokerConnection, request: Command, header: SendHeader
) -> None:
    topic = _writable_topic(context, header)
    _check_body(context, len(request.body), header)
    if props.REPLY_TO_CLIENT in header.properties:
        header = replace(header, properties=_with_cluster(context, header.properties))
    if is_retry_topic(topic.name) and _is_given_up(context, header):
        topic = context.topics.ensure_internal(dead_letter_topic(group_of_retry_topic(topic.name)))
        undelayed = props.decode(header.properties)
        undelayed.pop(props.DELAY, None)
        header = replace(header, properties=props.encode(undelayed), queue_id=0)
    queue_id = _queue_id(topic, header.queue_id)
    if props.TRANSACTION_PREPARED in header.properties:
        properties = props.decode(header.properties)
        if _is_half(header, properties):
            _send_half(context, connection, request, header, topic, queue_id, properties)
            return
    target = place(context, topic.name, queue_id, header.properties)
    append = _append(connection, request, header, target, header.sys_flag, target.due_ms)
    if target.log is context.timers.log:
        _store_timed(context, connection, request, append, topic, queue_id, target)
        return
    _store(context, connection, request, append, queue_id)


def _with_cluster(context: BrokerContext, properties: str) -> str:
    """Whoever replies to a request finds the topic for that by its cluster."""
    noted = props.decode(properties)
    noted[props.CLUSTER] = context.config.cluster_name
    return props.encode(noted)


def _is_half(header: SendHeader, properties: dict[str, str]) -> bool:
    """Whether it is half of a transaction; a message that is retried was one, once."""
    if properties.get(props.TRANSACTION_PREPARED, "").lower() != "true":
        return False
    return not (header.reconsume_times > 0 and props.DELAY in properties)


def _send_half(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    header: SendHeader,
    topic: Topic,
    queue_id: int,
    properties: dict[str, str],
) -> None:
    """Keep it apart; the answer names it by its place there."""
    properties.setdefault(props.PRODUCER_GROUP, header.producer_group)
    target = place_half(context, topic.name, queue_id, properties)
    append = _append(connection, request, header, target, header.sys_flag & ~KIND_BITS, 0)

    def finish(error: StoreError | None) -> None:
        if error is not None:
            context.refuse_write(connection, request, error)
            return
        context.halves.add(append.first_offset, properties, target.stored_ms)
        answer = _waiting_answer(connection, append, queue_id)
        answer.transaction_id = properties.get(props.UNIQ_KEY)
        connection.reply(request, ResponseCode.SUCCESS, answer.to_ext())

    context.append((append,), finish)


def _store_timed(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    append: Append,
    topic: Topic,
    queue_id: int,
    target: Place,
) -> None:
    """The answer has a handle to take the message back by."""

    def finish(error: StoreError | None) -> None:
        if error is not None:
            context.refuse_write(connection, request, error)
            return
        assert target.due_ms is not None
        context.timers.add(append.first_offset, target.due_ms)
        answer = _waiting_answer(connection, append, queue_id)
        unique_id = props.decode_bytes(target.properties).get(props.UNIQ_KEY)
        if unique_id is not None and not is_retry_topic(topic.name):
            handle = RecallHandle(topic.name, context.config.broker_name, target.due_ms, unique_id)
            answer.recall_handle = handle.to_text()
        connection.reply(request, ResponseCode.SUCCESS, answer.to_ext())

    context.append((append,), finish)


def _waiting_answer(connection: BrokerConnection, append: Append, queue_id: int) -> SendReplyHeader:
    """Of a message that waits apart: its place there, and the queue it goes to then."""
    offset = append.first_offset
    message_id = f"{connection.store_host_hex}{append.log.physical_offset(offset):016X}"
    return SendReplyHeader(message_id, queue_id, offset, None, "DefaultRegion", "true")


def _append(
    connection: BrokerConnection,
    request: Command,
    header: SendHeader,
    target: Place,
    sys_flag: int,
    tag: int | None,
) -> Append:
    try:
        record = connection.writer(target.log.topic, target.log.queue_id).write(
            request.body,
            target.properties,
            flag=header.flag,
            sys_flag=sys_flag,
            born_ms=header.born_timestamp_ms,
            stored_ms=target.stored_ms,
            reconsume_times=header.reconsume_times,
            tag=tag,
        )
    except OverflowError as error:
        raise _out_of_range(error) from None
    return Append(target.log, record)


def send_batch(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = read_send_header(request.ext)
    topic = _writable_topic(context, header)
    _check_body(context, len(request.body), header)
    if is_retry_topic(topic.name):
        raise NotClaimed(ResponseCode.MESSAGE_ILLEGAL, "a retry topic takes no batches")
    queue_id = _queue_id(topic, header.queue_id)
    log = context.store.log(topic.name, queue_id)
    try:
        records = connection.writer(topic.name, queue_id).write_batch(
            request.body,
            sys_flag=header.sys_flag,
            born_ms=header.born_timestamp_ms,
            stored_ms=stored_now(context, log),
        )
    except ProtocolError as error:
        raise NotClaimed(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
    except OverflowError as error:
        raise _out_of_range(error) from None
    if not len(records):
        raise NotClaimed(ResponseCode.MESSAGE_ILLEGAL, "the batch holds no message")
    _store(context, connection, request, Append(log, records), queue_id)


def _writable_topic(context: BrokerContext, header: SendHeader) -> Topic:
    topic = context.topics.known(header.topic) or _new_topic(context, header)
    if not topic.is_writable:
        raise NotClaimed(ResponseCode.NO_PERMISSION, f"topic {topic.name!r} may not be written")
    return topic


def _new_topic(context: BrokerContext, header: SendHeader) -> Topic:
    name = header.topic
    check_topic(name)
    try:
        check_sendable_topic(name)
    except ConfigError as error:
        raise NotClaimed(ResponseCode.NO_PERMISSION, str(error)) from None
    if is_retry_topic(name):
        return context.topics.ensure_internal(name)
    topic = context.topics.create_by_send(name, header.default_topic_queue_nums)
    if topic is None:
        raise NotClaimed(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic {name!r} does not exist, and this broker makes none by itself: create it",
        )
    return topic


def _check_body(context: BrokerContext, size: int, header: SendHeader) -> None:
    limit = context.config.max_message_bytes
    if size > limit:
        raise NotClaimed(
            ResponseCode.MESSAGE_ILLEGAL,
            f"message body of {size} bytes for topic {header.topic!r}: expected at most {limit}",
        )


def _out_of_range(error: OverflowError) -> NotClaimed:
    return NotClaimed(
        ResponseCode.INVALID_PARAMETER, f"a number of the header is out of its range: {error}"
    )


def _queue_id(topic: Topic, queue_id: int) -> int:
    if queue_id < 0:
        return random.randrange(topic.write_queues)
    count = max(topic.read_queues, topic.write_queues)
    if queue_id >= count:
        raise NotClaimed(
            ResponseCode.INVALID_PARAMETER,
            f"queue {queue_id} of topic {topic.name!r}: expected 0..{count - 1}",
        )
    return queue_id


def _is_given_up(context: BrokerContext, header: SendHeader) -> bool:
    """Whether a message for a retry topic goes to the dead letters
    (docs/internals/protocol.md#sending, docs/internals/protocol.md#traps)."""
    name = group_of_retry_topic(header.topic)
    group = context.groups.get(name)
    most = header.max_reconsume_times
    if most is None:
        most = context.config.retry_max_times if group is None else group.retry_max_times
    return header.reconsume_times > most or context.locks.is_ordered(name)


def _store(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    append: Append,
    queue_id: int,
) -> None:
    def finish(error: StoreError | None) -> None:
        if error is not None:
            context.refuse_write(connection, request, error)
            return
        first = append.log.physical_offset(append.first_offset)
        places = range(first, first + len(append.records))
        ids = ",".join([f"{connection.store_host_hex}{place:016X}" for place in places])
        if not request.is_oneway:
            connection.send(send_answer(request.opaque, ids, queue_id, append.first_offset))

    context.append((append,), finish)


HANDLERS: dict[int, Handler] = {
    RequestCode.SEND_MESSAGE: send_long,
    RequestCode.SEND_MESSAGE_V2: send,
    RequestCode.SEND_BATCH_MESSAGE: send_batch,
}
