"""The check of a database that was not closed in order."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

from ordermq.errors import StoreError
from ordermq.threads import NativeEvent, start_thread, wait_for_thread

log = logging.getLogger("ordermq.broker")

_PROGRESS_S = 5.0
_INTERRUPTED_S = 5.0  # for the page that is being read
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


def integrity_rows(database: sqlite3.Connection, count: int) -> list[tuple[str]]:
    """Return what SQLite's own check finds, at most `count` things; Ctrl-C ends it.

    It is one call of C code, which may take minutes, and in which no signal handler of Python runs:
    so it runs on a thread, and the caller waits.

    Args:
        database: opened with `check_same_thread=False`.
    Raises: sqlite3.Error: of the check.
    """
    rows: list[tuple[str]] = []
    errors: list[sqlite3.Error] = []
    is_over = NativeEvent()

    def check() -> None:
        try:
            rows.extend(database.execute(f"PRAGMA integrity_check({count})"))
        except sqlite3.Error as error:
            errors.append(error)
        finally:
            is_over.set()

    thread = threading.Thread(target=check, name="ordermq-integrity", daemon=True)
    try:
        start_thread(thread)
        wait_for_thread(is_over, thread)
    except BaseException:
        database.interrupt()
        is_over.wait(_INTERRUPTED_S)  # the caller closes what the thread uses
        raise
    if errors:
        raise errors[0]
    return rows


def find_damage(path: Path) -> list[str]:
    """Return the first things that are wrong with a database; none if it is whole."""
    try:
        # Read-only: closing a connection that may write empties the WAL into the database.
        uri = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as database:
            # Not quick_check: it saves nothing here, as messages have no index, and looks less
            # closely at the small tables, which have.
            rows = integrity_rows(database, 3)
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [] if rows == [("ok",)] else [str(text).replace("\n", " ") for (text,) in rows]
