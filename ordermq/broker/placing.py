"""Where a message goes: its queue, or first where delayed ones and halves of transactions wait.

Shared by sends, messages given back, and those that waited and are due.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from ordermq import core
from ordermq.broker.context import NotClaimed
from ordermq.broker.group_commit import Append, QueueLog
from ordermq.broker.topics import DELAY_LEVELS_MS, is_internal_name
from ordermq.errors import ConfigError
from ordermq.model import properties as props
from ordermq.model.names import SCHEDULE_TOPIC
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from ordermq.broker.context import BrokerContext

log = logging.getLogger("ordermq.broker")

_TIMERS = (props.TIMER_DELAY_S, props.TIMER_DELAY_MS, props.TIMER_DELIVER_MS)


class Place(NamedTuple):
    """A log to append to, and what goes with the record."""

    log: QueueLog
    properties: bytes
    due_ms: int | None  # where messages wait: when it is due, in place of its tag's hash
    stored_ms: int


def place(context: BrokerContext, topic: str, queue_id: int, properties: str) -> Place:
    """Decide where a message for a queue is stored now, honouring its delay or time.

    Raises: NotClaimed: it is due too far ahead or at no time, or its properties are too long.
    """
    # One look in the text; names inside values only cost the careful look below.
    if "DELAY" in properties or "TIMER_DELIVER" in properties:
        parsed = props.decode(properties)
        level = delay_level(parsed.get(props.DELAY))
        if level:
            for name in _TIMERS:  # as in Java: the level counts
                parsed.pop(name, None)
            return _place_level(context, topic, queue_id, parsed, level)
        due_ms = _due_ms(context, topic, parsed)
        if due_ms is not None:
            return _place_timer(context, topic, queue_id, parsed, due_ms)
    raw = _written(properties)
    target = context.store.log(topic, queue_id)
    return Place(target, raw, None, stored_now(context, target))


def _place_level(
    context: BrokerContext, topic: str, queue_id: int, properties: dict[str, str], level: int
) -> Place:
    raw = _written(props.encode(_returning(topic, queue_id, properties)))
    target = context.store.log(SCHEDULE_TOPIC, level - 1)
    stored_ms = stored_now(context, target)
    return Place(target, raw, stored_ms + DELAY_LEVELS_MS[level - 1], stored_ms)


def _place_timer(
    context: BrokerContext, topic: str, queue_id: int, properties: dict[str, str], due_ms: int
) -> Place:
    properties[props.TIMER_OUT_MS] = str(due_ms)
    raw = _written(props.encode(_returning(topic, queue_id, properties)))
    target = context.timers.log
    return Place(target, raw, due_ms, stored_now(context, target))


def _due_ms(context: BrokerContext, topic: str, properties: dict[str, str]) -> int | None:
    """When a timed message is due; None if that is now, or it has waited before.

    Raises: NotClaimed: not a number, or too far ahead.
    """
    if props.TIMER_OUT_MS in properties:
        return None
    name = next((name for name in _TIMERS if name in properties), None)
    if name is None:
        return None
    now_ms = context.clock.wall_ms()
    most_ms = context.config.timer_max_delay_ms
    try:
        due_ms = int(properties[name]) * (1_000 if name == props.TIMER_DELAY_S else 1)
        if name != props.TIMER_DELIVER_MS:
            due_ms += now_ms
    except ValueError:
        due_ms = now_ms + most_ms + 1
    if due_ms > now_ms + most_ms:
        raise NotClaimed(
            ResponseCode.MESSAGE_ILLEGAL,
            f"message for topic {topic!r} with {name}={properties[name]!r}: expected a time at "
            f"most {most_ms} ms ahead",
        )
    return due_ms if due_ms > now_ms else None


def _returning(topic: str, queue_id: int, properties: dict[str, str]) -> dict[str, str]:
    """The properties of a message that waits elsewhere; they say where it goes then."""
    return properties | {props.REAL_TOPIC: topic, props.REAL_QUEUE_ID: str(queue_id)}


def place_half(
    context: BrokerContext, topic: str, queue_id: int, properties: dict[str, str]
) -> Place:
    """Where half of a transaction waits; it remembers where it goes then.

    Raises: NotClaimed: it is delayed, or its properties are too long with that.
    """
    for name in (props.DELAY, *_TIMERS):
        if name in properties:
            raise NotClaimed(
                ResponseCode.MESSAGE_ILLEGAL,
                f"half of a transaction cannot be delayed ({name}): send it when it is due",
            )
    waiting = _returning(topic, queue_id, properties)
    if props.UNIQ_KEY in properties:
        waiting[props.TRANSACTION_ID] = properties[props.UNIQ_KEY]
    target = context.halves.log
    return Place(target, _written(props.encode(waiting)), None, stored_now(context, target))


def restored(
    context: BrokerContext,
    message: StoredMessage,
    topic: str,
    queue_id: int,
    *,
    properties: bytes,
    sys_flag: int,
) -> Append | None:
    """A message that waited elsewhere, for its real queue; None if its topic is gone."""
    if not _is_there(context, topic, queue_id):
        log.warning(
            "a message that waited is dropped: its topic was deleted topic=%s queue=%d",
            topic, queue_id,
        )  # fmt: skip
        return None
    target = context.store.log(topic, queue_id)
    writer = core.RecordWriter(topic, queue_id, message.born_host, message.store_host)
    again = writer.write(
        message.body,
        properties,
        flag=message.flag,
        sys_flag=sys_flag,
        born_ms=message.born_ms,
        stored_ms=stored_now(context, target),
        reconsume_times=message.reconsume_times,
    )
    return Append(target, again)


def _is_there(context: BrokerContext, topic: str, queue_id: int) -> bool:
    """Whether the topic exists, perhaps made just now as a send would."""
    topics = context.topics
    if topics.get(topic) is not None:
        return True
    try:
        if is_internal_name(topic):
            return topics.ensure_internal(topic) is not None
        return topics.create_by_send(topic, queue_id + 1) is not None
    except ConfigError:
        return False


def _written(properties: str) -> bytes:
    raw = properties.encode()
    if len(raw) > props.MAX_BYTES:
        raise NotClaimed(
            ResponseCode.MESSAGE_ILLEGAL,
            f"message properties take {len(raw)} bytes: expected at most {props.MAX_BYTES}",
        )
    return raw


def stored_now(context: BrokerContext, log: QueueLog) -> int:
    """The wall clock, held back from going back: searches by time rely on the order."""
    now_ms = context.clock.wall_ms()
    if now_ms < log.last_stored_ms:
        return log.last_stored_ms
    log.last_stored_ms = now_ms
    return now_ms


def delay_level(text: str | None) -> int:
    """The level of a DELAY property: 0 none, clamped to the last one, junk is none."""
    if not text:
        return 0
    try:
        return min(max(int(text), 0), len(DELAY_LEVELS_MS))
    except ValueError:
        return 0
