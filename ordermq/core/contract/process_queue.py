"""The process queue: the buffered messages of one assigned queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


# (batch, index of the first message, number of messages): the indexes have no gap and their
# offsets ascend. The batch is what put_batch got, or the list of one put's messages. A tuple, not
# a class: one is made per take, and callers unpack it.
Segment: TypeAlias = tuple[Any, int, int]


class Batch(Protocol):
    """A batch for `ProcessQueue.put_batch`: messages by index, and two columns as long."""

    @property
    def offsets(self) -> ReadableBuffer:
        """Queue offsets, int64, shape (len,), any order."""

    @property
    def body_sizes(self) -> ReadableBuffer:
        """Bytes of each body, uint32 or int32, shape (len,)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class ProcessQueue(Protocol):
    """The buffered messages of one assigned message queue
    (docs/internals/semantics.md#process-queue).

    Pending messages wait, ascending by offset; `take` makes them consuming. `commit` drops the
    consuming messages, `rollback` and `make_again` make them pending again. The dispatch flag is
    set exactly while one consume request for the queue exists.

    Any thread may call anything: one mutex of the queue makes each operation atomic.
    Messages come in one of two shapes, fixed by the first put: objects and batches (`put`,
    `put_batch`, out by `take`, `take_segments`), or columns (`put_columns`, out by
    `take_columns`). Mixing them raises StateError.
    """

    def __init__(self, name: str = "") -> None:
        """Make an empty queue.

        Args: name: "topic@broker/queueId" or the like, for errors and repr.
        """

    def put(
        self, messages: Iterable[tuple[int, object]], sizes: Sequence[int] | None = None
    ) -> bool:
        """Buffer (offset, message) pairs; offsets buffered or committed already are ignored.

        Args:
            messages: any order of offsets; the queue keeps the objects of one call
                together until the last of them is committed, removed or cleared.
            sizes: bytes of each body, one per pair; None counts 0 for each.
        Returns: True if the caller must now submit one consume request: the dispatch flag was
            clear and is set now.
        Raises: ValueError: an offset or size is out of range, or the lengths differ; nothing
            was put. StateError: the queue holds columns.
        """

    # An offset that was put before is ignored, not an error: a pull is repeated after a timeout,
    # and a rebalance back and forth fetches the same messages again.
    def put_batch(self, batch: Batch) -> bool:
        """Buffer a whole batch in one native call, without an object per message.

        The queue keeps one reference to the batch while any of its messages is buffered,
        and copies both columns. Returns and raises as `put`; TypeError if a column is not
        a contiguous buffer of the right type. O(n) for ascending offsets.
        """

    def put_columns(
        self,
        offsets: ReadableBuffer,
        tokens: ReadableBuffer,
        sizes: ReadableBuffer | None = None,
    ) -> bool:
        """Buffer messages that the caller keeps and knows by tokens of its own.

        Args:
            offsets: int64, shape (n,), any order; copied, as the others.
            tokens: uint64, shape (n,), what `take_columns` returns for them.
            sizes: bytes of each body, uint32 or int32, shape (n,); None counts 0 for each.
        Returns and raises as `put_batch`. Releases the GIL for long columns.
        """

    def take(self, n: int) -> list[Any]:
        """Make the n smallest pending messages consuming; return them, ascending.

        A message of `put` is the object itself, one of `put_batch` is batch[index]. If nothing is
        pending the result is [] and the dispatch flag is cleared, under the mutex under which
        put sets it: no wake-up is lost.

        Raises: ValueError: n is below 1. StateError: the queue holds columns.
        """

    def take_segments(self, n: int) -> list[Segment]:
        """Take at most n messages; return them as runs (batch, first index, messages).

        Messages that are neighbours in the queue and in one batch make one run: 32 messages of a
        batch are one tuple, and no object per message is made.
        """

    def take_columns(self, n: int) -> tuple[memoryview, memoryview]:
        """Take at most n messages of a queue of columns; return offsets (q) and tokens (Q).

        Raises: ValueError: n is below 1. StateError: the queue holds objects or batches.
        """

    def commit(self) -> int:
        """Drop everything consuming; return its greatest offset + 1, which is the offset to commit.

        Returns -1 if nothing was consuming. Offsets below the result are ignored from now on when
        they are put again.
        """

    def rollback(self) -> None:
        """Make everything consuming pending again. The dispatch flag stays; submit again."""

    def make_again(self, offsets: Iterable[int]) -> int:
        """Make these offsets pending again; return how many were consuming. The flag stays."""

    def make_again_from(self, offset: int) -> int:
        """Make consuming offsets >= `offset` pending again; return how many. The flag stays."""

    def remove(self, offsets: Iterable[int]) -> int:
        """Drop finished messages in any order; return the watermark.

        For concurrent consumption. Drops pending and consuming messages. Every offset below the
        watermark is done: it is the smallest offset left, max_offset + 1 once all are gone, and -1
        (no effect) if the queue was empty before. Offsets below it are ignored from now on when
        they are put again.
        """

    def clear(self) -> None:
        """Drop everything and forget max_offset; the dispatch flag and the floor stay.  O(n)."""

    def reset(self, next_offset: int) -> None:
        """Clear, then expect `next_offset`: puts below it are ignored. The dispatch flag stays.

        For a seek or a new lock epoch; the one operation that may lower the floor.
        Raises: ValueError: next_offset is out of range.
        """

    def advance(self, next_pull_offset: int | None = None, queue_end: int | None = None) -> None:
        """Note the offset to pull next, and the end of the queue at its broker; None: no change."""

    def begin_dispatch(self) -> bool:
        """Set the dispatch flag if it is clear and something is pending; return whether."""

    def end_dispatch(self) -> None:
        """Clear the dispatch flag: the caller's consume request ends without a successor."""

    @property
    def name(self) -> str: ...

    @property
    def message_count(self) -> int:
        """Number of messages, pending and consuming."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all buffered bodies, as put was told."""

    @property
    def pending_count(self) -> int: ...

    @property
    def consuming_count(self) -> int: ...

    @property
    def max_span(self) -> int:
        """Distance of the first and last pending offset, 0 if nothing is pending."""

    @property
    def max_offset(self) -> int:
        """The greatest offset buffered since the last clear or reset, -1 if none."""

    @property
    def first_pending(self) -> int:
        """Smallest pending offset, -1 if nothing is pending; the next three likewise."""

    @property
    def last_pending(self) -> int: ...

    @property
    def first_consuming(self) -> int: ...

    @property
    def last_consuming(self) -> int: ...

    @property
    def next_pull_offset(self) -> int:
        """The offset to pull next, as last noted by `advance` or the pull engine; 0 at first."""

    @property
    def queue_end(self) -> int:
        """The end of the queue at its broker, as last noted; 0 at first."""

    @property
    def is_dispatched(self) -> bool:
        """The dispatch flag: one consume request is queued, running or scheduled."""

    @property
    def duplicates_ignored(self) -> int:
        """Number of messages that puts have ignored since the queue was made."""

    @property
    def next_uncommitted(self) -> int:
        """The floor: puts of offsets below it are ignored."""

    def __contains__(self, offset: object, /) -> bool:
        """Return whether the offset is pending."""

    def _check(self) -> None:
        """Assert every invariant, with the state in the text; for tests.  O(n)."""
