"""A socket its transport writes, and other threads while that has nothing to write."""

from __future__ import annotations

import asyncio
import socket
import threading

# A peer that is gone is an error to return, also where the program takes SIGPIPE as its end.
_FLAGS = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)


class SharedSocket:
    """The socket of one transport; made on its loop's thread.

    A thread that waits for its answer anyway writes its request itself: to wake the loop's thread
    for that costs more than the write. TLS is the transport's alone.

    Args:
        lock: held by other threads while they write.
    """

    __slots__ = ("_is_open", "_lock", "_own", "_rest", "_transport", "loop")

    def __init__(self, transport: asyncio.Transport, lock: threading.Lock) -> None:
        self._lock = lock
        self._transport = transport
        self.loop = asyncio.get_running_loop()
        self._own: socket.socket | None = None  # a second handle: nobody else closes it
        self._rest = b""  # of a frame that was not taken whole: before anything else
        self._is_open = transport.get_extra_info("ssl_object") is None

    # On the loop's thread.

    def write(self, data: bytes) -> None:
        """Write soon, through the transport."""
        with self._lock:
            self._write_rest()
            self._transport.write(data)

    def flush(self) -> None:
        """Hand the transport what another thread could not write whole."""
        with self._lock:
            self._write_rest()

    def close(self) -> None:
        """Let no other thread write any more; when the transport has ended."""
        with self._lock:
            self._is_open = False
            if self._own is not None:
                self._own.close()
                self._own = None

    # On any other thread, with the lock held.

    @property
    def is_free(self) -> bool:
        """Whether `send` may be called: it is open, and nothing waits to be written."""
        return (
            self._is_open
            and not self._rest
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()
        )

    def send(self, data: bytes) -> None:
        """Write now; what the peer does not take at once, the transport writes.

        Raises: OSError: the connection broke.
        """
        own = self._own
        if own is None:
            shared = self._transport.get_extra_info("socket")
            own = self._own = socket.fromfd(shared.fileno(), shared.family, shared.type)
        try:
            sent = own.send(data, _FLAGS)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._rest = data[sent:]
            self.loop.call_soon_threadsafe(self.flush)

    def _write_rest(self) -> None:
        if self._rest and not self._transport.is_closing():
            self._transport.write(self._rest)
            self._rest = b""
