"""A binary command header read with struct, field by field; a frame written text by text."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence

from ordermq.core import status
from ordermq.core.contract import FRAME_VALUES_MOST, Header


def read_header(header: bytes) -> Header:
    """See contract.ReadHeader."""

    def need(holds: bool, fault: int, at: int) -> None:
        if not holds:
            raise status.malformed_header(fault, header, at)

    def text(at: int, form: str, fault: int) -> tuple[str, int]:
        """Return the text whose size is at `at`, and the position behind it."""
        start = at + struct.calcsize(form)
        need(start <= len(header), status.HEADER_END, len(header))
        (size,) = struct.unpack_from(form, header, at)
        need(0 <= size <= len(header) - start, fault, at)
        try:
            return header[start : start + size].decode(), start + size
        except UnicodeDecodeError:
            raise status.malformed_header(status.HEADER_TEXT, header, start) from None

    # 13 bytes: code, language, version, opaque and flag, all of fixed size.
    need(len(header) >= 13, status.HEADER_END, len(header))
    code, language, version, opaque, flag = struct.unpack_from(">hBhii", header)
    remark, at = text(13, ">i", status.HEADER_REMARK)
    need(at + 4 <= len(header), status.HEADER_END, len(header))
    (size,) = struct.unpack_from(">i", header, at)
    # The fields end the header: fewer bytes and more bytes are both malformed.
    need(size == len(header) - at - 4, status.HEADER_FIELDS, at)
    at += 4
    fields = {}  # a later field of the same name replaces the earlier one, as in Java's HashMap
    while at < len(header):
        name, at = text(at, ">h", status.HEADER_NAME)
        fields[name], at = text(at, ">i", status.HEADER_VALUE)
    return code, language, version, opaque, flag, remark, fields


class FrameTemplate:
    """See contract.FrameTemplate."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._texts = list(texts)
        if not 1 <= len(self._texts) <= FRAME_VALUES_MOST + 1:
            raise status.texts_of_template(len(self._texts), FRAME_VALUES_MOST)

    def frame(self, values: tuple[int | str, ...], body: bytes) -> bytes:
        if len(values) != len(self._texts) - 1:
            raise status.values_of_template(len(values), len(self._texts) - 1)
        header = self._texts[0]
        for value, text in zip(values, self._texts[1:], strict=True):
            shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else f"{value}"
            header += shown.encode() + text
        size = len(header) + 4 + len(body)
        # The size of the header has three bytes, the whole frame's is signed.
        if len(header) >= 1 << 24 or 4 + size > 0x7FFFFFFF:
            raise status.failure(status.OUT_OF_RANGE, f"a frame with a body of {len(body)} bytes")
        return struct.pack(">iI", size, len(header)) + header + body
