"""The broker's database: SQLite in WAL mode, one table per queue of wire-ready records.

Reads run on the loop thread over a connection of its own; all writes go through
`group_commit`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store.group_commit import (
    OFFSET_BITS,
    Append,
    GroupCommit,
    QueueLog,
    Write,
)
from ordermq.broker.store.integrity import AFTER_DAMAGE, check_integrity, is_closed
from ordermq.broker.store.own_files import OwnFiles
from ordermq.config import BrokerConfig, Durability
from ordermq.errors import ConfigError, StoreError
from ordermq.forking import ProcessBound
from ordermq.model.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from ordermq.model.stored_message import stored_at
from ordermq.private_files import make_private, open_private
from ordermq.threads import NativeEvent

log = logging.getLogger("ordermq.broker")

FORMAT = 1  # of the schema; a database of another format is refused, never converted silently
SCAN_LIMIT = 16_000  # rows one filtered pull may scan, so that other requests are not delayed
_LOADED_AT_ONCE = 256  # records, held in memory meanwhile
_READ_CHUNK = 32  # records: the default batch of a pull, read with one query
_REST_S = 5.0  # a bound that nothing should reach: a fork must not hang, and nor must the broker
# After a back-up was restored, see `adopt_back_up`. No queue gets so many messages on average.
_OFFSETS_PER_MS = 16
_LEAST_GAP = 65_536
# Their offsets are not seen by consumers, and the broker counts on their having no gap.
WAITING_TOPICS = frozenset({HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC})
SCHEMA_TABLES = frozenset({"meta", "topics", "groups", "queues", "offsets", "locks"})
_DISK_ERRORS = frozenset(
    {
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY,
    }
)  # fmt: skip
_OFFSET_MASK = (1 << OFFSET_BITS) - 1
# Each queue has a table of its own, `log_<queues.id>`, because each then grows at its right
# edge: with eight queues twice as fast as one table keyed by queue and offset.
_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "CREATE TABLE topics (name TEXT PRIMARY KEY, config TEXT) WITHOUT ROWID",
    "CREATE TABLE groups (name TEXT PRIMARY KEY, config TEXT) WITHOUT ROWID",
    "CREATE TABLE queues (id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT, queue_id INTEGER)",
    "CREATE TABLE offsets (grp TEXT, topic TEXT, queue_id INTEGER, off INTEGER,"
    " PRIMARY KEY (grp, topic, queue_id)) WITHOUT ROWID",
    "CREATE TABLE locks (grp TEXT, queue TEXT, owner TEXT, epoch INTEGER,"
    " PRIMARY KEY (grp, queue)) WITHOUT ROWID",
)
# Made in older databases, too, when they are opened.
_POP_TABLES = (
    "CREATE TABLE IF NOT EXISTS pop_leases (grp TEXT, topic TEXT, queue_id INTEGER, lease TEXT,"
    " PRIMARY KEY (grp, topic, queue_id)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS open_pops (grp TEXT, topic TEXT, queue_id INTEGER,"
    " pop_ms INTEGER, lease TEXT, PRIMARY KEY (grp, topic, queue_id, pop_ms)) WITHOUT ROWID",
)


class Store(ProcessBound):
    """Opens the database, loads its queues, reads records, and submits writes.

    Args:
        path: a file, a directory to keep `broker.db` in, or None for memory.
    Raises: StoreError: another process has it open, it is not a database of this version of
        ordermq, or it cannot be written.
    """

    # What a fork looks at, also of one whose `__init__` has raised, or runs on another thread.
    _lock_file = -1
    _group_commit: GroupCommit | None = None
    _loop: asyncio.AbstractEventLoop | None = None  # from `start` to `stop_writing`
    _loop_thread = 0
    _is_fork_over: NativeEvent | None = None
    _resting: GroupCommit | None = None  # during a fork

    def __init__(self, path: str | os.PathLike[str] | None, config: BrokerConfig) -> None:
        self.path = None if path is None else database_path(path)
        if self.path is not None:
            self._lock_file = lock_database(self.path)
        self._group_max = config.group_commit_max
        self._listeners: list[Callable[[Append], None]] = []
        self._logs: dict[tuple[str, int], QueueLog] = {}
        self._by_row: dict[int, QueueLog] = {}
        # Topics whose deletion is submitted and not durable: the logs by queue of the lives that
        # follow, one for each deletion. Readers have the old logs until then.
        self._next_lives: dict[str, list[dict[int, QueueLog]]] = {}
        try:
            if self.path is not None:
                _require_whole_restore(self.path)
                _make_database_private(self.path)
                if config.check_after_crash and not is_closed(self.path):
                    check_integrity(self.path)
            with loading(self.path):
                self._writer = self._connect(config)
                # A second connection lets the loop read while the writer thread commits. An
                # in-memory database has one connection: two would need shared-cache mode, whose
                # table locks make readers fail while the writer writes.
                self._reader = self._writer if self.path is None else self._connect(config)
                self._load()
        except OSError as error:
            self._release()
            raise StoreError(
                f"{self.path} cannot be opened as the broker's database ({error.strerror}): check "
                "its owner and permissions"
            ) from error
        except BaseException:
            self._release()
            raise

    def start(self, loop: asyncio.AbstractEventLoop, statistics: BrokerStatistics) -> None:
        """Start the writer thread; `done`s are called on this loop, which also reads.

        Raises: NoThread
        """
        files = None if self.path is None else OwnFiles(self.path)
        group_commit = GroupCommit(
            self._writer, loop, self._group_max, statistics, self._committed, files
        )
        group_commit.start()
        self._loop, self._loop_thread = loop, threading.get_ident()
        self._group_commit = group_commit

    def stop_writing(self) -> None:
        """Commit the writes submitted so far; their `done`s are then queued in the loop."""
        if self._group_commit is not None:
            self._group_commit.close()
            self._group_commit = self._loop = None

    def close(self) -> None:
        """Stop writing, close the database and release its path."""
        self.stop_writing()
        self._release()

    def submit(self, write: Write) -> None:
        """Make a write durable, in the order of submission.

        Raises: StoreError: the broker is closing.
        """
        if self._group_commit is None:
            raise StoreError("the broker is closing and accepts no more writes")
        self._group_commit.submit(write)

    @property
    def is_writing(self) -> bool:
        """True while the writer thread runs."""
        return self._group_commit is not None and self._group_commit.is_alive

    @property
    def failed_commits(self) -> int:
        """Number of group commits that failed since the last one that did not."""
        return 0 if self._group_commit is None else self._group_commit.failed_in_a_row

    def on_append(self, listener: Callable[[Append], None]) -> None:
        """Call `listener` with each append that became durable, on the loop thread."""
        self._listeners.append(listener)

    @property
    def broker_id(self) -> str:
        """Random id created with the database; the same after a restart."""
        return self._broker_id

    def log(self, topic: str, queue_id: int) -> QueueLog:
        """Return the log that a queue's next append goes to; it is stored at its first append.

        Behind a deletion that is not durable yet it is another one than readers have.
        """
        if self._next_lives and topic in self._next_lives:
            life = self._next_lives[topic][-1]
            found = life.get(queue_id)
            if found is None:
                found = life[queue_id] = self._new_log(topic, queue_id)
            return found
        return self.readable_log(topic, queue_id)

    def readable_log(self, topic: str, queue_id: int) -> QueueLog:
        """Return the log that a queue is read from now."""
        found = self._logs.get((topic, queue_id))
        if found is None:
            found = self._logs[topic, queue_id] = self._new_log(topic, queue_id)
        return found

    def _new_log(self, topic: str, queue_id: int) -> QueueLog:
        row = self._next_row
        self._next_row += 1
        found = self._by_row[row] = QueueLog(row, topic, queue_id, is_stored=False)
        return found

    def find_log(self, topic: str, queue_id: int) -> QueueLog | None:
        """Return the log that a queue is read from now, if it has been used."""
        return self._logs.get((topic, queue_id))

    def logs(self) -> list[QueueLog]:
        """Return every log that has been used."""
        return list(self._logs.values())

    def end_life(self, topic: str) -> list[QueueLog]:
        """Begin a topic's next life, for appends; return the logs that its deletion drops.

        Call `life_ended` when the deletion is durable or has failed.
        """
        lives = self._next_lives.setdefault(topic, [])
        if lives:
            dropped = list(lives[-1].values())
        else:
            dropped = [found for found in self._logs.values() if found.topic == topic]
        lives.append({})
        return dropped

    def life_ended(self, topic: str, *, is_durable: bool) -> None:
        """Let readers have the topic's next life; or if its deletion failed, keep the old one."""
        lives = self._next_lives[topic]
        next_life = lives.pop(0)
        if not lives:
            del self._next_lives[topic]
        if not is_durable:
            # What was appended to it needed the deletion, and has failed as well.
            for found in next_life.values():
                del self._by_row[found.row]
            return
        for key in [key for key in self._logs if key[0] == topic]:
            del self._by_row[self._logs.pop(key).row]
        for queue_id, found in next_life.items():
            self._logs[topic, queue_id] = found

    def read(self, log: QueueLog, offset: int, count: int, max_bytes: int) -> tuple[bytes, int]:
        """Return records from `offset` on, joined, and the offset after the last of them.

        At least one record, then as many of `count` as fit into `max_bytes`.
        """
        end = min(offset + count, log.max_offset)
        chunk_end = min(offset + _READ_CHUNK, end)
        records = self.records(log, offset, chunk_end)
        body = b"".join(records)
        if chunk_end == end and len(body) <= max_bytes:
            return body, end
        # Read in chunks, so that a thousand large records are not read to send ten of them.
        size = len(body)
        while chunk_end < end and size <= max_bytes:
            start, chunk_end = chunk_end, min(chunk_end + _READ_CHUNK, end)
            more = self.records(log, start, chunk_end)
            size += sum(map(len, more))
            records += more
        records = _fitting(records, max_bytes)
        # Not counted from `offset`: a restored back-up leaves a gap, see `adopt_back_up`.
        return b"".join(records), _queue_offset(records[-1]) + 1 if records else end

    def next_stored(self, log: QueueLog, offset: int) -> int:
        """Return the first offset from `offset` on that has a record, or `max_offset`."""
        rows = self._rows_of(log, f"SELECT min(off) FROM {log.table} WHERE off >= ?", offset)
        found = rows[0][0] if rows else None
        return log.max_offset if found is None else min(int(found), log.max_offset)

    def last_stored(self, log: QueueLog, end: int) -> int:
        """Return the last offset below `end` that has a record, or -1."""
        rows = self._rows_of(log, f"SELECT max(off) FROM {log.table} WHERE off < ?", end)
        found = rows[0][0] if rows else None
        return -1 if found is None else int(found)

    def read_tagged(
        self, log: QueueLog, offset: int, count: int, max_bytes: int, tag_hashes: Sequence[int]
    ) -> tuple[bytes, int]:
        """Read as `read` does, only records with one of the tags.

        The second result is the offset to continue scanning from.
        """
        # Tags are filtered in the table scan, without an index on the column: an index would cost
        # every send a second tree to write, and most pulls take all tags.
        end = min(offset + SCAN_LIMIT, log.max_offset)
        rows = self._rows_of(
            log,
            f"SELECT off, record FROM {log.table} WHERE off >= ? AND off < ?"
            f" AND tag IN ({', '.join('?' * len(tag_hashes))}) LIMIT ?",
            offset, end, *tag_hashes, count,
        )  # fmt: skip
        kept = _fitting([record for _, record in rows], max_bytes)
        # Cut short by a limit: continue behind the last record kept, not behind the scan.
        if len(kept) < len(rows) or len(rows) == count:
            end = rows[len(kept) - 1][0] + 1
        return b"".join(kept), end

    def scheduled(self, log: QueueLog, offset: int, count: int) -> list[tuple[int, bytes]]:
        """Return (due time, record) of delayed messages, ascending by offset."""
        # Delayed messages have no tag of their own here; the column holds the due time.
        return self._reader.execute(
            f"SELECT tag, record FROM {log.table} WHERE off >= ? AND off < ? LIMIT ?",
            (offset, log.max_offset, count),
        ).fetchall()

    def tags(self, log: QueueLog) -> list[tuple[int, int]]:
        """Return (offset, tag) of every record of a log, ascending; for loading at start."""
        if not log.is_stored:
            return []
        return self._rows_of(log, f"SELECT off, tag FROM {log.table} ORDER BY off")

    def tagged_with(
        self, log: QueueLog, above: int, words: bytes
    ) -> Iterator[tuple[int, int, bytes]]:
        """Yield (offset, tag, record) of records with some bytes and a greater tag, ascending;
        for loading at start. O(the log), in native code.
        """
        sql = (
            f"SELECT off, tag, record FROM {log.table} WHERE off >= ? AND tag > ? "
            "AND instr(record, ?) ORDER BY off LIMIT ?"
        )
        first = log.min_offset
        while log.is_stored:
            rows = self._rows_of(log, sql, first, above, words, _LOADED_AT_ONCE)
            yield from rows
            if len(rows) < _LOADED_AT_ONCE:
                return
            first = rows[-1][0] + 1

    def record(self, log: QueueLog, offset: int) -> bytes | None:
        """Return one stored record; None if the queue does not hold the offset."""
        if not log.min_offset <= offset < log.max_offset:
            return None
        rows = self.records(log, offset, offset + 1)
        return rows[0] if rows else None

    def records(self, log: QueueLog, offset: int, end: int) -> list[bytes]:
        """Return the records of offsets in [offset, end), ascending."""
        return [row[0] for row in self._rows_of(log, log.read_sql, offset, end)]

    def newest(self, log: QueueLog, count: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """Return (offset, record) of a log's newest records, ascending."""
        found: list[tuple[int, bytes]] = []
        size, end = 0, log.max_offset
        # In chunks: the newest few may be all that `max_bytes` allows.
        while len(found) < count and size <= max_bytes:
            rows = self._rows_of(
                log, f"SELECT off, record FROM {log.table} WHERE off < ? ORDER BY off DESC LIMIT ?",
                end, min(_READ_CHUNK, count - len(found)),
            )  # fmt: skip
            if not rows:
                break
            for offset, record in rows:
                size += len(record)
                if size > max_bytes:
                    break
                found.append((offset, record))
            end = rows[-1][0]
        return found[::-1]

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record that a message id points to; None if there is none."""
        found = self._by_row.get(physical_offset >> OFFSET_BITS)
        return None if found is None else self.record(found, physical_offset & _OFFSET_MASK)

    def search(self, log: QueueLog, stored_ms: int, *, after: bool) -> int:
        """Return the first offset stored at or after a time (`after`: later than it).

        The end of the queue if there is none; in a gap, its begin. O(log n) reads.
        """
        # Binary search works because store times never decrease within a queue, see `stored_now`.
        low, high = log.min_offset, log.max_offset
        while low < high:
            middle = (low + high) // 2
            # The next record, if `middle` is in a gap; none is as good as a later one.
            record = self.record(log, self.next_stored(log, middle))
            if record is None:
                high = middle
                continue
            at = stored_at(record)
            if at < stored_ms or (after and at == stored_ms):
                low = middle + 1
            else:
                high = middle
        return low

    def _rows_of(self, log: QueueLog, sql: str, *parameters: object) -> list[Any]:
        """Return what a query of a log's table finds."""
        try:
            return self._reader.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            # The writer thread may have dropped the table already, or have created it and not
            # committed yet; this thread will be told soon.
            if log.is_dropped or not log.max_offset:
                return []
            raise StoreError(
                f"queue {log.queue_id} of topic {log.topic!r} cannot be read from {self.path} "
                f"({error}): {AFTER_DAMAGE}"
            ) from error

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        """Return the result of a query of the small tables; for loading at start."""
        return self._reader.execute(sql).fetchall()

    def used_bytes(self) -> int:
        """Return the size of messages and tables, without free pages."""
        # SQLite keeps the pages of deleted rows for reuse: the file's size would never fall, and
        # retention by size would delete everything.
        pages, free, size = (
            self._reader.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def meta(self, name: str) -> object:
        """Return a value of the meta table."""
        row = self._reader.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def _connect(self, config: BrokerConfig) -> sqlite3.Connection:
        database = sqlite3.connect(
            ":memory:" if self.path is None else self.path,
            isolation_level=None,  # transactions begin and end where we say
            check_same_thread=False,  # opened here, used by the writer thread
            cached_statements=2048,  # two per queue; the default of 128 is too few
            timeout=30,
        )
        try:
            database.execute("PRAGMA journal_mode = WAL")
            # NORMAL leaves the fsync to checkpoints: a power cut may take the last transactions,
            # a killed process none.
            full = config.durability is Durability.FSYNC
            database.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
            database.execute("PRAGMA cache_size = -16384")  # KiB, for each of the two connections
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _load(self) -> None:
        tables = {name for (name,) in self.rows("SELECT name FROM sqlite_master")}
        if not tables:
            self._create()
        elif "meta" not in tables or self.meta("format") != FORMAT:
            raise StoreError(
                f"{self.path} is a database, but not one of this version of ordermq: "
                "give another path, or upgrade"
            )
        if not tables.issuperset(("pop_leases", "open_pops")):
            for sql in _POP_TABLES:
                self._writer.execute(sql)
        for row, topic, queue_id in self._reader.execute("SELECT id, topic, queue_id FROM queues"):
            found = QueueLog(row, topic, queue_id, is_stored=True)
            first, last = self._reader.execute(
                f"SELECT (SELECT min(off) FROM {found.table}), (SELECT max(off) FROM {found.table})"
            ).fetchone()
            if last is not None:
                found.min_offset = first
                found.max_offset = found.next_offset = last + 1
                record = self.record(found, last)
                found.last_stored_ms = 0 if record is None else stored_at(record)
            self._logs[topic, queue_id] = self._by_row[row] = found
        if "first_offsets" in tables:
            for row, offset in self._reader.execute("SELECT * FROM first_offsets"):
                if row in self._by_row:  # its topic may have been deleted
                    self._continue_at(self._by_row[row], offset)
        self._broker_id = str(self.meta("broker_id"))
        # AUTOINCREMENT's own counter, not max(id): the number of a deleted topic's queue must not
        # be used again, as old message ids point to it.
        last_row = self.rows("SELECT seq FROM sqlite_sequence WHERE name = 'queues'")
        self._next_row = int(str(last_row[0][0])) + 1 if last_row else 1

    def _create(self) -> None:
        self._writer.execute("BEGIN IMMEDIATE")
        for sql in _SCHEMA:
            self._writer.execute(sql)
        values = [("format", FORMAT), ("broker_id", secrets.token_hex(16)), ("next_epoch", 1)]
        self._writer.executemany("INSERT INTO meta VALUES (?, ?)", values)
        self._writer.execute("COMMIT")

    def quiet_ms(self, wall_ms: int, lease_ms: int) -> int:
        """Return for how long nothing may be locked or leased: a back-up was restored."""
        until_ms = int(str(self.meta("no_locks_before_ms") or 0))
        # One lease at most, should the clock have been set back since.
        return min(max(until_ms - wall_ms, 0), lease_ms)

    def adopt_back_up(self, wall_ms: int, lease_ms: int) -> None:
        """If this is a back-up, make it safe to go on from; call before anything is read from it.

        Clients have seen epochs and offsets that were given out after it was made, and hold locks
        it does not know.
        """
        made_ms = self.meta("backup_ms")
        if made_ms is None:
            return
        log.warning(
            "continuing from a back-up, later messages and offsets are lost: made_ms=%s "
            "first_epoch=%d", made_ms, wall_ms,
        )  # fmt: skip
        execute = self._writer.execute
        execute("BEGIN IMMEDIATE")
        # The time: no broker gives out an epoch per millisecond, so it is beyond all of them. More
        # than the value itself, for a clock that is behind the one of an earlier restoring.
        execute(
            "UPDATE meta SET value = max(value + ?, ?) WHERE name = 'next_epoch'",
            (_LEAST_GAP, wall_ms),
        )
        execute("DELETE FROM locks")
        # One lease: the members that hold locks cannot renew them, and stop before its end.
        execute(
            "INSERT OR REPLACE INTO meta VALUES ('no_locks_before_ms', ?)", (wall_ms + lease_ms,)
        )
        execute("DELETE FROM meta WHERE name = 'backup_ms'")
        # Offsets that clients have seen are not given again: more of them than a queue can have
        # got since then are left out.
        gap = max(wall_ms - int(str(made_ms)), 0) * _OFFSETS_PER_MS + _LEAST_GAP
        execute("CREATE TABLE IF NOT EXISTS first_offsets (queue INTEGER PRIMARY KEY, off INTEGER)")
        for found in self._logs.values():
            if found.topic not in WAITING_TOPICS:
                self._continue_at(found, min(found.max_offset + gap, 1 << (OFFSET_BITS - 1)))
                execute(
                    "INSERT OR REPLACE INTO first_offsets VALUES (?, ?)",
                    (found.row, found.max_offset),
                )
        execute("COMMIT")

    def _continue_at(self, log: QueueLog, offset: int) -> None:
        """Give a log's next record an offset, if that is higher than the one it would have."""
        if offset > log.max_offset:
            if log.min_offset == log.max_offset:
                log.min_offset = offset
            log.max_offset = log.next_offset = offset

    def _committed(self, append: Append) -> None:
        append.log.max_offset = append.first_offset + len(append.records)
        broken = None
        for listener in self._listeners:
            try:
                listener(append)
            except Exception as error:  # noqa: BLE001 - raised below
                broken = error  # the others must hear of the message
        if broken is not None:
            raise broken

    # At a fork. SQLite's own locks are of the process: one that another thread held at the fork
    # would stop every database that the child opens, for ever. So both threads rest meanwhile.

    def _before_fork(self) -> None:
        # The loop first: it may be waiting for the writer's end.
        if self._loop is not None and threading.get_ident() != self._loop_thread:
            self._is_fork_over, is_resting = NativeEvent(), NativeEvent()
            with contextlib.suppress(RuntimeError):  # it has just been closed
                self._loop.call_soon_threadsafe(_rest, is_resting, self._is_fork_over)
                is_resting.wait(_REST_S)
        self._resting = self._group_commit
        if self._resting is not None:
            self._resting.rest()

    def _after_fork_in_parent(self) -> None:
        if self._resting is not None:
            self._resting.go_on()
            self._resting = None
        if self._is_fork_over is not None:
            self._is_fork_over.set()
            self._is_fork_over = None

    def _leave_to_parent(self) -> None:
        # The path stays locked as long as any process has this open, so not in the child. The
        # databases stay open there, unused: to close one would write its log back.
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def _release(self) -> None:
        for name in ("_reader", "_writer"):
            database = getattr(self, name, None)
            if database is not None:
                database.close()
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1


@contextlib.contextmanager
def loading(path: Path | None) -> Iterator[None]:
    """Turn every way in which a database's content can be wrong into an error that says so.

    Raises: StoreError: it is no database, or one with a content that no broker has written.
    """
    try:
        yield
    except (StoreError, ConfigError, OSError):
        raise
    except sqlite3.OperationalError as error:
        # The low byte is the kind of the error. Others, as of a missing table, are damage.
        remedy = AFTER_DAMAGE
        if error.sqlite_errorcode & 0xFF in _DISK_ERRORS:
            remedy = (
                "free space on its disk, or check the disk, and the file's owner and permissions"
            )
        raise StoreError(
            f"{path} cannot be opened as the broker's database ({error}): {remedy}"
        ) from (error)
    except Exception as error:
        # Whatever was expected of the content: a damaged page may look like any rows.
        raise StoreError(
            f"{path} cannot be opened as the broker's database ({type(error).__name__}: {error}): "
            f"give another path, or if it was one: {AFTER_DAMAGE}"
        ) from error


def _rest(is_resting: NativeEvent, is_over: NativeEvent) -> None:
    is_resting.set()
    is_over.wait(_REST_S)


def _queue_offset(record: bytes) -> int:
    return int.from_bytes(record[20:28])


def _fitting(records: Iterable[bytes], max_bytes: int) -> list[bytes]:
    # The first record is kept whatever its size, or a pull could never get past it.
    kept: list[bytes] = []
    size = 0
    for record in records:
        size += len(record)
        if kept and size > max_bytes:
            break
        kept.append(record)
    return kept


def database_path(path: str | os.PathLike[str]) -> Path:
    """Return the file of a database that is given as a file or as its folder."""
    place = Path(path)
    return place / "broker.db" if place.is_dir() else place


def restored_path(path: Path) -> Path:
    """Return the name of a restored copy until it takes the place of the database."""
    return path.with_name(f"{path.name}.restored")


def _require_whole_restore(path: Path) -> None:
    # An empty database in its place would look like the loss of everything.
    if restored_path(path).exists() and not path.exists():
        raise StoreError(
            f"{path} is not there: `ordermq broker restore` was ended in its last step. Call it "
            f"again with the same back-up; what was there before is {path}.before-*"
        )


def _make_database_private(path: Path) -> None:
    # SQLite gives its other two files the mode of the database when it creates them; after a
    # crash they are there already.
    os.close(open_private(path, os.O_RDWR))
    for suffix in ("-wal", "-shm"):
        make_private(f"{path}{suffix}")


def lock_database(path: Path) -> int:
    """Lock the path for this process; the kernel releases it however the process ends.

    Raises: StoreError: it is in use, or cannot be written.
    """
    # A file of its own: SQLite's locks on the database would allow a second reader and writer.
    try:
        held = open_private(f"{path}.lock", os.O_RDWR)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be used as the broker's database ({error.strerror}): its directory "
            "must exist and be writable"
        ) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(held, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(held)
        raise StoreError(
            f"{path} is open in another broker (process {holder}): stop that one, or give "
            "another path"
        ) from error
    with contextlib.suppress(OSError):  # only for the text above: a full disk can still be read
        os.ftruncate(held, 0)
        os.pwrite(held, f"{os.getpid()}\n".encode(), 0)
    return held
