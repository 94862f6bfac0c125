"""Consumer offsets and what a queue reaches (docs/internals/protocol.md#offsets)."""

from __future__ import annotations

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext, Handler, NotClaimed
from ordermq.broker.group_commit import QueueLog
from ordermq.broker.processors.topics import existing_topic
from ordermq.errors import StoreError
from ordermq.events import EventType
from ordermq.model.message_queue import MessageQueue
from ordermq.model.stored_message import stored_at
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import (
    OffsetReplyHeader,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateOffsetHeader,
)

MAX_OFFSET = (1 << 63) - 1


def query(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = QueryOffsetHeader.from_ext(request.ext)
    key = header.group, header.topic, header.queue_id

    def answer(error: StoreError | None) -> None:
        if error is not None:
            context.refuse_write(connection, request, error)
            return
        offset = context.offsets.get(key)
        if offset is None and (
            header.set_zero_if_not_found or context.config.new_groups_start_at_zero
        ):
            log = context.store.find_log(header.topic, header.queue_id)
            if log is None or log.min_offset == 0:
                offset = 0
        if offset is None:
            # So that the client's consumeFromWhere decides (rmq#9083).
            connection.reply(
                request, ResponseCode.QUERY_NOT_FOUND, remark="the group has no offset here yet"
            )
        else:
            _reply_offset(connection, request, offset)

    context.offsets.after_commits(key, answer)


def update(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = UpdateOffsetHeader.from_ext(request.ext)
    existing_topic(context, header.topic)
    group = context.groups.ensure(header.group)
    if not 0 <= header.commit_offset <= MAX_OFFSET:
        raise NotClaimed(
            ResponseCode.INVALID_PARAMETER,
            f"offset {header.commit_offset}: expected 0..{MAX_OFFSET}",
        )
    if header.epoch is not None:
        _check_epoch(context, header)
    epoch, client = header.epoch or 0, header.client_id or ""

    def finish(error: StoreError | None) -> None:
        if error is not None:
            context.refuse_write(connection, request, error)
            return
        context.statistics.commits += 1
        if context.history.enabled:
            event = EventType.RESET if header.reset else EventType.COMMIT_ACK
            context.history.record(
                event, group=group.name, topic=header.topic, broker=context.config.broker_name,
                queue=header.queue_id, epoch=epoch, off=header.commit_offset, client=client,
            )  # fmt: skip
        connection.reply(request, ResponseCode.SUCCESS)

    key = header.group, header.topic, header.queue_id
    if context.offsets.is_void(key) and not header.reset:
        # An admin has just moved the group; a member that has not heard of it must not undo it.
        connection.reply(request, ResponseCode.SUCCESS)
        return
    context.offsets.commit(key, header.commit_offset, finish)


def _check_epoch(context: BrokerContext, header: UpdateOffsetHeader) -> None:
    queue = MessageQueue(header.topic, context.config.broker_name, header.queue_id)
    client, epoch = header.client_id or "", header.epoch or 0
    if not context.locks.is_current(header.group, queue, client, epoch):
        context.statistics.commits_fenced += 1
        raise NotClaimed(
            ResponseCode.OMQ_FENCED,
            f"offset {header.commit_offset} of {queue} for group {header.group!r} refused: "
            f"it came from {client!r} in epoch {epoch}, but "
            f"{context.locks.describe(header.group, queue)}",
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
    existing_topic(context, header.topic)
    return context.store.find_log(header.topic, header.queue_id)


def _reply_offset(connection: BrokerConnection, request: Command, offset: int) -> None:
    connection.reply(request, ResponseCode.SUCCESS, OffsetReplyHeader(offset).to_ext())


HANDLERS: dict[int, Handler] = {
    RequestCode.QUERY_CONSUMER_OFFSET: query,
    RequestCode.UPDATE_CONSUMER_OFFSET: update,
    RequestCode.GET_MAX_OFFSET: maximum,
    RequestCode.GET_MIN_OFFSET: minimum,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search,
    RequestCode.GET_EARLIEST_MSG_STORETIME: earliest,
}
