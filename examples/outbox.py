"""Send a message if, and only if, a change in the database is committed.

    python examples/outbox.py

The message is stored at the broker first, invisible; then the database is changed; then the broker
is told the outcome. If the program dies in between, the broker asks, and the database answers.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from ordermq import (
    LitePullConsumer,
    Message,
    MessageView,
    TransactionProducer,
    TransactionState,
)
from ordermq.broker import EmbeddedBroker

LONGEST_ORDER_MS = 60_000  # then a transaction that is not in the database never will be


class Orders:
    """Orders in a database, each stored with the transaction that placed it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("CREATE TABLE orders (number TEXT PRIMARY KEY, transaction_id TEXT)")

    def execute(self, message: Message, number: str) -> TransactionState:
        """Change the database; it refuses an order that it has."""
        try:
            with closing(sqlite3.connect(self.file)) as database, database:
                row = number, message.transaction_id
                database.execute("INSERT INTO orders VALUES (?, ?)", row)
        except sqlite3.IntegrityError:
            return TransactionState.ROLLBACK
        return TransactionState.COMMIT

    def check(self, message: MessageView) -> TransactionState:
        """Answer the broker, from the database: any process of the group can."""
        # By the transaction: the order may be there from another message.
        query = "SELECT 1 FROM orders WHERE transaction_id = ?"
        with closing(sqlite3.connect(self.file)) as database:
            if database.execute(query, (message.message_id,)).fetchone():
                return TransactionState.COMMIT
        # Another process may still be at it: then the broker asks again.
        is_young = time.time() * 1_000 - message.born_timestamp_ms < LONGEST_ORDER_MS
        return TransactionState.UNKNOWN if is_young else TransactionState.ROLLBACK


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker() as broker:
        orders = Orders(Path(folder) / "shop.db")
        with TransactionProducer("shop", orders, name_servers=broker.name_servers) as producer:
            for number in ("o-17", "o-18", "o-17"):
                receipt = producer.send_in_transaction(Message("orders", number.encode()), number)
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
