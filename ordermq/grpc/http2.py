"""The client side of HTTP/2 (RFC 9113), as far as gRPC needs it: frames, streams, flow control.

It does no input or output: bytes that were received go in, bytes to be sent come out. h2, which
does the same and more, took three times as long for a call (docs/grpc.md#the-library). Headers are
decoded by hpack. The server is told to keep no table of them, so that the same headers come as the
same bytes, and are decoded once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from ordermq.errors import ProtocolError
from ordermq.lazy_imports import needed_from

with needed_from("grpc"):
    import hpack

Headers = dict[str, str]

WRONG_PORT = "is that the address of a proxy's port for gRPC (8081)"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS = 0, 1, 2, 3, 4
_PUSH_PROMISE, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 5, 6, 7, 8, 9
_ACK = _END_STREAM = 0x1
_END_HEADERS, _PADDED, _HAS_PRIORITY = 0x4, 0x8, 0x20
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _MAX_STREAMS = 1, 2, 3
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5
_CANCEL = 8
_HEAD_BYTES = 9
_MAX_FRAME_BYTES = 16_384  # of received frames: the default, which is never raised here
_DEFAULT_WINDOW = 65_535
_DEFAULT_STREAMS = 100  # until the server has said how many it takes
_MAX_WINDOW = (1 << 31) - 1
_MAX_HEADER_BYTES = 65_536
_WINDOW_BYTES = 4 << 20  # what a server may send before it is read: a batch of large messages
_UPDATE_BYTES = _WINDOW_BYTES // 2
_MAX_CACHED = 256  # header blocks
_SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")
_HEAD = struct.Struct(">BHBBI")  # of a frame: its length in three bytes, kind, flags, stream
# Literal fields without indexing, of a name in the static table (RFC 7541, appendix A).
_POST, _HTTP, _HTTPS = b"\x83", b"\x86", b"\x87"
_AUTHORITY, _PATH = b"\x01", b"\x04"


class Http2Events(Protocol):
    """Callbacks of what was received."""

    def on_headers(self, stream_id: int, headers: Headers) -> None:
        """Take the first headers of an answer, or its trailers."""

    def on_data(self, stream_id: int, data: bytes) -> None:
        """Take data of a stream."""

    def on_stream_end(self, stream_id: int, error: str) -> None:
        """Take the end of a stream; `error` is empty if the server ended it in order."""

    def on_window(self, stream_id: int) -> None:
        """Send what waits for the window of a stream; 0: of all."""

    def on_goaway(self, last_stream_id: int, reason: str) -> None:
        """Begin no stream any more; those behind `last_stream_id` were not looked at."""


class Http2:
    """One connection of a client.

    Args: events: called from within `receive`.
    """

    def __init__(self, events: Http2Events) -> None:
        self._events = events
        self._buffer = bytearray()
        self._out = bytearray(_PREFACE)
        self._next_id = 1
        self._decoder = hpack.Decoder()
        self._decoded: dict[bytes, Headers] = {}
        self._is_greeted = False  # the server's settings have come, which are its first frame
        self._block: tuple[int, bool, bytearray] | None = None  # headers that continue
        self._window = _DEFAULT_WINDOW  # of the connection, as of each stream: what may be sent
        self._windows: dict[int, int] = {}
        self._first_window = _DEFAULT_WINDOW
        self._max_streams = _DEFAULT_STREAMS
        self._max_frame_bytes = _MAX_FRAME_BYTES
        self._unread: dict[int, int] = {}  # bytes received since the last update, 0: of all
        settings = (
            (_HEADER_TABLE_SIZE, 0),
            (_ENABLE_PUSH, 0),
            (_INITIAL_WINDOW_SIZE, _WINDOW_BYTES),
        )
        self._frame(_SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in settings))
        self._frame(_WINDOW_UPDATE, 0, 0, _NUMBER.pack(_WINDOW_BYTES))

    def data_to_send(self) -> bytes:
        """Return, once, the bytes to write now."""
        data = bytes(self._out)
        self._out.clear()
        return data

    @property
    def has_room(self) -> bool:
        """True if the server takes another stream."""
        return len(self._windows) < self._max_streams

    def begin(self, block: bytes) -> int:
        """Begin a stream with a block of headers; return its number."""
        stream_id = self._next_id
        self._next_id += 2
        self._windows[stream_id] = self._first_window
        parts = [
            block[at : at + self._max_frame_bytes]
            for at in range(0, len(block), self._max_frame_bytes)
        ]
        for number, part in enumerate(parts):
            flags = _END_HEADERS if number == len(parts) - 1 else 0
            self._frame(_CONTINUATION if number else _HEADERS, flags, stream_id, part)
        return stream_id

    def request(self, block: bytes, message: bytes) -> int | None:
        """Begin a stream, send a message and this side's end; return the stream's number.

        None: one of them is larger than a frame or a window; nothing was sent.
        """
        size = len(message)
        room = min(self._max_frame_bytes, self._window, self._first_window)
        if size > room or len(block) > self._max_frame_bytes:
            return None
        stream_id = self._next_id
        self._next_id += 2
        self._window -= size
        self._windows[stream_id] = self._first_window - size
        # In one step: with a call for each frame this took twice as long.
        self._out += b"%b%b%b%b" % (
            _HEAD.pack(len(block) >> 16, len(block) & 0xFFFF, _HEADERS, _END_HEADERS, stream_id),
            block,
            _HEAD.pack(size >> 16, size & 0xFFFF, _DATA, _END_STREAM, stream_id),
            message,
        )
        return stream_id

    def send(self, stream_id: int, data: bytearray, *, is_last: bool) -> None:
        """Send what the windows allow, and take it off `data`; `is_last`: with the stream's end."""
        while data and stream_id in self._windows:
            size = min(self._window, self._windows[stream_id], self._max_frame_bytes, len(data))
            if size <= 0:
                return
            part = bytes(data[:size])
            del data[:size]
            self._window -= size
            self._windows[stream_id] -= size
            flags = _END_STREAM if is_last and not data else 0
            self._frame(_DATA, flags, stream_id, part)

    def reset(self, stream_id: int) -> None:
        """Tell the server that nobody wants the rest of a stream."""
        if self._windows.pop(stream_id, None) is not None:
            self._unread.pop(stream_id, None)
            self._frame(_RST_STREAM, 0, stream_id, _NUMBER.pack(_CANCEL))

    def receive(self, data: bytes) -> None:
        """Take received bytes.

        Raises: ProtocolError: they are not HTTP/2; the connection cannot go on.
        """
        buffer = self._buffer
        found: bytes | bytearray = data
        if buffer:
            buffer += data
            found = buffer
        # Before a whole frame has come: the answer of another protocol may be shorter than one.
        if not self._is_greeted and len(found) > 3:
            self._check_greeting(found[3])
        at, size = 0, len(found)
        while size - at >= _HEAD_BYTES:
            high, low, kind, flags, stream_id = _HEAD.unpack_from(found, at)
            begin = at + _HEAD_BYTES
            end = begin + low
            if high or low > _MAX_FRAME_BYTES:
                raise ProtocolError(
                    f"a frame of HTTP/2 has {high << 16 | low} bytes: over {_MAX_FRAME_BYTES}"
                )
            if size < end:
                break
            if not self._is_greeted:
                self._check_greeting(kind, flags)
            at = end
            self._take(kind, flags, stream_id & _MAX_WINDOW, bytes(found[begin:end]))
        if found is buffer:
            del buffer[:at]
        else:
            buffer += data[at:]

    def _check_greeting(self, kind: int, flags: int = 0) -> None:
        if kind != _SETTINGS or flags & _ACK:
            raise ProtocolError(
                f"the server does not speak HTTP/2: {WRONG_PORT}, and does it want TLS?"
            )

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is not None and kind != _CONTINUATION:
            raise ProtocolError("headers of HTTP/2 are not continued")
        if kind == _HEADERS:  # first: most answers have two, and one frame of data
            self._take_headers(flags, stream_id, payload)
        elif kind == _DATA:
            self._take_data(flags, stream_id, payload)
        elif kind == _CONTINUATION:
            self._take_continuation(flags, stream_id, payload)
        elif kind == _SETTINGS:
            self._take_settings(flags, payload)
        elif kind == _WINDOW_UPDATE:
            self._take_window(stream_id, _number(payload) & _MAX_WINDOW)
        elif kind == _RST_STREAM:
            self._end(stream_id, f"the server cut it (error {_number(payload)} of HTTP/2)")
        elif kind == _PING:
            if not flags & _ACK:
                self._frame(_PING, _ACK, 0, payload)
        elif kind == _GOAWAY:
            if len(payload) < 8:
                raise ProtocolError("a GOAWAY of HTTP/2 is too short")
            reason = payload[8:].decode("utf-8", "replace")
            self._events.on_goaway(_number(payload) & _MAX_WINDOW, reason)
        elif kind == _PUSH_PROMISE:
            raise ProtocolError("the server pushes a stream, which it was told not to")
        # PRIORITY and whatever is not known yet means nothing here.

    def _take_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ProtocolError("data of HTTP/2 without a stream")
        self._read(0, len(payload))
        if stream_id not in self._windows:
            return  # of a stream that was reset
        data = _unpadded(payload) if flags & _PADDED else payload
        if data:
            self._events.on_data(stream_id, data)
        if flags & _END_STREAM:
            self._end(stream_id, "")
        else:
            self._read(stream_id, len(payload))

    def _read(self, stream_id: int, size: int) -> None:
        """Count received bytes, and let the server send as many again."""
        unread = self._unread.get(stream_id, 0) + size
        if unread >= _UPDATE_BYTES:
            self._frame(_WINDOW_UPDATE, 0, stream_id, _NUMBER.pack(unread))
            unread = 0
        self._unread[stream_id] = unread

    def _take_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ProtocolError("headers of HTTP/2 without a stream")
        block = _unpadded(payload) if flags & _PADDED else payload
        if flags & _HAS_PRIORITY:
            block = block[5:]
        if flags & _END_HEADERS:
            self._take_block(stream_id, block, is_end=bool(flags & _END_STREAM))
        else:
            self._block = stream_id, bool(flags & _END_STREAM), bytearray(block)

    def _take_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise ProtocolError("a continuation of HTTP/2 follows no headers")
        _, is_end, block = self._block
        block += payload
        if len(block) > _MAX_HEADER_BYTES:
            raise ProtocolError(f"headers of HTTP/2 are over {_MAX_HEADER_BYTES} bytes")
        if flags & _END_HEADERS:
            self._block = None
            self._take_block(stream_id, bytes(block), is_end=is_end)

    def _take_block(self, stream_id: int, block: bytes, *, is_end: bool) -> None:
        headers = self._decoded.get(block)
        if headers is None:
            headers = self._decode(block)
        if stream_id in self._windows:
            self._events.on_headers(stream_id, headers)
            if is_end:
                self._end(stream_id, "")

    def _decode(self, block: bytes) -> Headers:
        had_table = bool(self._decoder.header_table_size)
        try:
            headers = {
                _text(name): _text(value) for name, value in self._decoder.decode(block, raw=True)
            }
        except (hpack.HPACKError, UnicodeDecodeError) as error:
            raise ProtocolError(f"headers of HTTP/2 are malformed: {error}") from error
        # With a table the same bytes may mean something else the next time.
        if not had_table and not self._decoder.header_table_size:
            if len(self._decoded) >= _MAX_CACHED:
                self._decoded.clear()
            self._decoded[block] = headers
        return headers

    def _take_settings(self, flags: int, payload: bytes) -> None:
        if flags & _ACK:
            return
        if not self._is_greeted:
            self._is_greeted, self._max_streams = True, _MAX_WINDOW  # if it names no number
        if len(payload) % _SETTING.size:
            raise ProtocolError(f"settings of HTTP/2 have {len(payload)} bytes")
        for name, value in _SETTING.iter_unpack(payload):
            if name == _INITIAL_WINDOW_SIZE:
                if value > _MAX_WINDOW:
                    raise ProtocolError(f"a window of HTTP/2 has {value} bytes")
                more, self._first_window = value - self._first_window, value
                for stream_id in self._windows:
                    self._windows[stream_id] += more
            elif name == _MAX_STREAMS:
                self._max_streams = value
            elif name == _MAX_FRAME_SIZE:
                if not _MAX_FRAME_BYTES <= value < 1 << 24:
                    raise ProtocolError(f"frames of HTTP/2 are to have {value} bytes")
                self._max_frame_bytes = value
        self._frame(_SETTINGS, _ACK, 0, b"")
        self._events.on_window(0)

    def _take_window(self, stream_id: int, more: int) -> None:
        if not stream_id:
            self._window += more
        elif stream_id in self._windows:
            self._windows[stream_id] += more
        if self._window > _MAX_WINDOW or self._windows.get(stream_id, 0) > _MAX_WINDOW:
            raise ProtocolError("a window of HTTP/2 is too large")
        self._events.on_window(stream_id)

    def _end(self, stream_id: int, error: str) -> None:
        if self._windows.pop(stream_id, None) is not None:
            self._unread.pop(stream_id, None)
            self._events.on_stream_end(stream_id, error)

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._out += _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id)
        self._out += payload


def request_head(path: str, authority: str, *, is_tls: bool) -> bytes:
    """Return the block of the headers that are those of each request to a path."""
    return b"".join(
        (
            _POST,
            _HTTPS if is_tls else _HTTP,
            _PATH + _string(path),
            _AUTHORITY + _string(authority),
        )
    )


def header_block(headers: Sequence[tuple[str, str]]) -> bytes:
    """Return a block of headers, as literals that no table remembers."""
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in headers)


def _string(text: str) -> bytes:
    data = text.encode()
    size = len(data)
    if size < 127:
        return bytes((size,)) + data
    out = bytearray(b"\x7f")
    size -= 127
    while size >= 128:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out) + data


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ProtocolError("a frame of HTTP/2 has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]


def _number(payload: bytes) -> int:
    if len(payload) < 4:
        raise ProtocolError("a frame of HTTP/2 is too short")
    return int.from_bytes(payload[:4], "big")


def _text(part: str | bytes) -> str:
    return part.decode() if isinstance(part, bytes) else part
