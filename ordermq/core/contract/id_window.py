"""The id window, which finds copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ordermq.core.contract.message_codec import MessageIndex


class IdWindow(Protocol):
    """The producers' ids (UNIQ_KEY) of the newest messages of one queue, to tell copies that were
    sent again (docs/internals/semantics.md#de-duplication).

    A copy is a message with the id of one that lies at most `size` offsets before it, noted by
    this window, and with a stored body of the same size and CRC-32. Ids are compared, not only
    their hashes. One thread at a time.
    """

    def __init__(self, size: int) -> None:
        """Make an empty window.

        Args: size: offsets, 1 .. 2**31 - 1; memory is taken as ids come, some 70 bytes each.
        Raises: ValueError: the size is out of range.
        """

    def drop_copies(self, index: MessageIndex, end: int = 2**63 - 1) -> int:
        """Note the messages of an index, and leave copies out of it; return how many.

        The one change that is made to an index: before anything else has seen it, for its rows
        move. Messages at or before the newest offset noted, and messages without an id, are kept
        and not noted. O(bytes).

        Args: end: messages from this offset on are kept and not noted.
        Raises: MemoryError: the window is empty again, and the index has the messages that were
            kept so far, and all behind.
        """

    def clear(self) -> None:
        """Forget everything.  O(n)."""

    @property
    def size(self) -> int:
        """Offsets that the window spans."""

    def __len__(self) -> int:
        """Return the number of ids: of messages less than `size` offsets before the newest."""

    def _check(self) -> None:
        """Assert every invariant; for tests.  O(n)."""
