"""Streams of bytes to commands and back; no I/O, shared by client and broker
(docs/internals/protocol.md#frame)."""

from __future__ import annotations

import struct

from ordermq.errors import ProtocolError
from ordermq.remoting.command import Command, Serialization
from ordermq.remoting.header_codec import decode_binary, decode_json, encode_binary, encode_json

_WORDS = struct.Struct(">iI")  # length behind itself; serialization << 24 | header length
MAX_FRAME_BYTES = 16_777_216


def encode(command: Command) -> bytes:
    """One frame."""
    if command.serialization is Serialization.JSON:
        header = encode_json(command)
    else:
        header = encode_binary(command)
    mark = command.serialization << 24 | len(header)
    return b"".join((_WORDS.pack(4 + len(header) + len(command.body), mark), header, command.body))


class Framer:
    """Cuts a stream into commands.

    Args:
        max_frame_bytes: a longer frame is refused before its bytes are awaited.
    Attributes:
        completed: after a `feed` that raised, the commands that came whole before the bytes
            that cannot be understood; they are as good as any.
    """

    __slots__ = ("_buffer", "_max_frame_bytes", "completed")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self.completed: list[Command] = []

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Command]:
        """Take the next bytes and return the commands they complete, in order.

        Raises: ProtocolError: the stream cannot be understood from here on: use what
            `completed` has, and close it.
        O(bytes): a body is copied out of the stream, twice if it came in pieces.
        """
        source = data
        if self._buffer:
            if self._is_far_from_whole(len(data)):
                self._buffer += data
                return []
            source = b"".join((self._buffer, data))
            self._buffer.clear()
        commands: list[Command] = []
        at, end = 0, len(source)
        try:
            while end - at >= 8:
                length, mark = _WORDS.unpack_from(source, at)
                header_size = mark & 0xFFFFFF
                if length < 4 or length + 4 > self._max_frame_bytes:
                    raise ProtocolError(
                        f"frame of {length + 4} bytes: expected 8..{self._max_frame_bytes}"
                    )
                if header_size > length - 4:
                    raise ProtocolError(
                        f"header of {header_size} bytes in a frame of {length + 4} bytes"
                    )
                if end - at < 4 + length:
                    break
                body_start, next_at = at + 8 + header_size, at + 4 + length
                header = source[at + 8 : body_start]
                commands.append(_decode(mark >> 24, header, source[body_start:next_at]))
                at = next_at
        except ProtocolError:
            self.completed = commands
            raise
        finally:
            if at < end:
                self._buffer += source[at:]
        return commands

    def _is_far_from_whole(self, more: int) -> bool:
        """Whether the frame in the buffer, of a length we take, misses more bytes than that."""
        if len(self._buffer) < 8:
            return False
        length: int = _WORDS.unpack_from(self._buffer)[0]
        return len(self._buffer) + more < 4 + length <= self._max_frame_bytes


def _decode(serialization: int, header: bytes, body: bytes) -> Command:
    if serialization == Serialization.JSON:
        return decode_json(header, body)
    if serialization == Serialization.ROCKETMQ:
        return decode_binary(header, body)
    raise ProtocolError(f"header serialization {serialization}: expected 0 (JSON) or 1 (ROCKETMQ)")
