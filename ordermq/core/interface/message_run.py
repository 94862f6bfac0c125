"""The contract of the message run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ordermq.core.interface.message_codec import MessageIndex


class MessageRun(Protocol):
    """Neighbouring messages of one index, or of several; a class to subclass.

    It keeps the indexes alive and makes no object a message. Any thread: nothing changes after
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
        """What it was made of."""

    @property
    def first_offset(self) -> int:
        """The queue offset of the first message. Raises: IndexError: there is none."""

    @property
    def last_offset(self) -> int:
        """The queue offset of the last message. Raises: IndexError: there is none."""

    def offsets(self) -> list[int]:
        """The queue offsets, in order. O(n)."""

    def cut(self, kind: type[Any], size: int) -> Iterator[Any]:
        """Iterate over runs of `size` messages, the last one perhaps shorter. O(1) each.

        Args:
            kind: `MessageRun` or a subclass, which is not initialised: its __init__ does not
                run, its __new__ gets no arguments.
        Raises: ValueError: a size below 1. TypeError: not a class of runs.
        """

    def views(self, kind: type[Any]) -> Iterator[Any]:
        """Iterate over views of the messages; `kind` as in `MessageIndex.views`."""

    def view(self, kind: type[Any], position: int) -> Any:
        """Look at one message; `kind` as in `MessageIndex.views`.

        Raises: IndexError: a position below 0 or from the end on. O(segments).
        """
