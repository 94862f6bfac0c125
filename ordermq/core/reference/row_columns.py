"""Rows in columns, one after another."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ordermq.core.interface.row_columns import Texts
from ordermq.core.reference.arguments import out_of_range

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_SHORT_MAX: Final = 32767
_INT32_MAX: Final = 2**31 - 1
_ENTRY: Final = 22  # bytes of a batch's message beside its body and properties


def _integers(column: ReadableBuffer, formats: str, size: int, what: str) -> list[int]:
    view = memoryview(column)
    is_right = view.ndim == 1 and view.contiguous and view.itemsize == size
    if not is_right or view.format not in tuple(formats):
        raise TypeError(
            f"{what}: expected a contiguous buffer of {size}-byte integers ({'/'.join(formats)}), "
            f"got format {view.format!r}, {view.itemsize} bytes an item"
        )
    return view.tolist()


class _Texts:
    def __init__(self, texts: Texts, count: int, what: str) -> None:
        self._positions = _integers(texts[0], "il", 4, what)
        self._bytes = memoryview(texts[1]).cast("B")
        if len(self._positions) != count + 1:
            raise ValueError(f"{what}: {len(self._positions)} positions of {count} rows")

    def __getitem__(self, row: int) -> bytes:
        begin, end = self._positions[row], self._positions[row + 1]
        if not 0 <= begin <= end <= len(self._bytes):
            raise out_of_range(f"row {row}")
        return bytes(self._bytes[begin:end])


def ordered_rows(
    offsets: ReadableBuffer,
    queue_ids: ReadableBuffer,
    names: Sequence[Texts],
    first: int,
    end: int,
) -> int:
    """See interface.OrderedRows."""
    column = _integers(offsets, "ql", 8, "offsets")
    ids = _integers(queue_ids, "il", 4, "queue_ids")
    count = len(column)
    if len(ids) != count:
        raise ValueError(f"ordered_rows: {count} offsets, {len(ids)} queue_ids")
    texts = [_Texts(one, count, "names") for one in names]
    if not 0 <= first < end <= count:
        raise out_of_range(f"ordered_rows from {first} to {end} of {count}")
    for row in range(first + 1, end):
        if column[row] <= column[row - 1] or ids[row] != ids[row - 1]:
            return row
        if any(text[row] != text[row - 1] for text in texts):
            return row
    return end


def encode_rows(
    bodies: Texts,
    rows: ReadableBuffer,
    *,
    fixed: bytes,
    columns: Sequence[tuple[bytes, Texts | ReadableBuffer]],
    unique: bytes,
    most_bytes: int,
) -> tuple[bytes, int]:
    """See interface.EncodeRows."""
    count = len(memoryview(bodies[0])) - 1
    if count < 0:
        raise ValueError("bodies: 0 positions")
    texts = _Texts(bodies, count, "bodies")
    wanted = _integers(rows, "IL", 4, "rows")
    named = [(name, _values(name, column, count)) for name, column in columns]
    if not wanted:
        raise out_of_range("encode_rows of no rows")
    if len(unique) not in (0, 16):
        raise ValueError(f"encode_rows: unique of {len(unique)} bytes: expected 0 or 16")
    batch = b""
    for number, row in enumerate(wanted):
        if row >= count:
            raise out_of_range(f"encode_rows: row {row}")
        entry = _entry(row, texts, fixed, named, unique, number)
        if number and len(batch) + len(entry) > most_bytes:
            return batch, number
        batch += entry
    return batch, len(wanted)


def _values(name: bytes, column: Texts | ReadableBuffer, count: int) -> _Texts | list[int]:
    if isinstance(column, tuple):
        return _Texts(column, count, "columns")
    numbers = _integers(column, "ql", 8, "columns")
    if len(numbers) != count:
        raise ValueError(f"columns: {len(numbers)} numbers of {count} rows")
    if not name:
        raise ValueError("columns: numbers without a name")
    return numbers


def _entry(
    row: int,
    bodies: _Texts,
    fixed: bytes,
    columns: list[tuple[bytes, _Texts | list[int]]],
    unique: bytes,
    number: int,
) -> bytes:
    properties = fixed
    for name, values in columns:
        value = values[row] if isinstance(values, _Texts) else str(values[row]).encode()
        if not name:
            properties += value
        elif value:
            if b"\x01" in value or b"\x02" in value:
                raise out_of_range(f"encode_rows: row {row}")
            properties += name + b"\x01" + value + b"\x02"
    if unique:
        key = (int.from_bytes(unique, "big") + number) % 2**128
        properties += b"UNIQ_KEY\x01" + key.to_bytes(16, "big").hex().upper().encode() + b"\x02"
    body = bodies[row]
    size = _ENTRY + len(body) + len(properties)
    if not body or len(properties) > _SHORT_MAX or size > _INT32_MAX:
        raise out_of_range(f"encode_rows: row {row}")
    head = struct.pack(">iiiii", size, 0, 0, 0, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties
