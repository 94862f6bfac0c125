"""The SQLite file that the consumers share: the aircraft logs, beside the offsets of their queues.

A call's logs and the next offset of its queue are in one transaction (docs/exactly-once.md), so
what a killed consumer had written is not given to the next owner, and what it had not is not there.

One allowed event remains. If the broker is killed before it replies, the producer sends the message
again, so it is stored twice, the copy later: its number within the aircraft was already applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    func,
    insert,
    select,
)

from ordermq.cli.demo.aircraft_log import AircraftLog
from ordermq.model.message_queue import MessageQueue
from ordermq.sql import SqlOffsetStore

_TEXTS = "key", "place", "base"
_COLUMNS = tuple(column.name for column in fields(AircraftLog))
_METADATA = MetaData()
_LOGS = Table(
    "logs",
    _METADATA,
    *(
        Column(name, String if name in _TEXTS else Integer, primary_key=name == "key")
        for name in _COLUMNS
    ),
    sqlite_with_rowid=False,
)
# Copies of a message that the producer sent again. The primary key refuses to count one twice.
_COPIES = Table(
    "copies",
    _METADATA,
    Column("queue", String, primary_key=True),
    Column("at", Integer, primary_key=True, autoincrement=False),
)
_REFUSALS = Table("refusals", _METADATA, Column("queue", String, nullable=False))
_WRITE = insert(_LOGS).prefix_with("OR REPLACE")


class Logbook:
    """The file of all members.

    Args:
        path: the file; created.
    Attributes:
        store: the offsets of the queues, for `offset_store=`.
    Raises: StoreError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        # A transaction locks the file, and the others wait for it.
        self._engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 30.0})
        event.listen(self._engine, "connect", _set_up)
        _METADATA.create_all(self._engine)
        self.store = SqlOffsetStore(self._engine)
        self.store.open()

    def apply(
        self,
        connection: Connection,
        queue: MessageQueue,
        batch: Sequence[tuple[int, str, Mapping[str, Any]]],
    ) -> int:
        """Add a batch to the logs, in the transaction of its call.

        Args:
            batch: (offset, key, event), offsets ascending.
        Returns: number of new events.
        """
        # All at once: a statement costs more than the few rows it brings.
        keys = {key for _, key, _ in batch}
        found = connection.execute(select(_LOGS).where(_LOGS.c.key.in_(keys)))
        logs = {row.key: AircraftLog(*row) for row in found}
        copies = []
        for offset, key, flight in batch:
            log = logs.get(key) or logs.setdefault(key, AircraftLog(key))
            if flight["nth"] < log.events:
                copies.append({"queue": str(queue), "at": offset})
            else:
                log.apply(flight)
        connection.execute(
            _WRITE, [{name: getattr(log, name) for name in _COLUMNS} for log in logs.values()]
        )
        if copies:
            connection.execute(insert(_COPIES), copies)
        return len(batch) - len(copies)

    def refused(self, queue: MessageQueue) -> None:
        """Count a call that was refused because a newer owner had taken the queue over."""
        with self._engine.begin() as connection:
            connection.execute(insert(_REFUSALS), {"queue": str(queue)})

    def logs(self) -> list[AircraftLog]:
        """Return every log, sorted by key."""
        with self._engine.connect() as connection:
            return [
                AircraftLog(*row) for row in connection.execute(select(_LOGS).order_by(_LOGS.c.key))
            ]

    def totals(self) -> dict[str, int]:
        """Return the counts of events written, messages read, resent, and calls refused."""
        counts = {
            "events": func.coalesce(func.sum(_LOGS.c.events), 0),
            "read": func.coalesce(func.sum(self.store.table.c.next_offset), 0),
            "resent": func.count(_COPIES.c.at),
            "refused": func.count(_REFUSALS.c.queue),
        }
        with self._engine.connect() as connection:
            return {name: connection.scalar(select(count)) or 0 for name, count in counts.items()}

    def close(self) -> None:
        self._engine.dispose()


def _set_up(connection: Any, record: object) -> None:
    # WAL, so that the demo may look at the logs while they are written.
    connection.execute("PRAGMA journal_mode = WAL")
    # Without fsync a killed process loses nothing; only a power cut would lose commits.
    connection.execute("PRAGMA synchronous = OFF")
