"""The contract of the message writer: batches to send, records to store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class RecordBlock(Protocol):
    """Records that wait for their places, in one piece of memory.

    The places are known only when the store's writer comes to them, so the two offsets are
    written last. Made by `RecordWriter`.
    """

    def __len__(self) -> int: ...

    @property
    def tags(self) -> list[int]:
        """Of each record what `rows` gives as its tag; made at each call. O(n)."""

    def rows(self, queue_offset: int, physical_offset: int) -> list[tuple[int, int, bytearray]]:
        """Give the records consecutive places: (queue offset, tag, record) of each.

        Each record is a copy of its own, and a bytearray: sqlite3 binds one without asking
        whether it wants to be adapted. O(bytes).

        Args: queue_offset, physical_offset: of the first.
        Raises: OverflowError: an offset is no int64.
        """


class RecordWriter(Protocol):
    """Writes the stored records (docs/internals/protocol.md#stored-message) of one queue and one
    producer's host.

    A topic over 127 bytes makes v2 records, a host of 20 bytes sets its bit of sysFlag. Any
    thread: nothing changes after construction.
    """

    def __init__(self, topic: str, queue_id: int, born_host: bytes, store_host: bytes) -> None:
        """Make a writer.

        Args:
            topic: where the messages will lie, up to 32767 bytes of UTF-8.
            born_host, store_host: 4 or 16 bytes of address, 4 of port, big-endian.
        Raises: ValueError: a topic too long, a host that is none. OverflowError: a queue_id
            over 32 bits.
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
            properties: up to 32767 bytes.
            sys_flag: its two bits of hosts do not count.
            tag: what its row is found by, if not by Java's `String.hashCode` of TAGS (0
                without one).
        Raises: OverflowError: a number over its 32 or 64 bits. ValueError: properties too
            long, or the record over 2**31 - 1 bytes.
        """

    def write_batch(
        self, batch: bytes, *, sys_flag: int, born_ms: int, stored_ms: int
    ) -> RecordBlock:
        """Write the records of a batch body (docs/internals/protocol.md#batch-body), all of them
        or none. O(size).

        Raises: ProtocolError: a message is torn, or has the property DELAY or TRAN_MSG,
            which no batch may carry; says which, where and how. OverflowError: a number over
            its 32 or 64 bits. ValueError: the records are over 4 GiB - 1.
        """


class EncodeBatch(Protocol):
    """The type of `ordermq.core.encode_batch`."""

    def __call__(
        self, bodies: Sequence[bytes], properties: Sequence[str], flags: Sequence[int]
    ) -> bytes:
        """Write the batch body of SEND_BATCH_MESSAGE (docs/internals/protocol.md#batch-body).

        Pure, any thread. O(size).

        Args: bodies, properties, flags: one of each a message; a property text is up to
            32767 bytes of UTF-8, a flag 32 bits, signed.
        Raises: ValueError: lengths differ, a property text too long, or over 4 GiB - 1 in
            all. OverflowError: a flag over its 32 bits.
        """
