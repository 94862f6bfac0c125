"""The message writer: stored records, batch bodies, rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class RecordBlock(Protocol):
    """Stored records without their offsets yet, in one piece of memory; made by `RecordWriter`.

    Records are encoded by the threads that received them. Their two offsets are known only when
    the store's writer commits them, so they are written last.
    """

    def __len__(self) -> int: ...

    @property
    def tags(self) -> list[int]:
        """The tag of each record, as in `rows`; made at each call. O(n)."""

    def rows(self, queue_offset: int, physical_offset: int) -> list[tuple[int, int, bytearray]]:
        """Set consecutive offsets; return (queue offset, tag, record) per record.

        Each record is a copy, and a bytearray: sqlite3 binds one without looking for an adapter.
        O(bytes).

        Args: queue_offset, physical_offset: of the first record.
        Raises: OverflowError: an offset is no int64.
        """


class RecordWriter(Protocol):
    """A writer of stored records (docs/internals/protocol.md#stored-message) of one queue and one
    producer host.

    A topic over 127 bytes makes v2 records, a host of 20 bytes sets its bit of sysFlag. Any
    thread: nothing changes after construction.
    """

    def __init__(self, topic: str, queue_id: int, born_host: bytes, store_host: bytes) -> None:
        """Make a writer.

        Args:
            topic: the topic of the queue, at most 32767 bytes of UTF-8.
            born_host, store_host: 4 or 16 bytes of address, 4 of port, big-endian.
        Raises: ValueError: the topic is too long, or a host is malformed. OverflowError: queue_id
            is over 32 bits.
        """

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
        """Write one record. O(size).

        Args:
            properties: at most 32767 bytes.
            sys_flag: its two IPv6 bits are replaced by those of the hosts.
            tag: the tag of its row; None takes Java's `String.hashCode` of TAGS (0 without one).
        Raises: OverflowError: a number is over its 32 or 64 bits. ValueError: the properties are
            too long, or the record is over 2**31 - 1 bytes.
        """

    def write_batch(
        self, batch: bytes, *, sys_flag: int, born_ms: int, stored_ms: int
    ) -> RecordBlock:
        """Write the records of a batch body (docs/internals/protocol.md#batch-body), all of them
        or none. O(size).

        Raises: ProtocolError: a message is truncated, or has the property DELAY or TRAN_MSG, which
            no batch may carry; the text says which message, at which byte, and why.
            OverflowError: a number is over its 32 or 64 bits. ValueError: the records are over
            4 GiB - 1.
        """


class EncodeBatch(Protocol):
    """Type of `ordermq.core.encode_batch`."""

    def __call__(
        self, bodies: Sequence[bytes], properties: Sequence[str], flags: Sequence[int]
    ) -> bytes:
        """Write the batch body of SEND_BATCH_MESSAGE (docs/internals/protocol.md#batch-body).

        Pure, any thread. O(size).

        Args: bodies, properties, flags: one of each per message; a property text has at most
            32767 bytes of UTF-8, a flag 32 bits, signed.
        Raises: ValueError: the lengths differ, a property text is too long, or the total is over
            4 GiB - 1. OverflowError: a flag is over 32 bits.
        """


# A column of byte strings: int32 positions, one more than rows, and the bytes. Value i is
# bytes[positions[i] : positions[i + 1]], as in an Arrow string or binary array.
Texts: TypeAlias = "tuple[ReadableBuffer, ReadableBuffer]"


class OrderedRows(Protocol):
    """Type of `ordermq.core.ordered_rows`."""

    def __call__(
        self,
        offsets: ReadableBuffer,
        queue_ids: ReadableBuffer,
        names: Sequence[Texts],
        first: int,
        end: int,
    ) -> int:
        """Return where rows stop to be in the order of one message queue.

        Pure, any thread; releases the GIL for long columns. O(rows looked at).

        Args:
            offsets: queue offsets, int64, shape (n,).
            queue_ids: int32, shape (n,).
            names: further columns that identify a queue, as topic and broker; n rows each.
            first, end: rows to look at, first < end <= n.
        Returns: the first row behind `first` that is of another queue than the one before it,
            or whose offset is not greater; `end` if there is none.
        Raises: ValueError: rows are out of range, lengths differ, or a position is outside its
            bytes. TypeError: a column is not a contiguous buffer of the right type.
        """


class EncodeRows(Protocol):
    """Type of `ordermq.core.encode_rows`."""

    def __call__(
        self,
        bodies: Texts,
        rows: ReadableBuffer,
        *,
        fixed: bytes,
        columns: Sequence[tuple[bytes, Texts | ReadableBuffer]],
        unique: bytes,
        most_bytes: int,
    ) -> tuple[bytes, int]:
        """Write rows as the batch body of SEND_BATCH_MESSAGE
        (docs/internals/protocol.md#batch-body).

        Pure, any thread; releases the GIL for large bodies. O(bytes).

        Args:
            bodies: of n rows; none that is sent may be empty.
            rows: the rows to send, in this order; uint32, shape (m,), m >= 1.
            fixed: properties of every message, in text form
                (docs/internals/protocol.md#stored-message).
            columns: property name and values: texts of n rows, or int64 of shape (n,). An empty
                text is left out. Texts of a column with an empty name are whole properties, and
                written as they are.
            unique: 16 bytes, a number; the UNIQ_KEY of message k is this number + k. Empty: the
                messages get none.
            most_bytes: the most bytes of the body, which has at least one message.
        Returns: the body, and how many of the rows are in it.
        Raises: ValueError: no rows, rows or positions out of range, or lengths that differ; or a
            row that no broker takes: an empty body, a value with U+0001 or U+0002 inside,
            properties over 32767 bytes, a message over 2**31 - 1 bytes. TypeError: a column is not
            a contiguous buffer of the right type.
        """
