"""A socket that its transport writes, and also other threads while the transport is idle."""

from __future__ import annotations

import asyncio
import socket
import threading

# MSG_NOSIGNAL: a closed connection must be an error, also in a program that dies of SIGPIPE.
_FLAGS = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)


class SharedSocket:
    """The socket of one transport; made on its loop's thread.

    A thread that will wait for its response anyway writes its request itself: waking the loop's
    thread costs more than the write. TLS connections are written by the transport only, which
    encrypts.

    Args:
        lock: held by every writer, so that frames do not mix.
    """

    __slots__ = ("_is_open", "_lock", "_own", "_rest", "_transport", "loop")

    def __init__(self, transport: asyncio.Transport, lock: threading.Lock) -> None:
        self._lock = lock
        self._transport = transport
        self.loop = asyncio.get_running_loop()
        # A duplicate of the file descriptor: the transport may close its own, and the number may
        # be reused, while another thread writes.
        self._own: socket.socket | None = None
        self._rest = b""  # of a partly written frame: must be sent before anything else
        self._is_open = transport.get_extra_info("ssl_object") is None

    # On the loop's thread.

    def write(self, data: bytes) -> None:
        """Write through the transport."""
        with self._lock:
            self._write_rest()
            self._transport.write(data)

    def flush(self) -> None:
        """Pass the rest of a partly written frame to the transport."""
        with self._lock:
            self._write_rest()

    def close(self) -> None:
        """Refuse writes of other threads; called when the transport has ended."""
        with self._lock:
            self._is_open = False
            if self._own is not None:
                self._own.close()
                self._own = None

    # On any other thread, with the lock held.

    @property
    def is_free(self) -> bool:
        """True if `send` may be called: open, and the transport has nothing to write."""
        return (
            self._is_open
            and not self._rest
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()
        )

    def send(self, data: bytes) -> None:
        """Write now; the transport writes what the kernel's buffer cannot take.

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
