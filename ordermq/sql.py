"""Exactly-once effects in a SQL database: offsets beside the user's own tables
(docs/exactly-once.md).

    store = SqlOffsetStore(create_engine("postgresql+psycopg://..."))
    consumer = PushConsumer("billing", name_servers=..., offset_store=store)

    @consumer.orderly
    def bill(messages, context):
        connection = context.transaction()
        ...

A row of one table holds the next offset of each queue and the epoch of its owner. A listener's
changes and the next offset are committed together, on condition that the epoch is still the newest
and the offset not yet behind: so no message takes effect twice, whoever else believes to own the
queue, and however often it is delivered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from ordermq.errors import ConfigError, StaleOwner, StateError, StoreError
from ordermq.lazy_imports import needed_from
from ordermq.model.message_queue import MessageQueue

with needed_from("sql"):
    from sqlalchemy import (
        BigInteger,
        Column,
        Connection,
        DateTime,
        Engine,
        Integer,
        MetaData,
        String,
        Table,
        bindparam,
        case,
        event,
        func,
        insert,
        or_,
        select,
        text,
        update,
    )
    from sqlalchemy.exc import DBAPIError, OperationalError, PendingRollbackError, SQLAlchemyError
    from sqlalchemy.exc import TimeoutError as PoolTimeout

_log = logging.getLogger("ordermq.consumer")
_T = TypeVar("_T")
_NAME = 255  # no group or topic is longer, with its namespace
_IDLE_TIMEOUT_MS = 30_000  # the life of a lease at most, unless configured otherwise
_SQLITE_ERROR = 1  # an error in the statement; all others are the database's


class SqlOffsetStore:
    """Keeps offsets and epochs in a table of the user's SQLite or PostgreSQL database; fulfils
    `TransactionalStore`.

    Args:
        engine: of the database that the listeners write to; for PostgreSQL with psycopg.
        table, schema: of the offsets. Consumers of different clusters need different tables.
        create_table: create it if it does not exist; else it must, see `table`.
        idle_timeout_ms: PostgreSQL aborts a transaction in which nothing happens for so long:
            that of a frozen process would keep its locks otherwise, and its queues would stand
            still. A listener that computes for longer between two statements needs more.
    Attributes:
        table: the `sqlalchemy.Table`, for migrations.
    Raises: ConfigError: a database that is not supported, or not in this form.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        table: str = "ordermq_offsets",
        schema: str | None = None,
        create_table: bool = True,
        idle_timeout_ms: int = _IDLE_TIMEOUT_MS,
    ) -> None:
        if engine.dialect.name not in _DATABASES:
            raise ConfigError(f"{engine.dialect.name}: expected an engine of SQLite or PostgreSQL")
        if idle_timeout_ms < 1:
            raise ConfigError(f"idle_timeout_ms={idle_timeout_ms}: expected 1 or more")
        # A view of the engine with the same pool: what is listened to here is heard of the
        # connections below only, not of those that the user opens elsewhere.
        self._engine = engine.execution_options()
        self.table = _offsets_table(table, schema)
        self._creates = create_table
        self._database = _DATABASES[engine.dialect.name](engine, idle_timeout_ms)
        self._statements = _Statements(self.table)
        # (epoch, next offset) of each queue as this process stored it last: spares the periodic
        # commits of what transactions have stored already.
        self._stored: dict[tuple[str, MessageQueue], tuple[int, int]] = {}
        event.listen(self._engine, "commit", _refuse_commit)

    def __repr__(self) -> str:
        return f"<SqlOffsetStore {self.table.fullname} {self._engine.url!r}>"

    # OffsetStore

    def open(self) -> None:
        with self._errors_as_store_errors(), self._engine.connect() as connection:
            self._database.check(connection)
        if self._creates:
            with self._errors_as_store_errors():
                self._create()

    def take_over(self, group: str, queue: MessageQueue, epoch: int) -> int | None:
        offset = self._alone(lambda connection: self._claim(connection, group, queue, epoch))
        self._note(group, queue, epoch, offset)
        return offset

    def read(self, group: str, queue: MessageQueue) -> int | None:
        with self._errors_as_store_errors(), self._engine.connect() as connection:
            row = connection.execute(self._statements.read, _key(group, queue)).first()
        return None if row is None else row.next_offset

    def write(
        self,
        group: str,
        queue: MessageQueue,
        next_offset: int,
        epoch: int,
        *,
        is_reset: bool = False,
    ) -> None:
        known_epoch, known_offset = self._stored.get((group, queue), (0, -1))
        if not is_reset and known_epoch == epoch and known_offset >= next_offset:
            return
        statement = self._statements.reset if is_reset else self._statements.grow
        values = {**_key(group, queue), "mine": epoch, "offset": next_offset}

        def change(connection: Connection) -> None:
            if connection.execute(statement, values).rowcount == 0:
                raise self._refusal(connection, group, queue, epoch, next_offset)

        self._alone(change)
        self._note(group, queue, epoch, next_offset, is_reset=is_reset)

    # TransactionalStore

    def begin(
        self, group: str, queue: MessageQueue, epoch: int, first_offset: int
    ) -> SqlTransaction:
        with self._errors_as_store_errors():
            connection = self._engine.connect()
            try:
                # Before the listener works: what could not be committed is not begun.
                row = self._database.begin(connection, self._statements, _key(group, queue))
                if row is None or row.epoch > epoch or (row.next_offset or 0) > first_offset:
                    raise self._refusal(connection, group, queue, epoch, first_offset)
            except BaseException:
                _discard(connection)
                raise
        return SqlTransaction(self, connection, group, queue, epoch, first_offset)

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, (PoolTimeout, PendingRollbackError)) or (
            isinstance(error, DBAPIError)
            and (error.connection_invalidated or self._database.is_outage(error))
        )

    # Inside.

    def _create(self) -> None:
        try:
            self.table.create(self._engine_of_ours(), checkfirst=True)
        except SQLAlchemyError:
            # Members that start together create it together; all but one of them fail.
            self.table.create(self._engine_of_ours(), checkfirst=True)

    def _engine_of_ours(self) -> Engine:
        return self._engine.execution_options(ordermq_may_commit=True)

    def _claim(
        self, connection: Connection, group: str, queue: MessageQueue, epoch: int
    ) -> int | None:
        key = _key(group, queue)
        if connection.execute(self._statements.claim, {**key, "mine": epoch}).rowcount:
            # In the same transaction: the row is locked since, so no older owner moves it now.
            row = connection.execute(self._statements.read, key).one()
            return None if row.next_offset is None else int(row.next_offset)
        if connection.execute(self._statements.read, key).first() is not None:
            raise self._refusal(connection, group, queue, epoch, None)
        connection.execute(self._statements.create, {**key, "mine": epoch})
        return None

    def _alone(self, work: Callable[[Connection], _T]) -> _T:
        """Do something in a transaction of its own."""
        with self._errors_as_store_errors():
            connection = self._engine.connect()
            try:
                self._database.begin_alone(connection)
                result = work(connection)
                _commit(connection)
                return result
            finally:
                _discard(connection)

    def _note(
        self,
        group: str,
        queue: MessageQueue,
        epoch: int,
        offset: int | None,
        *,
        is_reset: bool = True,
    ) -> None:
        before_epoch, before = self._stored.get((group, queue), (0, -1))
        if offset is None:
            self._stored.pop((group, queue), None)
        elif is_reset or epoch != before_epoch or offset > before:
            self._stored[group, queue] = epoch, offset

    def _refusal(
        self,
        connection: Connection,
        group: str,
        queue: MessageQueue,
        epoch: int,
        offset: int | None,
    ) -> StaleOwner:
        row = connection.execute(self._statements.read, _key(group, queue)).first()
        if row is None:
            reason = f"{self.table.fullname} has no row of this queue any more"
        elif row.epoch > epoch:
            reason = (
                f"a newer owner, of epoch {row.epoch}, took the queue over in "
                f"{self.table.fullname}. If none can exist, because the broker lost its data or "
                "another cluster uses the table, use another table"
            )
        else:
            reason = (
                f"the next offset in {self.table.fullname} is {row.next_offset}: these messages "
                "had their effects already; continuing from there"
            )
        return StaleOwner(
            f"nothing written: {reason}",
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            group=group,
            offset=offset,
            epoch=epoch,
        )

    @contextmanager
    def _errors_as_store_errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise StoreError(f"offsets in {self.table.fullname}: {error}") from error


class SqlTransaction:
    """The transaction of one listener call; fulfils `Transaction`."""

    __slots__ = ("_begun", "_epoch", "_first", "_group", "_queue", "_store", "connection")

    def __init__(
        self,
        store: SqlOffsetStore,
        connection: Connection,
        group: str,
        queue: MessageQueue,
        epoch: int,
        first_offset: int,
    ) -> None:
        self._store = store
        self.connection = connection
        self._group = group
        self._queue = queue
        self._epoch = epoch
        self._first = first_offset
        self._begun = connection.get_transaction()  # None when it is over

    def commit(self, next_offset: int) -> None:
        store, connection, key = self._store, self.connection, _key(self._group, self._queue)
        if connection.closed or connection.get_transaction() is not self._begun:
            raise StateError(
                "the listener ended its transaction itself; return SUSPEND or raise to undo a "
                "call, and use connection.begin_nested() to undo a part of it",
                topic=self._queue.topic,
                group=self._group,
            )
        values = {**key, "mine": self._epoch, "first": self._first, "offset": next_offset}
        # The last statement, so that the row is locked for as short as possible: a take-over waits
        # for it.
        if connection.execute(store._statements.advance, values).rowcount == 0:
            raise store._refusal(connection, self._group, self._queue, self._epoch, self._first)
        _commit(connection)
        self._begun = None
        store._note(self._group, self._queue, self._epoch, next_offset)
        connection.close()

    def roll_back(self) -> None:
        if self._begun is not None:
            self._begun = None
            _discard(self.connection)


def _discard(connection: Connection) -> None:
    """Undo what was not committed, and give the connection back."""
    try:
        transaction = connection.get_transaction()
        if transaction is not None and not transaction.is_active:
            # A commit failed, and SQLAlchemy takes the transaction for ended. In SQLite it is
            # not, and the next user of the pooled connection would find himself within it.
            connection.invalidate()
        connection.close()  # rolls back
    except SQLAlchemyError as error:
        # The connection broke, so the database has rolled back, or will.
        _log.info("a transaction's connection could not be closed: %s", error)


def _commit(connection: Connection) -> None:
    # Executed with the option on, and only here: see `_refuse_commit`.
    connection.execution_options(ordermq_may_commit=True)
    connection.commit()


def _refuse_commit(connection: Connection) -> None:
    """Refuse a commit of a listener's: its changes would stand without the offset."""
    if not connection.get_execution_options().get("ordermq_may_commit"):
        raise StateError(
            "the library commits the transaction of a call, together with the offset, after the "
            "listener has returned; leave connection.commit() out"
        )


def _offsets_table(name: str, schema: str | None) -> Table:
    return Table(
        name,
        MetaData(schema=schema),
        Column("consumer_group", String(_NAME), primary_key=True),
        Column("topic", String(_NAME), primary_key=True),
        Column("broker", String(_NAME), primary_key=True),
        Column("queue_id", Integer, primary_key=True, autoincrement=False),
        Column("next_offset", BigInteger),  # NULL until something is done
        Column("epoch", BigInteger, nullable=False),
        Column("updated", DateTime(timezone=True), nullable=False),
    )


def _key(group: str, queue: MessageQueue) -> dict[str, Any]:
    return {
        "of_group": group,
        "of_topic": queue.topic,
        "of_broker": queue.broker_name,
        "of_queue": queue.queue_id,
    }


class _Statements:
    """The statements of one table, made once; SQLAlchemy compiles each once."""

    def __init__(self, table: Table) -> None:
        columns = table.c
        of_queue = (
            (columns.consumer_group == bindparam("of_group"))
            & (columns.topic == bindparam("of_topic"))
            & (columns.broker == bindparam("of_broker"))
            & (columns.queue_id == bindparam("of_queue"))
        )
        mine, offset = bindparam("mine", type_=BigInteger), bindparam("offset", type_=BigInteger)
        stored, now = columns.next_offset, func.now()
        is_newest = of_queue & (columns.epoch <= mine)
        is_not_behind = or_(stored.is_(None), stored <= bindparam("first", type_=BigInteger))
        owned = update(table).where(is_newest)
        self.read = select(stored, columns.epoch).where(of_queue)
        self.create = insert(table).values(
            consumer_group=bindparam("of_group"),
            topic=bindparam("of_topic"),
            broker=bindparam("of_broker"),
            queue_id=bindparam("of_queue"),
            epoch=mine,
            updated=now,
        )
        self.claim = owned.values(epoch=mine, updated=now)
        self.reset = owned.values(epoch=mine, next_offset=offset, updated=now)
        # Never backwards: a periodic commit may have been overtaken by a call's transaction.
        self.grow = owned.values(
            epoch=mine,
            next_offset=case((stored > offset, stored), else_=offset),
            updated=now,
        )
        self.advance = owned.where(is_not_behind).values(
            epoch=mine, next_offset=offset, updated=now
        )
        self.read_with_timeout = select(
            stored,
            columns.epoch,
            func.set_config(
                "idle_in_transaction_session_timeout", bindparam("idle_ms", type_=String), True
            ),
        ).where(of_queue)


class _Database(Protocol):
    """The differences between the databases."""

    def check(self, connection: Connection) -> None:
        """Raise ConfigError if its transactions would not be what they are taken for."""

    def begin(self, connection: Connection, statements: _Statements, key: dict[str, Any]) -> Any:
        """Begin a listener's transaction, and return the row of the queue."""

    def begin_alone(self, connection: Connection) -> None:
        """Begin a short transaction."""

    def is_outage(self, error: DBAPIError) -> bool:
        """Return whether the database failed, and not the statement."""


class _Sqlite:
    def __init__(self, engine: Engine, idle_timeout_ms: int) -> None:
        name = engine.url.database
        if not name or name == ":memory:" or "mode=memory" in str(engine.url):
            raise ConfigError(
                "SQLite in memory: each thread has a database of its own there; use a file"
            )

    def check(self, connection: Connection) -> None:
        """Nothing to check: `begin_alone` begins whatever the driver does by itself."""

    def begin(self, connection: Connection, statements: _Statements, key: dict[str, Any]) -> Any:
        self.begin_alone(connection)
        return connection.execute(statements.read, key).first()

    def begin_alone(self, connection: Connection) -> None:
        # At once for writing: a transaction that reads first and writes later fails if another
        # one has written in between, however long it is willing to wait. An engine's own event
        # may have begun it.
        if not connection.connection.driver_connection.in_transaction:  # type: ignore[union-attr]
            connection.execute(_BEGIN_IMMEDIATE)

    def is_outage(self, error: DBAPIError) -> bool:
        code = getattr(error.orig, "sqlite_errorcode", _SQLITE_ERROR)
        return isinstance(error, OperationalError) and code & 0xFF != _SQLITE_ERROR


_BEGIN_IMMEDIATE = text("BEGIN IMMEDIATE")


class _PostgreSql:
    def __init__(self, engine: Engine, idle_timeout_ms: int) -> None:
        if engine.dialect.driver != "psycopg":
            raise ConfigError(
                f"the driver {engine.dialect.driver}: expected psycopg, as in "
                "create_engine('postgresql+psycopg://...')"
            )
        self._idle_ms = str(idle_timeout_ms)

    def check(self, connection: Connection) -> None:
        if connection.connection.driver_connection.autocommit:  # type: ignore[union-attr]
            raise ConfigError(
                "an engine with isolation_level='AUTOCOMMIT' has no transactions: leave it out"
            )

    def begin(self, connection: Connection, statements: _Statements, key: dict[str, Any]) -> Any:
        # One round trip for both. Local to the transaction: the connection goes back to the pool.
        values = {**key, "idle_ms": self._idle_ms}
        return connection.execute(statements.read_with_timeout, values).first()

    def begin_alone(self, connection: Connection) -> None:
        """The driver begins with the first statement."""

    def is_outage(self, error: DBAPIError) -> bool:
        return isinstance(error, OperationalError)


_DATABASES: dict[str, Callable[[Engine, int], _Database]] = {
    "sqlite": _Sqlite,
    "postgresql": _PostgreSql,
}
