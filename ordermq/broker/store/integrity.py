"""The check of a database that was not closed in order."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

from ordermq.errors import StoreError

log = logging.getLogger("ordermq.broker")

_PROGRESS_S = 5.0
AFTER_DAMAGE = (
    "see what is wrong with `ordermq broker check`, then restore a back-up with `ordermq broker "
    "restore`, or move the file away and start empty"
)


def is_closed(path: Path) -> bool:
    """Return True if the last user of a database closed it; False after a crash."""
    # SQLite's own mark: the last connection to close empties this file into the database and
    # deletes it. A mark of ours would be one more write that a power cut can take back.
    wal = Path(f"{path}-wal")
    return not wal.exists() or wal.stat().st_size == 0


def check_integrity(path: Path) -> None:
    """Read the whole database, and log how far that is.

    Raises: StoreError: it is damaged.
    """
    size = path.stat().st_size
    log.warning("checking database, it was not closed: path=%s bytes=%d", path, size)
    is_over = threading.Event()
    started = time.monotonic()

    def tell_progress() -> None:
        # SQLite says nothing until it is done.
        while not is_over.wait(_PROGRESS_S):
            log.warning(
                "still checking database: path=%s bytes=%d seconds=%.0f",
                path, size, time.monotonic() - started,
            )  # fmt: skip

    teller = threading.Thread(target=tell_progress, name="ordermq-check", daemon=True)
    teller.start()
    try:
        problems = find_damage(path)
    finally:
        is_over.set()
        teller.join()
    if problems:
        raise StoreError(f"{path} is damaged ({'; '.join(problems)}): {AFTER_DAMAGE}")
    log.warning("database is whole: path=%s seconds=%.1f", path, time.monotonic() - started)


def find_damage(path: Path) -> list[str]:
    """Return the first things that are wrong with a database; none if it is whole."""
    try:
        # Read-only: closing a connection that may write empties the WAL into the database.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            # Not quick_check: it saves nothing here, as messages have no index, and looks less
            # closely at the small tables, which have.
            rows = database.execute("PRAGMA integrity_check(3)").fetchall()
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [] if rows == [("ok",)] else [str(text).replace("\n", " ") for (text,) in rows]
