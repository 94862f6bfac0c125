"""One pull of one queue, as the caller asks for it, and what it brought
(docs/internals/protocol.md#pulling)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ordermq.client.routes import MASTER_ID, PullSource
from ordermq.client.session import ClientSession
from ordermq.errors import ConfigError, RemotingError
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_topic
from ordermq.model.subscription import EVERYTHING, Subscription
from ordermq.remoting.codes import PullFlag, ResponseCode
from ordermq.remoting.headers import PullHeader


class PullStatus(StrEnum):
    """How a pull ended."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"  # the offset is the queue's end
    NO_MATCHED_MSG = "NO_MATCHED_MSG"  # what was looked at has other tags: go on behind it
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"  # the broker does not have this offset, or an admin moved it


_STATUS = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull brought.

    Args:
        next_begin_offset: where the next pull of this queue begins, whatever the status.
        min_offset, max_offset: what the broker had: the oldest, and the next to be written.
        messages: ascending in offset; empty unless FOUND.
        suggested_broker_id: the replica the broker would have us ask next; 0 is the master.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: MessageBatch
    suggested_broker_id: int = MASTER_ID


def choice(topic: str, expression: str, sql: str | None, version: int) -> Subscription:
    """Which messages of a topic: by tags, or by a condition on properties.

    Raises: ConfigError: an illegal topic or expression, or two of them.
    """
    if sql is None:
        return Subscription.parse(check_topic(topic), expression, version)
    if expression != EVERYTHING:
        raise ConfigError(f"topic {topic!r}: give tags or `sql`, not both")
    return Subscription.sql(check_topic(topic), sql, version)


async def pull_once(
    client: ClientSession,
    source: PullSource,
    group: str,
    queue: MessageQueue,
    subscription: Subscription,
    offset: int,
    max_messages: int,
    *,
    timeout_ms: int,
    suspend_ms: int = 0,
    max_bytes: int | None = None,
) -> PullResult:
    """Pull once; on the I/O thread.

    Args:
        source: says which replica to ask; it is told what became of it.
        timeout_ms: how long to wait for the answer; more than `suspend_ms`.
        suspend_ms: how long the broker may hold the pull until there is a message.
    Raises: RemotingError: refused, or not answered. RouteError: the broker is not known.
    """
    header = PullHeader(
        group,
        queue.topic,
        queue.queue_id,
        offset,
        max_messages,
        # Not as LITE_PULL_MESSAGE, which Java's lite consumer uses from 5.0 on: 4.9 has none.
        PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if suspend_ms else 0),
        suspend_timeout_ms=suspend_ms,
        # Also of a condition in SQL: what a heartbeat told is known for subscribers only.
        subscription=subscription.expression,
        subscription_version=subscription.version if subscription.is_sql else 0,
        expression_type=subscription.expression_type,
        max_bytes=max_bytes,
        broker_name=queue.broker_name,
    )
    _, address = source.choose()
    try:
        code, reply, body = await client.api.pull(address, header, timeout_ms)
    except RemotingError:
        await source.failed()
        raise
    status = _STATUS[ResponseCode(code)]
    wanted = tuple(tag.encode() for tag in subscription.tags)
    batch = MessageBatch(
        queue, body if status is PullStatus.FOUND else b"", wanted, client.config.namespace
    )
    if status is PullStatus.FOUND and len(batch) == 0:
        status = PullStatus.NO_MATCHED_MSG  # other tags of the same hash, which the broker passes
    return PullResult(
        status,
        reply.next_begin_offset,
        reply.min_offset,
        reply.max_offset,
        batch,
        reply.suggested_broker_id,
    )
