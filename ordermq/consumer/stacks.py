"""What threads and coroutines are at, for whoever asks why nothing moves."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any


def of_all_threads() -> str:
    """Every thread of this process, as jstack tells it of Java's."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def of_thread(ident: int) -> str:
    """One thread, outermost call first; empty if it has ended."""
    frame = sys._current_frames().get(ident)
    return "" if frame is None else "".join(traceback.format_stack(frame))


def of_tasks(loop: asyncio.AbstractEventLoop, name: str) -> str:
    """The tasks of a loop that have this name, outermost coroutine first; from any thread."""
    named = [task for task in asyncio.all_tasks(loop) if task.get_name() == name]
    return "\n".join("".join(_lines_of(task.get_coro())) for task in named)


def _lines_of(coroutine: Any) -> Iterator[str]:
    while coroutine is not None:
        frame: FrameType | None = getattr(coroutine, "cr_frame", None)
        if frame is not None:
            yield from traceback.format_stack(frame, limit=1)
        coroutine = getattr(coroutine, "cr_await", None)
