"""Readings of a connection: by its transport, or by whichever thread waits for an answer.

Waking the I/O thread for an answer, and the caller by that thread, costs more than reading the
answer. So of the threads that wait for their receipts one reads what comes, natively, and wakes
the others; while no thread waits, the I/O thread reads (docs/internals/architecture.md#answers).
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ordermq import core, forking
from ordermq.core.streams import AnswerWait
from ordermq.errors import ProtocolError
from ordermq.remoting.command import Command, Framer, decode_frame
from ordermq.remoting.thread_event import ThreadEvent
from ordermq.remoting.tls import TlsSession, is_tls_record
from ordermq.remoting.writing import LOCK_S, DirectOutbox, Outbox
from ordermq.threads import SIGNAL_CHECK_S

if TYPE_CHECKING:
    from ordermq.remoting.response_futures import ResponseFuture
    from ordermq.remoting.writing import SharedSocket

_SIGNAL_CHECK_MS = int(SIGNAL_CHECK_S * 1_000)
_ANSWERED = int(AnswerWait.ANSWERED)
WRONG_PORT = "is that the address of a RocketMQ name server (9876) or broker (10911)?"


def other_protocol(data: bytes) -> ProtocolError | None:
    """Recognize TLS, HTTP and gRPC by the first bytes a server sends; None for anything else."""
    # They would be read as lengths of frames, too large or without a header: errors that name
    # neither the protocol nor what to do.
    if is_tls_record(data):
        return ProtocolError("server speaks TLS on this port: give tls=True")
    if data.startswith(b"HTTP/"):
        return ProtocolError(f"HTTP server on this port: {WRONG_PORT}")
    # SETTINGS of stream 0, by which a server of HTTP/2 begins.
    if data[:2] == b"\0\0" and data[3:9] == b"\x04\0\0\0\0\0":
        return ProtocolError(
            "gRPC server (HTTP/2) on this port, as the one for the 5.x clients at RocketMQ's proxy "
            "(8081): give the proxy's remoting port (8080), or that of a name server (9876) or "
            "broker (10911)"
        )
    return None


class AnswerWaiter(Protocol):
    """A thread that waits until what it sent is done; `event` is set then by any other thread."""

    event: ThreadEvent

    @property
    def is_done(self) -> bool: ...


def wait_for_event(waiter: AnswerWaiter) -> None:
    """Return once the waiter's messages are done, while other threads read."""
    while not waiter.is_done:  # an earlier, interrupted call may have left the event set
        waiter.event.wait()


class ReadConnection(Protocol):
    """A connection, as its reading sees it; on the loop's thread, except where it says so."""

    max_frame_bytes: int
    tls: TlsSession | None

    def heard(self, count: int) -> bool:
        """Count received bytes; True if they are the first."""

    def take(self, commands: list[Command], broken: ProtocolError | None) -> None:
        """Handle what was read, and the end if what followed is malformed."""

    def take_on_caller(
        self, opaque: int, waiting: ResponseFuture, answer: core.contract.AwaitedAnswer
    ) -> None:
        """Handle the answer to a request on the thread that waited for it.

        Raises: ProtocolError: its header is malformed.
        """

    def take_again(self, opaque: int, waiting: ResponseFuture, command: Command) -> None:
        """Handle it after an exception has ended `take_on_caller` somewhere, or its wait before."""

    def peer_ended(self, error: OSError | None) -> None:
        """End the connection: nothing more will be received."""


class Reading(Protocol):
    """Whoever reads a connection."""

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes of the incomplete frame."""

    @property
    def counts_of_callers(self) -> tuple[int, int]:
        """Bytes received and answers handled on other threads than the loop's."""

    def new_outbox(self, shared: socket.socket) -> Outbox:
        """Return the way in which other threads write to the connection's socket."""

    def awaiting(
        self, opaque: int, waiting: ResponseFuture, shared: SharedSocket
    ) -> CallersAnswer | None:
        """Return the answer to a request, for the calling thread to wait for; None if the loop
        reads it.
        """

    def received(self, data: bytes) -> None:
        """Take bytes that the transport has read; on the loop's thread."""

    def end(self) -> None:
        """Stop: the connection has ended; on the loop's thread."""


ReadingOf: TypeAlias = Callable[[ReadConnection, asyncio.Transport], Reading]


class TransportReading:
    """Reads of the transport, on the loop's thread."""

    def __init__(self, connection: ReadConnection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._framer = Framer(connection.max_frame_bytes)

    @property
    def buffered_bytes(self) -> int:
        return self._framer.buffered_bytes

    @property
    def counts_of_callers(self) -> tuple[int, int]:
        return 0, 0

    def new_outbox(self, shared: socket.socket) -> Outbox:
        return DirectOutbox(shared)

    def awaiting(
        self, opaque: int, waiting: ResponseFuture, shared: SharedSocket
    ) -> CallersAnswer | None:
        return None

    def received(self, data: bytes) -> None:
        commands: list[Command] = []
        broken = other_protocol(data) if self._connection.heard(len(data)) else None
        if broken is None:
            try:
                commands = self._framer.feed(data)
            except ProtocolError as error:
                # Responses that came whole before the damaged bytes still count.
                commands, broken = self._framer.completed, error
        self._connection.take(commands, broken)

    def end(self) -> None: ...


class TlsReading(TransportReading):
    """Reads of the transport, deciphered on the loop's thread."""

    def __init__(
        self, connection: ReadConnection, transport: asyncio.Transport, tls: TlsSession
    ) -> None:
        super().__init__(connection, transport)
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._sealed: list[bytes] = []  # what came while another thread was enciphering
        self._is_over = False

    def received(self, data: bytes) -> None:
        self._sealed.append(data)
        if len(self._sealed) == 1:  # else it is tried again
            self._decipher()

    def end(self) -> None:
        self._is_over = True

    def _decipher(self) -> None:
        if self._is_over:
            return
        try:
            found = self._tls.decipher(b"".join(self._sealed), LOCK_S)
        except ssl.SSLError as error:
            self._connection.peer_ended(error)
            return
        if found is None:
            self._loop.call_later(LOCK_S, self._decipher)
            return
        self._sealed.clear()
        data, is_ended = found
        if data:
            super().received(data)
        if is_ended:
            self._connection.peer_ended(None)


def transport_reading(connection: ReadConnection, transport: asyncio.Transport) -> Reading:
    """Return a reading by the transport, on the loop's thread."""
    if connection.tls is None:
        return TransportReading(connection, transport)
    return TlsReading(connection, transport, connection.tls)


def can_share_reads() -> bool:
    """Return True if this machine and this core can read on the threads of callers."""
    return core.HAS_ENGINE and hasattr(select, "epoll")


def shared_reading(connection: ReadConnection, transport: asyncio.Transport) -> Reading:
    """Return a reading by the threads that wait, where the connection allows it."""
    if transport.get_extra_info("socket") is None:  # the transports of tests
        return transport_reading(connection, transport)
    return SharedReading(connection, transport)


class SharedReading:
    """Reads by one thread at a time: one that waits for an answer, or else the loop's.

    Who has the *turn* to read, and who gets it next, the native stream decides. It hands plain
    successes to the threads that wait for them; all else is left to the loop. While no thread
    reads, the *gate* is open, an epoll that has the socket and is itself watched by the loop. With
    TLS whoever has the turn deciphers what came, natively as well.
    """

    def __init__(self, connection: ReadConnection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._stream = core.FrameStream(connection.max_frame_bytes, connection.tls)
        shared = transport.get_extra_info("socket")
        # A duplicate: the transport may close its own while another thread reads.
        self._socket = socket.fromfd(shared.fileno(), shared.family, shared.type)
        try:
            self._gate = select.epoll()
        except OSError:  # too many files
            self._socket.close()
            raise
        for number in (self._socket.fileno(), self._gate.fileno()):
            forking.keep_from_children(number)
        self._is_over = False  # nothing more is to be read
        self._is_ended = False  # and the loop watches no longer
        self._is_look_due = False  # the loop will call `_look_later`
        # Soon, not now: uvloop begins to read behind this call, whatever it is told in it. The
        # first request is written later.
        self._loop.call_soon(self._begin, transport)

    @property
    def buffered_bytes(self) -> int:
        return self._stream.buffered_bytes

    @property
    def counts_of_callers(self) -> tuple[int, int]:
        return self._stream.counts

    def new_outbox(self, shared: socket.socket) -> Outbox:
        return core.Outbox(shared.fileno())

    def awaiting(
        self, opaque: int, waiting: ResponseFuture, shared: SharedSocket
    ) -> CallersAnswer | None:
        event = ThreadEvent.of_thread().number
        answer = core.AwaitedAnswer(self._stream, shared.outbox, opaque, event)
        return CallersAnswer(self, self._connection, opaque, waiting, shared, answer)

    def received(self, data: bytes) -> None:
        self._stream.add(data)
        if self._connection.tls is not None:
            self.look()
        elif not self._has_other_protocol(len(data)):
            self._take_frames()

    def call_soon(self, action: Callable[..., object], *arguments: object) -> None:
        """Call something on the loop's thread; any thread."""
        self._loop.call_soon_threadsafe(action, *arguments)

    def end(self) -> None:
        self._is_over = self._is_ended = True
        self._loop.remove_reader(self._gate.fileno())
        self.let_go()

    # On the loop's thread.

    def end_broken(self, error: ProtocolError) -> None:
        """End the connection because of what was received."""
        if not self._is_over:  # else said already
            self._stop_reading()
            self._loop.call_soon(self._connection.take, [], error)

    def _begin(self, transport: asyncio.Transport) -> None:
        if not self._is_over:
            transport.pause_reading()
            self._stream.attach(self._socket.fileno(), self._gate.fileno())
            self._loop.add_reader(self._gate.fileno(), self.look)

    def look(self) -> None:
        """Handle what was received, and what a thread has left to the loop."""
        if not self._stream.begin():
            return
        are_waiters_alone = False
        try:
            if self._receive() or self._stream.buffered_bytes:
                are_waiters_alone = not self._take_frames()
        finally:
            self._stream.end(are_waiters_alone)
        if self._stream.has_more and not (self._is_over or self._is_look_due):
            self._is_look_due = True
            self._loop.call_later(LOCK_S, self._look_later)

    def _look_later(self) -> None:
        self._is_look_due = False
        self.look()

    def _take_frames(self) -> int:
        """Handle the frames that are not of threads that wait; return how many there were."""
        stream = self._stream
        commands: list[Command] = []
        broken: ProtocolError | None = None
        while broken is None and (frame := stream.frame()) is not None:
            try:
                commands.append(decode_frame(*frame))
            except ProtocolError as error:
                broken = error
            stream.drop()
        if stream.is_broken:
            broken = self._malformed()
        if commands:
            self._connection.take(commands, None)
        if broken is not None:
            self.end_broken(broken)
        return len(commands)

    def _malformed(self) -> ProtocolError:
        """Return the error of what the stream cannot read."""
        try:
            Framer(self._connection.max_frame_bytes).feed(self._stream.rest())
        except ProtocolError as error:
            return error
        raise AssertionError("a frame is malformed in one framer only")

    def _receive(self) -> bool:
        """Receive what is there; return True if it was anything."""
        try:
            got = self._stream.receive(LOCK_S)
        except OSError as error:
            self._end_received(error)
            return False
        if got == 0:
            self._end_received(None)
        if got <= 0:
            return False
        return not self._has_other_protocol(got)

    def _has_other_protocol(self, got: int) -> bool:
        if not self._connection.heard(got):
            return False
        other = other_protocol(self._stream.rest())
        if other is None:
            self._stream.trust()
        else:
            self.end_broken(other)
        return other is not None

    def _end_received(self, error: OSError | None) -> None:
        self._stop_reading()
        self._loop.call_soon(self._connection.peer_ended, error)

    def _stop_reading(self) -> None:
        self._is_over = True
        self._stream.stop()

    def let_go(self) -> None:
        """Close socket and gate, if the connection has ended and no thread reads any more."""
        # Such a thread is woken by `stop`, and has this called again.
        if self._is_ended and not self._gate.closed and not self._stream.stop():
            for number in (self._socket.fileno(), self._gate.fileno()):
                forking.closes(number)
            self._gate.close()
            self._socket.close()


class CallersAnswer:
    """The answer to a request that a thread other than the loop's makes, and waits for.

    An exception may end the wait anywhere, by a signal. What was answered or written by then, or
    was not, is then the loop's to handle, which may do it twice.
    """

    __slots__ = ("_answer", "_connection", "_opaque", "_reading", "_shared", "_waiting")

    def __init__(
        self,
        reading: SharedReading,
        connection: ReadConnection,
        opaque: int,
        waiting: ResponseFuture,
        shared: SharedSocket,
        answer: core.contract.AwaitedAnswer,
    ) -> None:
        self._reading = reading
        self._connection = connection
        self._opaque = opaque
        self._waiting = waiting
        self._shared = shared
        self._answer = answer

    def wait(self, waiter: AnswerWaiter) -> None:
        """Write the request; return once the waiter's messages are done, on its thread."""
        try:
            self._wait(waiter)
        except BaseException:
            try:
                self._reading.call_soon(self.take_again)
            except BaseException:  # a signal in this very moment: nobody else would look
                self._reading.call_soon(self.take_again)
                raise
            raise
        wait_for_event(waiter)  # if it is the loop that handles the answer

    def _wait(self, waiter: AnswerWaiter) -> None:
        answer = self._answer
        while not waiter.is_done:
            said = answer.wait(_SIGNAL_CHECK_MS)
            if said != _ANSWERED:
                self._tell_loop(said)
            if answer.is_here:
                try:
                    self._connection.take_on_caller(self._opaque, self._waiting, answer)
                except ProtocolError as error:
                    self._reading.call_soon(self._reading.end_broken, error)
                return

    def _tell_loop(self, said: int) -> None:
        if said == AnswerWait.FOR_LOOP:
            self._reading.call_soon(self._reading.look)
        elif said == AnswerWait.STOPPED:
            self._reading.call_soon(self._reading.let_go)
        elif said == AnswerWait.NOT_WRITTEN:
            self._reading.call_soon(self._shared.flush)
        elif said == AnswerWait.BROKEN:
            error = self._answer.error
            self._shared.failed(OSError(error, os.strerror(error)))

    def take_again(self) -> None:
        """Handle what an exception may have left; on the loop's thread."""
        self._shared.flush()
        if self._answer.is_here:
            try:
                command = decode_frame(*self._answer.frame)
            except ProtocolError as error:
                self._reading.end_broken(error)
            else:
                self._connection.take_again(self._opaque, self._waiting, command)
        self._reading.look()
        self._reading.let_go()
