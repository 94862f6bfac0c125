"""Handlers of consumer offsets, of queues' first and last offsets, and of resets
(docs/internals/protocol.md#offsets, docs/internals/protocol.md#requests-to-consumers)."""

from __future__ import annotations

from functools import partial

from ordermq.broker.connection import BrokerConnection, RequestRefused
from ordermq.broker.consumer_offsets import MAX_OFFSET, OffsetKey
from ordermq.broker.context import BrokerContext, Handler, number_field, required_field
from ordermq.broker.store import QueueLog, Write
from ordermq.broker.topics import Topic
from ordermq.events import EventType
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_group
from ordermq.model.stored_message import stored_at
from ordermq.remoting.bodies import queue_table_to_json
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import (
    OffsetReplyHeader,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateOffsetHeader,
)

_ALL_QUEUES = -1
_LATEST = -1  # as a timestamp: after the newest message


def query(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = QueryOffsetHeader.from_ext(request.ext)
    key = header.group, header.topic, header.queue_id

    def answer() -> None:
        offset = context.offsets.get(key)
        # As in Java's broker: where the field is missing, a queue that still has its first message
        # starts at 0 (rmq#9083). An empty queue, too: a message that comes between this answer and
        # the client's next question must not be skipped. (5.x brokers say "none" for it, 4.9 says
        # 0.)
        zero_wanted = header.set_zero_if_not_found
        if zero_wanted is None:
            zero_wanted = context.config.new_groups_start_at_zero
        if offset is None and zero_wanted:
            log = context.store.find_log(header.topic, header.queue_id)
            if log is None or log.min_offset == 0:
                offset = 0
        if offset is None:
            # So that the client's consumeFromWhere decides.
            connection.reply(
                request,
                ResponseCode.QUERY_NOT_FOUND,
                remark="the group has not committed an offset of this queue yet",
            )
        else:
            _reply_offset(connection, request, offset)

    context.offsets.after_commits(key, context.when_durable(connection, request, answer))


def update(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = UpdateOffsetHeader.from_ext(request.ext)
    context.topics.staying(header.topic)
    check_group(header.group)
    if not 0 <= header.commit_offset <= MAX_OFFSET:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"offset {header.commit_offset}: expected 0..{MAX_OFFSET}",
        )
    if header.epoch is not None:
        _check_epoch(context, header)
    offset = _in_range(context, connection, header)
    epoch, client = header.epoch or 0, header.client_id or ""

    def answer() -> None:
        group = context.groups.ensure(header.group)
        context.statistics.commits += 1
        if context.history.enabled:
            event = EventType.RESET if header.reset else EventType.COMMIT_ACK
            context.history.record(
                event, group=group.name, topic=header.topic, broker=context.config.broker_name,
                queue=header.queue_id, epoch=epoch, off=offset, client=client,
            )  # fmt: skip
        connection.reply(request, ResponseCode.SUCCESS)

    key = header.group, header.topic, header.queue_id
    if context.is_moving(key):
        _handle_later(context, connection, request, update)
        return
    if header.epoch is None and not header.reset and context.is_behind(key, offset):
        connection.reply(request, ResponseCode.SUCCESS)
        return
    if context.offsets.has_unseen_reset(key) and not header.reset:
        # Answered with success: the member cannot do anything about it, and its next pull
        # tells it the new offset.
        connection.reply(request, ResponseCode.SUCCESS)
        return
    done = context.when_durable(connection, request, answer)
    context.offsets.commit(key, offset, done)


def _handle_later(
    context: BrokerContext, connection: BrokerConnection, request: Command, handler: Handler
) -> None:
    """Handle a request when the writes submitted before have ended, a reset among them."""
    # An empty write: writes end in the order of submission.
    again = partial(handler, context, connection, request)
    context.store.submit(Write(context.when_durable(connection, request, again)))


def _check_epoch(context: BrokerContext, header: UpdateOffsetHeader) -> None:
    # Fencing: a member whose lock was taken over cannot move the offset any more
    # (docs/internals/semantics.md#fencing). Java's clients send no epoch and are not fenced.
    queue = MessageQueue(header.topic, context.config.broker_name, header.queue_id)
    client, epoch = header.client_id or "", header.epoch or 0
    if not context.locks.is_current(header.group, queue, client, epoch):
        context.statistics.commits_fenced += 1
        raise RequestRefused(
            ResponseCode.OMQ_FENCED,
            f"offset {header.commit_offset} of {queue} for group {header.group!r} refused: "
            f"it came from {client!r} in epoch {epoch}, but "
            f"{context.locks.describe(header.group, queue)}",
        )


def _in_range(
    context: BrokerContext, connection: BrokerConnection, header: UpdateOffsetHeader
) -> int:
    """Return the offset to store: the one of the request, or the queue's end for a seek beyond it.

    Raises: RequestRefused: it is beyond the end or of an earlier life of the topic, and no seek.
    """
    # RocketMQ's broker stores any number. One beyond the end would skip messages that are not even
    # sent yet, and only a defect or a damaged answer makes a client commit it. Below the first
    # message is allowed: retention may have overtaken a slow consumer.
    log = context.store.find_log(header.topic, header.queue_id)
    end = 0 if log is None else log.max_offset
    if header.reset:
        return min(header.commit_offset, end)
    key = header.group, header.topic, header.queue_id
    if header.commit_offset > end:
        reason = f"is beyond its end: expected at most {end}"
    elif connection.is_of_earlier_life(key, log):
        reason = "counts messages of a topic that was deleted: pull from the new one first"
    else:
        return header.commit_offset
    context.statistics.commits_refused += 1
    raise RequestRefused(
        ResponseCode.INVALID_PARAMETER,
        f"offset {header.commit_offset} of queue {header.queue_id} of topic {header.topic!r} "
        f"for group {header.group!r} {reason}",
    )


def maximum(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    log = _asked_log(context, QueueHeader.from_ext(request.ext))
    _reply_offset(connection, request, 0 if log is None else log.max_offset)


def minimum(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    log = _asked_log(context, QueueHeader.from_ext(request.ext))
    _reply_offset(connection, request, 0 if log is None else log.min_offset)


def search(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = SearchOffsetHeader.from_ext(request.ext)
    log = _asked_log(context, header)
    if log is None:
        _reply_offset(connection, request, 0)
    elif (header.boundary or "").upper() == "UPPER":
        found = context.store.search(log, header.timestamp_ms, after=True) - 1
        _reply_offset(connection, request, max(found, log.min_offset))
    else:
        found = context.store.search(log, header.timestamp_ms, after=False)
        _reply_offset(connection, request, found)


def earliest(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    log = _asked_log(context, QueueHeader.from_ext(request.ext))
    record = None if log is None else context.store.record(log, log.min_offset)
    stored_ms = -1 if record is None else stored_at(record)
    connection.reply(request, ResponseCode.SUCCESS, {"timestamp": str(stored_ms)})


def _asked_log(context: BrokerContext, header: QueueHeader | SearchOffsetHeader) -> QueueLog | None:
    context.topics.existing(header.topic)
    return context.store.find_log(header.topic, header.queue_id)


def _reply_offset(connection: BrokerConnection, request: Command, offset: int) -> None:
    connection.reply(request, ResponseCode.SUCCESS, OffsetReplyHeader(offset).to_ext())


def reset(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    """Move a group to other offsets, as an administrator asked.

    The broker stores them and answers each queue's next pull with them, so every client
    follows, also one that does not know resets.
    """
    topic = context.topics.staying(required_field(request, "topic"))
    name = required_field(request, "group")
    group = context.groups.get(name)
    if group is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {name!r} is not known"
        )
    targets = _reset_targets(context, request, name, topic)
    if any(map(context.offsets.is_resetting, targets)):
        _handle_later(context, connection, request, reset)
        return

    def stored() -> None:
        for key, offset in targets.items():
            queue_id = key[2]
            if group.members:
                context.offsets.announce_reset(key, offset)
            context.history.record(
                EventType.RESET, group=name, topic=topic.name,
                broker=context.config.broker_name, queue=queue_id, off=offset,
            )  # fmt: skip
            # A popped batch is of before the reset: nothing of it may move the group any more.
            context.pop_leases.forget(key)
            # A held pull would hear of it only at its deadline.
            context.long_polling.answer_group((topic.name, queue_id), name)
        context.held_pops.wake((name, topic.name))
        broker = context.config.broker_name
        table = {MessageQueue(topic.name, broker, key[2]): to for key, to in targets.items()}
        body = b'{"offsetTable":' + queue_table_to_json(table) + b"}"
        connection.reply(request, ResponseCode.SUCCESS, body=body)

    done = context.when_durable(connection, request, stored)
    context.offsets.reset(targets, done, [context.pop_leases.deletion_of(key) for key in targets])


def _reset_targets(
    context: BrokerContext, request: Command, group: str, topic: Topic
) -> dict[OffsetKey, int]:
    """Return the new offset of each queue; without isForce none moves forward."""
    only = number_field(request, "queueId", _ALL_QUEUES)
    if only != _ALL_QUEUES and not 0 <= only < topic.read_queues:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queue {only} of topic {topic.name!r}: expected 0..{topic.read_queues - 1}",
        )
    forced = request.ext.get("isForce", "").lower() == "true"
    found: dict[OffsetKey, int] = {}
    for queue_id in range(topic.read_queues) if only == _ALL_QUEUES else (only,):
        key = group, topic.name, queue_id
        target = _reset_target(context, request, topic, queue_id)
        committed = context.offsets.get(key)
        if committed is not None and committed < target and not forced:
            target = committed
        found[key] = target
    return found


def _reset_target(context: BrokerContext, request: Command, topic: Topic, queue_id: int) -> int:
    log = context.store.find_log(topic.name, queue_id)
    if log is None:
        return 0
    # Newer tools send an offset, older ones only a time; an offset wins.
    given = number_field(request, "offset", -1)
    if given >= 0:
        return min(max(given, log.min_offset), log.max_offset)
    timestamp_ms = number_field(request, "timestamp")
    if timestamp_ms == _LATEST:
        return log.max_offset
    return context.store.search(log, timestamp_ms, after=False)


HANDLERS: dict[int, Handler] = {
    RequestCode.QUERY_CONSUMER_OFFSET: query,
    RequestCode.UPDATE_CONSUMER_OFFSET: update,
    RequestCode.GET_MAX_OFFSET: maximum,
    RequestCode.GET_MIN_OFFSET: minimum,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search,
    RequestCode.GET_EARLIEST_MSG_STORETIME: earliest,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset,
}
