"""The result of an audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

INVARIANTS: Mapping[str, str] = {
    "I1": "queue order",
    "I2": "one at a time",
    "I3": "key order",
    "I4": "nothing lost",
    "I5": "bounded duplicates",
    "I6": "one holder",
    "I7": "inside the lease",
    "I8": "commits only grow",
    "I9": "no early release",
    "I16": "stored start",
}


class Cause(StrEnum):
    """Reasons for which a message was finished twice."""

    CRASH = "crash of a member"
    BROKER = "broker restart"
    LEASE = "lease lost"
    RESET = "reset"
    ROLLBACK = "rollback"
    UNLOCKED = "group without locks"  # concurrent: owners may overlap during a rebalance
    HAND_OFF = "hand-off without crash"  # must stay 0 (I5)
    NONE = "no reason"  # must stay 0 (I5)


class HandOffKind(StrEnum):
    """Reasons for which a queue changed its owner."""

    JOIN = "join"  # the old owner continues with other queues
    LEAVE = "leave"  # the old owner closed
    CRASH = "crash"
    EXPIRY = "expiry"
    BROKER = "broker restart"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One event of a history, with its file and line."""

    file: str
    line: int
    event: Mapping[str, Any]

    def __str__(self) -> str:
        event = self.event
        shown = {name: value for name, value in event.items() if name not in _PLACE}
        for name in ("offs", "keys"):
            values = shown.get(name)
            if isinstance(values, list) and len(values) > 6:
                shown[name] = [*values[:3], "...", *values[-2:]]
        text = ", ".join(f"{name}={value}" for name, value in shown.items())
        return f"{self.file}:{self.line}: {event.get('type')} by {event.get('p')} ({text})"


_PLACE = frozenset({"p", "type", "group", "topic", "broker", "queue"})


@dataclass(frozen=True, slots=True)
class Violation:
    """The first violation of an invariant."""

    invariant: str
    sentence: str
    events: tuple[Evidence, ...]

    @property
    def title(self) -> str:
        return INVARIANTS[self.invariant]

    def __str__(self) -> str:
        lines = [f"{self.invariant} {self.title}: {self.sentence}"]
        return "\n".join([*lines, *(f"  {event}" for event in self.events)])


@dataclass(frozen=True, slots=True)
class HandOff:
    """A change of owner of one queue of one group; times in ms, None if unknown."""

    group: str
    topic: str
    broker: str
    queue: int
    old: str
    new: str
    kind: HandOffKind
    at_ns: int  # LOCK_OK of the new holder
    unlock_to_lock_ms: float | None
    silence_ms: float | None  # last START or END of the old holder to first START of the new
    duplicates: int


@dataclass(frozen=True, slots=True)
class Holding:
    """One member that holds one queue under one epoch, from its grant to its end."""

    group: str
    topic: str
    broker: str
    queue: int
    client: str
    epoch: int
    since_ns: int
    until_ns: int  # unlock, crash, loss, or the next holder's grant


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of `audit`; `ok` if no invariant was violated."""

    violations: tuple[Violation, ...]  # the first of each invariant, by time
    files: tuple[str, ...]
    lines: int
    processes: int
    crashes: int
    running: int  # processes that still run: their files are open
    events: Mapping[str, int]  # by event type
    stored: int
    delivered: int  # messages, finished at least once
    deliveries: int  # successful ENDs of messages, repeats counted
    diverted: int
    sent_back: int  # of concurrent groups: stored again for later, or as dead letters
    dropped: int  # copies that a producer sent again
    committed: int
    duplicates: Mapping[str, int]  # by cause
    hand_offs: tuple[HandOff, ...] = field(repr=False)
    holdings: tuple[Holding, ...] = field(repr=False)

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def violation(self) -> Violation | None:
        """The first violation, None if there is none."""
        return self.violations[0] if self.violations else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "ok": self.ok,
            "violations": [
                {
                    "invariant": violation.invariant,
                    "title": violation.title,
                    "sentence": violation.sentence,
                    "events": [
                        {"file": each.file, "line": each.line, "event": dict(each.event)}
                        for each in violation.events
                    ],
                }
                for violation in self.violations
            ],
            "files": list(self.files),
            "lines": self.lines,
            "processes": self.processes,
            "crashes": self.crashes,
            "running": self.running,
            "events": dict(self.events),
            "messages": {
                "stored": self.stored,
                "delivered": self.delivered,
                "deliveries": self.deliveries,
                "diverted": self.diverted,
                "sent_back": self.sent_back,
                "dropped": self.dropped,
                "committed": self.committed,
            },
            "duplicates": dict(self.duplicates),
            "hand_offs": [
                {name: getattr(each, name) for name in HandOff.__slots__} for each in self.hand_offs
            ],
        }
