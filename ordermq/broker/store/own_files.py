"""OwnFiles: whether the paths of an open database still lead to it."""

from __future__ import annotations

import os
from pathlib import Path

from ordermq.errors import StoreError


class OwnFiles:
    """The database, its log of writes and its lock file, as they are now.

    SQLite goes on writing files that were deleted or replaced, without any error: what it stores
    there is gone when they are closed. And behind another lock file a second broker may write.
    """

    def __init__(self, path: Path) -> None:
        paths = [path, Path(f"{path}-wal"), Path(f"{path}.lock")]
        self._found = [(each, _identity(each)) for each in paths if each.exists()]

    def require_same(self) -> None:
        """Check that each path leads to the same file.

        Raises: StoreError: one was removed or replaced.
        """
        for path, was in self._found:
            try:
                is_same = _identity(path) == was
            except OSError as error:
                raise StoreError(f"{path.name} was removed ({error.strerror}); {_REMEDY}") from None
            if not is_same:
                raise StoreError(f"{path.name} was replaced by another file; {_REMEDY}")


_REMEDY = (
    "what is written now would be lost: put the broker's files back, or stop the broker and "
    "restore a back-up"
)


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
