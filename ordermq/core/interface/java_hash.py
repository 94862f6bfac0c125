"""The contract of Java's hash of a text."""

from __future__ import annotations

from typing import Protocol


class JavaHash(Protocol):
    """The type of `ordermq.core.java_hash`."""

    def __call__(self, text: str) -> int:
        """Java's `String.hashCode`: 31 * h + unit over UTF-16 units, signed 32 bits
        (docs/internals/protocol.md#tags).

        Pure, any thread. O(n).

        Raises: UnicodeEncodeError: a surrogate without its pair, which no message can carry.
        """
