"""A call is committed only in the transaction that it began, as the database sees it
(docs/internals/semantics.md#effects-exactly-once)."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from ordermq.errors import ConfigError, StaleOwner, StateError, StoreError
from ordermq.model.message_queue import MessageQueue
from ordermq.sql import SqlOffsetStore, SqlTransaction

QUEUE = MessageQueue("orders", "broker-a", 3)
Ending = Callable[[Any], None]


@pytest.fixture
def store(engine: Engine) -> SqlOffsetStore:
    return made_store(engine)


def made_store(engine: Engine) -> SqlOffsetStore:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER PRIMARY KEY)"))
        connection.execute(text("CREATE TABLE big (b TEXT)"))
        connection.execute(text("INSERT INTO effects VALUES (0)"))
    store = SqlOffsetStore(engine)
    store.open()
    return store


def effects(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT n FROM effects WHERE n > 0 ORDER BY n")))


def put(connection: Any, number: int) -> None:
    connection.execute(text("INSERT INTO effects VALUES (:n)"), {"n": number})


def begin(store: SqlOffsetStore, *numbers: int) -> SqlTransaction:
    store.take_over("g", QUEUE, 1)
    transaction = store.begin("g", QUEUE, 1, 0)
    for number in numbers:
        put(transaction.connection, number)
    return transaction


def driver_of(connection: Any) -> Any:
    return connection.connection.driver_connection


def on_the_driver(statement: str) -> Ending:
    return lambda connection: driver_of(connection).execute(statement)


def conflict(connection: Any) -> None:
    connection.execute(text("INSERT OR ROLLBACK INTO effects VALUES (0)"))


def trigger(connection: Any) -> None:
    connection.execute(
        text(
            "CREATE TEMP TRIGGER guard BEFORE INSERT ON effects "
            "BEGIN SELECT RAISE(ROLLBACK, 'refused'); END"
        )
    )
    put(connection, 9)


def in_a_savepoint(connection: Any) -> None:
    with connection.begin_nested():
        conflict(connection)


@pytest.mark.parametrize("isolation", [None, "AUTOCOMMIT"])
@pytest.mark.parametrize(
    ("ending", "committed"),
    [
        pytest.param(conflict, [], id="conflict"),
        pytest.param(trigger, [], id="trigger"),
        pytest.param(in_a_savepoint, [], id="savepoint"),
        pytest.param(on_the_driver("ROLLBACK"), [], id="rollback"),
        pytest.param(on_the_driver("END"), [1], id="commit"),
    ],
)
def test_in_sqlite_a_call_whose_transaction_a_statement_ended_is_not_committed(
    tmp_path: Any, ending: Ending, committed: list[int], isolation: Any
) -> None:
    made = create_engine(f"sqlite:///{tmp_path}/app.db", isolation_level=isolation)
    store = made_store(made)
    transaction = begin(store, 1)
    with contextlib.suppress(SQLAlchemyError, StateError):  # as a listener that knows better
        ending(transaction.connection)
    # Without a transaction the driver would commit it at once.
    with pytest.raises(StateError, match="transaction of the call is over"):
        put(transaction.connection, 2)
    with pytest.raises(StateError, match="rolled everything back"):
        transaction.commit(5)
    transaction.roll_back()
    assert store.read("g", QUEUE) is None
    assert effects(made) == committed
    # The pooled connection is as good as new.
    again = store.begin("g", QUEUE, 1, 0)
    put(again.connection, 3)
    again.commit(5)
    assert (effects(made), store.read("g", QUEUE)) == ([*committed, 3], 5)
    made.dispose()


def test_in_sqlite_another_transaction_begun_by_hand_is_not_taken_for_the_first(
    tmp_path: Any,
) -> None:
    made = create_engine(f"sqlite:///{tmp_path}/app.db")
    store = made_store(made)
    transaction = begin(store, 1)
    driver = driver_of(transaction.connection)
    driver.execute("ROLLBACK")
    driver.execute("BEGIN IMMEDIATE")
    driver.execute("SAVEPOINT ordermq")
    put(transaction.connection, 2)
    with pytest.raises(StateError):
        transaction.commit(5)
    transaction.roll_back()
    assert (effects(made), store.read("g", QUEUE)) == ([], None)
    made.dispose()


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN"])
def test_in_postgresql_another_transaction_is_not_taken_for_the_first(
    store: SqlOffsetStore, engine: Engine, ending: str
) -> None:
    transaction = begin(store, 1)
    driver = driver_of(transaction.connection)
    driver.execute(ending)
    driver.execute("INSERT INTO effects VALUES (2)")  # psycopg begins again by itself
    with pytest.raises(StateError, match="ended its transaction itself"):
        transaction.commit(5)
    transaction.roll_back()
    assert store.read("g", QUEUE) is None
    assert effects(engine) == ([1] if "COMMIT" in ending else [])


@pytest.mark.parametrize(
    "statement",
    ["COMMIT", " commit work", "END", "ROLLBACK", "rollback transaction", "BEGIN", "ABORT",
     "START TRANSACTION", "PREPARE TRANSACTION 'x'", "/* of the order */ COMMIT", "-- done\nEND",
     "; COMMIT", "INSERT INTO effects VALUES (9); COMMIT", "SELECT 'a;b', '', 1 ; ROLLBACK"],
)  # fmt: skip
def test_a_statement_that_would_end_the_transaction_is_refused_before_it_is_run(
    store: SqlOffsetStore, engine: Engine, statement: str
) -> None:
    transaction = begin(store, 1)
    with pytest.raises(StateError, match="would end the transaction"):
        transaction.connection.execute(text(statement))
    put(transaction.connection, 2)
    transaction.commit(5)
    assert (effects(engine), store.read("g", QUEUE)) == ([1, 2], 5)


def require_run(store: SqlOffsetStore, engine: Engine, statement: str) -> None:
    transaction = begin(store, 1)
    transaction.connection.exec_driver_sql(statement)
    transaction.commit(5)
    assert (effects(engine), store.read("g", QUEUE)) == ([1], 5)


@pytest.mark.parametrize(
    "statement",
    ["SELECT '; COMMIT'", "SELECT 1 -- ; COMMIT\n", "SELECT /* ; COMMIT */ 1", "SELECT 1;",
     'SELECT 1 AS "; END"', "SELECT CASE WHEN 1 = 1 THEN 1 END"],
)  # fmt: skip
def test_a_statement_that_only_speaks_of_an_end_is_run(
    store: SqlOffsetStore, engine: Engine, statement: str
) -> None:
    require_run(store, engine, statement)


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    "statement",
    [r"SELECT E'\'; COMMIT'", "DO $$ BEGIN NULL; END $$",
     "DO $a$ BEGIN NULL; END; $a$; SELECT 1",
     "CREATE FUNCTION f() RETURNS int LANGUAGE SQL BEGIN ATOMIC SELECT 1; END"],
)  # fmt: skip
def test_bodies_and_escapes_of_postgresql_end_no_transaction(
    store: SqlOffsetStore, engine: Engine, statement: str
) -> None:
    require_run(store, engine, statement)


def test_savepoints_by_hand_are_the_listeners(store: SqlOffsetStore, engine: Engine) -> None:
    transaction = begin(store, 1)
    for step in ("SAVEPOINT mine", "INSERT INTO effects VALUES (2)", "ROLLBACK TO mine",
                 "INSERT INTO effects VALUES (3)", "SAVEPOINT open"):  # fmt: skip
        transaction.connection.execute(text(step))
    transaction.commit(5)
    assert (effects(engine), store.read("g", QUEUE)) == ([1, 3], 5)


@contextlib.contextmanager
def full_disk(connection: Any) -> Iterator[None]:
    driver = driver_of(connection)
    pages = driver.execute("PRAGMA page_count").fetchone()[0]
    driver.execute(f"PRAGMA max_page_count = {pages}")
    yield
    driver.execute("PRAGMA max_page_count = 1000000")


@pytest.mark.parametrize("rows", [1, 2], ids=["all rolled back", "one statement rolled back"])
def test_a_full_disk_fails_the_call_as_an_outage_even_if_the_listener_hides_it(
    tmp_path: Any, rows: int
) -> None:
    made = create_engine(f"sqlite:///{tmp_path}/app.db")
    store = made_store(made)
    transaction = begin(store, 1)
    values = ", ".join(["(hex(zeroblob(1000000)))"] * rows)
    with full_disk(transaction.connection), pytest.raises(OperationalError, match="full"):
        transaction.connection.execute(text(f"INSERT INTO big VALUES {values}"))
    with pytest.raises(OperationalError, match="full") as failed:
        transaction.commit(5)
    assert store.is_outage(failed.value)
    transaction.roll_back()
    assert (effects(made), store.read("g", QUEUE)) == ([], None)
    made.dispose()


def test_an_error_that_the_listener_raises_in_place_of_the_databases_is_an_outage_too(
    tmp_path: Any,
) -> None:
    store = SqlOffsetStore(create_engine(f"sqlite:///{tmp_path}/app.db"))

    def listener(hides_it: bool) -> None:
        try:
            raise OperationalError("x", {}, sqlite_error(sqlite3.SQLITE_FULL))
        except SQLAlchemyError:
            if hides_it:
                raise RuntimeError("this order cannot be booked") from None
            raise RuntimeError("the order could not be booked")  # noqa: B904

    for hides_it in (False, True):
        with pytest.raises(RuntimeError) as failed:
            listener(hides_it)
        assert store.is_outage(failed.value) is not hides_it


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("of a test")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "is_outage"),
    [
        (sqlite3.SQLITE_FULL, True), (sqlite3.SQLITE_IOERR_FSYNC, True),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, True), (sqlite3.SQLITE_READONLY, True),
        (sqlite3.SQLITE_CORRUPT, True), (sqlite3.SQLITE_NOTADB, True),
        (sqlite3.SQLITE_CANTOPEN, True), (sqlite3.SQLITE_ERROR, False),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, False), (sqlite3.SQLITE_TOOBIG, False),
        (sqlite3.SQLITE_MISMATCH, False),
    ],
)  # fmt: skip
def test_errors_of_sqlite_that_are_no_fault_of_a_message(
    tmp_path: Any, code: int, is_outage: bool
) -> None:
    store = SqlOffsetStore(create_engine(f"sqlite:///{tmp_path}/app.db"))
    # Damage is a DatabaseError of the driver's, no OperationalError.
    assert store.is_outage(DBAPIError("x", {}, sqlite_error(code))) is is_outage


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("state", "is_outage"),
    [
        ("40001", True), ("40P01", True), ("40003", True), ("40002", False),
        ("53100", True), ("53300", True), ("57014", True), ("57P01", True), ("58030", True),
        ("55P03", True), ("25006", True), ("25P03", True), ("XX001", True), ("28000", True),
        ("25P02", False), ("54000", False), ("55000", False), ("22003", False), ("23505", False),
        ("42P01", False), ("P0001", False), ("38000", False),
    ],
)  # fmt: skip
def test_errors_of_postgresql_that_are_no_fault_of_a_message(
    store: SqlOffsetStore, engine: Engine, state: str, is_outage: bool
) -> None:
    raised = text(f"DO $$ BEGIN RAISE EXCEPTION 'of a test' USING ERRCODE = '{state}'; END $$")
    transaction = begin(store, 1)
    with pytest.raises(DBAPIError) as failed:
        transaction.connection.execute(raised)
    assert store.is_outage(failed.value) is is_outage
    with pytest.raises(DBAPIError):
        transaction.commit(5)
    transaction.roll_back()
    assert (effects(engine), store.read("g", QUEUE)) == ([], None)


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_lock_that_was_not_free_may_be_handled_in_a_savepoint_and_a_full_disk_may_not(
    store: SqlOffsetStore, engine: Engine
) -> None:
    for state, is_committed in (("55P03", True), ("53100", False)):
        transaction = store.begin("g", QUEUE, 1, 0) if is_committed is False else begin(store)
        raised = text(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$")
        with pytest.raises(DBAPIError), transaction.connection.begin_nested():
            transaction.connection.execute(raised)
        if is_committed:
            transaction.commit(0)
        else:
            with pytest.raises(DBAPIError, match="x"):
                transaction.commit(5)
            transaction.roll_back()
    assert store.read("g", QUEUE) == 0


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_serialization_failure_commits_nothing_and_is_no_fault_of_the_message(
    store: SqlOffsetStore, engine: Engine, level: str
) -> None:
    strict = SqlOffsetStore(engine.execution_options(isolation_level=level))
    transaction = begin(strict)
    connection = transaction.connection
    connection.execute(text("SELECT sum(n) FROM effects"))
    with engine.connect() as other:
        other = other.execution_options(isolation_level=level)
        other.execute(text("SELECT sum(n) FROM effects"))
        other.execute(text("UPDATE effects SET n = n + 1000 WHERE n = 0"))
        other.commit()
    with pytest.raises(OperationalError, match="could not serialize") as failed:
        connection.execute(text("UPDATE effects SET n = n + 1 WHERE n = 0"))
        transaction.commit(5)
    assert strict.is_outage(failed.value)
    with pytest.raises(DBAPIError):  # hidden
        transaction.commit(5)
    transaction.roll_back()
    assert (effects(engine), strict.read("g", QUEUE)) == ([1000], None)


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_connection_that_came_to_autocommit_later_is_refused(
    store: SqlOffsetStore, engine: Engine
) -> None:
    store.take_over("g", QUEUE, 1)

    @event.listens_for(engine, "connect")
    def autocommit(connection: Any, record: Any) -> None:
        connection.autocommit = True

    for call in (
        lambda: store.begin("g", QUEUE, 1, 0),
        lambda: store.write("g", QUEUE, 5, 1),
        lambda: store.take_over("g", QUEUE, 2),
    ):
        with pytest.raises(StoreError, match="autocommit"):
            call()
    with pytest.raises(ConfigError, match="autocommit"):
        store.open()
    event.remove(engine, "connect", autocommit)
    assert store.read("g", QUEUE) is None


class _Autocommitting(sqlite3.Connection):
    """As `sqlite3.connect(autocommit=True)` of Python 3.12: commit() and rollback() do nothing."""

    autocommit = True

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


def test_a_driver_of_sqlite_that_ignores_commits_is_refused(tmp_path: Any) -> None:
    made = create_engine(f"sqlite:///{tmp_path}/app.db", connect_args={"factory": _Autocommitting})
    store = SqlOffsetStore(made)
    with pytest.raises(ConfigError, match="autocommit"):
        store.open()
    with pytest.raises(StoreError, match="autocommit"):
        store.begin("g", QUEUE, 1, 0)
    made.dispose()


def test_a_database_that_went_back_is_noticed_before_the_next_effect(
    store: SqlOffsetStore, engine: Engine
) -> None:
    """A restored copy, or a standby that was behind: effects that were committed are gone."""
    transaction = begin(store, 1)
    transaction.commit(5)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM effects WHERE n = 1"))
        connection.execute(text("UPDATE ordermq_offsets SET next_offset = 2"))
    with pytest.raises(StaleOwner, match="went back from 5 to 2"):
        store.begin("g", QUEUE, 1, 5)
    # A periodic commit of calls that wrote nothing would jump over them, too.
    with pytest.raises(StaleOwner, match="went back from 5 to 2"):
        store.write("g", QUEUE, 8, 1)
    assert store.take_over("g", QUEUE, 2) == 2
    store.begin("g", QUEUE, 2, 2).roll_back()


def test_a_database_that_went_back_beyond_the_take_over_is_noticed(
    store: SqlOffsetStore, engine: Engine
) -> None:
    """The row then has the epoch of the owner before, which this one has outlived."""
    begin(store, 1).commit(5)
    assert store.take_over("g", QUEUE, 2) == 5
    transaction = store.begin("g", QUEUE, 2, 5)
    put(transaction.connection, 2)
    transaction.commit(9)
    with engine.begin() as connection:  # as it was before the take-over
        connection.execute(text("DELETE FROM effects WHERE n = 2"))
        connection.execute(text("UPDATE ordermq_offsets SET next_offset = 5, epoch = 1"))
    with pytest.raises(StaleOwner, match="went back from 9 to 5"):
        store.begin("g", QUEUE, 2, 9)
    with pytest.raises(StaleOwner, match="went back from 9 to 5"):
        store.write("g", QUEUE, 10, 2)
    assert store.take_over("g", QUEUE, 3) == 5
    store.begin("g", QUEUE, 3, 5).roll_back()


def test_the_users_own_connections_end_their_transactions_as_ever(
    store: SqlOffsetStore, engine: Engine
) -> None:
    with engine.connect() as connection:
        put(connection, 1)
        connection.execute(text("COMMIT"))
        with pytest.raises(DBAPIError):
            connection.execute(text("SELECT * FROM none_such"))
        connection.rollback()
    assert effects(engine) == [1]
