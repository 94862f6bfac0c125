"""SQLite and PostgreSQL: how a transaction begins, is recognised and moves the offset, and the
errors that are outages."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError

from ordermq.errors import ConfigError
from ordermq.sql.statements import Statements


class Begun(NamedTuple):
    """A listener's transaction that has begun.

    Attributes:
        row: of the queue; None if there is none.
        mark: tells this transaction from every other one of its connection.
    """

    row: Any
    mark: Any


class TransactionEnded(Exception):
    """The database is in another transaction than the one that was begun, or in none."""


class Database(Protocol):
    """The differences between the databases.

    Attributes:
        has_one_writer: of all transactions one writes at a time, and the others wait in no order.
    """

    has_one_writer: bool

    def wait_s(self, connection: Connection) -> float:
        """Return how long a transaction waits for the one writer."""

    def is_autocommit(self, connection: Connection) -> bool:
        """Return whether the driver commits each statement, or ignores `commit`."""

    def begin(self, connection: Connection, statements: Statements, key: dict[str, Any]) -> Begun:
        """Begin a listener's transaction, and read the row of the queue."""

    def begin_alone(self, connection: Connection) -> None:
        """Begin a short transaction."""

    def is_in_transaction(self, connection: Connection) -> bool:
        """Return whether the database is in any transaction; asks it nothing."""

    def advance(
        self, connection: Connection, statements: Statements, values: dict[str, Any], mark: Any
    ) -> bool:
        """Move the offset in the transaction of the mark; return False if the row refuses.

        Raises: TransactionEnded: that transaction is over; nothing may be committed.
        """

    def is_outage(self, error: DBAPIError) -> bool:
        """Return whether the database failed, and not the statement."""

    def may_be_handled(self, error: DBAPIError) -> bool:
        """Return whether an outage leaves the rest of the transaction as it was, so that a
        listener may handle it: others held what the statement waited for."""

    def is_table_missing(self, error: DBAPIError) -> bool:
        """Return whether a statement named a table that is not there."""

    def wait_advice(self, error: DBAPIError) -> str:
        """Return what to do about a wait for others that ended in vain; empty for other errors."""


class _Sqlite:
    has_one_writer = True

    def wait_s(self, connection: Connection) -> float:
        waits_ms = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
        return float(waits_ms or 0) / 1_000

    def __init__(self, engine: Engine, idle_timeout_ms: int) -> None:
        name = engine.url.database
        if not name or name == ":memory:" or "mode=memory" in str(engine.url):
            raise ConfigError(
                "SQLite in memory: each thread has a database of its own there; use a file"
            )
        self._numbers = itertools.count(1)

    def is_autocommit(self, connection: Connection) -> bool:
        # The driver's `autocommit` of Python 3.12. With True its commit() and rollback() do
        # nothing, not even to a transaction that a statement began. `isolation_level=None`, which
        # is what SQLAlchemy's AUTOCOMMIT means here, leaves that transaction alone.
        driver = _driver(connection)
        # aiosqlite shows only what it calls on its thread; the connection behind it has the rest.
        return getattr(getattr(driver, "_conn", driver), "autocommit", None) is True

    def begin(self, connection: Connection, statements: Statements, key: dict[str, Any]) -> Begun:
        self.begin_alone(connection)
        row = connection.execute(statements.read, key).first()
        # A statement may roll everything back (OR ROLLBACK, RAISE(ROLLBACK), a full disk), and
        # SQLite tells only whether there is a transaction, not whether it is the same. A savepoint
        # is in the transaction that it was made in, and in no other.
        savepoint = f"ordermq_{next(self._numbers)}"
        connection.exec_driver_sql(f"SAVEPOINT {savepoint}")
        return Begun(row, savepoint)

    def begin_alone(self, connection: Connection) -> None:
        # At once for writing: a transaction that reads first and writes later fails if another
        # one has written in between, however long it is willing to wait. An engine's own event
        # may have begun it.
        if not self.is_in_transaction(connection):
            connection.execute(_BEGIN_IMMEDIATE)

    def is_in_transaction(self, connection: Connection) -> bool:
        return bool(_driver(connection).in_transaction)

    def advance(
        self, connection: Connection, statements: Statements, values: dict[str, Any], mark: Any
    ) -> bool:
        try:
            connection.exec_driver_sql(f"RELEASE {mark}")
        except OperationalError as error:
            if self.is_outage(error):
                raise
            raise TransactionEnded from error  # no such savepoint
        return bool(connection.execute(statements.advance, values).rowcount)

    def is_outage(self, error: DBAPIError) -> bool:
        return _sqlite_code(error) in _SQLITE_OUTAGES

    def may_be_handled(self, error: DBAPIError) -> bool:
        return _sqlite_code(error) in _SQLITE_WAITS

    def is_table_missing(self, error: DBAPIError) -> bool:
        return str(error.orig).startswith("no such table")  # its code is that of any wrong SQL

    def wait_advice(self, error: DBAPIError) -> str:
        if _sqlite_code(error) not in _SQLITE_LOCKED:
            return ""
        return (
            "other transactions held the file for as long as the engine waits: shorten them, or "
            'wait longer, as with connect_args={"timeout": 30}'
        )


def _sqlite_code(error: DBAPIError) -> int:
    # Another driver than Python's has none: an error in the statement.
    return getattr(error.orig, "sqlite_errorcode", 1) & 0xFF  # above are details


_BEGIN_IMMEDIATE = text("BEGIN IMMEDIATE")
# PERM, BUSY, LOCKED, NOMEM, READONLY, INTERRUPT, IOERR, CORRUPT, FULL, CANTOPEN, PROTOCOL, NOTADB
_SQLITE_OUTAGES = frozenset({3, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 26})
_SQLITE_LOCKED = frozenset({5, 6})
_SQLITE_WAITS = _SQLITE_LOCKED | {9}


def _psycopg_is_in_transaction(driver: Any) -> bool:
    return bool(driver.pgconn.transaction_status != _PG_IDLE)


def _asyncpg_is_in_transaction(driver: Any) -> bool:
    return bool(driver.is_in_transaction())


class _PostgreSql:
    has_one_writer = False

    def wait_s(self, connection: Connection) -> float:
        return 0.0

    def __init__(self, engine: Engine, idle_timeout_ms: int) -> None:
        driver = engine.dialect.driver
        if driver not in _PG_DRIVERS:
            raise ConfigError(
                f"the driver {driver}: expected psycopg, as in "
                "create_engine('postgresql+psycopg://...'), or for asyncio also asyncpg, as in "
                "create_async_engine('postgresql+asyncpg://...')"
            )
        self._is_in_transaction = _PG_DRIVERS[driver]
        self._idle_ms = str(idle_timeout_ms)

    def is_autocommit(self, connection: Connection) -> bool:
        # Asked of SQLAlchemy's view of the driver: asyncpg itself has no such mode.
        return bool(cast("Any", connection.connection.dbapi_connection).autocommit)

    def begin(self, connection: Connection, statements: Statements, key: dict[str, Any]) -> Begun:
        # One round trip for all. The timeout is local to the transaction: the connection goes back
        # to the pool.
        values = {**key, "idle_ms": self._idle_ms}
        row = connection.execute(statements.begin_and_identify, values).first()
        return Begun(row, None if row is None else row.transaction_id)

    def begin_alone(self, connection: Connection) -> None:
        """The driver begins with the first statement."""

    def is_in_transaction(self, connection: Connection) -> bool:
        return self._is_in_transaction(_driver(connection))

    def advance(
        self, connection: Connection, statements: Statements, values: dict[str, Any], mark: Any
    ) -> bool:
        row = connection.execute(statements.advance_and_identify, values).first()
        if row is not None and row.transaction_id != mark:
            raise TransactionEnded
        return row is not None

    def is_outage(self, error: DBAPIError) -> bool:
        state = getattr(error.orig, "sqlstate", None)
        if state is None:
            return isinstance(error, OperationalError)  # the connection's, which is no statement's
        return state[:2] in _PG_OUTAGE_CLASSES or state in _PG_OUTAGES

    def may_be_handled(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) in _PG_WAITS

    def is_table_missing(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) == _PG_UNDEFINED_TABLE

    def wait_advice(self, error: DBAPIError) -> str:
        return ""  # the server's own text says it


_PG_UNDEFINED_TABLE = "42P01"
_PG_IDLE = 0
_PG_DRIVERS: dict[str, Callable[[Any], bool]] = {
    "psycopg": _psycopg_is_in_transaction,
    "psycopg_async": _psycopg_is_in_transaction,
    "asyncpg": _asyncpg_is_in_transaction,
}
# Connections, authorization of the role, resources (a full disk), the operator's interventions
# (shutdown, a cancelled statement), the system (I/O), the server's configuration.
_PG_OUTAGE_CLASSES = frozenset({"08", "28", "53", "57", "58", "F0"})
# By others who held what the statement waited for, or changed what it read: lock_not_available,
# object_in_use, query_canceled (also a timeout), serialization_failure, deadlock_detected.
_PG_WAITS = frozenset({"55P03", "55006", "57014", "40001", "40P01"})
# Beside them: transaction_rollback, statement_completion_unknown, read_only_sql_transaction (of a
# standby), the timeouts of an idle and of a long transaction, damage of data and of an index.
_PG_OUTAGES = _PG_WAITS | {"40000", "40003", "25006", "25P03", "25P04", "XX001", "XX002"}


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


DATABASES: dict[str, Callable[[Engine, int], Database]] = {
    "sqlite": _Sqlite,
    "postgresql": _PostgreSql,
}
