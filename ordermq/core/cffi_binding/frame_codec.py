"""The frame codec through cffi."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ordermq.core import status
from ordermq.core._cffi import ffi, lib
from ordermq.core.contract import FRAME_VALUES_MOST, Header


def read_header(header: bytes) -> Header:
    """See contract.ReadHeader."""
    # `data` must stay referenced to the end: the texts in `found` point into it.
    data = ffi.from_buffer("uint8_t[]", header)
    found = ffi.new("omq_header *")
    position = ffi.new("size_t *")
    fault = lib.omq_header_read(data, len(header), found, position)
    if fault != status.HEADER_OK:
        raise status.malformed_header(fault, header, position[0])
    # The loop cannot fail: omq_header_read has checked every field.
    fields = {}
    at = ffi.new("size_t *")
    field = ffi.new("omq_property *")
    while lib.omq_header_next_field(found, at, field):
        fields[_decoded(field.name)] = _decoded(field.value)
    return (
        found.code, found.language, found.version, found.opaque, found.flag,
        _decoded(found.remark), fields,
    )  # fmt: skip


def _decoded(text: Any) -> str:
    return bytes(ffi.buffer(text.bytes, text.size)).decode()


class FrameTemplate:
    """See contract.FrameTemplate."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        if not 1 <= len(texts) <= FRAME_VALUES_MOST + 1:
            raise status.texts_of_template(len(texts), FRAME_VALUES_MOST)
        self._count = len(texts) - 1
        # The structs hold bare pointers: `_held` keeps the bytes alive.
        self._held = [(ffi.from_buffer("uint8_t[]", text), len(text)) for text in texts]
        self._texts = ffi.new("omq_text[]", self._held)

    def frame(self, values: tuple[int | str, ...], body: bytes) -> bytes:
        if len(values) != self._count:
            raise status.values_of_template(len(values), self._count)
        held = []
        for value in values:
            if isinstance(value, str):
                text = value.encode()
                held.append(((ffi.from_buffer("uint8_t[]", text), len(text)), 0))
            else:
                held.append(((ffi.NULL, 0), value))
        found = ffi.new("omq_frame_value[]", held)
        size = lib.omq_frame_size(self._texts, found, self._count, len(body))
        if size == 0:
            raise status.failure(status.OUT_OF_RANGE, f"a frame with a body of {len(body)} bytes")
        frame = ffi.new("uint8_t[]", size)
        text = ffi.new("omq_text *", (ffi.from_buffer("uint8_t[]", body), len(body)))
        lib.omq_frame_write(self._texts, found, self._count, text, frame)
        return bytes(ffi.buffer(frame))
