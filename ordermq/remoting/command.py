"""Commands, the requests and responses of the protocol, and their frames, without I/O; for client
and broker (docs/internals/protocol.md#frame).

The header of a frame travels as JSON (docs/internals/protocol.md#json-header) or in RocketMQ's
binary form (docs/internals/protocol.md#binary-header).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from ordermq import json_text
from ordermq.core import read_header
from ordermq.errors import ProtocolError
from ordermq.remoting.codes import PROTOCOL_VERSION, LanguageCode
from ordermq.value import Record

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
_WORDS = struct.Struct(">iI")  # length after itself; serialization << 24 | header length
MAX_FRAME_BYTES = 16_777_216
_BINARY_HEAD = struct.Struct(">hBhii")  # code, language, version, opaque, flag
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_LANGUAGE_NAMES = {code.value: code.name for code in LanguageCode}
_LANGUAGE_CODES = {code.name: code.value for code in LanguageCode}
# Far from those of RocketMQ's proxy, which count from 0. It answers a request that it could not
# pass on with one of its own (rmq#10280), which must not be the answer to another one of ours.
_opaques = itertools.count(1 << 30)


def next_opaque() -> int:
    """Return a new opaque of 31 bits."""
    # The field is a signed 32-bit integer, and 0 is what peers read where it is missing.
    return next(_opaques) & 0x7FFFFFFF


class Serialization(IntEnum):
    """Encoding of a header; each frame says its own (docs/internals/protocol.md#frame)."""

    JSON = 0
    ROCKETMQ = 1


class Command(Record):
    """Content of a frame (docs/internals/protocol.md#flags-and-request-ids).

    Args:
        code: a `RequestCode`, or a `ResponseCode` in a response.
        ext: the named fields; all values are strings.
        body: bytes after the header, possibly empty.
        opaque: id of the request, repeated in its response.
    """

    code: int
    ext: Mapping[str, str]
    body: bytes
    remark: str | None
    opaque: int
    flag: int
    # An int, not the enumeration: peers may send numbers that it does not have.
    language: int
    version: int
    serialization: Serialization

    def __init__(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
        opaque: int = 0,
        flag: int = 0,
        language: int = LanguageCode.PYTHON,
        version: int = PROTOCOL_VERSION,
        serialization: Serialization = Serialization.JSON,
    ) -> None:
        self.code = code
        self.ext = {} if ext is None else ext
        self.body = body
        self.remark = remark
        self.opaque = opaque
        self.flag = flag
        self.language = language
        self.version = version
        self.serialization = serialization

    @classmethod
    def request(cls, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Create a request with a new opaque."""
        return cls(code, ext or {}, body, opaque=next_opaque())

    def reply(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
    ) -> Command:
        """Create the response to this request, in JSON, which every peer reads."""
        return Command(code, ext or {}, body, remark, self.opaque, RESPONSE_FLAG)

    @property
    def is_response(self) -> bool:
        """True for a response, False for a request."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """True for a request that gets no response."""
        return bool(self.flag & ONEWAY_FLAG)


def encode(command: Command) -> bytes:
    """Return the frame of a command."""
    if command.serialization is Serialization.JSON:
        header = encode_json(command)
    else:
        header = encode_binary(command)
    # The first byte of the header's length is its encoding.
    mark = command.serialization << 24 | len(header)
    return b"".join((_WORDS.pack(4 + len(header) + len(command.body), mark), header, command.body))


class Framer:
    """Splits a stream of bytes into commands.

    Args:
        max_frame_bytes: a longer frame is refused as soon as its length is read.
    Attributes:
        max_frame_bytes: may be changed between two frames.
        completed: after a `feed` that raised, the commands before the malformed bytes; they
            are valid.
    """

    __slots__ = ("_buffer", "completed", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self.completed: list[Command] = []

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes of the incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Command]:
        """Add received bytes and return the commands they complete, in order.

        Raises: ProtocolError: the stream is malformed from here on: handle `completed`, then
            close it.
        O(bytes): a body is copied once, twice if its frame came in pieces.
        """
        return self.split(self.join(data))

    def join(self, data: bytes) -> bytes:
        """Return all received bytes that no command was made of, and forget them.

        Empty while they are far from a whole frame: then they stay here.
        """
        if not self._buffer:
            return data
        # Large frames come in many reads. Joining buffer and data for each of them would copy
        # the frame's start again every time.
        if self._is_far_from_whole(len(data)):
            self._buffer += data
            return b""
        source = b"".join((self._buffer, data))
        self._buffer.clear()
        return source

    def split(self, source: bytes, at: int = 0) -> list[Command]:
        """Return the commands of what `join` returned, from a position on, and keep the rest.

        Raises: ProtocolError: as `feed`.
        """
        commands: list[Command] = []
        end = len(source)
        try:
            while end - at >= 8:
                length, mark = _WORDS.unpack_from(source, at)
                header_size = mark & 0xFFFFFF
                # Before the bytes are awaited: a wrong length would be waited for forever.
                if length < 4 or length + 4 > self.max_frame_bytes:
                    raise ProtocolError(
                        f"frame of {length + 4} bytes: expected 8..{self.max_frame_bytes}"
                    )
                if header_size > length - 4:
                    raise ProtocolError(
                        f"header of {header_size} bytes in a frame of {length + 4} bytes"
                    )
                if end - at < 4 + length:
                    break
                body_start, next_at = at + 8 + header_size, at + 4 + length
                header = source[at + 8 : body_start]
                commands.append(decode_frame(mark >> 24, header, source[body_start:next_at]))
                at = next_at
        except ProtocolError:
            self.completed = commands
            raise
        finally:
            if at < end:
                self._buffer += source[at:]
        return commands

    def _is_far_from_whole(self, more: int) -> bool:
        """Return True if the buffered frame is of a legal length and misses more bytes."""
        if len(self._buffer) < 8:
            return False
        length: int = _WORDS.unpack_from(self._buffer)[0]
        return len(self._buffer) + more < 4 + length <= self.max_frame_bytes


def decode_frame(serialization: int, header: bytes, body: bytes) -> Command:
    """Return the command of a frame.

    Raises: ProtocolError: an unknown encoding of the header, or a malformed one.
    """
    if serialization == Serialization.JSON:
        return decode_json(header, body)
    if serialization == Serialization.ROCKETMQ:
        return decode_binary(header, body)
    raise ProtocolError(f"header serialization {serialization}: expected 0 (JSON) or 1 (ROCKETMQ)")


def encode_json(command: Command) -> bytes:
    """Encode a JSON header; members in Java's order, without nulls."""
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
    return json_text.dumps(members)


def decode_json(header: bytes | memoryview, body: bytes) -> Command:
    """Decode a JSON header; ignore unknown members, use defaults for missing ones.

    Raises: ProtocolError: not a JSON object, or a member of the wrong type.
    """
    try:
        members = json_text.loads(header)
    except json_text.JSONDecodeError as error:
        raise ProtocolError(f"command header is not JSON: {error}") from None
    if not isinstance(members, dict):
        raise ProtocolError(f"command header is a JSON {type(members).__name__}, not an object")
    get = members.get
    language = _language(get("language", "JAVA"))  # Java's default for a missing name
    ext = get("extFields") or {}
    remark = get("remark")
    code, opaque, flag, version = get("code"), get("opaque", 0), get("flag", 0), get("version", 0)
    # By exact type, as everything here: bool is a subclass of int.
    if not (type(code) is type(opaque) is type(flag) is type(version) is int):
        raise ProtocolError(
            f"command header: code, opaque, flag, version are {(code, opaque, flag, version)!r}, "
            "expected numbers"
        )
    # Ints in Java, and in the binary header, which the answer may have to use. All at once, for
    # this runs for each answer; then one by one, if any is negative.
    if not 0 <= code | opaque | flag | version < 1 << 31:
        for number in (code, opaque, flag, version):
            if not -(1 << 31) <= number < 1 << 31:
                raise ProtocolError(f"command header: {number} does not fit into 32 bits")
    if not isinstance(ext, dict) or not (remark is None or isinstance(remark, str)):
        raise ProtocolError("command header: extFields must be an object, remark a string")
    for name, value in ext.items():
        if type(value) is not str:
            ext[name] = _as_text(name, value)  # Java reads what other clients send unquoted
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
        return value if 0 <= value < 256 else int(LanguageCode.OTHER)
    # Java has null for a language it does not know.
    if value is None or isinstance(value, str):
        return _LANGUAGE_CODES.get(value or "", LanguageCode.OTHER)
    raise ProtocolError(f"command header: language is a {type(value).__name__}")


def _as_text(name: str, value: object) -> str:
    write = _TEXT_OF.get(type(value))
    if write is None:
        raise ProtocolError(f"command header: extFields.{name} is a {type(value).__name__}")
    return write(value)


_TEXT_OF: dict[type, Callable[[Any], str]] = {
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "",
    int: str,
    float: str,
}


def make_binary(command: Command) -> None:
    """Choose the binary header for a command; one whose code does not fit keeps JSON."""
    # The binary header has 16 bits for the code; the extensions from 28101 on fit, Java's too.
    if -32_768 <= command.code <= 32_767:
        command.serialization = Serialization.ROCKETMQ


def encode_binary(command: Command) -> bytes:
    """Encode a binary header.

    Raises: ProtocolError: the code does not fit into 16 bits.
    """
    if not -32_768 <= command.code <= 32_767:
        raise ProtocolError(f"code {command.code} does not fit the binary header: use JSON")
    remark = (command.remark or "").encode()
    ext = encode_ext(command.ext)
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


def encode_ext(ext: Mapping[str, str]) -> bytes:
    """Encode the fields of a binary header, without their size."""
    parts: list[bytes] = []
    for name, value in ext.items():
        raw_name, raw_value = name.encode(), value.encode()
        parts += (_SHORT.pack(len(raw_name)), raw_name, _INT.pack(len(raw_value)), raw_value)
    return b"".join(parts)


def decode_binary(header: bytes, body: bytes) -> Command:
    """Decode a binary header; every length is checked before use.

    Raises: ProtocolError: truncated, a length out of bounds, or not UTF-8.
    """
    code, language, version, opaque, flag, remark, ext = read_header(header)
    return Command(
        code, ext, body, remark or None, opaque, flag, language, version, Serialization.ROCKETMQ
    )
