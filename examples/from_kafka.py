"""A service as one writes it with Kafka: commits by hand, a rebalance listener, lag, and effects in
a database exactly once.

pip install 'ordermq[sql]'
python examples/from_kafka.py                               SQLite, in a temporary file
python examples/from_kafka.py postgresql+psycopg://...      pip install 'ordermq[postgresql]'

In production each member would be a process of its own, and the broker a RocketMQ. Its tables,
`example_balance` and `example_offsets`, are made anew by each run, and left to look at.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence

from sqlalchemy import create_engine, text

from ordermq import (
    Admin,
    ConsumeContext,
    LitePullConsumer,
    Message,
    MessageQueue,
    MessageView,
    Producer,
    PushConsumer,
)
from ordermq.broker import EmbeddedBroker
from ordermq.sql import SqlOffsetStore

PAYMENTS = 1_000
BOOK = text(
    "INSERT INTO example_balance AS old (account, cents) VALUES (:account, :cents) "
    "ON CONFLICT (account) DO UPDATE SET cents = old.cents + excluded.cents"
)


class Auditor:
    """A member of the group `audit`: a poll loop that commits what it has done."""

    def __init__(self, name_servers: str) -> None:
        self.queues: set[MessageQueue] = set()
        self.payments = 0
        self.consumer = LitePullConsumer(
            "audit",
            name_servers=name_servers,
            ordered=True,  # a queue moves to another member only behind its batch
            auto_commit=False,  # enable.auto.commit
            consume_from_where="first_offset",  # auto.offset.reset=earliest
            on_assigned=self.queues.add,  # a rebalance listener, called per queue
            on_revoked=self.queues.discard,
        )
        self.consumer.subscribe("payments")
        self.thread = threading.Thread(target=self.work)

    def work(self) -> None:
        with self.consumer:
            for batch in self.consumer.batches():  # until `stop`
                self.payments += len(batch)
                self.consumer.commit({batch.message_queue: batch.next_offset})


def audit(name_servers: str) -> None:
    """Share the queues among two members, and see how far the group is behind."""
    first, second = Auditor(name_servers), Auditor(name_servers)
    first.thread.start()
    wait_until(lambda: len(first.queues) == 4)
    second.thread.start()
    wait_until(lambda: (len(first.queues), len(second.queues)) == (2, 2))
    print("queues of each member:", len(first.queues), len(second.queues))
    with Admin(name_servers) as admin:
        wait_until(lambda: admin.group("audit").lag == 0)
    for member in (first, second):
        member.consumer.stop()
        member.thread.join()
    print("audited:", first.payments + second.payments)


def bill(name_servers: str, url: str) -> None:
    """Add up the payments of each account; offset and sum are committed in one transaction."""
    engine = create_engine(url, pool_pre_ping=True)
    with engine.begin() as database:
        # The broker is a new one, whose offsets begin at 0: those of an earlier run are of another.
        # A program with a broker that stays makes its tables once, and drops nothing.
        database.execute(text("DROP TABLE IF EXISTS example_balance"))
        database.execute(text("DROP TABLE IF EXISTS example_offsets"))
        database.execute(
            text("CREATE TABLE example_balance (account VARCHAR(9) PRIMARY KEY, cents INTEGER)")
        )
    consumer = PushConsumer(
        "billing",
        name_servers=name_servers,
        consume_from_where="first_offset",
        consume_message_batch_max_size=32,  # payments per transaction
        offset_store=SqlOffsetStore(engine, table="example_offsets"),
    )
    consumer.subscribe("payments")
    booked: set[tuple[int, int]] = set()

    @consumer.orderly
    def book(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        rows = [{"account": each.sharding_key, "cents": int(each.text())} for each in messages]
        context.transaction().execute(BOOK, rows)
        booked.update((each.queue_id, each.queue_offset) for each in messages)
        if len(booked) == PAYMENTS:
            consumer.stop()

    consumer.run()
    with engine.connect() as database:
        print("booked:", database.scalar(text("SELECT sum(cents) FROM example_balance")))
    engine.dispose()


def wait_until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.05)


def main(url: str) -> None:
    with EmbeddedBroker() as broker:
        with Producer("shop", name_servers=broker.name_servers) as producer:
            for cents in range(PAYMENTS):
                # As of Kafka's producer: the key chooses the queue, and a future is returned.
                producer.send_nowait(
                    Message("payments", b"%d" % cents), sharding_key=f"a-{cents % 7}"
                )
            producer.flush()
        audit(broker.name_servers)
        bill(broker.name_servers, url)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"sqlite:///{folder}/shop.db")
