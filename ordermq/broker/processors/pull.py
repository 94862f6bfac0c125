"""Pulling (docs/internals/protocol.md#pulling; the offset rules of
docs/internals/semantics.md#pull-loop)."""

from __future__ import annotations

from functools import lru_cache

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext, Handler, NotClaimed
from ordermq.broker.group_commit import QueueLog
from ordermq.broker.hot_frames import pull_answer_head, read_pull_header
from ordermq.broker.long_poll import HeldPull
from ordermq.broker.processors.offsets import MAX_OFFSET
from ordermq.broker.processors.topics import existing_topic, number
from ordermq.errors import ConfigError, StoreError
from ordermq.events import EventType
from ordermq.model.subscription import Subscription
from ordermq.remoting.codes import PullFlag, RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import PullHeader, PullReplyHeader

# Plain numbers: arithmetic with an enum's members costs as much as a dictionary lookup.
_COMMIT = int(PullFlag.COMMIT_OFFSET)
_SUSPEND = int(PullFlag.SUSPEND)
_SUBSCRIPTION = int(PullFlag.SUBSCRIPTION)


def pull(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = read_pull_header(request.ext)
    context.statistics.pulls += 1
    tag_hashes = _check(context, header)
    if header.sys_flag & _COMMIT and 0 <= header.commit_offset <= MAX_OFFSET:
        _commit(context, header)
    suspend_ms = header.suspend_timeout_ms if header.sys_flag & _SUSPEND else 0
    _answer(context, connection, request, header, tag_hashes, suspend_ms)


def release(context: BrokerContext, held: HeldPull) -> None:
    """Judge a held pull once more and answer whatever is found."""
    header = read_pull_header(held.request.ext)
    _answer(context, held.connection, held.request, header, held.tag_hashes, 0)


def _check(context: BrokerContext, header: PullHeader) -> tuple[int, ...]:
    """What the pull may see: its tag hashes, none for everything."""
    group = context.groups.ensure(header.group)
    if not group.is_enabled:
        raise NotClaimed(ResponseCode.NO_PERMISSION, f"group {group.name!r} may not consume")
    topic = existing_topic(context, header.topic)
    if not topic.is_readable:
        raise NotClaimed(ResponseCode.NO_PERMISSION, f"topic {topic.name!r} may not be read")
    if not 0 <= header.queue_id < topic.read_queues:
        raise NotClaimed(
            ResponseCode.INVALID_PARAMETER,
            f"queue {header.queue_id} of topic {topic.name!r}: expected 0..{topic.read_queues - 1}",
        )
    if header.expression_type not in (None, "", "TAG"):
        raise NotClaimed(
            ResponseCode.SYSTEM_ERROR,
            f"the broker does not filter by {header.expression_type}: use a tag expression",
        )
    if header.sys_flag & _SUBSCRIPTION:
        try:
            return _tag_hashes(header.subscription)
        except ConfigError as error:
            raise NotClaimed(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
    wanted = group.wanted.get(header.topic)
    if wanted is None:
        raise NotClaimed(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"group {group.name!r} has no live subscription of {header.topic!r}: send a "
            "heartbeat with it first",
        )
    if wanted.subscription.version < header.subscription_version:
        raise NotClaimed(
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            f"group {group.name!r} pulls {header.topic!r} with a subscription newer than its "
            "heartbeats told: send a heartbeat first",
        )
    return wanted.tag_hashes


@lru_cache(maxsize=1024)
def _tag_hashes(expression: str | None) -> tuple[int, ...]:
    return Subscription.parse("", expression, 0).tag_hashes


def _commit(context: BrokerContext, header: PullHeader) -> None:
    def finish(error: StoreError | None) -> None:
        # The pull does not depend on it; the store has logged the failure.
        if error is not None:
            context.statistics.writes_failed += 1
            return
        context.statistics.commits += 1
        if context.history.enabled:
            context.history.record(
                EventType.COMMIT_ACK, group=header.group, topic=header.topic,
                broker=context.config.broker_name, queue=header.queue_id,
                off=header.commit_offset,
            )  # fmt: skip

    key = header.group, header.topic, header.queue_id
    if not context.offsets.is_void(key):
        context.offsets.commit(key, header.commit_offset, finish)


def _answer(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    header: PullHeader,
    tag_hashes: tuple[int, ...],
    suspend_ms: int,
) -> None:
    log = context.store.log(header.topic, header.queue_id)
    offset = header.queue_offset
    target = context.offsets.take_reset((header.group, header.topic, header.queue_id))
    if target is not None and target != offset:
        ext = _reply_ext(log, target)
        connection.reply(request, ResponseCode.PULL_OFFSET_MOVED, ext, remark="OFFSET_RESET")
        return
    if log.min_offset <= offset < log.max_offset:
        _answer_found(context, connection, request, header, tag_hashes, log)
        return
    if offset == log.max_offset:
        if suspend_ms > 0:
            deadline_ms = context.clock.now_ms() + suspend_ms
            held = HeldPull(connection, request, deadline_ms, tag_hashes)
            context.held_pulls.hold((header.topic, header.queue_id), held)
            return
        code, next_offset = ResponseCode.PULL_NOT_FOUND, offset
        remark = "OFFSET_OVERFLOW_ONE" if offset else "NO_MESSAGE_IN_QUEUE"
    elif offset < log.min_offset:
        code, next_offset = ResponseCode.PULL_OFFSET_MOVED, log.min_offset
        remark = "OFFSET_TOO_SMALL"
    else:
        code, next_offset = ResponseCode.PULL_OFFSET_MOVED, log.max_offset
        remark = "OFFSET_OVERFLOW_BADLY" if log.max_offset else "NO_MESSAGE_IN_QUEUE"
    connection.reply(request, code, _reply_ext(log, next_offset), remark=remark)


def _answer_found(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    header: PullHeader,
    tag_hashes: tuple[int, ...],
    log: QueueLog,
) -> None:
    config = context.config
    count = min(max(header.max_messages, 1), config.max_pull_messages)
    max_bytes = min(header.max_bytes or config.max_pull_bytes, config.max_pull_bytes)
    if tag_hashes:
        body, next_offset = context.store.read_tagged(
            log, header.queue_offset, count, max_bytes, tag_hashes
        )
    else:
        body, next_offset = context.store.read(log, header.queue_offset, count, max_bytes)
    if not body:
        ext = _reply_ext(log, next_offset)
        connection.reply(
            request, ResponseCode.PULL_RETRY_IMMEDIATELY, ext, remark="NO_MATCHED_MESSAGE"
        )
        return
    context.statistics.bytes_pulled += len(body)
    if not request.is_oneway:
        head = pull_answer_head(
            request.opaque, next_offset, log.min_offset, log.max_offset, len(body)
        )
        connection.send(head, body)


def _reply_ext(log: QueueLog, next_offset: int) -> dict[str, str]:
    return PullReplyHeader(next_offset, log.min_offset, log.max_offset).to_ext()


def view(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    offset = number(request, "offset")
    record = context.store.record_at(offset)
    if record is None:
        raise NotClaimed(ResponseCode.SYSTEM_ERROR, f"no message is stored at {offset}")
    connection.reply(request, ResponseCode.SUCCESS, body=record)


HANDLERS: dict[int, Handler] = {
    RequestCode.PULL_MESSAGE: pull,
    RequestCode.LITE_PULL_MESSAGE: pull,
    RequestCode.VIEW_MESSAGE_BY_ID: view,
}
