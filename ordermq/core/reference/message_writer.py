"""The message writer in struct: records, batch bodies and rows, field by field."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Final

from ordermq.core import status
from ordermq.core.contract import Texts
from ordermq.core.reference.arguments import MAX_SIZE, column_of, out_of_range
from ordermq.core.reference.message_codec import _properties, _tag_hash

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_BORN_HOST_V6: Final = 0x10
_STORE_HOST_V6: Final = 0x20
_HOST_SIZES: Final = (8, 20)
_SHORT_MAX: Final = 32767  # Java's sizes of topics and properties are signed shorts
_ENTRY: Final = 22  # bytes of a batch's message without its body and properties


class RecordBlock:
    """See contract.RecordBlock."""

    __slots__ = ("_records", "tags")

    def __init__(self, records: list[bytes], tags: list[int]) -> None:
        self._records = records
        self.tags = tags

    def __len__(self) -> int:
        return len(self._records)

    def rows(self, queue_offset: int, physical_offset: int) -> list[tuple[int, int, bytearray]]:
        rows = []
        for i, (record, tag) in enumerate(zip(self._records, self.tags, strict=True)):
            # Bytes 20 to 35 of a record are its queue offset and its physical offset.
            place = _packed(">qq", queue_offset + i, physical_offset + i)
            rows.append((queue_offset + i, tag, bytearray(record[:20] + place + record[36:])))
        return rows


class RecordWriter:
    """See contract.RecordWriter."""

    __slots__ = ("_born_host", "_host_flags", "_queue_id", "_store_host", "_topic")

    def __init__(self, topic: str, queue_id: int, born_host: bytes, store_host: bytes) -> None:
        self._topic = topic.encode()
        is_host = len(born_host) in _HOST_SIZES and len(store_host) in _HOST_SIZES
        if not is_host or len(self._topic) > _SHORT_MAX:
            raise out_of_range(f"writer of {topic!r}")
        _packed(">i", queue_id)  # for its OverflowError, now instead of at the first write
        self._queue_id = queue_id
        self._born_host = born_host
        self._store_host = store_host
        self._host_flags = _BORN_HOST_V6 if len(born_host) == 20 else 0
        self._host_flags |= _STORE_HOST_V6 if len(store_host) == 20 else 0

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
        if len(properties) > _SHORT_MAX:
            raise out_of_range(
                f"record of a body of {len(body)} and properties of {len(properties)} bytes"
            )
        # All numbers are checked before a record is made of them.
        _packed(">iqqii", sys_flag, born_ms, stored_ms, reconsume_times, flag)
        record = self._record(body, properties, flag, sys_flag, born_ms, stored_ms, reconsume_times)
        if tag is None:
            tag = _tag_hash(_properties(properties))
        _packed(">q", tag)
        return RecordBlock([record], [tag])

    def write_batch(
        self, batch: bytes, *, sys_flag: int, born_ms: int, stored_ms: int
    ) -> RecordBlock:
        _packed(">iqq", sys_flag, born_ms, stored_ms)
        records, tags = [], []
        for flag, body, properties in _messages(batch):
            records.append(self._record(body, properties, flag, sys_flag, born_ms, stored_ms, 0))
            tags.append(_tag_hash(_properties(properties)))
        return RecordBlock(records, tags)

    def _record(
        self,
        body: bytes,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_ms: int,
        stored_ms: int,
        reconsume_times: int,
    ) -> bytes:
        # The magic says how many bytes the length of the topic has.
        is_long = len(self._topic) > 127
        magic = 0xDAA320AB if is_long else 0xDAA320A7
        # A producer may have another kind of address than the broker saw: the hosts decide.
        sys_flag = sys_flag & ~(_BORN_HOST_V6 | _STORE_HOST_V6) | self._host_flags
        # Without the sign bit, as Java stores it.
        crc = zlib.crc32(body) & 0x7FFFFFFF
        fields = (
            # The two offsets are 0 until `RecordBlock.rows` sets them.
            struct.pack(">IIiiqqi", magic, crc, self._queue_id, flag, 0, 0, sys_flag),
            struct.pack(">q", born_ms) + self._born_host,
            struct.pack(">q", stored_ms) + self._store_host,
            struct.pack(">iqi", reconsume_times, 0, len(body)) + body,
            struct.pack(">h" if is_long else ">B", len(self._topic)) + self._topic,
            struct.pack(">h", len(properties)) + properties,
        )
        after_size = b"".join(fields)
        return struct.pack(">i", 4 + len(after_size)) + after_size


def _packed(form: str, *values: int) -> bytes:
    """Pack integers; raise OverflowError, as Cython does, instead of struct.error."""
    numbers = [index(value) for value in values]
    try:
        return struct.pack(form, *numbers)
    except struct.error as error:
        raise OverflowError(f"{numbers}: {error}") from None


def _messages(batch: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return (flag, body, properties) of each message of a batch body."""
    found: list[tuple[int, bytes, bytes]] = []

    def need(holds: bool, fault: int, at: int) -> None:
        if not holds:
            raise status.malformed_batch(fault, len(found), at, len(batch))

    at, end = 0, len(batch)
    while at < end:
        need(end - at >= _ENTRY, status.INNER_SIZE, at)
        size, _, _, flag, body_size = struct.unpack_from(">iiiii", batch, at)
        need(_ENTRY <= size <= end - at, status.INNER_SIZE, at)
        need(0 <= body_size <= size - _ENTRY, status.INNER_BODY, at + 16)
        text_at = at + 20 + body_size
        (text_size,) = struct.unpack_from(">h", batch, text_at)
        need(text_size == size - _ENTRY - body_size, status.INNER_PROPERTIES, text_at)
        text = batch[text_at + 2 :][:text_size]
        # These go to other topics first, so a broker cannot store them as part of a batch.
        is_plain = not {b"DELAY", b"TRAN_MSG"} & _properties(text).keys()
        need(is_plain, status.INNER_DELAYED, text_at + 2)
        found.append((flag, batch[at + 20 : text_at], text))
        at += size
    return found


def encode_batch(bodies: Sequence[bytes], properties: Sequence[str], flags: Sequence[int]) -> bytes:
    """See contract.EncodeBatch."""
    if not len(bodies) == len(properties) == len(flags):
        raise ValueError(
            f"encode_batch: {len(bodies)} bodies, {len(properties)} properties, {len(flags)} "
            "flags: expected one of each per message"
        )
    batch = b""
    for body, properties_text, flag in zip(bodies, properties, flags, strict=True):
        text = properties_text.encode()
        if len(text) > _SHORT_MAX:
            raise out_of_range(f"encode_batch of {len(bodies)} messages")
        size = _ENTRY + len(body) + len(text)
        # Magic and checksum stay 0: brokers read neither in a batch body.
        batch += _packed(">iiiii", size, 0, 0, flag, len(body)) + body
        batch += struct.pack(">h", len(text)) + text
    return batch


class _Texts:
    """A column of byte strings, each checked when it is read, as in C."""

    def __init__(self, texts: Texts, count: int, what: str) -> None:
        self._positions = column_of(texts[0], "il", what)
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
    """See contract.OrderedRows."""
    column = column_of(offsets, "ql", "offsets")
    ids = column_of(queue_ids, "il", "queue_ids")
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
    """See contract.EncodeRows."""
    count = len(memoryview(bodies[0])) - 1
    if count < 0:
        raise ValueError("bodies: 0 positions")
    texts = _Texts(bodies, count, "bodies")
    wanted = column_of(rows, "IL", "rows")
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
        # At least one message: a row that is too large alone is the broker's to refuse.
        if number and len(batch) + len(entry) > most_bytes:
            return batch, number
        batch += entry
    return batch, len(wanted)


def _values(name: bytes, column: Texts | ReadableBuffer, count: int) -> _Texts | list[int]:
    if isinstance(column, tuple):
        return _Texts(column, count, "columns")
    numbers = column_of(column, "ql", "columns")
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
            # A separator inside would end the property early and forge the next one.
            if b"\x01" in value or b"\x02" in value:
                raise out_of_range(f"encode_rows: row {row}")
            properties += name + b"\x01" + value + b"\x02"
    if unique:
        # The id of the first message, counted up: unique without a random number per message.
        key = (int.from_bytes(unique, "big") + number) % 2**128
        properties += b"UNIQ_KEY\x01" + key.to_bytes(16, "big").hex().upper().encode() + b"\x02"
    body = bodies[row]
    size = _ENTRY + len(body) + len(properties)
    if not body or len(properties) > _SHORT_MAX or size > MAX_SIZE:
        raise out_of_range(f"encode_rows: row {row}")
    head = struct.pack(">iiiii", size, 0, 0, 0, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties
