"""gRPC over one HTTP/2 connection: calls of one request or of a stream of messages.

http2.py has the frames; this module moves their bytes to and from the socket, and cuts messages
out of streams.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import urllib.parse
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from ordermq import forking
from ordermq.clock import Clock
from ordermq.config import RemotingConfig
from ordermq.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    ProtocolError,
    RemotingError,
    RequestTimeout,
)
from ordermq.grpc.http2 import Headers, Http2, header_block, request_head
from ordermq.grpc.messages import SERVICE
from ordermq.grpc.metadata import Metadata
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.connecting import connect, own_address
from ordermq.remoting.dialer import Dialer, SocketAddress
from ordermq.remoting.tls import describe_tls_error, hint_for_silence
from ordermq.version import VERSION

if TYPE_CHECKING:
    from ordermq.remoting.command import Command

_log = logging.getLogger("ordermq.remoting")
_PREFIX_BYTES = 5  # of a message: whether it is compressed, and its length
_OK, _CANCELLED, _DEADLINE_EXCEEDED = "0", "1", "4"
_PERMISSION_DENIED, _UNIMPLEMENTED, _UNAVAILABLE, _UNAUTHENTICATED = "7", "12", "14", "16"
_CODES = {
    _PERMISSION_DENIED: ResponseCode.NO_PERMISSION,
    _UNAUTHENTICATED: ResponseCode.NO_PERMISSION,
    _UNIMPLEMENTED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    "8": ResponseCode.SYSTEM_BUSY,  # RESOURCE_EXHAUSTED
}


class GrpcEvents(Protocol):
    """Callbacks to the owner of a connection, on the loop's thread."""

    def on_closed(self, connection: GrpcConnection, error: Exception | None) -> None:
        """Handle the end of the connection; its calls have already failed."""


class Call:
    """One call: messages out, messages in, and the status at its end. On the loop's thread."""

    def __init__(self, connection: GrpcConnection, stream_id: int, method: str) -> None:
        self.method = method
        self.stream_id = stream_id
        self.unsent = bytearray()  # behind the peer's window
        self.is_half_closed = False  # all is given that will be sent
        self._connection = connection
        self._partial = bytearray()
        self._messages: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._error: RemotingError | None = None
        self._is_over = False

    def send(self, message: bytes, *, is_last: bool = False) -> None:
        """Send one message; `is_last` ends this side of the call.

        Raises: ConnectionLost: the connection has ended.
        """
        self.unsent += b"\0" + len(message).to_bytes(4, "big") + message
        self.is_half_closed = is_last
        self._connection.flush_call(self)

    async def receive(self) -> bytes | None:
        """Return the next message; None: the call has ended well.

        Raises: BrokerError: it ended with a status. RequestTimeout: the server gave it up.
            ConnectionLost: the connection broke. ProtocolError: what came is malformed.
        """
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self._is_over:
                return None
            self._wake.clear()
            await self._wake.wait()
        return self._messages.popleft()

    def cancel(self) -> None:
        """End the call at once, if it has not ended."""
        if not self._is_over:
            self.end(None)
            self._connection.reset_call(self)

    # For the connection.

    def feed(self, data: bytes, max_bytes: int) -> None:
        """Take bytes of the stream.

        Raises: ProtocolError: they are no messages.
        """
        partial = self._partial
        partial += data
        at = 0
        while len(partial) - at >= _PREFIX_BYTES:
            size = int.from_bytes(partial[at + 1 : at + _PREFIX_BYTES], "big")
            if partial[at]:
                raise ProtocolError(f"{self.method}: a message is compressed, which nobody asked")
            if size > max_bytes:
                raise ProtocolError(
                    f"{self.method}: a message of {size} bytes: over max_frame_bytes={max_bytes}"
                )
            if len(partial) - at - _PREFIX_BYTES < size:
                break
            begin = at + _PREFIX_BYTES
            self._messages.append(bytes(partial[begin : begin + size]))
            at = begin + size
        del partial[:at]
        if self._messages:
            self._wake.set()

    def end(self, error: RemotingError | None) -> None:
        """Note the end; the first one counts."""
        if not self._is_over:
            self._is_over = True
            self._error = error
            self._wake.set()

    @property
    def is_over(self) -> bool:
        return self._is_over


class GrpcConnection(asyncio.Protocol):
    """One connection to a proxy; make one with `open`. On the loop's thread."""

    def __init__(
        self, address: str, clock: Clock, config: RemotingConfig, events: GrpcEvents
    ) -> None:
        self.address = address
        self.peer: SocketAddress | None = None
        self._clock = clock
        self._config = config
        self._events = events
        self._transport: asyncio.Transport | None = None
        self._http2 = Http2(self)
        self._heads: dict[str, bytes] = {}  # the same headers of each call, by method
        self._calls: dict[int, Call] = {}
        self._heard_bytes = 0
        self._error: Exception | None = None
        self._is_leaving = False  # the server has said that it ends this connection
        self._is_closing = False
        self._ended = asyncio.Event()
        self._left = asyncio.Event()  # a call has ended
        self._writable = asyncio.Event()
        self._writable.set()
        self._descriptor = -1

    @classmethod
    async def open(
        cls,
        address: str,
        clock: Clock,
        config: RemotingConfig,
        events: GrpcEvents,
        tls: ssl.SSLContext | None,
        dialer: Dialer,
    ) -> GrpcConnection:
        """Connect.

        Args: tls: from `tls.client_context`; None connects without TLS.
        Raises: ConnectFailed: refused, unknown host, no answer in `connect_timeout_ms`, or the
            TLS handshake failed.
        """
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        make = partial(cls, address, clock, config, events)
        connection, peer = await connect(make, address, config, tls, dialer)
        connection.peer = peer
        return connection

    @property
    def own_address(self) -> str:
        """This side's address."""
        return own_address(self._transport)

    @property
    def has_heard(self) -> bool:
        """True once the server has sent a byte."""
        return self._heard_bytes > 0

    @property
    def is_open(self) -> bool:
        """True while new calls may begin."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and not self._is_leaving

    @property
    def is_writable(self) -> bool:
        """True if the transport accepts bytes now."""
        return self._writable.is_set()

    async def writable(self) -> None:
        """Return once the transport accepts bytes."""
        await self._writable.wait()

    async def unary(
        self, method: str, message: bytes, metadata: Metadata, timeout_ms: int
    ) -> bytes:
        """Send one message and return the answer.

        Raises: as `Call.receive`, and RequestTimeout: no answer in `timeout_ms`. A connection that
            brought not one byte in that time is closed.
        """
        heard, call = self._heard_bytes, None
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await self.room()
                call = self.call(method, metadata, timeout_ms)
                call.send(message, is_last=True)
                answer = await call.receive()
        except TimeoutError as error:
            if isinstance(error, RemotingError):
                raise
            late = RequestTimeout(
                f"{method}: no response in time, its outcome is unknown", address=self.address
            )
            if heard == self._heard_bytes:
                self.abort(late)
            raise late from None
        finally:
            if call is not None:
                call.cancel()
        if answer is None:
            raise ProtocolError(f"{method}: the call ended without an answer", address=self.address)
        return answer

    async def room(self) -> None:
        """Return once the server takes another call, or the connection has ended."""
        while self.is_open and not self._http2.has_room:
            self._left.clear()
            await self._left.wait()

    def call(self, method: str, metadata: Metadata, timeout_ms: int | None) -> Call:
        """Begin a call.

        Args: timeout_ms: the server's time for it; None: no end.
        Raises: ConnectFailed: the connection is closed; nothing was sent.
        """
        if not self.is_open:
            raise ConnectFailed(f"connection is closed{self._why()}", address=self.address)
        head = self._heads.get(method)
        if head is None:
            head = self._heads[method] = self._head(method)
        if timeout_ms is not None:
            metadata = [*metadata, ("grpc-timeout", f"{timeout_ms}m")]
        stream_id = self._http2.begin(head + header_block(metadata))
        call = self._calls[stream_id] = Call(self, stream_id, method)
        return call

    def _head(self, method: str) -> bytes:
        is_tls = self._config.tls
        return request_head(SERVICE + method, self.address, is_tls=is_tls) + header_block(
            [
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", f"ordermq/{VERSION}"),
            ]
        )

    def flush_call(self, call: Call) -> None:
        """Write what a call has to send, as far as the peer's window allows."""
        if call.is_over:
            return
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost(f"connection is closed{self._why()}", address=self.address)
        self._http2.send(call.stream_id, call.unsent, is_last=call.is_half_closed)
        self._write()

    def reset_call(self, call: Call) -> None:
        """Tell the server that nobody waits for a call."""
        if self._calls.pop(call.stream_id, None) is not None:
            self._http2.reset(call.stream_id)
            self._left.set()
            self._write()

    async def close(self) -> None:
        """Close after sending what was written; calls fail with `ConnectionLost`."""
        if self._transport is not None:
            self._is_closing = True
            self._transport.close()
            await self._ended.wait()

    def abort(self, error: Exception) -> None:
        """Cut the connection because of `error`, which is the cause that calls see."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def cork(self) -> None:
        """Nothing: each call is written as it begins."""

    def uncork(self) -> None:
        """Nothing, as `cork`."""

    def _write(self) -> None:
        data = self._http2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by type
        self._descriptor = transport.get_extra_info("socket").fileno()
        forking.keep_from_children(self._descriptor)
        self._write()

    def data_received(self, data: bytes) -> None:
        self._heard_bytes += len(data)
        try:
            self._http2.receive(data)
        except ProtocolError as error:
            _log.warning("%s: closing the connection: %s", self.address, error)
            self.abort(error)
            return
        self._write()

    # Http2Events

    def on_headers(self, stream_id: int, headers: Headers) -> None:
        if (call := self._calls.get(stream_id)) is not None:
            self._take_status(call, headers)

    def on_data(self, stream_id: int, data: bytes) -> None:
        if (call := self._calls.get(stream_id)) is not None:
            try:
                call.feed(data, self._config.max_frame_bytes)
            except ProtocolError as error:
                call.end(error)
                self.reset_call(call)

    def on_stream_end(self, stream_id: int, error: str) -> None:
        self._left.set()
        if (call := self._calls.pop(stream_id, None)) is not None:
            if call.is_over:
                return  # with a status
            why = error or "the server ended it without a status"
            call.end(ConnectionLost(f"{call.method}: {why}", address=self.address))

    def on_window(self, stream_id: int) -> None:
        self._left.set()  # the settings may have made room
        for call in list(self._calls.values()):
            if call.unsent and stream_id in (0, call.stream_id):
                self._http2.send(call.stream_id, call.unsent, is_last=call.is_half_closed)

    def on_goaway(self, last_stream_id: int, reason: str) -> None:
        self._is_leaving = True
        self._error = self._error or ConnectionError(f"the server ends it {reason}".strip())
        for stream_id, call in list(self._calls.items()):
            if stream_id > last_stream_id:
                del self._calls[stream_id]
                call.end(self._closed())

    def _take_status(self, call: Call, headers: Headers) -> None:
        http = headers.get(":status", "200")
        if http != "200":
            call.end(ProtocolError(f"{call.method}: HTTP status {http}", address=self.address))
            return
        status = headers.get("grpc-status")
        if status is None:  # of the first headers: the messages follow
            return
        if status == _OK:
            call.end(None)
            return
        said = urllib.parse.unquote(headers.get("grpc-message", ""))
        call.end(self._error_of(call.method, status, said))

    def _error_of(self, method: str, status: str, said: str) -> RemotingError:
        what = f"{method}: gRPC status {status}" + (f": {said}" if said else "")
        if status == _DEADLINE_EXCEEDED:
            return RequestTimeout(f"{what}; its outcome is unknown", address=self.address)
        if status in (_CANCELLED, _UNAVAILABLE):
            return ConnectionLost(what, address=self.address)
        code = _CODES.get(status, ResponseCode.SYSTEM_ERROR)
        return BrokerError(what, response_code=code, address=self.address)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        forking.closes(self._descriptor)
        self._error = self._error or self._explained(error)
        self._writable.set()
        self._left.set()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.end(self._closed())
        self._ended.set()
        self._events.on_closed(self, self._error)

    def _closed(self) -> ConnectionLost:
        closed = ConnectionLost(f"connection is closed{self._why()}", address=self.address)
        closed.__cause__ = self._error
        return closed

    def _why(self) -> str:
        return f": {self._error}" if self._error else ""

    def _explained(self, error: Exception | None) -> Exception | None:
        if isinstance(error, ssl.SSLError):
            return ConnectionError(describe_tls_error(error, self.address))
        if self._heard_bytes or self._is_closing:
            return error
        what = f"{error}" if error else "the server closed it"
        return ConnectionError(f"{what} without sending anything: {hint_for_silence(self._config)}")

    def respond(self, request: Command, answer: Command) -> None:
        """Nothing: a proxy sends no requests of the remoting protocol."""
