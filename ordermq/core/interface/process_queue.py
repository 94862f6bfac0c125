"""The contract of the process queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# (batch, index of the first message, messages): indexes run without a gap and their
# offsets ascend. The batch is what put_batch got, or the list of one put's messages.
Segment: TypeAlias = tuple[Any, int, int]


class Batch(Protocol):
    """What `ProcessQueue.put_batch` takes: messages by index, beside two columns as long."""

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
    (docs/internals/semantics.md#process-queue, the R rules).

    Pending messages (P) wait, ascending; `take` moves them to consuming (C), and from there
    `commit` drops them or `rollback` and `make_again` move them back. The dispatch flag D
    is set exactly while one consume request for the queue exists.

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
        """Buffer (offset, message) pairs; those buffered or committed already are ignored.

        Args:
            messages: any order of offsets; the queue keeps the objects of one call
                together until the last of them is committed, removed or cleared.
            sizes: bytes of each body, one a pair; None counts 0 for each.
        Returns: True if the caller must now submit one consume request (D became set).
        Raises: ValueError: an offset or size is out of range, or the lengths differ; nothing
            was put. StateError: the queue holds columns.
        """

    def put_batch(self, batch: Batch) -> bool:
        """Buffer a whole batch in one native call, without an object a message.

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
        """Buffer messages that the caller keeps, known by tokens of its own.

        Args:
            offsets: int64, shape (n,), any order; copied, as the others.
            tokens: uint64, shape (n,), what `take_columns` returns for them.
            sizes: bytes of each body, uint32 or int32, shape (n,); None counts 0 for each.
        Returns and raises as `put_batch`. Releases the GIL for long columns.
        """

    def take(self, n: int) -> list[Any]:
        """Move the n smallest pending messages to consuming; return them, ascending.

        A message of `put` is the object itself, one of `put_batch` is batch[index]. Nothing
        pending returns [] and clears D under the same lock as put sets it, so no wake-up
        is lost.

        Raises: ValueError: n is below 1. StateError: the queue holds columns.
        """

    def take_segments(self, n: int) -> list[Segment]:
        """Do as `take`, but return runs (batch, first index, messages) of at most n messages.

        Neighbouring messages that are neighbours in one batch too make one run: 32 messages
        of a batch are one tuple, and no object a message is made.
        """

    def take_columns(self, n: int) -> tuple[memoryview, memoryview]:
        """Do as `take`, for columns: return offsets (format q) and tokens (format Q).

        Raises: ValueError: n is below 1. StateError: the queue holds objects or batches.
        """

    def commit(self) -> int:
        """Drop all of C; return max(C) + 1, the offset to commit; -1 if C was empty.

        Offsets below the result are ignored from now on when they are put again.
        """

    def rollback(self) -> None:
        """Move all of C back to P. D stays: the caller submits again."""

    def make_again(self, offsets: Iterable[int]) -> int:
        """Move these offsets from C back to P; return how many were in C. D stays."""

    def make_again_from(self, offset: int) -> int:
        """Move every consuming offset >= `offset` back to P; return how many. D stays."""

    def remove(self, offsets: Iterable[int]) -> int:
        """Drop finished messages in any order; return the watermark (concurrent mode).

        Drops those in P or C. Every offset below the watermark is done: it is the smallest
        offset left in either, max_offset + 1 once all are gone, and -1 (no effect) if both
        were empty before. Offsets below it are ignored from now on when they are put again.
        """

    def clear(self) -> None:
        """Drop P and C and forget max_offset; D and the floor stay.  O(n)."""

    def reset(self, next_offset: int) -> None:
        """Clear, then expect `next_offset` next: below it puts are ignored. D stays.

        For a seek or a new lock epoch; the one operation that may lower the floor.
        Raises: ValueError: next_offset is out of range.
        """

    def begin_dispatch(self) -> bool:
        """Set D if something is pending and D is clear; return whether it did so."""

    def end_dispatch(self) -> None:
        """Clear D: the caller's consume request ends without a successor."""

    @property
    def name(self) -> str: ...

    @property
    def message_count(self) -> int:
        """Messages in P and C."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the bodies in P and C, as told at put."""

    @property
    def pending_count(self) -> int: ...

    @property
    def consuming_count(self) -> int: ...

    @property
    def max_span(self) -> int:
        """max(P) - min(P), 0 if nothing is pending."""

    @property
    def max_offset(self) -> int:
        """The greatest offset buffered since the last clear or reset, -1 if none."""

    @property
    def first_pending(self) -> int:
        """min(P), -1 if nothing is pending; the next three likewise."""

    @property
    def last_pending(self) -> int: ...

    @property
    def first_consuming(self) -> int: ...

    @property
    def last_consuming(self) -> int: ...

    @property
    def is_dispatched(self) -> bool:
        """D: one consume request is queued, running or scheduled."""

    @property
    def duplicates_ignored(self) -> int:
        """Messages that puts have ignored since the queue was made."""

    @property
    def next_uncommitted(self) -> int:
        """The floor: puts of offsets below it are ignored."""

    def __contains__(self, offset: object, /) -> bool:
        """Whether the offset is pending."""

    def _check(self) -> None:
        """Assert every invariant, with the state in the text; for tests.  O(n)."""
