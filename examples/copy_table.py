"""Keep a copy of a PostgreSQL's table in SQLite: rows first, then each change, exactly once.

pip install 'ordermq[cdc,postgresql]'
python examples/copy_table.py postgresql://USER@HOST/DATABASE    its wal_level must be logical

It makes a table `parcels` there, and drops it and its slot at the end.
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

CHANGES = """
    UPDATE parcels SET place = 'Lyon' WHERE id = 1;
    UPDATE parcels SET id = 12 WHERE id = 2;
    DELETE FROM parcels WHERE id = 3;
    INSERT INTO parcels VALUES (4, 'Porto', 0.30)
"""


def main(source: str, copy: sa.Engine) -> None:
    parcels = Table(
        "parcels",
        MetaData(),
        Column("id", sa.BigInteger, primary_key=True),
        Column("place", sa.Text),
        Column("weight", sa.Text),  # SQLite would round a decimal
    )
    parcels.create(copy)
    with psycopg.connect(source, autocommit=True) as shop, EmbeddedBroker() as broker:
        shop.execute("CREATE TABLE parcels (id bigint PRIMARY KEY, place text, weight numeric)")
        shop.execute(
            "INSERT INTO parcels VALUES (1, 'Turin', 1.10), (2, 'Bern', 2), (3, 'Graz', 3)"
        )
        with Admin(broker.name_servers) as admin:
            admin.create_topic("parcels")

        with Producer("parcels", name_servers=broker.name_servers) as producer:
            reader = PostgreSqlReader(
                source, producer, "parcels", DebeziumCodec(), tables=["parcels"], slot="parcels"
            )
            reading = threading.Thread(target=reader.run)
            reading.start()
            consumer = PushConsumer(
                "copy",
                name_servers=broker.name_servers,
                consume_from_where="first_offset",
                offset_store=SqlOffsetStore(copy),
            )
            consumer.subscribe("parcels")
            consumer.orderly(ApplyChanges(copy, [parcels], DebeziumCodec()))
            with consumer:
                wait_for_rows(copy, parcels, shop)
                print("the rows are there")
                shop.execute(CHANGES)
                wait_for_rows(copy, parcels, shop)
            reader.stop()
            reading.join()
        shop.execute("SELECT pg_drop_replication_slot('parcels')")
        shop.execute("DROP PUBLICATION parcels")
        shop.execute("DROP TABLE parcels")
    with copy.connect() as connection:
        for row in connection.execute(sa.select(parcels).order_by(parcels.c.id)):
            print(*row)


def wait_for_rows(copy: sa.Engine, parcels: Table, shop: psycopg.Connection) -> None:
    expected = shop.execute("SELECT id, place, weight::text FROM parcels ORDER BY id").fetchall()
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
