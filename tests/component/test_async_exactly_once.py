"""Effects exactly once from `async def` listeners (docs/exactly-once.md#asyncio)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from ordermq import AsyncConsumer, DeadLetter, MessageView, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.listener import ConsumeContext
from ordermq.errors import ConfigError
from ordermq.sql import AsyncSqlOffsetStore, SqlOffsetStore
from tests.component.conftest import DEADLINE_S, numbered

DRIVERS = {"sqlite": "aiosqlite", "postgresql": "psycopg"}
_INSERT = text("INSERT INTO ledger VALUES (:q, :a, :body)")


class Ledger:
    """A table of the user's in which each message must stand once."""

    def __init__(self, plain: Engine, engine: AsyncEngine) -> None:
        self.plain = plain
        self.engine = engine
        self.fails = False  # after its writes, each call raises
        self.calls = 0
        with plain.begin() as connection:
            connection.execute(
                text("CREATE TABLE ledger (q INTEGER, a INTEGER, body TEXT, PRIMARY KEY (q, a))")
            )

    async def __call__(self, messages: Sequence[MessageView], context: ConsumeContext) -> None:
        self.calls += 1
        connection = await context.transaction()
        await connection.execute(_INSERT, rows_of(messages))
        if self.fails:
            raise RuntimeError("a listener's own error")

    def bodies(self) -> list[int]:
        with self.plain.connect() as connection:
            return sorted(map(int, connection.scalars(text("SELECT body FROM ledger"))))

    def write(self, queue: int) -> None:
        with self.plain.begin() as connection:
            connection.execute(_INSERT, {"q": queue, "a": 0, "body": "0"})

    async def wait_for(self, count: int) -> None:
        await until(lambda: len(self.bodies()) == count)
        assert self.bodies() == list(range(count))


def rows_of(messages: Sequence[MessageView]) -> list[dict[str, Any]]:
    return [
        {"q": m.queue_id, "a": m.queue_offset, "body": bytes(m.body).decode()} for m in messages
    ]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def opened(engine: Engine) -> AsyncIterator[Ledger]:
    url = engine.url.set(drivername=f"{engine.dialect.name}+{DRIVERS[engine.dialect.name]}")
    options = {"connect_args": {"timeout": 20}} if engine.dialect.name == "sqlite" else {}
    made = create_async_engine(
        url.render_as_string(hide_password=False), poolclass=NullPool, **options
    )
    try:
        yield Ledger(engine, made)
    finally:
        await made.dispose()


def consumer_of(broker: EmbeddedBroker, ledger: Ledger, **options: Any) -> AsyncConsumer:
    consumer = AsyncConsumer(
        "g",
        "orders",
        name_servers=broker.name_servers,
        offset_store=AsyncSqlOffsetStore(ledger.engine),
        consume_from_where="first_offset",
        suspend_current_queue_time_ms=10,
        **options,
    )
    consumer.orderly(ledger)
    return consumer


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(3 * DEADLINE_S):
            await work

    asyncio.run(limited())


def test_queues_that_move_under_load_lose_and_repeat_nothing(
    broker: EmbeddedBroker, producer: Producer, engine: Engine
) -> None:
    async def work() -> None:
        async with opened(engine) as ledger:
            first = consumer_of(broker, ledger, consume_message_batch_max_size=8)
            async with first:
                producer.send_many(numbered(100))
                async with consumer_of(broker, ledger) as second:
                    producer.send_many(numbered(100, start=100))
                    await until(lambda: len(second.assigned_queues()) >= 4)
                    assert await first.close()
                    producer.send_many(numbered(100, start=200))
                    await ledger.wait_for(300)

    run(work())


def test_a_plain_member_continues_where_one_of_asyncio_ended(
    broker: EmbeddedBroker, producer: Producer, engine: Engine
) -> None:
    async def work() -> None:
        async with opened(engine) as ledger:
            producer.send_many(numbered(40))
            async with consumer_of(broker, ledger):
                await ledger.wait_for(40)
            producer.send_many(numbered(40, start=40))
            plain = PushConsumer(
                "g", name_servers=broker.name_servers, offset_store=SqlOffsetStore(engine)
            )
            plain.subscribe("orders")

            @plain.orderly
            def write(messages: Sequence[MessageView], context: ConsumeContext) -> None:
                context.transaction().execute(_INSERT, rows_of(messages))

            with plain:
                await ledger.wait_for(80)

    run(work())


def test_a_call_that_raises_leaves_nothing_and_is_repeated(
    broker: EmbeddedBroker, producer: Producer, engine: Engine
) -> None:
    async def work() -> None:
        async with opened(engine) as ledger:
            ledger.fails = True
            producer.send_many(numbered(5))
            async with consumer_of(broker, ledger):
                await until(lambda: ledger.calls > 10)
                assert ledger.bodies() == []
                ledger.fails = False
                await ledger.wait_for(5)

    run(work())


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_listener_whose_task_is_cancelled_leaves_nothing_and_frees_the_database(
    broker: EmbeddedBroker, producer: Producer, engine: Engine
) -> None:
    """`close` cancels a listener that does not end, in the middle of its transaction."""

    async def work() -> None:
        async with opened(engine) as ledger:
            written = asyncio.Event()

            async def endless(messages: Sequence[MessageView], context: ConsumeContext) -> None:
                await ledger(messages, context)
                if messages[0].body == b"1":
                    written.set()
                    await asyncio.Event().wait()

            stuck = AsyncConsumer(
                "g",
                "orders",
                name_servers=broker.name_servers,
                offset_store=AsyncSqlOffsetStore(ledger.engine),
                consume_from_where="first_offset",
            )
            stuck.orderly(endless)
            await stuck.start()
            producer.send_many(numbered(1))
            await ledger.wait_for(1)
            await until(lambda: len(stuck.assigned_queues()) >= 8)
            producer.send_many(numbered(1, start=1))
            await written.wait()
            assert not await stuck.close(timeout_s=0.1)
            assert ledger.bodies() == [0]
            # SQLite has one writer: its lock is free again. On a thread, as the loop gives it free.
            await asyncio.to_thread(ledger.write, 99)

    run(work())


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_an_outage_moves_no_message_to_the_dead_letters(
    broker: EmbeddedBroker, producer: Producer, engine: Engine
) -> None:
    async def work() -> None:
        async with opened(engine) as ledger:
            url = str(ledger.engine.url)
            impatient = create_async_engine(url, poolclass=NullPool, connect_args={"timeout": 0.01})
            ledger.engine = impatient
            consumer = consumer_of(broker, ledger, on_failure=DeadLetter(max_attempts=2))
            async with consumer:
                producer.send_many(numbered(1))
                await ledger.wait_for(1)
                await until(lambda: len(consumer.assigned_queues()) >= 8)
                with engine.connect() as other:
                    other.exec_driver_sql("BEGIN IMMEDIATE")
                    producer.send_many(numbered(1, start=1))
                    await until(lambda: any(b.attempts >= 4 for b in consumer.statistics.blocked()))
                    other.exec_driver_sql("ROLLBACK")
                await ledger.wait_for(2)
                assert consumer.statistics["diverted"] == 0
            await impatient.dispose()

    run(work())


def test_what_cannot_be_with_it_is_refused_with_the_one_to_take(
    broker: EmbeddedBroker, tmp_path: Any
) -> None:
    store = AsyncSqlOffsetStore(create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/app.db"))
    options: dict[str, Any] = {"name_servers": broker.name_servers, "offset_store": store}

    async def listener(messages: Any, context: Any) -> None: ...

    pushed = PushConsumer("g", **options)
    pushed.subscribe("orders")
    pushed.orderly(listener)
    with pytest.raises(ConfigError, match="needs an AsyncConsumer"):
        pushed.start()

    async def work() -> None:
        consumer = AsyncConsumer("g", "orders", **options)
        with pytest.raises(ConfigError, match="for `async def` listeners"):
            consumer.orderly(lambda messages, context: None)
        with pytest.raises(ConfigError, match="offset_store is for a listener"):
            AsyncConsumer("g", "orders", poll_batch_size=1, **options)

    asyncio.run(work())
