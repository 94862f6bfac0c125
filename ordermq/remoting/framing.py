"""Commands as bytes and back: frames and their headers, without I/O, for client and broker alike
(docs/internals/protocol.md#frame).

The header travels as JSON (docs/internals/protocol.md#json-header) or in RocketMQ's binary form
(docs/internals/protocol.md#binary-header).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from ordermq.core import read_header
from ordermq.errors import ProtocolError
from ordermq.remoting.codes import LanguageCode, PullFlag, RequestCode
from ordermq.remoting.command import Command, Serialization
from ordermq.remoting.headers import PullHeader

_WORDS = struct.Struct(">iI")  # length behind itself; serialization << 24 | header length
MAX_FRAME_BYTES = 16_777_216
_BINARY_HEAD = struct.Struct(">hBhii")  # code, language, version, opaque, flag
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_LANGUAGE_NAMES = {code.value: code.name for code in LanguageCode}
_LANGUAGE_CODES = {code.name: code.value for code in LanguageCode}
_OFFSET, _OPAQUE = 7_777_777, 8_888_888
# Quotes within a text are escaped, so these are the members and nothing else.
_OFFSET_MEMBER, _OPAQUE_MEMBER = b'"queueOffset":"%d"' % _OFFSET, b'"opaque":%d' % _OPAQUE


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


class PullFrames:
    """Makes the frames of pulls that differ in their offset only.

    Args:
        header: the pull; its offset does not count.
    """

    def __init__(self, header: PullHeader) -> None:
        self._header = header
        command = self.command(_OFFSET, _OPAQUE)
        before, _, rest = encode(command)[8:].partition(_OFFSET_MEMBER)
        between, _, after = rest.partition(_OPAQUE_MEMBER)
        self._parts = before + b'"queueOffset":"', b'"' + between + b'"opaque":', after
        self.code = command.code

    def command(self, offset: int, opaque: int) -> Command:
        """The pull at `offset` as a command, for who must sign it."""
        code = RequestCode.PULL_MESSAGE
        if self._header.sys_flag & PullFlag.LITE:
            code = RequestCode.LITE_PULL_MESSAGE
        header = replace(self._header, queue_offset=offset)
        return Command(code, header.to_ext(), opaque=opaque)

    def frame(self, offset: int, opaque: int) -> bytes:
        """The pull at `offset` as `encode` writes it."""
        before, between, after = self._parts
        text = b"%b%d%b%d%b" % (before, offset, between, opaque, after)
        return _WORDS.pack(len(text) + 4, len(text)) + text


def encode_json(command: Command) -> bytes:
    """Write a JSON header; members in Java's order, nulls left out."""
    members: dict[str, Any] = {
        "code": command.code,
        "extFields": command.ext,
        "flag": command.flag,
        "language": _LANGUAGE_NAMES.get(command.language, "OTHER"),
        "opaque": command.opaque,
    }
    if command.remark is not None:
        members["remark"] = command.remark
    members["serializeTypeCurrentRPC"] = "JSON"
    members["version"] = command.version
    return orjson.dumps(members)


def decode_json(header: bytes | memoryview, body: bytes) -> Command:
    """Read a JSON header; unknown members are ignored, missing ones defaulted.

    Raises: ProtocolError: not a JSON object, or a member of the wrong kind.
    """
    try:
        members = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"command header is not JSON: {error}") from None
    if not isinstance(members, dict):
        raise ProtocolError(f"command header is a JSON {type(members).__name__}, not an object")
    get = members.get
    language = _language(get("language", "JAVA"))
    ext = get("extFields") or {}
    remark = get("remark")
    code, opaque, flag, version = get("code"), get("opaque", 0), get("flag", 0), get("version", 0)
    if not (type(code) is type(opaque) is type(flag) is type(version) is int):
        raise ProtocolError(
            f"command header: code, opaque, flag, version are {(code, opaque, flag, version)!r}, "
            "expected numbers"
        )
    if not isinstance(ext, dict) or not (remark is None or isinstance(remark, str)):
        raise ProtocolError("command header: extFields must be an object, remark a text")
    for name, value in ext.items():
        if type(value) is not str:
            ext[name] = _as_text(name, value)
    return Command(
        code,
        ext,
        body,
        remark,
        opaque,
        flag,
        language,
        version,
    )


def _language(value: object) -> int:
    if type(value) is int:
        return value
    if value is None or isinstance(value, str):
        return _LANGUAGE_CODES.get(value or "", LanguageCode.OTHER)
    raise ProtocolError(f"command header: language is a {type(value).__name__}")


def _as_text(name: str, value: object) -> str:
    # Java coerces what other clients send unquoted.
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, int | float):
        return str(value)
    raise ProtocolError(f"command header: extFields.{name} is a {type(value).__name__}")


def make_binary(command: Command) -> None:
    """Have it written in the binary form, if that can carry its code; else it stays as it is."""
    if -32_768 <= command.code <= 32_767:
        command.serialization = Serialization.ROCKETMQ


def encode_binary(command: Command) -> bytes:
    """Write a ROCKETMQ header.

    Raises: ProtocolError: the code does not fit into 16 bits.
    """
    if not -32_768 <= command.code <= 32_767:
        raise ProtocolError(f"code {command.code} does not fit the binary header: use JSON")
    remark = (command.remark or "").encode()
    ext = _encode_ext(command.ext)
    return b"".join(
        (
            _BINARY_HEAD.pack(
                command.code, command.language, command.version, command.opaque, command.flag
            ),
            _INT.pack(len(remark)),
            remark,
            _INT.pack(len(ext)),
            ext,
        )
    )


def _encode_ext(ext: Mapping[str, str]) -> bytes:
    parts: list[bytes] = []
    for name, value in ext.items():
        raw_name, raw_value = name.encode(), value.encode()
        parts += (_SHORT.pack(len(raw_name)), raw_name, _INT.pack(len(raw_value)), raw_value)
    return b"".join(parts)


def decode_binary(header: bytes, body: bytes) -> Command:
    """Read a ROCKETMQ header; every length is checked before use.

    Raises: ProtocolError: truncated, a length out of bounds, text that is not UTF-8.
    """
    code, language, version, opaque, flag, remark, ext = read_header(header)
    return Command(
        code, ext, body, remark or None, opaque, flag, language, version, Serialization.ROCKETMQ
    )
