"""Handlers of pulls (docs/internals/protocol.md#pulling; the offset rules of
docs/internals/semantics.md#pull-loop).

A pull that finds no message is held in `ordermq/broker/long_polling.py`, for as long as the
client asked (`broker_suspend_ms`).
"""

from __future__ import annotations

from functools import lru_cache

from ordermq.broker.connection import BrokerConnection, RequestRefused
from ordermq.broker.consumer_offsets import MAX_OFFSET
from ordermq.broker.context import BrokerContext, Handler
from ordermq.broker.groups import Group
from ordermq.broker.long_polling import HeldPull
from ordermq.broker.processors.fast_path import pull_reply_head, read_pull_header
from ordermq.broker.store import QueueLog
from ordermq.broker.topics import Topic
from ordermq.errors import ConfigError, StoreError
from ordermq.events import EventType
from ordermq.model.hashing import string_hash
from ordermq.model.subscription import split_tags
from ordermq.remoting.codes import (
    OFFSET_RESET,
    OFFSETS_LEFT_OUT,
    PullFlag,
    RequestCode,
    ResponseCode,
)
from ordermq.remoting.command import Command
from ordermq.remoting.headers import PullHeader, PullReplyHeader

NEW_LIFE = "TOPIC_CREATED_ANEW"  # remark of an answer that RocketMQ's brokers do not have
# Plain numbers: arithmetic with the members of an enum is several times slower.
_COMMIT = int(PullFlag.COMMIT_OFFSET)
_SUSPEND = int(PullFlag.SUSPEND)
_SUBSCRIPTION = int(PullFlag.SUBSCRIPTION)


def pull(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = read_pull_header(request.ext)
    context.statistics.pulls += 1
    tag_hashes = _check(context, header)
    # A pull may commit an offset on its way; its reply does not wait for that.
    if header.sys_flag & _COMMIT and 0 <= header.commit_offset <= MAX_OFFSET:
        _commit(context, connection, header)
    suspend_ms = header.suspend_timeout_ms if header.sys_flag & _SUSPEND else 0
    _answer(context, connection, request, header, tag_hashes, suspend_ms)


def answer_held(context: BrokerContext, held: HeldPull) -> None:
    """Evaluate a held pull again and answer it, also if there is still no message."""
    # Read again instead of kept: most pulls are answered at once, and a header per held pull
    # would be more memory than the request alone.
    header = read_pull_header(held.request.ext)
    context.topics.existing(header.topic)  # it may have been deleted meanwhile
    _answer(context, held.connection, held.request, header, held.tag_hashes, 0)


def _check(context: BrokerContext, header: PullHeader) -> tuple[int, ...]:
    """Check that the pull is allowed; return the tag hashes it filters by, none for all."""
    group, topic = readers_of(context, header.group, header.topic, header.expression_type)
    if not 0 <= header.queue_id < topic.read_queues:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queue {header.queue_id} of topic {topic.name!r}: expected 0..{topic.read_queues - 1}",
        )
    if header.sys_flag & _SUBSCRIPTION:
        return wanted_tags(header.subscription)
    # Without an expression of its own, a pull uses the subscription of the group's heartbeats.
    registered = group.subscriptions.get(header.topic)
    if registered is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"group {group.name!r} has no live subscription of {header.topic!r}: send a "
            "heartbeat with it first",
        )
    # Filtering by an older subscription would skip messages for good.
    if registered.subscription.version < header.subscription_version:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            f"group {group.name!r} pulls {header.topic!r} with a newer subscription than that of "
            "its last heartbeat: send a heartbeat first",
        )
    return registered.tag_hashes


def readers_of(
    context: BrokerContext, group_name: str, topic_name: str, expression_type: str | None
) -> tuple[Group, Topic]:
    """Return the group and the topic of a request for messages, by pull or by pop.

    Raises: RequestRefused: one of them is closed, or the broker does not filter so.
    """
    group = context.groups.ensure(group_name)
    if not group.is_enabled:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"group {group.name!r} may not consume: consumeEnable is off",
        )
    topic = context.topics.existing(topic_name)
    if not topic.is_readable:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"topic {topic.name!r} has no read permission"
        )
    if expression_type not in (None, "", "TAG"):
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"the broker does not filter by {expression_type}: use a tag expression",
        )
    return group, topic


def wanted_tags(expression: str | None) -> tuple[int, ...]:
    """Return `tag_hashes_of` an expression that a client has sent.

    Raises: RequestRefused: it is none.
    """
    try:
        return tag_hashes_of(expression)
    except ConfigError as error:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None


# A consumer sends the same expression with every pull.
@lru_cache(maxsize=1024)
def tag_hashes_of(expression: str | None) -> tuple[int, ...]:
    """Return the hashes of an expression's tags, none for all messages.

    Raises: ConfigError: it is no expression.
    """
    return tuple(string_hash(tag) for tag in split_tags("", expression))


def _commit(context: BrokerContext, connection: BrokerConnection, header: PullHeader) -> None:
    if context.topics.is_ending(header.topic):
        return

    def finish(error: StoreError | None) -> None:
        # Counted, not answered: the pull does not depend on it, and the store has logged it.
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
    log = context.store.readable_log(header.topic, header.queue_id)
    # As in `offsets.update`, but a pull is answered all the same.
    if header.commit_offset > log.max_offset or connection.is_of_earlier_life(key, log):
        context.statistics.commits_refused += 1
    elif not (
        context.is_moving(key)
        or context.offsets.has_unseen_reset(key)
        or context.is_behind(key, header.commit_offset)
    ):
        context.offsets.commit(key, header.commit_offset, finish)


def _answer(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    header: PullHeader,
    tag_hashes: tuple[int, ...],
    suspend_ms: int,
) -> None:
    key = header.group, header.topic, header.queue_id
    log = context.store.readable_log(header.topic, header.queue_id)
    offset = header.queue_offset
    # An administrator's reset reaches every client this way, also one that knows no resets:
    # "offset moved" is part of pulling.
    reset_to = context.offsets.take_reset(key)
    if reset_to is not None and reset_to != offset:
        ext = _reply_ext(log, reset_to)
        connection.reply(request, ResponseCode.PULL_OFFSET_MOVED, ext, remark=OFFSET_RESET)
        return
    if connection.begins_life(key, log) and offset > log.min_offset and reset_to is None:
        # The topic was deleted and made anew since this client's last pull: its offset counts
        # messages of the old one, and says nothing of the new one, however long that is.
        ext = _reply_ext(log, log.min_offset)
        connection.reply(request, ResponseCode.PULL_OFFSET_MOVED, ext, remark=NEW_LIFE)
        return
    if log.min_offset <= offset < log.max_offset:
        _answer_found(context, connection, request, header, tag_hashes, log)
        return
    # The codes and remarks of the four cases below are Java's.
    if offset == log.max_offset:
        if suspend_ms > 0:
            deadline_ms = context.clock.now_ms() + suspend_ms
            held = HeldPull(connection, request, deadline_ms, tag_hashes)
            context.long_polling.hold((header.topic, header.queue_id), held)
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
        # Messages, but none with the tags: the client pulls again behind what was scanned. Or the
        # gap of a restored back-up.
        remark = "NO_MATCHED_MESSAGE" if tag_hashes else OFFSETS_LEFT_OUT
        ext = _reply_ext(log, context.store.next_stored(log, next_offset))
        connection.reply(request, ResponseCode.PULL_RETRY_IMMEDIATELY, ext, remark=remark)
        return
    context.statistics.bytes_pulled += len(body)
    if not request.is_oneway:
        head = pull_reply_head(
            request.opaque, next_offset, log.min_offset, log.max_offset, len(body)
        )
        connection.send(head, body)


def _reply_ext(log: QueueLog, next_offset: int) -> dict[str, str]:
    return PullReplyHeader(next_offset, log.min_offset, log.max_offset).to_ext()


HANDLERS: dict[int, Handler] = {
    RequestCode.PULL_MESSAGE: pull,
    RequestCode.LITE_PULL_MESSAGE: pull,
}
