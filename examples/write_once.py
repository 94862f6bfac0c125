"""Write every message into a database exactly once: the next offset and the epoch of its queue
are stored in the same transaction as what the message changes.

    python examples/write_once.py NAME_SERVERS GROUP TOPIC orders.sqlite

A message that was written already is left out, and an owner that was paused beyond its lease is
refused. Any database with transactions can do the same.

The file is of one broker's topic: what is below a queue's next offset is taken for written. Begin
with another file where the topic is made anew, or the broker.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from typing import Any

from ordermq import MessageView, PushConsumer

TABLES = """
CREATE TABLE IF NOT EXISTS progress (
    queue TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,            -- 64 bits
    next_offset INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS orders (body BLOB NOT NULL);
"""


class StaleOwner(Exception):
    """Another member owns the queue now and has written already."""


def write(
    database: sqlite3.Connection, queue: str, epoch: int, messages: Sequence[MessageView]
) -> int:
    """Write a batch; return how many of its messages were new.

    Raises: StaleOwner: nothing was written.
    """
    with database:  # one transaction: all of it, or nothing
        # With the write lock from the start, so that nobody writes between our read and our write.
        database.execute("BEGIN IMMEDIATE")
        row = database.execute("SELECT epoch, next_offset FROM progress WHERE queue = ?", (queue,))
        newest, next_offset = row.fetchone() or (epoch, 0)
        if epoch < newest:
            raise StaleOwner(f"{queue}: epoch {epoch}, but {newest} has written")
        new = [message for message in messages if message.queue_offset >= next_offset]
        database.executemany(
            "INSERT INTO orders (body) VALUES (?)", [(bytes(message.body),) for message in new]
        )
        if new:
            next_offset = new[-1].queue_offset + 1
        database.execute(
            "INSERT OR REPLACE INTO progress VALUES (?, ?, ?)", (queue, epoch, next_offset)
        )
        return len(new)


def main(name_servers: str, group: str, topic: str, file: str) -> None:
    database = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=30)
    database.executescript(TABLES)
    consumer = PushConsumer(
        group,
        name_servers=name_servers,
        consume_from_where="first_offset",
        consume_thread_count=1,  # one connection to the database
        consume_message_batch_max_size=32,
    )
    consumer.subscribe(topic)

    @consumer.orderly
    def store(messages: Sequence[MessageView], context: Any) -> None:
        epoch, _ = context.fence_token
        write(database, str(context.message_queue), epoch, messages)

    consumer.run()
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
