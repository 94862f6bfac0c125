"""The socket of a connection, written by the loop's transport and by threads that send."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from ordermq import forking

# MSG_NOSIGNAL: a closed connection must be an error, also in a program that dies of SIGPIPE.
_FLAGS = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)


class Outbox(Protocol):
    """Frames that threads other than the loop's write to a socket, whole and in turn."""

    def append(self, data: bytes) -> bool:
        """Add a frame, with the connection's lock held; `flush` writes it, if it is not written.

        Returns: False if nothing was done: it is closed, or there is no memory.
        Raises: OSError: the connection broke.
        """

    def flush(self) -> bool:
        """Write what waits, unless another thread is just writing: it writes this, too.

        Returns: False if the loop's thread must take a rest that the socket has no room for.
        Raises: OSError: the connection broke.
        """

    def take(self) -> bytes:
        """Return what waits, for the loop to write it; nothing is written until `append`."""

    def close(self) -> None:
        """Drop what waits; no thread uses the socket any more."""


class DirectOutbox:
    """Writes each frame where it is added; used with the connection's lock held."""

    __slots__ = ("_rest", "_socket")

    def __init__(self, shared: socket.socket) -> None:
        self._socket = shared
        self._rest = b""  # of a partly written frame: must be sent before anything else

    def append(self, data: bytes) -> bool:
        if not self._rest:
            try:
                sent = self._socket.send(data, _FLAGS)
            except BlockingIOError:
                sent = 0
            data = data[sent:]
        self._rest += data
        return True

    def flush(self) -> bool:
        return not self._rest

    def take(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest

    def close(self) -> None:
        self._rest = b""


class SharedSocket:
    """The socket of one transport; made on its loop's thread.

    A thread that will wait for its response anyway writes its request itself: waking the loop's
    thread costs more than the write. TLS connections are written by the transport only, which
    encrypts.

    Args:
        lock: held by whoever adds a frame, and by the loop's thread while it writes.
        outbox_of: makes the outbox of a duplicate of the socket.
        on_broken: called on the loop's thread with the error of a write on another one.
    """

    __slots__ = (
        "_is_open",
        "_lock",
        "_number",
        "_on_broken",
        "_outbox",
        "_outbox_of",
        "_own",
        "_transport",
        "loop",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        lock: threading.Lock,
        outbox_of: Callable[[socket.socket], Outbox],
        on_broken: Callable[[Exception], None],
    ) -> None:
        self._lock = lock
        self._transport = transport
        self._outbox_of = outbox_of
        self._on_broken = on_broken
        self.loop = asyncio.get_running_loop()
        # A duplicate of the file descriptor: the transport may close its own, and the number may
        # be reused, while another thread writes. Made with the first request of one.
        self._own: socket.socket | None = None
        self._outbox: Outbox | None = None
        described = transport.get_extra_info("socket")  # None with the transports of tests
        self._number: int = -1 if described is None else described.fileno()
        if described is not None:
            forking.keep_from_children(self._number)
        self._is_open = transport.get_extra_info("ssl_object") is None

    # On the loop's thread.

    def write(self, data: bytes) -> None:
        """Write through the transport."""
        with self._lock:
            self._write_rest()
            self._transport.write(data)

    def flush(self) -> None:
        """Pass to the transport what other threads have not written, or an exception kept one
        from writing."""
        with self._lock:
            self._write_rest()

    def close(self) -> None:
        """Refuse writes of other threads; called when the transport has ended."""
        with self._lock:
            self._is_open = False
            forking.closes(self._number)  # before the transport closes it
            if self._outbox is not None:
                self._outbox.close()
            if self._own is not None:
                forking.closes(self._own.fileno())
                self._own.close()
                self._own = None

    def _write_rest(self) -> None:
        rest = b"" if self._outbox is None else self._outbox.take()
        if rest and not self._transport.is_closing():
            self._transport.write(rest)

    # On any other thread; the first and the third with the lock held.

    @property
    def is_free(self) -> bool:
        """True if `append` may be called: open, and the transport has nothing to write."""
        return (
            self._is_open
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()
        )

    @property
    def outbox(self) -> Outbox:
        """Return the outbox that `append` adds to; after the first one."""
        assert self._outbox is not None
        return self._outbox

    def append(self, data: bytes) -> bool:
        """Add a frame, with the lock held; `send` writes it, or whoever has its outbox.

        Returns: False if nothing was done.
        Raises: OSError: the connection broke.
        """
        if self._outbox is None:
            shared = self._transport.get_extra_info("socket")
            own = self._own = socket.fromfd(shared.fileno(), shared.family, shared.type)
            forking.keep_from_children(own.fileno())
            self._outbox = self._outbox_of(own)
        return self._outbox.append(data)

    def send(self) -> None:
        """Write now what was added; the transport writes what the kernel's buffer cannot take."""
        try:
            is_written = self.outbox.flush()
        except OSError as error:
            self.failed(error)
        else:
            if not is_written:
                self.loop.call_soon_threadsafe(self.flush)

    def failed(self, error: OSError) -> None:
        """End the connection because a write has failed."""
        self.loop.call_soon_threadsafe(self._on_broken, error)
