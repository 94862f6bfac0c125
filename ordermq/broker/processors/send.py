"""Handlers of sent messages: send, send back, end a transaction, recall
(docs/internals/protocol.md#sending).

The choice between retry topic and dead-letter topic is made here, too: `_is_beyond_retries`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import replace

from ordermq import core
from ordermq.broker.connection import BrokerConnection, RequestRefused
from ordermq.broker.context import BrokerContext, Handler
from ordermq.broker.groups import Group
from ordermq.broker.message_routing import RoutedMessage
from ordermq.broker.processors.fast_path import read_send_header, send_reply
from ordermq.broker.recent_sends import (
    IN_FLIGHT,
    SendId,
    is_same_body,
    unique_id_of,
    unique_id_of_batch,
    waiting_send_id,
)
from ordermq.broker.store import Append, Write
from ordermq.broker.topics import Topic, group_of_retry_topic, is_retry_topic
from ordermq.broker.transactions import TRANSACTION_BITS
from ordermq.errors import ConfigError, ProtocolError, StoreError
from ordermq.model import properties as props
from ordermq.model.delay_levels import FIRST_RETRY_LEVEL
from ordermq.model.message import INNER_BATCH
from ordermq.model.names import check_sendable_topic, check_topic, dead_letter_topic, retry_topic
from ordermq.model.recall_handle import RecallHandle
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import RequestCode, ResponseCode, TransactionFlag
from ordermq.remoting.command import Command
from ordermq.remoting.headers import SendBackHeader, SendHeader, SendReplyHeader
from ordermq.remoting.rare_headers import (
    EndTransactionHeader,
    LongSendHeader,
    RecallHeader,
    RecallReplyHeader,
)

log = logging.getLogger("ordermq.broker")


def send_long(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    _send(context, connection, request, LongSendHeader.from_ext(request.ext).short())


def send(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    _send(context, connection, request, read_send_header(request.ext))


def _send(
    context: BrokerContext, connection: BrokerConnection, request: Command, header: SendHeader
) -> None:
    topic = _writable_topic(context, header)
    _check_message(context, len(request.body), header)
    # Substring tests on the encoded properties: almost no message has any of these, and parsing
    # the properties of every send costs more than the rest of this function.
    if props.REPLY_TO_CLIENT in header.properties:
        header = replace(header, properties=_with_cluster(context, header.properties))
    # A retry has the id of the message it repeats, and is wanted: it is never taken for a copy.
    is_retry = header.reconsume_times > 0 or is_retry_topic(topic.name)
    unique_id = None if is_retry else unique_id_of(header.properties)
    if is_retry_topic(topic.name) and _is_dead_letter(context, header):
        topic = context.topics.internal(dead_letter_topic(group_of_retry_topic(topic.name)))
        undelayed = props.decode(header.properties)
        undelayed.pop(props.DELAY, None)
        header = replace(header, properties=props.encode(undelayed), queue_id=0)
    queue_id = _queue_id(topic, header.queue_id)
    if props.TRANSACTION_PREPARED in header.properties:
        properties = props.decode(header.properties)
        if _is_half(header, properties):
            _send_half(context, connection, request, header, topic, queue_id, properties, unique_id)
            return
    target = context.routing.route(topic.name, queue_id, header.properties)
    append = _append(connection, request, header, target, header.sys_flag, target.due_ms)
    context.topics.keep(topic)  # only now: a refused send creates none
    send_id: SendId | None = None
    if unique_id is not None:
        send_id = SendId(unique_id)
        if target.due_ms is not None:
            send_id = waiting_send_id(unique_id, topic.name, queue_id, request.body)
    if target.log is context.routing.timer_log:
        _store_timed(context, connection, request, append, topic, queue_id, target, send_id)
        return
    _store(context, connection, request, append, queue_id, send_id)


def _with_cluster(context: BrokerContext, properties: str) -> str:
    # A consumer that replies to a request finds the reply topic by this property.
    parsed = props.decode(properties)
    parsed[props.CLUSTER] = context.config.cluster_name
    return props.encode(parsed)


def _is_half(header: SendHeader, properties: dict[str, str]) -> bool:
    if properties.get(props.TRANSACTION_PREPARED, "").lower() != "true":
        return False
    # A retried message keeps the property of the transaction that it once was part of.
    return not (header.reconsume_times > 0 and props.DELAY in properties)


def _send_half(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    header: SendHeader,
    topic: Topic,
    queue_id: int,
    properties: dict[str, str],
    unique_id: str | None,
) -> None:
    properties.setdefault(props.PRODUCER_GROUP, header.producer_group)
    target = context.routing.route_half(topic.name, queue_id, properties)
    append = _append(
        connection, request, header, target, header.sys_flag & ~TRANSACTION_BITS, tag=0
    )
    context.topics.keep(topic)

    send_id = None
    if unique_id is not None:
        send_id = waiting_send_id(unique_id, topic.name, queue_id, request.body)

    def stored() -> None:
        context.transactions.add(append.first_offset, properties)
        answer()

    def answer() -> None:
        reply = _waiting_reply(connection, append, queue_id)
        reply.transaction_id = properties.get(props.UNIQ_KEY)
        connection.reply(request, ResponseCode.SUCCESS, reply.to_ext())

    _append_once(context, connection, request, append, send_id, stored, answer)


def _store_timed(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    append: Append,
    topic: Topic,
    queue_id: int,
    target: RoutedMessage,
    send_id: SendId | None,
) -> None:
    assert target.due_ms is not None
    due_ms = target.due_ms

    def stored() -> None:
        context.timed.add(append.first_offset, due_ms, is_delay=target.is_delay)
        answer()

    def answer() -> None:
        reply = _waiting_reply(connection, append, queue_id)
        recalled_by = props.decode_bytes(target.properties).get(props.UNIQ_KEY)
        # Retries wait as timed messages, too, but their consumer has nothing to recall.
        if recalled_by is not None and not is_retry_topic(topic.name):
            handle = RecallHandle(topic.name, context.config.broker_name, due_ms, recalled_by)
            reply.recall_handle = handle.to_text()
        connection.reply(request, ResponseCode.SUCCESS, reply.to_ext())

    _append_once(context, connection, request, append, send_id, stored, answer)


def _waiting_reply(connection: BrokerConnection, append: Append, queue_id: int) -> SendReplyHeader:
    """Return the reply to a message that waits: its offset there, but its real queue."""
    offset = append.first_offset
    message_id = f"{connection.store_host_hex}{append.log.physical_offset(offset):016X}"
    return SendReplyHeader(message_id, queue_id, offset, None, "DefaultRegion", "true")


def _append(
    connection: BrokerConnection,
    request: Command,
    header: SendHeader,
    target: RoutedMessage,
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
    _check_message(context, len(request.body), header)
    if is_retry_topic(topic.name):
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "a retry topic accepts no batches")
    queue_id = _queue_id(topic, header.queue_id)
    # Not routed: as in Java, clients do not batch delayed messages and half messages.
    queue_log = context.store.log(topic.name, queue_id)
    try:
        records = connection.writer(topic.name, queue_id).write_batch(
            request.body,
            sys_flag=header.sys_flag,
            born_ms=header.born_timestamp_ms,
            stored_ms=context.routing.stored_now(queue_log),
        )
    except ProtocolError as error:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
    except OverflowError as error:
        raise _out_of_range(error) from None
    if not len(records):
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "the batch has no message")
    append = Append(queue_log, records)
    context.topics.keep(topic)
    unique_id = unique_id_of_batch(request.body)
    send_id = None if unique_id is None else SendId(unique_id)
    _store(context, connection, request, append, queue_id, send_id)


def _writable_topic(context: BrokerContext, header: SendHeader) -> Topic:
    topic = context.topics.sendable(header.topic) or _new_topic(context, header)
    if not topic.is_writable:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"topic {topic.name!r} has no write permission"
        )
    return topic


def _new_topic(context: BrokerContext, header: SendHeader) -> Topic:
    name = header.topic
    check_topic(name)
    try:
        check_sendable_topic(name)
    except ConfigError as error:
        raise RequestRefused(ResponseCode.NO_PERMISSION, str(error)) from None
    # A group's retry topic is created even where sends may not create topics.
    if is_retry_topic(name):
        return context.topics.internal(name)
    topic = context.topics.of_first_send(name, header.default_topic_queue_nums)
    if topic is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic {name!r} does not exist, and this broker does not create topics: create it",
        )
    return topic


def _check_message(context: BrokerContext, size: int, header: SendHeader) -> None:
    # No reader would get past a message that claims to be a batch and is none.
    if header.sys_flag & INNER_BATCH:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"message for topic {header.topic!r}: its sysFlag {header.sys_flag & 0xFFFFFFFF:#x} "
            "has a mark of an inner batch (0x40 or 0x80), which brokers set and producers do not",
        )
    limit = context.config.max_message_bytes
    if size > limit:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"message body of {size} bytes for topic {header.topic!r}: expected at most {limit}",
        )


def _out_of_range(error: OverflowError) -> RequestRefused:
    return RequestRefused(
        ResponseCode.INVALID_PARAMETER, f"a number of the header is out of range: {error}"
    )


def _queue_id(topic: Topic, queue_id: int) -> int:
    if queue_id < 0:  # as in Java: the broker chooses
        return random.randrange(topic.write_queues)
    # As in Java, also queues that were only made unwritable: producers may have an old route.
    count = max(topic.read_queues, topic.write_queues)
    if queue_id >= count:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queue {queue_id} of topic {topic.name!r}: expected 0..{count - 1}",
        )
    return queue_id


def _is_dead_letter(context: BrokerContext, header: SendHeader) -> bool:
    """Return True if a message for a retry topic goes to the dead letters
    (docs/internals/protocol.md#sending, docs/internals/protocol.md#traps)."""
    name = group_of_retry_topic(header.topic)
    group = context.groups.get(name)
    # An ordered group retries in its own process: what it sends here has used up its attempts.
    return context.locks.is_ordered(name) or _is_beyond_retries(
        context, group, header.reconsume_times, header.max_reconsume_times
    )


def _is_beyond_retries(
    context: BrokerContext, group: Group | None, retry: int, max_retries: int | None
) -> bool:
    """Return True if a message's next retry, counted from 1, is one more than it may have.

    Args:
        max_retries: as the request says; None: as the group's settings say.
    """
    if max_retries is None:
        max_retries = context.config.retry_max_times if group is None else group.retry_max_times
    return retry > max_retries


def _store(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    append: Append,
    queue_id: int,
    send_id: SendId | None,
) -> None:
    def answer() -> None:
        first = append.log.physical_offset(append.first_offset)
        physical_offsets = range(first, first + len(append.records))
        # A batch is answered with the ids of all its messages, in order.
        ids = ",".join([f"{connection.store_host_hex}{each:016X}" for each in physical_offsets])
        if not request.is_oneway:
            connection.send(send_reply(request.opaque, ids, queue_id, append.first_offset))

    _append_once(context, connection, request, append, send_id, answer, answer)


def _append_once(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    append: Append,
    send_id: SendId | None,
    stored: Callable[[], None],
    answer: Callable[[], None],
) -> None:
    """Append a send and call `stored`; or, for a copy of one stored before, only `answer`.

    A copy has the same id, queue and body, and as many messages. It is answered with the offset of
    the first one.
    """
    if send_id is not None:
        offset = context.recent_sends.begin(append.log, send_id)
        if offset is not None:

            def again() -> None:
                _append_once(context, connection, request, append, send_id, stored, answer)

            if offset == IN_FLIGHT:
                # An empty write: writes end in the order of submission, so it ends after the first
                # copy's, which may fail.
                done = context.when_durable(connection, request, again)
                context.store.submit(Write(done))
                return
            append.first_offset = offset
            if _is_copy(context, append, send_id):
                context.statistics.copies_dropped += len(append.records)
                answer()
                return
            send_id = None  # another message with the same id: only the first one is remembered

    # `when_durable` would be one more call per send.
    def finish(error: StoreError | None) -> None:
        if error is None:
            if send_id is not None:
                context.recent_sends.stored(append.log, append.first_offset)
            stored()
        else:
            if send_id is not None:
                context.recent_sends.failed(append.log)
            context.reply_write_failed(connection, request, error)

    context.routing.append((append,), finish)


def _is_copy(context: BrokerContext, append: Append, send_id: SendId) -> bool:
    records = [record for _, _, record in append.rows()]
    offsets = range(append.first_offset, append.first_offset + len(records))
    stored = [context.store.record(append.log, offset) for offset in offsets]
    # The id of one that waits tells all: it may have left, and a copy must not bring it back.
    return bool(send_id.target) or all(map(is_same_body, stored, records))


def send_back(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    """Store a message again, delayed, that a concurrent consumer could not process."""
    header = SendBackHeader.from_ext(request.ext)
    group = context.groups.get(header.group)
    if group is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {header.group!r} is not known"
        )
    # As in Java: a group without retry queues drops what it cannot process.
    if int(group.settings.get("retryQueueNums", 1)) <= 0:
        connection.reply(request, ResponseCode.SUCCESS)
        return
    stored = context.store.record_at(header.physical_offset)
    if stored is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"no message is stored at {header.physical_offset}"
        )
    message = StoredMessage.read(stored)
    properties = props.decode_bytes(message.properties)
    offset_id = f"{message.store_host.hex().upper()}{message.physical_offset:016X}"
    _require_named(header, properties, offset_id)
    # setdefault: a message that is sent back again keeps its first topic and id.
    properties.setdefault(props.RETRY_TOPIC, message.topic)
    properties.setdefault(props.ORIGIN_MESSAGE_ID, offset_id)
    retry = message.reconsume_times + 1
    if header.delay_level < 0 or _is_beyond_retries(
        context, group, retry, header.max_reconsume_times
    ):
        topic = dead_letter_topic(group.name)
        properties.pop(props.DELAY, None)
    else:
        topic = retry_topic(group.name)
        level = header.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        properties[props.DELAY] = str(level)
    target = context.routing.route(topic, 0, props.encode(properties))
    writer = core.RecordWriter(
        target.log.topic, target.log.queue_id, message.born_host, message.store_host
    )
    record = writer.write(
        message.body,
        target.properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_ms=message.born_ms,
        stored_ms=target.stored_ms,
        reconsume_times=retry,
        tag=target.due_ms,
    )
    append = Append(target.log, record)
    context.topics.keep(context.topics.internal(topic))
    context.routing.append((append,), context.when_durable(connection, request))


def _require_named(header: SendBackHeader, properties: dict[str, str], offset_id: str) -> None:
    """Refuse to send back another message than the one of the id in a request."""
    # The place alone does not tell: a broker that lost its last messages, as one whose back-up was
    # restored, has another message there. Clients name the producer's id or the broker's, some
    # that of the message's first delivery.
    named = header.origin_message_id
    ids = properties.get(props.UNIQ_KEY), offset_id, properties.get(props.ORIGIN_MESSAGE_ID)
    if named and named.upper() not in {each.upper() for each in ids if each}:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"no message {named} is stored at {header.physical_offset}: another one has its place",
        )


def end_transaction(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = EndTransactionHeader.from_ext(request.ext)
    if header.commit_or_rollback not in (TransactionFlag.COMMIT, TransactionFlag.ROLLBACK):
        # The answer to a check: the application does not know yet. It is checked again.
        log.info(
            "transaction still undecided: group=%s id=%s client=%s remark=%s",
            header.producer_group, header.message_id, connection.peer, request.remark,
        )  # fmt: skip
        connection.reply(request, ResponseCode.SUCCESS)
        return
    if context.transactions.is_ended_so(header):
        connection.reply(request, ResponseCode.SUCCESS)
        return
    done = context.when_durable(connection, request)
    try:
        half = context.transactions.find(header)
        if header.commit_or_rollback == TransactionFlag.COMMIT:
            context.transactions.commit(half, done)
        else:
            context.transactions.roll_back(half, done)
    except RequestRefused as refusal:
        # Logged, because producers send it one-way and never see the reply.
        log.warning("refusing to end transaction: client=%s: %s", connection.peer, refusal.remark)
        raise


def recall(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    """Remove a timed message before it is due, as RocketMQ's brokers do since 5.3.2."""
    header = RecallHeader.from_ext(request.ext)
    context.topics.existing(header.topic)
    try:
        handle = RecallHandle.of_text(header.recall_handle)
    except ConfigError as error:
        raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
    if (handle.topic, handle.broker_name) != (header.topic, context.config.broker_name):
        raise RequestRefused(
            ResponseCode.ILLEGAL_OPERATION,
            f"the recall handle is of topic {handle.topic!r} on broker {handle.broker_name!r}",
        )

    def answer() -> None:
        reply = RecallReplyHeader(handle.message_id)
        connection.reply(request, ResponseCode.SUCCESS, reply.to_ext())

    if not context.timed.recall(handle, context.when_durable(connection, request, answer)):
        raise RequestRefused(
            ResponseCode.ILLEGAL_OPERATION,
            f"message {handle.message_id!r} of topic {handle.topic!r} does not wait: it was "
            "delivered or recalled before",
        )


HANDLERS: dict[int, Handler] = {
    RequestCode.SEND_MESSAGE: send_long,
    RequestCode.SEND_MESSAGE_V2: send,
    RequestCode.SEND_BATCH_MESSAGE: send_batch,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back,
    RequestCode.END_TRANSACTION: end_transaction,
    RequestCode.RECALL_MESSAGE: recall,
}
