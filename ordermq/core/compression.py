"""Compressed message bodies (docs/internals/protocol.md#system-flags).

Producers compress and consumers decompress; the broker stores bodies as they arrive.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any

from ordermq.errors import ConfigError, ProtocolError

# Bits of sysFlag: whether the body is compressed, and three bits for how.
COMPRESSED = 0x1
_TYPE = 0x700
_LZ4 = 0x100
_ZSTD = 0x200
_ZLIB = (0x000, 0x300)  # clients before RocketMQ 5 set no type, and know zlib only
_SYS_FLAGS = {"zlib": COMPRESSED | 0x300, "lz4": COMPRESSED | _LZ4, "zstd": COMPRESSED | _ZSTD}
_LIBRARIES = {"lz4": "lz4.frame", "zstd": "zstandard"}


def compress(body: bytes, kind: str, level: int) -> tuple[bytes, int]:
    """Return a compressed body, and the bits to set in its message's sysFlag.

    Args:
        kind: "zlib", "lz4" or "zstd".
        level: zlib 0..9, zstd 1..22; lz4 ignores it.
    Raises: ConfigError: the kind needs the `compression` extra, which is not installed.
    """
    if kind == "lz4":
        # Java's LZ4FrameInputStream reads independent blocks only.
        packed = _library(kind).compress(body, block_linked=False, store_size=False)
    elif kind == "zstd":
        packed = _library(kind).ZstdCompressor(level, write_content_size=False).compress(body)
    else:
        packed = zlib.compress(body, level)
    return bytes(packed), _SYS_FLAGS[kind]


def require(kind: str) -> None:
    """Check that bodies can be compressed in this way: at construction, not at the first send.

    Raises: ConfigError: the kind needs the `compression` extra, which is not installed.
    """
    if kind in _LIBRARIES:
        _library(kind)


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Return the body as its producer passed it.

    Args:
        sys_flag: of the stored message; it says how the body is compressed.
    Raises:
        ProtocolError: the body is damaged, or the kind is unknown.
        ConfigError: the kind needs the `compression` extra, which is not installed.
    """
    kind = sys_flag & _TYPE
    if kind in _ZLIB:
        return _run(zlib.decompress, body, "zlib")
    if kind == _LZ4:
        return _run(_library("lz4").decompress, body, "lz4")
    if kind == _ZSTD:
        # As a stream: Java's frames do not contain the size of their content.
        return _run(_library("zstd").ZstdDecompressor().decompressobj().decompress, body, "zstd")
    raise ProtocolError(f"message body has an unknown compression type, sysFlag {sys_flag:#x}")


# Imported when first needed: most installations compress with zlib only.
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
