"""Event history of a run, as JSON lines, for the audit (docs/internals/semantics.md#invariants).

Consumers and the embedded broker record into a `History`; `ordermq audit` checks the files of all
processes together. Recording is off unless a path is given. A line reaches the operating system
before the call returns, so the file of a killed process lacks nothing but its last moments; or,
where a disk that hangs must stop nobody, before a commit of what it tells is sent
(`Recorder.wait_written`).

One line is one event with these members:

| member | meaning |
|---|---|
| p, seq | process, and its counter from 0: program order |
| t | CLOCK_BOOTTIME in ns: order of events of different processes of one host |
| type | an `EventType` |
| group, topic, broker, queue | the message queue, where the event has one |
| epoch | lock epoch, 0 where there is none |
| off | next offset (COMMIT_*, RESET, TAKE_OVER, POSITION), absent elsewhere |
| offs, keys | offsets of a START, END, STORE, DIVERT or DROP, ascending; and, but of a DROP, keys |
| tags | STORE: the tag of each of `offs`, null where there is none |
| done | END: how many of `offs`, from the first, succeeded |
| attempt | START: 0 at the first try of the first offset |
| lane | START by key: most messages of the queue in listeners at the same time |
| client, lease_ms | LOCK_OK: client id and life of the granted lock |
| sent | LOCK_OK at the client: `t` at the send of the granted request, ns |
| decided | LOCK_OK of a broker: `t` when its lease began, ns; the line follows when it is durable |
| detail | the reason; PARKED in a DIVERT to a parking topic, which holds the key back; BY_COMMIT |
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import stat
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Protocol

from ordermq import core, json_text
from ordermq.background_writer import BackgroundWriter
from ordermq.clock import CLOCK_ID
from ordermq.closing import Closing
from ordermq.errors import ConfigError
from ordermq.private_files import open_private
from ordermq.threads import Lock

_log = logging.getLogger("ordermq.events")
_MOST_WAITING_BYTES = 100_000_000  # of lines that wait for a disk: a minute of a busy member
_MOST_WRITES = 1_000  # that wait: far more than there ever are, as one takes all lines
_WAIT_S = 1.0
_WRITER_IDLE_S = 1.0  # a thread per line would cost more than the line


BY_COMMIT = "by its last commit"  # detail of an UNLOCK: the commit that was just sent releases


class EventType(StrEnum):
    """Kind of an event (docs/internals/semantics.md#invariants)."""

    OPEN = "OPEN"  # first line of a process
    CLOSE = "CLOSE"  # last line of a process that was closed; one without it crashed, or still runs
    LOCK_OK = "LOCK_OK"
    LOCK_LOST = "LOCK_LOST"
    UNLOCK = "UNLOCK"
    TAKE_OVER = "TAKE_OVER"  # the user's database has the effects of everything before `off`
    POSITION = "POSITION"  # a queue is about to be consumed from `off`, which is stored
    START = "START"
    END = "END"
    COMMIT_SENT = "COMMIT_SENT"
    COMMIT_ACK = "COMMIT_ACK"
    RESET = "RESET"
    ROLLBACK = "ROLLBACK"
    STORE = "STORE"
    DIVERT = "DIVERT"
    DROP = "DROP"  # copies that a producer sent again: no listener gets them
    CRASH = "CRASH"  # written by the test that killed `client`


Member = int | str | Sequence[int] | Sequence[str | None]
# Every event of a queue has these, so that an audit need not ask.
_QUEUE: dict[str, Member] = {"group": "", "topic": "", "broker": "", "queue": -1, "epoch": 0}
_NONE: dict[str, Member] = {}


class Recorder(Protocol):
    """Receiver of events.

    `on_error` is called with errors that `record` cannot raise any more.
    """

    on_error: Callable[[BaseException], object]

    @property
    def enabled(self) -> bool:
        """False if recording does nothing, so that callers need not collect the members."""

    @property
    def lines(self) -> core.contract.EventLines | None:
        """Lines that native code may add to; None if `record` has to get each event."""

    def record(self, event: EventType, **members: Member) -> None:
        """Append one event with its members."""

    def wait_written(self) -> None:
        """Return once the operating system has all lines; at most after a second, in which it took
        none.
        """

    def close(self) -> None:
        """Write CLOSE and release the file; a second call does nothing."""


def _unheard(error: BaseException) -> None:
    _log.error("history: %s", error)


class NoHistory:
    """Recorder that drops all events."""

    enabled = False
    lines = None

    def __init__(self) -> None:
        self.on_error: Callable[[BaseException], object] = _unheard

    def record(self, event: EventType, **members: Member) -> None:
        return None

    def wait_written(self) -> None:
        return None

    def close(self) -> None:
        return None


def members_of(line: dict[str, Any]) -> bytes:
    """Return the members of a line as JSON, without the braces of the object."""
    try:
        return json_text.dumps(line)[1:-1]
    except TypeError:  # a name that is no Unicode, such as a file's in an error, is escaped
        return json.dumps(line, separators=(",", ":")).encode()[1:-1]


class History(Closing):
    """Append events to a JSONL file.

    Args:
        path: the file; created, or appended to by a later process.
        process: name of this process, unique in the run (the client id).
        in_background: a thread of its own writes, and calls `on_error` for each line that it
            cannot write. Otherwise `record` writes and raises, and blocks as long as the disk does.
    Raises: ConfigError: the file cannot be written.

    Any thread may record; lines are whole and in program order.
    """

    enabled = True
    _file = -1  # also of one whose `__init__` has raised, at a fork

    def __init__(
        self,
        path: str | os.PathLike[str],
        process: str,
        *,
        in_background: bool = False,
    ) -> None:
        from pathlib import Path  # here, as few write a history

        self.path = Path(path)
        self.process = process
        self._lock = Lock()  # of lines that are written at once: they keep their order
        self._is_end_told = False
        self._is_torn = False  # the last line is incomplete: the disk was full
        self.on_error: Callable[[BaseException], object] = _unheard
        begin = json_text.dumps({"p": process, "seq": 0})[:-2]  # of each line, up to its number
        self._waiting = core.EventLines(begin, CLOCK_ID, _MOST_WAITING_BYTES, self._wake)
        self._writer: BackgroundWriter[None] | None = None
        self._is_stalled = False  # it was waited for in vain
        try:
            # Private, because it has the sharding keys of the messages. A pipe without a reader
            # fails instead of blocking; files do not know of O_NONBLOCK.
            self._file = open_private(self.path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
        except OSError as error:
            raise ConfigError(
                f"history={str(path)!r} cannot be written ({error.strerror}): give a file in an "
                "existing folder"
            ) from error
        if stat.S_ISFIFO(os.fstat(self._file).st_mode) or os.isatty(self._file):
            self._close_file()
            raise ConfigError(
                f"history={str(path)!r} is a pipe or terminal: one that nobody reads would stop "
                "the member: give a file"
            )
        # For `is_being_written`; the lock ends with the process, also with a killed one. Where
        # the file system has no locks an audit takes a running process for a crashed one.
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_SH)
        # A disk that is full now may have room later; until then a member works all the same.
        with contextlib.suppress(OSError):
            self.record(EventType.OPEN)
        if in_background:  # from now on
            self._writer = BackgroundWriter(
                "ordermq-history", self._write_waiting, _MOST_WRITES, idle_s=_WRITER_IDLE_S
            )

    @property
    def lines(self) -> core.contract.EventLines | None:
        return None if self._writer is None else self._waiting

    def record(self, event: EventType, **members: Member) -> None:
        always = _QUEUE if "queue" in members else _NONE
        line = members_of({"type": event.value, **always, **members})
        if self._writer is not None:
            if not self._waiting.add(line):
                waiting = self._waiting.waiting_bytes
                raise OSError(errno.EBUSY, f"{waiting} bytes of lines wait", str(self.path))
            return
        with self._lock:
            if self._file >= 0:
                self._waiting.add(line)
                # After kill -9 every event whose `record` returned is there.
                if self._write(self._waiting.take()):
                    raise self._no_space()

    def _wake(self) -> bool:
        """Have the thread that writes look at the lines that wait, if there is one."""
        if self._writer is None:
            return False
        try:
            self._writer.put(None)
        except Exception as error:  # noqa: BLE001 - no thread can be started: the next line tries it
            self.on_error(error)
            return False
        return True

    def _write_waiting(self, _: None) -> None:
        # On the thread that writes: lines that came together leave in one write.
        lines = self._waiting.take()
        error = self._no_space()
        try:
            lost = self._write(lines)
        except OSError as raised:
            lost, error = lines.count(b"\n"), raised
        self._is_stalled = False
        for _lost in range(lost):
            self.on_error(error)

    def _write(self, lines: bytes) -> int:
        """Write lines; return how many of them, of the end, found no space.

        Raises: OSError: the disk took none, or the file has no name any more.
        """
        data = b"\n" + lines if self._is_torn else lines
        written = os.write(self._file, data)
        # Writes into a file that somebody deleted, or put another one in the place of, succeed.
        if not os.fstat(self._file).st_nlink:
            raise FileNotFoundError(
                errno.ENOENT, "it was deleted, and is written anew after a restart", str(self.path)
            )
        if written == len(data):
            self._is_torn = False
            return 0
        self._is_torn = data[written - 1 : written] != b"\n"
        return data.count(b"\n", written)

    def _no_space(self) -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def wait_written(self) -> None:
        if self._writer is None:
            return
        # A line may wait whose thread has yet to wake the one that writes, or one that was started
        # and, for want of memory, never ran.
        self._wake()
        # A disk that hangs is waited for once, not at each commit.
        if not self._is_stalled:
            self._is_stalled = not self._writer.flush(_WAIT_S)

    def close(self) -> None:
        if self._file < 0:
            return
        # Without its last line an audit takes this process for a crashed one, which is safe. So one
        # that Ctrl-C has interrupted is not written again: its number would be missing.
        is_told, self._is_end_told = self._is_end_told, True
        if not is_told:
            with contextlib.suppress(OSError):
                self.record(EventType.CLOSE)
        self.wait_written()
        if self._writer is not None:
            self._writer.end_idling()
        if self._is_stalled:  # its thread is in a write to the file, which the process's end closes
            self._file = -1
            self._waiting.close()
            return
        with self._lock:
            self._close_file()

    def _leave_to_parent(self) -> None:
        self._close_file()  # without a CLOSE: the parent's run goes on

    def _close_file(self) -> None:
        if self._file >= 0:
            # Forgotten first: after Ctrl-C, a later call must not close the number again.
            file, self._file = self._file, -1
            self._waiting.close()
            os.close(file)


def is_being_written(path: str | os.PathLike[str]) -> bool:
    """Return whether a process of this host has a history open.

    Raises: OSError: it cannot be opened.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no locks there
    finally:
        os.close(file)
    return False


class GuardedRecorder:
    """Recorder whose errors never reach those it observes: a full disk, a defect of the user's.

    They are counted and logged once. Sequence numbers go on, so that an audit finds the gap.

    Args:
        on_error: called with each error, to count it.
    """

    def __init__(self, recorder: Recorder, on_error: Callable[[], object]) -> None:
        self._recorder = recorder
        self._on_error = on_error
        self._errors = 0
        self.on_error: Callable[[BaseException], object] = self.failed
        recorder.on_error = self.failed
        self.enabled = recorder.enabled
        self.lines = recorder.lines

    def record(self, event: EventType, **members: Member) -> None:
        try:
            self._recorder.record(event, **members)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - counted and logged
            self.failed(error)

    def wait_written(self) -> None:
        """Return once what was recorded is written; see `Recorder`."""
        self._recorder.wait_written()

    def failed(self, error: BaseException) -> None:
        """Count an event that could not be recorded."""
        self._errors += 1
        self._on_error()
        if self._errors == 1:
            _log.error(
                "history: events are not recorded (%s); further ones are counted in "
                "history_errors, and an audit will find the gap",
                error,
                exc_info=error,
            )

    def close(self) -> None:
        try:
            self._recorder.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - counted and logged
            self.failed(error)
