"""The table of the offsets, and the statements on it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Integer,
    MetaData,
    String,
    Table,
    bindparam,
    case,
    func,
    insert,
    or_,
    select,
    update,
)

from ordermq.model.message_queue import MessageQueue

_NAME = 255  # no group or topic is longer, with its namespace


def offsets_table(name: str, schema: str | None) -> Table:
    """Return the definition of the table."""
    return Table(
        name,
        MetaData(schema=schema),
        Column("consumer_group", String(_NAME), primary_key=True),
        Column("topic", String(_NAME), primary_key=True),
        Column("broker", String(_NAME), primary_key=True),
        Column("queue_id", Integer, primary_key=True, autoincrement=False),
        Column("next_offset", BigInteger),  # NULL until something is done
        Column("epoch", BigInteger, nullable=False),
        Column("updated", DateTime(timezone=True), nullable=False),
    )


def row_key(group: str, queue: MessageQueue) -> dict[str, Any]:
    """Return the values that name a queue's row in every statement."""
    return {
        "of_group": group,
        "of_topic": queue.topic,
        "of_broker": queue.broker_name,
        "of_queue": queue.queue_id,
    }


class Statements:
    """The statements of one table, made once; SQLAlchemy compiles each once."""

    def __init__(self, table: Table) -> None:
        columns = table.c
        of_queue = (
            (columns.consumer_group == bindparam("of_group"))
            & (columns.topic == bindparam("of_topic"))
            & (columns.broker == bindparam("of_broker"))
            & (columns.queue_id == bindparam("of_queue"))
        )
        mine, offset = bindparam("mine", type_=BigInteger), bindparam("offset", type_=BigInteger)
        stored, now = columns.next_offset, func.now()
        is_newest = of_queue & (columns.epoch <= mine)
        is_not_behind = or_(stored.is_(None), stored <= bindparam("first", type_=BigInteger))
        went_not_back = func.coalesce(stored, -1) >= bindparam("known", type_=BigInteger)
        owned = update(table).where(is_newest)
        self.read = select(stored, columns.epoch).where(of_queue)
        self.create = insert(table).values(
            consumer_group=bindparam("of_group"),
            topic=bindparam("of_topic"),
            broker=bindparam("of_broker"),
            queue_id=bindparam("of_queue"),
            epoch=mine,
            updated=now,
        )
        self.claim = owned.values(epoch=mine, updated=now)
        self.claim_next = update(table).where(of_queue).values(epoch=columns.epoch + 1, updated=now)
        self.reset = owned.values(epoch=mine, next_offset=offset, updated=now)
        # Never backwards: a periodic commit may have been overtaken by a call's transaction.
        self.grow = owned.where(went_not_back).values(
            epoch=mine,
            next_offset=case((stored > offset, stored), else_=offset),
            updated=now,
        )
        self.advance = owned.where(is_not_behind).values(
            epoch=mine, next_offset=offset, updated=now
        )
        # PostgreSQL's: each a round trip less than two statements.
        transaction_id = func.txid_current().label("transaction_id")
        self.advance_and_identify = self.advance.returning(transaction_id)
        self.begin_and_identify = select(
            stored,
            columns.epoch,
            transaction_id,
            func.set_config(
                "idle_in_transaction_session_timeout", bindparam("idle_ms", type_=String), True
            ),
        ).where(of_queue)
