"""An open connection: requests out, answers matched by opaque, the peer's requests handed on."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Protocol, cast

from ordermq.clock import Clock
from ordermq.config import RemotingConfig, SerializeType
from ordermq.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    ProtocolError,
    RequestTimeout,
)
from ordermq.remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from ordermq.remoting.framing import Framer, encode, make_binary
from ordermq.remoting.namespaces import Namespaces
from ordermq.remoting.response_futures import ResponseFuture, ResponseFutures
from ordermq.remoting.shared_socket import SharedSocket
from ordermq.remoting.signing import Credentials
from ordermq.remoting.tls import SHUTDOWN_TIMEOUT_S, is_record, words_for, words_for_silence

_log = logging.getLogger("ordermq.remoting")
_WRONG_PORT = "is that the address of a RocketMQ name server (9876) or broker (10911)?"
_FRAME_MS = 30_000  # as long as a pull may take; no frame that is under way longer will be whole


class ConnectionEvents(Protocol):
    """What the owner of a connection is told, on the loop's thread."""

    def on_request(self, connection: Connection, command: Command) -> None:
        """The peer asks something, as that the group's members changed."""

    def on_closed(self, connection: Connection, error: Exception | None) -> None:
        """The connection ended; its pending requests have already failed."""


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, an IPv6 host in brackets.

    Raises: ConfigError: anything else.
    """
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigError(f"address {address!r}: expected host:port, as 127.0.0.1:9876")
    return host.strip("[]"), int(port)


def _foreign(data: bytes) -> ProtocolError | None:
    """What a server speaks whose first bytes begin no frame; no frame is as long as these say."""
    if is_record(data):
        return ProtocolError("the server speaks TLS there: give tls=True")
    if data.startswith(b"HTTP/"):
        return ProtocolError(f"an HTTP server answers there: {_WRONG_PORT}")
    return None


class _Answer(ResponseFuture):
    """A future that waits."""

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
    """One TCP connection to a broker or name server; use it on its loop's thread, but for `ask`.

    Make one with `Connection.open`.
    """

    def __init__(
        self, address: str, clock: Clock, config: RemotingConfig, events: ConnectionEvents
    ) -> None:
        self.address = address
        self._clock = clock
        self._events = events
        self._is_binary = config.serialize_type is SerializeType.ROCKETMQ
        self._namespaces = Namespaces.of(config)
        self._credentials = Credentials.of(config)
        self.namespace = config.namespace
        # Whether a request is changed on its way, and its frame must be made by `frame`.
        self.is_framing = self._is_binary or (self._credentials or self._namespaces) is not None
        self._config = config
        self._framer = Framer(config.max_frame_bytes)
        self._loop_thread = threading.get_ident()
        self._transport: asyncio.Transport | None = None
        self._lock = threading.Lock()  # of whoever asks from another thread
        self._pending = ResponseFutures(clock, self._lock, self._tick)
        self._socket: SharedSocket | None = None
        self._out: list[bytes] = []
        self._is_holding = False
        self._after_read: list[Callable[[], object]] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._heard_bytes = 0
        self._heard_commands = 0
        self._last_whole = (0, 0)  # as many of them, when that was last seen to be all or changed
        self._error: Exception | None = None
        self._is_closing = False
        self._ended = asyncio.Event()

    @classmethod
    async def open(
        cls,
        address: str,
        clock: Clock,
        config: RemotingConfig,
        events: ConnectionEvents,
        tls: ssl.SSLContext | None = None,
    ) -> Connection:
        """Connect.

        Args:
            tls: of `tls.client_context`; None speaks without.
        Raises: ConnectFailed: refused, unknown host, no answer in `connect_timeout_ms`, or no
            agreement on TLS.
        """
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(
            lambda: cls(address, clock, config, events),
            host,
            port,
            ssl=tls,
            ssl_shutdown_timeout=None if tls is None else SHUTDOWN_TIMEOUT_S,
        )
        try:
            _, connection = await asyncio.wait_for(opening, config.connect_timeout_ms / 1000)
        except (OSError, TimeoutError) as error:
            is_refused = isinstance(error, ConnectionRefusedError | socket.gaierror)
            if tls is not None and not is_refused:
                raise ConnectFailed(words_for(error, host), address=address) from error
            raise ConnectFailed(
                f"cannot connect: {str(error) or type(error).__name__}; is the server running "
                "there, and the address right?",
                address=address,
            ) from error
        return connection

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """Send and await the answer, whatever its code.

        Raises:
            RequestTimeout: no answer in `timeout_ms`; the outcome is unknown.
            ConnectFailed: the connection was closed before: nothing was sent.
            ConnectionLost: it broke meanwhile; the outcome is unknown.
        """
        return await self.begin_request(command, timeout_ms)

    def begin_request(self, command: Command, timeout_ms: int) -> asyncio.Future[Command]:
        """Put the request on the wire now; the future ends as `request` does."""
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        frame = self.frame(command)  # first: what cannot be written must not stay pending
        self.ask(command.opaque, frame, _Answer(command.code, answer), timeout_ms)
        return answer

    def ask(self, opaque: int, frame: bytes, waiting: ResponseFuture, timeout_ms: int) -> bool:
        """Put a request on the wire that is framed already; from any thread.

        Args:
            opaque: the frame's own.
            waiting: told what came of it, at once if the connection is closed; its `code` is set.
        Returns: False if nothing was done, for only the loop's thread can do it now.
        """
        waiting.deadline_ms = self._clock.now_ms() + timeout_ms
        waiting.heard_bytes = self._heard_bytes
        if threading.get_ident() != self._loop_thread:
            return self._ask_from_outside(opaque, frame, waiting)
        if not self.is_open:
            waiting.failed(self._closed_error(ConnectFailed))
            return True
        if not self._pending.is_ticking:
            self._last_whole = 0, 0  # nobody looked since the last request was answered
        self._pending.add(opaque, waiting)
        self._write(frame)
        return True

    def _ask_from_outside(self, opaque: int, frame: bytes, waiting: ResponseFuture) -> bool:
        shared = self._socket
        if shared is None:
            return False
        with self._lock:  # the connection does not end meanwhile, nor do the looks at time-outs
            if not self._pending.is_ticking or not shared.is_free:
                return False
            # First: the answer may come before `send` returns.
            self._pending.add_from_outside(opaque, waiting)
            try:
                shared.send(frame)
            except OSError as error:
                shared.loop.call_soon_threadsafe(self.abort, error)
        return True

    def send_oneway(self, command: Command) -> None:
        """Send without an answer.

        Raises: ConnectFailed: the connection is closed.
        """
        if not self.is_open:
            raise self._closed_error(ConnectFailed)
        command.flag |= ONEWAY_FLAG
        self._write(self.frame(command))

    def respond(self, request: Command, answer: Command) -> None:
        """Answer a request of the peer; dropped if the connection is gone, like the request."""
        if self._namespaces is not None:
            self._namespaces.wrap_answer(request.code, answer)
        if self._is_binary:
            make_binary(answer)
        if self.is_open:
            self._write(encode(answer))

    async def writable(self) -> None:
        """Return once the peer takes bytes again (back-pressure)."""
        await self._writable.wait()

    @property
    def is_writable(self) -> bool:
        """Whether the peer takes bytes, see `writable`; also once the connection is closed."""
        return self._writable.is_set()

    def frame(self, request: Command) -> bytes:
        """The bytes of a request, as the settings want it: renamed, signed, binary."""
        if self._namespaces is not None:
            self._namespaces.wrap_request(request)
        if self._credentials is not None:
            self._credentials.sign(request)
        if self._is_binary:
            make_binary(request)
        return encode(request)

    def _write(self, frame: bytes) -> None:
        self._out.append(frame)
        if not self._is_holding:
            self._flush()

    def hold(self) -> None:
        """Let what is written wait for `release`, and leave joined; on the loop's thread."""
        self._is_holding = True

    def release(self) -> None:
        """Write what `hold` held."""
        self._is_holding = False
        self._flush()

    def after_read(self, action: Callable[[], object]) -> None:
        """Call `action` once all that came with the answer being told has been looked at, and
        what was written meanwhile is out; from within `ResponseFuture.answered`.
        """
        self._after_read.append(action)

    def _flush(self) -> None:
        if self._socket is not None and self._out and self.is_open:
            self._socket.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        self._out.clear()

    async def close(self) -> None:
        """Close, once what was written is out; pending requests fail with `ConnectionLost`."""
        if self._transport is not None:
            self._is_closing = True
            self._flush()
            if self._socket is not None:
                self._socket.flush()
            self._transport.close()
            await self._ended.wait()

    def abort(self, error: Exception) -> None:
        """Cut the connection because of `error`, which pending requests then see."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # not so by type in uvloop
        self._socket = SharedSocket(self._transport, self._lock)

    def data_received(self, data: bytes) -> None:
        is_first = not self._heard_bytes
        self._heard_bytes += len(data)
        commands: list[Command] = []
        broken = _foreign(data) if is_first else None
        if broken is None:
            try:
                commands = self._framer.feed(data)
            except ProtocolError as error:
                commands, broken = self._framer.completed, error
        self._heard_commands += len(commands)
        self._tell(commands)
        if broken is not None:
            _log.warning("%s: closing, %s", self.address, broken)
            self.abort(broken)

    def _tell(self, commands: list[Command]) -> None:
        # What the answers of one read bring about leaves joined: those to several queues' pulls
        # come in one, and a system call for each next pull cost more than all the rest. Written
        # at the end, not by the loop soon: a listener's thread may come in between.
        self.hold()
        try:
            for command in commands:
                if command.flag & RESPONSE_FLAG:
                    self._settle(command)
                else:
                    if self._namespaces is not None:
                        self._namespaces.unwrap_request(command)
                    self._events.on_request(self, command)
        finally:
            self.release()
        if self._after_read:
            actions, self._after_read = self._after_read, []
            for action in actions:
                action()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._error = self._error or self._explained(error)
        self._writable.set()
        if self._socket is not None:
            self._socket.close()
        for waiting in self._pending.end():
            waiting.failed(self._closed_error(ConnectionLost))
        self._ended.set()
        self._events.on_closed(self, self._error)

    def _settle(self, command: Command) -> None:
        waiting = self._pending.pop(command.opaque)
        if waiting is None:
            # The request timed out before; its caller has already been told.
            _log.debug("%s: answer to no pending request, opaque %d", self.address, command.opaque)
        else:
            if self._namespaces is not None:
                self._namespaces.unwrap_answer(waiting.code, command)
            waiting.answered(command)

    def _explained(self, error: Exception | None) -> Exception | None:
        if isinstance(error, ssl.SSLError):
            return ConnectionError(words_for(error, self.address))
        if self._heard_bytes or self._is_closing:
            return error
        what = f"{error}" if error else "the server closed it"
        return ConnectionError(f"{what} before it said anything: {words_for_silence(self._config)}")

    def _closed_error(
        self, kind: type[ConnectFailed | ConnectionLost]
    ) -> ConnectFailed | ConnectionLost:
        why = f": {self._error}" if self._error else ""
        closed = kind(f"the connection is closed{why}", address=self.address)
        closed.__cause__ = self._error
        return closed

    def _tick(self, now_ms: int) -> None:
        for waiting in self._pending.due(now_ms):
            if waiting.is_over:  # its caller was cancelled
                continue
            silent = "" if self._heard_bytes else f"; it never said a byte: {_WRONG_PORT}"
            error = RequestTimeout(
                f"request {waiting.code} had no answer in time: its outcome is unknown{silent}",
                address=self.address,
            )
            waiting.failed(error)
            if self._heard_bytes == waiting.heard_bytes:
                # Not one byte since the request left: a dead line, which TCP may take
                # minutes to notice. Pending requests fail now and the next one reconnects.
                self.abort(error)
        self._end_stuck_frame(now_ms)

    def _end_stuck_frame(self, now_ms: int) -> None:
        # A length that is wrong, and within bounds, would swallow all answers there will be.
        count, since_ms = self._last_whole
        if not self._framer.buffered_bytes or self._heard_commands != count or not since_ms:
            self._last_whole = self._heard_commands, now_ms
        elif now_ms - since_ms > _FRAME_MS:
            self.abort(
                ProtocolError(
                    f"a frame is not whole after {_FRAME_MS // 1000} s: the server, or what lies "
                    "between, lost some of it"
                )
            )
