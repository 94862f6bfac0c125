"""Effects in the user's own database, audited: a member killed between the commit of its
transaction and its last line (docs/exactly-once.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from ordermq import Message, Producer, PushConsumer
from ordermq.audit import audit
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.sql import SqlOffsetStore
from tests.component.conftest import eventually

VICTIM = """
import os, signal, sys
from sqlalchemy import create_engine, text
from ordermq import PushConsumer
from ordermq.sql import SqlOffsetStore

class Last:
    def __init__(self, transaction):
        self.connection = transaction.connection
        self.roll_back = transaction.roll_back
        self._commit = transaction.commit

    def commit(self, next_offset):
        self._commit(next_offset)
        if next_offset == 3:
            os.kill(os.getpid(), signal.SIGKILL)

class KilledAfterItsCommit(SqlOffsetStore):
    def begin(self, *arguments):
        return Last(super().begin(*arguments))

def listen(messages, context):
    for message in messages:
        context.transaction().execute(
            text("INSERT INTO seen VALUES (:at)"), {"at": message.queue_offset}
        )

address, database, history = sys.argv[1:]
consumer = PushConsumer(
    "g", name_servers=address, history=history, consume_from_where="first_offset",
    offset_store=KilledAfterItsCommit(create_engine(database)),
)
consumer.subscribe("orders")
consumer.orderly(listen)
consumer.run()
"""


@pytest.fixture
def broker_config() -> BrokerConfig:
    return BrokerConfig(broker_name="b", durability="os", lock_max_live_ms=1_000)


def test_a_take_over_from_the_database_tells_what_the_killed_owner_had_done(
    broker: EmbeddedBroker,
    make_consumer: Callable[..., PushConsumer],
    broker_history: Path,
    tmp_path: Path,
) -> None:
    database = f"sqlite:///{tmp_path}/app.db"
    engine = create_engine(database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE seen (at INTEGER PRIMARY KEY)"))

    def count() -> int:
        with engine.connect() as connection:
            return int(connection.scalar(text("SELECT count(*) FROM seen")) or 0)

    def listen(messages: Any, context: Any) -> None:
        for message in messages:
            context.transaction().execute(
                text("INSERT INTO seen VALUES (:at)"), {"at": message.queue_offset}
            )

    with Producer("p", name_servers=broker.name_servers, default_topic_queue_nums=1) as producer:
        producer.send_many([(Message("orders", b"%d" % number), "k") for number in range(6)])
    histories = [broker_history, tmp_path / "victim.jsonl", tmp_path / "heir.jsonl"]
    victim = [sys.executable, "-c", VICTIM, broker.name_servers, database, str(histories[1])]
    assert subprocess.run(victim, timeout=60).returncode == -9
    assert count() == 3
    store = SqlOffsetStore(engine)
    with make_consumer(listen, offset_store=store, history=histories[2]):
        eventually(lambda: count() == 6, "every message has its effect, once")
    broker.close()
    report = audit(histories)
    assert report.ok, report.violations
    assert (report.delivered, report.deliveries, report.crashes) == (6, 6, 1)
    assert sum(report.duplicates.values()) == 0
    # The message whose END is missing is known by the TAKE_OVER alone.
    events = [json.loads(line) for path in histories for line in path.read_text().splitlines()]
    ended = {at for each in events if each["type"] == "END" for at in each["offs"]}
    assert ended == {0, 1, 3, 4, 5}
    blind = [event for event in events if event["type"] != "TAKE_OVER"]
    assert {violation.invariant for violation in audit(blind).violations} == {"I3", "I4"}
    engine.dispose()
