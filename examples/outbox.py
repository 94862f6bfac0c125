"""Send a message if, and only if, a change in the database is committed.

    python examples/outbox.py

The message is stored at the broker first, invisible; then the database is changed; then the broker
is told the outcome. If the program dies in between, the broker asks, and the database answers.
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from ordermq import LitePullConsumer, Message, TransactionProducer, TransactionState
from ordermq.broker import EmbeddedBroker


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker() as broker:
        file = Path(folder) / "shop.db"
        with sqlite3.connect(file) as database:
            database.execute("CREATE TABLE orders (number TEXT PRIMARY KEY)")
        database.close()

        def is_ordered(message: Any) -> TransactionState:
            """Answer the broker, from the database: any process of the group can."""
            with sqlite3.connect(file) as database:
                query = "SELECT 1 FROM orders WHERE number = ?"
                found = database.execute(query, (bytes(message.body).decode(),)).fetchone()
            database.close()
            return TransactionState.COMMIT if found else TransactionState.ROLLBACK

        def order(message: Message, argument: Any) -> TransactionState:
            """Change the database; it refuses an order that it has."""
            database = sqlite3.connect(file)
            try:
                with database:
                    database.execute("INSERT INTO orders VALUES (?)", (argument,))
            except sqlite3.IntegrityError:
                return TransactionState.ROLLBACK
            finally:
                database.close()
            return TransactionState.COMMIT

        with TransactionProducer(
            "shop", check=is_ordered, name_servers=broker.name_servers
        ) as producer:
            for number in ("o-17", "o-18", "o-17"):
                receipt = producer.send_in_transaction(
                    Message("orders", number.encode()), number, execute=order
                )
                print(number, receipt.state.name)
        consumer = LitePullConsumer(
            "billing", name_servers=broker.name_servers, consume_from_where="first_offset"
        )
        consumer.subscribe("orders")
        with consumer:
            sent: list[str] = []
            while len(sent) < 2:
                sent += [bytes(message.body).decode() for message in consumer.poll(5_000)]
        print("consumers see:", *sorted(sent))


if __name__ == "__main__":
    main()
