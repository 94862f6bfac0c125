"""Files that only their owner may read and write: databases, histories, locks, offsets."""

from __future__ import annotations

import logging
import os
import stat

log = logging.getLogger("ordermq")

_PRIVATE = 0o600


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file for its owner alone, creating it if need be; an `opener` for `open`, too.

    A file that others may read is closed to them, with a log line.

    Raises: OSError: it cannot be opened.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
    _make_private(descriptor, path)
    return descriptor


def make_private(path: str | os.PathLike[str]) -> None:
    """Close an existing file to others than its owner; do nothing if there is none.

    Raises: OSError: it cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _make_private(descriptor, path)
    finally:
        os.close(descriptor)


def _make_private(descriptor: int, path: str | os.PathLike[str]) -> None:
    found = os.fstat(descriptor)
    # Only ordinary files: the path of a history may be /dev/null, which belongs to everybody. A
    # umask can also have taken the owner's own rights.
    if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) == _PRIVATE:
        return
    mode = stat.S_IMODE(found.st_mode)
    try:
        os.fchmod(descriptor, _PRIVATE)
    except OSError as error:
        log.warning("file is not private: path=%s mode=%04o reason=%s", path, mode, error.strerror)
        return
    if mode & 0o077:
        log.warning("file made private: path=%s mode_before=%04o", path, mode)
