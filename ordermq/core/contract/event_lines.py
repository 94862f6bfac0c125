"""Lines of a history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class EventLines(Protocol):
    """Lines of a history (`ordermq.events`) that wait for whoever writes them; any thread.

    A line is a JSON object of one event: its number and its time, then the members. Lines are in
    the order of their numbers, which count from 0.

    Args:
        begin: of each line, up to its number: `{"p":"NAME","seq":`.
        clock_id: of the system's clock that tells the time, ns.
        most_bytes: of lines that wait; a line of any size has room where none waits.
        wake: called when a line waits and nobody was woken since the last `take`; False: nobody
            could be, and the next line tries it again.
    """

    def __init__(
        self, begin: bytes, clock_id: int, most_bytes: int, wake: Callable[[], bool]
    ) -> None: ...

    @property
    def waiting_bytes(self) -> int:
        """Size of the lines that wait."""

    def add(self, members: bytes) -> bool:
        """Add a line. O(size).

        Args: members: JSON, without the braces of the object.
        Returns: False: there is no room. The number of the line is not given to another one.
        """

    def add_start(self, head: bytes, context: Any, lane: int = 0) -> bool:
        """Add the START of a listener call. O(messages), O(property bytes).

        Args:
            head: the members of its queue.
            context: a `CallContext`, with messages.
            lane: of the line, if it is not 0.
        Returns: False: there is no room, or the properties of a message are not UTF-8. No number
            is lost, for the caller tries it in another way.
        """

    def add_end(self, head: bytes, context: Any, detail: bytes) -> bool:
        """Add the END of a call that has done all of its messages; as `add_start`.

        Args: detail: of the line; nothing in it needs an escape.
        """

    def take(self) -> bytes:
        """Remove and return the lines that wait."""

    def close(self) -> None:
        """Drop the lines that wait, and all that are added from now on."""
