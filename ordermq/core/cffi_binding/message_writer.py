"""The message writer through cffi: records, batch bodies, and both from columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ordermq.core import status
from ordermq.core._cffi import ffi, lib
from ordermq.core.cffi_binding.arguments import Lent, raise_unless_ok
from ordermq.core.contract import Texts

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class RecordBlock:
    """See contract.RecordBlock."""

    __slots__ = ("_positions", "_records", "_tags")

    def __init__(self, count: int, size: int) -> None:
        self._records = ffi.new("uint8_t[]", size)
        self._positions = ffi.new("uint32_t[]", count + 1)
        self._tags = ffi.new("int64_t[]", count)

    def __len__(self) -> int:
        return len(self._tags)

    @property
    def tags(self) -> list[int]:
        return ffi.unpack(self._tags, len(self)) if len(self) else []

    def rows(self, queue_offset: int, physical_offset: int) -> list[tuple[int, int, bytearray]]:
        # In a copy: cffi releases the GIL, and another thread may ask for rows at the same time.
        stamped = bytearray(ffi.buffer(self._records))
        records = ffi.from_buffer("uint8_t[]", stamped)
        lib.omq_records_stamp(records, self._positions, len(self), queue_offset, physical_offset)
        ends = ffi.unpack(self._positions, len(self) + 1)
        return [
            (queue_offset + i, tag, stamped[ends[i] : ends[i + 1]])
            for i, tag in enumerate(self.tags)
        ]


class RecordWriter:
    """See contract.RecordWriter."""

    __slots__ = ("_head", "_texts")

    def __init__(self, topic: str, queue_id: int, born_host: bytes, store_host: bytes) -> None:
        self._texts = [_text(text) for text in (topic.encode(), born_host, store_host)]
        self._head = ffi.new("omq_record_head *", (*self._texts, 0, 0, queue_id))
        if lib.omq_record_size(self._head, 0, 0) == 0:
            raise status.failure(status.OUT_OF_RANGE, f"writer of {topic!r}")

    def _copied(self, sys_flag: int, born_ms: int, stored_ms: int, reconsume_times: int) -> Any:
        # A copy per call, so that threads may share a writer. The texts stay those of _texts.
        head = ffi.new("omq_record_head *", self._head[0])
        head.sys_flag = sys_flag
        head.born_ms = born_ms
        head.stored_ms = stored_ms
        head.reconsume_times = reconsume_times
        return head

    def write(
        self,
        body: bytes,
        properties: bytes,
        *,
        flag: int,
        sys_flag: int,
        born_ms: int,
        stored_ms: int,
        reconsume_times: int = 0,
        tag: int | None = None,
    ) -> RecordBlock:
        head = self._copied(sys_flag, born_ms, stored_ms, reconsume_times)
        texts = _text(body), _text(properties)
        message = ffi.new("omq_outgoing *", (*texts, flag))
        # 0 if no record can hold them.
        size = lib.omq_record_size(head, len(body), len(properties))
        if size == 0:
            raise status.failure(
                status.OUT_OF_RANGE,
                f"record of a body of {len(body)} and properties of {len(properties)} bytes",
            )
        block = RecordBlock(1, size)
        lib.omq_record_write(head, message, block._records)
        block._positions[1] = size  # positions[0] is 0: cffi clears new memory
        text = ffi.addressof(message, "properties")
        block._tags[0] = lib.omq_tag_hash(text) if tag is None else tag
        return block

    def write_batch(
        self, batch: bytes, *, sys_flag: int, born_ms: int, stored_ms: int
    ) -> RecordBlock:
        head = self._copied(sys_flag, born_ms, stored_ms, 0)
        data = ffi.from_buffer("uint8_t[]", batch)
        count, record_bytes = ffi.new("size_t *"), ffi.new("size_t *")
        fault = ffi.new("omq_message_fault *")
        code = lib.omq_batch_measure(head, data, len(batch), count, record_bytes, fault)
        if code == status.MALFORMED:
            raise status.malformed_batch(fault.fault, fault.record, fault.position, len(batch))
        raise_unless_ok(code, f"records of a batch of {len(batch)} bytes")
        block = RecordBlock(count[0], record_bytes[0])
        lib.omq_batch_write(head, data, len(block), block._records, block._positions, block._tags)
        return block


def _text(text: bytes) -> tuple[Any, int]:
    """Return an omq_text as a tuple; its first member keeps the bytes alive."""
    return ffi.from_buffer("uint8_t[]", text), len(text)


def encode_batch(bodies: Sequence[bytes], properties: Sequence[str], flags: Sequence[int]) -> bytes:
    """See contract.EncodeBatch."""
    count = len(bodies)
    if len(properties) != count or len(flags) != count:
        raise ValueError(
            f"encode_batch: {count} bodies, {len(properties)} properties, {len(flags)} flags: "
            "expected one of each per message"
        )
    texts = [
        (_text(body), _text(text.encode()), flag)
        for body, text, flag in zip(bodies, properties, flags, strict=True)
    ]
    # `texts` outlives the calls below: the structs in `messages` hold bare pointers.
    messages = ffi.new("omq_outgoing[]", texts)
    size = ffi.new("size_t *")
    raise_unless_ok(lib.omq_batch_size(messages, count, size), f"encode_batch of {count} messages")
    batch = ffi.new("uint8_t[]", size[0])
    lib.omq_batch_encode(messages, count, batch)
    return bytes(ffi.buffer(batch))


def _texts(lent: Lent, texts: Texts, count: int, what: str) -> tuple[Any, Any, int]:
    """Return an omq_texts as a tuple; its members keep the buffers alive."""
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
    """See contract.OrderedRows."""
    with Lent() as lent:
        column = lent.column(offsets, "ql", "int64_t", "offsets")
        ids = lent.column(queue_ids, "il", "int32_t", "queue_ids")
        count = len(column)
        if len(ids) != count:
            raise ValueError(f"ordered_rows: {count} offsets, {len(ids)} queue_ids")
        held = [_texts(lent, one, count, "names") for one in names]
        # C trusts these bounds, so that it looks at no row outside the columns.
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
    """Return an omq_property_column as a tuple; its members keep the buffers alive."""
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
    """See contract.EncodeRows."""
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
        # A limit below 0 is as 0: one row is encoded in any case.
        code = lib.omq_rows_measure(
            messages, wanted, len(wanted), max(most_bytes, 0), fitting, size
        )
        if code != status.OK:
            # `fitting` is then the index of the row that no broker would take.
            raise status.failure(code, f"encode_rows: row {wanted[fitting[0]]}")
        batch = ffi.new("uint8_t[]", size[0])
        lib.omq_rows_encode(messages, wanted, fitting[0], batch)
        return bytes(ffi.buffer(batch)), int(fitting[0])
