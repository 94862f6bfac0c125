"""The log of a PostgreSQL through messages, exact over kills (docs/cdc.md)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import Column, MetaData, Table, create_engine, select

from ordermq import Admin, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.cdc import (
    ApplyChanges,
    CanalCodec,
    Change,
    DebeziumCodec,
    Operation,
    PostgreSqlReader,
)
from ordermq.errors import ChangeRefused, ConfigError, ConnectFailed, DataLoss, KeyFailed
from ordermq.sql import SqlOffsetStore
from tests.component.conftest import DEADLINE_S, eventually
from tests.component.docs_examples import DOCS
from tests.postgresql import NoPostgreSql, PostgreSql
from tests.waiting import killed_on_error

MakeConsumer = Callable[..., PushConsumer]
CODECS: dict[str, Any] = {
    "debezium": DebeziumCodec(),
    "canal": CanalCodec(time_zone=ZoneInfo("Asia/Shanghai")),
}
GOODS = """
    CREATE TABLE goods (
        id bigint PRIMARY KEY, name text, price numeric, made timestamptz, day date, at timestamp,
        of_day time, raw bytea, share float8, flag boolean, id2 uuid, document jsonb
    )
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    """A PostgreSQL whose log has rows."""
    try:
        running = PostgreSql()
    except NoPostgreSql as error:
        pytest.skip(f"PostgreSQL cannot be had here: {error}")
    with psycopg.connect(conninfo(running), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET wal_level = logical")
    running.stop()
    running.start()
    yield running
    running.close()


def conninfo(server: PostgreSql) -> str:
    return server.url.replace("+psycopg", "")


@pytest.fixture
def connect(server: PostgreSql) -> Iterator[Callable[[], psycopg.Connection[Any]]]:
    """Further connections to the source."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(psycopg.connect(conninfo(server), autocommit=True))


@pytest.fixture
def shop(server: PostgreSql) -> Iterator[psycopg.Connection[Any]]:
    """An empty schema of the source, without slots and publications of earlier tests."""
    with psycopg.connect(conninfo(server), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active"
        )
        eventually(
            lambda: count(connection, "pg_replication_slots WHERE active") == 0, "free slots"
        )
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        connection.execute("DROP PUBLICATION IF EXISTS shop")
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
        yield connection


def count(connection: psycopg.Connection[Any], source: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {source}".encode()).fetchone()
    assert row is not None
    return int(row[0])


class Running:
    """Readers on threads of their own; each stops with the test."""

    def __init__(self, server: PostgreSql, producer: Producer) -> None:
        self._server = server
        self._producer = producer
        self._readers: list[tuple[PostgreSqlReader, threading.Thread]] = []

    def make(self, codec: str = "debezium", **settings: Any) -> PostgreSqlReader:
        settings = {"tables": ["goods"], "slot": "shop"} | settings
        return PostgreSqlReader(
            conninfo(self._server), self._producer, "orders", CODECS[codec], **settings
        )

    def start(self, **settings: Any) -> PostgreSqlReader:
        reader = self.make(**settings)
        thread = threading.Thread(target=reader.run, daemon=True)
        thread.start()
        self._readers.append((reader, thread))
        return reader

    def stop(self) -> None:
        while self._readers:
            reader, thread = self._readers.pop()
            reader.stop()
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


@pytest.fixture
def readers(server: PostgreSql, producer: Producer, broker: EmbeddedBroker) -> Iterator[Running]:
    with Admin(broker.name_servers) as admin:
        admin.create_topic("orders")
    running = Running(server, producer)
    yield running
    running.stop()


class Copy:
    """A copy in SQLite, with a count of what each change wrote."""

    def __init__(self, path: Any, codec: str, columns: list[Column[Any]], **settings: Any) -> None:
        self.engine = create_engine(f"sqlite:///{path}/copy.db", connect_args={"timeout": 30})
        self.table = Table("goods", MetaData(), *columns)
        self.table.create(self.engine)
        self.apply = ApplyChanges(self.engine, [self.table], CODECS[codec], **settings)
        self.store = SqlOffsetStore(self.engine)

    def rows(self) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            found = connection.execute(select(self.table).order_by(self.table.c.id))
            return [tuple(row) for row in found]

    def changes(self) -> int:
        counts = self.apply.statistics.get("public.goods")
        return sum(counts.changes.values()) if counts else 0


# A row per change of a row; an update of a key is a delete and an insert.
COUNTED = """
    CREATE TABLE counted (id int);
    CREATE FUNCTION count_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO counted VALUES (1);
        IF TG_OP = 'UPDATE' AND OLD.id <> NEW.id THEN INSERT INTO counted VALUES (1); END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER counting AFTER INSERT OR UPDATE OR DELETE ON goods
        FOR EACH ROW EXECUTE FUNCTION count_change();
"""


def small() -> list[Column[Any]]:
    return [Column("id", sa.Integer, primary_key=True), Column("name", sa.Text)]


@pytest.mark.parametrize("codec", list(CODECS))
def test_rows_before_and_changes_after_reach_the_copy_with_every_type(
    shop: psycopg.Connection[Any],
    readers: Running,
    make_consumer: MakeConsumer,
    tmp_path: Any,
    codec: str,
) -> None:
    shop.execute(GOODS)
    shop.execute(
        "INSERT INTO goods VALUES (1, 'größe', 1.10, '2020-05-13 12:00+02', '2020-02-29', "
        "'2020-05-13 12:00:00.000001', '23:59:59.999999', '\\x00ff27', 0.1, true, "
        "'6f1e4b0e-0f6c-4d5f-9a06-1a8a25e4a9d1', '{\"a\": [1, null]}')"
    )
    shop.execute("INSERT INTO goods VALUES (2)")
    copy = Copy(
        tmp_path, codec,
        [
            Column("id", sa.BigInteger, primary_key=True), Column("name", sa.Text),
            Column("price", sa.Text), Column("made", sa.DateTime(timezone=True)),
            Column("day", sa.Date), Column("at", sa.DateTime), Column("of_day", sa.Time),
            Column("raw", sa.LargeBinary), Column("share", sa.Float), Column("flag", sa.Boolean),
            Column("id2", sa.Uuid), Column("document", sa.JSON),
        ],
    )  # fmt: skip
    make_consumer(copy.apply, offset_store=copy.store).start()
    readers.start(codec=codec)
    eventually(lambda: len(copy.rows()) == 2, "the rows of the snapshot")
    shop.execute("UPDATE goods SET id = 3, price = 1e20 WHERE id = 1")
    shop.execute("INSERT INTO goods (id, name) VALUES (1, 'new')")
    shop.execute("DELETE FROM goods WHERE id = 2")

    def source() -> list[tuple[Any, ...]]:
        """The rows, as SQLite keeps them."""
        found = shop.execute(
            "SELECT id, name, price::text, made AT TIME ZONE 'UTC', day, at, of_day, raw, share, "
            "flag, id2, document FROM goods ORDER BY id"
        )
        return list(found)

    eventually(lambda: copy.rows() == source(), f"{source()}, got {copy.rows()}")


def change_randomly(shop: psycopg.Connection[Any], pick: random.Random, times: int) -> None:
    for _ in range(times):
        with shop.transaction():
            for _ in range(pick.randrange(1, 6)):
                shop.execute(
                    pick.choice(
                        [
                            "INSERT INTO goods VALUES (%(id)s, %(name)s) ON CONFLICT (id) "
                            "DO UPDATE SET name = excluded.name",
                            "UPDATE goods SET name = %(name)s WHERE id = %(id)s",
                            "DELETE FROM goods WHERE id = %(id)s",
                            "UPDATE goods SET id = %(new)s WHERE id = %(id)s AND NOT EXISTS "
                            "(SELECT 1 FROM goods WHERE id = %(new)s)",
                        ]
                    ),
                    {
                        "id": pick.randrange(30),
                        "new": pick.randrange(30),
                        "name": str(pick.random()),
                    },
                )


@pytest.mark.parametrize("by_key", [False, True])
def test_failed_sends_and_a_killed_server_leave_an_equal_copy_and_each_change_once(
    server: PostgreSql,
    shop: psycopg.Connection[Any],
    readers: Running,
    producer: Producer,
    make_consumer: MakeConsumer,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    connect: Callable[[], psycopg.Connection[Any]],
    by_key: bool,
) -> None:
    shop.execute("CREATE TABLE goods (id int PRIMARY KEY, name text)")
    pick = random.Random(5)
    change_randomly(shop, pick, 20)
    copy = Copy(tmp_path, "debezium", small(), by_key=by_key)
    settings: dict[str, Any] = {"order_by_key": True} if by_key else {"offset_store": copy.store}
    make_consumer(copy.apply, **settings).start()
    send_nowait, resolve = producer.send_nowait, producer.resolve
    failing, failed_keys = threading.Event(), set[Any]()
    luck = random.Random(6)

    def sometimes_fail(message: Message, *, sharding_key: Any, **told: Any) -> Future[Any]:
        if sharding_key not in failed_keys and not (failing.is_set() and luck.random() < 0.05):
            return send_nowait(message, sharding_key=sharding_key, **told)
        failed: Future[Any] = Future()
        kind = KeyFailed if sharding_key in failed_keys else ConnectFailed
        failed.set_exception(kind("as if its broker were away"))
        failed_keys.add(sharding_key)
        return failed

    def resolve_both(topic: str, key: Any) -> bool:
        failed_keys.discard(key)
        return resolve(topic, key)

    monkeypatch.setattr(producer, "send_nowait", sometimes_fail)
    monkeypatch.setattr(producer, "resolve", resolve_both)
    reader = readers.start()
    snapshot = list(shop.execute("SELECT id, name FROM goods ORDER BY id"))
    eventually(lambda: copy.rows() == snapshot, "the rows before the changes")
    shop.execute(COUNTED)
    for phase in range(4):
        failing.set()
        change_randomly(shop, pick, 30)
        failing.clear()
        if phase == 1:
            server.stop(crash=True)
            server.start()
            shop = connect()
        if phase == 2:
            readers.stop()
            readers.start()
    expected = list(shop.execute("SELECT id, name FROM goods ORDER BY id"))
    eventually(lambda: copy.rows() == expected, "an equal copy")
    assert reader.restarts > 0
    changes = count(shop, "counted") + len(snapshot)
    eventually(lambda: copy.changes() == changes, f"each change once: {changes}")


@pytest.mark.parametrize("crash", [False, True])
def test_a_restart_of_the_database_repeats_nothing_that_is_stored(
    server: PostgreSql,
    shop: psycopg.Connection[Any],
    connect: Callable[[], psycopg.Connection[Any]],
    readers: Running,
    make_consumer: MakeConsumer,
    tmp_path: Any,
    crash: bool,
) -> None:
    shop.execute("CREATE TABLE goods (id int PRIMARY KEY, name text)")
    copy = Copy(tmp_path, "debezium", small())
    make_consumer(copy.apply, offset_store=copy.store).start()
    reader = readers.start()
    eventually(lambda: count(shop, "pg_replication_slots WHERE active") == 1, "the log is read")
    # While a transaction is open, the server saves of a slot what was before it.
    with_open = connect()
    with_open.execute("BEGIN")
    with_open.execute("INSERT INTO goods VALUES (-1, 'x')")
    for number in range(40):
        shop.execute("INSERT INTO goods VALUES (%s, 'x')", (number,))
    eventually(lambda: len(copy.rows()) == 40, "a copy of all rows")
    server.stop(crash=crash)
    with_open.close()
    server.start()
    connect().execute("INSERT INTO goods VALUES (40, 'x')")
    eventually(lambda: len(copy.rows()) == 41, "a copy of the row after the restart")
    # Rows that the snapshot has are not in the log.
    assert reader.sent == 41


def test_a_snapshot_that_was_killed_is_made_again_without_rows_that_are_gone(
    shop: psycopg.Connection[Any],
    readers: Running,
    make_consumer: MakeConsumer,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop.execute("CREATE TABLE goods (id int PRIMARY KEY, name text)")
    shop.execute("INSERT INTO goods SELECT n, 'first' FROM generate_series(1, 20) n")
    copy = Copy(tmp_path, "debezium", small())
    make_consumer(copy.apply, offset_store=copy.store).start()
    first = readers.make()

    class Killed(BaseException):
        """As if the process ended here."""

    send = PostgreSqlReader._send

    def die_at_last(self: PostgreSqlReader, *told: Any) -> None:
        send(self, *told)
        if self.sent == 15:
            raise Killed

    monkeypatch.setattr(PostgreSqlReader, "_send", die_at_last)
    with pytest.raises(Killed):
        first.run()
    eventually(lambda: len(copy.rows()) == 15, "what had been sent before")
    monkeypatch.undo()
    shop.execute("DELETE FROM goods WHERE id <= 5")
    shop.execute("UPDATE goods SET id = id + 100 WHERE id <= 8")
    shop.execute("UPDATE goods SET name = 'second' WHERE id > 15")
    readers.start()
    expected = list(shop.execute("SELECT id, name FROM goods ORDER BY id"))
    eventually(lambda: copy.rows() == expected, "an equal copy")
    eventually(
        lambda: count(shop, "pg_replication_slots") == 1, "the slot alone, without the attempt's"
    )


def test_the_server_keeps_its_log_until_messages_are_stored(
    shop: psycopg.Connection[Any],
    readers: Running,
    producer: Producer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop.execute("CREATE TABLE goods (id int PRIMARY KEY, name text)")
    reader = readers.start()
    confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'shop'"
    eventually(lambda: shop.execute(confirmed).fetchone() is not None, "the slot")
    held: list[Future[Any]] = []

    def hold(message: Message, **told: Any) -> Future[Any]:
        held.append(Future())
        return held[-1]

    monkeypatch.setattr(producer, "send_nowait", hold)
    shop.execute("INSERT INTO goods VALUES (1, 'held')")
    (before,) = shop.execute("SELECT pg_current_wal_lsn()").fetchone() or ("",)
    eventually(lambda: len(held) == 1, "the message")

    def is_behind() -> bool:
        row = shop.execute(f"SELECT ({confirmed}) < %s::pg_lsn".encode(), (before,)).fetchone()
        return bool(row and row[0])

    assert is_behind()
    assert reader.restarts == 0
    monkeypatch.undo()
    held[0].set_result(None)
    eventually(lambda: not is_behind(), "the confirmation")


def test_truncates_go_with_the_order_of_the_table_and_are_refused_by_key(
    shop: psycopg.Connection[Any], readers: Running, make_consumer: MakeConsumer, tmp_path: Any
) -> None:
    shop.execute("CREATE TABLE goods (id int PRIMARY KEY, name text)")
    shop.execute("INSERT INTO goods VALUES (1, 'a'), (2, 'b')")
    copy = Copy(tmp_path, "debezium", small(), order="table", on_truncate="apply")
    make_consumer(copy.apply, offset_store=copy.store).start()
    readers.start(order="table")
    eventually(lambda: len(copy.rows()) == 2, "the rows")
    shop.execute("TRUNCATE goods")
    shop.execute("INSERT INTO goods VALUES (3, 'c')")
    eventually(lambda: copy.rows() == [(3, "c")], "the row after the truncate")
    readers.stop()
    shop.execute("TRUNCATE goods")
    with pytest.raises(ChangeRefused, match=r"truncate of public.goods.*order by table"):
        readers.make(order="key").run()


def test_of_two_readers_that_start_together_one_waits_and_goes_on_when_the_other_ends(
    shop: psycopg.Connection[Any],
    readers: Running,
    make_consumer: MakeConsumer,
    tmp_path: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop.execute("CREATE TABLE goods (id int PRIMARY KEY, name text)")
    shop.execute("INSERT INTO goods SELECT n, 'first' FROM generate_series(1, 20) n")
    copy = Copy(tmp_path, "debezium", small())
    make_consumer(copy.apply, offset_store=copy.store).start()
    both = [readers.start(), readers.start()]
    eventually(lambda: sum(each.restarts for each in both) > 0, "a refusal")
    eventually(lambda: copy.changes() == 20, "the rows, once")
    eventually(lambda: 'replication slot "shop" is active for PID' in caplog.text, "the reason")
    shop.execute("INSERT INTO goods VALUES (21, 'a')")
    eventually(lambda: len(copy.rows()) == 21, "a change from one reader")
    max(both, key=lambda each: each.sent).stop()
    shop.execute("INSERT INTO goods VALUES (22, 'b')")
    eventually(lambda: len(copy.rows()) == 22, "a change from either")
    assert copy.changes() == 22


def test_a_reader_goes_on_where_another_one_has_just_made_the_publication(
    shop: psycopg.Connection[Any],
    readers: Running,
    connect: Callable[[], psycopg.Connection[Any]],
) -> None:
    shop.execute("CREATE TABLE goods (id int PRIMARY KEY, name text)")
    other = connect()
    with other.transaction():
        other.execute("CREATE PUBLICATION shop FOR TABLE goods")
        reader = readers.start()
        waits = "pg_stat_activity WHERE wait_event_type = 'Lock'"
        eventually(lambda: count(shop, waits) == 1, "the reader's own attempt")
    eventually(lambda: count(shop, "pg_replication_slots WHERE active") == 1, "the reader")
    assert reader.restarts == 0


def test_a_slot_that_cannot_be_read_is_refused_with_the_way_out(
    server: PostgreSql, shop: psycopg.Connection[Any], readers: Running
) -> None:
    shop.execute("CREATE TABLE goods (id int PRIMARY KEY, name text)")
    shop.execute("SELECT pg_create_logical_replication_slot('shop', 'test_decoding')")
    with pytest.raises(ConfigError, match="slot 'shop' is of plugin test_decoding and database"):
        readers.make().run()
    shop.execute("SELECT pg_drop_replication_slot('shop')")
    readers.start()
    eventually(lambda: count(shop, "pg_replication_slots WHERE active") == 1, "the reader")
    readers.stop()
    # The log of a reader that is away grows beyond what the server keeps.
    shop.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    shop.execute("SELECT pg_reload_conf()")
    try:

        def is_lost() -> bool:
            shop.execute("INSERT INTO goods SELECT 1, 'a' ON CONFLICT DO NOTHING")
            shop.execute("SELECT pg_switch_wal()")
            shop.execute("CHECKPOINT")
            return count(shop, "pg_replication_slots WHERE wal_status = 'lost'") == 1

        eventually(is_lost, "the loss of the log")
        with pytest.raises(DataLoss, match=r"SELECT pg_drop_replication_slot\('shop'\)"):
            readers.make().run()
    finally:
        shop.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        shop.execute("SELECT pg_reload_conf()")


def test_a_column_that_is_added_in_mid_stream_waits_for_the_copy_and_loses_nothing(
    shop: psycopg.Connection[Any],
    readers: Running,
    make_consumer: MakeConsumer,
    tmp_path: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop.execute("CREATE TABLE goods (id int PRIMARY KEY, name text)")
    copy = Copy(tmp_path, "debezium", small())
    consumer = make_consumer(copy.apply, offset_store=copy.store, suspend_current_queue_time_ms=10)
    consumer.start()
    readers.start()
    shop.execute("INSERT INTO goods VALUES (1, 'a')")
    eventually(lambda: len(copy.rows()) == 1, "the row before")
    shop.execute("ALTER TABLE goods ADD COLUMN price numeric, ALTER COLUMN name TYPE varchar(9)")
    shop.execute(
        "INSERT INTO goods VALUES (1, 'b', 2.50) ON CONFLICT (id) DO UPDATE SET "
        "name = excluded.name, price = excluded.price"
    )
    shop.execute("DELETE FROM goods WHERE id = 1")
    shop.execute("INSERT INTO goods VALUES (1, 'c', 9.90)")
    eventually(lambda: "the copy goods lacks ['price']" in caplog.text, "the refusal")
    assert copy.rows() == [(1, "a")]
    consumer.close(10.0)
    with copy.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE goods ADD COLUMN price text"))
    wider = Table("goods", MetaData(), *small(), Column("price", sa.Text))
    make_consumer(
        ApplyChanges(copy.engine, [wider], CODECS["debezium"]), offset_store=copy.store
    ).start()

    def prices() -> list[Any]:
        with copy.engine.connect() as connection:
            return list(map(tuple, connection.execute(select(wider))))

    eventually(lambda: prices() == [(1, "c", "9.90")], "what waited")


def test_a_server_that_is_killed_within_a_call_leaves_an_equal_copy_and_each_change_once(
    server: PostgreSql,
    broker: EmbeddedBroker,
    producer: Producer,
    shop: psycopg.Connection[Any],
    make_consumer: MakeConsumer,
) -> None:
    """The copy's server dies while a transaction has written its rows, and is not committed."""
    with Admin(broker.name_servers) as admin:
        admin.create_topic("orders")
    engine = create_engine(server.url)
    table = Table("goods", MetaData(), *small(), Column("writes", sa.Integer))
    table.create(engine)
    apply = ApplyChanges(engine, [table], CODECS["debezium"])
    written, may_go_on = threading.Event(), threading.Event()

    def listen(messages: Any, context: Any) -> None:
        apply(messages, context)
        written.set()
        may_go_on.wait(DEADLINE_S)

    make_consumer(
        listen, offset_store=SqlOffsetStore(engine), suspend_current_queue_time_ms=10
    ).start()
    for number in range(20):
        row = {"id": number % 4, "name": f"v{number}", "writes": number}
        change = Change(operation=Operation.INSERT, table="goods", after=row, key_columns=("id",))
        body = CODECS["debezium"].encode(change)
        producer.send(Message("orders", body), sharding_key=change.sharding_key())
    assert written.wait(DEADLINE_S)
    server.stop(crash=True)
    server.start()
    may_go_on.set()
    expected = [(number, f"v{16 + number}", 16 + number) for number in range(4)]

    def rows() -> list[Any]:
        try:
            with engine.connect() as connection:
                return list(map(tuple, connection.execute(select(table).order_by("id"))))
        except sa.exc.OperationalError:
            return []  # the pool has connections of before

    eventually(lambda: rows() == expected, "an equal copy")
    engine.dispose()


def test_the_example_copies_a_table(server: PostgreSql, shop: psycopg.Connection[Any]) -> None:
    command = [sys.executable, "examples/copy_table.py", conninfo(server)]
    started = subprocess.Popen(command, cwd=DOCS.parent, stdout=subprocess.PIPE, text=True)
    with killed_on_error(started) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "the rows are there\n"
        killed.kill()  # what it has made at the source stays: the next run drops it
    active = "SELECT count(*) FROM pg_replication_slots WHERE active"
    eventually(lambda: shop.execute(active).fetchone() == (0,), "PostgreSQL has noticed")
    for _ in range(2):
        done = subprocess.run(
            command, cwd=DOCS.parent, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "the rows are there",
            "1 Lyon 1.10",
            "4 Porto 0.30",
            "12 Bern 2",
        ]
    kept = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'example%'"
    assert shop.execute(kept).fetchone() == (0,)
    assert shop.execute("SELECT to_regclass('example_parcels')").fetchone() == (None,)


@pytest.mark.timeout(400)  # a dozen processes start, one after the other
def test_the_demo_ends_with_an_equal_copy(server: PostgreSql, tmp_path: Any) -> None:
    options = ["--changes", "1500", "--tables", "3", "--kills", "2", "--freezes", "0"]
    # As where the demo is installed by its extra alone.
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "pytest.py").write_text("raise ModuleNotFoundError('no pytest for the demo')")
    done = subprocess.run(
        [sys.executable, "ci/cdc/cdc_demo.py", *options, "--seed", "1", "--out", str(tmp_path)],
        cwd=DOCS.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(missing), str(DOCS.parent)))},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "OK: the copy equals the shop; each change applied once" in done.stdout
    assert (tmp_path / "lag.png").stat().st_size > 10_000


def test_what_cannot_be_read_is_refused(shop: psycopg.Connection[Any], readers: Running) -> None:
    with pytest.raises(ConfigError, match="there is no publication 'shop': name the tables"):
        readers.make(tables=[]).run()
    with pytest.raises(ConfigError, match='relation "goods" does not exist'):
        readers.make().run()
    shop.execute("CREATE TABLE goods (id int, name text)")
    shop.execute("INSERT INTO goods VALUES (1, 'a')")
    with pytest.raises(ChangeRefused, match=r"read of public.goods: no primary key is known"):
        readers.make().run()
    with pytest.raises(ConfigError, match="expected letters, digits and _"):
        readers.make(slot="shop; drop")
    with pytest.raises(ConfigError, match="max_in_flight=0"):
        readers.make(max_in_flight=0)
