"""ThreadExecution: a local transaction on a thread, which outlives the call that waits for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ordermq.threads import Lock


class ThreadExecution:
    """A plain `execute` on a thread of an event loop.

    A call that is cancelled waits no longer, but nothing ends the thread. Until it is done, nobody
    may be told what became of the transaction: its `check` looks for what is not there yet.

    Args:
        execute: runs the local transaction.
        on_left_end: called with the end of one whose caller has left, on its thread: a function
            that returns or raises what `execute` did.
    """

    def __init__(
        self, execute: Callable[[], Any], on_left_end: Callable[[Callable[[], Any]], None]
    ) -> None:
        self._execute = execute
        self._on_left_end = on_left_end
        self._lock = Lock()
        self._has_begun = self._has_ended = self._is_left = False

    def run(self) -> Any:
        """Run the local transaction, unless its caller has left; on its thread."""
        with self._lock:
            if self._is_left:
                return None
            self._has_begun = True
        error, answer = None, None
        try:
            answer = self._execute()
        except BaseException as raised:  # noqa: BLE001 - the user's; raised again
            error = raised
        with self._lock:
            self._has_ended, is_left = True, self._is_left

        def end() -> Any:
            if error is not None:
                raise error
            if is_left and inspect.iscoroutine(answer):
                answer.close()  # it was to be awaited on the caller's loop: nothing was executed
                return None
            return answer

        if is_left:
            self._on_left_end(end)
            return None
        return end()

    def leave(self) -> bool:
        """Wait for it no longer; True if it still runs, and `on_left_end` will be called."""
        with self._lock:
            self._is_left = True
            return self._has_begun and not self._has_ended
