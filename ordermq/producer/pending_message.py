"""Messages that wait for their receipts, which of them share a request, and how callers wait.

A caller waits for the oldest of many messages, for a whole batch, or for one in asyncio.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ordermq import core
from ordermq.client.outcome_future import OutcomeFuture
from ordermq.errors import OrderMQError
from ordermq.model.log_fields import log_fields
from ordermq.model.receipts import SendReceipt
from ordermq.remoting.headers import SendReplyHeader
from ordermq.remoting.reading import wait_for_event
from ordermq.remoting.thread_event import ThreadEvent
from ordermq.threads import SIGNAL_CHECK_S, NativeEvent

_log = logging.getLogger("ordermq.producer")


class Requirement(Protocol):
    """A condition a broker must meet before it is sent a message, such as knowing this client."""

    def is_met(self, address: str) -> bool:
        """Return True if the message may be sent now; any thread.

        Raises: OrderMQError: it may never be sent.
        """

    async def meet(self, address: str) -> None:
        """Make it so; on the I/O thread.

        Raises: OrderMQError: the broker did not accept it; the attempt to send has failed.
        """


if TYPE_CHECKING:
    from ordermq.client.runtime import Runtime

    _Fields = core.PendingFields[SendReceipt]
else:
    _Fields = core.PendingFields


class PendingMessage(_Fields):
    """A message waiting for its receipt, or several that stay together (`send_batch`).

    The fields are those of `core.contract.PendingFields`.
    """

    # The other fields are native: making a message and its id so takes a third of the time. This
    # one is set by a failure only.
    __slots__ = ("_unanswered",)

    if TYPE_CHECKING:
        awaited: asyncio.Future[SendReceipt] | core.contract.AwaitedReceipt | None
        requirement: Requirement | None
        reply_header: SendReplyHeader | None

    @property
    def unanswered(self) -> OrderMQError | None:
        """The error of an attempt at another broker that had no answer: it may be stored there."""
        return getattr(self, "_unanswered", None)

    @unanswered.setter
    def unanswered(self, error: OrderMQError) -> None:
        self._unanswered = error

    def tell_again(self) -> None:
        """Notify the caller of a message that is done, because an exception came between."""
        if self.wakes_only:
            self.on_done(self)

    def not_notified(self) -> None:
        if self.wakes_only:  # no user code ran: a signal handler has raised it
            raise
        receipts = self.receipts
        name, queue = self.unique_ids[0], receipts[0].message_queue if receipts else None
        _log.exception(
            "message %s (%s): notifying its caller failed",
            name, queue or self.error,
            extra=log_fields(queue),
        )  # fmt: skip


def is_single(batch: Sequence[PendingMessage]) -> bool:
    """Return True if the request holds one message, which is not encoded as a batch."""
    return len(batch) == 1 and len(batch[0].bodies) == 1


def batch_body(batch: Sequence[PendingMessage]) -> bytes:
    """Return the body of SEND_BATCH_MESSAGE."""
    if len(batch) == 1:  # a `send_batch`: its lists are encoded as they are
        return core.encode_batch(batch[0].bodies, batch[0].properties, batch[0].flags)
    return core.encode_batch(*core.gathered(batch))


class SendWindow:
    """Lets `send_many` and `send_stream` wait for their oldest message in flight.

    With a `NativeEvent` instead of a `ThreadEvent`: whoever takes many receipts should find the
    next messages done, too. Woken in the middle of the answers of one read, it handed in one
    message at a time, at a third of the rate.
    """

    def __init__(self) -> None:
        self._awaited: PendingMessage | None = None
        self._woken = NativeEvent()

    def on_done(self, message: PendingMessage) -> None:
        """Wake the caller if it waits for this very message."""
        if message is self._awaited:
            self._woken.set()

    def receipt(self, message: PendingMessage) -> SendReceipt:
        """Wait for `message`, on the caller's thread."""
        self._awaited = message
        while not message.is_done:  # a wake-up may belong to the message before
            self._woken.wait(SIGNAL_CHECK_S)
        self._awaited = None  # they would hold each other
        return message.receipt()


class SendStream:
    """The receipts of `Producer.send_stream`, an iterator: reading it sends.

    Args:
        receipts: sends, as it is read.
    """

    __slots__ = ("_is_read", "_receipts")

    def __init__(self, receipts: Iterator[SendReceipt]) -> None:
        self._receipts = receipts
        self._is_read = False

    def __iter__(self) -> Iterator[SendReceipt]:
        # The inner iterator: a `for` loop then pays for no call of this class per message.
        self._is_read = True
        return self._receipts

    def __next__(self) -> SendReceipt:
        self._is_read = True
        return next(self._receipts)

    def __del__(self) -> None:
        if not self._is_read:
            warnings.warn(
                "send_stream() was never read, so nothing was sent: iterate over it, or call "
                "send_many()",
                RuntimeWarning,  # as for a coroutine that was never awaited: shown by default
                stacklevel=2,
            )


class ThreadWaiter:
    """Lets a thread wait for one message's receipt."""

    __slots__ = ("_thread", "event", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._thread = threading.get_ident()
        self.event = ThreadEvent.of_thread()

    def on_done(self, message: PendingMessage) -> None:
        self.is_done = True
        if threading.get_ident() != self._thread:
            self.event.set()

    def wait(self) -> None:
        wait_for_event(self)


class BatchWaiter:
    """Lets a thread wait until all `count` messages of one call are done."""

    def __init__(self, count: int) -> None:
        self.is_done = False
        self._count = count
        # By their numbers: a message has this as its `on_done`, and a send leaves no cycle.
        self._done: dict[int, int] = {}
        self._thread = threading.get_ident()
        self.event = ThreadEvent.of_thread()

    def on_done(self, message: PendingMessage) -> None:
        self._done[id(message)] = len(message)  # it may be told twice
        # A copy: another thread may add to it meanwhile.
        if sum(self._done.copy().values()) == self._count:
            self.is_done = True
            if threading.get_ident() != self._thread:
                self.event.set()

    def wait(self) -> None:
        wait_for_event(self)


class FutureWaiter:
    """Lets any thread wait for one message's receipt, later or not at all.

    Args: runtime: the producer's.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.receipt: OutcomeFuture[SendReceipt] = OutcomeFuture(runtime)
        # Running: a message that is handed in is sent, so `cancel` has to say no.
        self.receipt.set_running_or_notify_cancel()

    def on_done(self, message: PendingMessage) -> None:
        error = message.error
        self.receipt.tell(message.receipt() if error is None else None, error)


class AsyncBatchWaiter:
    """Lets asyncio code wait until all `count` messages of one call are done."""

    def __init__(self, count: int) -> None:
        self._left = count  # changed by one thread at a time: a batch goes to one queue
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()

    def on_done(self, message: PendingMessage) -> None:
        self._left -= len(message)
        try:
            self._loop.call_soon_threadsafe(self._settle, message, not self._left)
        except RuntimeError:  # the caller's loop is closed by now: nobody waits
            log_unawaited(message)

    def _settle(self, message: PendingMessage, is_last: bool) -> None:
        if self.done.done():
            log_unawaited(message)
        elif is_last:
            self.done.set_result(None)


def say_sent(error: asyncio.CancelledError) -> None:
    """Tell a cancelled caller the truth."""
    error.add_note("what was handed over before is sent all the same")


def batch_cancelled(
    error: asyncio.CancelledError, waiting: asyncio.Future[Any], messages: Sequence[PendingMessage]
) -> None:
    """Tell a cancelled caller the truth, and the log of failures that came before it left."""
    say_sent(error)
    if not waiting.cancelled():  # done in the same moment: nobody has logged anything
        waiting.exception()  # read, or asyncio reports it as lost
        for message in messages:
            log_unawaited(message)


def log_unawaited(message: PendingMessage) -> None:
    if message.error is not None:
        _log.warning(
            "message %s failed after its caller was cancelled: %s",
            message.unique_ids[0],
            message.error,
        )
