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

from typing import TYPE_CHECKING

from ordermq.lazy_imports import lazy_names, needed_from

with needed_from("sql"):
    from ordermq.sql.offset_store import SqlOffsetStore, SqlTransaction

if TYPE_CHECKING:
    from ordermq.sql.async_offset_store import AsyncSqlOffsetStore, AsyncSqlTransaction

__all__ = ["AsyncSqlOffsetStore", "AsyncSqlTransaction", "SqlOffsetStore", "SqlTransaction"]

# SQLAlchemy's asyncio needs greenlet, which a SQLAlchemy installed without its extra lacks from 2.1
# on: stores without asyncio do not need it.
_HOMES = {"async_offset_store": ("AsyncSqlOffsetStore", "AsyncSqlTransaction")}

if not TYPE_CHECKING:  # to them, each name would be there, also a misspelt one
    __getattr__, __dir__ = lazy_names("ordermq.sql", _HOMES)
