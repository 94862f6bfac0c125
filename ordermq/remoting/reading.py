"""Readings of a connection: by its transport, or by whichever thread waits for an answer.

Waking the I/O thread for an answer, and the caller by that thread, costs more than reading the
answer. So a thread that waits for its receipt reads meanwhile what comes, for others too; while
no thread waits, the I/O thread reads (docs/internals/architecture.md#answers).
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from collections.abc import Callable
from typing import Protocol, TypeAlias

from ordermq import core, forking
from ordermq.errors import ProtocolError
from ordermq.remoting.command import Command, Framer, decode_frame
from ordermq.remoting.thread_event import ThreadEvent
from ordermq.remoting.tls import is_tls_record

# How long a wait of the main thread may be; see SIGNAL_CHECK_S of ordermq/client/runtime.py.
_SIGNAL_CHECK_MS = 500
WRONG_PORT = "is that the address of a RocketMQ name server (9876) or broker (10911)?"


def other_protocol(data: bytes) -> ProtocolError | None:
    """Recognize TLS and HTTP by the first bytes a server sends; None for anything else."""
    # Both would be read as the length of a frame over `max_frame_bytes`, an error that names
    # neither the protocol nor what to do.
    if is_tls_record(data):
        return ProtocolError("server speaks TLS on this port: give tls=True")
    if data.startswith(b"HTTP/"):
        return ProtocolError(f"HTTP server on this port: {WRONG_PORT}")
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

    def heard(self, count: int) -> bool:
        """Count received bytes, on the thread that reads; True if they are the first."""

    def take(self, commands: list[Command], broken: ProtocolError | None) -> None:
        """Handle what was read, and the end if what followed is malformed."""

    def take_outside(self, command: Command) -> None:
        """Handle a command on another thread, or leave it to the loop's."""

    def end_outside(self) -> None:
        """Write what `take_outside` collected; on the thread that reads."""

    def peer_ended(self, error: OSError | None) -> None:
        """End the connection: nothing more will be received."""


class Reading(Protocol):
    """Whoever reads a connection."""

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes of the incomplete frame."""

    def received(self, data: bytes) -> None:
        """Take bytes that the transport has read; on the loop's thread."""

    def wait(self, waiter: AnswerWaiter) -> None:
        """Return once the waiter's messages are done; on its thread, which is not the loop's."""

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

    def wait(self, waiter: AnswerWaiter) -> None:
        wait_for_event(waiter)

    def end(self) -> None: ...


def can_share_reads() -> bool:
    """Return True if this machine and this core can read on the threads of callers."""
    return core.FrameStream is not None and hasattr(select, "epoll")


def shared_reading(connection: ReadConnection, transport: asyncio.Transport) -> Reading:
    """Return a reading by the threads that wait, where the connection allows it."""
    # TLS: the transport decrypts. No socket: the transports of tests.
    is_plain = transport.get_extra_info("ssl_object") is None
    if not is_plain or transport.get_extra_info("socket") is None:
        return TransportReading(connection, transport)
    return SharedReading(connection, transport)


class SharedReading:
    """Reads by one thread at a time: one that waits for an answer, or else the loop's.

    The *turn* to read belongs to a waiter or to the loop. A waiter that finds it taken is told by
    its event. Who ends its wait opens the *gate*, an epoll that has the socket and is itself
    watched by the loop: opening and closing it takes a system call, but wakes nobody.

    An exception may end a wait anywhere, by a signal. Each step can therefore be repeated: a frame
    is dropped only when it was handled, and the gate is opened in any case.
    """

    def __init__(self, connection: ReadConnection, transport: asyncio.Transport) -> None:
        assert core.FrameStream is not None
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._stream = core.FrameStream(connection.max_frame_bytes)
        shared = transport.get_extra_info("socket")
        # A duplicate: the transport may close its own while another thread reads.
        self._socket = socket.fromfd(shared.fileno(), shared.family, shared.type)
        self._number = self._socket.fileno()
        self._gate = select.epoll()
        self._gate_number = self._gate.fileno()
        for number in (self._number, self._gate_number):
            forking.keep_from_children(number)
        # Held for a few instructions and a change of the gate; guards what follows.
        self._lock = threading.Lock()
        self._turn: AnswerWaiter | None = None
        self._is_loops_turn = False
        self._is_over = False  # nothing more is to be read
        self._is_ended = False  # and the loop watches no longer
        self._is_handling = False  # frames; still True after an exception
        # Soon, not now: uvloop begins to read behind this call, whatever it is told in it. The
        # first request is written later.
        self._loop.call_soon(self._begin, transport)

    @property
    def buffered_bytes(self) -> int:
        return self._stream.buffered_bytes

    def received(self, data: bytes) -> None:
        self._stream.add(data)
        if not self._has_other_protocol(len(data)):
            self._take_frames()

    def wait(self, waiter: AnswerWaiter) -> None:
        try:
            if self._takes_turn(waiter):
                self._read_until_done(waiter)
        finally:
            try:
                self._leave(waiter)
            except BaseException:  # a signal in this very moment: nobody else would read
                self._leave(waiter)
                raise
        wait_for_event(waiter)  # if another thread has the turn, or the connection has ended

    def end(self) -> None:
        with self._lock:
            self._is_over = self._is_ended = True
            self._loop.remove_reader(self._gate_number)
            if self._turn is None:
                self._release()
            else:  # it lets go of the socket itself, which it may be reading
                self._turn.event.set()

    # The turn.

    def _takes_turn(self, waiter: AnswerWaiter) -> bool:
        with self._lock:
            if self._turn is None and not self._is_loops_turn and not self._is_over:
                self._turn = waiter
                self._close_gate()
            return self._turn is waiter

    def _leave(self, waiter: AnswerWaiter) -> None:
        with self._lock:
            if self._turn is not waiter:
                return
            if not self._is_over:
                self._open_gate()
            elif self._is_ended:
                self._release()
            self._turn = None  # last: what a signal ends before is done again
        # A part of a frame; or an exception came in the middle of frames, and no more may follow.
        if self._is_handling or self._stream.buffered_bytes:
            self._loop.call_soon_threadsafe(self._on_readable)

    # Each may be done twice: a signal may have come before the end of the first.

    def _open_gate(self) -> None:
        self._gate.modify(self._number, select.EPOLLIN)

    def _close_gate(self) -> None:
        self._gate.modify(self._number, 0)

    def _stop_reading(self) -> None:
        with self._lock:
            self._is_over = True
            if not self._gate.closed:
                with contextlib.suppress(FileNotFoundError):
                    self._gate.unregister(self._number)

    def _release(self) -> None:
        if not self._gate.closed:
            for number in (self._number, self._gate_number):
                forking.closes(number)
            self._gate.close()
            self._socket.close()

    # On the thread of a waiter that has the turn.

    def _read_until_done(self, waiter: AnswerWaiter) -> None:
        stream, number, event = self._stream, self._number, waiter.event.number
        if self._is_handling or stream.buffered_bytes:
            self._handle()  # an exception ended the wait before this one
        while not waiter.is_done and not self._is_over:
            if stream.wait(number, event, _SIGNAL_CHECK_MS) and self._receive():
                self._handle()

    def _handle(self) -> None:
        stream, connection = self._stream, self._connection
        self._is_handling = True
        while (frame := stream.frame()) is not None:
            try:
                command = decode_frame(*frame)
            except ProtocolError as error:
                self._end_broken(error)
                break
            connection.take_outside(command)
            stream.drop()
        connection.end_outside()
        if stream.is_broken:
            self._end_broken(self._malformed())
        self._is_handling = False

    # On either.

    def _end_broken(self, error: ProtocolError) -> None:
        if self._is_over:  # said already
            return
        self._stop_reading()
        self._loop.call_soon_threadsafe(self._connection.take, [], error)

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
            got = self._stream.receive(self._number)
        except OSError as error:
            self._end_received(error)
            return False
        if got == 0:
            self._end_received(None)
        if got <= 0:
            return False
        return not self._has_other_protocol(got)

    def _has_other_protocol(self, got: int) -> bool:
        other = other_protocol(self._stream.rest()) if self._connection.heard(got) else None
        if other is not None:
            self._end_broken(other)
        return other is not None

    def _end_received(self, error: OSError | None) -> None:
        self._stop_reading()
        self._loop.call_soon_threadsafe(self._connection.peer_ended, error)

    # On the loop's thread.

    def _begin(self, transport: asyncio.Transport) -> None:
        with self._lock:
            if not self._is_over:
                transport.pause_reading()
                self._gate.register(self._number, select.EPOLLIN)
                self._loop.add_reader(self._gate_number, self._on_readable)

    def _on_readable(self) -> None:
        with self._lock:
            if self._turn is not None or self._is_over:
                return
            self._is_loops_turn = True
        try:
            if self._receive() or self._is_handling or self._stream.buffered_bytes:
                self._is_handling = False
                self._connection.end_outside()  # what an interrupted thread had collected
                self._take_frames()
        finally:
            self._is_loops_turn = False

    def _take_frames(self) -> None:
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
        self._connection.take(commands, None)
        if broken is not None:
            self._end_broken(broken)
