"""Waiters for receipts: of the oldest of many messages, of a whole batch, of one in asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading

from ordermq.model.status import SendReceipt
from ordermq.producer.pending_message import PendingMessage

_ONE = (1).to_bytes(8, sys.byteorder)  # an eventfd counts in eight-byte numbers


class ThreadEvent:
    """An event that one thread waits for and any thread sets; each thread has its own.

    It writes to an eventfd (a pipe outside Linux) because that releases the GIL. Releasing a
    lock does not: the woken thread asks for the GIL before it is free and sleeps again, which
    cost two more thread switches per send.
    """

    __slots__ = ("_reader", "_writer")

    def __init__(self) -> None:
        if sys.platform == "linux":
            self._reader = self._writer = os.eventfd(0)
        else:
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._writer, False)

    def __del__(self) -> None:
        for end in {self._reader, self._writer}:
            os.close(end)

    @classmethod
    def of_thread(cls) -> ThreadEvent:
        """Return the calling thread's event; it lives as long as the thread."""
        try:
            return _own.event
        except AttributeError:
            _own.event = cls()
            return _own.event

    def set(self) -> None:
        """Let the current wait return, or the next one; from any thread."""
        try:  # noqa: SIM105 - `suppress` takes a microsecond of every send
            os.write(self._writer, _ONE)
        except BlockingIOError:
            pass  # the pipe is full: what it holds wakes the reader as well

    def wait(self) -> None:
        """Return once set; the caller checks its condition again.

        A caller that was interrupted, for example by a signal, leaves its event set for the
        next wait.
        """
        os.read(self._reader, 512)  # releases the GIL; a pipe may hold many bytes


class _Own(threading.local):
    event: ThreadEvent


_own = _Own()


def _forget() -> None:
    global _own
    _own = _Own()


os.register_at_fork(after_in_child=_forget)  # else parent and child would wake each other


class SendWindow:
    """Lets `send_many` wait for its oldest message in flight.

    With a `threading.Event` instead of a `ThreadEvent`: whoever takes many receipts should find
    the next messages done, too. Woken in the middle of the answers of one read, it handed in one
    message at a time, at a third of the rate.
    """

    def __init__(self) -> None:
        self._awaited: PendingMessage | None = None
        self._woken = threading.Event()

    def on_done(self, message: PendingMessage) -> None:
        """Wake the caller if it waits for this very message."""
        if message is self._awaited:
            self._woken.set()

    def receipt(self, message: PendingMessage) -> SendReceipt:
        """Wait for `message`, on the caller's thread."""
        self._awaited = message
        while not message.is_done:  # a wake-up may belong to the message before
            self._woken.wait()
            self._woken.clear()
        return message.receipt()


class BatchWaiter:
    """Lets a thread wait until all `count` messages of one call are done."""

    def __init__(self, count: int) -> None:
        self._left = count  # changed by one thread at a time: a batch goes to one queue
        self._event = ThreadEvent.of_thread()

    def on_done(self, message: PendingMessage) -> None:
        self._left -= len(message)
        if not self._left:
            self._event.set()

    def wait(self) -> None:
        self._event.wait()
        while self._left:  # an earlier, interrupted call had left the event set
            self._event.wait()


class AsyncWaiter:
    """Lets asyncio code await one message's receipt; create it on the loop that awaits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.receipt: asyncio.Future[SendReceipt] = self._loop.create_future()

    def on_done(self, message: PendingMessage) -> None:
        # The caller's loop may be closed by now: then nobody waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, message)

    def _settle(self, message: PendingMessage) -> None:
        if self.receipt.done():  # the caller was cancelled; the message was sent all the same
            return
        if message.error is not None:
            self.receipt.set_exception(message.error)
        else:
            self.receipt.set_result(message.receipt())
