"""Instruments: every metric of producers and consumers, with its name, unit and labels.

Names are those of OpenTelemetry's messaging conventions where these have one, and begin with
`ordermq.` elsewhere. Prometheus gets each name as an OpenTelemetry collector would write it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SYSTEM: Final = "rocketmq"

SYSTEM_LABEL: Final = "messaging.system"  # of every instrument
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
TOPIC: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
PRODUCER_GROUP: Final = "ordermq.producer.group.name"
ERROR: Final = "error.type"
EVENT: Final = "ordermq.event"

# The type of each operation that has a name; the conventions call a commit a settlement.
OPERATION_TYPES: Final = {
    "send": "send", "receive": "receive", "commit": "settle", "process": "process",
}  # fmt: skip

# The boundaries that the conventions want for every duration, in seconds.
BOUNDARIES: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_UNITS = {"s": "seconds", "By": "bytes"}


class Kind(StrEnum):
    """Kind of an instrument, as both libraries name it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)  # there is one of each: found by identity
class Instrument:
    """One metric.

    Args:
        unit: in UCUM, as OpenTelemetry writes units; `{message}` counts messages.
        labels: besides those that are fixed, in the order in which their values are given.
        operation: the one operation it counts or times, which is a label of the conventions then.
        join: makes one value of those that several clients of a process have for the same labels.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    meaning: str
    join: Callable[[Iterable[float]], float] = sum
    operation: str = ""

    def labelled(self, values: tuple[str, ...]) -> dict[str, str]:
        """Return every label with its value; an empty value is one that there is none of."""
        found = {SYSTEM_LABEL: SYSTEM, **self.fixed_labels}
        found.update(zip(self.labels, values, strict=True))
        if OPERATION in self.labels:  # else one operation is all it has, and its name says the type
            found[OPERATION_TYPE] = OPERATION_TYPES[found[OPERATION]]
        return found

    @property
    def fixed_labels(self) -> dict[str, str]:
        """The labels with the same value always, besides `messaging.system`."""
        return {OPERATION: self.operation} if self.operation else {}

    @property
    def all_labels(self) -> tuple[str, ...]:
        """The names of the labels that `labelled` returns, in its order."""
        types = (OPERATION_TYPE,) if OPERATION in self.labels else ()
        return (SYSTEM_LABEL, *self.fixed_labels, *self.labels, *types)

    @property
    def prometheus_name(self) -> str:
        """The name as OpenTelemetry's rules translate it; Prometheus adds `_total` or `_bucket`."""
        parts = [self.name.replace(".", "_")]
        if self.unit in _UNITS:
            parts.append(_UNITS[self.unit])
        if self.kind is Kind.COUNTER:
            parts.append("total")
        return "_".join(parts)


def label_of_prometheus(label: str) -> str:
    """Return a label's name for Prometheus."""
    return label.replace(".", "_")


_QUEUE = (TOPIC, PARTITION, GROUP)

# Read when somebody asks: they cost nothing until then.
CONSUMED: Final = Instrument(
    "messaging.client.consumed.messages", Kind.COUNTER, "{message}", _QUEUE,
    "Messages that a listener has finished.", operation="process",
)  # fmt: skip
FAILED: Final = Instrument(
    "ordermq.consumer.failed.messages", Kind.COUNTER, "{message}", _QUEUE,
    "Messages in listener calls that did not finish them; each attempt counts.",
)  # fmt: skip
DEAD_LETTERS: Final = Instrument(
    "ordermq.consumer.dead_letters", Kind.COUNTER, "{message}", _QUEUE,
    "Messages moved to the dead-letter topic.",
)  # fmt: skip
LAG: Final = Instrument(
    "ordermq.consumer.lag", Kind.GAUGE, "{message}", _QUEUE,
    "Messages of a held queue that are not done.", max,
)  # fmt: skip
LAG_TIME: Final = Instrument(
    "ordermq.consumer.lag.time", Kind.GAUGE, "s", _QUEUE,
    "Age of the oldest message of a held queue that is not done.", max,
)  # fmt: skip
GROUP_LAG: Final = Instrument(
    "ordermq.group.lag", Kind.GAUGE, "{message}", _QUEUE,
    "Messages of any queue of a watched group that are not committed, whoever holds it.", max,
)  # fmt: skip
GROUP_LAG_TIME: Final = Instrument(
    "ordermq.group.lag.time", Kind.GAUGE, "s", _QUEUE,
    "Age of the last committed message of such a queue, while it has newer ones.", max,
)  # fmt: skip
GROUP_MEMBERS: Final = Instrument(
    "ordermq.group.members", Kind.GAUGE, "{member}", (GROUP,),
    "Members of a watched group that are online.", max,
)  # fmt: skip
BUFFERED_MESSAGES: Final = Instrument(
    "ordermq.consumer.buffered.messages", Kind.GAUGE, "{message}", _QUEUE,
    "Messages pulled and not done.",
)  # fmt: skip
BUFFERED_BYTES: Final = Instrument(
    "ordermq.consumer.buffered.size", Kind.GAUGE, "By", _QUEUE,
    "Their bodies, as they were stored.",
)  # fmt: skip
PARKED_KEYS: Final = Instrument(
    "ordermq.consumer.parked.keys", Kind.GAUGE, "{key}", _QUEUE,
    "Keys of a held queue that `ParkKey` holds back; lag has nothing of a parking topic.",
)  # fmt: skip
QUEUES: Final = Instrument(
    "ordermq.consumer.queues", Kind.GAUGE, "{queue}", (TOPIC, GROUP),
    "Queues this process holds.",
)  # fmt: skip
LEASE_LEFT: Final = Instrument(
    "ordermq.consumer.lease.remaining", Kind.GAUGE, "s", _QUEUE,
    "Time until the lease of a held queue ends, unless it is renewed; 0 without one.", min,
)  # fmt: skip
HAND_OFFS: Final = Instrument(
    "ordermq.consumer.hand_offs", Kind.COUNTER, "{queue}", _QUEUE,
    "Times a queue was given up in order.",
)  # fmt: skip
LEASES_LOST: Final = Instrument(
    "ordermq.consumer.leases_lost", Kind.COUNTER, "{lease}", _QUEUE,
    "Leases that ended while the queue was wanted: its last messages may be repeated.",
)  # fmt: skip
BLOCKED_TIME: Final = Instrument(
    "ordermq.consumer.blocked.time", Kind.GAUGE, "s", (GROUP,),
    "Time that the oldest failing message has been holding its queue or key.", max,
)  # fmt: skip
CONSUMER_READY: Final = Instrument(
    "ordermq.consumer.ready", Kind.GAUGE, "", (GROUP,),
    "1 if `consumer.health()` says it is ready, else 0.", min,
)  # fmt: skip
EVENTS: Final = Instrument(
    "ordermq.consumer.events", Kind.COUNTER, "{event}", (EVENT, GROUP),
    "Every counter of `consumer.statistics`, by its name.",
)  # fmt: skip
REDELIVERED: Final = Instrument(
    "ordermq.consumer.redelivered.messages", Kind.COUNTER, "{message}", (TOPIC, GROUP),
    "Messages handed to a listener again after a failed attempt.",
)  # fmt: skip
PRODUCER_READY: Final = Instrument(
    "ordermq.producer.ready", Kind.GAUGE, "", (PRODUCER_GROUP,),
    "1 if `producer.health()` says it is ready, else 0.", min,
)  # fmt: skip
PRODUCER_EVENTS: Final = Instrument(
    "ordermq.producer.events", Kind.COUNTER, "{event}", (EVENT, PRODUCER_GROUP),
    "`oneway_failures`, `hook_errors` and `traces_dropped` of the producer.",
)  # fmt: skip
SENT: Final = Instrument(
    "messaging.client.sent.messages", Kind.COUNTER, "{message}", (TOPIC, ERROR),
    "Messages sent; `error.type` if the send failed.", operation="send",
)  # fmt: skip

# Counted natively as it happens, in histograms that are read likewise.
PROCESS: Final = Instrument(
    "messaging.process.duration", Kind.HISTOGRAM, "s", (TOPIC, GROUP, ERROR),
    "Time of a listener call; `error.type` if it did not finish all of its messages.",
    operation="process",
)  # fmt: skip
OPERATIONS: Final = Instrument(
    "messaging.client.operation.duration", Kind.HISTOGRAM, "s", (OPERATION, TOPIC, GROUP, ERROR),
    "`send`: from the call to the receipt of each message. `receive`: of a pull that brought "
    "messages, with its wait at the broker. `commit`: of a committed offset.",
)  # fmt: skip

# Every instrument above, in its order: one that was in no list would be read and never exported.
_EVERY: Final = [one for one in [*globals().values()] if isinstance(one, Instrument)]
READ: Final = tuple(one for one in _EVERY if one.kind is not Kind.HISTOGRAM)
TIMED: Final = tuple(one for one in _EVERY if one.kind is Kind.HISTOGRAM)
