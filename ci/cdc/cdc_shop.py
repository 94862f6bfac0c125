"""The shop: its tables, its random transactions, and what its copy must be."""

from __future__ import annotations

import random
import time
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import Column, MetaData, Table

NAMES = (
    "orders", "items", "customers", "payments", "stock", "carts", "refunds", "parcels", "reviews",
    "coupons", "invoices", "suppliers", "prices", "shelves", "returns", "addresses", "messages",
    "visits", "wishes", "gifts",
)  # fmt: skip
MOST_ROWS = 5_000  # of a table: keys are used again
_STATEMENTS = (
    "INSERT INTO {table} SELECT id, 0, md5(random()::text), round((random() * 1000)::numeric, 2), "
    "clock_timestamp() FROM unnest(%(ids)s::bigint[]) id ON CONFLICT DO NOTHING",
    "UPDATE {table} SET version = version + 1, amount = amount + 0.01, at = clock_timestamp() "
    "WHERE id = ANY(%(ids)s)",
    "DELETE FROM {table} WHERE id = ANY(%(ids)s)",
)
_WEIGHTS = (4, 5, 1)
_MOVE = (
    "UPDATE {table} SET id = %(new)s, version = version + 1 WHERE id = %(old)s "
    "AND NOT EXISTS (SELECT 1 FROM {table} WHERE id = %(new)s)"
)
_APPLIED = """
    CREATE TABLE applied (
        at bigint, number int, name text, key bigint, member text,
        nth bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (at, number)
    )
"""


def tables(count: int) -> list[Table]:
    """Return the shop's tables; the copy has the same."""
    return [
        Table(
            name, MetaData(), Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
            Column("version", sa.Integer), Column("name", sa.Text), Column("amount", sa.Numeric),
            Column("at", sa.DateTime(timezone=True)),
        )
        for name in NAMES[:count]
    ]  # fmt: skip


def create(engine: sa.Engine, count: int, *, is_copy: bool) -> None:
    """Create the tables, and in the copy one that has a row per applied change."""
    with engine.begin() as connection:
        for table in tables(count):
            table.create(connection)
        if is_copy:
            connection.execute(sa.text(_APPLIED))
        else:
            connection.execute(sa.text("CREATE TABLE done (changes bigint)"))
            connection.execute(sa.text("INSERT INTO done VALUES (0)"))


def shop(conninfo: str, count: int, changes: int, rows: int, rate: float, seed: int) -> None:
    """Change the tables at random until that many changes are committed.

    A statement changes fewer rows than `rows`, most statements few.

    Each transaction counts its changes in a table of its own, so that one whose outcome was not
    learned, because the server was restarted, is counted as the server did.
    """
    pick = random.Random(seed)
    begun = time.monotonic()
    while True:
        try:
            with psycopg.connect(conninfo) as connection:
                done = committed(connection)
                while done < changes:
                    done += _transaction(connection, pick, count, rows)
                    time.sleep(max(0.0, done / rate - (time.monotonic() - begun)))
            return
        except psycopg.OperationalError:
            time.sleep(0.2)  # it is being restarted


def committed(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT changes FROM done").fetchone()
    connection.rollback()
    assert row is not None
    return int(row[0])


def _transaction(
    connection: psycopg.Connection[Any], pick: random.Random, count: int, rows: int
) -> int:
    changed = 0
    with connection.transaction():
        for _ in range(pick.randrange(1, 4)):
            table = sql.Identifier(pick.choice(NAMES[:count]))
            if pick.random() < 0.1:
                told = {"old": pick.randrange(MOST_ROWS), "new": pick.randrange(MOST_ROWS)}
                cursor = connection.execute(sql.SQL(_MOVE).format(table=table), told)
                changed += 2 * cursor.rowcount  # a delete and an insert
                continue
            ids = {pick.randrange(MOST_ROWS) for _ in range(int(rows ** pick.random()))}
            (statement,) = pick.choices(_STATEMENTS, _WEIGHTS)
            cursor = connection.execute(sql.SQL(statement).format(table=table), {"ids": list(ids)})
            changed += cursor.rowcount
        connection.execute("UPDATE done SET changes = changes + %s", (changed,))
    return changed


def faults(source: sa.Engine, copy: sa.Engine, count: int) -> list[str]:
    """Return what is wrong with the copy, and with how it came about."""
    wrong = []
    with source.connect() as ours, copy.connect() as theirs:
        for table in tables(count):
            query = sa.select(table).order_by("id")
            if ours.execute(query).all() != theirs.execute(query).all():
                wrong.append(f"{table.name} differs")
        changes = ours.scalar(sa.text("SELECT changes FROM done"))
        applied = theirs.scalar(sa.text("SELECT count(*) FROM applied"))
        if changes != applied:
            wrong.append(f"{changes:,} changes of the shop, {applied:,} applied")
        disordered = theirs.scalar(
            sa.text(
                "SELECT count(*) FROM (SELECT (at, number) < lag((at, number)) "
                "OVER (PARTITION BY name, key ORDER BY nth) AS is_late FROM applied) a "
                "WHERE is_late"
            )
        )
        if disordered:
            wrong.append(f"{disordered:,} changes out of the order of their key")
    return wrong
