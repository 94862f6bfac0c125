"""Back-ups of a broker's database while it serves, and their restoring."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from ordermq.broker.store.integrity import find_damage
from ordermq.broker.store.store import FORMAT, database_path, lock_database, restored_path
from ordermq.errors import StoreError
from ordermq.private_files import open_private

Progress = Callable[[int, int], None]  # pages done, and of how many
_PAGES_AT_ONCE = 1_024  # 4 MiB between two reports of progress
_BESIDES = ("", "-wal", "-shm")


def back_up(source: Path, target: Path, progress: Progress) -> None:
    """Copy the database of a running or stopped broker to one file, as it is at one moment.

    The broker goes on; what it writes meanwhile is not in the copy.

    Args:
        source: the database, or the folder of it.
        target: a new file.
    Raises: StoreError: there is no such database, or the target exists or cannot be written.
    """
    path = database_path(source)
    if not path.exists():
        raise StoreError(f"{path}: no database of a broker is there")
    if target.exists():
        raise StoreError(f"{target} exists: give a new file for the back-up")
    _copy(path, target, progress, _mark_as_back_up)


def restore(backup: Path, target: Path, progress: Progress) -> Path | None:
    """Put a back-up in the place of a stopped broker's database.

    Args:
        target: the database, or the folder of it.
    Returns: where the files that were there are now; None if there were none.
    Raises: StoreError: the file is no whole back-up, or a broker runs on the target.
    """
    path = database_path(target)
    if not backup.exists():
        raise StoreError(f"{backup}: there is no such file")
    if problems := find_damage(backup):
        raise StoreError(f"{backup} is no back-up, or damaged ({'; '.join(problems)})")
    lock = lock_database(path)
    fresh = restored_path(path)
    try:
        _copy(backup, fresh, progress, _check_mark)
        # From here to the last rename there is no database: a broker refuses to start meanwhile, by
        # the copy that waits.
        before = _move_away(path)
        os.replace(fresh, path)
        _sync_folder(path)
    finally:
        if path.exists():
            fresh.unlink(missing_ok=True)
        os.close(lock)
    return before


def _copy(
    source: Path, target: Path, progress: Progress, finish: Callable[[sqlite3.Connection], None]
) -> None:
    # Under another name until it is whole: nobody must take half of a copy for a back-up.
    partial = target.with_name(f"{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.close(open_private(partial, os.O_RDWR))
        # Read-only: a connection that may write would, as the last one to close after a crash of
        # the broker, empty the WAL, which is the sign of the crash.
        with (
            closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as reader,
            closing(sqlite3.connect(partial, isolation_level=None)) as copy,
        ):
            found = reader.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
            if found != (FORMAT,):
                raise StoreError(f"{source} is not a database of this version of ordermq")
            # One transaction: without it SQLite begins again whenever the broker writes.
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM meta").fetchone()
            reader.backup(
                copy,
                pages=_PAGES_AT_ONCE,
                progress=lambda _, left, total: progress(total - left, total),
            )
            # A single file from here on.
            copy.execute("PRAGMA journal_mode = DELETE")
            finish(copy)
        if problems := find_damage(partial):
            raise StoreError(f"the copy of {source} is damaged: {'; '.join(problems)}")
        with open(partial, "rb") as written:
            os.fsync(written.fileno())
        os.replace(partial, target)
        _sync_folder(target)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(
            f"{source} could not be copied to {target} ({error}): free space on that disk, or "
            "check the permissions of its folder"
        ) from error
    finally:
        for suffix in ("", "-journal"):  # SQLite leaves the second on a full disk
            Path(f"{partial}{suffix}").unlink(missing_ok=True)


def _mark_as_back_up(copy: sqlite3.Connection) -> None:
    # Whoever opens a database with this mark knows that clients have seen later epochs; also if
    # the file was put there without `restore`.
    copy.execute(
        "INSERT OR REPLACE INTO meta VALUES ('backup_ms', ?)", (time.time_ns() // 1_000_000,)
    )


def _check_mark(copy: sqlite3.Connection) -> None:
    if copy.execute("SELECT 1 FROM meta WHERE name = 'backup_ms'").fetchone() is None:
        # Someone's copy of the file: what is true of back-ups is true of it.
        _mark_as_back_up(copy)


def _move_away(path: Path) -> Path | None:
    """Rename a database, so that nothing that may still be of use is deleted."""
    before = path.with_name(f"{path.name}.before-{time.time_ns() // 1_000_000}")
    # All three: a WAL that stayed would be applied to the restored database, also one that stayed
    # because an earlier restore was killed between these renames.
    found = [suffix for suffix in _BESIDES if Path(f"{path}{suffix}").exists()]
    for suffix in found:
        os.replace(f"{path}{suffix}", f"{before}{suffix}")
    return before if found else None


def _sync_folder(path: Path) -> None:
    # A rename is durable only when its folder is.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
