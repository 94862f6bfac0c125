"""How a caller waits for messages under way: for the oldest of many, or for all of a batch."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from ordermq.model.status import SendReceipt
from ordermq.producer.bell import Bell
from ordermq.producer.pending_message import Entry


class SendWindow:
    """Lets `send_many` wait for the oldest message under way.

    By an event and no bell: whoever takes receipts of many shall find the next done, too. Woken
    amid the answers of one read it handed in one message at a time, a third of the rate.
    """

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
        return entry.outcome()


class Together:
    """Lets a caller wait until messages handed in together are all done, on its own thread."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._bell = Bell.of_thread()

    def on_done(self, entry: Entry) -> None:
        """On the I/O thread."""
        self._left -= len(entry)
        if not self._left:
            self._bell.ring()

    def wait(self) -> None:
        self._bell.wait()
        while self._left:  # that was a ring an interrupted caller left
            self._bell.wait()


class Awaited:
    """Lets asyncio code await a message's receipt; made on its loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.receipt: asyncio.Future[SendReceipt] = self._loop.create_future()

    def on_done(self, entry: Entry) -> None:
        """On the I/O thread."""
        # The caller's loop may be closed by now: then nobody waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, entry)

    def _settle(self, entry: Entry) -> None:
        if self.receipt.done():  # its caller was cancelled; the message went its way all the same
            return
        if entry.error is not None:
            self.receipt.set_exception(entry.error)
        else:
            self.receipt.set_result(entry.outcome())
