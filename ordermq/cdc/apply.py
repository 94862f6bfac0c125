"""ApplyChanges: a listener that keeps copies of tables (docs/cdc.md).

One transaction has the changes of a call and what says that they are done: with an orderly
consumer, the offset of `ordermq.sql.SqlOffsetStore`; with one that is ordered by key, a row per key
in a table of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ordermq.lazy_imports import needed_from
from ordermq.threads import Lock

with needed_from("cdc"):
    from sqlalchemy import Connection, Engine, Table

from ordermq.cdc.change import Change, Operation, Order, Position, require_changes, require_order
from ordermq.cdc.progress import Mark, Progress, QueueName
from ordermq.cdc.tables import CopiedTable, require_databases
from ordermq.consumer.listener import ConsumeContext
from ordermq.errors import ChangeRefused, ConfigError, DecodeError
from ordermq.model.message import MessageView

_log = logging.getLogger("ordermq.cdc")

Handler = Callable[[Change, Connection], None]


class ChangeCodec(Protocol):
    """A codec of changes: `CanalCodec`, `DebeziumCodec`."""

    def decode(self, body: bytes, /) -> tuple[Change, ...]: ...


@dataclass(slots=True)
class TableStatistics:
    """Counts of one table since the start of this process.

    Args:
        upserted, deleted: rows written, in batches of the newest value per key.
        changes: changes applied, by operation; a call that failed and came again counts twice.
        committed_ms: when the source committed the newest of them.
    """

    upserted: int = 0
    deleted: int = 0
    changes: dict[str, int] = field(default_factory=dict)
    committed_ms: int | None = None

    def lag_ms(self, now_ms: int | None = None) -> int | None:
        """Return how long ago the source committed the newest change, in ms; None before one.

        Args: now_ms: since 1970; the clock's by default.
        """
        if self.committed_ms is None:
            return None
        return max(
            (time.time_ns() // 1_000_000 if now_ms is None else now_ms) - self.committed_ms, 0
        )


class ApplyChanges:
    """Listener that applies changes to tables, each exactly once and in the order of its key.

    Args:
        engine: of the copies' database, SQLite or PostgreSQL; a table `ordermq_changes` is created
            in it.
        tables: the copies, by the source's names of them (`orders` or `shop.orders`); None for a
            table whose changes are ignored. Or the copies alone, where they have the same names.
            Each needs a primary key.
        codec: of the messages.
        order: the order that the topic keeps: "key", "table" or "source".
        by_key: the consumer has `order_by_key=True`. Otherwise it needs
            `offset_store=SqlOffsetStore(engine)`.
        on_truncate: "refuse", "ignore", "apply" (not with order="key": rows of other queues may be
            older or newer), or a function of (change, connection).
        on_ddl: "refuse", "ignore", or a function of (change, connection).
    Attributes:
        statistics: `TableStatistics` by the source's name of a table.
        repeats: messages dropped because they were applied before, or are sent again.
    Raises: ConfigError: settings or tables that cannot be right; StoreError: no such database.
    """

    def __init__(
        self,
        engine: Engine,
        tables: Mapping[str, Table | None] | Iterable[Table],
        codec: ChangeCodec,
        *,
        order: str = "key",
        by_key: bool = False,
        on_truncate: str | Handler = "refuse",
        on_ddl: str | Handler = "refuse",
    ) -> None:
        require_databases(engine)
        self._engine = engine
        self._decode = codec.decode
        self._order = require_order(order)
        self._tables = _copies(tables, engine)
        self._on_truncate = self._handler("on_truncate", on_truncate, self._truncate)
        self._on_ddl = self._handler("on_ddl", on_ddl, None)
        self._progress = Progress(engine)
        self._transaction = self._own_transaction if by_key else self._transaction_of_call
        self._by_key = by_key
        self._sharding_keys: dict[str, str] = {}  # by table, where the topic is ordered by table
        self._lock = Lock()
        self.statistics: dict[str, TableStatistics] = {}
        self.repeats = 0

    def __call__(self, messages: Sequence[MessageView], context: ConsumeContext) -> None:
        """Apply the changes of a call, as a listener."""
        self.apply(messages, context)

    def apply(
        self, messages: Sequence[MessageView], context: ConsumeContext
    ) -> list[tuple[MessageView, tuple[Change, ...]]]:
        """Apply the changes of a call; for listeners that do more in its transaction.

        Returns: the messages that were no repeats, with their changes.
        Raises: ChangeRefused: one of them; nothing of the call is applied, and it comes again.
        """
        applied = []
        decoded = [(message, self._changes_of(message)) for message in messages]
        with self._transaction(context) as connection:
            marks = [
                self._mark(message, context.consumer_group) if changes else None
                for message, changes in decoded
            ]
            done = self._progress.of_call(connection, filter(None, marks), self._by_key)
            batch = _Batch(self, connection)
            repeats = 0
            for (message, changes), mark in zip(decoded, marks, strict=True):
                if mark is None:
                    continue
                if not done.takes(mark):
                    repeats += 1
                    if (repeats + self.repeats).bit_count() == 1:  # 1, 2, 4, 8
                        _warn_of_repeat(message, changes, repeats + self.repeats)
                    continue
                with _place_in_errors(message):
                    for change in changes:
                        batch.add(change)
                applied.append((message, changes))
            batch.flush()
            done.save()
        self._count(batch, repeats)
        return applied

    # Messages.

    def _changes_of(self, message: MessageView) -> tuple[Change, ...]:
        with _place_in_errors(message):
            changes = require_changes(self._decode(bytes(message.body)))
            for change in changes:
                self._check_sharding(message, change)
        return changes

    def _check_sharding(self, message: MessageView, change: Change) -> None:
        if self._order is Order.KEY:
            copy = self._copy_of(change) if change.is_of_row else None
            if copy is not None and change.changes_key(copy.key_columns):
                raise ChangeRefused(
                    f"{change.name}: the key changed from {change.old_key(copy.key_columns)} to "
                    f"{change.key(copy.key_columns)} in one message. Ordered by key, changes of "
                    "the old key may be in another queue: send a delete and an insert, as "
                    "Debezium does, or order the topic by table"
                )
        elif self._order is Order.TABLE and message.sharding_key and change.table:
            key = self._sharding_keys.setdefault(change.name, message.sharding_key)
            if key != message.sharding_key:
                raise ChangeRefused(
                    f"{change.name}: messages with the sharding keys {key!r} and "
                    f"{message.sharding_key!r}; ordered by table it must be one"
                )

    def _mark(self, message: MessageView, group: str) -> Mark:
        queue = message.message_queue
        lane = (message.sharding_key or "") if self._by_key else ""
        position = Position.of_message(message)
        queue_name = QueueName(
            group, queue.topic, queue.broker_name, queue.queue_id, lane, position.source
        )
        return Mark(queue_name, message.queue_offset, message.store_timestamp_ms, position)

    # Transactions.

    @contextmanager
    def _own_transaction(self, context: ConsumeContext) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _transaction_of_call(self, context: ConsumeContext) -> Iterator[Connection]:
        yield context.transaction()

    # Tables.

    def _copy_of(self, change: Change) -> CopiedTable | None:
        for name in (change.name, change.table):
            if name in self._tables:
                return self._tables[name]
        raise ChangeRefused(
            f"{change.operation} of {change.name}: there is no copy of this table among "
            f"{sorted(self._tables)}; tables={{{change.name!r}: None}} ignores its changes"
        )

    def _truncate(self, change: Change, connection: Connection) -> None:
        copy = self._copy_of(change)
        if copy is not None:
            connection.execute(copy.table.delete())

    def _handler(self, name: str, given: str | Handler, apply: Handler | None) -> Handler:
        if callable(given):
            return given
        if given == "ignore":
            return _ignore
        if given == "apply" and apply is not None:
            if self._order is Order.KEY:
                raise ConfigError(
                    f"{name}='apply' with order='key': the table's rows are in many queues, and "
                    "some of them are older or newer. Order the topic by table, or ignore it"
                )
            return apply
        if given != "refuse":
            known = "refuse, ignore, apply" if apply is not None else "refuse, ignore"
            raise ConfigError(f"{name}={given!r}: expected {known} or a function")

        def refuse(change: Change, connection: Connection) -> None:
            raise ChangeRefused(
                f"{change.operation} of {change.name or 'the database'}"
                f"{f': {change.ddl}' if change.ddl else ''}: change the copy by hand, and pass "
                f"{name}='ignore' or a function of (change, connection)"
            )

        return refuse

    def _handle(self, change: Change, connection: Connection) -> None:
        if change.operation is Operation.TRUNCATE:
            self._on_truncate(change, connection)
        elif change.operation is Operation.DDL:
            self._on_ddl(change, connection)

    def _count(self, batch: _Batch, repeats: int) -> None:
        with self._lock:
            self.repeats += repeats
            for name, counts in batch.counts.items():
                total = self.statistics.setdefault(name, TableStatistics())
                total.upserted += counts.upserted
                total.deleted += counts.deleted
                for operation, count in counts.changes.items():
                    total.changes[operation] = total.changes.get(operation, 0) + count
                total.committed_ms = max(total.committed_ms or 0, counts.committed_ms or 0) or None


class _Batch:
    """The changes of one call, as the newest state of each row they touch."""

    def __init__(self, listener: ApplyChanges, connection: Connection) -> None:
        self._listener = listener
        self._connection = connection
        self._rows: dict[CopiedTable, dict[tuple[Any, ...], _Row]] = {}
        self.counts: dict[str, TableStatistics] = {}

    def add(self, change: Change) -> None:
        """Take over a change behind those before."""
        if not change.is_of_row:
            # Whatever came before it must be there when it is handled.
            self.flush()
            self._listener._handle(change, self._connection)
            self._note(change)
            return
        copy = self._listener._copy_of(change)
        if copy is None:
            return
        for part in change.split(copy.key_columns):
            key = copy.key_of(part)
            rows = self._rows.setdefault(copy, {})
            row = rows.get(key)
            if row is None:
                row = rows[key] = _Row(part.name)
            row.apply(part, copy)
        self._note(change)

    def flush(self) -> None:
        """Write the rows: those deleted first, then the others, by table and key.

        Unique columns besides the key are free then for the rows that take them over.
        """
        ordered = sorted(self._rows.items(), key=lambda item: item[0].table.fullname)
        self._rows = {}
        for copy, rows in ordered:
            gone = sorted(key for key, row in rows.items() if row.is_deleted)
            copy.delete(self._connection, gone)
            self._add(rows, gone, "deleted")
        for copy, rows in ordered:
            kept = sorted(key for key, row in rows.items() if not row.is_deleted)
            whole = [rows[key].values for key in kept if rows[key].is_whole]
            copy.upsert(self._connection, whole)
            for key in kept:
                if not rows[key].is_whole:
                    copy.update(self._connection, key, rows[key].values)
            self._add(rows, kept, "upserted")

    def _add(self, rows: Mapping[Any, _Row], keys: Sequence[Any], counter: str) -> None:
        for key in keys:
            counts = self.counts.setdefault(rows[key].table, TableStatistics())
            setattr(counts, counter, getattr(counts, counter) + 1)

    def _note(self, change: Change) -> None:
        counts = self.counts.setdefault(change.name, TableStatistics())
        operation = str(change.operation)
        counts.changes[operation] = counts.changes.get(operation, 0) + 1
        counts.committed_ms = max(counts.committed_ms or 0, change.committed_ms or 0) or None


class _Row:
    """The newest state of a row, as far as a batch knows it."""

    __slots__ = ("is_deleted", "is_whole", "table", "values")

    def __init__(self, table: str) -> None:
        self.table = table
        self.values: dict[str, Any] = {}
        self.is_deleted = False
        self.is_whole = False

    def apply(self, change: Change, copy: CopiedTable) -> None:
        if change.operation is Operation.DELETE:
            self.values, self.is_deleted, self.is_whole = {}, True, False
            return
        if change.unavailable and self.is_deleted:
            raise copy.missing(change.key(copy.key_columns))
        values = copy.values_of(change)
        if change.unavailable:
            # On what is there: of this batch, or of the table.
            self.values = self.values | values
        else:
            self.values, self.is_whole = values, True
        self.is_deleted = False


def _copies(
    tables: Mapping[str, Table | None] | Iterable[Table], engine: Engine
) -> dict[str, CopiedTable | None]:
    if not isinstance(tables, Mapping):
        tables = {table.name: table for table in tables}
    if not tables:
        raise ConfigError("tables: expected one at least")
    return {
        name: None if table is None else CopiedTable(table, engine)
        for name, table in tables.items()
    }


def _ignore(change: Change, connection: Connection) -> None:
    _log.info("ignored: %s of %s %s", change.operation, change.name, change.ddl or "")


@contextmanager
def _place_in_errors(message: MessageView) -> Iterator[None]:
    """Add the place of a message to errors of its changes."""
    try:
        yield
    except (ChangeRefused, DecodeError) as error:
        queue = message.message_queue
        raise type(error)(
            str(error),
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            offset=message.queue_offset,
        ) from error


def _warn_of_repeat(message: MessageView, changes: Sequence[Change], count: int) -> None:
    _log.warning(
        "dropped a change that was applied already, or is sent again behind an earlier one: %s at "
        "%s, offset %d of %s; %d so far. After a crash of a reader or a consumer that is right, "
        "and ends. If not: a failure policy moved an earlier message away, or the source was "
        "restored from a copy, and its positions went back; delete its rows from ordermq_changes",
        changes[0].name,
        Position.of_message(message),
        message.queue_offset,
        message.message_queue,
        count,
    )
