"""The offset store of asyncio: the same rules, with each driver (docs/exactly-once.md#asyncio)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from ordermq.consumer.offsets.offset_store import is_async_store
from ordermq.errors import ConfigError, StaleOwner, StateError, StoreError
from ordermq.model.message_queue import MessageQueue
from ordermq.sql import AsyncSqlOffsetStore, SqlOffsetStore

QUEUE = MessageQueue("orders", "broker-a", 3)
DRIVERS = {"sqlite": ["aiosqlite"], "postgresql": ["psycopg", "asyncpg"]}
Work = Callable[[AsyncSqlOffsetStore, AsyncEngine], Awaitable[None]]
Run = Callable[[Work], None]


@asynccontextmanager
async def opened(
    url: str, **options: Any
) -> AsyncIterator[tuple[AsyncSqlOffsetStore, AsyncEngine]]:
    engine = create_async_engine(url, poolclass=NullPool, **options)
    try:
        store = AsyncSqlOffsetStore(engine)
        await store.open()
        yield store, engine
    finally:
        await engine.dispose()


@pytest.fixture
def run(engine: Engine) -> Run:
    """Runs a test with each driver of the database, on a table of its own each time."""

    def run(work: Work) -> None:
        for driver in DRIVERS[engine.dialect.name]:
            with engine.begin() as connection:
                connection.execute(text("DROP TABLE IF EXISTS effects"))
                connection.execute(text("DROP TABLE IF EXISTS ordermq_offsets"))
                connection.execute(text("CREATE TABLE effects (n INTEGER PRIMARY KEY)"))

            async def with_driver(driver: str = driver) -> None:
                url = engine.url.set(drivername=f"{engine.dialect.name}+{driver}")
                async with opened(url.render_as_string(hide_password=False)) as (store, made):
                    await work(store, made)

            asyncio.run(with_driver())

    return run


async def effects(engine: AsyncEngine) -> list[int]:
    async with engine.connect() as connection:
        return list(await connection.scalars(text("SELECT n FROM effects ORDER BY n")))


async def begin(store: AsyncSqlOffsetStore, *numbers: int) -> Any:
    """A transaction of the queue's first owner, with these effects so far."""
    await store.take_over("g", QUEUE, 1)
    transaction = await store.begin("g", QUEUE, 1, 0)
    for number in numbers:
        await put(transaction.connection, number)
    return transaction


async def put(connection: Any, number: int) -> None:
    await connection.execute(text("INSERT INTO effects VALUES (:n)"), {"n": number})


def test_effects_and_the_next_offset_are_committed_together(run: Run) -> None:
    async def work(store: AsyncSqlOffsetStore, engine: AsyncEngine) -> None:
        assert is_async_store(store)
        assert await store.read("g", QUEUE) is None
        transaction = await begin(store, 1)
        await transaction.commit(5)
        assert (await effects(engine), await store.read("g", QUEUE)) == ([1], 5)
        with pytest.raises(StaleOwner, match="is 5: these messages had their effects"):
            await store.begin("g", QUEUE, 1, 4)
        await store.write("g", QUEUE, 9, 1)
        await store.write("g", QUEUE, 7, 1)
        assert await store.take_over("g", QUEUE, 2) == 9

    run(work)


def test_a_rollback_undoes_both_and_gives_the_connection_back(run: Run) -> None:
    async def work(store: AsyncSqlOffsetStore, engine: AsyncEngine) -> None:
        transaction = await begin(store, 1)
        await transaction.roll_back()
        await transaction.roll_back()
        assert transaction.connection.sync_connection.closed
        assert (await effects(engine), await store.read("g", QUEUE)) == ([], None)

    run(work)


def test_a_stale_owner_commits_nothing(run: Run) -> None:
    async def work(store: AsyncSqlOffsetStore, engine: AsyncEngine) -> None:
        if engine.dialect.name == "postgresql":  # in SQLite the take-over waits for it
            transaction = await begin(store, 1)
            await AsyncSqlOffsetStore(engine).take_over("g", QUEUE, 2)
            with pytest.raises(StaleOwner, match="a newer owner, of epoch 2"):
                await transaction.commit(5)
            await transaction.roll_back()
        await store.take_over("g", QUEUE, 2)
        with pytest.raises(StaleOwner, match="a newer owner, of epoch 2"):
            await store.begin("g", QUEUE, 1, 0)
        assert (await effects(engine), await store.read("g", QUEUE)) == ([], None)

    run(work)


@pytest.mark.parametrize("ending", ["commit", "rollback", "statement"])
def test_a_listener_that_ends_the_transaction_itself_is_refused(run: Run, ending: str) -> None:
    async def work(store: AsyncSqlOffsetStore, engine: AsyncEngine) -> None:
        transaction = await begin(store, 1)
        connection = transaction.connection
        if ending == "commit":
            with pytest.raises(StateError, match="the library commits"):
                await connection.commit()
        elif ending == "statement":
            with pytest.raises(StateError, match="would end the transaction"):
                await connection.execute(text("COMMIT"))
        else:
            await connection.rollback()
            with pytest.raises(StateError, match="transaction of the call is over"):
                await put(connection, 2)
            with pytest.raises(StateError, match="ended its transaction itself"):
                await transaction.commit(5)
        await transaction.roll_back()
        assert (await effects(engine), await store.read("g", QUEUE)) == ([], None)

    run(work)


def test_a_listeners_task_that_is_cancelled_in_a_statement_leaves_nothing(run: Run) -> None:
    async def work(store: AsyncSqlOffsetStore, engine: AsyncEngine) -> None:
        transaction = await begin(store, 1)
        task = asyncio.ensure_future(put(transaction.connection, 2))
        await asyncio.sleep(0)  # it has begun
        task.cancel()
        await asyncio.wait([task])
        await transaction.roll_back()
        assert (await effects(engine), await store.read("g", QUEUE)) == ([], None)
        again = await store.begin("g", QUEUE, 1, 0)
        await put(again.connection, 3)
        await again.commit(1)
        assert await effects(engine) == [3]

    run(work)


def test_connections_in_autocommit_mode_are_refused(engine: Engine) -> None:
    async def work(driver: str) -> None:
        url = engine.url.set(drivername=f"{engine.dialect.name}+{driver}")
        async with opened(url.render_as_string(hide_password=False), isolation_level="AUTOCOMMIT"):
            pass

    # SQLAlchemy's mode of SQLite leaves a transaction alone that a statement began.
    for driver in DRIVERS["postgresql"] if engine.dialect.name == "postgresql" else ():
        with pytest.raises(ConfigError, match="in autocommit mode"):
            asyncio.run(work(driver))


@pytest.mark.parametrize("driver", DRIVERS["postgresql"])
def test_a_database_that_is_away_is_an_error_of_the_store(driver: str) -> None:
    async def work() -> None:
        async with opened(f"postgresql+{driver}://nobody@127.0.0.1:1/none"):
            pass

    with pytest.raises(StoreError, match="offsets in ordermq_offsets"):
        asyncio.run(work())


def test_each_store_refuses_the_engine_of_the_other_and_names_it(tmp_path: Any) -> None:
    url = f"{tmp_path}/app.db"
    plain = create_engine(f"sqlite:///{url}")
    of_asyncio = create_async_engine(f"sqlite+aiosqlite:///{url}")
    with pytest.raises(ConfigError, match="take SqlOffsetStore"):
        AsyncSqlOffsetStore(plain)  # type: ignore[arg-type]
    for engine in (of_asyncio, of_asyncio.sync_engine):
        with pytest.raises(ConfigError, match="take AsyncSqlOffsetStore"):
            SqlOffsetStore(engine)  # type: ignore[arg-type]


def test_a_sqlalchemy_without_greenlet_has_stores_without_asyncio() -> None:
    program = (
        "import sys\n"
        "sys.modules['greenlet'] = None\n"  # as where SQLAlchemy was installed without an extra
        "from ordermq.sql import SqlOffsetStore\n"
        "import ordermq.cli.demo.check\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
