"""What lets `send_many` hand out receipts in order while later messages are under way."""

from __future__ import annotations

import threading

from ordermq.model.status import SendReceipt
from ordermq.producer.lanes import Entry


class SendWindow:
    """Lets `send_many` wait for the oldest message under way."""

    def __init__(self) -> None:
        self._awaited: Entry | None = None
        self._woken = threading.Event()

    def on_done(self, entry: Entry) -> None:
        """On the I/O thread; wakes only who waits for this very entry."""
        if entry is self._awaited:
            self._woken.set()

    def receipt(self, entry: Entry) -> SendReceipt:
        """Wait for `entry`, on the caller's thread."""
        self._awaited = entry
        while not entry.is_done:  # a wake-up may be one for the entry before
            self._woken.wait()
            self._woken.clear()
        if entry.error is not None:
            raise entry.error
        assert entry.receipt is not None
        return entry.receipt
