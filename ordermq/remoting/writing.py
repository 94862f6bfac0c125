"""The socket of a connection, written by the loop's transport and by threads that send."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Protocol

from ordermq import forking
from ordermq.remoting.tls import TlsSession
from ordermq.threads import Lock

# MSG_NOSIGNAL: a closed connection must be an error, also in a program that dies of SIGPIPE.
_FLAGS = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)


# How long the loop's thread waits for the lock of a connection. A thread that holds it may need the
# interpreter lock first, or be suspended by a signal handler that runs on top of it.
LOCK_S = 0.005


class Asked(Protocol):
    """A request, as an outbox sees it."""

    is_asked: bool


class Outbox(Protocol):
    """Frames that threads other than the loop's write to a socket, whole and in turn."""

    def append(self, data: bytes, request: Asked) -> bool:
        """Add a frame, with the connection's lock held; `flush` writes it, if it is not written.

        Sets `request.is_asked` in the same step, so that an exception in the caller cannot come
        between the two.

        Returns: False if nothing was done: it is closed, or there is no memory.
        Raises: OSError: the connection broke.
        """

    def append_sealed(self, data: bytes, request: Asked, tls: TlsSession) -> bool:
        """As `append`, of a frame's records, behind what the session answers by itself.

        Returns: False: the records are lost, and the peer would miss them.
        Raises: ssl.SSLError: the session is broken.
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

    __slots__ = ("_is_torn", "_rest", "_socket")

    def __init__(self, shared: socket.socket) -> None:
        self._socket = shared
        self._rest = b""  # of a partly written frame: must be sent before anything else
        self._is_torn = False  # an exception came between a write and its result

    def append(self, data: bytes, request: Asked) -> bool:
        request.is_asked = True
        if not self._rest:
            self._is_torn = True
            try:
                sent = self._socket.send(data, _FLAGS)
            except BlockingIOError:
                sent = 0
            self._is_torn = False
            data = data[sent:]
        self._rest += data
        return True

    def append_sealed(self, data: bytes, request: Asked, tls: TlsSession) -> bool:
        return self.append(tls.encipher(data), request)

    def flush(self) -> bool:
        if self._is_torn:
            raise _interrupted()
        return not self._rest

    def take(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest

    def close(self) -> None:
        self._rest = b""


def _interrupted() -> OSError:
    return ConnectionAbortedError(errno.ECONNABORTED, "a write was interrupted")


class SharedSocket:
    """The socket of one transport; made on its loop's thread.

    A thread that will wait for its response anyway writes its request itself: waking the loop's
    thread costs more than the write. With TLS it enciphers it, too: with the lock held, for records
    must leave in the order in which they were enciphered.

    Args:
        lock: held by whoever adds a frame, and by the loop's thread while it writes.
        outbox_of: makes the outbox of a duplicate of the socket.
        on_broken: called on the loop's thread with the error of a write on another one.
        tls: of the connection; None without.
    """

    __slots__ = (
        "_is_flush_due",
        "_is_open",
        "_is_torn",
        "_late",
        "_lock",
        "_number",
        "_on_broken",
        "_outbox",
        "_outbox_of",
        "_own",
        "_tls",
        "_transport",
        "loop",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        lock: Lock,
        outbox_of: Callable[[socket.socket], Outbox],
        on_broken: Callable[[Exception], None],
        tls: TlsSession | None = None,
    ) -> None:
        self._lock = lock
        self._tls = tls
        # True from enciphering a record until it is where it is written from, and for ever if an
        # exception came between: the peer would miss it.
        self._is_torn = False
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
        self._is_open = True
        self._late: list[bytes] = []  # what the loop's thread could not write yet
        self._is_flush_due = False  # the loop will call `_flush_later`

    # On the loop's thread.

    def write(self, data: bytes) -> None:
        """Write through the transport."""
        self._late.append(data)
        self.flush()

    def flush(self) -> None:
        """Pass to the transport what other threads have not written, or an exception kept one
        from writing, and what this one writes."""
        if self._is_flush_due:
            # Each of many retries would wait for the lock, and the loop would do nothing else.
            return
        # No `with`, which has no limit; the loop's thread runs no signal handler.
        if not self._lock.acquire(timeout=LOCK_S):
            self._flush_soon()
            return
        try:
            if self._is_torn:
                raise _interrupted()
            self._write_rest()
            while self._late and self._write_late(self._late[0]):
                del self._late[0]
        except OSError as error:
            self._on_broken(error)
        finally:
            self._lock.release()

    def _flush_soon(self) -> None:
        self._is_flush_due = True
        self.loop.call_later(LOCK_S, self._flush_later)

    def _flush_later(self) -> None:
        self._is_flush_due = False
        self.flush()

    def end_tls(self) -> None:
        """Tell the peer, if it speaks TLS, that nothing more is written; behind `flush`."""
        # Without waiting: the connection ends in either case.
        if self._tls is not None and self._lock.acquire(blocking=False):
            try:
                if not self._is_torn and not self._transport.is_closing():
                    self._transport.write(self._tls.close_notify())
            finally:
                self._lock.release()

    def close(self, on_closed: Callable[[], object]) -> None:
        """Refuse writes of other threads; called when the transport has ended.

        Args: on_closed: called once no thread writes any more.
        """
        self._is_open = False
        # Now: the transport closes its descriptor next, and the loop may end before this one gets
        # the lock from a caller that a signal handler has suspended.
        forking.closes(self._number)
        if self._own is not None:
            forking.closes(self._own.fileno())
        self._close_own(on_closed)

    def _close_own(self, on_closed: Callable[[], object]) -> None:
        # As in `flush`.
        if not self._lock.acquire(timeout=LOCK_S):
            self.loop.call_later(LOCK_S, self._close_own, on_closed)
            return
        try:
            if self._outbox is not None:
                self._outbox.close()
            if self._own is not None:
                forking.closes(self._own.fileno())  # whoever had the lock may have just made it
                self._own.close()
                self._own = None
        finally:
            self._lock.release()
        on_closed()

    def _write_rest(self) -> None:
        rest = b"" if self._outbox is None else self._outbox.take()
        if rest and not self._transport.is_closing():
            self._transport.write(rest)

    def _write_late(self, data: bytes) -> bool:
        """Write through the transport, if it is open; False: a thread that reads is in TLS."""
        if self._transport.is_closing():
            return True
        if self._tls is None:
            self._transport.write(data)
            return True
        self._is_torn = True
        sealed = self._tls.encipher_soon(data, LOCK_S)
        if sealed is None:
            self._is_torn = False
            self._flush_soon()
            return False
        self._transport.write(sealed)
        self._is_torn = False
        return True

    # On any other thread; the first and the third with the lock held.

    @property
    def is_free(self) -> bool:
        """True if `append` may be called: open, and the transport has nothing to write."""
        return (
            self._is_open
            and not self._late
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()
        )

    @property
    def outbox(self) -> Outbox:
        """Return the outbox that `append` adds to; after the first one."""
        assert self._outbox is not None
        return self._outbox

    def append(self, data: bytes, request: Asked) -> bool:
        """Add a frame, with the lock held; `send` writes it, or whoever has its outbox.

        Returns: False if nothing was done.
        Raises: OSError: the connection broke.
        """
        if self._outbox is None:
            if self._own is None:  # else an exception came behind this step
                shared = self._transport.get_extra_info("socket")
                own = socket.fromfd(shared.fileno(), shared.family, shared.type)
                if self._transport.is_closing():
                    # The number may have been another connection's already.
                    own.close()
                    raise ConnectionAbortedError(errno.ECONNABORTED, "the connection is ending")
                self._own = own
            forking.keep_from_children(self._own.fileno())
            self._outbox = self._outbox_of(self._own)
        if self._tls is None:
            return self._outbox.append(data, request)
        if self._is_torn:
            raise _interrupted()
        self._is_torn = True
        try:
            is_added = self._outbox.append_sealed(data, request, self._tls)
        except BaseException:
            self._is_torn = not request.is_asked  # a signal handler's came behind the step
            raise
        self._is_torn = not is_added
        return is_added

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
        """End the connection because a write has failed.

        Raises: `error`, if it is a signal handler's: those of the system have a number.
        """
        if error.errno is None:
            raise error
        self.loop.call_soon_threadsafe(self._on_broken, error)

    def interrupted(self) -> None:
        """Let the loop's thread write what an exception may have kept this one from writing."""
        self.loop.call_soon_threadsafe(self._after_interruption)

    def _after_interruption(self) -> None:
        try:
            if self._outbox is not None:
                self._outbox.flush()
        except OSError as error:
            self._on_broken(error)
        else:
            self.flush()
