"""The processes of the demo: python ci/cdc/cdc_process.py ROLE SETTINGS, a JSON of `Settings`."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import sqlalchemy as sa
from cdc_shop import shop, tables

from ordermq import ConsumeContext, MessageView, Producer, PushConsumer
from ordermq.cdc import ApplyChanges, CanalCodec, Change, DebeziumCodec, Operation, PostgreSqlReader
from ordermq.cdc.change import Position
from ordermq.cdc.pgoutput import Decoder
from ordermq.cdc.tables import CopiedTable
from ordermq.sql import SqlOffsetStore

TOPIC, SLOT, PLAIN_SLOT = "changes", "shop", "plain"
_PLAIN_BATCH = 2_000  # changes that the plain applier asks for


@dataclass(frozen=True)
class Settings:
    """Settings of every process.

    Args:
        source, copy: databases, for psycopg.
        lease_ms: life of a queue's lock.
    """

    source: str
    copy: str
    name_servers: str
    form: str
    tables: int
    changes: int
    rows: int
    rate: float
    seed: int
    lease_ms: int

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def codec(self) -> Any:
        if self.form == "canal":
            return CanalCodec(time_zone=ZoneInfo("Asia/Shanghai"))
        return DebeziumCodec(with_schemas=True)


def engine_of(conninfo: str) -> sa.Engine:
    return sa.create_engine(conninfo.replace("://", "+psycopg://"), pool_pre_ping=True)


def read(settings: Settings) -> None:
    """Send the shop's log until SIGTERM."""
    with Producer("reader", name_servers=settings.name_servers, retry_times=20) as producer:
        reader = PostgreSqlReader(
            settings.source,
            producer,
            TOPIC,
            settings.codec(),
            tables=[table.name for table in tables(settings.tables)],
            slot=SLOT,
        )
        signal.signal(signal.SIGTERM, lambda *_: reader.stop())
        reader.run()


def apply(settings: Settings) -> None:
    """Apply changes to the copy until SIGTERM; write each one down in the same transaction."""
    engine = engine_of(settings.copy)
    changes = ApplyChanges(engine, tables(settings.tables), settings.codec())
    consumer = PushConsumer(
        "copy",
        name_servers=settings.name_servers,
        consume_from_where="first_offset",
        # Few large calls: a transaction of one change costs as much as one of a hundred.
        consume_message_batch_max_size=512,
        pull_batch_size=512,
        pull_interval_ms=200,
        suspend_current_queue_time_ms=200,
        lock_max_live_ms=settings.lease_ms // 2,
        lock_interval_ms=max(settings.lease_ms // 6, 10),
        # Shorter than the shortest freeze, so that its transactions do end while it sleeps.
        offset_store=SqlOffsetStore(engine, idle_timeout_ms=settings.lease_ms // 2),
    )
    consumer.subscribe(TOPIC)
    note = sa.text("INSERT INTO applied VALUES (:at, :number, :name, :key, :member)")

    @consumer.orderly
    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        rows = []
        for message, (change,) in changes.apply(messages, context):
            at, number = Position.of_message(message).place
            (key,) = change.key(("id",))
            row = {"at": at, "number": number, "name": change.table, "key": key}
            rows.append(row | {"member": str(os.getpid())})
        if rows:
            context.transaction().execute(note, rows)

    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.run()


def plain(settings: Settings) -> None:
    """Apply the same log without a broker, in the same batches; print changes and seconds."""
    copies = {
        table.name: CopiedTable(table, engine_of(settings.copy))
        for table in tables(settings.tables)
    }
    engine = engine_of(settings.copy)
    begun, total = time.monotonic(), 0
    with psycopg.connect(settings.source, autocommit=True) as source:
        query = (
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, %s, "
            "'proto_version', '1', 'publication_names', %s)"
        )
        while rows := source.execute(query, (PLAIN_SLOT, _PLAIN_BATCH, SLOT)).fetchall():
            decoder = Decoder(lambda _: ("id",), "plain")
            newest: dict[tuple[str, Any], Change] = {}
            for (data,) in rows:
                for change in decoder.decode(data):
                    if isinstance(change, Change):
                        newest[change.table, change.key()] = change
                        total += 1
            with engine.begin() as connection:
                for name, copy in copies.items():
                    of_table = sorted(
                        (each for each in newest.values() if each.table == name), key=Change.key
                    )
                    gone = [each for each in of_table if each.operation is Operation.DELETE]
                    copy.delete(connection, [copy.key_of(each) for each in gone])
                    kept = [each for each in of_table if each.operation is not Operation.DELETE]
                    copy.upsert(connection, [copy.values_of(each) for each in kept])
    print(json.dumps({"changes": total, "seconds": time.monotonic() - begun}), flush=True)


def write(settings: Settings) -> None:
    """Change the shop's tables."""
    shop(
        settings.source, settings.tables, settings.changes, settings.rows, settings.rate,
        settings.seed,
    )  # fmt: skip


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    roles = {"read": read, "apply": apply, "plain": plain, "write": write}
    roles[sys.argv[1]](Settings(**json.loads(sys.argv[2])))


if __name__ == "__main__":
    main()
