"""The contract of the message codec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class MessageIndex(Protocol):
    """The messages of a pull body: its bytes, and where each message is; a class to subclass.

    It keeps the body and 8 bytes a message, 16 where there are inner batches: where it is, and
    its body's size, so that a process queue need not touch the bytes again. Everything else is
    read natively from the bytes when somebody asks. Any thread: nothing changes
    after construction.

    Columns are read-only, contiguous memoryviews with one row a message. Each owns its
    memory, which lives as long as the view or an array over it: `numpy.asarray(column)` and
    `numpy.frombuffer(column, dtype)` copy nothing. Positions are bytes from the start of
    `body`.
    """

    def __init__(
        self, body: ReadableBuffer, tags: Sequence[bytes] = (), check_crc: bool = False
    ) -> None:
        """Index a concatenation of stored records (docs/internals/protocol.md#stored-message) in
        one native pass.

        v1 and v2 records, IPv4 and IPv6 hosts. An inner batch
        (docs/internals/protocol.md#system-flags) becomes the
        messages it holds, with offsets counted on from its own. O(records), with tags
        O(property bytes), with check_crc O(size).

        Args:
            body: the pull body, up to 4 GiB - 1. Bytes are kept as they are, anything else
                is copied first.
            tags: keep only messages whose TAGS property is exactly one of these, UTF-8;
                () keeps all. The broker compares hashes only (docs/internals/protocol.md#tags).
            check_crc: compare each stored body with its record's checksum.
        Raises: ProtocolError: a record is malformed, cut or damaged; says which, where and how.
        """

    @property
    def body(self) -> bytes:
        """The pull body."""

    @property
    def last_offset(self) -> int:
        """Queue offset of the last message scanned, kept or not; -1 if there was none."""

    def __len__(self) -> int: ...

    @property
    def offsets(self) -> memoryview:
        """The column of that name, for `ProcessQueue.put_batch`; made at each call. O(n)."""

    @property
    def body_sizes(self) -> memoryview:
        """The column of that name, for `ProcessQueue.put_batch`; made at each call. O(n)."""

    def offset_at(self, row: int) -> int:
        """The queue offset of a message.

        Raises: IndexError: there is no such row.
        """

    def columns(self, *names: str) -> dict[str, memoryview]:
        """Read columns in one native pass. O(n), with tag_hashes O(property bytes).

        Args:
            names: of int64 (format q) offsets, physical_offsets, born_timestamps,
                store_timestamps (ms since 1970); of uint32 (I) positions (of the record, or
                of the entry in an inner batch), body_positions, body_sizes,
                property_positions, property_sizes (bytes); of int32 (i) tag_hashes (Java's
                `String.hashCode` of TAGS, 0 without one: what the broker filters by),
                queue_ids, flags, sys_flags, reconsume_times.
        Raises: ValueError: no such column.
        """

    def property_columns(self, name: str) -> tuple[memoryview, memoryview]:
        """Find a property of every message: positions and sizes of its values, uint32.

        The size is 0 where a message has none. O(property bytes).
        """

    def property_entries(self) -> tuple[memoryview, memoryview, memoryview, memoryview]:
        """Find all properties: starts (int32), and uint32 name positions, name and value sizes.

        Those of message i are starts[i] .. starts[i + 1] - 1, in the order they stand in, but
        of a name that comes twice only the last; a value begins one byte behind its name.
        O(property bytes), at worst times the properties of a message.
        """

    def gather(
        self, positions: ReadableBuffer, sizes: ReadableBuffer, is_text: bool = False
    ) -> tuple[memoryview, bytes]:
        """Copy pieces of the body one behind the other: an Arrow string or binary column.

        Args:
            positions, sizes: uint32, as `columns`, `property_columns` and `property_entries`
                give them, or parts of these.
            is_text: refuse what is not UTF-8.
        Returns: starts, int32, one more than pieces, the last is the end; and the bytes.
        Raises: ProtocolError: a piece is not UTF-8; says which. ValueError: a piece reaches
            past the body, all are over 2 GiB - 1, or the columns differ in length.
            O(bytes copied).
        """

    def views(self, kind: type[Any], first: int, count: int) -> Iterator[Any]:
        """Iterate over views of messages first .. first + count - 1.

        Args:
            kind: `MessageView` or a subclass, which is not initialised: its __init__ does
                not run, its __new__ gets no arguments.
        Raises: IndexError: there are no such rows. TypeError: not a class of views.
        """


class MessageView(Protocol):
    """One message of an index; a class to subclass.

    Fields are decoded at each access, natively and straight from the record, but
    `properties` and a decompressed body, which are kept. It keeps the index alive, and so the
    bytes. A message of an inner batch has its own body, properties and flag; hosts,
    timestamps and physical offset are those of the record around it, and its reconsume times
    are 0, as in Java.
    """

    def __init__(self, index: MessageIndex, row: int) -> None:
        """Look at a message.

        Raises: IndexError: there is no such row.
        """

    @property
    def index(self) -> MessageIndex:
        """What it is of."""

    @property
    def body(self) -> memoryview:
        """The body: a view of the pull body, or, if compressed, of a decompressed copy.

        Raises: ProtocolError, ConfigError: see `compression.decompress`.
        """

    @property
    def stored_body(self) -> memoryview:
        """The body as stored, compressed or not; not copied."""

    @property
    def properties(self) -> dict[str, str]:
        """All properties; one dict for the view, made at first access. O(property bytes).

        What has no name or no value is left out; of a name that comes twice the last counts.
        Raises: ProtocolError: the message's properties are not UTF-8; so the next four.
        """

    def get_property(self, name: str) -> str | None:
        """One property, None if there is none, without making the dict. O(property bytes)."""

    @property
    def tags(self) -> str | None:
        """TAGS."""

    @property
    def keys(self) -> list[str]:
        """The words of KEYS."""

    @property
    def sharding_key(self) -> str | None:
        """__SHARDINGKEY."""

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
        """When the producer made it, ms since 1970 on its clock."""

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored it, ms since 1970 on its clock."""

    @property
    def reconsume_times(self) -> int:
        """How often it failed before it was stored."""

    @property
    def prepared_transaction_offset(self) -> int:
        """Of a transactional message, the physical offset of its half; else 0."""

    @property
    def born_host_bytes(self) -> bytes:
        """The producer: 4 or 16 bytes of address, 4 of port, big-endian."""

    @property
    def store_host_bytes(self) -> bytes:
        """The broker that stored it, alike."""
