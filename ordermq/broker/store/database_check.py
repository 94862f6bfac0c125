"""The check of a whole database, for `ordermq broker check`: SQLite's, and the broker's own rules.

Nothing is changed; a broker may serve meanwhile.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from ordermq.broker.store.group_commit import OFFSET_BITS
from ordermq.broker.store.integrity import integrity_rows, is_closed
from ordermq.broker.store.store import FORMAT, SCHEMA_TABLES, WAITING_TOPICS, database_path
from ordermq.errors import ProtocolError, StoreError
from ordermq.model.stored_message import StoredMessage

MAX_PROBLEMS = 100
_CRC_MASK = 0x7FFFFFFF  # the broker keeps 31 bits, as Java's


@dataclass(slots=True)
class DatabaseReport:
    """Result of a check.

    Attributes:
        is_closed: False if a broker has it open, or did not close it.
        problems: sentences; at most `MAX_PROBLEMS`.
    """

    path: Path
    is_closed: bool
    size_bytes: int
    queues: int = 0
    messages: int = 0
    problems: list[str] = field(default_factory=list)


def check_database(place: Path) -> DatabaseReport:
    """Read everything in a database, and return what is wrong with it.

    Args:
        place: the database, or the folder of it.
    Raises: StoreError: there is no such file, or it cannot be read.
    """
    path = database_path(place)
    if not path.exists():
        raise StoreError(f"{path}: no database of a broker is there")
    report = DatabaseReport(path, is_closed(path), path.stat().st_size)
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro"
        connected = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        with closing(connected) as database:
            database.execute("BEGIN")  # all queries see one moment
            for problem in _Check(database, report).problems():
                report.problems.append(problem)
                if len(report.problems) == MAX_PROBLEMS:
                    break
    except sqlite3.OperationalError as error:
        raise StoreError(f"{path} cannot be read ({error}): check its owner and permissions") from (
            error
        )
    except sqlite3.DatabaseError as error:
        report.problems.append(f"SQLite cannot read on: {error}")
    return report


class _Check:
    """One check; its problems come one by one, so that the caller can stop."""

    def __init__(self, database: sqlite3.Connection, report: DatabaseReport) -> None:
        self._database = database
        self._execute = database.execute
        self._report = report
        self._ends: dict[tuple[str, int], int] = {}  # of each queue

    def problems(self) -> Iterator[str]:
        found = integrity_rows(self._database, MAX_PROBLEMS)
        yield from (f"SQLite: {text}" for (text,) in found if text != "ok")
        tables = {name for (name,) in self._execute("SELECT name FROM sqlite_master")}
        missing = SCHEMA_TABLES - tables
        if missing:
            yield f"tables are missing: {', '.join(sorted(missing))}; it is no broker's database"
            return
        meta = dict(self._execute("SELECT name, value FROM meta"))
        if meta.get("format") != FORMAT:
            yield f"format is {meta.get('format')!r}: expected {FORMAT}"
            return
        yield from self._queues(tables)
        yield from self._small_tables(meta)

    def _queues(self, tables: set[str]) -> Iterator[str]:
        logs = {name for name in tables if name.startswith("log_")}
        first_offsets: dict[object, int] = {}
        if "first_offsets" in tables:
            first_offsets = dict(self._execute("SELECT queue, off FROM first_offsets"))
        rows = self._execute("SELECT id, topic, queue_id FROM queues ORDER BY id").fetchall()
        self._report.queues = len(rows)
        for row, topic, queue_id in rows:
            name = f"queue {queue_id} of topic {topic!r}"
            if (topic, queue_id) in self._ends:
                yield f"{name} is there twice"
            if f"log_{row}" not in logs:
                yield f"{name}: its table log_{row} is missing"
                continue
            logs.discard(f"log_{row}")
            yield from self._records(row, topic, queue_id, first_offsets.get(row))
        yield from (f"table {name} belongs to no queue" for name in sorted(logs))

    def _records(
        self, row: int, topic: str, queue_id: int, first_offset: int | None
    ) -> Iterator[str]:
        last_offset, last_ms = None, 0
        for offset, record in self._execute(f"SELECT off, record FROM log_{row} ORDER BY off"):
            self._report.messages += 1
            where = f"queue {queue_id} of topic {topic!r}, offset {offset}"
            is_gap = last_offset is not None and offset != last_offset + 1
            # A restored back-up leaves a gap; messages leave the waiting topics one by one.
            if is_gap and topic not in WAITING_TOPICS and offset != first_offset:
                yield f"{where}: the one before is {last_offset}, messages are missing"
            last_offset = offset
            try:
                message = StoredMessage.read(record)
            except (ProtocolError, TypeError) as error:
                yield f"{where}: {error}"
                continue
            if zlib.crc32(message.body) & _CRC_MASK != int.from_bytes(record[8:12]):
                yield f"{where}: its body does not have its checksum"
            place = message.topic, message.queue_id, message.queue_offset
            if place != (topic, queue_id, offset):
                yield f"{where}: the record says topic {place[0]!r}, queue {place[1]}, {place[2]}"
            if message.physical_offset != row << OFFSET_BITS | offset:
                yield f"{where}: the record says physical offset {message.physical_offset}"
            if message.stored_ms < last_ms:
                yield f"{where}: stored before the one before it ({message.stored_ms} ms)"
            last_ms = max(message.stored_ms, last_ms)
        end = 0 if last_offset is None else last_offset + 1
        if isinstance(first_offset, int):  # of a restored back-up
            end = max(end, first_offset)
        self._ends[topic, queue_id] = end

    def _small_tables(self, meta: dict[str, object]) -> Iterator[str]:
        topics = dict(self._execute("SELECT name, config FROM topics"))
        for kind, configs in ("topic", topics), ("group", dict(self._execute(
            "SELECT name, config FROM groups"
        ))):  # fmt: skip
            for name, config in configs.items():
                if not _is_object(config):
                    yield f"{kind} {name!r}: its configuration is not a JSON object"
        with_messages = {name for name, _ in self._ends}
        for topic in sorted(with_messages - topics.keys() - WAITING_TOPICS, key=str):
            yield f"topic {topic!r} has messages, but no configuration"
        for group, topic, queue_id, offset in self._execute("SELECT * FROM offsets"):
            end = self._ends.get((topic, queue_id), 0)
            if not isinstance(offset, int) or not 0 <= offset <= end:
                yield (
                    f"group {group!r}: its offset {offset!r} of queue {queue_id} of topic "
                    f"{topic!r} is out of range: expected 0..{end}"
                )
        next_epoch = meta.get("next_epoch")
        if not isinstance(next_epoch, int):
            yield f"the next epoch is {next_epoch!r}: expected a number"
            return
        for group, queue, owner, epoch in self._execute("SELECT * FROM locks"):
            if not isinstance(epoch, int) or not 0 < epoch < next_epoch:
                yield (
                    f"lock of {queue} for group {group!r}: {owner} has epoch {epoch!r}: expected "
                    f"1..{next_epoch - 1}"
                )


def _is_object(text: object) -> bool:
    try:
        return isinstance(json.loads(str(text)), dict)
    except ValueError:
        return False
