"""Reading a range of one queue, beside its group: nothing is joined, locked or committed."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ordermq.client.session import ClientSession
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import EVERYTHING, Subscription
from ordermq.remoting.codes import PullFlag, ResponseCode
from ordermq.remoting.headers import PullHeader

AT_ONCE = 32  # RocketMQ's brokers give no more


async def scan(
    client: ClientSession,
    group: str,
    queue: MessageQueue,
    offset: int,
    end: int,
    wanted: Subscription | None = None,
) -> AsyncGenerator[MessageView, None]:
    """Yield the messages of offsets from `offset` to before `end`, ascending.

    The route of the topic must be known. Offsets that the broker no longer has are left out.

    Args:
        group: only named in the pulls, as brokers ask for one.
        wanted: only these messages; None: all.
    Raises: RemotingError: refused, or not answered. RouteError: the broker is away.
    """
    address = client.routes.master_of(queue.broker_name)
    wanted = wanted or Subscription.parse(queue.topic, EVERYTHING, 0)
    tags = tuple(tag.encode() for tag in wanted.tags)
    moved_at = -1
    while offset < end:
        header = PullHeader(
            group, queue.topic, queue.queue_id, offset, min(AT_ONCE, end - offset),
            PullFlag.SUBSCRIPTION, subscription=wanted.expression,
            subscription_version=wanted.version, expression_type=wanted.expression_type,
            broker_name=queue.broker_name,
        )  # fmt: skip
        timeout_ms = client.config.offset_timeout_ms
        code, reply, body = await client.api.pull(address, header, timeout_ms)
        following = reply.next_begin_offset
        if code == ResponseCode.SUCCESS:
            for message in client.api.batch(queue, body, tags, offset, following):
                if message.queue_offset < end:
                    yield message
        is_held = reply.min_offset <= offset < reply.max_offset
        if code == ResponseCode.PULL_OFFSET_MOVED and is_held and moved_at != offset:
            moved_at = offset  # a reset of the group, or a new life of the topic: told once
            continue
        if following <= offset:
            return
        offset = following
