"""The offset map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OffsetMap(Protocol):
    """A sorted map of offset -> token (uint64), made for nearly contiguous ascending keys.

    Appending at the end and popping at the front are O(1), everything else O(log n) unless its
    docstring says otherwise. Any thread may call; a single operation is atomic.
    """

    # Tokens are numbers, not objects: C keeps them, and knows nothing of reference counts. A
    # caller with objects keeps a list of its own, and stores its indexes here.

    def put(self, offset: int, token: int) -> bool:
        """Store a token; return False if the offset was there and got the new token.

        Raises: ValueError: the offset or the token is out of range.
        """

    def __setitem__(self, offset: int, token: int, /) -> None:
        """Store a token as `put` does, without a result: the quickest way."""

    def __getitem__(self, offset: int, /) -> int:
        """Return the token at an offset.  Raises: KeyError: there is none."""

    def __delitem__(self, offset: int, /) -> None:
        """Delete an entry.  Raises: KeyError: there is none."""

    def put_columns(self, offsets: ReadableBuffer, tokens: ReadableBuffer) -> int:
        """Store a column of tokens in one native call; return how many offsets were absent.

        Args:
            offsets: int64, shape (n,), any order; if one occurs twice its last token stays.
            tokens: uint64, shape (n,).
        Raises: ValueError: an offset is out of range, or the lengths differ; nothing was
            stored. TypeError: not a contiguous buffer of the right type.
        """

    def remove_columns(self, offsets: ReadableBuffer) -> int:
        """Delete the entries of a column (int64, any order); return how many there were."""

    def columns(self, start: int = 0, n: int = 2**63 - 1) -> tuple[memoryview, memoryview]:
        """Return at most n offsets >= start, ascending (format q), and their tokens (format Q).

        The columns are the caller's own: later changes of the map do not show.
        Raises: ValueError: n is below 1.  O(log n + n).
        """

    def get(self, offset: int) -> int | None:
        """Return the token at an offset, None if there is none."""

    def remove(self, offset: int) -> bool:
        """Delete an entry; return whether there was one."""

    def pop_first(self, n: int) -> list[tuple[int, int]]:
        """Delete and return the n smallest entries, ascending; fewer if there are fewer.

        Raises: ValueError: n is below 1.  O(n).
        """

    def first(self) -> tuple[int, int] | None:
        """Return the smallest entry.  O(1)."""

    def last(self) -> tuple[int, int] | None:
        """Return the greatest entry.  O(1)."""

    def floor(self, offset: int) -> tuple[int, int] | None:
        """Return the greatest entry at or before an offset."""

    def ceiling(self, offset: int) -> tuple[int, int] | None:
        """Return the smallest entry at or after an offset."""

    def clear(self) -> None:
        """Delete everything.  O(n)."""

    def __len__(self) -> int: ...

    def __contains__(self, offset: object, /) -> bool: ...

    # Not a snapshot: copying a large map to walk over a part of it would cost too much.
    def __iter__(self) -> Iterator[int]:
        """Yield the offsets, ascending; a change made meanwhile may or may not be seen."""

    def _check(self) -> None:
        """Assert every invariant; for tests.  O(n)."""
