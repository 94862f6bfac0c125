"""The message codec: stored messages, indexed and read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class MessageIndex(Protocol):
    """The messages of a pull body: its bytes, and the place of each message. Made to be subclassed.

    It keeps the body and 8 bytes per message, 16 if there are inner batches: the place of the
    record, and the size of the body, so that a process queue need not read the bytes again. Every
    other field is read natively from the bytes when it is asked for. Any thread: nothing changes
    after construction, and `IdWindow.drop_copies`.

    Columns are read-only, contiguous memoryviews with one row per message. Each owns its
    memory, which lives as long as the view or an array over it: `numpy.asarray(column)` and
    `numpy.frombuffer(column, dtype)` copy nothing. Positions are bytes from the start of
    `body`.
    """

    def __init__(
        self,
        body: ReadableBuffer,
        tags: Sequence[bytes] = (),
        check_crc: bool = False,
        pulled: tuple[int, int, int] | None = None,
        max_decompressed_bytes: int = ...,
    ) -> None:
        """Index a concatenation of stored records (docs/internals/protocol.md#stored-message) in
        one native pass.

        Reads v1 and v2 records, IPv4 and IPv6 hosts. An inner batch
        (docs/internals/protocol.md#system-flags) becomes the messages it holds, with offsets that
        count up from its own. O(records), with tags
        O(property bytes), with check_crc O(size).

        Args:
            body: the pull body, up to 4 GiB - 1. Bytes are kept as they are, anything else
                is copied first.
            tags: keep only messages whose TAGS property is exactly one of these, UTF-8;
                () keeps all. The broker compares hashes only (docs/internals/protocol.md#tags).
            check_crc: compare each stored body with its record's checksum.
            pulled: the pull that the body answers: (queue id, -1 for any; the offset asked for;
                the next offset to ask for). Offsets must ascend between the two. Messages of an
                inner batch before the first are left out. None: any records.
            max_decompressed_bytes: the most bytes that a compressed body may become; default 4 MiB.
        Raises: ProtocolError: a record is malformed, truncated, damaged or no answer to the pull;
            the text says which record, at which byte, and why.
        """

    @property
    def body(self) -> bytes:
        """The pull body."""

    @property
    def last_offset(self) -> int:
        """Queue offset of the last message scanned, kept or not; -1 if there was none."""

    @property
    def max_decompressed_bytes(self) -> int:
        """The most bytes that a compressed body may become."""

    def __len__(self) -> int: ...

    @property
    def offsets(self) -> memoryview:
        """The column of that name, for `ProcessQueue.put_batch`; made at each call. O(n)."""

    @property
    def body_sizes(self) -> memoryview:
        """The column of that name, for `ProcessQueue.put_batch`; made at each call. O(n)."""

    def offset_at(self, row: int) -> int:
        """Return the queue offset of a message.

        Raises: IndexError: there is no such row.
        """

    def columns(self, *names: str) -> dict[str, memoryview]:
        """Read columns in one native pass. O(n), with tag_hashes O(property bytes).

        Args:
            names: int64 (format q): offsets, physical_offsets, born_timestamps,
                store_timestamps (ms since 1970); uint32 (I): positions (of the record, or
                of the entry in an inner batch), body_positions, body_sizes,
                property_positions, property_sizes (bytes); int32 (i): tag_hashes (Java's
                `String.hashCode` of TAGS, 0 without one: the broker filters by it),
                queue_ids, flags, sys_flags, reconsume_times.
        Raises: ValueError: no such column.
        """

    def property_columns(self, name: str) -> tuple[memoryview, memoryview]:
        """Find a property of every message: positions and sizes of its values, uint32.

        The size is 0 where a message has none. O(property bytes).
        """

    def property_entries(self) -> tuple[memoryview, memoryview, memoryview, memoryview]:
        """Find all properties: starts (int32), and uint32 name positions, name and value sizes.

        The properties of message i are starts[i] .. starts[i + 1] - 1, in the order of the text.
        If a name occurs twice only the last one is listed. A value starts one byte behind its name.
        O(property bytes), at worst times the properties of a message.
        """

    def gather(
        self, positions: ReadableBuffer, sizes: ReadableBuffer, is_text: bool = False
    ) -> tuple[memoryview, bytes]:
        """Join pieces of the body: the data and offsets of an Arrow string or binary column.

        Args:
            positions, sizes: uint32, as `columns`, `property_columns` and `property_entries`
                give them, or parts of these.
            is_text: raise if a piece is not UTF-8.
        Returns: starts, int32, one more than pieces, the last is the end; and the bytes.
        Raises: ProtocolError: a piece is not UTF-8; the text says which. ValueError: a piece
            reaches past the body, the total is over 2 GiB - 1, or the columns differ in length.
            O(bytes copied).
        """

    def views(self, kind: type[Any], first: int, count: int) -> Iterator[Any]:
        """Iterate over views of messages first .. first + count - 1.

        Args:
            kind: `MessageView` or a subclass. Its __init__ does not run and its __new__ gets no
                arguments: views are made per message.
        Raises: IndexError: there are no such rows. TypeError: not a class of views.
        """


class MessageView(Protocol):
    """One message of an index. Made to be subclassed.

    Fields are decoded natively from the record at each access; only `properties` and a
    decompressed body are kept. A view keeps its index alive, and so the bytes.

    A message of an inner batch has its own body, properties and flag; hosts, timestamps and
    physical offset are those of the record around it, and its reconsume times are 0, as in Java.
    """

    def __init__(self, index: MessageIndex, row: int) -> None:
        """Make a view of one message.

        Raises: IndexError: there is no such row.
        """

    @property
    def index(self) -> MessageIndex:
        """The index that the message belongs to."""

    @property
    def body(self) -> memoryview:
        """The body: a view of the pull body, or, if compressed, of a copy that is decompressed on
        first access and kept.

        Raises: ProtocolError, ConfigError: see `compression.decompress`.
        """

    @property
    def stored_body(self) -> memoryview:
        """The body as stored, compressed or not; not copied."""

    @property
    def properties(self) -> dict[str, str]:
        """All properties; one dict per view, made at first access. O(property bytes).

        Entries without a name or a value are left out; if a name occurs twice the last one counts.
        Raises: ProtocolError: the message's properties are not UTF-8; so do the next four.
        """

    def get_property(self, name: str) -> str | None:
        """Return one property or None, without making the dict. O(property bytes)."""

    @property
    def tags(self) -> str | None:
        """The property TAGS, None without one."""

    @property
    def keys(self) -> list[str]:
        """The parts of the property KEYS between blanks (U+0020), [] without one."""

    @property
    def sharding_key(self) -> str | None:
        """The property __SHARDINGKEY, None without one."""

    @property
    def queue_offset(self) -> int:
        """Its offset in the queue."""

    @property
    def physical_offset(self) -> int:
        """Its position in the broker's store."""

    @property
    def queue_id(self) -> int:
        """The queue it is stored in."""

    @property
    def flag(self) -> int:
        """The producer's 32 bits, signed."""

    @property
    def sys_flag(self) -> int:
        """The protocol's bits (docs/internals/protocol.md#system-flags), signed."""

    @property
    def born_timestamp_ms(self) -> int:
        """Time at which the producer made the message, ms since 1970 on its clock."""

    @property
    def store_timestamp_ms(self) -> int:
        """Time at which the broker stored the message, ms since 1970 on its clock."""

    @property
    def reconsume_times(self) -> int:
        """Number of times the message had failed and been sent back before it was stored."""

    @property
    def prepared_transaction_offset(self) -> int:
        """Physical offset of the half message of a transactional message; else 0."""

    @property
    def born_host_bytes(self) -> bytes:
        """The producer: 4 or 16 bytes of address, 4 of port, big-endian."""

    @property
    def store_host_bytes(self) -> bytes:
        """The broker that stored it: 4 or 16 bytes of address, 4 of port, big-endian."""


class MessageRun(Protocol):
    """Neighbouring messages of one index, or of several. Made to be subclassed.

    A run keeps the indexes alive and makes no object per message. Any thread: nothing changes after
    construction.
    """

    def __init__(self, segments: Sequence[tuple[MessageIndex, int, int]]) -> None:
        """Join segments, as `ProcessQueue.take_segments` returns them.

        Args:
            segments: (index, first message, messages >= 1), in order.
        Raises: IndexError: there are no such rows. TypeError: not of an index.
        """

    def __len__(self) -> int: ...

    @property
    def segments(self) -> Sequence[tuple[Any, int, int]]:
        """The segments: (index, first message, number of messages) each."""

    @property
    def first_offset(self) -> int:
        """The queue offset of the first message. Raises: IndexError: there is none."""

    @property
    def last_offset(self) -> int:
        """The queue offset of the last message. Raises: IndexError: there is none."""

    def offsets(self) -> list[int]:
        """Return the queue offsets, in order. O(n)."""

    def cut(self, kind: type[Any], size: int) -> Iterator[Any]:
        """Iterate over runs of `size` messages, the last one perhaps shorter. O(1) each.

        Args:
            kind: `MessageRun` or a subclass. Its __init__ does not run and its __new__ gets no
                arguments.
        Raises: ValueError: a size below 1. TypeError: not a class of runs.
        """

    def views(self, kind: type[Any]) -> Iterator[Any]:
        """Iterate over views of the messages; `kind` as in `MessageIndex.views`."""

    def view(self, kind: type[Any], position: int) -> Any:
        """Return a view of one message; `kind` as in `MessageIndex.views`.

        Raises: IndexError: a position below 0 or from the end on. O(segments).
        """
