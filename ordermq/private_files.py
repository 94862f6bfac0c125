"""Files that only their owner may read and write: databases, histories, locks, offsets."""

from __future__ import annotations

import errno
import logging
import os
import stat

from ordermq.standard_descriptors import fill_standard_descriptors

log = logging.getLogger("ordermq")

_PRIVATE = 0o600


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file for its owner alone, creating it if need be; an `opener` for `open`, too.

    A file that others may read is closed to them, with a log line.

    Raises: OSError: it cannot be opened, or is a symbolic link.
    """
    flags &= ~os.O_CREAT
    while True:
        # Either made here, or there before: who may write in the folder could otherwise have put a
        # link there in between, and have us write to a file of our own elsewhere.
        try:
            descriptor = _open(path, flags | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            try:
                descriptor = _open(path, flags)
            except FileNotFoundError:
                continue  # it was removed in this moment
        _make_private(descriptor, path)
        return descriptor


def open_existing(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file that `open_private` has made; an `opener` for `open`, too.

    Raises: OSError: it cannot be opened, or is a symbolic link.
    """
    return _open(path, flags & ~os.O_CREAT)


def make_private(path: str | os.PathLike[str]) -> None:
    """Close an existing file to others than its owner; do nothing if there is none.

    Raises: OSError: it cannot be opened, or is a symbolic link.
    """
    try:
        descriptor = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        _make_private(descriptor, path)
    finally:
        os.close(descriptor)


def _open(path: str | os.PathLike[str], flags: int) -> int:
    fill_standard_descriptors()
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        reason = "a symbolic link is not followed: remove it, or give the file that it leads to"
        raise OSError(errno.ELOOP, reason, os.fspath(path)) from None


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
