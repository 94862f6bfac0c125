"""Offsets of a broadcasting member, in a file of its own, in the form of Java's clients.

The path is `<local_offset_store_dir>/<client id>/<group>/offsets.json`, the one before it
`offsets.json.bak`. Its JSON is fastjson's: the keys of `offsetTable` are objects, which no
other reader takes (docs/internals/semantics.md#pull-loop).
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path

from ordermq.errors import ProtocolError, StateError, StoreError
from ordermq.forking import ProcessBound
from ordermq.leases.lease import UNLOCKED, Lease
from ordermq.model.message_queue import MessageQueue
from ordermq.private_files import open_existing, open_private
from ordermq.remoting.bodies import queue_from_json, queue_table_to_json

_BLANKS = " \t\r\n"


def to_text(offsets: Mapping[MessageQueue, int]) -> bytes:
    """The file's content; every version of Java's client reads it."""
    return b'{"offsetTable":' + queue_table_to_json(offsets) + b"}"


def from_text(text: str) -> dict[MessageQueue, int]:
    """Parse the content of an offset file, written by this client or Java's.

    Raises: ProtocolError: it is truncated, or not an offset file.
    """
    offsets: dict[MessageQueue, int] = {}
    decode = json.JSONDecoder().raw_decode
    try:
        at = _after(text, _after(text, _after(text, 0, "{"), '"offsetTable"'), ":")
        at = _after(text, at, "{")
        while text[_skip(text, at)] != "}":
            if offsets:
                at = _after(text, at, ",")
            key, at = decode(text, _skip(text, at))
            value, at = decode(text, _skip(text, _after(text, at, ":")))
            # A bool is no offset; Java's have 64 bits.
            if type(value) is not int or not 0 <= value < 1 << 63:
                raise ValueError(f"{value!r} is no offset")
            offsets[queue_from_json(key, "an offset file")] = value
        at = _after(text, _after(text, at, "}"), "}")
    except (ValueError, IndexError) as error:
        raise ProtocolError(f"not an offset file: {error}") from error
    return offsets


def _skip(text: str, at: int) -> int:
    while text[at] in _BLANKS:
        at += 1
    return at


def _after(text: str, at: int, expected: str) -> int:
    at = _skip(text, at)
    if not text.startswith(expected, at):
        raise ValueError(f"expected {expected!r} at character {at}")
    return at + len(expected)


class OffsetFile(ProcessBound):
    """One member's file; nobody else may write it while it is open.

    Raises:
        StateError: another live member uses it.
        StoreError: it cannot be opened, or neither it nor its backup can be understood.
    """

    _lock = -1  # also of one whose `__init__` has raised, at a fork

    def __init__(self, path: Path) -> None:
        self.path = path
        self._backup = path.with_name(path.name + ".bak")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = open_private(path.with_name(path.name + ".lock"), os.O_RDWR)
        except OSError as error:
            raise StoreError(f"{path}: no place for offsets: {error}") from error
        try:
            self._claim()
            self.offsets = self._read()
        except BaseException:
            self.close()
            raise

    def write(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Replace the content; after a crash at any moment the file or its backup is whole.

        Raises: OSError: the old content stands.
        """
        fresh = self.path.with_name(self.path.name + ".new")
        # Written beside, synced, then renamed: no crash leaves a half-written file behind a name
        # that is read.
        with open(fresh, "wb", opener=open_private) as file:
            file.write(to_text(offsets))
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            os.replace(self.path, self._backup)
        os.replace(fresh, self.path)
        self.offsets = dict(offsets)

    def close(self) -> None:
        """Let others use the file; a second call does nothing."""
        if self._lock >= 0:
            lock, self._lock = self._lock, -1
            os.close(lock)

    def _leave_to_parent(self) -> None:
        # The parent keeps its lock, which ends when no process has the file open any more.
        self.close()

    def _claim(self) -> None:
        try:
            # The operating system frees it when the process dies, however it dies.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateError(
                f"{self.path} belongs to another running member: each broadcasting member of a "
                "host needs an instance_name of its own, the same at each start"
            ) from None

    def _read(self) -> dict[MessageQueue, int]:
        # The backup is the content before the last write: a few messages are delivered again.
        problems = []
        for path in (self.path, self._backup):
            try:
                with open(path, encoding="utf-8", opener=open_existing) as file:
                    return from_text(file.read())
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError, ProtocolError) as error:
                problems.append(f"{path}: {error}")
        if problems:
            raise StoreError(
                "the offsets of this member cannot be read; repair or remove the file to begin "
                f"anew: {'; '.join(problems)}"
            )
        return {}


class LocalOffsets:
    """Offsets of a broadcasting member, in its own file; takes the place of `BrokerOffsets`."""

    is_local = True
    stores_starts = True

    def __init__(self, file: OffsetFile) -> None:
        self._file = file
        self._waiting: dict[MessageQueue, int] = {}
        self._writing = asyncio.Lock()

    async def take_over(self, queue: MessageQueue, lease: Lease) -> int | None:
        return await self.read(queue)  # nobody else consumes it

    async def read(self, queue: MessageQueue) -> int | None:
        return self._file.offsets.get(queue)

    async def write(
        self, queue: MessageQueue, offset: int, lease: Lease = UNLOCKED, *, reset: bool = False
    ) -> None:
        self._waiting[queue] = offset
        async with self._writing:
            # One write for all that gathered while the one before was under way.
            waiting, self._waiting = self._waiting, {}
            if waiting:
                try:
                    await asyncio.to_thread(self._file.write, self._file.offsets | waiting)
                except OSError as error:
                    # Callers still waiting have handed in some of these: they must try them again.
                    self._waiting = waiting | self._waiting
                    raise StoreError(
                        f"{queue}: offset {offset} was not written to {self._file.path} "
                        f"({error.strerror or error}): free space on its disk, or check its "
                        "permissions"
                    ) from error

    def close(self) -> None:
        """Let others use the file; a second call does nothing."""
        self._file.close()
