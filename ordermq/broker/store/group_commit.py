"""Group commit: one writer thread turns many writes into one transaction and one fsync.

The loop thread submits writes. The writer thread takes everything that waits, assigns
offsets to appended records, commits, and returns the whole group to the loop in one call.
A write becomes visible, and its `done` is called, only after the commit. When a commit
fails, every write of the group fails and its offsets are taken back.

Inside a group the writes take effect in the order of their submission. Rows of one queue are
inserted together, and neighbouring statements with the same SQL run together, but never across a
statement about the same log, nor across the end of a log.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple

from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store.own_files import OwnFiles
from ordermq.core.contract import RecordBlock
from ordermq.errors import StoreError
from ordermq.threads import Lock, start_thread

log = logging.getLogger("ordermq.broker")

# A physical offset is queue row << 40 | queue offset: 2^40 messages per queue and 2^23 queues
# fit into the signed 64 bits that message ids and commitLogOffset fields have.
OFFSET_BITS = 40
# Rows of a statement that stores several, instead of being run for each: 64 records of eight queues
# take 43 us instead of 73 in a loop, 88 instead of 97 in a broker, whose threads take turns. More
# rows win little, and fewer groups have as many for a queue.
_JOINED_ROWS = 8
Done = Callable[[StoreError | None], None]


class QueueLog:
    """The log of one queue: its table and its first and next offsets.

    Readers use `max_offset`, which moves on the loop thread after a commit. `next_offset`
    runs ahead of it and belongs to the writer thread.
    """

    __slots__ = (
        "insert_joined_sql", "insert_sql", "is_dropped", "is_stored", "last_stored_ms",
        "max_offset", "min_offset", "next_offset", "queue_id", "read_sql", "row", "table", "topic",
    )  # fmt: skip

    def __init__(self, row: int, topic: str, queue_id: int, *, is_stored: bool) -> None:
        self.row = row
        self.topic = topic
        self.queue_id = queue_id
        self.is_stored = is_stored  # False until the first append has created the table
        # Set by the writer thread, before the commit that drops the table. What comes later and
        # still names this log concerns an earlier life of its topic.
        self.is_dropped = False
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        self.last_stored_ms = 0
        self.table = f"log_{row}"
        # Formatted once per queue: sqlite3 caches prepared statements by their text.
        self.insert_sql = f"INSERT INTO {self.table} VALUES (?, ?, ?)"
        self.insert_joined_sql = self.insert_sql + ", (?, ?, ?)" * (_JOINED_ROWS - 1)
        self.read_sql = f"SELECT record FROM {self.table} WHERE off >= ? AND off < ?"

    def physical_offset(self, queue_offset: int) -> int:
        """Return the broker-wide offset that message ids contain."""
        return self.row << OFFSET_BITS | queue_offset


class Append:
    """Records for one queue; `first_offset` is set once the write is done."""

    __slots__ = ("first_offset", "log", "records")

    def __init__(self, log: QueueLog, records: RecordBlock) -> None:
        self.log = log
        self.records = records
        self.first_offset = -1

    def rows(self) -> list[tuple[int, int, bytearray]]:
        """Return (offset, tag, record) of each record, from `first_offset` on."""
        first = self.first_offset
        return self.records.rows(first, self.log.physical_offset(first))


class Statement(NamedTuple):
    """A change of the small tables, or of the table of one log."""

    sql: str
    parameters: tuple[object, ...] = ()
    log: QueueLog | None = None  # whose table the SQL names


class Write:
    """Appends and statements that become durable together.

    Args:
        done: called on the loop thread with None, or with the error that undid all of it.
        drops: logs that end with this write, after its statements.
        needs: earlier writes that this one builds on: it fails if one of them has.
    Attributes:
        is_failed: true once nothing of it was stored; belongs to the writer thread.
    """

    __slots__ = ("appends", "done", "drops", "is_failed", "needs", "statements")

    def __init__(
        self,
        done: Done,
        appends: Sequence[Append] = (),
        statements: Sequence[Statement] = (),
        *,
        drops: Sequence[QueueLog] = (),
        needs: Sequence[Write] = (),
    ) -> None:
        self.done = done
        self.appends = appends
        self.statements = statements
        self.drops = drops
        self.needs = needs
        self.is_failed = False


def joined(count: int, done: Done) -> Done:
    """Return the `done` of each of several writes; `done` is called after the last one.

    Args: done: gets the first error; None if all succeeded.
    """
    left, failure = count, None

    def finish(error: StoreError | None) -> None:
        nonlocal left, failure
        left -= 1
        failure = failure or error
        if not left:
            done(failure)

    return finish


def awaitable_done(done: Done) -> tuple[Done, asyncio.Future[StoreError | None]]:
    """Return a `done` for a write, and a future that completes with the same argument.

    The given `done` runs even if the task that awaits the future was cancelled, so the state
    in memory never differs from what was committed.
    """
    ended: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()

    def finish(error: StoreError | None) -> None:
        try:
            done(error)
        finally:  # the loop that waits for this write would stand still for ever
            if not ended.done():
                ended.set_result(error)

    return finish, ended


class GroupCommit:
    """Runs the writer thread.

    Args:
        database: used by the writer thread alone from `start` to `close`.
        loop: the loop that submits writes and calls their `done`.
        group_max: soft limit of writes joined into one transaction.
        committed: called with each append of a committed write, before its `done`.
        files: those of the database; None of one in memory.
    Attributes:
        failed_in_a_row: group commits that failed since the last one that did not.
    """

    def __init__(
        self,
        database: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        group_max: int,
        statistics: BrokerStatistics,
        committed: Callable[[Append], None],
        files: OwnFiles | None,
    ) -> None:
        self._files = files
        self._database = database
        self._loop = loop
        self._group_max = group_max
        self._statistics = statistics
        self._committed = committed
        self._submitted: list[Write] = []
        self._has_logged_callback = False
        self.failed_in_a_row = 0  # groups; a full disk is logged once, not per group
        # SimpleQueue: its put and get are single C calls, and the writer blocks without polling.
        self._waiting: queue.SimpleQueue[list[Write] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ordermq-store", daemon=True)
        self._committing = Lock()  # taken once per group; a fork takes it, too

    def start(self) -> None:
        """Start the writer thread.

        Raises: NoThread
        """
        start_thread(self._thread)

    def close(self) -> None:
        """Commit all submitted writes and end the thread; their `done`s are queued in the loop."""
        self._hand_over()
        self._waiting.put(None)
        self._thread.join()

    def rest(self) -> None:
        """Wait until no group is being committed, and begin none until `go_on`."""
        self._committing.acquire()

    def go_on(self) -> None:
        """End `rest`."""
        self._committing.release()

    @property
    def is_alive(self) -> bool:
        """True while the writer thread runs."""
        return self._thread.is_alive()

    def submit(self, write: Write) -> None:
        """Queue a write; writes become durable, and are `done`, in this order."""
        self._submitted.append(write)
        if len(self._submitted) == 1:
            # Handed over at the end of this loop iteration: all requests that were read from
            # sockets in it share one transaction, and the thread is woken once for them.
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        if self._submitted:
            self._waiting.put(self._submitted)
            self._submitted = []

    def _run(self) -> None:
        is_open = True
        while is_open:
            group = self._waiting.get()
            if group is None:
                return
            # Everything submitted during the last fsync joins this one.
            while len(group) < self._group_max:
                try:
                    more = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    is_open = False
                    break
                group += more
            with self._committing:
                errors = self._commit(group)
            # One call per group: waking the loop costs more than finishing a write.
            self._loop.call_soon_threadsafe(self._finish, group, errors)

    def _commit(self, group: list[Write]) -> list[StoreError | None]:
        """Store a group; return the error of each write, None for those that are durable."""
        changes = _GroupChanges(self._database)
        try:
            # IMMEDIATE takes the write lock now; a deferred transaction could fail half way.
            self._database.execute("BEGIN IMMEDIATE")
            errors = [changes.add(write) for write in group]
            changes.flush()
            if self._files is not None:
                self._files.require_same()
            self._database.execute("COMMIT")
        except Exception as error:
            if not self.failed_in_a_row:
                log.exception("group commit failed, none acknowledged: writes=%d", len(group))
            self.failed_in_a_row += 1
            changes.undo()
            self._roll_back()
            for write in group:
                write.is_failed = True
            remedy = (
                ""
                if isinstance(error, StoreError)
                else ": free space on its disk, or check the disk"
            )
            failure = StoreError(
                f"the broker's store could not write ({error}){remedy}; nothing of this "
                "request was kept"
            )
            return [failure] * len(group)
        if self.failed_in_a_row:
            log.warning("group commits succeed again: failed_before=%d", self.failed_in_a_row)
            self.failed_in_a_row = 0
        return errors

    def _roll_back(self) -> None:
        # SQLite has already rolled back after some errors; then ROLLBACK would raise.
        if self._database.in_transaction:
            try:
                self._database.execute("ROLLBACK")
            except Exception:
                log.exception("rollback failed; SQLite repeats it at the next write")

    def _finish(self, group: list[Write], errors: list[StoreError | None]) -> None:
        self._statistics.store_groups += 1
        for write, error in zip(group, errors, strict=True):
            try:
                if error is None:
                    # Before `done`: a client that gets its reply may read the message at once.
                    for append in write.appends:
                        self._committed(append)
            except Exception:  # noqa: BLE001 - counted and logged
                self._note_failed_callback()
            # One that raises must not silence those behind it: their writes are durable, and
            # their clients would wait for answers that never come.
            try:
                write.done(error)
            except Exception:  # noqa: BLE001 - counted and logged
                self._note_failed_callback()

    def _note_failed_callback(self) -> None:
        self._statistics.internal_errors += 1
        if not self._has_logged_callback:
            self._has_logged_callback = True
            log.exception(
                "a callback of a write failed (please report); further ones are counted in "
                "internal_errors"
            )


class _GroupChanges:
    """The changes of one group in its transaction; on the writer thread.

    Rows are collected per queue, and statements of the small tables, because one `executemany` per
    queue and group is several times faster than one per write. The two touch different tables, so
    their order among each other does not matter; a statement about a log, and the end of one, come
    after the rows that were collected before them and before those that follow.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._next_offsets: dict[QueueLog, int] = {}  # as they were before this group
        self._created: list[QueueLog] = []
        self._dropped: list[QueueLog] = []
        self._rows: dict[QueueLog, list[tuple[int, int, bytearray]]] = {}
        self._statements: list[Statement] = []
        self._changed: set[QueueLog] = set()  # logs of the statements collected

    def add(self, write: Write) -> StoreError | None:
        """Collect or run what a write does; return why it can not be done, then nothing is."""
        if (error := _refusal(write)) is not None:
            write.is_failed = True
            return error
        for append in write.appends:
            self._append(append)
        for statement in write.statements:
            if statement.log is not None:
                if statement.log in self._rows:
                    self.flush()
                self._changed.add(statement.log)
            self._statements.append(statement)
        if write.drops:
            self.flush()
            for queue_log in write.drops:
                self._drop(queue_log)
        return None

    def flush(self) -> None:
        """Run what was collected."""
        for queue_log, rows in self._rows.items():
            if not queue_log.is_stored:
                self._create(queue_log)
            self._insert(queue_log, rows)
        # Only neighbours with the same SQL are joined: the order of statements matters, for example
        # when a lock is granted, released and granted again in one group.
        for sql, run in groupby(self._statements, itemgetter(0)):
            self._database.executemany(sql, [statement.parameters for statement in run])
        self._rows.clear()
        self._statements.clear()
        self._changed.clear()

    def undo(self) -> None:
        """Put the logs back as they were before the group."""
        for queue_log, next_offset in self._next_offsets.items():
            queue_log.next_offset = next_offset
        for queue_log in self._created:
            queue_log.is_stored = False
        for queue_log in self._dropped:
            queue_log.is_dropped = False

    def _append(self, append: Append) -> None:
        queue_log = append.log
        if queue_log in self._changed:
            self.flush()
        if queue_log not in self._next_offsets:
            self._next_offsets[queue_log] = queue_log.next_offset
        offset = append.first_offset = queue_log.next_offset
        self._rows.setdefault(queue_log, []).extend(append.rows())
        queue_log.next_offset = offset + len(append.records)

    def _insert(self, queue_log: QueueLog, rows: list[tuple[int, int, bytearray]]) -> None:
        joined = len(rows) - len(rows) % _JOINED_ROWS
        if joined:
            self._database.executemany(
                queue_log.insert_joined_sql,
                [
                    tuple(chain.from_iterable(rows[at : at + _JOINED_ROWS]))
                    for at in range(0, joined, _JOINED_ROWS)
                ],
            )
        if joined < len(rows):
            self._database.executemany(queue_log.insert_sql, rows[joined:])

    def _create(self, queue_log: QueueLog) -> None:
        self._database.execute(
            "INSERT INTO queues (id, topic, queue_id) VALUES (?, ?, ?)",
            (queue_log.row, queue_log.topic, queue_log.queue_id),
        )
        self._database.execute(
            f"CREATE TABLE {queue_log.table} (off INTEGER PRIMARY KEY, tag INTEGER, record BLOB)"
        )
        queue_log.is_stored = True
        self._created.append(queue_log)

    def _drop(self, queue_log: QueueLog) -> None:
        # By the row's number, never by the topic's name: that may have another log by now.
        if queue_log.is_stored:
            self._database.execute("DELETE FROM queues WHERE id = ?", (queue_log.row,))
            self._database.execute(f"DROP TABLE {queue_log.table}")
        queue_log.is_dropped = True
        self._dropped.append(queue_log)


def _refusal(write: Write) -> StoreError | None:
    """Return why a write can no longer be done: what it builds on is not there."""
    # Checked for each write alone: an error of SQLite would undo its whole group.
    if write.needs and any(need.is_failed for need in write.needs):
        return StoreError(
            "a change that this request builds on could not be stored; nothing of this request "
            "was kept: send it again"
        )
    # Loops, not one chain: this runs for every send.
    for append in write.appends:
        if append.log.is_dropped:
            return _deleted(append.log)
    for statement in write.statements:
        if statement.log is not None and statement.log.is_dropped:
            return _deleted(statement.log)
    for dropped in write.drops:
        if dropped.is_dropped:
            return _deleted(dropped)
    return None


def _deleted(queue_log: QueueLog) -> StoreError:
    return StoreError(
        f"topic {queue_log.topic!r} was deleted meanwhile; nothing of this request was kept: send "
        "it again"
    )
