"""The offset store of asyncio's applications, on SQLAlchemy's engines of asyncio
(docs/exactly-once.md#asyncio)."""

from __future__ import annotations

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.util import greenlet_spawn

from ordermq.consumer.offsets.offset_store import StoreClaim
from ordermq.errors import ConfigError
from ordermq.model.message_queue import MessageQueue
from ordermq.sql.offset_store import DEFAULT_TABLE, IDLE_TIMEOUT_MS, SqlOffsets, SqlTransaction
from ordermq.sql.writer_line import LoopEvent, WriterLine


class AsyncSqlOffsetStore:
    """As `SqlOffsetStore`, for `async def` listeners of an `AsyncConsumer`; fulfils
    `AsyncTransactionalStore`.

    `await context.transaction()` returns an `AsyncConnection`. All calls are made on the loop of
    the consumer, which the engine's connections belong to.

    Args:
        engine: of `create_async_engine`, with aiosqlite, asyncpg or psycopg.
        table, schema, create_table, idle_timeout_ms: as of `SqlOffsetStore`; both kinds of store
            may share a table.
    Raises: ConfigError: a database or a driver that is not supported, or not in this form.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        table: str = DEFAULT_TABLE,
        schema: str | None = None,
        create_table: bool = True,
        idle_timeout_ms: int = IDLE_TIMEOUT_MS,
    ) -> None:
        if not isinstance(engine, AsyncEngine):
            raise ConfigError(
                f"{engine!r}: expected an engine of create_async_engine(); for one of "
                "create_engine() take SqlOffsetStore"
            )
        self._engine = engine
        # The same code on the engine within: SQLAlchemy runs its blocking calls in a greenlet,
        # which gives the loop back wherever the driver waits.
        self._offsets = SqlOffsets(
            engine.sync_engine,
            table=table,
            schema=schema,
            create_table=create_table,
            idle_timeout_ms=idle_timeout_ms,
            line=WriterLine(LoopEvent),
        )

    def __repr__(self) -> str:
        return f"<AsyncSqlOffsetStore {self.table.fullname} {self._engine.url!r}>"

    @property
    def table(self) -> Table:
        """The table of the offsets, for migrations."""
        return self._offsets.table

    async def open(self) -> None:
        await greenlet_spawn(self._offsets.open)

    async def take_over(self, group: str, queue: MessageQueue, epoch: int) -> int | None:
        return await greenlet_spawn(self._offsets.take_over, group, queue, epoch)

    async def read(self, group: str, queue: MessageQueue) -> int | None:
        return await greenlet_spawn(self._offsets.read, group, queue)

    async def write(
        self,
        group: str,
        queue: MessageQueue,
        next_offset: int,
        epoch: int,
        *,
        is_reset: bool = False,
    ) -> None:
        write = self._offsets.write
        await greenlet_spawn(write, group, queue, next_offset, epoch, is_reset=is_reset)

    async def begin(
        self, group: str, queue: MessageQueue, epoch: int, first_offset: int
    ) -> AsyncSqlTransaction:
        begun = await greenlet_spawn(self._offsets.begin, group, queue, epoch, first_offset)
        return AsyncSqlTransaction(begun, AsyncConnection(self._engine, begun.connection))

    async def claim(self, group: str, queue: MessageQueue) -> StoreClaim:
        return await greenlet_spawn(self._offsets.claim, group, queue)

    def is_outage(self, error: BaseException) -> bool:
        return self._offsets.is_outage(error)


class AsyncSqlTransaction:
    """The transaction of one listener call; fulfils `AsyncTransaction`."""

    __slots__ = ("_transaction", "connection")

    def __init__(self, transaction: SqlTransaction, connection: AsyncConnection) -> None:
        self._transaction = transaction
        self.connection = connection

    async def commit(self, next_offset: int) -> None:
        await greenlet_spawn(self._transaction.commit, next_offset)

    async def roll_back(self) -> None:
        await greenlet_spawn(self._transaction.roll_back)
