"""Changes of a database through messages into copies of its tables (docs/cdc.md)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import Column, Engine, MetaData, Table, select

from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.cdc import ApplyChanges, Change, ChangeMetrics, DebeziumCodec, Operation
from ordermq.sql import SqlOffsetStore
from tests.component.conftest import eventually
from tests.component.docs_examples import DOCS, examples, run_example

CODEC = DebeziumCodec(with_schemas=False)
MakeConsumer = Callable[..., PushConsumer]


def history(count: int, tables: int, seed: int) -> tuple[list[Change], dict[str, dict[int, str]]]:
    """Return random changes of the rows of tables, and the rows at their end."""
    pick = random.Random(seed)
    source: dict[str, dict[int, str]] = {f"t{number}": {} for number in range(tables)}
    changes = []
    for step in range(count):
        table, number = pick.choice(list(source)), pick.randrange(20)
        told: dict[str, Any] = {"table": table, "position": (step, 0), "source": "log"}
        if number in source[table] and pick.random() < 0.3:
            del source[table][number]
            changes.append(Change(operation=Operation.DELETE, before={"id": number}, **told))
        else:
            row = {"id": number, "name": f"v{step}"}
            source[table][number] = row["name"]
            changes.append(Change(operation=Operation.INSERT, after=row, **told))
    return changes, source


def copies(engine: Engine, source: dict[str, dict[int, str]]) -> list[Table]:
    metadata = MetaData()
    tables = [
        Table(name, metadata, Column("id", sa.Integer, primary_key=True), Column("name", sa.Text))
        for name in source
    ]
    metadata.create_all(engine)
    return tables


def contents(engine: Engine, tables: list[Table]) -> dict[str, dict[int, str]]:
    with engine.connect() as connection:
        return {
            table.name: {row.id: row.name for row in connection.execute(select(table))}
            for table in tables
        }


@pytest.mark.parametrize("by_key", [False, True])
def test_copies_equal_the_source_though_members_leave_and_calls_fail(
    broker: EmbeddedBroker,
    producer: Producer,
    make_consumer: MakeConsumer,
    engine: Engine,
    by_key: bool,
) -> None:
    changes, source = history(600, tables=3, seed=7)
    tables = copies(engine, source)
    apply = ApplyChanges(engine, tables, CODEC, by_key=by_key)
    pick = random.Random(7)

    def listen(messages: Any, context: Any) -> None:
        apply(messages, context)
        if pick.random() < 0.1:
            raise RuntimeError("a listener's own error, behind its writes")

    def member() -> PushConsumer:
        settings: dict[str, Any] = (
            {"order_by_key": True} if by_key else {"offset_store": SqlOffsetStore(engine)}
        )
        made = make_consumer(
            listen,
            consume_message_batch_max_size=16,
            suspend_current_queue_time_ms=10,
            **settings,
        )
        made.start()
        return made

    members = [member(), member()]
    for number, change in enumerate(changes):
        message = Message("orders", CODEC.encode(change))
        producer.send(message, sharding_key=change.sharding_key(columns=["id"]))
        if number == 300:
            members.pop(0).close()
            members.append(member())
    eventually(lambda: contents(engine, tables) == source, "equal copies")


def test_counts_of_each_table_are_metrics(
    producer: Producer, make_consumer: MakeConsumer, engine: Engine
) -> None:
    changes, source = history(50, tables=2, seed=1)
    tables = copies(engine, source)
    apply = ApplyChanges(engine, tables, CODEC)
    registry = CollectorRegistry()
    ChangeMetrics(apply, registry)
    for change in changes:
        message = Message("orders", CODEC.encode(change))
        producer.send(message, sharding_key=change.sharding_key(columns=["id"]))
    make_consumer(apply, offset_store=SqlOffsetStore(engine)).start()
    eventually(lambda: contents(engine, tables) == source, "equal copies")

    def page() -> str:
        return generate_latest(registry).decode()

    inserts = sum(c.operation is Operation.INSERT and c.table == "t0" for c in changes)
    line = f'ordermq_cdc_changes_total{{operation="insert",table="t0"}} {inserts}.0'
    eventually(lambda: line in page(), "the counts of the last call")
    assert "ordermq_cdc_repeats_total 0.0" in page()
    assert 'ordermq_cdc_rows_total{table="t1",written="deleted"}' in page()


def test_the_examples_of_the_page_run_as_they_stand(tmp_path: Path) -> None:
    done = run_example("\n".join(examples((DOCS / "cdc.md").read_text())), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "shop.orders update (18446744073709551615,) 9.00 9.90",
        "[('1', '9.90')]",
    ]
