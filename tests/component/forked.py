"""Children made by fork, and what they answer."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

import pytest

from tests.component.conftest import eventually

DEADLINE_S = 30.0


class Child:
    """A forked process that runs `work` and exits: 0, or 1 with its traceback on stderr."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                work()
            except BaseException:  # noqa: BLE001 - the parent sees the status, whatever it was
                traceback.print_exc()
                os._exit(1)
            os._exit(0)

    def has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def join(self) -> None:
        """Wait for its end; it must be a good one."""
        try:
            eventually(self.has_ended, f"child {self.pid} ends", DEADLINE_S)
        except BaseException:
            self.kill()
            raise
        if self._status:
            pytest.fail(f"child {self.pid} ended with status {self._status}")

    def kill(self) -> None:
        if not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)
            _, self._status = os.waitpid(self.pid, 0)


def in_child(work: Callable[[], object]) -> None:
    """Run `work` in a forked child; fail if it raises or does not end."""
    Child(work).join()
