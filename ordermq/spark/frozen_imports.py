"""Imports that the garbage collections of Spark's processes leave out."""

from __future__ import annotations

import gc
import os
import sys

_frozen: tuple[int, int] | None = None  # the process, and its number of modules then


def freeze_imports() -> None:
    """Leave what this process has imported so far out of later garbage collections.

    PySpark collects all garbage after each task, and after each step of a plan or a commit, which
    has a process of its own. That costs 20 to 35 ms of CPU time with PySpark, pyarrow and this
    package imported: more than a task's own work where it has few rows.
    """
    global _frozen
    # A forked process has what its parent has frozen. Frozen anew after imports only, because
    # garbage that waits for its collection is kept, too.
    now = os.getpid(), len(sys.modules)
    if _frozen != now:
        _frozen = now
        gc.freeze()
