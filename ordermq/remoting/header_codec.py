"""Command headers as bytes: JSON (docs/internals/protocol.md#json-header) and the binary ROCKETMQ
form (1.3)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import orjson

from ordermq.core import read_header
from ordermq.errors import ProtocolError
from ordermq.remoting.codes import LanguageCode
from ordermq.remoting.command import Command, Serialization

_BINARY_HEAD = struct.Struct(">hBhii")  # code, language, version, opaque, flag
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_LANGUAGE_NAMES = {code.value: code.name for code in LanguageCode}
_LANGUAGE_CODES = {code.name: code.value for code in LanguageCode}


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
