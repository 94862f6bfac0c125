"""Compressed message bodies (docs/internals/protocol.md#system-flags).

Producers compress and consumers decompress; the broker stores bodies as they arrive.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from ordermq.errors import ConfigError, DecodeError

# The longest body that a broker takes with its usual settings, plain or compressed.
MAX_DECOMPRESSED_BYTES = 4_194_304

# Bits of sysFlag: whether the body is compressed, and three bits for how.
COMPRESSED = 0x1
_TYPE = 0x700
_LZ4 = 0x100
_ZSTD = 0x200
ZLIB = COMPRESSED | 0x300
_ZLIB = (0x000, 0x300)  # clients before RocketMQ 5 set no type, and know zlib only
_SYS_FLAGS = {"zlib": ZLIB, "lz4": COMPRESSED | _LZ4, "zstd": COMPRESSED | _ZSTD}
_MAGIC = {b"\x04\x22\x4d\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd"}
_LIBRARIES = {
    "zlib": "zlib",
    "lz4": "lz4.frame",
    "zstd": "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",
}


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
        library = _library(kind)
        parameters = library.CompressionParameter
        # The size is not told, as Java's clients do not.
        options = {parameters.compression_level: level, parameters.content_size_flag: 0}
        packed = library.compress(body, options=options)
    else:
        packed = _library(kind).compress(body, level)
    return bytes(packed), _SYS_FLAGS[kind]


def zipped_sys_flag(start: bytes) -> int:
    """Return the bits of sysFlag of a compressed body, of which nobody tells how.

    RocketMQ 5's proxy says gzip of every compressed body, whatever compressed it.

    Args:
        start: the body's first four bytes.
    """
    return _SYS_FLAGS[_MAGIC.get(start, "zlib")]


def require(kind: str) -> None:
    """Check that bodies can be compressed in this way: at construction, not at the first send.

    Raises: ConfigError: the kind needs the `compression` extra, which is not installed.
    """
    if kind != "zlib":  # which each Python has
        _library(kind)


def decompress(
    body: bytes, sys_flag: int, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> bytes:
    """Return the body as its producer passed it.

    Args:
        sys_flag: of the stored message; it says how the body is compressed.
        max_decompressed_bytes: a longer body is refused before it takes more memory than that: a
            thousandth of it may be enough to make it.
    Raises:
        DecodeError: the body is damaged, longer than the limit, or of an unknown kind.
        ConfigError: the kind needs the `compression` extra, which is not installed.
    """
    kind = sys_flag & _TYPE
    if kind not in _DECOMPRESSORS:
        raise DecodeError(f"message body has an unknown compression type, sysFlag {sys_flag:#x}")
    name, work = _DECOMPRESSORS[kind]
    library = _library(name)
    try:
        plain = work(library, body, max_decompressed_bytes)
    # Each library has an error class of its own, and two of them may not be installed.
    except Exception as error:
        raise DecodeError(f"message body is damaged: not {name} data ({error})") from error
    if len(plain) > max_decompressed_bytes:
        raise DecodeError(
            f"message body of {len(body)} bytes of {name} data becomes more than "
            f"{max_decompressed_bytes} bytes: raise max_decompressed_bytes if that is right"
        )
    return plain


# Each returns the whole body, or more bytes than `most`: by how many is not known then. As Java's
# clients they read one stream of zlib and ignore what follows, and frame after frame of the others.


def _inflate(library: Any, body: bytes, most: int) -> bytes:
    # Also with gzip's header, which RocketMQ 5's protocol names and its client for Go reads.
    stream = library.decompressobj(_EITHER_HEADER + library.MAX_WBITS)
    plain: bytes = stream.decompress(body, most + 1)
    if not stream.eof and len(plain) <= most:
        raise ValueError(_CUT_OFF)
    return plain


def _from_lz4(library: Any, body: bytes, most: int) -> bytes:
    return _from_frames(library.LZ4FrameDecompressor, body, most)


def _from_zstd(library: Any, body: bytes, most: int) -> bytes:
    return _from_frames(library.ZstdDecompressor, body, most)


def _from_frames(make_stream: Callable[[], Any], body: bytes, most: int) -> bytes:
    plain = bytearray()
    stream = make_stream()
    # In pieces, for the rest behind each frame is copied.
    for start in range(0, len(body), _PIECE):
        piece = body[start : start + _PIECE]
        while piece:
            if stream.eof:
                stream = make_stream()
            plain += stream.decompress(piece, most + 1 - len(plain))
            if len(plain) > most:
                return bytes(plain)
            piece = stream.unused_data
    if not stream.eof:
        raise ValueError(_CUT_OFF)
    return bytes(plain)


_CUT_OFF = "it is cut off"
_EITHER_HEADER = 32  # added to the bits of the window: zlib's header, or gzip's
_PIECE = 4096


_DECOMPRESSORS: dict[int, tuple[str, Callable[[Any, bytes, int], bytes]]] = {
    **dict.fromkeys(_ZLIB, ("zlib", _inflate)),
    _LZ4: ("lz4", _from_lz4),
    _ZSTD: ("zstd", _from_zstd),
}


# Imported when first needed: most bodies are not compressed, and most others by zlib.
def _library(kind: str) -> Any:
    try:
        return importlib.import_module(_LIBRARIES[kind])
    except ImportError:
        raise ConfigError(
            f"bodies compressed with {kind} need a library that is not installed: "
            "pip install 'ordermq[compression]'"
        ) from None
