"""Unique ids of messages, and the fields of messages that wait for their receipts."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ordermq.core import status
from ordermq.threads import Lock

if TYPE_CHECKING:
    from ordermq.core import contract

ReceiptT = TypeVar("ReceiptT")


class UniqueIds:
    """See contract.UniqueIds."""

    def __init__(self, prefix_of: Callable[[int], str], number: int = 0) -> None:
        self._prefix_of = prefix_of
        self._number = number
        self._newest = -1, ""  # a time and its prefix
        self._lock = Lock()

    def one(self, now_ms: int) -> str:
        return self.several(1, now_ms)[0]

    def several(self, count: int, now_ms: int) -> list[str]:
        at_ms, prefix = self._newest
        if at_ms != now_ms:
            prefix = self._prefix_of(now_ms)
            if len(prefix) != status.ID_PREFIX_DIGITS or not prefix.isascii():
                raise status.not_an_id_prefix(prefix)
            self._newest = now_ms, prefix
        with self._lock:
            first = self._number
            self._number += count
        return [f"{prefix}{number & 0xFFFF:04X}" for number in range(first, first + count)]

    def forget(self) -> None:
        self._newest = -1, ""
        self._lock = Lock()  # another thread may have held it during the fork


class PendingFields(Generic[ReceiptT]):
    """See contract.PendingFields."""

    __slots__ = (
        "_begun_ns",
        "_timer",
        "awaited",
        "bodies",
        "error",
        "fallbacks_left",
        "flags",
        "is_alone",
        "is_oneway",
        "is_timed",
        "is_watched",
        "key",
        "on_done",
        "properties",
        "receipts",
        "reply_header",
        "requirement",
        "size",
        "spent_ns",
        "sys_flag",
        "unique_ids",
        "wakes_only",
    )

    def __init__(
        self,
        bodies: Sequence[bytes],
        properties: Sequence[str],
        unique_ids: Sequence[str],
        flags: Sequence[int],
        size: int,
        key: str | int | None,
        is_alone: bool,
        on_done: Callable[[Any], object],
    ) -> None:
        self.bodies = bodies
        self.properties = properties
        self.unique_ids = unique_ids
        self.flags = flags
        self.size = size
        self.key = key
        self.is_alone = is_alone
        self.on_done = on_done
        self.sys_flag = 0
        self.fallbacks_left = 0
        self.is_watched = False
        self.is_timed = False
        self.wakes_only = False
        self.is_oneway = False
        self.requirement: Any = None
        self.receipts: Sequence[ReceiptT] | None = None
        self.error: BaseException | None = None
        self.reply_header: Any = None
        self.awaited: Any = None
        self.spent_ns = self._begun_ns = 0
        self._timer: contract.SendTimer | None = None

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def is_done(self) -> bool:
        return self.receipts is not None or self.error is not None

    def all_receipts(self) -> Sequence[ReceiptT]:
        if self.error is not None:
            raise self.error
        if self.receipts is None:
            raise status.not_done()
        return self.receipts

    def receipt(self) -> ReceiptT:
        return self.all_receipts()[0]

    def begin_timing(self, timer: contract.SendTimer | None) -> None:
        self._timer = timer
        self._begun_ns = time.monotonic_ns()

    def finish(self, receipts: Sequence[ReceiptT] | None, error: BaseException | None) -> None:
        if self.is_done:
            return
        self.receipts, self.error = receipts, error
        try:
            if self._begun_ns:
                self.spent_ns = time.monotonic_ns() - self._begun_ns
                if self._timer is not None:
                    self._timer.count(self.spent_ns, len(self.bodies), error)
        finally:
            self._notify()

    def _notify(self) -> None:
        try:
            self.on_done(self)
        except Exception:  # noqa: BLE001 - a defect; others of its request are notified next
            self.not_notified()

    def not_notified(self) -> None:
        raise  # the exception of `on_done`


class Arrivals:
    """See contract.Arrivals."""

    __slots__ = ("_cancelled", "_done", "_is_woken", "_unawaited", "loop")

    def __init__(
        self,
        loop: Any,
        unawaited: Callable[[Any], object],
        cancelled: Callable[[Any], object],
    ) -> None:
        self.loop = loop
        self._unawaited = unawaited
        self._cancelled = cancelled
        self._done: deque[Any] = deque()
        self._is_woken = False

    def future_of(self, message: Any) -> Any:
        message.awaited = self.loop.create_future()
        return message.awaited

    def receipt_of(self, message: Any) -> AwaitedReceipt:
        return AwaitedReceipt(message, self.future_of(message), self._unawaited, self._cancelled)

    def __call__(self, message: Any) -> None:
        self._done.append(message)
        # Looked at last: if the loop has yet to clear it, it has yet to look for messages.
        if not self._is_woken:
            self._wake()

    def _wake(self) -> None:
        try:
            self._is_woken = True
            self.loop.call_soon_threadsafe(self._settle)
        except RuntimeError:  # the callers' loop is closed by now: nobody waits
            self._is_woken = False
            with contextlib.suppress(IndexError):  # another thread may take the last ones
                while self._done:
                    self._unawaited(self._done.popleft())
        except BaseException:  # of a signal handler: the next message wakes the loop
            self._is_woken = False
            raise

    def _settle(self) -> None:
        self._is_woken = False
        done = self._done
        try:
            while done:
                self._set(done[0])
                done.popleft()
        except BaseException:  # as above: the others must not wait for the next message
            self._wake()
            raise

    def _set(self, message: Any) -> None:
        future = message.awaited
        if future.done():  # its caller was cancelled; the message was sent all the same
            self._unawaited(message)
        elif message.error is not None:
            future.set_exception(message.error)
        else:
            future.set_result(message.receipt())


class AwaitedReceipt:
    """See contract.AwaitedReceipt."""

    __slots__ = ("_cancelled", "_future", "_message", "_unawaited")

    def __init__(
        self,
        message: Any,
        future: Any,
        unawaited: Callable[[Any], object],
        cancelled: Callable[[Any], object],
    ) -> None:
        self._message = message
        self._future = future
        self._unawaited = unawaited
        self._cancelled = cancelled

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio  # here: programs without a loop do not load it

        try:
            return (yield from self._future)
        except asyncio.CancelledError as error:
            self._cancelled(error)
            if not self._future.cancelled():  # done in the same moment: nobody has logged anything
                self._future.exception()  # read, or asyncio reports it as lost
                self._unawaited(self._message)
            raise


class PlainSends:
    """See contract.PlainSends."""

    def __init__(
        self, ids: contract.UniqueIds, after: str, kind: Callable[..., contract.PendingFields]
    ) -> None:
        self._ids = ids
        self._after = after
        self._kind = kind

    def pending(
        self,
        body: bytes,
        before: str,
        flag: int,
        key: str | int | None,
        on_done: Callable[[Any], object],
        now_ms: int,
    ) -> Any:
        unique_id = self._ids.one(now_ms)
        text = before + unique_id + self._after
        size = len(body) + len(text)
        return self._kind((bytes(body),), (text,), (unique_id,), (flag,), size, key, False, on_done)


def finish_stored(batch: Sequence[Any], receipts: Sequence[Sequence[Any]]) -> None:
    for message, its_receipts in zip(batch, receipts, strict=True):
        message.finish(its_receipts, None)


def take_batch(waiting: deque[Any], max_bytes: int, taken: list[Any]) -> list[Any]:
    # Added before it is removed: an exception that a signal handler raises in between loses none.
    taken.append(waiting[0])
    waiting.popleft()
    size = taken[0].size
    while waiting and not taken[0].is_alone and not waiting[0].is_alone:
        size += waiting[0].size
        if size > max_bytes:
            break
        taken.append(waiting[0])
        waiting.popleft()
    return taken


def gathered(batch: Sequence[Any]) -> tuple[list[bytes], list[str], list[int]]:
    every = chain.from_iterable
    return (
        list(every(message.bodies for message in batch)),
        list(every(message.properties for message in batch)),
        list(every(message.flags for message in batch)),
    )


def receipts_of(
    batch: Sequence[Any],
    message_ids: str,
    one: Callable[..., Any],
    several: Callable[..., Any],
    queue: object,
    queue_offset: int,
    status: object,
    recall_handle: str | None,
) -> list[Any] | None:
    """See contract.ReceiptsOf."""
    offset_ids = message_ids.split(",")
    if len(offset_ids) != sum(len(message.bodies) for message in batch):
        return None
    found: list[Any] = []
    at = 0
    for message in batch:
        ids = message.unique_ids
        end, offset = at + len(ids), queue_offset + at
        if end == at + 1:
            found.append((one(queue, offset, ids[0], offset_ids[at], status, recall_handle),))
        else:
            found.append(several(queue, offset, ids, offset_ids[at:end], status, recall_handle))
        at = end
    return found
