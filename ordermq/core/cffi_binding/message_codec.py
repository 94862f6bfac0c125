"""The message codec through cffi: index, views, Java's hash."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ordermq.core import compression, status
from ordermq.core._cffi import ffi, lib
from ordermq.core.cffi_binding.arguments import INT32_MAX, Lent, clamped, raise_unless_ok
from ordermq.errors import StateError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_CTYPES: Final = {"q": "int64_t[]", "I": "uint32_t[]", "i": "int32_t[]"}


class MessageIndex:
    """See contract.MessageIndex."""

    __slots__ = ("_arrays", "_bytes", "_rows", "body", "last_offset", "max_decompressed_bytes")

    def __init__(
        self,
        body: ReadableBuffer,
        tags: Sequence[bytes] = (),
        check_crc: bool = False,
        pulled: tuple[int, int, int] | None = None,
        max_decompressed_bytes: int = compression.MAX_DECOMPRESSED_BYTES,
    ) -> None:
        # Once: views read through the rows without a check, so they must never change.
        if hasattr(self, "_rows"):
            raise StateError("a MessageIndex is made once")
        if not all(isinstance(tag, bytes) for tag in tags):
            raise TypeError("tags: expected a sequence of bytes objects")
        self.body = bytes(body)
        self.max_decompressed_bytes = max_decompressed_bytes
        self._bytes = ffi.from_buffer("uint8_t[]", self.body)
        tag_bytes = [ffi.from_buffer("uint8_t[]", tag) for tag in tags]  # alive during the call
        wanted = ffi.new("omq_text[]", [(tag, len(tag)) for tag in tag_bytes])
        has_inner = ffi.new("bool *")
        # An upper bound first, so that the index is filled in one pass into arrays of that size.
        room = lib.omq_message_count(self._bytes, len(self.body), has_inner)
        self._allocate(room, has_inner[0])
        last_offset = ffi.new("int64_t *")
        fault = ffi.new("omq_message_fault *")
        code = lib.omq_message_index(
            self._bytes,
            len(self.body),
            wanted,
            len(wanted),
            check_crc,
            _pulled(pulled),
            self._rows,
            last_offset,
            fault,
        )
        self.last_offset: int = last_offset[0]
        if code != status.OK:
            self._rows.count = 0  # the rows are garbage: a subclass that catches must see none
        if code == status.MALFORMED:
            raise status.malformed(fault.fault, fault.record, fault.position)
        raise_unless_ok(code, f"index of {len(self.body)} bytes")
        if self._rows.count < room:
            self._shrink()

    def _allocate(self, rows: int, has_inner: bool) -> None:
        names = ["positions", "body_sizes"] + (["outers", "numbers"] if has_inner else [])
        self._arrays = {name: ffi.new("uint32_t[]", rows) for name in names}
        self._rows = ffi.new("omq_message_rows *", self._arrays)

    def _shrink(self) -> None:
        """Move the rows to arrays of their size: the bound of an inner batch is many times that."""
        rows, arrays = self._rows, self._arrays
        self._allocate(rows.count, "outers" in arrays)
        for name in ("count", "size_bytes", "first_offset", "is_run"):
            setattr(self._rows, name, getattr(rows, name))
        for name, values in arrays.items():
            ffi.memmove(self._arrays[name], values, 4 * rows.count)

    def __len__(self) -> int:
        return int(self._rows.count)

    @property
    def offsets(self) -> memoryview:
        return self.columns("offsets")["offsets"]

    @property
    def body_sizes(self) -> memoryview:
        return self.columns("body_sizes")["body_sizes"]

    def _offsets(self) -> Any:
        targets = ffi.new("void *[]", lib.OMQ_COLUMN_END)
        targets[lib.OMQ_COLUMN_OFFSETS] = offsets = ffi.new("int64_t[]", len(self))
        lib.omq_message_read_columns(self._bytes, self._rows, targets)
        return offsets

    def offset_at(self, row: int) -> int:
        return int(lib.omq_message_offset(self._bytes, self._rows, self._checked(row)))

    def _checked(self, row: int) -> int:
        if not 0 <= row < len(self):
            raise IndexError(f"message {row} of {len(self)}")
        return row

    def _read(self, row: int) -> Any:
        message = ffi.new("omq_message *")
        lib.omq_message_read(self._bytes, self._rows, self._checked(row), message)
        return message

    def _locate(self, row: int) -> Any:
        parts = ffi.new("omq_message_parts *")
        lib.omq_message_locate(self._bytes, self._rows, self._checked(row), parts)
        return parts

    def _column(self, code: str) -> tuple[Any, memoryview]:
        values = ffi.new(_CTYPES[code], len(self))
        return values, _view_of(values, code, len(self))

    def columns(self, *names: str) -> dict[str, memoryview]:
        targets = ffi.new("void *[]", lib.OMQ_COLUMN_END)
        found = {}
        for name in names:
            if name not in status.COLUMNS:
                raise status.unknown_column(name)
            number, code = status.COLUMNS[name]
            targets[number], found[name] = self._column(code)
        lib.omq_message_read_columns(self._bytes, self._rows, targets)
        return found

    def property_columns(self, name: str) -> tuple[memoryview, memoryview]:
        encoded = ffi.from_buffer("uint8_t[]", name.encode())
        positions, position_column = self._column("I")
        sizes, size_column = self._column("I")
        lib.omq_message_find_property(
            self._bytes,
            self._rows,
            ffi.new("omq_text *", (encoded, len(encoded))),
            positions,
            sizes,
        )
        return position_column, size_column

    def property_entries(self) -> tuple[memoryview, memoryview, memoryview, memoryview]:
        # Room for all; of a name that occurs twice in a message only the last is listed.
        room = lib.omq_message_count_properties(self._bytes, self._rows)
        starts = ffi.new("int32_t[]", len(self) + 1)
        positions, name_sizes, value_sizes = (ffi.new("uint32_t[]", room) for _ in range(3))
        count = lib.omq_message_list_properties(
            self._bytes, self._rows, starts, positions, name_sizes, value_sizes
        )
        return (
            _view_of(starts, "i", len(self) + 1),
            _view_of(positions, "I", count),
            _view_of(name_sizes, "I", count),
            _view_of(value_sizes, "I", count),
        )

    def gather(
        self, positions: ReadableBuffer, sizes: ReadableBuffer, is_text: bool = False
    ) -> tuple[memoryview, bytes]:
        with Lent() as lent:
            where = lent.column(positions, "IiLl", "uint32_t", "positions")
            lengths = lent.column(sizes, "IiLl", "uint32_t", "sizes")
            count = len(where)
            if count != len(lengths):
                raise ValueError(f"gather: {count} positions, {len(lengths)} sizes")
            starts = ffi.new("int32_t[]", count + 1)
            code = lib.omq_gather_measure(len(self.body), where, lengths, count, starts)
            raise_unless_ok(code, f"gather of {count} pieces")
            gathered = ffi.new("uint8_t[]", starts[count])
            wrong = lib.omq_gather_copy(self._bytes, where, starts, count, is_text, gathered)
            pieces = bytes(ffi.buffer(gathered, starts[count]))
            if wrong < count:
                raise _not_text(pieces, starts, wrong)
            return _view_of(starts, "i", count + 1), pieces

    def views(self, kind: type[ViewT], first: int, count: int) -> Iterator[ViewT]:
        if not issubclass(kind, MessageView):
            raise TypeError(f"views: expected a class of MessageViews, got {kind.__name__}")
        if first < 0 or count < 0 or first + count > len(self):
            raise IndexError(f"messages {first}..{first + count - 1} of {len(self)}")
        return (_view(kind, self, row) for row in range(first, first + count))


def _pulled(pulled: tuple[int, int, int] | None) -> Any:
    """Return the pull that a body answers, for C."""
    if pulled is None:
        return ffi.NULL
    queue_id, first, end = pulled
    bounded = min(max(queue_id, -1), INT32_MAX)
    return ffi.new("omq_pulled *", (clamped(first), clamped(end), bounded))


def _view_of(values: Any, code: str, count: int) -> memoryview:
    """Return C memory as a read-only column."""
    # The buffer keeps `values`, and so the memory, alive as long as a view of it exists.
    held = ffi.buffer(values, count * struct.calcsize(code))
    view: memoryview = memoryview(held).cast(code)  # type: ignore[call-overload]
    return view.toreadonly()


def _not_text(pieces: bytes, starts: Any, number: int) -> Exception:
    # C says which piece; Python's decoder says where in it and why, as in the other cores.
    try:
        pieces[starts[number] : starts[number + 1]].decode()
    except UnicodeDecodeError as error:
        return status.piece_not_text(number, error)
    raise AssertionError(f"piece {number} is UTF-8 after all")


class MessageView:
    """See contract.MessageView."""

    __slots__ = ("_decompressed", "_index", "_properties", "_row")

    _index: MessageIndex
    _row: int
    _decompressed: bytes | None
    _properties: dict[str, str] | None

    def __init__(self, index: MessageIndex, row: int) -> None:
        self._row = index._checked(row)
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
        parts = self._index._locate(self._row)
        if not parts.is_compressed:
            return memoryview(self._index.body)[parts.body_at : parts.body_at + parts.body_size]
        # Kept, because a listener may read the body more than once.
        if self._decompressed is None:
            self._decompressed = compression.decompress(
                bytes(self.stored_body), self.sys_flag, self._index.max_decompressed_bytes
            )
        return memoryview(self._decompressed)

    @property
    def stored_body(self) -> memoryview:
        parts = self._index._locate(self._row)
        return memoryview(self._index.body)[parts.body_at : parts.body_at + parts.body_size]

    def _text(self) -> tuple[Any, int]:
        """Return where the properties lie and their size; raise unless they are UTF-8."""
        parts = self._index._locate(self._row)
        text, size = self._index._bytes + parts.property_at, parts.property_size
        # C only says that it is not; Python's decoder says where and why.
        if not lib.omq_is_utf8(text, size):
            try:
                bytes(ffi.buffer(text, size)).decode()
            except UnicodeDecodeError as error:
                raise status.not_text(error) from None
        return text, size

    @property
    def properties(self) -> dict[str, str]:
        if self._properties is None:
            text, size = self._text()
            found = {}
            at = ffi.new("size_t *")
            one = ffi.new("omq_property *")
            while lib.omq_property_next(text, size, at, one):
                found[_decoded(one.name)] = _decoded(one.value)
            self._properties = found
        return self._properties

    def get_property(self, name: str) -> str | None:
        text, size = self._text()
        encoded = ffi.from_buffer("uint8_t[]", name.encode())
        wanted = ffi.new("omq_text *", (encoded, len(encoded)))
        value = ffi.new("omq_text *")
        # Most callers read one property: no dict of all is made for it.
        found = lib.omq_property_find(text, size, wanted, value)
        return _decoded(value) if found else None

    @property
    def tags(self) -> str | None:
        return self.get_property("TAGS")

    @property
    def keys(self) -> list[str]:
        return [key for key in (self.get_property("KEYS") or "").split(" ") if key]

    @property
    def sharding_key(self) -> str | None:
        return self.get_property("__SHARDINGKEY")

    @property
    def queue_offset(self) -> int:
        return int(self._index._read(self._row).queue_offset)

    @property
    def physical_offset(self) -> int:
        return int(self._index._read(self._row).physical_offset)

    @property
    def queue_id(self) -> int:
        return int(self._index._read(self._row).queue_id)

    @property
    def flag(self) -> int:
        return int(self._index._read(self._row).flag)

    @property
    def sys_flag(self) -> int:
        return int(self._index._read(self._row).sys_flag)

    @property
    def born_timestamp_ms(self) -> int:
        return int(self._index._read(self._row).born_ms)

    @property
    def store_timestamp_ms(self) -> int:
        return int(self._index._read(self._row).stored_ms)

    @property
    def reconsume_times(self) -> int:
        return int(self._index._read(self._row).reconsume_times)

    @property
    def prepared_transaction_offset(self) -> int:
        return int(self._index._read(self._row).prepared_offset)

    @property
    def born_host_bytes(self) -> bytes:
        message = self._index._read(self._row)
        return self._index.body[message.born_host_at :][: message.born_host_size]

    @property
    def store_host_bytes(self) -> bytes:
        message = self._index._read(self._row)
        return self._index.body[message.store_host_at :][: message.store_host_size]


ViewT = TypeVar("ViewT", bound=MessageView)


def _view(kind: type[ViewT], index: MessageIndex, row: int) -> ViewT:
    """Make a view without calling the subclass's __init__, as the contract says."""
    view = kind.__new__(kind)
    MessageView.__init__(view, index, row)
    return view


def _decoded(text: Any) -> str:
    return bytes(ffi.buffer(text.bytes, text.size)).decode()


def java_hash(text: str) -> int:
    """See contract.JavaHash."""
    data = text.encode()
    found: int = lib.omq_java_hash(
        ffi.new("omq_text *", (ffi.from_buffer("uint8_t[]", data), len(data)))
    )
    return found
