"""The message codec in struct: stored records read field by field, runs, Java's hash."""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ordermq.core import compression, contract, status
from ordermq.core.reference.arguments import MAX_SIZE, column_of
from ordermq.errors import StateError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


# Bits of sysFlag (docs/internals/protocol.md#system-flags).
_COMPRESSED: Final = 0x1
_BORN_HOST_V6: Final = 0x10
_STORE_HOST_V6: Final = 0x20
_INNER_BATCH: Final = 0x40 | 0x80

_ANY: Final = (-1, 0, status.MAX_OFFSET + 1)  # the pull that every offset answers


class _Row(NamedTuple):
    """All fields of one message, decoded at once: the native cores decode them on access."""

    position: int
    body_position: int
    body_size: int
    property_position: int
    property_size: int
    queue_offset: int
    physical_offset: int
    queue_id: int
    flag: int
    sys_flag: int
    born_timestamp: int
    store_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    is_compressed: bool


# Column -> field of a row; tag_hashes is computed.
_FIELDS: Final = {
    "offsets": "queue_offset",
    "physical_offsets": "physical_offset",
    "born_timestamps": "born_timestamp",
    "store_timestamps": "store_timestamp",
    "positions": "position",
    "body_positions": "body_position",
    "body_sizes": "body_size",
    "property_positions": "property_position",
    "property_sizes": "property_size",
    "queue_ids": "queue_id",
    "flags": "flag",
    "sys_flags": "sys_flag",
    "reconsume_times": "reconsume_times",
}


class MessageIndex:
    """See contract.MessageIndex."""

    __slots__ = ("_rows", "body", "last_offset", "max_decompressed_bytes")

    body: bytes
    last_offset: int

    def __init__(
        self,
        body: ReadableBuffer,
        tags: Sequence[bytes] = (),
        check_crc: bool = False,
        pulled: tuple[int, int, int] | None = None,
        max_decompressed_bytes: int = compression.MAX_DECOMPRESSED_BYTES,
    ) -> None:
        # Views that were made before would read the rows of another body.
        if hasattr(self, "_rows"):
            raise StateError("a MessageIndex is made once")
        # No copy of bytes; anything else could change under the views.
        self.body = bytes(body)
        self.max_decompressed_bytes = max_decompressed_bytes
        wanted = _tags(tags)
        _, first, _ = pulled or _ANY
        self._rows: list[_Row] = []
        self.last_offset = -1
        position = record = 0
        while position < len(self.body):
            size, rows = _read_record(
                self.body, position, record, check_crc, pulled, self.last_offset
            )
            for row in rows:
                # Filtered messages count, too: the next pull starts behind the last one scanned.
                self.last_offset = row.queue_offset
                text = self.body[row.property_position :][: row.property_size]
                is_wanted = not wanted or _properties(text).get(b"TAGS") in wanted
                if row.queue_offset >= first and is_wanted:
                    self._rows.append(row)
            if not rows:  # an empty inner batch: the record's own offset was scanned
                (self.last_offset,) = struct.unpack_from(">q", self.body, position + 20)
            position += size
            record += 1

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def offsets(self) -> memoryview:
        return self.columns("offsets")["offsets"]

    @property
    def body_sizes(self) -> memoryview:
        return self.columns("body_sizes")["body_sizes"]

    def offset_at(self, row: int) -> int:
        return self._row(row).queue_offset

    def _row(self, row: int) -> _Row:
        if not 0 <= row < len(self._rows):
            raise IndexError(f"message {row} of {len(self._rows)}")
        return self._rows[row]

    def _text(self, row: _Row) -> bytes:
        return self.body[row.property_position :][: row.property_size]

    def _drop_rows(self, is_copy: Callable[[int, bytes, bytes], bool]) -> int:
        """Drop the rows of copies, told by offset, UNIQ_KEY and stored body; return how many."""
        rows = self._rows
        self._rows = [
            row
            for row in rows
            if not is_copy(
                row.queue_offset,
                _properties(self._text(row)).get(b"UNIQ_KEY", b""),
                self.body[row.body_position :][: row.body_size],
            )
        ]
        return len(rows) - len(self._rows)

    def columns(self, *names: str) -> dict[str, memoryview]:
        found = {}
        for name in names:
            if name not in status.COLUMNS:
                raise status.unknown_column(name)
            _, code = status.COLUMNS[name]
            if name == "tag_hashes":
                values = [_tag_hash(_properties(self._text(row))) for row in self._rows]
            else:
                values = [getattr(row, _FIELDS[name]) for row in self._rows]
            found[name] = memoryview(array(code, values)).toreadonly()
        return found

    def property_columns(self, name: str) -> tuple[memoryview, memoryview]:
        positions, sizes = array("I"), array("I")
        for row in self._rows:
            at, size = row.property_position, 0
            position = row.property_position
            for piece in self._text(row).split(b"\x02"):
                key, _, value = piece.partition(b"\x01")
                # No break: of a name that occurs twice the last one counts.
                if key and key == name.encode() and value:
                    at, size = position + len(key) + 1, len(value)
                position += len(piece) + 1
            positions.append(at)
            sizes.append(size)
        return memoryview(positions).toreadonly(), memoryview(sizes).toreadonly()

    def property_entries(self) -> tuple[memoryview, memoryview, memoryview, memoryview]:
        starts, positions = array("i", [0]), array("I")
        name_sizes, value_sizes = array("I"), array("I")
        for row in self._rows:
            last = _properties(self._text(row))
            position = row.property_position
            found: dict[bytes, tuple[int, int]] = {}
            for piece in self._text(row).split(b"\x02"):
                name, _, value = piece.partition(b"\x01")
                if name in last and value:
                    found.pop(name, None)  # to move it: the last one's position counts
                    found[name] = (position, len(value))
                position += len(piece) + 1
            for name, (at, size) in found.items():
                positions.append(at)
                name_sizes.append(len(name))
                value_sizes.append(size)
            starts.append(len(positions))
        columns = (starts, positions, name_sizes, value_sizes)
        first, second, third, fourth = (memoryview(one).toreadonly() for one in columns)
        return first, second, third, fourth

    def gather(
        self, positions: ReadableBuffer, sizes: ReadableBuffer, is_text: bool = False
    ) -> tuple[memoryview, bytes]:
        where = column_of(positions, "IiLl", "positions")
        lengths = column_of(sizes, "IiLl", "sizes")
        if len(where) != len(lengths):
            raise ValueError(f"gather: {len(where)} positions, {len(lengths)} sizes")
        starts, pieces, total = array("i", [0]), [], 0
        for at, size in zip(where, lengths, strict=True):
            total += size
            # The starts are signed 32-bit numbers, as Arrow wants them.
            if at + size > len(self.body) or total > MAX_SIZE:
                raise status.failure(status.OUT_OF_RANGE, f"gather of {len(where)} pieces")
            starts.append(total)
            pieces.append(self.body[at : at + size])
        for number, piece in enumerate(pieces):
            if is_text:
                try:
                    piece.decode()
                except UnicodeDecodeError as error:
                    raise status.piece_not_text(number, error) from None
        return memoryview(starts).toreadonly(), b"".join(pieces)

    def views(self, kind: type[ViewT], first: int, count: int) -> Iterator[ViewT]:
        if not issubclass(kind, MessageView):
            raise TypeError(f"views: expected a class of MessageViews, got {kind.__name__}")
        if first < 0 or count < 0 or first + count > len(self._rows):
            raise IndexError(f"messages {first}..{first + count - 1} of {len(self._rows)}")
        return (_view(kind, self, row) for row in range(first, first + count))


class MessageView:
    """See contract.MessageView."""

    __slots__ = ("_decompressed", "_index", "_properties", "_row")

    _index: MessageIndex
    _row: _Row
    _decompressed: bytes | None
    _properties: dict[str, str] | None

    def __init__(self, index: MessageIndex, row: int) -> None:
        self._row = index._row(row)
        self._index = index
        self._decompressed = None
        self._properties = None

    # Called only for what __init__ has not set: a subclass made by __new__ alone has no index.
    def __getattr__(self, name: str) -> Any:
        if name in MessageView.__slots__:
            raise StateError("a MessageView without its index")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def index(self) -> MessageIndex:
        return self._index

    @property
    def body(self) -> memoryview:
        if not self._row.is_compressed:
            return self.stored_body
        if self._decompressed is None:
            self._decompressed = compression.decompress(
                bytes(self.stored_body), self.sys_flag, self._index.max_decompressed_bytes
            )
        return memoryview(self._decompressed)

    @property
    def stored_body(self) -> memoryview:
        return memoryview(self._index.body)[self._row.body_position :][: self._row.body_size]

    @property
    def properties(self) -> dict[str, str]:
        if self._properties is None:
            text = self._index._text(self._row)
            try:
                text.decode()
            except UnicodeDecodeError as error:
                raise status.not_text(error) from None
            self._properties = {
                name.decode(): value.decode() for name, value in _properties(text).items()
            }
        return self._properties

    def get_property(self, name: str) -> str | None:
        name.encode()  # a lone surrogate raises, as in the cores that pass UTF-8 to C
        return self.properties.get(name)

    @property
    def tags(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        return [key for key in self.properties.get("KEYS", "").split(" ") if key]

    @property
    def sharding_key(self) -> str | None:
        return self.properties.get("__SHARDINGKEY")

    @property
    def queue_offset(self) -> int:
        return self._row.queue_offset

    @property
    def physical_offset(self) -> int:
        return self._row.physical_offset

    @property
    def queue_id(self) -> int:
        return self._row.queue_id

    @property
    def flag(self) -> int:
        return self._row.flag

    @property
    def sys_flag(self) -> int:
        return self._row.sys_flag

    @property
    def born_timestamp_ms(self) -> int:
        return self._row.born_timestamp

    @property
    def store_timestamp_ms(self) -> int:
        return self._row.store_timestamp

    @property
    def reconsume_times(self) -> int:
        return self._row.reconsume_times

    @property
    def prepared_transaction_offset(self) -> int:
        return self._row.prepared_offset

    @property
    def born_host_bytes(self) -> bytes:
        return self._row.born_host

    @property
    def store_host_bytes(self) -> bytes:
        return self._row.store_host


ViewT = TypeVar("ViewT", bound=MessageView)


def _view(kind: type[ViewT], index: MessageIndex, row: int) -> ViewT:
    """Make a view without calling the subclass's __init__, as the contract says."""
    view = kind.__new__(kind)
    MessageView.__init__(view, index, row)
    return view


def _tags(tags: Sequence[bytes]) -> set[bytes | None]:
    if not all(isinstance(tag, bytes) for tag in tags):
        raise TypeError("tags: expected a sequence of bytes objects")
    return set(tags)


def _read_record(
    data: bytes,
    start: int,
    record: int,
    check_crc: bool,
    pulled: tuple[int, int, int] | None,
    before: int,
) -> tuple[int, list[_Row]]:
    """Return (record size, its messages) of the record at `start`
    (docs/internals/protocol.md#stored-message); `before` is the offset of the message before it."""

    def need(holds: bool, fault: int, at: int) -> None:
        if not holds:
            raise status.malformed(fault, record, at)

    # The order of the checks is that of message_codec.c: all cores report the same first fault.
    need(len(data) - start >= 4, status.TRAILING, start)
    (size,) = struct.unpack_from(">i", data, start)
    need(size >= 91, status.RECORD_SIZE, start)  # a v1 record of empty body, topic, properties
    need(size <= len(data) - start, status.TRUNCATED, start)
    end = start + size
    magic, crc, queue_id, flag, offset, physical, flags, born = struct.unpack_from(
        ">IIiiqqiq", data, start + 4
    )
    need(magic in (0xDAA320A7, 0xDAA320AB), status.MAGIC, start + 4)
    # The fixed part varies only by the two hosts: 8 bytes, or 20 with an IPv6 address.
    need(0 <= offset <= status.MAX_OFFSET, status.QUEUE_OFFSET, start + 20)
    born_host = start + 48
    stored_at = born_host + (20 if flags & _BORN_HOST_V6 else 8)
    store_host = stored_at + 8
    tail = store_host + (20 if flags & _STORE_HOST_V6 else 8)
    body = tail + 16
    need(body <= end, status.FIXED_PART, start + 36)
    (stored,) = struct.unpack_from(">q", data, stored_at)
    times, prepared, body_size = struct.unpack_from(">iqi", data, tail)
    need(0 <= body_size <= end - body, status.BODY_SIZE, body - 4)
    at = body + body_size
    # v2 exists for topics over 127 bytes: its topic size has two bytes.
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
    is_inner = flags & _INNER_BATCH == _INNER_BATCH
    queue_id_asked, first_asked, end_asked = pulled or _ANY
    if pulled:
        need(queue_id_asked < 0 or queue_id == queue_id_asked, status.QUEUE_ID, start + 12)
        need(offset > before, status.OFFSET_ORDER, start + 20)
        # One mark alone: a producer's on a plain message, or the damaged one of an inner batch.
        has_one = not is_inner and bool(flags & _INNER_BATCH)
        is_damaged = has_one and _is_batch_body(data[body : body + body_size])
        need(not is_damaged, status.INNER_MARKS, start + 36)
        # A pull from the middle of an inner batch is answered with all of it.
        is_in_range = offset < end_asked and (offset >= first_asked or is_inner)
        need(is_in_range, status.OFFSET_RANGE, start + 20)
    if check_crc:
        stored_body = data[body : body + body_size]
        # Java stores 31 bits, for its field is signed.
        need(zlib.crc32(stored_body) & 0x7FFFFFFF == crc, status.CRC, start + 8)
    row = _Row(
        start, body, body_size, at + 2, property_size, offset, physical, queue_id, flag, flags,
        born, stored, data[born_host:stored_at], data[store_host:tail], times, prepared,
        bool(flags & _COMPRESSED),
    )  # fmt: skip
    if not is_inner:
        return size, [row]
    # Producers compress the messages of an inner batch one by one, never the batch.
    need(not flags & _COMPRESSED, status.INNER_COMPRESSED, start + 36)
    rows = _inner_batch(data, row, record)
    last = rows[-1].queue_offset if rows else offset
    need(first_asked <= last < end_asked, status.OFFSET_RANGE, start + 20)
    return size, rows


def _inner_batch(data: bytes, outer: _Row, record: int) -> list[_Row]:
    """Return the messages of an inner batch (docs/internals/protocol.md#system-flags,
    docs/internals/protocol.md#batch-body); their offsets count up from the record's."""

    def need(holds: bool, fault: int, at: int) -> None:
        if not holds:
            raise status.malformed(fault, record, at)

    rows: list[_Row] = []
    at, end = outer.body_position, outer.body_position + outer.body_size
    while at < end:
        need(end - at >= 22, status.INNER_SIZE, at)
        size, _, _, flag, body_size = struct.unpack_from(">iiiii", data, at)
        need(22 <= size <= end - at, status.INNER_SIZE, at)
        need(0 <= body_size <= size - 22, status.INNER_BODY, at + 16)
        properties = at + 20 + body_size
        (property_size,) = struct.unpack_from(">h", data, properties)
        need(property_size == size - 22 - body_size, status.INNER_PROPERTIES, properties)
        offset = outer.queue_offset + len(rows)
        need(offset <= status.MAX_OFFSET, status.QUEUE_OFFSET, outer.position + 20)
        rows.append(
            outer._replace(
                position=at,
                body_position=at + 20,
                body_size=body_size,
                property_position=properties + 2,
                property_size=property_size,
                queue_offset=offset,
                flag=flag,
                # As Java's decoder has it: the record's values are not those of its messages.
                reconsume_times=0,
                prepared_offset=0,
                is_compressed=False,
            )
        )
        at += size
    return rows


def _is_batch_body(body: bytes) -> bool:
    at = 0
    while at < len(body):
        if len(body) - at < 22:
            return False
        size, _, _, _, body_size = struct.unpack_from(">iiiii", body, at)
        if not 22 <= size <= len(body) - at or not 0 <= body_size <= size - 22:
            return False
        if struct.unpack_from(">h", body, at + 20 + body_size) != (size - 22 - body_size,):
            return False
        at += size
    return at > 0


def _properties(text: bytes) -> dict[bytes, bytes]:
    """Return the properties of a text."""
    # As Java reads them: entries without a name or a value are skipped, the last of a name counts.
    found = {}
    for piece in text.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        if name and value:
            found[name] = value
    return found


def _tag_hash(properties: dict[bytes, bytes]) -> int:
    """Return Java's String.hashCode of TAGS; 0 without one, or if it is not UTF-8."""
    try:
        return java_hash(properties.get(b"TAGS", b"").decode())
    except UnicodeDecodeError:
        return 0


RunT = TypeVar("RunT", bound="MessageRun")
_Segments = Sequence[tuple[Any, int, int]]


class MessageRun:
    """See contract.MessageRun."""

    __slots__ = ("_length", "_segments")

    _length: int
    _segments: _Segments

    def __init__(self, segments: Sequence[tuple[contract.MessageIndex, int, int]]) -> None:
        for index, first, count in segments:
            # By attribute, not by class: the cffi binding uses this class with its own index.
            if not callable(getattr(index, "offset_at", None)):
                raise TypeError(f"a segment of a {type(index).__name__}: expected a MessageIndex")
            if first < 0 or count < 1 or first + count > len(index):
                raise IndexError(f"messages {first}..{first + count - 1} of {len(index)}")
        self._segments = list(segments)
        self._length = sum(count for _, _, count in segments)

    def __len__(self) -> int:
        return self._length

    @property
    def segments(self) -> _Segments:
        return self._segments

    @property
    def first_offset(self) -> int:
        index, first, _ = self._segments[0]
        return int(index.offset_at(first))

    @property
    def last_offset(self) -> int:
        index, first, count = self._segments[-1]
        return int(index.offset_at(first + count - 1))

    def offsets(self) -> list[int]:
        return [
            index.offset_at(row)
            for index, first, count in self._segments
            for row in range(first, first + count)
        ]

    def cut(self, kind: type[RunT], size: int) -> Iterator[RunT]:
        if not (isinstance(kind, type) and issubclass(kind, MessageRun)):
            raise TypeError(f"cut: expected a class of MessageRuns, got {kind!r}")
        if size < 1:
            raise ValueError(f"cut: a size of {size}: expected 1 or more")
        return self._parts(kind, size)

    def _parts(self, kind: type[RunT], size: int) -> Iterator[RunT]:
        gathered: list[tuple[Any, int, int]] = []
        held = 0
        for index, first, count in self._segments:
            end = first + count
            # A full part may start in an earlier segment: `gathered` holds that beginning.
            while end - first >= size - held:
                middle = first + size - held
                yield _run(kind, [*gathered, (index, first, middle - first)])
                gathered, held, first = [], 0, middle
            if first < end:
                gathered.append((index, first, end - first))
                held += end - first
        if gathered:
            yield _run(kind, gathered)

    def views(self, kind: type[Any]) -> Iterator[Any]:
        return chain.from_iterable(
            index.views(kind, first, count) for index, first, count in self._segments
        )

    def view(self, kind: type[Any], position: int) -> Any:
        left = position
        if left >= 0:
            for index, first, count in self._segments:
                if left < count:
                    return next(index.views(kind, first + left, 1))
                left -= count
        raise IndexError(f"message {position} of {self._length}")


def _run(kind: type[RunT], segments: list[tuple[Any, int, int]]) -> RunT:
    """Make a run without calling the subclass's __init__, as the contract says."""
    run = kind.__new__(kind)
    MessageRun.__init__(run, segments)
    return run


def java_hash(text: str) -> int:
    """See contract.JavaHash."""
    # Units, not characters: one past U+FFFF counts as its two surrogates, as in Java.
    value = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value
