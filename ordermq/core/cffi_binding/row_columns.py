"""Rows in columns through cffi."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ordermq.core import status
from ordermq.core._cffi import ffi, lib
from ordermq.core.cffi_binding.arguments import Lent, raise_unless_ok
from ordermq.core.interface.row_columns import Texts

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def _texts(lent: Lent, texts: Texts, count: int, what: str) -> tuple[Any, Any, int]:
    """An omq_texts; whoever has it keeps the buffers."""
    positions = lent.column(texts[0], "il", "int32_t", what)
    if len(positions) != count + 1:
        raise ValueError(f"{what}: {len(positions)} positions of {count} rows")
    held = lent.bytes_of(texts[1])
    return positions, held, len(held)


def ordered_rows(
    offsets: ReadableBuffer,
    queue_ids: ReadableBuffer,
    names: Sequence[Texts],
    first: int,
    end: int,
) -> int:
    """See interface.OrderedRows."""
    with Lent() as lent:
        column = lent.column(offsets, "ql", "int64_t", "offsets")
        ids = lent.column(queue_ids, "il", "int32_t", "queue_ids")
        count = len(column)
        if len(ids) != count:
            raise ValueError(f"ordered_rows: {count} offsets, {len(ids)} queue_ids")
        held = [_texts(lent, one, count, "names") for one in names]
        if not 0 <= first < end <= count:
            raise status.failure(
                status.OUT_OF_RANGE, f"ordered_rows from {first} to {end} of {count}"
            )
        found = ffi.new("size_t *")
        texts = ffi.new("omq_texts[]", held)
        code = lib.omq_ordered_rows(column, ids, texts, len(held), first, end, found)
        raise_unless_ok(code, "ordered_rows")
        return int(found[0])


def _property(
    lent: Lent, name: bytes, column: Texts | ReadableBuffer, count: int
) -> tuple[Any, Any, Any]:
    """An omq_property_column; whoever has it keeps the buffers."""
    text = ffi.from_buffer("uint8_t[]", name), len(name)
    if isinstance(column, tuple):
        return text, _texts(lent, column, count, "columns"), ffi.NULL
    numbers = lent.column(column, "ql", "int64_t", "columns")
    if len(numbers) != count:
        raise ValueError(f"columns: {len(numbers)} numbers of {count} rows")
    if not name:
        raise ValueError("columns: numbers without a name")
    return text, (ffi.NULL, ffi.NULL, 0), numbers


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
    with Lent() as lent:
        texts = _texts(lent, bodies, count, "bodies")
        wanted = lent.column(rows, "IL", "uint32_t", "rows")
        held = [_property(lent, name, column, count) for name, column in columns]
        if len(wanted) == 0:
            raise status.failure(status.OUT_OF_RANGE, "encode_rows of no rows")
        if len(unique) not in (0, 16):
            raise ValueError(f"encode_rows: unique of {len(unique)} bytes: expected 0 or 16")
        first = ffi.from_buffer("uint8_t[]", unique) if unique else ffi.NULL
        text = ffi.from_buffer("uint8_t[]", fixed), len(fixed)
        properties = ffi.new("omq_property_column[]", held)
        messages = ffi.new("omq_row_messages *", (texts, count, text, properties, len(held), first))
        fitting, size = ffi.new("size_t *"), ffi.new("size_t *")
        code = lib.omq_rows_measure(
            messages, wanted, len(wanted), max(most_bytes, 0), fitting, size
        )
        if code != status.OK:
            raise status.failure(code, f"encode_rows: row {wanted[fitting[0]]}")
        batch = ffi.new("uint8_t[]", size[0])
        lib.omq_rows_encode(messages, wanted, fitting[0], batch)
        return bytes(ffi.buffer(batch)), int(fitting[0])
