"""How the I/O thread wakes a thread that waits for its messages."""

from __future__ import annotations

import os
import sys
import threading

_RING = (1).to_bytes(8, sys.byteorder)


class Bell:
    """One thread waits, any other rings; each thread has its own, for as long as it lives.

    The interpreter is given up while it rings. The release of a lock keeps it: who is woken by
    that wants the interpreter before it is free and sleeps again, two switches more a send.
    """

    __slots__ = ("_listens", "_rings")

    def __init__(self) -> None:
        if sys.platform == "linux":
            self._listens = self._rings = os.eventfd(0)
        else:
            self._listens, self._rings = os.pipe()
            os.set_blocking(self._rings, False)

    def __del__(self) -> None:
        for end in {self._listens, self._rings}:
            os.close(end)

    @classmethod
    def of_thread(cls) -> Bell:
        """The calling thread's."""
        try:
            return _own.bell
        except AttributeError:
            _own.bell = cls()
            return _own.bell

    def ring(self) -> None:
        """Let the thread's wait return, or its next; from any thread."""
        try:  # noqa: SIM105 - `suppress` takes a microsecond of every send
            os.write(self._rings, _RING)
        except BlockingIOError:
            pass  # full: what is there wakes as well

    def wait(self) -> None:
        """Return once rung; look whether it was for what is awaited.

        A caller that was interrupted, as by a signal, leaves its ring to the next wait.
        """
        os.read(self._listens, 512)


class _Own(threading.local):
    bell: Bell


_own = _Own()


def _forget() -> None:
    global _own
    _own = _Own()


os.register_at_fork(after_in_child=_forget)  # else parent and child would wake each other
