"""Stored records read with struct, field by field."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ordermq.core import status

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class MessageIndex:
    """See interface.MessageIndex."""

    def __init__(self, rows: list[tuple[int, int, int, int, int, int]], last_offset: int) -> None:
        columns = [
            memoryview(array(code, [row[i] for row in rows])).toreadonly()
            for i, code in enumerate("qIIIII")
        ]
        self.offsets, self.positions, self.body_positions, self.body_sizes = columns[:4]
        self.property_positions, self.property_sizes = columns[4:]
        self.last_offset = last_offset

    def __len__(self) -> int:
        return len(self.offsets)


def index_messages(body: ReadableBuffer, tags: Sequence[bytes] = ()) -> MessageIndex:
    """See interface.IndexMessages."""
    data = bytes(body)
    wanted = _tags(tags)
    rows: list[tuple[int, int, int, int, int, int]] = []
    position = record = 0
    last_offset = -1
    while position < len(data):
        size, row = _index_record(data, position, record)
        last_offset = row[0]
        if not wanted or _tag(data[row[4] : row[4] + row[5]]) in wanted:
            rows.append(row)
        position += size
        record += 1
    return MessageIndex(rows, last_offset)


def _tags(tags: Sequence[bytes]) -> set[bytes]:
    if not all(isinstance(tag, bytes) for tag in tags):
        raise TypeError("tags: expected a sequence of bytes objects")
    return set(tags)


def _index_record(
    data: bytes, start: int, record: int
) -> tuple[int, tuple[int, int, int, int, int, int]]:
    """Return (record size, row) of the record at `start` (protocol 2.1)."""

    def need(holds: bool, fault: int, at: int) -> None:
        if not holds:
            raise status.malformed(fault, record, at)

    need(len(data) - start >= 4, status.TRAILING, start)
    (size,) = struct.unpack_from(">i", data, start)
    need(size >= 91, status.RECORD_SIZE, start)
    need(size <= len(data) - start, status.TRUNCATED, start)
    end = start + size
    (magic,) = struct.unpack_from(">I", data, start + 4)
    need(magic in (0xDAA320A7, 0xDAA320AB), status.MAGIC, start + 4)
    (offset,) = struct.unpack_from(">q", data, start + 20)
    need(0 <= offset <= status.MAX_OFFSET, status.QUEUE_OFFSET, start + 20)
    (flags,) = struct.unpack_from(">i", data, start + 36)
    body = start + 88 + (12 if flags & 0x10 else 0) + (12 if flags & 0x20 else 0)
    need(body <= end, status.FIXED_PART, start + 36)
    (body_size,) = struct.unpack_from(">i", data, body - 4)
    need(0 <= body_size <= end - body, status.BODY_SIZE, body - 4)
    at = body + body_size
    code = ">B" if magic == 0xDAA320A7 else ">h"
    need(at + struct.calcsize(code) <= end, status.TOPIC_SIZE, at)
    (topic_size,) = struct.unpack_from(code, data, at)
    topic = at + struct.calcsize(code)
    is_in_range = 0 <= topic_size <= (127 if code == ">B" else 32767)
    need(is_in_range and topic_size <= end - topic, status.TOPIC_SIZE, at)
    at = topic + topic_size
    need(at + 2 <= end, status.PROPERTY_SIZE, at)
    (property_size,) = struct.unpack_from(">h", data, at)
    need(0 <= property_size <= end - at - 2, status.PROPERTY_SIZE, at)
    need(at + 2 + property_size == end, status.RECORD_END, at + 2 + property_size)
    return size, (offset, start, body, body_size, at + 2, property_size)


def _tag(properties: bytes) -> bytes | None:
    """Return the value of TAGS; empty names and values do not count, the last entry wins."""
    found = None
    for piece in properties.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        if name == b"TAGS" and value:
            found = value
    return found
