"""The tables of the run: what a member writes, and what must be in them at the end."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Connection, Engine, create_engine, text

# (queue, at) is the primary key: a message that is counted twice is an error of the database, and
# fails its call. `nth` numbers the messages of a key; `copy` marks what a producer has stored a
# second time, because the answer to its first send was lost.
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS seen (queue TEXT, at BIGINT, account TEXT, nth BIGINT, "
    "is_copy INTEGER, PRIMARY KEY (queue, at))",
    "CREATE TABLE IF NOT EXISTS accounts (account TEXT PRIMARY KEY, next_nth BIGINT, cents BIGINT, "
    "copies BIGINT)",
)
_READ = text("SELECT next_nth, cents, copies FROM accounts WHERE account = :account")
_WRITE = text(
    "INSERT INTO accounts VALUES (:account, :nth, :cents, :copies) ON CONFLICT (account) DO UPDATE "
    "SET next_nth = excluded.next_nth, cents = excluded.cents, copies = excluded.copies"
)
_NOTE = text("INSERT INTO seen VALUES (:queue, :at, :account, :nth, :is_copy)")


def engine_of(url: str) -> Engine:
    """Make a member's engine."""
    if url.startswith("sqlite"):
        engine = create_engine(url, connect_args={"timeout": 20})
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        return engine
    return create_engine(url, pool_size=10, connect_args={"connect_timeout": 5})


def create_tables(engine: Engine) -> None:
    with engine.begin() as connection:
        for statement in _SCHEMA:
            connection.execute(text(statement))


class OutOfSequence(Exception):
    """A message of a key came before its predecessor was counted."""


def count(connection: Connection, queue: str, batch: list[tuple[int, str, int, int]]) -> None:
    """Count a batch of (offset, account, nth, cents): a read and a write per account.

    Raises: OutOfSequence: a gap in the sequence of an account.
    """
    accounts: dict[str, list[int]] = {}
    notes = []
    for at, account, nth, cents in batch:
        if account not in accounts:
            row = connection.execute(_READ, {"account": account}).first()
            accounts[account] = [0, 0, 0] if row is None else list(row)
        state = accounts[account]
        if nth > state[0]:
            raise OutOfSequence(f"{account}: number {nth}, expected {state[0]}")
        is_copy = nth < state[0]
        if is_copy:
            state[2] += 1
        else:
            state[0], state[1] = nth + 1, state[1] + cents
        notes.append(
            {"queue": queue, "at": at, "account": account, "nth": nth, "is_copy": int(is_copy)}
        )
    connection.execute(_NOTE, notes)
    connection.execute(
        _WRITE,
        [
            {"account": account, "nth": state[0], "cents": state[1], "copies": state[2]}
            for account, state in accounts.items()
        ],
    )


def counted(engine: Engine) -> int:
    """Return the number of first copies in the database."""
    with engine.connect() as connection:
        query = text("SELECT coalesce(sum(next_nth), 0) FROM accounts")
        return int(connection.scalar(query) or 0)


def faults(engine: Engine, expected: dict[str, list[int]], ends: dict[str, int]) -> list[str]:
    """Return what is wrong in the database, as sentences; none if all is right.

    Args:
        expected: the cents of each account's messages, in order.
        ends: the broker's end of each queue: so many messages must have been counted there.
    """
    wrong = []
    with engine.connect() as connection:
        accounts = {row.account: row for row in connection.execute(text("SELECT * FROM accounts"))}
        seen = list(connection.execute(text("SELECT * FROM seen")))
        stored = {
            f"{row.topic}@{row.broker}/{row.queue_id}": row.next_offset
            for row in connection.execute(text("SELECT * FROM ordermq_offsets"))
        }
    for account, cents in expected.items():
        row = accounts.get(account)
        if row is None or (row.next_nth, row.cents) != (len(cents), sum(cents)):
            wrong.append(f"{account}: {row}, expected {len(cents)} with {sum(cents)} cents")
    first = Counter((row.account, row.nth) for row in seen if not row.is_copy)
    wrong += [f"{key} counted {times} times" for key, times in first.items() if times != 1]
    if len(first) != sum(map(len, expected.values())):
        wrong.append(f"{len(first)} messages counted, sent {sum(map(len, expected.values()))}")
    places: dict[str, list[int]] = {}
    for row in seen:
        places.setdefault(row.queue, []).append(row.at)
    for queue, end in ends.items():
        if sorted(places.get(queue, [])) != list(range(end)):
            wrong.append(f"{queue}: not each of its {end} messages counted exactly once")
        if (stored.get(queue) or 0) != end:
            wrong.append(f"{queue}: next offset {stored.get(queue)}, expected {end}")
    return wrong


def copies(engine: Engine) -> int:
    """Return how many messages a producer stored twice."""
    with engine.connect() as connection:
        return int(connection.scalar(text("SELECT coalesce(sum(copies), 0) FROM accounts")) or 0)
