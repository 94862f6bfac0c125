"""Headers, handles and bodies of POP, in which the broker leases messages to whoever asks
(docs/internals/protocol.md#pop).

A *handle* names one popped batch: RocketMQ's `extraInfo`, which acks and renewals carry back.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence

from ordermq import json_text
from ordermq.errors import ProtocolError
from ordermq.model.names import RETRY_PREFIX
from ordermq.remoting.bodies import load_object, read_member
from ordermq.remoting.headers import Header, ext_field
from ordermq.value import Value

ORDERED = 999  # RocketMQ's POP_ORDER_REVIVE_QUEUE: the batch was popped in order
UNORDERED = 0  # any other queue in which a broker waits for the ends of leases
ANY_QUEUE = -1
MAX_POPPED = 32  # messages of one request, as RocketMQ's brokers allow
BROKERS_TIME = 0  # as the time of a pop: the one at which the broker reads it
FROM_FIRST, FROM_LAST = 0, 1  # start of a group without an offset, in a pop's initMode
NORMAL = "0"  # kinds of topics in handles: the topic itself
RETRIES = "1"  # what a group did not acknowledge in time, or gave back
_SEPARATORS = {RETRIES: "_", "2": "+"}


def real_topic(topic: str, group: str, kind: str) -> str:
    """Return the name of a topic, or of the topic of a group's repeated messages of it.

    Raises: ProtocolError: an unknown kind.
    """
    if kind == NORMAL:
        return topic
    if kind not in _SEPARATORS:
        raise ProtocolError(f"kind {kind!r:.20} of a popped topic: expected 0, 1 or 2")
    return f"{RETRY_PREFIX}{group}{_SEPARATORS[kind]}{topic}"


class PopHeader(Header):
    """POP_MESSAGE 200050."""

    group: str = ext_field("consumerGroup")
    topic: str = ext_field("topic")
    queue_id: int = ext_field("queueId")  # ANY_QUEUE: of all queues of this broker
    max_messages: int = ext_field("maxMsgNums")
    invisible_ms: int = ext_field("invisibleTime")
    poll_ms: int = ext_field("pollTime")  # how long the broker may hold the request
    # On the wall clock of the broker, which refuses a request that is late by more than 500 ms.
    born_ms: int = ext_field("bornTime")
    init_mode: int = ext_field("initMode")  # FROM_FIRST or FROM_LAST
    expression_type: str | None = ext_field("expType", default=None)
    expression: str | None = ext_field("exp", default=None)
    order: bool = False
    # A request that is sent again under the id of the last one gets that one's messages again.
    attempt_id: str | None = ext_field("attemptId", default=None)
    broker_name: str | None = ext_field("bname", default=None)
    fenced: bool | None = ext_field("omqFenced", default=None)


class PopReplyHeader(Header):
    """Response to a pop."""

    pop_ms: int = ext_field("popTime")
    invisible_ms: int = ext_field("invisibleTime")
    revive_queue: int = ext_field("reviveQid")
    rest: int = ext_field("restNum", default=0)
    start_offsets: str | None = ext_field("startOffsetInfo", default=None)
    message_offsets: str | None = ext_field("msgOffsetInfo", default=None)
    order_counts: str | None = ext_field("orderCountInfo", default=None)
    fenced: bool | None = ext_field("omqFenced", default=None)
    # How many messages the group has not had, and the broker has no more.
    expired: int | None = ext_field("omqExpired", default=None)


class AckHeader(Header):
    """ACK_MESSAGE 200051."""

    group: str = ext_field("consumerGroup")
    topic: str = ext_field("topic")
    queue_id: int = ext_field("queueId")
    handle: str = ext_field("extraInfo")
    offset: int = ext_field("offset")
    broker_name: str | None = ext_field("bname", default=None)
    fenced: bool | None = ext_field("omqFenced", default=None)


class ChangeInvisibleHeader(Header):
    """CHANGE_MESSAGE_INVISIBLETIME 200053."""

    group: str = ext_field("consumerGroup")
    topic: str = ext_field("topic")
    queue_id: int = ext_field("queueId")
    handle: str = ext_field("extraInfo")
    offset: int = ext_field("offset")
    invisible_ms: int = ext_field("invisibleTime")  # from the receipt of the request on
    broker_name: str | None = ext_field("bname", default=None)
    fenced: bool | None = ext_field("omqFenced", default=None)


class ChangeInvisibleReplyHeader(Header):
    """Response to 200053; the message is visible again at the sum of both times."""

    pop_ms: int = ext_field("popTime", default=0)
    invisible_ms: int = ext_field("invisibleTime", default=0)
    revive_queue: int = ext_field("reviveQid", default=0)


class PopHandle(Value):
    """The name of one popped batch of a queue.

    Args:
        start: offset of the group when the batch was popped.
        pop_ms: time of the pop on the broker's clock, ms since 1970.
        topic_kind: 0 for the topic itself, else which kind of retry topic.
    """

    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    topic_kind: str
    broker_name: str
    queue_id: int

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue == ORDERED

    def text(self, offset: int) -> str:
        """Return the handle of one message, as it is sent."""
        return (
            f"{self.start} {self.pop_ms} {self.invisible_ms} {self.revive_queue} "
            f"{self.topic_kind} {self.broker_name} {self.queue_id} {offset}"
        )

    @classmethod
    def of_text(cls, text: str) -> PopHandle:
        """Read a received handle.

        Raises: ProtocolError: it is none.
        """
        parts = text.split(" ")
        if len(parts) < 7:
            raise ProtocolError(f"the handle of a popped message is {text!r:.200}: too short")
        start, pop_ms, invisible_ms, revive_queue, queue_id = (
            _number(parts[at], text) for at in (0, 1, 2, 3, 6)
        )
        return cls(start, pop_ms, invisible_ms, revive_queue, parts[4], parts[5], queue_id)


def _number(part: str, text: str) -> int:
    if not (part.isascii() and part.isdecimal() and len(part) < 19):
        raise ProtocolError(
            f"the handle of a popped message is {text!r:.200}: {part!r} is no number"
        )
    return int(part)


class PoppedOffsets(Value):
    """One queue's part of a pop's answer.

    Args:
        start: the group's offset when the messages were popped.
        offsets: of the messages, ascending.
        deliveries: earlier deliveries by offset; 0 where it is missing.
        kind: 0 for a queue of the topic itself, else of which kind of retry topic.
    """

    queue_id: int
    start: int
    offsets: tuple[int, ...]
    deliveries: Mapping[int, int]
    kind: str = NORMAL


def offsets_to_texts(parts: Iterable[PoppedOffsets]) -> tuple[str, str, str]:
    """Return startOffsetInfo, msgOffsetInfo and orderCountInfo."""
    starts, offsets, counts = [], [], []
    for part in parts:
        place = f"{part.kind} {part.queue_id}"
        starts.append(f"{place} {part.start}")
        offsets.append(f"{place} {','.join(map(str, part.offsets))}")
        again = {offset: count for offset, count in part.deliveries.items() if count}
        counts += [f"{part.kind} qo{part.queue_id}%{at} {count}" for at, count in again.items()]
        # For clients that know the least count of a queue alone.
        least = min(again.values()) if len(again) == len(part.offsets) else 0
        counts.append(f"{place} {least}")
    return ";".join(starts), ";".join(offsets), ";".join(counts)


def offsets_of_reply(reply: PopReplyHeader) -> list[PoppedOffsets]:
    """Return the offsets of each queue in a pop's answer.

    Raises: ProtocolError: the fields contradict each other, or are malformed.
    """
    starts = dict(_entries(reply.start_offsets, "startOffsetInfo"))
    counts = dict(_entries(reply.order_counts, "orderCountInfo"))
    found = []
    for place, text in _entries(reply.message_offsets, "msgOffsetInfo"):
        kind, queue = place.split(" ")
        if place not in starts:
            raise ProtocolError(f"startOffsetInfo does not name queue {queue}, msgOffsetInfo does")
        offsets = tuple(_field(part, "msgOffsetInfo") for part in text.split(","))
        if list(offsets) != sorted(set(offsets)):
            raise ProtocolError(f"msgOffsetInfo: offsets {text!r:.200} do not ascend")
        queue_id, start = _field(queue, "msgOffsetInfo"), _field(starts[place], "startOffsetInfo")
        least = _field(counts.get(place, "0"), "orderCountInfo")
        deliveries = {
            offset: _field(counts.get(f"{kind} qo{queue}%{offset}", str(least)), "orderCountInfo")
            for offset in offsets
        }
        found.append(PoppedOffsets(queue_id, start, offsets, deliveries, kind))
    return found


def _entries(text: str | None, name: str) -> list[tuple[str, str]]:
    """Return (kind and place, value) of each entry of a list like `0 3 17;0 4 2`."""
    found = []
    for entry in text.split(";") if text else ():
        parts = entry.split(" ")
        if len(parts) != 3:
            raise ProtocolError(f"{name} is {text!r:.200}: expected three fields in each entry")
        found.append((f"{parts[0]} {parts[1]}", parts[2]))
    return found


def _field(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ProtocolError(f"{name}: {text!r:.100} is no number")
    return int(text)


class BatchAck(Value):
    """Acknowledged messages of one popped batch.

    Args:
        offsets: of them, ascending.
    """

    group: str
    topic: str
    handle: PopHandle
    offsets: Sequence[int]


def acks_to_body(broker_name: str, acks: Iterable[BatchAck]) -> bytes:
    """Return the body of BATCH_ACK_MESSAGE 200151."""
    return json_text.dumps(
        {
            "brokerName": broker_name,
            "acks": [
                {
                    "c": ack.group,
                    "t": ack.topic,
                    "r": ack.handle.topic_kind,
                    "so": ack.handle.start,
                    "q": ack.handle.queue_id,
                    "rq": ack.handle.revive_queue,
                    "pt": ack.handle.pop_ms,
                    "it": ack.handle.invisible_ms,
                    "b": _bits(ack.handle.start, ack.offsets),
                }
                for ack in acks
            ],
        }
    )


def acks_from_body(body: bytes) -> list[BatchAck]:
    """Read the body of a batch ack, with the short or the long names of its fields.

    Raises: ProtocolError: it is malformed.
    """
    what = "batch ack"
    content = load_object(body, what)
    broker_name = content.get("brokerName") or ""
    found = []
    for each in read_member(content, "acks", list, what):
        given = _short_names(each, what)
        handle = PopHandle(
            start=_member(given, "so"),
            pop_ms=_member(given, "pt"),
            invisible_ms=_member(given, "it"),
            revive_queue=_member(given, "rq"),
            topic_kind=read_member(given, "r", str, what),
            broker_name=str(broker_name),
            queue_id=_member(given, "q"),
        )
        group, topic = read_member(given, "c", str, what), read_member(given, "t", str, what)
        found.append(BatchAck(group, topic, handle, _offsets(given, handle.start)))
    return found


_LONG_NAMES = {
    "consumerGroup": "c", "topic": "t", "retry": "r", "startOffset": "so", "queueId": "q",
    "reviveQueueId": "rq", "popTime": "pt", "invisibleTime": "it", "bitSet": "b",
}  # fmt: skip


def _short_names(each: object, what: str) -> dict[str, object]:
    if not isinstance(each, dict):
        raise ProtocolError(f"{what}: expected an object in acks, got {each!r:.100}")
    return {_LONG_NAMES.get(str(name), str(name)): value for name, value in each.items()}


def _member(given: dict[str, object], name: str) -> int:
    value: int = read_member(given, name, int, "batch ack")
    if not 0 <= value < 1 << 63:
        raise ProtocolError(f"batch ack: member {name!r} is {value}: expected 0..2^63-1")
    return value


# Java's BitSet: little-endian bytes in base64, without bytes of zeros at the end. A batch has at
# most 32 messages; offsets that a filter passed over may lie between them.
_MAX_BITS = 1 << 20


def _bits(start: int, offsets: Iterable[int]) -> str:
    bits = 0
    for offset in offsets:
        bits |= 1 << (offset - start)
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def _offsets(given: dict[str, object], start: int) -> list[int]:
    text = read_member(given, "b", str, "batch ack")
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise ProtocolError(f"batch ack: bits are {text!r:.100}, not base64") from None
    if len(data) * 8 > _MAX_BITS:
        raise ProtocolError(
            f"batch ack: {len(data)} bytes of bits: expected at most {_MAX_BITS // 8}"
        )
    bits, found = int.from_bytes(data, "little"), []
    if bits.bit_count() > MAX_POPPED:
        raise ProtocolError(
            f"batch ack: {bits.bit_count()} messages of a batch: expected at most {MAX_POPPED}"
        )
    while bits:
        lowest = bits & -bits
        found.append(start + lowest.bit_length() - 1)
        bits ^= lowest
    return found
