"""An event by which a thread is woken, that it can wait for together with a socket."""

from __future__ import annotations

import os
import sys
import threading

from ordermq.remoting.connecting import taking_descriptors

_ONE = (1).to_bytes(8, sys.byteorder)  # an eventfd counts in eight-byte numbers


class ThreadEvent:
    """An event that one thread waits for and any thread sets; each thread has its own.

    It writes to an eventfd (a pipe outside Linux) because that releases the GIL. Releasing a
    lock does not: the woken thread asks for the GIL before it is free and sleeps again, which
    cost two more thread switches per send.
    """

    __slots__ = ("_reader", "_writer")

    def __init__(self) -> None:
        """Raises: ConnectFailed: no descriptor is left for it."""
        self._reader = self._writer = -1
        with taking_descriptors("cannot wait for an answer"):
            if sys.platform == "linux":
                self._reader = self._writer = os.eventfd(0)
            else:
                self._reader, self._writer = os.pipe()
                os.set_blocking(self._writer, False)

    def __del__(self) -> None:
        for end in {self._reader, self._writer} - {-1}:
            os.close(end)

    @classmethod
    def of_thread(cls) -> ThreadEvent:
        """Return the calling thread's event; it lives as long as the thread."""
        try:
            return _own.event
        except AttributeError:
            _own.event = cls()
            return _own.event

    @property
    def number(self) -> int:
        """The file descriptor that can be read once it is set."""
        return self._reader

    def set(self) -> None:
        """Let the current wait return, or the next one; from any thread."""
        try:  # noqa: SIM105 - `suppress` takes a microsecond of every send
            os.write(self._writer, _ONE)
        except BlockingIOError:
            pass  # the pipe is full: what it holds wakes the reader as well

    def wait(self) -> None:
        """Return once set; the caller checks its condition again.

        A caller that was interrupted, for example by a signal, leaves its event set for the
        next wait.
        """
        os.read(self._reader, 512)  # releases the GIL; a pipe may hold many bytes


class _Own(threading.local):
    event: ThreadEvent


_own = _Own()


def _forget() -> None:
    global _own
    _own = _Own()


os.register_at_fork(after_in_child=_forget)  # else parent and child would wake each other
