"""Offsets and effects in one transaction, refused to every owner but the newest
(docs/exactly-once.md)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import Pool, SingletonThreadPool, StaticPool

from ordermq.consumer.offsets.offset_store import TransactionalStore, may_claim
from ordermq.errors import ConfigError, StaleOwner, StateError, StoreError
from ordermq.model.message_queue import MessageQueue
from ordermq.sql import SqlOffsetStore

QUEUE = MessageQueue("orders", "broker-a", 3)
OTHER = MessageQueue("orders", "broker-a", 4)


@pytest.fixture
def store(engine: Engine) -> SqlOffsetStore:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER PRIMARY KEY)"))
    made = SqlOffsetStore(engine)
    made.open()
    return made


def effects(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT n FROM effects ORDER BY n")))


def put(connection: Any, number: int) -> None:
    connection.execute(text("INSERT INTO effects VALUES (:n)"), {"n": number})


def begin(store: SqlOffsetStore, *numbers: int) -> Any:
    """A transaction of the queue's first owner, with these effects so far."""
    store.take_over("g", QUEUE, 1)
    transaction = store.begin("g", QUEUE, 1, 0)
    for number in numbers:
        put(transaction.connection, number)
    return transaction


def test_it_is_an_offset_store_with_transactions(store: SqlOffsetStore) -> None:
    assert isinstance(store, TransactionalStore)


def test_a_queue_nobody_had_has_no_offset_and_then_the_one_that_was_written(
    store: SqlOffsetStore,
) -> None:
    assert store.read("g", QUEUE) is None
    assert store.take_over("g", QUEUE, 1) is None
    store.write("g", QUEUE, 7, 1)
    assert store.read("g", QUEUE) == 7
    assert store.take_over("g", QUEUE, 2) == 7


def test_groups_topics_brokers_and_queues_have_offsets_of_their_own(store: SqlOffsetStore) -> None:
    places = [
        ("g", QUEUE), ("h", QUEUE), ("g", OTHER),
        ("g", MessageQueue("%RETRY%g", "broker-a", 3)), ("g", MessageQueue("orders", "b", 3)),
    ]  # fmt: skip
    for number, (group, queue) in enumerate(places):
        store.take_over(group, queue, 1)
        store.write(group, queue, number, 1)
    assert [store.read(group, queue) for group, queue in places] == [0, 1, 2, 3, 4]


def test_effects_and_the_next_offset_are_committed_together(
    store: SqlOffsetStore, engine: Engine
) -> None:
    transaction = begin(store, 1)
    transaction.commit(5)
    assert (effects(engine), store.read("g", QUEUE)) == ([1], 5)


def test_a_rollback_undoes_both(store: SqlOffsetStore, engine: Engine) -> None:
    transaction = begin(store, 1)
    transaction.roll_back()
    transaction.roll_back()
    assert (effects(engine), store.read("g", QUEUE)) == ([], None)


def test_a_stale_owner_does_not_begin(store: SqlOffsetStore) -> None:
    store.take_over("g", QUEUE, 1)
    store.take_over("g", QUEUE, 2)
    with pytest.raises(StaleOwner, match="a newer owner, of epoch 2"):
        store.begin("g", QUEUE, 1, 0)


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_an_owner_that_became_stale_in_its_transaction_commits_nothing(
    store: SqlOffsetStore, engine: Engine
) -> None:
    # SQLite has one writer: there a take-over waits for the transaction, see below.
    transaction = begin(store, 1)
    assert SqlOffsetStore(engine).take_over("g", QUEUE, 2) is None
    with pytest.raises(StaleOwner, match="a newer owner, of epoch 2"):
        transaction.commit(5)
    transaction.roll_back()
    assert (effects(engine), store.read("g", QUEUE)) == ([], None)


def test_in_sqlite_a_take_over_waits_for_a_running_transaction_and_sees_what_it_committed(
    tmp_path: Any,
) -> None:
    impatient = create_engine(f"sqlite:///{tmp_path}/app.db", connect_args={"timeout": 0.05})
    store = SqlOffsetStore(impatient)
    store.open()
    transaction = begin(store)
    with pytest.raises(StoreError, match="database is locked"):
        store.take_over("g", QUEUE, 2)
    transaction.commit(5)
    assert store.take_over("g", QUEUE, 2) == 5
    impatient.dispose()


def test_a_claim_of_an_older_epoch_is_refused_and_says_what_to_do(store: SqlOffsetStore) -> None:
    store.take_over("g", QUEUE, 9)
    with pytest.raises(StaleOwner, match=r"epoch 9.*use another table") as refused:
        store.take_over("g", QUEUE, 8)
    assert refused.value.epoch == 8
    assert refused.value.queue_id == 3


def test_messages_that_had_their_effects_are_refused_a_second_time(
    store: SqlOffsetStore, engine: Engine
) -> None:
    # As after a commit whose answer was lost: the same owner is given the same batch again.
    transaction = begin(store, 1)
    transaction.commit(5)
    with pytest.raises(StaleOwner, match=r"next offset in ordermq_offsets is 5: .* continuing"):
        store.begin("g", QUEUE, 1, 0)
    with pytest.raises(StaleOwner):
        store.begin("g", QUEUE, 1, 4)
    store.begin("g", QUEUE, 1, 5).roll_back()


def test_periodic_commits_never_move_the_offset_back_and_resets_do(store: SqlOffsetStore) -> None:
    store.take_over("g", QUEUE, 1)
    store.write("g", QUEUE, 9, 1)
    other = SqlOffsetStore(store._engine)  # knows nothing of what this one has written
    other.write("g", QUEUE, 4, 1)
    assert store.read("g", QUEUE) == 9
    store.write("g", QUEUE, 4, 1, is_reset=True)
    assert store.read("g", QUEUE) == 4
    store.write("g", QUEUE, 6, 1)
    assert store.read("g", QUEUE) == 6


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_stale_owner_writes_no_offset(store: SqlOffsetStore, is_reset: bool) -> None:
    store.take_over("g", QUEUE, 1)
    SqlOffsetStore(store._engine).take_over("g", QUEUE, 2)
    with pytest.raises(StaleOwner):
        store.write("g", QUEUE, 4, 1, is_reset=is_reset)
    assert store.read("g", QUEUE) is None


def test_a_row_that_was_deleted_refuses_the_owner_until_it_takes_over_again(
    store: SqlOffsetStore, engine: Engine
) -> None:
    store.take_over("g", QUEUE, 1)
    with engine.begin() as connection:
        connection.execute(store.table.delete())
    with pytest.raises(StaleOwner, match="no row of this queue"):
        store.begin("g", QUEUE, 1, 0)
    assert store.take_over("g", QUEUE, 1) is None


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_listener_that_ends_the_transaction_itself_is_refused(
    store: SqlOffsetStore, engine: Engine, ending: str
) -> None:
    transaction = begin(store, 1)
    if ending == "commit":
        with pytest.raises(StateError, match="the library commits"):
            transaction.connection.commit()
    else:
        transaction.connection.rollback()
        with pytest.raises(StateError, match="transaction of the call is over"):
            put(transaction.connection, 2)
        with pytest.raises(StateError, match="ended its transaction itself"):
            transaction.commit(5)
    transaction.roll_back()
    assert (effects(engine), store.read("g", QUEUE)) == ([], None)


def test_the_users_own_connections_of_the_engine_commit_as_ever(
    store: SqlOffsetStore, engine: Engine
) -> None:
    with engine.connect() as connection:
        put(connection, 1)
        connection.commit()
    assert effects(engine) == [1]


def test_a_session_and_a_savepoint_work_within_the_transaction(
    store: SqlOffsetStore, engine: Engine
) -> None:
    transaction = begin(store)
    with Session(transaction.connection) as session:
        put(session, 1)
        session.commit()  # of the session only
    with pytest.raises(IntegrityError), transaction.connection.begin_nested():
        put(transaction.connection, 1)
    with transaction.connection.begin_nested():
        put(transaction.connection, 2)
    assert effects(engine) == []  # others see nothing yet
    transaction.commit(5)
    assert effects(engine) == [1, 2]


# SQLite undoes the one statement; the others stand, as a listener that hides the error wants.
@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_statement_that_fails_fails_the_commit_even_if_the_listener_hides_it(
    store: SqlOffsetStore, engine: Engine
) -> None:
    transaction = begin(store, 1)
    with pytest.raises(IntegrityError):
        put(transaction.connection, 1)
    with pytest.raises(Exception, match="current transaction is aborted"):
        transaction.commit(5)
    transaction.roll_back()
    assert (effects(engine), store.read("g", QUEUE)) == ([], None)


def test_an_error_of_the_database_is_told_from_one_of_the_listener(
    store: SqlOffsetStore, engine: Engine
) -> None:
    with engine.connect() as connection:
        with pytest.raises(Exception, match="no_such") as wrong:
            connection.execute(text("SELECT * FROM no_such"))
        connection.rollback()
        put(connection, 1)
        with pytest.raises(IntegrityError) as duplicate:
            put(connection, 1)
    assert not store.is_outage(wrong.value)
    assert not store.is_outage(duplicate.value)
    assert not store.is_outage(ValueError("a listener's own"))


def test_a_locked_sqlite_database_is_an_outage(tmp_path: Any) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db", connect_args={"timeout": 0.01})
    store = SqlOffsetStore(engine)
    store.open()
    with engine.connect() as one, engine.connect() as two:
        one.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError) as locked:
            two.exec_driver_sql("BEGIN IMMEDIATE")
    assert store.is_outage(locked.value)
    of_tasks = ExceptionGroup("of asyncio's tasks", [ValueError(1), locked.value])
    assert store.is_outage(of_tasks)
    own = RuntimeError("a listener's own, because of it")
    own.__cause__ = ExceptionGroup("again", [of_tasks])
    of_tasks.__cause__ = own  # a ring
    assert store.is_outage(own)
    assert not store.is_outage(ExceptionGroup("of tasks", [ValueError(1)]))
    engine.dispose()


def test_who_waits_in_vain_for_a_locked_file_is_told_why_and_what_helps(tmp_path: Any) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db", connect_args={"timeout": 0.01})
    store = SqlOffsetStore(engine)
    store.open()
    store.take_over("g", QUEUE, 1)
    with engine.connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        for call in (
            lambda: store.take_over("g", QUEUE, 1),
            lambda: store.write("g", QUEUE, 1, 1),
            lambda: store.begin("g", QUEUE, 1, 0),
        ):
            with pytest.raises(StoreError) as refused:
                call()
            assert str(refused.value) == (
                "offsets in ordermq_offsets: (sqlite3.OperationalError) database is locked: other "
                "transactions held the file for as long as the engine waits: shorten them, or wait "
                'longer, as with connect_args={"timeout": 30}'
            )
    store.begin("g", QUEUE, 1, 0).roll_back()
    engine.dispose()


@pytest.mark.parametrize("creates", [True, False])
def test_a_table_that_was_dropped_is_told_and_what_to_do(engine: Engine, creates: bool) -> None:
    store = SqlOffsetStore(engine, create_table=creates)
    store.table.create(engine)
    store.open()
    store.take_over("g", QUEUE, 1)
    store.write("g", QUEUE, 7, 1)
    store.table.drop(engine)
    for call in (
        lambda: store.take_over("g", QUEUE, 1),
        lambda: store.read("g", QUEUE),
        lambda: store.write("g", QUEUE, 8, 1),
        lambda: store.begin("g", QUEUE, 1, 7),
    ):
        with pytest.raises(StoreError) as refused:
            call()
        said = str(refused.value)
        how = "restart the members, which make it anew" if creates else "make it anew"
        assert f"restore the table, or {how}: then queues continue from the brokers'" in said
        assert "SQL:" not in said
        assert "\n" not in said
    store.table.create(engine)
    with pytest.raises(StaleOwner, match="has no row of this queue any more"):
        store.begin("g", QUEUE, 1, 7)
    assert store.take_over("g", QUEUE, 2) is None


def test_a_database_that_is_not_there_is_a_store_error() -> None:
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    store = SqlOffsetStore(engine)
    for call in (
        store.open,
        lambda: store.take_over("g", QUEUE, 1),
        lambda: store.read("g", QUEUE),
        lambda: store.write("g", QUEUE, 1, 1),
        lambda: store.begin("g", QUEUE, 1, 0),
    ):
        with pytest.raises(StoreError, match="offsets in ordermq_offsets"):
            call()


def test_a_table_of_the_users_own_making(engine: Engine) -> None:
    store = SqlOffsetStore(engine, table="billing_offsets", create_table=False)
    store.open()
    with pytest.raises(StoreError, match="billing_offsets"):
        store.take_over("g", QUEUE, 1)
    store.table.create(engine)
    store.take_over("g", QUEUE, 1)
    SqlOffsetStore(engine, table="billing_offsets").open()  # exists: nothing to do
    assert store.take_over("g", QUEUE, 2) is None


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_sqlite_in_memory_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="in memory"):
        SqlOffsetStore(create_engine(url))


@pytest.mark.parametrize("pool", [StaticPool, SingletonThreadPool])
def test_pools_whose_users_share_a_connection_are_refused(pool: type[Pool], tmp_path: Any) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db", poolclass=pool)
    with pytest.raises(ConfigError, match=f"{pool.__name__}.*leave poolclass= out"):
        SqlOffsetStore(engine)


@pytest.mark.parametrize(
    ("name", "driver", "said"),
    [
        ("mysql", "pymysql", "mysql: expected an engine of SQLite or PostgreSQL"),
        ("postgresql", "psycopg2", "the driver psycopg2: expected psycopg"),
    ],
)
def test_databases_and_drivers_that_were_never_tried_are_refused(
    name: str, driver: str, said: str
) -> None:
    # No driver of theirs is installed: an engine that has their names.
    engine = create_engine("sqlite://")
    engine.dialect = cast(Any, SimpleNamespace(
        name=name, driver=driver, is_async=False, set_engine_execution_options=lambda *_: None
    ))  # fmt: skip
    with pytest.raises(ConfigError, match=said):
        SqlOffsetStore(engine)


def test_autocommit_is_refused(postgresql: Any) -> None:
    engine = create_engine(postgresql.url, isolation_level="AUTOCOMMIT")
    try:
        with pytest.raises(ConfigError, match="AUTOCOMMIT"):
            SqlOffsetStore(engine).open()
    finally:
        engine.dispose()


def test_postgresql_ends_the_transaction_of_a_frozen_owner(postgresql: Any) -> None:
    engine = create_engine(postgresql.url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS totals, ordermq_offsets"))
        connection.execute(text("CREATE TABLE totals (s INTEGER)"))
        connection.execute(text("INSERT INTO totals VALUES (0)"))
    store = SqlOffsetStore(engine, idle_timeout_ms=1_500)
    store.open()
    store.take_over("g", QUEUE, 1)
    frozen = store.begin("g", QUEUE, 1, 0)
    frozen.connection.execute(text("UPDATE totals SET s = s + 1"))
    # It does nothing more. The next owner needs the same row, and gets it soon.
    store.take_over("g", QUEUE, 2)
    heir = store.begin("g", QUEUE, 2, 0)
    heir.connection.execute(text("UPDATE totals SET s = s + 1"))
    heir.commit(1)
    with pytest.raises(DBAPIError) as ended:
        frozen.commit(1)
    assert store.is_outage(ended.value)
    frozen.roll_back()
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT s FROM totals")) == 1
    engine.dispose()


def test_the_servers_restart_costs_one_call(postgresql: Any) -> None:
    engine = create_engine(postgresql.url)
    store = SqlOffsetStore(engine, table="restarted")
    store.open()
    transaction = begin(store)
    postgresql.stop(crash=True)
    postgresql.start()
    with pytest.raises(DBAPIError) as broken:
        transaction.commit(5)
    assert store.is_outage(broken.value)
    transaction.roll_back()
    assert store.read("g", QUEUE) is None
    transaction = store.begin("g", QUEUE, 1, 0)
    transaction.commit(5)
    assert store.read("g", QUEUE) == 5
    engine.dispose()


def test_each_claim_has_the_next_epoch_and_the_offset_that_stands(store: SqlOffsetStore) -> None:
    assert may_claim(store)
    assert store.claim("g", QUEUE) == (1, None)
    store.write("g", QUEUE, 7, 1)
    assert store.claim("g", QUEUE) == (2, 7)
    # Behind owners whose epochs the brokers gave out.
    store.take_over("g", QUEUE, 1_700_000_000_000)
    assert store.claim("g", QUEUE) == (1_700_000_000_001, 7)
    assert store.claim("g", OTHER) == (1, None)


def test_a_claim_ends_the_transactions_of_earlier_claims(
    store: SqlOffsetStore, engine: Engine
) -> None:
    first, _ = store.claim("g", QUEUE)
    heir = SqlOffsetStore(engine)
    second, _ = heir.claim("g", QUEUE)
    with pytest.raises(StaleOwner, match="a newer owner, of epoch 2"):
        store.begin("g", QUEUE, first, 0)
    with pytest.raises(StaleOwner):
        store.write("g", QUEUE, 5, first)
    transaction = heir.begin("g", QUEUE, second, 0)
    put(transaction.connection, 1)
    transaction.commit(1)
    assert (effects(engine), store.read("g", QUEUE)) == ([1], 1)


def test_a_claim_in_a_database_that_was_restored_knows_nothing_of_before(
    store: SqlOffsetStore, engine: Engine
) -> None:
    epoch, _ = store.claim("g", QUEUE)
    store.write("g", QUEUE, 9, epoch)
    with engine.begin() as connection:
        connection.execute(store.table.delete())
    assert store.claim("g", QUEUE) == (epoch, None)
    # The epoch is the same, and 9 is gone with the rest.
    transaction = store.begin("g", QUEUE, epoch, 0)
    put(transaction.connection, 1)
    transaction.commit(1)
    assert effects(engine) == [1]
