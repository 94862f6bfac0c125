"""Moving a group to another offset, as admin tools ask for it
(docs/internals/protocol.md#requests-to-consumers).

The broker stores the new offsets and answers the next pull of each queue with them, so every
client follows, whatever it knows of resets: "offset moved" is part of pulling.
"""

from __future__ import annotations

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.consumer_offsets import OffsetKey
from ordermq.broker.context import BrokerContext, Handler, NotClaimed
from ordermq.broker.processors.topics import existing_topic, number, required
from ordermq.broker.topics import Topic
from ordermq.errors import StoreError
from ordermq.events import EventType
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import queue_table_to_json
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command

_ALL_QUEUES = -1
_LATEST = -1  # as a timestamp: behind the newest message


def reset(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    topic = existing_topic(context, required(request, "topic"))
    name = required(request, "group")
    group = context.groups.get(name)
    if group is None:
        raise NotClaimed(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {name!r} is not known")
    targets = _targets(context, request, name, topic)
    if group.members:
        for key, offset in targets.items():
            context.offsets.send_members(key, offset)

    def finish(error: StoreError | None) -> None:
        if error is not None:
            for key in targets:
                context.offsets.take_reset(key)
            context.refuse_write(connection, request, error)
            return
        for (_, _, queue_id), offset in targets.items():
            context.history.record(
                EventType.RESET, group=name, topic=topic.name,
                broker=context.config.broker_name, queue=queue_id, off=offset,
            )  # fmt: skip
            context.held_pulls.release_group((topic.name, queue_id), name)
        broker = context.config.broker_name
        table = {MessageQueue(topic.name, broker, key[2]): to for key, to in targets.items()}
        body = b'{"offsetTable":' + queue_table_to_json(table) + b"}"
        connection.reply(request, ResponseCode.SUCCESS, body=body)

    context.offsets.reset(targets, finish)


def _targets(
    context: BrokerContext, request: Command, group: str, topic: Topic
) -> dict[OffsetKey, int]:
    """Where each queue goes: to a time, or to the offset given; forward only if forced."""
    only = int(request.ext.get("queueId") or _ALL_QUEUES)
    if only != _ALL_QUEUES and not 0 <= only < topic.read_queues:
        raise NotClaimed(
            ResponseCode.INVALID_PARAMETER,
            f"queue {only} of topic {topic.name!r}: expected 0..{topic.read_queues - 1}",
        )
    forced = request.ext.get("isForce", "").lower() == "true"
    found: dict[OffsetKey, int] = {}
    for queue_id in range(topic.read_queues) if only == _ALL_QUEUES else (only,):
        key = group, topic.name, queue_id
        target = _target(context, request, topic, queue_id)
        committed = context.offsets.get(key)
        if committed is not None and committed < target and not forced:
            target = committed
        found[key] = target
    return found


def _target(context: BrokerContext, request: Command, topic: Topic, queue_id: int) -> int:
    log = context.store.find_log(topic.name, queue_id)
    if log is None:
        return 0
    given = int(request.ext.get("offset") or -1)
    if given >= 0:
        return min(max(given, log.min_offset), log.max_offset)
    timestamp_ms = number(request, "timestamp")
    if timestamp_ms == _LATEST:
        return log.max_offset
    return context.store.search(log, timestamp_ms, after=False)


HANDLERS: dict[int, Handler] = {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset}
