"""The contract of the message codec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class MessageIndex(Protocol):
    """Where the records of a pull body are: columns, one row a kept record.

    Columns are read-only memoryviews. They own their memory, and outlive the index; the
    body is not kept.
    """

    @property
    def offsets(self) -> memoryview:
        """Queue offsets, format q."""

    @property
    def positions(self) -> memoryview:
        """Bytes from the start of the body to each record, format I."""

    @property
    def body_positions(self) -> memoryview:
        """Bytes from the start of the pull body to each message body, format I."""

    @property
    def body_sizes(self) -> memoryview:
        """Bytes of each message body, format I."""

    @property
    def property_positions(self) -> memoryview:
        """Bytes from the start of the pull body to each property string, format I."""

    @property
    def property_sizes(self) -> memoryview:
        """Bytes of each property string, format I."""

    @property
    def last_offset(self) -> int:
        """Queue offset of the last record scanned, kept or not; -1 if there was none."""

    def __len__(self) -> int: ...


class IndexMessages(Protocol):
    """The type of `ordermq.core.index_messages`."""

    def __call__(self, body: ReadableBuffer, tags: Sequence[bytes] = ()) -> MessageIndex:
        """Index a concatenation of stored records (protocol 2.1) in one native call.

        Args:
            body: the pull body, up to 4 GiB - 1; v1 and v2 records, IPv4 and IPv6 hosts.
            tags: keep only records whose TAGS property is exactly one of these, UTF-8;
                () keeps all. The broker compares hashes only (protocol 2.4).
        Raises: ProtocolError: a record is malformed or cut; says which, where and how.
        """
