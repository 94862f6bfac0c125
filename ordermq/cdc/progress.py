"""Progress: what of each queue, or key, and of each source is applied; kept beside the copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from ordermq import json_text
from ordermq.cdc.change import Place, Position
from ordermq.cdc.tables import INSERTS
from ordermq.errors import StoreError

_MOST_NAMES = 100  # in one statement; SQLite takes 32,766 parameters


class QueueName(NamedTuple):
    """A queue, in calls by key one of its keys, and a source; progress is kept of each."""

    consumer_group: str
    topic: str
    broker: str
    queue_id: int
    lane: str
    source: str


class Mark(NamedTuple):
    """The place of a message: in its queue, in time, in the log of its source."""

    name: QueueName
    offset: int
    stored_ms: int
    position: Position


class Applied(NamedTuple):
    """Progress of a queue, or key, and source.

    Args:
        stored_ms: the greatest store time of its messages. One that was stored later, at an offset
            before the next one, is of another life of the topic.
        place: in the source's log.
    """

    next_offset: int
    stored_ms: int
    place: Place


class Progress:
    """The table `ordermq_changes`.

    Raises: StoreError: it cannot be created.
    """

    def __init__(self, engine: Engine) -> None:
        self.table = table = Table(
            "ordermq_changes",
            MetaData(),
            Column("consumer_group", String(255), primary_key=True),
            Column("topic", String(255), primary_key=True),
            Column("broker", String(255), primary_key=True),
            Column("queue_id", Integer, primary_key=True, autoincrement=False),
            Column("lane", Text, primary_key=True),  # the sharding key; empty for the whole queue
            Column("source", Text, primary_key=True),
            Column("next_offset", BigInteger, nullable=False),
            Column("stored_ms", BigInteger, nullable=False),
            Column("position", Text, nullable=False),
        )
        name = tuple_(*(table.c[each] for each in QueueName._fields))
        # In their order, so that of two calls with the same keys one waits for the other.
        self._lock = (
            select(table)
            .where(name.in_(bindparam("names", expanding=True)))
            .order_by(*name.clauses)
            .with_for_update()
        )
        # A read locks nothing in SQLite, and does not even begin a transaction. A write does.
        self._has_row_locks = engine.dialect.name == "postgresql"
        self._reserve = INSERTS[engine.dialect.name](table).on_conflict_do_nothing()
        self._save = (
            update(table)
            .where(*(column == bindparam(f"of_{column.name}") for column in name.clauses))
            .values(
                next_offset=bindparam("offset"),
                stored_ms=bindparam("stored"),
                position=bindparam("place"),
            )
        )
        try:
            self._create(engine)
        except SQLAlchemyError as error:
            raise StoreError(f"table ordermq_changes: {error}") from error

    def of_call(self, connection: Connection, marks: Iterable[Mark], by_key: bool) -> CallProgress:
        """Read, and lock, the progress of what a call has.

        Args:
            by_key: a message below the next offset is a repeat, too: of a consumer that was
                killed, or is late.
        """
        names = sorted({name for name, *_ in marks})
        found = self._read(connection, names) if self._has_row_locks else {}
        new = [name for name in names if name not in found]
        if new:
            start = {"next_offset": 0, "stored_ms": 0, "position": "[]"}
            connection.execute(self._reserve, [name._asdict() | start for name in new])
            found |= self._read(connection, new)
        return CallProgress(self._save, connection, found, by_key)

    def _read(self, connection: Connection, names: Sequence[QueueName]) -> dict[QueueName, Applied]:
        found: dict[QueueName, Applied] = {}
        for start in range(0, len(names), _MOST_NAMES):
            some = {"names": names[start : start + _MOST_NAMES]}
            for *name, next_offset, stored_ms, position in connection.execute(self._lock, some):
                place = tuple(json_text.loads(position))
                found[QueueName(*name)] = Applied(next_offset, stored_ms, place)
        return found

    def _create(self, engine: Engine) -> None:
        try:
            self.table.create(engine, checkfirst=True)
        except SQLAlchemyError:
            # Members that start together create it together; all but one of them fail.
            self.table.create(engine, checkfirst=True)


class CallProgress:
    """The progress that one call makes."""

    def __init__(
        self,
        save: Any,
        connection: Connection,
        found: dict[QueueName, Applied],
        by_key: bool,
    ) -> None:
        self._save = save
        self._connection = connection
        self._found = found
        self._by_key = by_key
        self._moved: set[QueueName] = set()

    def takes(self, mark: Mark) -> bool:
        """Return whether a message is the next one; it counts as applied then.

        It is not if it was applied before, or if an earlier one of its queue is missing: that one
        was not stored, and the reader sends both again.
        """
        name, offset, stored_ms, position = mark
        next_offset, newest_ms, place = self._found[name]
        # A topic that was deleted and made again counts from 0, with messages stored later.
        if self._by_key and offset < next_offset and stored_ms <= newest_ms:
            return False
        if position.place and position.place <= place:
            return False
        # The one before is the queue's. A key's next message is never stored before its last.
        if not self._by_key and place and place < position.previous:
            return False
        self._found[name] = Applied(offset + 1, max(stored_ms, newest_ms), position.place or place)
        self._moved.add(name)
        return True

    def save(self) -> None:
        """Write what is new, in the call's transaction."""
        rows = []
        for name in sorted(self._moved):
            next_offset, stored_ms, place = self._found[name]
            row = {f"of_{field}": part for field, part in name._asdict().items()}
            row |= {"offset": next_offset, "stored": stored_ms}
            rows.append(row | {"place": json_text.dumps(place).decode()})
        if rows:
            self._connection.execute(self._save, rows)
