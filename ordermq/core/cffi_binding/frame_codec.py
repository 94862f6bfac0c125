"""The frame codec through cffi."""

from __future__ import annotations

from typing import Any

from ordermq.core import status
from ordermq.core._cffi import ffi, lib
from ordermq.core.interface import Header


def read_header(header: bytes) -> Header:
    """See interface.ReadHeader."""
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
