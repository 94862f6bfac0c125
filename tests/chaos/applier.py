"""A process that copies a table, to be killed within a transaction of its database:
python -m tests.chaos.applier ADDRESS DATABASE queue|key PLACE.

It prints PLACE once it has got there in its second transaction, and stays there.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, Table, Text, create_engine, event

from ordermq import PushConsumer
from ordermq.cdc import ApplyChanges, DebeziumCodec
from ordermq.sql import SqlOffsetStore

TOPIC = "orders"
CODEC = DebeziumCodec(with_schemas=False)
TABLE = Table(
    "goods",
    MetaData(),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", Text),
)
# Each but the last is within the transaction.
PLACES = ("rows written", "progress written", "before the commit", "behind the commit")


class Halt:
    """Stop a thread at a place of the engine's transactions on `TABLE`, for ever."""

    def __init__(self, engine: Engine, place: str) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._transactions = 0
        event.listen(engine, "after_cursor_execute", self._after_statement)
        commit = engine.dialect.do_commit

        def do_commit(connection: Any) -> None:
            wrote = connection.info.pop("wrote", False)
            if wrote:
                self._at("before the commit")
            commit(connection)
            if wrote:
                self._at("behind the commit")

        engine.dialect.do_commit = do_commit  # type: ignore[method-assign]

    def _after_statement(self, connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        if statement.startswith("INSERT INTO goods"):
            connection.info["wrote"] = True
            with self._lock:
                self._transactions += 1
            self._at("rows written")
        elif statement.startswith("UPDATE ordermq_changes"):
            self._at("progress written")

    def _at(self, place: str) -> None:
        if place == self._place and self._transactions >= 2:
            # Whole lines: several threads may come here.
            os.write(sys.stdout.fileno(), f"{place}\n".encode())
            threading.Event().wait()


def engine_of(database: str) -> Engine:
    """Return an engine whose statements wait for a killed process's locks."""
    waits = {"connect_args": {"timeout": 20}} if database.startswith("sqlite") else {}
    return create_engine(database, **waits)


def main() -> None:
    address, database, order, place = sys.argv[1:5]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    engine = engine_of(database)
    by_key = order == "key"
    apply = ApplyChanges(engine, [TABLE], CODEC, by_key=by_key)
    Halt(engine, place)
    settings: dict[str, Any] = (
        {"order_by_key": True} if by_key else {"offset_store": SqlOffsetStore(engine)}
    )
    consumer = PushConsumer(
        "g",
        name_servers=address,
        consume_from_where="first_offset",
        # So that no call has two changes of a row, which it would write as one.
        consume_message_batch_max_size=1 if by_key else 2,
        commit_interval_ms=50,
        suspend_current_queue_time_ms=10,
        lock_max_live_ms=1_000,
        lock_interval_ms=200,
        **settings,
    )
    consumer.subscribe(TOPIC)
    consumer.orderly(apply)
    print(consumer.client_id, flush=True)
    consumer.run()


if __name__ == "__main__":
    main()
