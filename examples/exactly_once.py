"""Book payments exactly once: the next offset of the queue is committed with what was booked.

pip install 'ordermq[sql]'
python examples/exactly_once.py                             SQLite, in a temporary file
python examples/exactly_once.py postgresql+psycopg://...    pip install 'ordermq[postgresql]'

A batch that fails behind its writes is rolled back and comes again; so does one whose process died.
A member that lost the queue while it was frozen is refused by the epoch in the same table.

Its tables, `example_payments` and `example_offsets`, are made anew by each run, and left to be
looked at.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence

from sqlalchemy import create_engine, text

from ordermq import ConsumeContext, Message, MessageView, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.sql import SqlOffsetStore

BOOK = text("INSERT INTO example_payments (account, cents) VALUES (:account, :cents)")


def main(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as database:
        # The broker below is a new one, whose offsets begin at 0: those of an earlier run are of
        # another. A program with a broker that stays makes its tables once, and drops nothing.
        database.execute(text("DROP TABLE IF EXISTS example_payments"))
        database.execute(text("DROP TABLE IF EXISTS example_offsets"))
        database.execute(text("CREATE TABLE example_payments (account VARCHAR(20), cents INTEGER)"))
    booked = failures = 0

    with EmbeddedBroker() as broker:
        with Producer("shop", name_servers=broker.name_servers) as producer:
            for cents in range(1, 101):
                producer.send(Message("payments", b"%d" % cents), sharding_key="a-1")
        consumer = PushConsumer(
            "billing",
            name_servers=broker.name_servers,
            consume_from_where="first_offset",
            consume_message_batch_max_size=10,
            suspend_current_queue_time_ms=10,
            offset_store=SqlOffsetStore(engine, table="example_offsets"),
        )
        consumer.subscribe("payments")

        @consumer.orderly
        def book(messages: Sequence[MessageView], context: ConsumeContext) -> None:
            nonlocal booked, failures
            database = context.transaction()
            for message in messages:
                row = {"account": message.sharding_key, "cents": int(message.text())}
                database.execute(BOOK, row)
            if context.attempt == 0 and messages[0].offset % 50 == 0:
                failures += 1
                raise RuntimeError("after its writes")
            booked += len(messages)
            if booked == 100:
                consumer.stop()

        consumer.run()
    with engine.connect() as database:
        total = database.scalar(text("SELECT sum(cents) FROM example_payments"))
    engine.dispose()
    print(f"{failures} calls failed after their writes; booked {total} cents of 5050")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/shop.db")
