"""Messages that wait to be sent, and their ids."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from ordermq.core.contract.durations import SendTimer


class UniqueIds(Protocol):
    """Makes the unique ids of one process's messages: 28 digits of process and time, and a number.

    The number has 16 bits and goes on from each id to the next; after 65,535 follows 0. Any thread.

    Args:
        prefix_of: returns the 28 digits of a time in ms since 1970; it is called again only when
            the time has changed.
        number: of the first id.
    """

    def __init__(self, prefix_of: Callable[[int], str], number: int = 0) -> None: ...

    def one(self, now_ms: int) -> str:
        """Return the next id.

        Args: now_ms: ms since 1970.
        Raises: ValueError: the prefix does not have 28 ASCII characters. What `prefix_of` raises.
        """

    def several(self, count: int, now_ms: int) -> list[str]:
        """Return the next ids, numbered in a row. O(count); raises as `one`."""

    def forget(self) -> None:
        """Ask for the prefix again; called in a forked process, which has one of its own."""


class PendingFields(Protocol):
    """The fields of a message that waits for its receipt, or of several that stay together.

    All can be set. One thread makes it and hands it over; after that, any thread may finish it,
    and read its outcome.

    Args: as the properties.
    """

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
    ) -> None: ...

    def __len__(self) -> int:
        """Return the number of messages."""

    @property
    def bodies(self) -> Sequence[bytes]: ...
    @property
    def properties(self) -> Sequence[str]:
        """The encoded text of each message, with its unique id."""

    @property
    def unique_ids(self) -> Sequence[str]: ...
    @property
    def flags(self) -> Sequence[int]: ...
    @property
    def size(self) -> int:
        """Bytes of bodies and properties."""

    @property
    def key(self) -> Any:
        """None for an unordered message."""

    @property
    def is_alone(self) -> bool:
        """Shares no request: it is delayed, half of a transaction, or a request."""

    @property
    def on_done(self) -> Callable[[Any], object]:
        """Called once, with `receipts` or `error` set: on the I/O thread, or on the caller's if no
        queue could be chosen."""

    @property
    def sys_flag(self) -> int:
        """Bits besides those of compression."""

    @property
    def fallbacks_left(self) -> int:
        """Number of other brokers that may still be tried."""

    @property
    def is_watched(self) -> bool:
        """Hooks want the header of the broker's answer."""

    @property
    def is_timed(self) -> bool:
        """Brokers before 5.0 would deliver it at once."""

    @property
    def wakes_only(self) -> bool:
        """`on_done` only wakes a thread: the thread that read the answer may call it, and twice."""

    @property
    def is_oneway(self) -> bool:
        """Needs no answer: it is unordered, and its caller does not wait."""

    @property
    def requirement(self) -> Any:
        """A condition that the broker must meet before it is sent; None for nearly all."""

    @property
    def receipts(self) -> Sequence[Any] | None:
        """None until it is stored; empty for a one-way message."""

    @property
    def error(self) -> BaseException | None: ...
    @property
    def reply_header(self) -> Any:
        """Of the broker's answer; only if `is_watched`."""

    @property
    def awaited(self) -> Any:
        """The future or `AwaitedReceipt` of a loop's caller, which `Arrivals` sets, or None."""

    @property
    def is_done(self) -> bool:
        """True once it has its outcome."""

    def all_receipts(self) -> Sequence[Any]:
        """Return the receipts of messages that are done.

        Raises: the error that sending failed with. ValueError: they are not done.
        """

    def receipt(self) -> Any:
        """Return the receipt of a single message; raises as `all_receipts`."""

    @property
    def spent_ns(self) -> int:
        """The time from `begin_timing` to the outcome; 0 before, and if it is not timed."""

    def begin_timing(self, timer: SendTimer | None) -> None:
        """Measure the time until `finish`, from now on; the `SendTimer` counts it, if not None."""

    def finish(self, receipts: Sequence[Any] | None, error: BaseException | None) -> None:
        """Set the outcome and call `on_done`; later outcomes change nothing."""

    def not_notified(self) -> None:
        """Handle an exception that `on_done` raised; it is the current one. A subclass logs it."""


class AwaitedReceipt(Protocol):
    """A receipt, or the error of a message, for one coroutine to await: once, and on its loop.

    It goes on in the loop's turn that learns of the message, and not in the next one.
    """

    def __await__(self) -> Generator[Any, None, Any]: ...


class Arrivals(Protocol):
    """Messages that are done and whose callers await them on one event loop. It is woken once for
    all that are done by then: waking it for each, by a callback and a system call, took longer than
    sending one.

    Args:
        loop: of asyncio.
        unawaited: called with a message whose caller was cancelled, or whose loop is closed.
        cancelled: called with the `CancelledError` that ends the await of a receipt.
    """

    def __init__(
        self,
        loop: Any,
        unawaited: Callable[[Any], object],
        cancelled: Callable[[Any], object],
    ) -> None: ...

    @property
    def loop(self) -> Any: ...

    def future_of(self, message: Any) -> Any:
        """Return a new future of the loop, now `message.awaited`; on the loop."""

    def receipt_of(self, message: Any) -> AwaitedReceipt:
        """Return the receipt for the calling coroutine, now `message.awaited`; on the loop."""

    def __call__(self, message: Any) -> None:
        """Have `message.awaited` set on the loop; any thread. An `on_done`.

        After an exception, as of a signal handler, it is set with the next one at the latest.
        """


class FinishStored(Protocol):
    """Type of `ordermq.core.finish_stored`."""

    def __call__(self, batch: Sequence[Any], receipts: Sequence[Sequence[Any]]) -> None:
        """Finish PendingFields that were stored, in order; loops are woken behind all of them: one
        that was woken by the first would find few of them done. O(n).

        Args: receipts: of each of them.
        Raises: ValueError: there are more or fewer receipts than messages. As `finish`; the others
            are not finished then.
        """


class PlainSends(Protocol):
    """Makes the pending messages of sends that have no properties but their key and their id.

    Any thread.

    Args:
        ids: numbers the messages.
        after: the properties behind the id, encoded.
        kind: the subclass of PendingFields to make; native code makes it without `__init__`.
    """

    def __init__(self, ids: UniqueIds, after: str, kind: Callable[..., PendingFields]) -> None: ...

    def pending(
        self,
        body: bytes,
        before: str,
        flag: int,
        key: str | int | None,
        on_done: Callable[[Any], object],
        now_ms: int,
    ) -> Any:
        """Return a message with the next id.

        Args:
            body: copied, unless it is bytes.
            before: the properties in front of the id's value, encoded.
            flag, key, on_done: as of the pending message.
            now_ms: ms since 1970, for the id.
        Raises: as `UniqueIds.one`. TypeError: the body is no bytes-like object.
        """


class TakeBatch(Protocol):
    """Type of `ordermq.core.take_batch`."""

    def __call__(self, waiting: deque[Any], max_bytes: int, taken: list[Any]) -> list[Any]:
        """Move the next messages that may share a request to `taken`, in order; at least one.

        O(messages taken). The caller keeps other threads from taking. After an exception that a
        signal handler raised, the last one in `taken` may still be the first one that waits.

        Args:
            waiting: PendingFields, at least one.
            max_bytes: the most bytes of bodies and properties, except of a first message that is
                too big by itself: then the broker refuses it, with a reason.
            taken: empty; an argument, because an exception may come before a result is stored.
        Returns: `taken`.
        Raises: IndexError: nothing waits.
        """


class Gathered(Protocol):
    """Type of `ordermq.core.gathered`."""

    def __call__(self, batch: Sequence[Any]) -> tuple[list[bytes], list[str], list[int]]:
        """Return all bodies, properties and flags of PendingFields, for `encode_batch`. O(n)."""


class ReceiptsOf(Protocol):
    """Type of `ordermq.core.receipts_of`."""

    def __call__(
        self,
        batch: Sequence[Any],
        message_ids: str,
        one: Callable[..., Any],
        several: Callable[..., Any],
        queue: object,
        queue_offset: int,
        status: object,
        recall_handle: str | None,
    ) -> list[Any] | None:
        """Return the receipts of PendingFields that were stored back to back, a sequence for each.
        O(n).

        Args:
            message_ids: the broker's, joined with commas.
            one, several: make a receipt, and the receipts of a `send_batch`, of queue, offset, our
                id, the broker's id, status and handle: ids in lists for several.
            queue_offset: of the first message.
        Returns: None if there are more or fewer ids than messages: nobody could tell whose offset
            is whose.
        """
