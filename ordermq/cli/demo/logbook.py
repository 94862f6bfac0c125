"""The aircraft logs, and the SQLite file that the consumers share.

A log is a fold over the aircraft's events, so it is wrong as soon as one event is missing,
duplicated or out of order: `digest` detects any of these, the other figures show its effect.

Two allowed events are recognized. If a consumer is killed before it commits, its batch is
redelivered: those offsets are below the queue's next one. If the broker is killed before it
replies, the producer sends the message again, so it is stored twice, the copy later: its number
within the aircraft was already applied.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

DIGEST_FACTOR = 31_337
DIGEST_PRIME = 2_147_483_647
DIVERTED_MIN = 60  # delay a diversion adds
NOWHERE = "?"  # after a diversion: the data do not say where it landed


@dataclass(slots=True)
class AircraftLog:
    """The state of one aircraft after its last event; times in minutes."""

    key: str
    events: int = 0
    legs: int = 0
    cancelled: int = 0
    diverted: int = 0
    place: str = ""  # where it is
    base: str = ""  # the New York airport it left last
    moves: int = 0  # how often it left from another one than before
    landed: int | None = None  # when
    turns: int = 0  # landings followed by a departure
    ground: int = 0  # minutes between them, the way back to New York included
    shortest: int = 0
    carried: int = 0  # delay carried from leg to leg: half of it stays
    worst: int = 0
    miles: int = 0
    digest: int = 0

    def apply(self, event: Mapping[str, Any]) -> None:
        """Apply the next event of this aircraft."""
        self.events += 1
        self.digest = (self.digest * DIGEST_FACTOR + event["row"] + 1) % DIGEST_PRIME
        if event["cancelled"]:
            self.cancelled += 1
            self.carried //= 2
            return
        if self.base not in ("", event["origin"]):
            self.moves += 1
        self.base = event["origin"]
        if self.landed is not None:
            turn = event["departs"] - self.landed
            self.shortest = turn if self.turns == 0 else min(self.shortest, turn)
            self.turns += 1
            self.ground += turn
        self.miles += event["miles"]
        if event["arr_delay"] is None:
            self.diverted += 1
            self.place = NOWHERE
            self.landed = None
            self.carried = self.carried // 2 + DIVERTED_MIN
        else:
            self.legs += 1
            self.place = event["dest"]
            self.landed = event["departs"] + event["air_time"]
            self.carried = max(0, self.carried // 2 + event["arr_delay"])
        self.worst = max(self.worst, self.carried)


COLUMNS = tuple(column.name for column in fields(AircraftLog))
_MARKS = ", ".join("?" * len(COLUMNS))

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS logs (
    {", ".join(COLUMNS)}, PRIMARY KEY (key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS queues (
    queue TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    redelivered INTEGER NOT NULL DEFAULT 0,
    resent INTEGER NOT NULL DEFAULT 0,
    refused INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
"""


class StaleOwner(Exception):
    """A newer owner of the queue has already written; this batch must not be."""


class Logbook:
    """The SQLite file of all members; every write is conditional on the fence token.

    Args:
        path: the file; created.
    """

    def __init__(self, path: Path) -> None:
        self._mutex = threading.Lock()  # one connection, a listener thread for each queue
        self._db = sqlite3.connect(
            path, timeout=30.0, isolation_level=None, check_same_thread=False
        )
        self._db.execute("PRAGMA journal_mode = WAL")
        # Without fsync a killed process loses nothing; only a power cut would lose commits.
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.executescript(_SCHEMA)

    def apply(
        self, queue: str, epoch: int, batch: Iterable[tuple[int, str, Mapping[str, Any]]]
    ) -> int:
        """Add a batch to the logs and advance the queue, in one transaction.

        Args:
            batch: (offset, key, event), offsets ascending.
        Returns: number of new events.
        Raises: StaleOwner: an owner with a newer epoch has already written.
        """
        with self._mutex:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                applied = self._apply(queue, epoch, batch)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        return applied

    def _apply(
        self, queue: str, epoch: int, batch: Iterable[tuple[int, str, Mapping[str, Any]]]
    ) -> int:
        # Read inside the transaction: the check of the epoch and the write are one step.
        known = self._db.execute(
            "SELECT epoch, next_offset FROM queues WHERE queue = ?", (queue,)
        ).fetchone()
        newest, next_offset = known or (epoch, 0)
        if epoch < newest:
            raise StaleOwner(f"{queue}: epoch {epoch}, but {newest} wrote already")
        logs: dict[str, AircraftLog] = {}
        applied = redelivered = resent = 0
        for offset, key, event in batch:
            if offset < next_offset:
                redelivered += 1  # its previous owner wrote it, but could not commit
                continue
            next_offset = offset + 1
            log = logs.get(key) or logs.setdefault(key, self.read(key))
            if event["nth"] < log.events:
                resent += 1
                continue
            log.apply(event)
            applied += 1
        self._db.executemany(
            f"INSERT OR REPLACE INTO logs VALUES ({_MARKS})", map(astuple, logs.values())
        )
        self._db.execute(
            "INSERT INTO queues VALUES (?, ?, ?, ?, ?, 0) ON CONFLICT (queue) DO UPDATE SET "
            "epoch = excluded.epoch, next_offset = excluded.next_offset, "
            "redelivered = redelivered + excluded.redelivered, resent = resent + excluded.resent",
            (queue, epoch, next_offset, redelivered, resent),
        )
        return applied

    def refused(self, queue: str) -> None:
        """Count a batch that was refused with `StaleOwner`."""
        with self._mutex:
            self._db.execute("UPDATE queues SET refused = refused + 1 WHERE queue = ?", (queue,))

    def read(self, key: str) -> AircraftLog:
        """Return the log of one aircraft; empty if it has no event yet."""
        row = self._db.execute("SELECT * FROM logs WHERE key = ?", (key,)).fetchone()
        return AircraftLog(key) if row is None else AircraftLog(*row)

    def logs(self) -> list[AircraftLog]:
        """Return every log, sorted by key."""
        return [AircraftLog(*row) for row in self._db.execute("SELECT * FROM logs ORDER BY key")]

    def totals(self) -> dict[str, int]:
        """Return the counts of events written, messages read, redelivered, resent, refused."""
        events = self._db.execute("SELECT coalesce(sum(events), 0) FROM logs").fetchone()[0]
        counts = self._db.execute(
            "SELECT coalesce(sum(next_offset), 0), coalesce(sum(redelivered), 0), "
            "coalesce(sum(resent), 0), coalesce(sum(refused), 0) FROM queues"
        ).fetchone()
        names = "events", "read", "redelivered", "resent", "refused"
        return dict(zip(names, (events, *counts), strict=True))

    def close(self) -> None:
        self._db.close()
