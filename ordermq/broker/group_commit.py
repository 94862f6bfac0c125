"""The one writer: many writes, one transaction, one fsync.

The loop thread submits; the writer thread takes everything that waits, gives appended
records their offsets, commits, and hands the whole group back in one call. A write is
visible, and its `done` called, only after the disk has it. When a commit fails, every write
of the group fails, offsets are taken back, and the next group tries afresh.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter

from ordermq.broker.statistics import BrokerStatistics
from ordermq.core.interface import RecordBlock
from ordermq.errors import StoreError

log = logging.getLogger("ordermq.broker")

OFFSET_BITS = 40  # a physical offset is queue row << 40 | queue offset
Statement = tuple[str, tuple[object, ...]]
Done = Callable[[StoreError | None], None]


class QueueLog:
    """One queue: its table and how far it reaches.

    `max_offset`, the next to be written, is what readers see: it moves on the loop thread
    after a commit. `next_offset` runs ahead of it on the writer thread.
    """

    __slots__ = (
        "insert_sql", "is_stored", "last_stored_ms", "max_offset", "min_offset", "next_offset",
        "queue_id", "read_sql", "row", "table", "topic",
    )  # fmt: skip

    def __init__(self, row: int, topic: str, queue_id: int, *, is_stored: bool) -> None:
        self.row = row
        self.topic = topic
        self.queue_id = queue_id
        self.is_stored = is_stored
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        self.last_stored_ms = 0
        self.table = f"log_{row}"
        self.insert_sql = f"INSERT INTO {self.table} VALUES (?, ?, ?)"
        self.read_sql = f"SELECT record FROM {self.table} WHERE off >= ? AND off < ?"

    def physical_offset(self, queue_offset: int) -> int:
        return self.row << OFFSET_BITS | queue_offset


class Append:
    """Records for one queue; `first_offset` is known once the write is done."""

    __slots__ = ("first_offset", "log", "records")

    def __init__(self, log: QueueLog, records: RecordBlock) -> None:
        self.log = log
        self.records = records
        self.first_offset = -1

    def rows(self) -> list[tuple[int, int, bytearray]]:
        """(offset, tag, record) of each, from the first offset on."""
        first = self.first_offset
        return self.records.rows(first, self.log.physical_offset(first))


class Write:
    """What must become durable together; `done` hears how it went, on the loop thread."""

    __slots__ = ("appends", "done", "statements")

    def __init__(
        self,
        done: Done,
        appends: Sequence[Append] = (),
        statements: Sequence[Statement] = (),
    ) -> None:
        self.done = done
        self.appends = appends
        self.statements = statements


class GroupCommit:
    """Runs the writer thread.

    Args:
        database: used by the writer thread alone from `start` to `close`.
        loop: where writes are submitted and their `done` is called.
        group_max: writes joined into one transaction, about.
        committed: hears the appends of each committed write before its `done`.
    """

    def __init__(
        self,
        database: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        group_max: int,
        statistics: BrokerStatistics,
        committed: Callable[[Append], None],
    ) -> None:
        self._database = database
        self._loop = loop
        self._group_max = group_max
        self._statistics = statistics
        self._committed = committed
        self._fresh: list[Write] = []
        self._failed_in_a_row = 0  # groups; a full disk is logged once, not a thousand times
        self._waiting: queue.SimpleQueue[list[Write] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ordermq-store", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Commit what was submitted and end the thread; `done`s then wait in the loop."""
        self._hand_over()
        self._waiting.put(None)
        self._thread.join()

    def submit(self, write: Write) -> None:
        """Queue a write; writes become durable, and are `done`, in this order."""
        self._fresh.append(write)
        if len(self._fresh) == 1:
            # What one turn of the loop brings shares a transaction.
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        if self._fresh:
            self._waiting.put(self._fresh)
            self._fresh = []

    def _run(self) -> None:
        is_open = True
        while is_open:
            group = self._waiting.get()
            if group is None:
                return
            while len(group) < self._group_max:
                try:
                    more = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    is_open = False
                    break
                group += more
            error = self._commit(group)
            self._loop.call_soon_threadsafe(self._finish, group, error)

    def _commit(self, group: list[Write]) -> StoreError | None:
        touched: dict[QueueLog, int] = {}
        created: list[QueueLog] = []
        execute = self._database.execute
        try:
            execute("BEGIN IMMEDIATE")
            self._append(group, touched, created)
            statements = [item for write in group for item in write.statements]
            for sql, run in groupby(statements, itemgetter(0)):
                self._database.executemany(sql, [parameters for _, parameters in run])
            execute("COMMIT")
        except Exception as error:
            if not self._failed_in_a_row:
                log.exception("group of %d writes failed; none is acknowledged", len(group))
            self._failed_in_a_row += 1
            for queue_log, next_offset in touched.items():
                queue_log.next_offset = next_offset
            for queue_log in created:
                queue_log.is_stored = False
            self._roll_back()
            return StoreError(
                f"the broker's store could not write ({error}): free space on its disk, "
                "or check the disk; nothing of this request was kept"
            )
        if self._failed_in_a_row:
            log.warning("the store writes again, after %d failed groups", self._failed_in_a_row)
            self._failed_in_a_row = 0
        return None

    def _roll_back(self) -> None:
        # SQLite rolls back by itself after some errors; a second ROLLBACK would be one more.
        if self._database.in_transaction:
            try:
                self._database.execute("ROLLBACK")
            except sqlite3.Error:
                log.exception("rollback failed; SQLite will repeat it at the next write")

    def _append(
        self, group: list[Write], touched: dict[QueueLog, int], created: list[QueueLog]
    ) -> None:
        rows: dict[QueueLog, list[tuple[int, int, bytearray]]] = {}
        for write in group:
            for append in write.appends:
                queue_log = append.log
                if queue_log not in touched:
                    touched[queue_log] = queue_log.next_offset
                    rows[queue_log] = []
                offset = append.first_offset = queue_log.next_offset
                rows[queue_log] += append.rows()
                queue_log.next_offset = offset + len(append.records)
        for queue_log, new_rows in rows.items():
            if not queue_log.is_stored:
                self._create(queue_log)
                queue_log.is_stored = True
                created.append(queue_log)
            self._database.executemany(queue_log.insert_sql, new_rows)

    def _create(self, queue_log: QueueLog) -> None:
        self._database.execute(
            "INSERT INTO queues (id, topic, queue_id) VALUES (?, ?, ?)",
            (queue_log.row, queue_log.topic, queue_log.queue_id),
        )
        self._database.execute(
            f"CREATE TABLE {queue_log.table} (off INTEGER PRIMARY KEY, tag INTEGER, record BLOB)"
        )

    def _finish(self, group: list[Write], error: StoreError | None) -> None:
        self._statistics.store_groups += 1
        for write in group:
            if error is None:
                for append in write.appends:
                    self._committed(append)
            write.done(error)
