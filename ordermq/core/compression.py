"""Compressed message bodies (docs/internals/protocol.md#system-flags); the broker keeps them as
they came."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any

from ordermq.errors import ConfigError, ProtocolError

COMPRESSED = 0x1
_TYPE = 0x700
_LZ4 = 0x100
_ZSTD = 0x200
_ZLIB = (0x000, 0x300)  # old clients set no type
_SYS_FLAGS = {"zlib": COMPRESSED | 0x300, "lz4": COMPRESSED | _LZ4, "zstd": COMPRESSED | _ZSTD}
_LIBRARIES = {"lz4": "lz4.frame", "zstd": "zstandard"}


def compress(body: bytes, kind: str, level: int) -> tuple[bytes, int]:
    """A body as it goes to the broker, and the bits of its message's sysFlag.

    Args:
        kind: "zlib", "lz4" or "zstd".
        level: of zlib 0..9, of zstd 1..22; lz4 has none.
    Raises: ConfigError: the kind needs the `compression` extra, which is not installed.
    """
    if kind == "lz4":
        # Java's reader knows independent blocks only.
        packed = _library(kind).compress(body, block_linked=False, store_size=False)
    elif kind == "zstd":
        packed = _library(kind).ZstdCompressor(level, write_content_size=False).compress(body)
    else:
        packed = zlib.compress(body, level)
    return bytes(packed), _SYS_FLAGS[kind]


def require(kind: str) -> None:
    """Make sure that bodies can be compressed so.

    Raises: ConfigError: the kind needs the `compression` extra, which is not installed.
    """
    if kind in _LIBRARIES:
        _library(kind)


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body as its sender had it.

    Args:
        sys_flag: the stored message's; says that and how it is compressed.
    Raises:
        ProtocolError: damaged, or an unknown kind.
        ConfigError: the kind needs the `compression` extra, which is not installed.
    """
    kind = sys_flag & _TYPE
    if kind in _ZLIB:
        return _run(zlib.decompress, body, "zlib")
    if kind == _LZ4:
        return _run(_library("lz4").decompress, body, "lz4")
    if kind == _ZSTD:
        # A stream: Java's frames do not tell the size of their content.
        return _run(_library("zstd").ZstdDecompressor().decompressobj().decompress, body, "zstd")
    raise ProtocolError(f"message body compressed in an unknown way, sysFlag {sys_flag:#x}")


def _library(kind: str) -> Any:
    try:
        return importlib.import_module(_LIBRARIES[kind])
    except ImportError:
        raise ConfigError(
            f"bodies compressed with {kind} need a library that is not installed: "
            "pip install 'ordermq[compression]'"
        ) from None


def _run(work: Callable[[bytes], bytes], body: bytes, kind: str) -> bytes:
    try:
        return work(body)
    # Each library has an error class of its own, and two of them may not be installed.
    except Exception as error:
        raise ProtocolError(f"message body is damaged: not {kind} data ({error})") from error
