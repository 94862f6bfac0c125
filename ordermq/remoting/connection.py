"""A client's connection: sends requests, matches responses by opaque, passes on broker requests.

Threads: all state belongs to the loop's thread, except that any thread may call `ask`. It adds its
request under `_lock`, which also guards the time-out check and the end of the connection, and
writes it to the socket itself; see writing.py and response_futures.py. It may then read from the
socket, see reading.py, and take its answer on its own thread.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from ordermq.clock import Clock
from ordermq.config import RemotingConfig
from ordermq.errors import (
    ConnectFailed,
    ConnectionLost,
    ProtocolError,
    RequestTimeout,
)
from ordermq.remoting.command import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Command,
    decode_frame,
    encode,
)
from ordermq.remoting.connecting import connect_failed, connect_plainly, own_address
from ordermq.remoting.dialer import Dialer, SocketAddress
from ordermq.remoting.framing import Framing
from ordermq.remoting.reading import WRONG_PORT, Reading, ReadingOf, transport_reading
from ordermq.remoting.response_futures import ResponseFuture, ResponseFutures
from ordermq.remoting.tls import TlsSession, describe_tls_error, hint_for_silence
from ordermq.remoting.writing import SharedSocket
from ordermq.threads import Lock

if TYPE_CHECKING:
    from ordermq import core

_log = logging.getLogger("ordermq.remoting")
_FRAME_MS = 30_000  # the longest a pull takes; a frame that is incomplete longer never completes


class ConnectionEvents(Protocol):
    """Callbacks to the owner of a connection, on the loop's thread."""

    def on_request(self, connection: Connection, command: Command) -> None:
        """Handle a request of the peer, as that the group's members changed."""

    def on_closed(self, connection: Connection, error: Exception | None) -> None:
        """Handle the end of the connection; its pending requests have already failed."""


class _AsyncioResponse(ResponseFuture):
    """A pending response that an asyncio future waits for."""

    __slots__ = ("future",)

    def __init__(self, code: int, future: asyncio.Future[Command]) -> None:
        self.code = code
        self.future = future

    @property
    def is_over(self) -> bool:
        return self.future.done()

    def answered(self, command: Command) -> None:
        if not self.future.done():
            self.future.set_result(command)

    def failed(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Connection(asyncio.Protocol):
    """One TCP connection to a broker or name server.

    Make one with `Connection.open`. Other threads may call `ask` only.

    Args:
        reading_of: chooses who reads it.
        tls: after its handshake; None without TLS.
    """

    def __init__(
        self,
        address: str,
        clock: Clock,
        config: RemotingConfig,
        events: ConnectionEvents,
        reading_of: ReadingOf = transport_reading,
        tls: TlsSession | None = None,
    ) -> None:
        self.address = address
        self.peer: SocketAddress | None = None  # of the host's addresses, the one connected to
        self._clock = clock
        self._events = events
        self._framing = Framing(config)
        self._namespaces = self._framing.namespaces
        self.namespace = config.namespace
        self._config = config
        self.max_frame_bytes = config.max_frame_bytes
        self._reading_of = reading_of
        self.tls = tls
        self._reading: Reading | None = None  # while it is open
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._transport: asyncio.Transport | None = None
        self._lock = Lock()  # of threads that write themselves, see the module
        self._pending: ResponseFutures[ResponseFuture] = ResponseFutures(
            clock, self._lock, self._tick
        )
        self._socket: SharedSocket | None = None
        self._out: list[bytes] = []  # written while corked
        self._is_corked = False
        self._after_read: list[Callable[[], object]] = []
        self._writable = asyncio.Event()
        self._writable.set()
        # Set by who has heard this server on an earlier connection: then the port is right.
        self.is_known = False
        self._heard_bytes = 0  # these two on the loop's thread; `_heard` has all
        self._heard_commands = 0
        # The commands received when a check first found the frame that is incomplete now, and the
        # time of that check.
        self._incomplete: tuple[int, int] | None = None
        self._error: Exception | None = None
        self._unmade: OSError | None = None  # why it never began
        self._is_closing = False
        self._refused: list[ResponseFuture] = []  # asked for while the connection was ending
        self._ended = asyncio.Event()

    @classmethod
    async def open(
        cls,
        address: str,
        clock: Clock,
        config: RemotingConfig,
        events: ConnectionEvents,
        tls: ssl.SSLContext | None = None,
        dialer: Dialer | None = None,
        reading_of: ReadingOf = transport_reading,
    ) -> Connection:
        """Connect.

        Args:
            tls: from `tls.client_context`; None connects without TLS.
            dialer: of the client, default one for this connection.
            reading_of: chooses who reads it.
        Raises: ConnectFailed: refused, unknown host, no answer in `connect_timeout_ms`, or the
            TLS handshake failed.
        """
        make = partial(cls, address, clock, config, events, reading_of)
        dialer = dialer or Dialer(clock)
        connection, peer = await connect_plainly(make, address, config, tls, dialer)
        if connection._unmade is not None:
            connection.abort(connection._unmade)
            raise connect_failed(connection._unmade, address, dialer) from connection._unmade
        connection.peer = peer
        return connection

    @property
    def own_address(self) -> str:
        """Return this side's address, as brokers print it if nothing between changes it."""
        return own_address(self._transport)

    @property
    def has_heard(self) -> bool:
        """True once the server has sent a byte."""
        return self._heard_bytes > 0

    @property
    def is_open(self) -> bool:
        """True until the connection is closed or breaks."""
        return self._transport is not None and not self._transport.is_closing()

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """Send a request and await its response, whatever its code.

        Raises:
            RequestTimeout: no response in `timeout_ms`; the outcome is unknown.
            ConnectFailed: the connection was closed already; nothing was sent.
            ConnectionLost: the connection broke meanwhile; the outcome is unknown.
        """
        return await self.begin_request(command, timeout_ms)

    def begin_request(self, command: Command, timeout_ms: int) -> asyncio.Future[Command]:
        """Send a request now; the future gets the response, or an error as of `request`."""
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        frame = self.frame(command)  # first: a request that cannot be encoded must not stay pending
        self.ask(command.opaque, frame, _AsyncioResponse(command.code, answer), timeout_ms)
        return answer

    def ask(self, opaque: int, frame: bytes, waiting: ResponseFuture, timeout_ms: int) -> bool:
        """Send an encoded request; from any thread.

        Args:
            opaque: that of the frame.
            waiting: gets the response or the error, at once if the connection is closed; its
                `code` is set.
        Returns: False if nothing was done, because only the loop's thread can send now.
        """
        waiting.callers = None
        waiting.deadline_ms = self._clock.now_ms() + timeout_ms
        waiting.heard_bytes = self._heard()[0]
        if threading.get_ident() != self._loop_thread:
            return self._ask_on_caller(opaque, frame, waiting)
        waiting.is_asked = True
        if not self.is_open:
            if self._is_closing or self._ended.is_set():
                waiting.failed(self._closed_error(ConnectFailed))
            else:  # `connection_lost` follows at once, and knows why
                self._refused.append(waiting)
            return True
        self._pending.add(opaque, waiting)
        self._write(frame)
        return True

    def _ask_on_caller(self, opaque: int, frame: bytes, waiting: ResponseFuture) -> bool:
        shared, reading = self._socket, self._reading
        if shared is None or reading is None:
            return False
        try:
            return self._write_on_caller(opaque, frame, waiting, shared, reading)
        except BaseException:
            if not waiting.is_asked:  # nor will be: the loop's thread begins it again
                self._pending.pop(opaque)
            shared.interrupted()
            raise

    def _write_on_caller(
        self,
        opaque: int,
        frame: bytes,
        waiting: ResponseFuture,
        shared: SharedSocket,
        reading: Reading,
    ) -> bool:
        # The lock keeps the connection from ending, and the time-out check from going to sleep,
        # between the test and the write. If no check runs, the loop's thread must send: only it
        # can start one.
        with self._lock:
            if not self._pending.is_ticking or not shared.is_free:
                return False
            # Before the write: the response may arrive before `append` returns.
            self._pending.add_on_caller(opaque, waiting)
            try:
                if not shared.append(frame, waiting):
                    self._pending.pop(opaque)
                    return False
            except OSError as error:
                # There may be no outbox to wait by; it fails with the connection.
                shared.failed(error)
                return True
        if waiting.is_awaited:
            waiting.callers = reading.awaiting(opaque, waiting, shared)
        if waiting.callers is None:  # else it is written by the wait
            shared.send()
        return True

    def send_oneway(self, command: Command) -> None:
        """Send a request that gets no response.

        Raises: ConnectFailed: the connection is closed.
        """
        if not self.is_open:
            raise self._closed_error(ConnectFailed)
        command.flag |= ONEWAY_FLAG
        self._write(self.frame(command))

    def respond(self, request: Command, answer: Command) -> None:
        """Answer a request of the peer; dropped if the connection has ended, as the request."""
        if self._namespaces is not None:
            self._namespaces.wrap_answer(request.code, answer)
        self._framing.choose_encoding(answer)
        if self.is_open:
            self._write(encode(answer))

    async def writable(self) -> None:
        """Return once the transport accepts bytes again (back-pressure)."""
        await self._writable.wait()

    @property
    def is_writable(self) -> bool:
        """True if the transport accepts bytes now; also after the end of the connection."""
        return self._writable.is_set()

    def frame(self, request: Command) -> bytes:
        """Encode a request as configured: with namespace, signature, binary header."""
        return self._framing.frame(request)

    def _write(self, frame: bytes) -> None:
        self._out.append(frame)
        if not self._is_corked:
            self._flush()

    def cork(self) -> None:
        """Collect what is written until `uncork`, to send it in one piece; on the loop's thread."""
        self._is_corked = True

    def uncork(self) -> None:
        """Write what was collected since `cork`."""
        self._is_corked = False
        self._flush()

    def after_read(self, action: Callable[[], object]) -> None:
        """Call `action` when all commands of the current read are handled, and all that was
        written meanwhile is sent; from within `ResponseFuture.answered`.
        """
        self._after_read.append(action)

    def _flush(self) -> None:
        if self._socket is not None and self._out and self.is_open:
            self._socket.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        self._out.clear()

    async def close(self) -> None:
        """Close after sending what was written; pending requests fail with `ConnectionLost`."""
        if self._transport is not None:
            self._is_closing = True
            self._flush()
            if self._socket is not None:
                self._socket.flush()
                self._socket.end_tls()
            self._transport.close()
            await self._ended.wait()

    def abort(self, error: Exception) -> None:
        """Cut the connection because of `error`, which is the cause pending requests see."""
        # The first error is the cause; later ones follow from it.
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by type
        try:
            reading = self._reading = self._reading_of(self, self._transport)
        except OSError as error:  # the process has no file descriptor left for it
            # `open` ends it. Of a transport that is aborted in here, uvloop closes the descriptor
            # at once, and a second time with the socket, when it may be another one's.
            self._unmade = error
            return
        self._socket = SharedSocket(
            self._transport, self._lock, reading.new_outbox, self.abort, self.tls
        )

    def data_received(self, data: bytes) -> None:
        if self._reading is not None:
            self._reading.received(data)

    # ReadConnection

    def heard(self, count: int) -> bool:
        is_first = not self._heard_bytes
        self._heard_bytes += count
        return is_first

    def _heard(self) -> tuple[int, int]:
        """Return the bytes and the commands received so far, on all threads."""
        if self._reading is None:
            return self._heard_bytes, self._heard_commands
        received, answered = self._reading.counts_of_callers
        return self._heard_bytes + received, self._heard_commands + answered

    def take(self, commands: list[Command], broken: ProtocolError | None) -> None:
        self._heard_commands += len(commands)
        self._handle(commands)
        if broken is not None:
            _log.warning("%s: closing the connection: %s", self.address, broken)
            self.abort(broken)

    def peer_ended(self, error: OSError | None) -> None:
        if error is not None:
            self.abort(self._explained(error) or error)
        elif self._transport is not None:
            self._transport.close()

    def take_on_caller(
        self, opaque: int, waiting: ResponseFuture, answer: core.contract.AwaitedAnswer
    ) -> None:
        if self._pending.pop(opaque) is None:  # it has just timed out, or its connection has ended
            return
        # Nearly always: no command is made.
        stored = answer.stored
        if stored is not None and waiting.stored_on_caller(*stored):
            return
        command = decode_frame(*answer.frame)
        if self._namespaces is not None:
            self._namespaces.unwrap_answer(waiting.code, command)
        if not waiting.answered_on_caller(command):
            self._loop.call_soon_threadsafe(self._tell, waiting, command)

    def take_again(self, opaque: int, waiting: ResponseFuture, command: Command) -> None:
        self._pending.pop(opaque)
        if self._namespaces is not None:
            self._namespaces.unwrap_answer(waiting.code, command)
        self._tell(waiting, command)

    def _handle(self, commands: list[Command]) -> None:
        # The responses to pulls of several queues often come in one read, and each sends the next
        # pull. These are sent with one system call: one per pull cost more than all the rest.
        # They are sent at the end of this function, not by `call_soon`: a listener's thread could
        # take the interpreter lock in between and delay them by milliseconds.
        self.cork()
        try:
            for command in commands:
                if command.flag & RESPONSE_FLAG:
                    self._complete(command)
                else:
                    if self._namespaces is not None:
                        self._namespaces.unwrap_request(command)
                    try:
                        self._events.on_request(self, command)
                    except Exception as error:  # noqa: BLE001 - reported to the loop's owner
                        self._report(f"request {command.code} of the server", error)
        finally:
            self.uncork()
        if self._after_read:
            actions, self._after_read = self._after_read, []
            for action in actions:
                # One that raises must not silence the others: each is the only notice of messages
                # for one queue. Nor may it end the connection, as asyncio would.
                try:
                    action()
                except Exception as error:  # noqa: BLE001 - reported to the loop's owner
                    self._report("an action after a read", error)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._error = self._error or self._explained(error)
        self._writable.set()
        if self._reading is not None:
            self._heard_bytes += self._reading.counts_of_callers[0]
            self._reading.end()
            self._reading = None
        # Before `on_closed`: its owner may reconnect and retry, and must not meet old requests.
        self._fail_pending()
        if self._socket is not None:
            self._socket.close(self._fail_pending)  # those added until the end, too
        for waiting in self._refused:
            self._fail(waiting, self._closed_error(ConnectFailed))
        self._ended.set()
        if self._unmade is None:
            self._events.on_closed(self, self._error)

    def _fail_pending(self) -> None:
        for waiting in self._pending.end():
            self._fail(waiting, self._closed_error(ConnectionLost))

    def _complete(self, command: Command) -> None:
        waiting = self._pending.pop(command.opaque)
        if waiting is None:
            # The request timed out before, and its caller has got that error.
            _log.debug("%s: late response dropped: opaque %d", self.address, command.opaque)
            return
        if self._namespaces is not None:
            self._namespaces.unwrap_answer(waiting.code, command)
        self._tell(waiting, command)

    def _tell(self, waiting: ResponseFuture, command: Command) -> None:
        try:
            waiting.answered(command)
        except Exception as error:  # noqa: BLE001 - whoever waits must not wait for ever
            self._fail(waiting, error)
            self._report(f"the answer to request {waiting.code}", error)

    def _explained(self, error: Exception | None) -> Exception | None:
        if isinstance(error, ssl.SSLError):
            return ConnectionError(describe_tls_error(error, self.address))
        if self._heard_bytes or self._is_closing:
            return error
        # A server that ends a connection without one byte usually expects TLS, or a certificate.
        what = f"{error}" if error else "the server closed it"
        return ConnectionError(f"{what} without sending anything: {hint_for_silence(self._config)}")

    def _closed_error(
        self, kind: type[ConnectFailed | ConnectionLost]
    ) -> ConnectFailed | ConnectionLost:
        why = f": {self._error}" if self._error else ""
        closed = kind(f"connection is closed{why}", address=self.address)
        closed.__cause__ = self._error
        return closed

    def _tick(self, now_ms: int) -> None:
        for waiting in self._pending.due(now_ms):
            if waiting.is_over:  # its caller was cancelled: no error, and no sign of a dead peer
                continue
            is_known = self._heard_bytes or self.is_known
            silent = "" if is_known else f"; the server never sent a byte: {WRONG_PORT}"
            error = RequestTimeout(
                f"request {waiting.code}: no response in time, its outcome is unknown{silent}",
                address=self.address,
            )
            self._fail(waiting, error)
            if self._heard()[0] == waiting.heard_bytes:
                # Not one byte since the request was sent: a dead connection, which TCP may take
                # minutes to notice. Pending requests fail now, and the next one reconnects. A
                # peer that sends other responses is only slow: its connection is kept.
                self.abort(error)
        self._end_stuck_frame(now_ms)
        if self._socket is not None:
            self._socket.flush()

    def _fail(self, waiting: ResponseFuture, error: Exception) -> None:
        # Whoever waits must not raise. If one does, the others must hear of their failure even so.
        try:
            waiting.failed(error)
        except Exception as raised:  # noqa: BLE001 - reported to the loop's owner
            self._report(f"the failure of request {waiting.code}", raised)

    def _report(self, what: str, error: Exception) -> None:
        """Report a defect to the owner of the loop, which counts it; the connection goes on."""
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"{self.address}: {what}", "exception": error}
        )

    def _end_stuck_frame(self, now_ms: int) -> None:
        # A corrupted length that is within bounds would swallow all later responses, and no
        # request would see a dead connection, for bytes do arrive.
        # Also between requests, when no check runs: what is incomplete after no further command is
        # the same frame.
        if self._reading is None or not self._reading.buffered_bytes:
            self._incomplete = None
        elif self._incomplete is None or self._incomplete[0] != self._heard()[1]:
            self._incomplete = self._heard()[1], now_ms
        elif now_ms - self._incomplete[1] > _FRAME_MS:
            self.abort(
                ProtocolError(
                    f"frame is incomplete after {_FRAME_MS // 1000} s: the server or a proxy lost "
                    "part of it"
                )
            )
