"""Kill a service twice with -9 in the middle of its work: every balance is exact at the end.

pip install 'ordermq[sql]' aiosqlite
python examples/killed_service.py

Two processes of the service share six queues. Each call adds its orders to the balances of their
customers, and the next offset of the queue is committed in the same transaction. A killed process
leaves its last transaction to the database, which rolls it back; its queues move to the others
once its locks have expired.
"""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from ordermq import Admin, AsyncConsumer, AsyncProducer, ConsumeContext, Message, MessageView
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.sql import AsyncSqlOffsetStore

ORDERS, CUSTOMERS = 2_000, 100
ADD = text(
    "INSERT INTO balance AS old (customer, cents) VALUES (:customer, :cents) "
    "ON CONFLICT (customer) DO UPDATE SET cents = old.cents + excluded.cents"
)
BROKER = BrokerConfig(lock_max_live_ms=3_000)  # here only: RocketMQ's locks live for a minute


async def serve(name_servers: str, database: str) -> None:
    """One process of the service, until SIGTERM."""
    # SQLite has one writer at a time: the calls of other queues wait for it.
    engine = create_async_engine(f"sqlite+aiosqlite:///{database}", connect_args={"timeout": 30})
    consumer = AsyncConsumer(
        "balances",
        "orders",
        name_servers=name_servers,
        consume_from_where="first_offset",
        consume_message_batch_max_size=20,
        offset_store=AsyncSqlOffsetStore(engine),
    )

    @consumer.orderly
    async def add(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        rows = [{"customer": each.sharding_key, "cents": int(each.text())} for each in messages]
        transaction = await context.transaction()
        await transaction.execute(ADD, rows)
        await asyncio.sleep(0.01)  # some more work, in which the process may be killed

    await consumer.run()
    await engine.dispose()


async def send(name_servers: str) -> Counter[str]:
    """Send the orders, and return what each customer's balance must be."""
    balances: Counter[str] = Counter()
    async with AsyncProducer("shop", name_servers=name_servers) as producer:
        orders = []
        for number in range(ORDERS):
            customer, cents = f"c-{number % CUSTOMERS}", number * 7919 % 1000
            balances[customer] += cents
            orders.append((Message("orders", b"%d" % cents), customer))
        await producer.send_many(orders)
    return balances


def main(folder: Path) -> None:
    path = folder / "shop.db"
    database = sqlite3.connect(path, timeout=30)
    database.execute("PRAGMA journal_mode=WAL")  # readers do not wait for the writer
    database.execute("CREATE TABLE balance (customer TEXT PRIMARY KEY, cents INTEGER)")

    def balances() -> dict[str, int]:
        return dict(database.execute("SELECT customer, cents FROM balance"))

    pause = threading.Event()
    with EmbeddedBroker(config=BROKER) as broker, Admin(broker.name_servers) as admin:
        command = [sys.executable, __file__, broker.name_servers, str(path)]
        admin.create_topic("orders", 6)
        wanted = asyncio.run(send(broker.name_servers))
        processes = [subprocess.Popen(command) for _ in range(2)]
        try:
            for part in (0.2, 0.5):
                while sum(balances().values()) < part * wanted.total():
                    pause.wait(0.02)
                killed = processes.pop(0)
                killed.kill()
                print("killed with", killed.wait())
                processes.append(subprocess.Popen(command))
            while admin.group("balances", ["orders"]).lag:
                pause.wait(0.02)
        finally:
            for each in processes:
                each.terminate()
                each.wait()
    print(f"{len(wanted)} balances are exact: {balances() == wanted}")
    database.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(serve(*sys.argv[1:]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
