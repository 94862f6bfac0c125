"""Exactly-once effects in a SQL database: offsets beside the user's own tables
(docs/exactly-once.md).

    store = SqlOffsetStore(create_engine("postgresql+psycopg://..."))
    consumer = PushConsumer("billing", name_servers=..., offset_store=store)

    @consumer.orderly
    def bill(messages, context):
        connection = context.transaction()
        ...

A row of one table holds the next offset of each queue and the epoch of its owner. A listener's
changes and the next offset are committed together, on condition that the epoch is still the newest
and the offset not yet behind: so no message takes effect twice, whoever else believes to own the
queue, and however often it is delivered.
"""

from ordermq.lazy_imports import needed_from

with needed_from("sql"):
    from ordermq.sql.async_offset_store import AsyncSqlOffsetStore, AsyncSqlTransaction
    from ordermq.sql.offset_store import SqlOffsetStore, SqlTransaction

__all__ = ["AsyncSqlOffsetStore", "AsyncSqlTransaction", "SqlOffsetStore", "SqlTransaction"]
