"""The history of a run: the events of docs/internals/semantics.md#invariants, as JSON lines.

Consumers and the embedded broker record into a `History`; `audit.py` checks the union of
their files against I1-I9. Recording is off unless a path is given. A line reaches the
operating system before the call returns, so a killed process leaves a true prefix.

One line is one event, its members:

| member | meaning |
|---|---|
| p, seq | process incarnation, and its own counter from 0: program order |
| t | CLOCK_BOOTTIME in ns: orders events of different processes of one host |
| type | an `EventType` |
| group, topic, broker, queue | the message queue, where the event has one |
| epoch | lock epoch, 0 where there is none |
| off | next offset (COMMIT_*, RESET), absent elsewhere |
| offs, keys | offsets and sharding keys of a START, END, STORE or DIVERT, ascending |
| tags | STORE: the tag of each of `offs`, null where there is none |
| done | END: how many of `offs`, from the first, succeeded |
| attempt | START: 0 at the first try of the first offset |
| lane | START by key: how many messages of the queue may have listeners at once |
| client, lease_ms | LOCK_OK: to whom and for how long the broker granted it |
| sent | LOCK_OK at the client: `t` of the granting request's send, ns |
| detail | free text: why; PARKED in a DIVERT to a parking topic, which holds its key |
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from ordermq.clock import CLOCK_ID
from ordermq.closing import Closing
from ordermq.errors import ConfigError


class EventType(StrEnum):
    """Type of an event (docs/internals/semantics.md#invariants)."""

    OPEN = "OPEN"  # first line of a process incarnation
    CLOSE = "CLOSE"  # last line of one that ended in order; without it, it crashed
    LOCK_OK = "LOCK_OK"
    LOCK_LOST = "LOCK_LOST"
    UNLOCK = "UNLOCK"
    START = "START"
    END = "END"
    COMMIT_SENT = "COMMIT_SENT"
    COMMIT_ACK = "COMMIT_ACK"
    RESET = "RESET"
    ROLLBACK = "ROLLBACK"
    STORE = "STORE"
    DIVERT = "DIVERT"
    CRASH = "CRASH"  # written by whoever killed `client`


class Recorder(Protocol):
    """A sink of events."""

    @property
    def enabled(self) -> bool:
        """False if recording does nothing; callers skip building expensive members."""

    def record(
        self,
        event: EventType,
        *,
        group: str = "",
        topic: str = "",
        broker: str = "",
        queue: int = -1,
        epoch: int = 0,
        **members: int | str | Sequence[int] | Sequence[str | None],
    ) -> None:
        """Append one event; returns after the line is with the operating system."""

    def close(self) -> None:
        """Write CLOSE and release the file; a second call does nothing."""


class NoHistory:
    """The recorder of a run without a history."""

    enabled = False

    def record(
        self,
        event: EventType,
        *,
        group: str = "",
        topic: str = "",
        broker: str = "",
        queue: int = -1,
        epoch: int = 0,
        **members: int | str | Sequence[int] | Sequence[str | None],
    ) -> None:
        return None

    def close(self) -> None:
        return None


class History(Closing):
    """Append events to a JSONL file.

    Args:
        path: the file; created, or appended to by a later incarnation.
        process: name of this incarnation, unique in the run (the client id).
    Raises: ConfigError: the file cannot be written.

    Any thread may record; lines are whole and in program order.
    """

    enabled = True

    def __init__(self, path: str | os.PathLike[str], process: str) -> None:
        self.path = Path(path)
        self.process = process
        self._lock = threading.Lock()
        self._sequence = 0
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise ConfigError(
                f"history={str(path)!r} cannot be written ({error.strerror}): give a file in a "
                "folder that exists"
            ) from error
        self.record(EventType.OPEN)

    def record(
        self,
        event: EventType,
        *,
        group: str = "",
        topic: str = "",
        broker: str = "",
        queue: int = -1,
        epoch: int = 0,
        **members: int | str | Sequence[int] | Sequence[str | None],
    ) -> None:
        line: dict[str, Any] = {"p": self.process, "seq": 0, "t": 0, "type": event.value}
        if queue >= 0:
            line |= {"group": group, "topic": topic, "broker": broker, "queue": queue}
            line["epoch"] = epoch
        line |= members
        with self._lock:
            if self._file < 0:
                return
            line["seq"] = self._sequence
            line["t"] = time.clock_gettime_ns(CLOCK_ID)
            self._sequence += 1
            # One write call a line: a kill -9 between lines loses nothing already returned.
            os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        if self._file < 0:
            return
        self.record(EventType.CLOSE)
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
