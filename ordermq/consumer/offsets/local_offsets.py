"""Offsets of a broadcasting member, in a file of its own, in the form of Java's clients.

The path is `<local_offset_store_dir>/<client id>/<group>/offsets.json`, the one before it
`offsets.json.bak`. Its JSON is fastjson's: the keys of `offsetTable` are objects, which no
other reader takes (docs/internals/semantics.md#pull-loop).
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from ordermq.client.session import ClientSession
from ordermq.config import RebalanceConfig
from ordermq.consumer.offsets.offset_store import first_offset
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.errors import ProtocolError, StateError, StoreError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import queue_from_json, queue_table_to_json

_log = logging.getLogger("ordermq.consumer")
_BLANKS = " \t\r\n"


def to_text(offsets: Mapping[MessageQueue, int]) -> bytes:
    """The file's content; every version of Java's client reads it."""
    return b'{"offsetTable":' + queue_table_to_json(offsets) + b"}"


def from_text(text: str) -> dict[MessageQueue, int]:
    """What a file holds, ours or Java's.

    Raises: ProtocolError: it is torn, or not an offset file.
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
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
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


class OffsetFile:
    """One member's file; nobody else may write it while it is open.

    Raises:
        StateError: another live member uses it.
        StoreError: it cannot be opened, or neither it nor its backup can be understood.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._backup = path.with_name(path.name + ".bak")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StoreError(f"{path}: no place for offsets: {error}") from error
        try:
            self._claim()
            self.offsets = self._read()
        except BaseException:
            os.close(self._lock)
            raise

    def write(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Replace the content; after a crash at any moment the file or its backup is whole.

        Raises: OSError: the old content stands.
        """
        fresh = self._path.with_name(self._path.name + ".new")
        with open(fresh, "wb") as file:
            file.write(to_text(offsets))
            file.flush()
            os.fsync(file.fileno())
        if self._path.exists():
            os.replace(self._path, self._backup)
        os.replace(fresh, self._path)
        self.offsets = dict(offsets)

    def close(self) -> None:
        """Let others use the file; a second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _claim(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateError(
                f"{self._path} belongs to another running member: each broadcasting member of a "
                "host needs an instance_name of its own, the same at each start"
            ) from None

    def _read(self) -> dict[MessageQueue, int]:
        problems = []
        for path in (self._path, self._backup):
            try:
                return from_text(path.read_text(encoding="utf-8"))
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
    """Takes the place of `Offsets` for a broadcasting member; on the I/O thread."""

    def __init__(
        self,
        client: ClientSession,
        file: OffsetFile,
        config: RebalanceConfig,
        statistics: ConsumerStatistics,
    ) -> None:
        self._client = client
        self._file = file
        self._config = config
        self._statistics = statistics
        self._writing = asyncio.Lock()

    async def start_offset(self, queue: MessageQueue, epoch: int, is_fenced: bool) -> int:
        """The offset in the file, else by setting, as `Offsets.start_offset`.

        Raises: RemotingError, RouteError: the broker could not be asked. StoreError: what it
            said could not be written.
        """
        stored = self._file.offsets.get(queue)
        if stored is not None:
            return stored
        offset = await first_offset(self._client, self._config, queue)
        try:
            await self._write({queue: offset})
        except OSError as error:
            raise StoreError(f"the first offset of {queue} was not written: {error}") from error
        return offset

    async def commit(self, assigned: AssignedQueue) -> bool:
        """Write what is done of one queue; False after an error, which is logged."""
        return await self._commit([assigned])

    async def commit_all(self, queues: Iterable[AssignedQueue]) -> None:
        """Write every queue that has something new, all at once."""
        await self._commit(list(queues))

    async def reset(self, assigned: AssignedQueue, generation: int, offset: int) -> bool:
        """Go on from `offset`, either way, as `Offsets.reset`; the next commit writes it."""
        if not assigned.reposition(generation, offset):
            return False
        await self._commit([assigned])
        return True

    def forget(self, queue: MessageQueue) -> None:
        """The file keeps what it has: the queue may come back."""

    async def _commit(self, queues: Collection[AssignedQueue]) -> bool:
        now_ms = self._client.clock.now_ms()
        found = [(item, item.uncommitted(now_ms)) for item in queues]
        new = [(item, *what) for item, what in found if what is not None]
        if not new:
            return True
        try:
            await self._write({item.queue: offset for item, offset, _ in new})
        except OSError as error:
            self._statistics.add("commit_errors")
            _log.warning("offsets of %d queues were not written: %s", len(new), error)
            return False
        for item, offset, lease in new:
            item.committed(offset, lease)
        self._statistics.add("commits", len(new))
        return True

    async def _write(self, changes: Mapping[MessageQueue, int]) -> None:
        async with self._writing:
            await asyncio.to_thread(self._file.write, self._file.offsets | dict(changes))
