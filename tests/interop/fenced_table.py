"""The tables that owners write by the recipe of fence tokens, and the journal of what was accepted:
in SQLite as examples/write_once.py does, or in PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Protocol

import psycopg

from examples import write_once
from examples.write_once import StaleOwner
from ordermq import MessageView

_JOURNAL = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS journal (queue TEXT, epoch INTEGER, next_offset INTEGER);
CREATE TRIGGER IF NOT EXISTS note AFTER INSERT ON progress BEGIN
    INSERT INTO journal VALUES (new.queue, new.epoch, new.next_offset);
END;
"""
_POSTGRESQL = """
CREATE TABLE IF NOT EXISTS progress (
    queue TEXT PRIMARY KEY, epoch BIGINT NOT NULL, next_offset BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS orders (body BYTEA NOT NULL);
CREATE TABLE IF NOT EXISTS journal (
    id BIGSERIAL PRIMARY KEY, queue TEXT, epoch BIGINT, next_offset BIGINT
);
"""


class FencedTable(Protocol):
    """A connection to the tables; used by one thread at a time."""

    def write(self, queue: str, epoch: int, messages: Sequence[MessageView]) -> None:
        """Write a batch.

        Raises: StaleOwner: nothing was written.
        """

    def bodies(self) -> set[int]:
        """Return the numbers that were written."""

    def journal(self) -> Iterator[tuple[str, int, int]]:
        """Return queue, epoch and next offset of every write that was accepted, in its order."""

    def close(self) -> None: ...


class SqliteTable:
    """Fulfils `FencedTable`; `place` is a file."""

    def __init__(self, place: str) -> None:
        self._database = sqlite3.connect(
            place, isolation_level=None, check_same_thread=False, timeout=60
        )
        self._database.executescript(write_once.TABLES + _JOURNAL)

    def write(self, queue: str, epoch: int, messages: Sequence[MessageView]) -> None:
        write_once.write(self._database, queue, epoch, messages)

    def bodies(self) -> set[int]:
        return {int(body) for (body,) in self._database.execute("SELECT body FROM orders")}

    def journal(self) -> Iterator[tuple[str, int, int]]:
        yield from self._database.execute(
            "SELECT queue, epoch, next_offset FROM journal ORDER BY rowid"
        )

    def close(self) -> None:
        self._database.close()


class PostgreSqlTable:
    """Fulfils `FencedTable`; `place` is a URL."""

    def __init__(self, place: str) -> None:
        self._database = psycopg.connect(place, autocommit=True)
        # Two members start at once, and both may find no table.
        with self._database.transaction():
            self._database.execute("SELECT pg_advisory_xact_lock(1)")
            self._database.execute(_POSTGRESQL)

    def write(self, queue: str, epoch: int, messages: Sequence[MessageView]) -> None:
        with self._database.transaction(), self._database.cursor() as cursor:
            cursor.execute(
                "INSERT INTO progress VALUES (%s, %s, 0) ON CONFLICT DO NOTHING", (queue, epoch)
            )
            # With the row's lock, so that nobody writes between our read and our write.
            cursor.execute(
                "SELECT epoch, next_offset FROM progress WHERE queue = %s FOR UPDATE", (queue,)
            )
            newest, next_offset = cursor.fetchone() or (epoch, 0)
            if epoch < newest:
                raise StaleOwner(f"{queue}: epoch {epoch}, but {newest} has written")
            new = [message for message in messages if message.queue_offset >= next_offset]
            cursor.executemany(
                "INSERT INTO orders VALUES (%s)", [(bytes(message.body),) for message in new]
            )
            if new:
                next_offset = new[-1].queue_offset + 1
            place = epoch, next_offset, queue
            cursor.execute(
                "UPDATE progress SET epoch = %s, next_offset = %s WHERE queue = %s", place
            )
            cursor.execute(
                "INSERT INTO journal (epoch, next_offset, queue) VALUES (%s, %s, %s)", place
            )

    def bodies(self) -> set[int]:
        return {int(body) for (body,) in self._database.execute("SELECT body FROM orders")}

    def journal(self) -> Iterator[tuple[str, int, int]]:
        yield from self._database.execute(
            "SELECT queue, epoch, next_offset FROM journal ORDER BY id"
        )

    def close(self) -> None:
        self._database.close()


def open_table(place: str) -> FencedTable:
    """Open the tables, made if need be, in a file or at the URL of a PostgreSQL."""
    return (PostgreSqlTable if place.startswith("postgresql://") else SqliteTable)(place)
