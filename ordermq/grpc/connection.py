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
from functools import lru_cache, partial
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
from ordermq.grpc.http2 import WRONG_PORT, Headers, Http2, header_block, request_head
from ordermq.grpc.messages import SERVICE
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.connecting import connect, own_address
from ordermq.remoting.dialer import Dialer, SocketAddress
from ordermq.remoting.response_futures import ResponseFutures
from ordermq.remoting.time_limit import time_limit
from ordermq.remoting.tls import describe_tls_error, hint_for_silence
from ordermq.threads import Lock
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


@lru_cache(maxsize=256)  # nearly all calls have one of few
def _timeout_field(timeout_ms: int) -> bytes:
    return header_block([("grpc-timeout", f"{timeout_ms}m")])


def _framed(message: bytes) -> bytes:
    """Return a message as gRPC puts it into a stream: not compressed, its length before it."""
    return b"\0%b%b" % (len(message).to_bytes(4, "big"), message)


class Exchange:
    """One call: messages out, messages in, and the status at its end. On the loop's thread."""

    __slots__ = (
        "_connection", "_partial", "is_half_closed", "is_over", "method", "stream_id", "unsent",
    )  # fmt: skip

    def __init__(self, connection: GrpcConnection, stream_id: int, method: str) -> None:
        self.method = method
        self.stream_id = stream_id
        self.unsent = bytearray()  # behind the peer's window
        self.is_half_closed = False  # all is given that will be sent
        self.is_over = False
        self._connection = connection
        self._partial = bytearray()  # of a message

    def send(self, message: bytes, *, is_last: bool = False) -> None:
        """Send one message; `is_last` ends this side of the call.

        Raises: ConnectionLost: the connection has ended.
        """
        self.unsent += _framed(message)
        self.is_half_closed = is_last
        self._connection.flush_call(self)

    # For the connection.

    def feed(self, data: bytes, max_bytes: int) -> None:
        """Take bytes of the stream.

        Raises: ProtocolError: they are no messages.
        """
        partial = self._partial
        found: bytes | bytearray = data
        if partial:
            partial += data
            found = partial
        at = 0
        while len(found) - at >= _PREFIX_BYTES:
            begin = at + _PREFIX_BYTES
            size = int.from_bytes(found[at + 1 : begin], "big")
            if found[at]:
                raise ProtocolError(f"{self.method}: a message is compressed, which nobody asked")
            if size > max_bytes:
                raise ProtocolError(
                    f"{self.method}: a message of {size} bytes: over max_frame_bytes={max_bytes}"
                )
            if len(found) - begin < size:
                break
            at = begin + size
            self.take(bytes(found[begin:at]))
        if found is partial:
            del partial[:at]
        else:
            partial += data[at:]

    def take(self, message: bytes) -> None:
        """Take a message."""
        raise NotImplementedError

    def end(self, error: RemotingError | None) -> None:
        """Note the end; the first one counts."""
        raise NotImplementedError


class Call(Exchange):
    """A call whose messages are awaited one by one."""

    __slots__ = ("_error", "_messages", "_wake")

    def __init__(self, connection: GrpcConnection, stream_id: int, method: str) -> None:
        super().__init__(connection, stream_id, method)
        self._messages: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._error: RemotingError | None = None

    async def receive(self) -> bytes | None:
        """Return the next message; None: the call has ended well.

        Raises: BrokerError: it ended with a status. RequestTimeout: the server gave it up.
            ConnectionLost: the connection broke. ProtocolError: what came is malformed.
        """
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self.is_over:
                return None
            self._wake.clear()
            await self._wake.wait()
        return self._messages.popleft()

    def cancel(self) -> None:
        """End the call at once, if it has not ended."""
        if not self.is_over:
            self.end(None)
            self._connection.reset_call(self)

    def take(self, message: bytes) -> None:
        self._messages.append(message)
        self._wake.set()

    def end(self, error: RemotingError | None) -> None:
        if not self.is_over:
            self.is_over = True
            self._error = error
            self._wake.set()


class Asker(Protocol):
    """Whoever has asked for one message; told the outcome once, on the loop's thread."""

    def answered(self, data: bytes) -> None:
        """Take the answer; must not raise."""

    def failed(self, error: RemotingError) -> None:
        """Take one of the errors of `Call.receive` instead; must not raise."""


class UnaryCall(Exchange):
    """A call of one message each way. There is no task for it, and no timer of its own.

    Attributes:
        deadline_ms: the connection then ends it.
        heard_bytes: received on the connection when it began.
    """

    __slots__ = ("_answer", "_asker", "deadline_ms", "heard_bytes")

    def __init__(
        self, connection: GrpcConnection, stream_id: int, method: str, asker: Asker
    ) -> None:
        super().__init__(connection, stream_id, method)
        self.deadline_ms = 0
        self.heard_bytes = 0
        self._asker = asker
        self._answer: bytes | None = None

    def take(self, message: bytes) -> None:
        self._answer = message

    def end(self, error: RemotingError | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._connection.settled(self)
        if error is not None:
            self._asker.failed(error)
        elif self._answer is None:
            self._asker.failed(
                ProtocolError(
                    f"{self.method}: the call ended without an answer",
                    address=self._connection.address,
                )
            )
        else:
            self._asker.answered(self._answer)

    def cancel(self) -> None:
        """End it at once, if it has not ended; nobody is told."""
        if not self.is_over:
            self.is_over = True
            self._connection.settled(self)
            self._connection.reset_call(self)


class _Awaited:
    """Lets a coroutine wait for the outcome of a unary call."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def answered(self, data: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result(data)

    def failed(self, error: RemotingError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


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
        self._calls: dict[int, Exchange] = {}
        # No thread but the loop's adds to them, so nobody else takes the lock.
        self._unary_calls: ResponseFutures[UnaryCall] = ResponseFutures(
            clock, Lock(), self._end_late
        )
        self._is_corked = False
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

    @property
    def has_room(self) -> bool:
        """True if the server takes another call now."""
        return self._http2.has_room

    async def ready(self) -> None:
        """Return once the transport accepts bytes and the server another call."""
        await self._writable.wait()
        await self.room()

    async def unary(self, method: str, message: bytes, metadata: bytes, timeout_ms: int) -> bytes:
        """Send one message and return the answer.

        Raises: as `Call.receive`, and RequestTimeout: no answer in `timeout_ms`. A connection that
            brought not one byte in that time is closed.
        """
        if not self._http2.has_room:
            heard, end_ms = self._heard_bytes, self._clock.now_ms() + timeout_ms
            try:
                async with time_limit(timeout_ms / 1_000):
                    await self.room()
            except TimeoutError:
                raise self._late(method, heard) from None
            timeout_ms = max(end_ms - self._clock.now_ms(), 1)
        awaited = _Awaited()
        asked = self.ask(method, message, metadata, timeout_ms, awaited)
        try:
            return await awaited.answer
        finally:
            asked.cancel()

    async def room(self) -> None:
        """Return once the server takes another call, or the connection has ended."""
        while self.is_open and not self._http2.has_room:
            self._left.clear()
            await self._left.wait()

    def call(self, method: str, metadata: bytes, timeout_ms: int | None) -> Call:
        """Begin a call.

        Args:
            metadata: a block of headers.
            timeout_ms: the server's time for it; None: no end.
        Raises: ConnectFailed: the connection is closed; nothing was sent.
        """
        stream_id = self._http2.begin(self._head_of(method, metadata, timeout_ms))
        call = self._calls[stream_id] = Call(self, stream_id, method)
        return call

    def ask(
        self, method: str, message: bytes, metadata: bytes, timeout_ms: int, asker: Asker
    ) -> UnaryCall:
        """Send one message; the asker is told the outcome, RequestTimeout after `timeout_ms`.

        Raises: as `call`.
        """
        head = self._head_of(method, metadata, timeout_ms)
        stream_id = self._http2.request(head, _framed(message))
        is_sent = stream_id is not None
        if stream_id is None:
            stream_id = self._http2.begin(head)
        asked = self._calls[stream_id] = UnaryCall(self, stream_id, method, asker)
        asked.deadline_ms = self._clock.now_ms() + timeout_ms
        asked.heard_bytes = self._heard_bytes
        self._unary_calls.add(stream_id, asked)
        if is_sent:
            self._write()
        else:
            asked.send(message, is_last=True)
        return asked

    def settled(self, asked: UnaryCall) -> None:
        """Forget the deadline of a unary call that has ended."""
        self._unary_calls.pop(asked.stream_id)

    def _head_of(self, method: str, metadata: bytes, timeout_ms: int | None) -> bytes:
        if not self.is_open:
            raise ConnectFailed(f"connection is closed{self._why()}", address=self.address)
        head = self._heads.get(method)
        if head is None:
            head = self._heads[method] = self._head(method)
        if timeout_ms is None:
            return head + metadata
        return head + metadata + _timeout_field(timeout_ms)

    def _end_late(self, now_ms: int) -> None:
        for asked in self._unary_calls.due(now_ms):
            self.reset_call(asked)
            asked.end(self._late(asked.method, asked.heard_bytes))

    def _late(self, method: str, heard_bytes: int) -> RequestTimeout:
        """Return the error of a call without an answer; end a connection that brought nothing."""
        late = RequestTimeout(
            f"{method}: no response in time, its outcome is unknown", address=self.address
        )
        if heard_bytes == self._heard_bytes:
            self.abort(late)
        return late

    def _head(self, method: str) -> bytes:
        is_tls = self._config.tls
        return request_head(SERVICE + method, self.address, is_tls=is_tls) + header_block(
            [
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", f"ordermq/{VERSION}"),
            ]
        )

    def flush_call(self, call: Exchange) -> None:
        """Write what a call has to send, as far as the peer's window allows."""
        if call.is_over:
            return
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost(f"connection is closed{self._why()}", address=self.address)
        self._http2.send(call.stream_id, call.unsent, is_last=call.is_half_closed)
        self._write()

    def reset_call(self, call: Exchange) -> None:
        """Tell the server that nobody waits for a call."""
        if self._calls.pop(call.stream_id, None) is not None:
            self._http2.reset(call.stream_id)
            self._left.set()
            self._write()

    async def close(self) -> None:
        """Close after sending what was written; calls fail with `ConnectionLost`."""
        if self._transport is not None:
            self._is_closing = True
            if not self._transport.is_closing():  # once, as in the broker's connection
                self._transport.close()
            await self._ended.wait()

    def abort(self, error: Exception) -> None:
        """Cut the connection because of `error`, which is the cause that calls see."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def cork(self) -> None:
        """Hold back what is written until `uncork`."""
        self._is_corked = True

    def uncork(self) -> None:
        """Write what `cork` held back, at once."""
        self._is_corked = False
        self._write()

    def _write(self) -> None:
        if self._is_corked:
            return
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
        # What was answered together is often followed by as many calls: one system call for each
        # cost more than to encode them.
        self.cork()
        try:
            self._http2.receive(data)
        except ProtocolError as error:
            _log.warning("%s: closing the connection: %s", self.address, error)
            self.abort(error)
        finally:
            self.uncork()

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

    def _take_status(self, call: Exchange, headers: Headers) -> None:
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
        self._unary_calls.end()
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
        # Name servers and brokers close what does not speak their protocol.
        hint = f"{WRONG_PORT}, and {hint_for_silence(self._config)}"
        return ConnectionError(f"{what} without sending anything: {hint}")

    def respond(self, request: Command, answer: Command) -> None:
        """Nothing: a proxy sends no requests of the remoting protocol."""
