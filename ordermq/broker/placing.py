"""Where a message goes: its queue, a delay level first, or the dead-letter topic.

Shared by sends, messages given back, and delayed ones that are due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ordermq.broker.context import Refusal
from ordermq.broker.group_commit import QueueLog
from ordermq.broker.topics import DELAY_LEVELS_MS
from ordermq.model import properties as props
from ordermq.model.names import SCHEDULE_TOPIC
from ordermq.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from ordermq.broker.context import BrokerContext

_UNSUPPORTED = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")


class Place(NamedTuple):
    """A log to append to, and what goes with the record."""

    log: QueueLog
    properties: bytes
    due_ms: int | None  # in the schedule topic: when it is due, in place of its tag's hash
    stored_ms: int


def place(context: BrokerContext, topic: str, queue_id: int, properties: str) -> Place:
    """Decide where a message for a queue is stored now, honouring its delay level.

    Raises: Refusal: a property asks for what this broker does not do, or all are too long.
    """
    delay_ms = 0
    # One look in the text; names inside values only cost the careful look below.
    if "DELAY" in properties or "TRAN_MSG" in properties or "TIMER_DELIVER" in properties:
        parsed = props.decode(properties)
        _refuse_unsupported(parsed)
        level = delay_level(parsed.get(props.DELAY))
        if level:
            parsed[props.REAL_TOPIC] = topic
            parsed[props.REAL_QUEUE_ID] = str(queue_id)
            properties = props.encode(parsed)
            topic, queue_id = SCHEDULE_TOPIC, level - 1
            delay_ms = DELAY_LEVELS_MS[level - 1]
    raw = properties.encode()
    if len(raw) > props.MAX_BYTES:
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"message properties take {len(raw)} bytes: expected at most {props.MAX_BYTES}",
        )
    log = context.store.log(topic, queue_id)
    stored_ms = stored_now(context, log)
    return Place(log, raw, stored_ms + delay_ms if delay_ms else None, stored_ms)


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


def _refuse_unsupported(parsed: dict[str, str]) -> None:
    if parsed.get("TRAN_MSG") == "true":
        raise Refusal(
            ResponseCode.NO_PERMISSION,
            "the embedded broker takes no transactional messages: send it as a plain one",
        )
    for name in _UNSUPPORTED:
        if name in parsed:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the embedded broker has no timers ({name}): use a delay level, 1..18",
            )
