"""Compressed bodies: V11's bytes from Java's compressors, and what damaged ones raise."""

from __future__ import annotations

import gzip
import importlib
from typing import Any

import pytest

from ordermq.core import RecordWriter
from ordermq.core.compression import compress, decompress, require
from ordermq.errors import ConfigError, ProtocolError
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.model.stored_message import host_bytes

ZLIB = bytes.fromhex("785e4b4ca40c0000148d1841")
LZ4 = bytes.fromhex("04224d186070730b0000001f6101002750616161616100000000")
ZSTD = bytes.fromhex("28b52ffd00584400001061610100930016010000")
PLAIN = b"a" * 64


@pytest.mark.parametrize(
    ("body", "sys_flag"), [(ZLIB, 0x1), (ZLIB, 0x301), (LZ4, 0x101), (ZSTD, 0x201)]
)
def test_javas_compressed_bytes_are_read(body: bytes, sys_flag: int) -> None:
    assert decompress(body, sys_flag) == PLAIN


@pytest.mark.parametrize("sys_flag", [0x301, 0x101, 0x201])
def test_a_damaged_body_says_so(sys_flag: int) -> None:
    with pytest.raises(ProtocolError, match="damaged"):
        decompress(b"no such data", sys_flag)


def frames(kind: str, *bodies: bytes) -> bytes:
    return b"".join(compress(body, kind, 3)[0] for body in bodies)


# In both formats, a frame that holds none of the body, as parallel compressors write.
SKIPPABLE = bytes.fromhex("502a4d18") + (4).to_bytes(4, "little") + b"note"


@pytest.mark.parametrize(("kind", "sys_flag"), [("lz4", 0x101), ("zstd", 0x201)])
def test_a_body_of_several_frames_is_read_to_its_end(kind: str, sys_flag: int) -> None:
    assert decompress(frames(kind, b"first, ", b"", b"second"), sys_flag) == b"first, second"
    assert decompress(SKIPPABLE + frames(kind, b"body") + SKIPPABLE, sys_flag) == b"body"


@pytest.mark.parametrize(("kind", "sys_flag"), [("lz4", 0x101), ("zstd", 0x201)])
@pytest.mark.parametrize("rest", [b"rest", b"0123456789"])
def test_half_of_a_body_is_never_given_for_the_whole(kind: str, sys_flag: int, rest: bytes) -> None:
    with pytest.raises(ProtocolError, match="damaged"):
        decompress(frames(kind, b"good") + rest, sys_flag)
    with pytest.raises(ProtocolError, match="damaged"):
        decompress(frames(kind, b"good", b"cut" * 99)[:-1], sys_flag)


@pytest.mark.parametrize(("kind", "sys_flag"), [("lz4", 0x101), ("zstd", 0x201)])
def test_the_limit_is_that_of_all_frames_together(kind: str, sys_flag: int) -> None:
    body = frames(kind, *(bytes(100) for _ in range(10)))
    assert decompress(body, sys_flag, 1000) == bytes(1000)
    with pytest.raises(ProtocolError, match="becomes more than 999 bytes"):
        decompress(body, sys_flag, 999)
    with pytest.raises(ProtocolError, match="becomes more than 999 bytes"):
        decompress(frames(kind, b"", bytes(100 << 20)), sys_flag, 999)


def test_a_frame_of_zstd_that_tells_its_size_is_given_no_more_than_the_limit() -> None:
    told = bytes.fromhex("28b52ffd6088124d0000100000010083d3032c")  # 5,000 zeros
    assert decompress(told, 0x201, 5000) == bytes(5000)
    with pytest.raises(ProtocolError, match="becomes more than 4999 bytes"):
        decompress(told, 0x201, 4999)


def test_the_header_of_gzip_is_read_in_the_place_of_zlibs() -> None:
    assert decompress(gzip.compress(PLAIN), 0x301) == PLAIN
    with pytest.raises(ProtocolError, match="damaged"):
        decompress(gzip.compress(PLAIN)[:-1], 0x301)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ProtocolError, match="0x701"):
        decompress(ZLIB, 0x701)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ConfigError, match=r"ordermq\[compression\]"):
        decompress(LZ4, 0x101)


def test_a_view_gives_the_plain_body_and_the_stored_one() -> None:
    host = host_bytes("127.0.0.1", 1)
    writer = RecordWriter("t", 0, host, host)
    compressed = writer.write(ZLIB, b"", flag=0, sys_flag=0x301, born_ms=0, stored_ms=0)
    plain = writer.write(b"plain", b"", flag=0, sys_flag=0, born_ms=0, stored_ms=0)
    rows = [*compressed.rows(0, 0), *plain.rows(1, 0)]
    body = b"".join(record for _, _, record in rows)
    first, second = MessageBatch(MessageQueue("t", "b", 0), body)
    assert (bytes(first.body), bytes(first.stored_body)) == (PLAIN, ZLIB)
    assert bytes(second.body) == b"plain"


@pytest.mark.parametrize(("kind", "sys_flag"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
@pytest.mark.parametrize("body", [PLAIN, bytes(range(256)) * 4_096], ids=["short", "1 MiB"])
def test_a_body_comes_back_as_it_was_whatever_compressed_it(
    kind: str, sys_flag: int, body: bytes
) -> None:
    stored, flags = compress(body, kind, 5)
    assert flags == sys_flag
    assert decompress(stored, flags) == body


def test_zlib_writes_what_javas_compressor_writes() -> None:
    assert compress(PLAIN, "zlib", 5) == (ZLIB, 0x301)


def test_lz4_blocks_are_independent_and_zstd_frames_tell_no_size_as_javas() -> None:
    lz4, _ = compress(bytes(5 << 20), "lz4", 5)
    assert lz4[:4] == LZ4[:4]
    assert lz4[4] & 0b0010_1000 == 0b0010_0000  # independent blocks, no content size
    zstd, _ = compress(PLAIN, "zstd", 5)
    assert zstd[:4] == ZSTD[:4]
    assert zstd[4] >> 6 == 0  # no content size field
    assert not zstd[4] & 0b0010_0000  # nor the single segment that implies one


def test_a_sender_is_told_of_a_missing_library_before_it_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    require("zlib")
    with pytest.raises(ConfigError, match=r"lz4.*ordermq\[compression\]"):
        require("lz4")
