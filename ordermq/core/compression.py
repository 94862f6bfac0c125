"""Bodies that producers compressed (protocol 2.2); the broker keeps them as they are."""

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
        return _run(_library("lz4.frame", "lz4").decompress, body, "lz4")
    if kind == _ZSTD:
        # A stream: Java's frames do not tell the size of their content.
        return _run(_library("zstandard", "zstd").ZstdDecompressor().decompressobj().decompress,
                    body, "zstd")  # fmt: skip
    raise ProtocolError(f"message body compressed in an unknown way, sysFlag {sys_flag:#x}")


def _library(module: str, kind: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(
            f"a message body is compressed with {kind}: pip install 'ordermq[compression]'"
        ) from None


def _run(work: Callable[[bytes], bytes], body: bytes, kind: str) -> bytes:
    try:
        return work(body)
    # Each library has an error class of its own, and two of them may not be installed.
    except Exception as error:
        raise ProtocolError(f"message body is damaged: not {kind} data ({error})") from error
