"""Book orders exactly once from an asyncio program, as JSON of a dataclass.

pip install 'ordermq[sql]' aiosqlite
python examples/asyncio_exactly_once.py                             SQLite, in a temporary file
python examples/asyncio_exactly_once.py postgresql+asyncpg://...    pip install asyncpg

The first call fails behind its writes: it is rolled back, and its messages come again. A message
that is no order is moved to the dead-letter topic at once. Its tables, `example_orders` and
`example_offsets`, are made anew by each run, and left to look at.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from ordermq import (
    AsyncConsumer,
    AsyncProducer,
    ConsumeContext,
    DeadLetter,
    JsonCodec,
    Message,
    MessageView,
    Retry,
)
from ordermq.broker import EmbeddedBroker
from ordermq.errors import DecodeError
from ordermq.sql import AsyncSqlOffsetStore

BOOK = text("INSERT INTO example_orders (number, cents) VALUES (:number, :cents)")


@dataclass
class Order:
    """An order, as its JSON has it."""

    number: str
    cents: int


async def send(name_servers: str) -> None:
    codec = JsonCodec(Order)
    async with AsyncProducer("shop", name_servers=name_servers, codec=codec) as producer:
        for number in range(1, 51):
            order = Order(f"o-{number % 5}", number)
            await producer.send(producer.message("orders", order), sharding_key=order.number)
        await producer.send(Message("orders", b'{"number": "o-1"}'), sharding_key="o-1")


async def main(url: str) -> None:
    # SQLite has one writer at a time: the calls of other queues wait for it.
    options = {"connect_args": {"timeout": 30}} if url.startswith("sqlite") else {}
    engine = create_async_engine(url, **options)
    async with engine.begin() as database:
        # The broker below is a new one, whose offsets begin at 0: those of an earlier run are of
        # another. A program with a broker that stays makes its tables once, and drops nothing.
        await database.execute(text("DROP TABLE IF EXISTS example_orders"))
        await database.execute(text("DROP TABLE IF EXISTS example_offsets"))
        await database.execute(
            text("CREATE TABLE example_orders (number VARCHAR(20), cents INTEGER)")
        )

    with EmbeddedBroker() as broker:
        await send(broker.name_servers)
        consumer = AsyncConsumer(
            "billing",
            "orders",
            name_servers=broker.name_servers,
            consume_from_where="first_offset",
            codec=JsonCodec(Order),
            offset_store=AsyncSqlOffsetStore(engine, table="example_offsets"),
            on_failure=DeadLetter(retry=Retry(backoff_ms=10), dead_letter_on=DecodeError),
        )
        booked = failures = 0

        @consumer.orderly
        async def book(messages: Sequence[MessageView[Order]], context: ConsumeContext) -> None:
            nonlocal booked, failures
            database = await context.transaction()
            orders = [message.value() for message in messages]
            rows = [{"number": order.number, "cents": order.cents} for order in orders]
            await database.execute(BOOK, rows)
            if not failures:
                failures += 1
                raise ConnectionError("the payment service is away")
            booked += len(messages)

        async with consumer:
            while booked < 50 or not consumer.statistics["diverted"]:
                await asyncio.sleep(0.05)

    async with engine.connect() as database:
        cents = await database.scalar(text("SELECT sum(cents) FROM example_orders"))
    print(f"booked {cents} cents of 1275, {failures} call failed, 1 message was no order")
    await engine.dispose()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(f"sqlite+aiosqlite:///{folder}/shop.db"))
