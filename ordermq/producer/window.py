"""How a caller waits for messages under way: for the oldest of many, or for all of a batch."""

from __future__ import annotations

from ordermq.model.status import SendReceipt
from ordermq.producer.bell import Bell
from ordermq.producer.entry import Entry


class SendWindow:
    """Lets `send_many` wait for the oldest message under way."""

    def __init__(self) -> None:
        self._awaited: Entry | None = None
        self._bell: Bell | None = None  # of the thread that waits: a generator may change it

    def on_done(self, entry: Entry) -> None:
        """On the I/O thread; wakes only who waits for this very entry."""
        if entry is self._awaited:
            assert self._bell is not None
            self._bell.ring()

    def receipt(self, entry: Entry) -> SendReceipt:
        """Wait for `entry`, on the caller's thread."""
        self._bell = bell = Bell.of_thread()
        self._awaited = entry
        while not entry.is_done:  # a ring may be one for the entry before
            bell.wait()
        self._awaited = None
        return entry.outcome()


class Together:
    """Lets a caller wait until messages handed in together are all done, on its own thread."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._bell = Bell.of_thread()

    def on_done(self, entry: Entry) -> None:
        """On the I/O thread."""
        self._left -= 1
        if not self._left:
            self._bell.ring()

    def wait(self) -> None:
        self._bell.wait()
        while self._left:  # that was a ring an interrupted caller left
            self._bell.wait()
