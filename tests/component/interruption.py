"""An exception at a chosen line, as a signal may raise one anywhere."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import ordermq

HOUSE = str(Path(ordermq.__file__).parent)


class InterruptedAt:
    """Raises `error` in this thread, before the `at`-th line of ours that runs in the block.

    Args: again: raise it once more, this many lines later; 0 for once.
    """

    def __init__(self, at: int, again: int = 0, error: type[BaseException] = KeyboardInterrupt):
        self._at = {at, at + again}
        self._error = error
        self._lines = 0
        self.raised = 0

    def __enter__(self) -> InterruptedAt:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(HOUSE):
            return None
        # Python handles signals at calls and jumps only. So not at a `with`, whose line comes again
        # between its block and `__exit__`, nor between the assignment and the `os.close` behind it.
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not source.startswith(("with ", "os.close(")):
            self._lines += 1
            if self._lines in self._at:
                self.raised += 1
                raise self._error
        return self._trace
