"""The message codec through cffi."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, final

from ordermq.core import status
from ordermq.core._cffi import ffi, lib
from ordermq.core.cffi_binding.arguments import (
    raise_unless_ok,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@final
class MessageIndex:
    """See interface.MessageIndex."""

    def __init__(self, columns: dict[str, Any], rows: int, last_offset: int) -> None:
        self._columns = columns
        self._rows = rows
        self.last_offset = last_offset

    def _column(self, name: str, code: Literal["q", "I"]) -> memoryview:
        size = self._rows * struct.calcsize(code)
        values = ffi.buffer(self._columns[name], size)  # keeps the memory alive
        return memoryview(values).cast(code).toreadonly()

    @property
    def offsets(self) -> memoryview:
        return self._column("offsets", "q")

    @property
    def positions(self) -> memoryview:
        return self._column("positions", "I")

    @property
    def body_positions(self) -> memoryview:
        return self._column("body_positions", "I")

    @property
    def body_sizes(self) -> memoryview:
        return self._column("body_sizes", "I")

    @property
    def property_positions(self) -> memoryview:
        return self._column("property_positions", "I")

    @property
    def property_sizes(self) -> memoryview:
        return self._column("property_sizes", "I")

    def __len__(self) -> int:
        return self._rows


_COLUMN_TYPES: Final = {
    "offsets": "int64_t[]",
    "positions": "uint32_t[]",
    "body_positions": "uint32_t[]",
    "body_sizes": "uint32_t[]",
    "property_positions": "uint32_t[]",
    "property_sizes": "uint32_t[]",
}


def index_messages(body: ReadableBuffer, tags: Sequence[bytes] = ()) -> MessageIndex:
    """See interface.IndexMessages."""
    if not all(isinstance(tag, bytes) for tag in tags):
        raise TypeError("tags: expected a sequence of bytes objects")
    data = ffi.from_buffer("uint8_t[]", body)
    tag_bytes = [ffi.from_buffer("uint8_t[]", tag) for tag in tags]  # alive during the call
    wanted = ffi.new("omq_tag[]", [(tag, len(tag)) for tag in tag_bytes])
    room = lib.omq_message_count(data, len(data))
    columns = {name: ffi.new(ctype, room) for name, ctype in _COLUMN_TYPES.items()}
    rows = ffi.new("size_t *")
    last_offset = ffi.new("int64_t *")
    fault = ffi.new("omq_message_fault *")
    code = lib.omq_message_index(
        data,
        len(data),
        wanted,
        len(wanted),
        ffi.new("omq_message_columns *", columns),
        rows,
        last_offset,
        fault,
    )
    if code == status.MALFORMED:
        raise status.malformed(fault.fault, fault.record, fault.position)
    raise_unless_ok(code, f"index_messages of {len(data)} bytes")
    return MessageIndex(columns, rows[0], last_offset[0])
