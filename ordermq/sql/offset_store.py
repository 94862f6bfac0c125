"""The offset store on a SQL database, and its transactions (docs/exactly-once.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, PendingRollbackError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from ordermq.consumer.offsets.offset_store import StoreClaim, first_line
from ordermq.errors import ConfigError, StaleOwner, StateError, StoreError, parts_of
from ordermq.model.message_queue import MessageQueue
from ordermq.sql.databases import DATABASES, TransactionEnded
from ordermq.sql.guard import Guard, allow_commits, engine_that_commits, guard_engine
from ordermq.sql.statements import Statements, offsets_table, row_key
from ordermq.sql.writer_line import NoLine, NoTurn, Turn, WriterLine

_log = logging.getLogger("ordermq.consumer")
_T = TypeVar("_T")
DEFAULT_TABLE = "ordermq_offsets"
IDLE_TIMEOUT_MS = 30_000  # the life of a lease at most, unless configured otherwise
_AUTOCOMMIT = (
    "its connections are in autocommit mode, so they have no transactions: leave "
    "isolation_level='AUTOCOMMIT' and autocommit=True out of the engine and its events"
)


class _Stored(NamedTuple):
    """Epoch and offset that this process stored last of a queue."""

    epoch: int
    next_offset: int  # -1: nothing


_NOTHING = _Stored(0, -1)


class SqlOffsets:
    """The offsets and epochs in a table, and the transactions that move them.

    Blocking calls: `SqlOffsetStore` has them called on threads, `AsyncSqlOffsetStore` in greenlets
    of SQLAlchemy's, on the event loop of its engine.

    Args:
        line: where transactions wait that write to a SQLite file.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        table: str,
        schema: str | None,
        create_table: bool,
        idle_timeout_ms: int,
        line: WriterLine,
    ) -> None:
        if engine.dialect.name not in DATABASES:
            raise ConfigError(f"{engine.dialect.name}: expected an engine of SQLite or PostgreSQL")
        if idle_timeout_ms < 1:
            raise ConfigError(f"idle_timeout_ms={idle_timeout_ms}: expected 1 or more")
        # A view of the engine with the same pool: what is listened to here is heard of the
        # connections below only, not of those that the user opens elsewhere.
        self._engine = engine.execution_options()
        self.table = offsets_table(table, schema)
        self._creates = create_table
        self._database = DATABASES[engine.dialect.name](engine, idle_timeout_ms)
        if isinstance(engine.pool, StaticPool | SingletonThreadPool):
            # Who commits on it would commit what another call has done so far.
            raise ConfigError(
                f"{type(engine.pool).__name__}: it hands one connection to several users at a "
                "time, and each call needs one of its own; leave poolclass= out"
            )
        self._statements = Statements(self.table)
        # Spares the periodic commits of what transactions have stored already, and tells when the
        # database has lost what it had committed.
        self._stored: dict[tuple[str, MessageQueue], _Stored] = {}
        self._line = line if self._database.has_one_writer else NoLine()
        guard_engine(self._engine, engine)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.table.fullname} {self._engine.url!r}>"

    # OffsetStore

    def open(self) -> None:
        with self._errors_as_store_errors(), self._engine.connect() as connection:
            if self._database.is_autocommit(connection):
                raise ConfigError(_AUTOCOMMIT)
            self._line.timeout_s = self._database.wait_s(connection)
        if self._creates:
            with self._errors_as_store_errors():
                self._create()

    def take_over(self, group: str, queue: MessageQueue, epoch: int) -> int | None:
        offset = self._alone(lambda connection: self._claim(connection, group, queue, epoch))
        self._note(group, queue, epoch, offset)
        return offset

    def read(self, group: str, queue: MessageQueue) -> int | None:
        with self._errors_as_store_errors(), self._engine.connect() as connection:
            row = connection.execute(self._statements.read, row_key(group, queue)).first()
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
        known = self._known(group, queue, epoch)
        if not is_reset and known.next_offset >= next_offset:
            return
        statement = self._statements.reset if is_reset else self._statements.grow
        values = {**row_key(group, queue), "mine": epoch, "offset": next_offset}
        if not is_reset:
            values["known"] = known.next_offset

        def change(connection: Connection) -> None:
            if connection.execute(statement, values).rowcount == 0:
                raise self._refusal(connection, group, queue, epoch, next_offset, known)

        self._alone(change)
        self._note(group, queue, epoch, next_offset, is_reset=is_reset)

    # TransactionalStore

    def begin(
        self, group: str, queue: MessageQueue, epoch: int, first_offset: int
    ) -> SqlTransaction:
        # Before the row is read: a periodic commit may store more meanwhile, and never less.
        known = self._known(group, queue, epoch)
        # Before a connection of the pool is taken, which those that wait would keep.
        turn = self._line.take()
        with self._errors_as_store_errors(), _ended_by_errors(turn):
            connection = self._connect()
            try:
                # Before the listener works: what could not be committed is not begun.
                row, mark = self._database.begin(
                    connection, self._statements, row_key(group, queue)
                )
                if (
                    row is None
                    or row.epoch > epoch
                    or (row.next_offset or 0) > first_offset
                    or _went_back(row, known)
                ):
                    raise self._refusal(connection, group, queue, epoch, first_offset, known)
            except BaseException:
                _discard(connection)
                raise
        guard = Guard(self._database)
        guard.watch(connection)
        return SqlTransaction(
            self, connection, guard, mark, _Call(group, queue, epoch, first_offset, turn)
        )

    def is_outage(self, error: BaseException) -> bool:
        return any(self._is_outage(each) for each in _chain(error))

    # ClaimingStore

    def claim(self, group: str, queue: MessageQueue) -> StoreClaim:
        claim = self._alone(lambda connection: self._claim_next(connection, group, queue))
        self._note(group, queue, *claim)
        return claim

    # Inside.

    def _is_outage(self, error: BaseException) -> bool:
        return isinstance(error, (PoolTimeout, PendingRollbackError)) or (
            isinstance(error, DBAPIError)
            and (error.connection_invalidated or self._database.is_outage(error))
        )

    def _connect(self) -> Connection:
        connection = self._engine.connect()
        try:
            # Each time: a pool may hand out connections that an event or another user has changed.
            is_autocommit = self._database.is_autocommit(connection)
        except BaseException:
            _discard(connection)
            raise
        if is_autocommit:
            _discard(connection)
            raise StoreError(f"offsets in {self.table.fullname}: {_AUTOCOMMIT}")
        return connection

    def _create(self) -> None:
        try:
            self.table.create(engine_that_commits(self._engine), checkfirst=True)
        except SQLAlchemyError:
            # Members that start together create it together; all but one of them fail.
            self.table.create(engine_that_commits(self._engine), checkfirst=True)

    def _claim(
        self, connection: Connection, group: str, queue: MessageQueue, epoch: int
    ) -> int | None:
        key = row_key(group, queue)
        if connection.execute(self._statements.claim, {**key, "mine": epoch}).rowcount:
            # In the same transaction: the row is locked since, so no older owner moves it now.
            row = connection.execute(self._statements.read, key).one()
            return None if row.next_offset is None else int(row.next_offset)
        if connection.execute(self._statements.read, key).first() is not None:
            raise self._refusal(connection, group, queue, epoch, None, _NOTHING)
        connection.execute(self._statements.create, {**key, "mine": epoch})
        return None

    def _claim_next(self, connection: Connection, group: str, queue: MessageQueue) -> StoreClaim:
        key = row_key(group, queue)
        if connection.execute(self._statements.claim_next, key).rowcount:
            row = connection.execute(self._statements.read, key).one()
            return StoreClaim(row.epoch, row.next_offset)
        connection.execute(self._statements.create, {**key, "mine": 1})
        return StoreClaim(1, None)

    def _alone(self, work: Callable[[Connection], _T]) -> _T:
        """Do something in a transaction of its own."""
        turn = self._line.take()
        try:
            with self._errors_as_store_errors():
                connection = self._connect()
                try:
                    self._database.begin_alone(connection)
                    result = work(connection)
                    _commit(connection)
                    return result
                finally:
                    _discard(connection)
        finally:
            turn.end()

    def _note(
        self,
        group: str,
        queue: MessageQueue,
        epoch: int,
        offset: int | None,
        *,
        is_reset: bool = True,
    ) -> None:
        if offset is None:
            self._stored.pop((group, queue), None)
        elif is_reset or offset > self._known(group, queue, epoch).next_offset:
            self._stored[group, queue] = _Stored(epoch, offset)

    def _known(self, group: str, queue: MessageQueue, epoch: int) -> _Stored:
        """Return what this process stored last under the epoch."""
        stored = self._stored.get((group, queue), _NOTHING)
        return stored if stored.epoch == epoch else _NOTHING

    def _refusal(
        self,
        connection: Connection,
        group: str,
        queue: MessageQueue,
        epoch: int,
        offset: int | None,
        known: _Stored,
    ) -> StaleOwner:
        row = connection.execute(self._statements.read, row_key(group, queue)).first()
        if row is None:
            reason = f"{self.table.fullname} has no row of this queue any more"
        elif row.epoch > epoch:
            reason = (
                f"a newer owner, of epoch {row.epoch}, took the queue over in "
                f"{self.table.fullname}. If none can exist, because the broker lost its data or "
                "another cluster uses the table, use another table"
            )
        elif _went_back(row, known):
            reason = (
                f"the next offset in {self.table.fullname} went back from {known.next_offset} to "
                f"{row.next_offset}, as in a database that was restored, or failed over to a "
                "standby that was behind; continuing from there"
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
        except (SQLAlchemyError, OSError) as error:  # OSError: asyncpg could not connect
            said = f"{first_line(error)}{self._advice(error)}"
            raise StoreError(f"offsets in {self.table.fullname}: {said}") from error

    def _advice(self, error: Exception) -> str:
        """Return what to do about an error of the table's statements, after a colon."""
        if not isinstance(error, DBAPIError):
            return ""
        if self._database.is_table_missing(error):
            how = "restart the members, which make it anew" if self._creates else "make it anew"
            return (
                f": restore the table, or {how}: then queues continue from the brokers' offsets, "
                "and what was done since those were stored is done again"
            )
        advice = self._database.wait_advice(error)
        return advice and f": {advice}"


class SqlOffsetStore(SqlOffsets):
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
        table: str = DEFAULT_TABLE,
        schema: str | None = None,
        create_table: bool = True,
        idle_timeout_ms: int = IDLE_TIMEOUT_MS,
    ) -> None:
        if not isinstance(engine, Engine) or engine.dialect.is_async:
            raise ConfigError(
                f"{engine!r}: expected an engine of create_engine(); for one of "
                "create_async_engine() take AsyncSqlOffsetStore"
            )
        super().__init__(
            engine,
            table=table,
            schema=schema,
            create_table=create_table,
            idle_timeout_ms=idle_timeout_ms,
            line=WriterLine(),
        )


class _Call(NamedTuple):
    """The listener call that a transaction is of, and its turn."""

    group: str
    queue: MessageQueue
    epoch: int
    first_offset: int
    turn: Turn | NoTurn


class SqlTransaction:
    """The transaction of one listener call; fulfils `Transaction`."""

    __slots__ = ("_begun", "_call", "_guard", "_mark", "_store", "connection")

    def __init__(
        self, store: SqlOffsets, connection: Connection, guard: Guard, mark: Any, call: _Call
    ) -> None:
        self._store = store
        self.connection = connection
        self._guard = guard
        self._mark = mark
        self._call = call
        self._begun = connection.get_transaction()  # None when it is over

    def commit(self, next_offset: int) -> None:
        store, connection, call = self._store, self.connection, self._call
        if self._guard.outage is not None:
            # The listener handled it and went on. What the statement was to do is not there, and
            # in SQLite nothing may be that was done before.
            raise self._guard.outage
        if connection.closed or connection.get_transaction() is not self._begun:
            raise self._ended()
        values = {
            **row_key(call.group, call.queue),
            "mine": call.epoch,
            "first": call.first_offset,
            "offset": next_offset,
        }
        # The last statement, so that the row is locked for as short as possible: a take-over waits
        # for it. In the database, not only in SQLAlchemy, it is the transaction that was begun.
        try:
            is_ours = store._database.advance(connection, store._statements, values, self._mark)
        except TransactionEnded as error:
            raise self._ended() from error
        if not is_ours:
            raise store._refusal(
                connection, call.group, call.queue, call.epoch, call.first_offset, _NOTHING
            )
        _commit(connection)
        self._begun = None
        store._note(call.group, call.queue, call.epoch, next_offset)
        connection.close()
        call.turn.end()

    def roll_back(self) -> None:
        if self._begun is not None:
            self._begun = None
            _discard(self.connection)
        self._call.turn.end()

    def _ended(self) -> StateError:
        return StateError(
            "the listener ended its transaction itself, or a statement of it rolled everything "
            "back (INSERT OR ROLLBACK, RAISE(ROLLBACK)). Nothing is committed now; what a COMMIT "
            "of the listener's own committed stays. Return SUSPEND or raise to undo a call, and "
            "use connection.begin_nested() to undo a part of it",
            topic=self._call.queue.topic,
            broker=self._call.queue.broker_name,
            queue_id=self._call.queue.queue_id,
            group=self._call.group,
        )


@contextmanager
def _ended_by_errors(turn: Turn | NoTurn) -> Iterator[None]:
    try:
        yield
    except BaseException:
        turn.end()
        raise


def _went_back(row: Any, known: _Stored) -> bool:
    """Return whether the row is behind what this process has committed to it."""
    # An older epoch, too: the database may be as it was before this owner took the queue over.
    offset = -1 if row.next_offset is None else row.next_offset
    return bool(row.epoch <= known.epoch and offset < known.next_offset)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that led to it: a listener may raise its own in place of the
    database's, or a group of what its tasks have raised."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        for part in parts_of(each):
            seen.add(id(part))
            yield part
            waiting.append(part.__cause__)
            if part.__cause__ is None and not part.__suppress_context__:
                waiting.append(part.__context__)


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
    allow_commits(connection)  # only here
    connection.commit()
