"""Reading histories: JSON lines of many processes, merged into one sequence.

Within a file the order of lines counts, between files the time `t`. A process with an OPEN and no
CLOSE crashed: a CRASH event is added after its last line. Unless its file is being written: then it
still runs, and events after the start of the audit are left for the next one.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ordermq import json_text
from ordermq.audit.report import Evidence
from ordermq.clock import CLOCK_ID
from ordermq.errors import OrderMQError
from ordermq.events import EventType, is_being_written

Event = Mapping[str, Any]
Path = str | os.PathLike[str]

_LINE_BITS = 40  # a ref is file number << 40 | line number: an int, kept per message
_TYPES = frozenset(EventType)
_QUEUED = _TYPES - {EventType.OPEN, EventType.CLOSE, EventType.CRASH}
_BATCHES = frozenset(
    {EventType.START, EventType.END, EventType.STORE, EventType.DIVERT, EventType.DROP}
)
_POSITIONS = frozenset(
    {
        EventType.COMMIT_SENT,
        EventType.COMMIT_ACK,
        EventType.RESET,
        EventType.TAKE_OVER,
        EventType.POSITION,
    }
)


class HistoryError(OrderMQError, ValueError):
    """A line of a history is not an event; the text names the file and line."""

    code = "history"


class Histories:
    """The union of several histories, oldest event first.

    Args:
        source: a path, paths, or events (then line numbers count from 1).
    Attributes:
        running: processes that still run, once all events were read.
    """

    def __init__(self, source: Path | Iterable[Path] | Iterable[Event]) -> None:
        self._events: list[Event] | None = None
        self.paths: list[str] = []
        self.lines = 0
        self.running = 0
        self._is_written: list[bool] = []  # by path
        self._horizon: int | None = None  # `t` from which on nothing is read
        if isinstance(source, str | os.PathLike):
            source = [source]
        items: list[Any] = list(source)
        if all(isinstance(item, Mapping) for item in items):
            self._events = items
            self.paths = ["<events>"] if items else []
        else:
            self.paths = [os.fspath(item) for item in items]

    def __iter__(self) -> Iterator[tuple[int, int, Event]]:
        """Yield (t, ref, event); `evidence` turns refs back into lines."""
        self.lines = self.running = 0
        if self._events is not None:
            numbered = enumerate(self._events, start=1)
            ordered = sorted(numbered, key=lambda item: int(item[1].get("t", 0)))
            return self._with_crashes((number, dict(event)) for number, event in ordered)
        self._is_written = [_is_written(path) for path in self.paths]
        # Files are read one a little after the other. Whatever follows from an event that was
        # written after its file was read is later than this moment, and left out as well.
        self._horizon = time.clock_gettime_ns(CLOCK_ID) if any(self._is_written) else None
        streams = [
            self._with_crashes(self._parsed(number, path), number)
            for number, path in enumerate(self.paths)
        ]
        if len(streams) == 1:
            return streams[0]
        return heapq.merge(*streams, key=lambda item: item[0])

    def evidence(self, refs: Iterable[int]) -> dict[int, Evidence]:
        """Return the events of `refs`; reads each file again, up to the last line needed."""
        wanted: dict[int, set[int]] = {}
        for ref in refs:
            wanted.setdefault(ref >> _LINE_BITS, set()).add(ref & ((1 << _LINE_BITS) - 1))
        found: dict[int, Evidence] = {}
        for file, numbers in wanted.items():
            path = self.paths[file]
            for number, event in self._lines_of(file, max(numbers)):
                if number in numbers:
                    found[file << _LINE_BITS | number] = Evidence(path, number, dict(event))
        return found

    def _lines_of(self, file: int, last: int) -> Iterator[tuple[int, Event]]:
        if self._events is not None:
            yield from enumerate(self._events[:last], start=1)
            return
        for number, event in self._parsed(file, self.paths[file]):
            if number > last:
                return
            yield number, event

    def _parsed(self, file: int, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            with open(path, "rb") as lines:
                for number, line in enumerate(lines, start=1):
                    event = _parse(line, path, number)
                    if event is not None:
                        yield number, event
        except OSError as error:
            raise HistoryError(f"{path}: cannot be read: {error.strerror}") from error

    @staticmethod
    def _check_complete(event: Event, last: dict[str, int], where: str) -> None:
        process, sequence = event.get("p", ""), event.get("seq")
        if not isinstance(sequence, int):
            return
        # Without its OPEN, which a full disk may have refused, a kill of it could not be told.
        before = last.get(process, -1)
        if event.get("type") != EventType.OPEN and sequence > before + 1:
            raise HistoryError(
                f"{where}: {sequence - before - 1} events of {process} before this one were not "
                "recorded (was the disk full, or the file cut?): a history with gaps proves nothing"
            )
        last[process] = sequence

    def _with_crashes(
        self, numbered: Iterable[tuple[int, dict[str, Any]]], file: int = 0
    ) -> Iterator[tuple[int, int, Event]]:
        alive: dict[str, int] = {}  # process -> ref of its last line
        last: dict[str, int] = {}  # process -> sequence number of its last line
        t = 0
        for number, event in numbered:
            if self._horizon is not None and event.get("t", 0) > self._horizon:
                break
            self.lines += 1
            ref = file << _LINE_BITS | number
            process, kind = event.get("p", ""), event.get("type")
            _check(event, self.paths[file], number)
            if self._events is None:  # given events may be a choice of them
                self._check_complete(event, last, f"{self.paths[file]}:{number}")
            if kind == EventType.OPEN and process in alive:
                yield t, alive[process], _crash(process)
            t = max(t, event["t"])  # the file's own order is the truth
            if kind == EventType.CLOSE:
                alive.pop(process, None)
            elif kind == EventType.OPEN or process in alive:
                alive[process] = ref
            yield t, ref, event
        if file < len(self._is_written) and self._is_written[file]:
            self.running += len(alive)
            return
        for process, ref in alive.items():
            yield t, ref, _crash(process)


def _is_written(path: str) -> bool:
    try:
        return is_being_written(path)
    except OSError as error:
        raise HistoryError(f"{path}: cannot be read: {error.strerror}") from error


def _crash(process: str) -> Event:
    return {"p": process, "type": EventType.CRASH.value, "client": process, "derived": True}


def _parse(line: bytes, path: str, number: int) -> dict[str, Any] | None:
    try:
        event = json_text.loads(line)
    except json_text.JSONDecodeError:
        if not line.endswith(b"\n"):
            return None  # cut by the kill; nothing follows
        # The next incarnation appends its OPEN right behind a line the kill cut short.
        at = line.rfind(b'{"p":')
        if at > 0:
            try:
                event = json_text.loads(line[at:])
            except json_text.JSONDecodeError:
                event = None
            if isinstance(event, dict) and event.get("type") == EventType.OPEN:
                return event
        raise HistoryError(f"{path}:{number}: not a JSON line: {line[:80]!r}") from None
    if not isinstance(event, dict):
        raise HistoryError(f"{path}:{number}: expected an object, got {line[:80]!r}")
    return event


def _check(event: Event, path: str, number: int) -> None:
    kind = event.get("type")
    fault = None
    if kind not in _TYPES:
        fault = f"unknown event type {kind!r}"
    elif not isinstance(event.get("t"), int):
        fault = f"{kind} without the time t"
    elif kind in _QUEUED and not isinstance(event.get("queue"), int):
        fault = f"{kind} without a queue"
    elif kind in _BATCHES and not _is_batch(event.get("offs")):
        fault = f"{kind} without offs, a list of offsets"
    elif kind in _POSITIONS and not isinstance(event.get("off"), int):
        fault = f"{kind} without off, an offset"
    elif kind == EventType.END and not isinstance(event.get("done"), int):
        fault = "END without done, how many succeeded"
    if fault:
        raise HistoryError(f"{path}:{number}: {fault}")


def _is_batch(offsets: object) -> bool:
    return isinstance(offsets, list | tuple) and bool(offsets) and isinstance(offsets[0], int)
