"""Keep a copy of a PostgreSQL's table in SQLite: rows first, then each change, exactly once.

pip install 'ordermq[cdc,postgresql]'
python examples/copy_table.py postgresql://USER@HOST/DATABASE    its wal_level must be logical

It makes a table `example_parcels` there, with a slot and a publication of that name, and drops them
at the end; those of a run that was killed are dropped by the next one.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import psycopg
import sqlalchemy as sa
from sqlalchemy import Column, MetaData, Table

from ordermq import Admin, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.cdc import ApplyChanges, DebeziumCodec, PostgreSqlReader
from ordermq.sql import SqlOffsetStore

TABLE = "example_parcels"
ROWS = """
    CREATE TABLE example_parcels (id bigint PRIMARY KEY, place text, weight numeric);
    INSERT INTO example_parcels VALUES (1, 'Turin', 1.10), (2, 'Bern', 2), (3, 'Graz', 3)
"""
CHANGES = """
    UPDATE example_parcels SET place = 'Lyon' WHERE id = 1;
    UPDATE example_parcels SET id = 12 WHERE id = 2;
    DELETE FROM example_parcels WHERE id = 3;
    INSERT INTO example_parcels VALUES (4, 'Porto', 0.30)
"""


def main(source: str, copy: sa.Engine) -> None:
    parcels = Table(
        TABLE,
        MetaData(),
        Column("id", sa.BigInteger, primary_key=True),
        Column("place", sa.Text),
        Column("weight", sa.Text),  # SQLite would round a decimal
    )
    parcels.create(copy)
    with psycopg.connect(source, autocommit=True) as shop:
        drop_all(shop)
        shop.execute(ROWS)
        try:
            with EmbeddedBroker() as broker:
                keep_copy(source, shop, parcels, copy, broker.name_servers)
        finally:
            drop_all(shop)  # a slot that nobody reads makes PostgreSQL keep its log for ever
    with copy.connect() as connection:
        for row in connection.execute(sa.select(parcels).order_by(parcels.c.id)):
            print(*row)


def keep_copy(
    source: str, shop: psycopg.Connection, parcels: Table, copy: sa.Engine, name_servers: str
) -> None:
    """Copy the rows that are there, and then changes, through a topic."""
    with Admin(name_servers) as admin:
        admin.create_topic("parcels")
    with Producer("parcels", name_servers=name_servers) as producer:
        reader = PostgreSqlReader(
            source, producer, "parcels", DebeziumCodec(), tables=[TABLE], slot=TABLE
        )
        reading = threading.Thread(target=reader.run)
        reading.start()
        consumer = PushConsumer(
            "copy",
            name_servers=name_servers,
            consume_from_where="first_offset",
            offset_store=SqlOffsetStore(copy),
        )
        consumer.subscribe("parcels")
        consumer.orderly(ApplyChanges(copy, [parcels], DebeziumCodec()))
        try:
            with consumer:
                wait_for_rows(copy, parcels, shop)
                print("the rows are there", flush=True)
                shop.execute(CHANGES)
                wait_for_rows(copy, parcels, shop)
        finally:
            reader.stop()
            reading.join()


def drop_all(shop: psycopg.Connection) -> None:
    """Drop what a run has made at the source, as far as it is there."""
    slots = "FROM pg_replication_slots WHERE slot_name LIKE 'example_parcels%'"
    # PostgreSQL notices that a reader has left a moment later, and drops no slot before.
    while shop.execute(f"SELECT slot_name {slots} AND active").fetchone():
        time.sleep(0.05)
    # Also those that send the rows at first.
    shop.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}")
    shop.execute("DROP PUBLICATION IF EXISTS example_parcels")
    shop.execute("DROP TABLE IF EXISTS example_parcels")


def wait_for_rows(copy: sa.Engine, parcels: Table, shop: psycopg.Connection) -> None:
    query = "SELECT id, place, weight::text FROM example_parcels ORDER BY id"
    expected = shop.execute(query).fetchall()
    found: list[tuple[object, ...]] = []
    while found != expected:
        time.sleep(0.05)
        with copy.connect() as connection:
            rows = connection.execute(sa.select(parcels).order_by(parcels.c.id))
            found = [tuple(row) for row in rows]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        engine = sa.create_engine(
            f"sqlite:///{Path(folder) / 'copy.db'}", connect_args={"timeout": 30}
        )
        main(sys.argv[1], engine)
        engine.dispose()
