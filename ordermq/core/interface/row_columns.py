"""The contract of rows in columns, laid out as Arrow does: their order, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# A column of byte strings: int32 positions, one more than rows, and the bytes. Value i is
# bytes[positions[i] : positions[i + 1]], as in an Arrow string or binary array.
Texts: TypeAlias = "tuple[ReadableBuffer, ReadableBuffer]"


class OrderedRows(Protocol):
    """The type of `ordermq.core.ordered_rows`."""

    def __call__(
        self,
        offsets: ReadableBuffer,
        queue_ids: ReadableBuffer,
        names: Sequence[Texts],
        first: int,
        end: int,
    ) -> int:
        """Tell how far rows go on in the order of one message queue.

        Pure, any thread; releases the GIL for long columns. O(rows looked at).

        Args:
            offsets: queue offsets, int64, shape (n,).
            queue_ids: int32, shape (n,).
            names: what else tells a queue from another, as topic and broker; of n rows each.
            first, end: rows to look at, first < end <= n.
        Returns: the first row behind `first` that is of another queue than the one before it,
            or whose offset is not greater; `end` if there is none.
        Raises: ValueError: rows out of range, lengths that differ, a position out of its
            bytes. TypeError: a column is not a contiguous buffer of the right type.
        """


class EncodeRows(Protocol):
    """The type of `ordermq.core.encode_rows`."""

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
            rows: which of them, in this order; uint32, shape (m,), m >= 1.
            fixed: properties of every message, in text form
            (docs/internals/protocol.md#stored-message).
            columns: property name and its values, texts of n rows or int64 of shape (n,). An
                empty text is left out; of a nameless column each text is properties in text
                form already, and written as it is.
            unique: 16 bytes, a number; what the k-th message's UNIQ_KEY is, plus k. Empty:
                messages get none.
            most_bytes: at most so many, but at least one message.
        Returns: the body, and how many of the rows are in it.
        Raises: ValueError: no rows, rows or positions out of range, lengths that differ; or a
            row no broker takes: an empty body, a value with U+0001 or U+0002 inside,
            properties over 32767 bytes, a message over 2**31 - 1. TypeError: a column is not
            a contiguous buffer of the right type.
        """
