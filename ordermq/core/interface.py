"""The contract of the core: what all three implementations promise, and their docstrings.

Annotate with these protocols; create with the classes of `ordermq.core`, which are the
chosen implementation's. Offsets are queue offsets, 0 .. 2**63 - 2. Times are milliseconds
of whatever clock the caller uses throughout; the core never reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# (batch, index of the first message, messages): indexes run without a gap and their
# offsets ascend. The batch is what put_batch got, or the list of one put's messages.
Segment: TypeAlias = tuple[Any, int, int]

# (group, queue, owner, epoch, granted_ms)
LockEntry: TypeAlias = tuple[str, str, str, int, int]


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


class OffsetMap(Protocol):
    """A sorted map of offset -> token (uint64), made for nearly contiguous ascending keys.

    Appending at the end and popping at the front are O(1), all else O(log n) unless said.
    Any thread may call; a single operation is atomic.
    """

    def put(self, offset: int, token: int) -> bool:
        """Store a token; return False if the offset was there and got the new token.

        Raises: ValueError: the offset or the token is out of range.
        """

    def put_columns(self, offsets: ReadableBuffer, tokens: ReadableBuffer) -> int:
        """Store a column of tokens in one native call; return how many offsets were absent.

        Args:
            offsets: int64, shape (n,), any order; of one that comes twice the last token stays.
            tokens: uint64, shape (n,).
        Raises: ValueError: an offset is out of range, or the lengths differ; nothing was
            stored. TypeError: not a contiguous buffer of the right type.
        """

    def remove_columns(self, offsets: ReadableBuffer) -> int:
        """Delete the entries of a column (int64, any order); return how many there were."""

    def columns(self, start: int = 0, n: int = 2**63 - 1) -> tuple[memoryview, memoryview]:
        """Return up to n offsets >= start, ascending (format q), and their tokens (format Q).

        The columns are the caller's own: later changes of the map do not show.
        Raises: ValueError: n is below 1.  O(log n + n).
        """

    def get(self, offset: int) -> int | None:
        """Return the token at an offset, None if there is none."""

    def remove(self, offset: int) -> bool:
        """Delete an entry; return whether there was one."""

    def pop_first(self, n: int) -> list[tuple[int, int]]:
        """Delete and return the n smallest entries, ascending; fewer if there are fewer.

        Raises: ValueError: n is below 1.  O(n).
        """

    def first(self) -> tuple[int, int] | None:
        """Return the smallest entry.  O(1)."""

    def last(self) -> tuple[int, int] | None:
        """Return the greatest entry.  O(1)."""

    def floor(self, offset: int) -> tuple[int, int] | None:
        """Return the greatest entry at or before an offset."""

    def ceiling(self, offset: int) -> tuple[int, int] | None:
        """Return the smallest entry at or after an offset."""

    def clear(self) -> None:
        """Delete everything.  O(n)."""

    def __len__(self) -> int: ...

    def __contains__(self, offset: object, /) -> bool: ...

    def __iter__(self) -> Iterator[int]:
        """Yield the offsets, ascending; a change made meanwhile may or may not be seen."""

    def _check(self) -> None:
        """Assert every invariant; for tests.  O(n)."""


class ProcessQueue(Protocol):
    """The buffered messages of one assigned message queue (semantics 2, the R rules).

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


class LockTable(Protocol):
    """Which member of a group holds which queue, until when, in which epoch (semantics 3.1).

    A grant expires when now_ms - granted_ms > lease_ms. One mutex makes test and grant
    atomic; any thread may call. A new holder, and a grant after expiry, take a new epoch; a
    live renewal keeps its own. Queues are opaque strings; names are forgotten by `sweep`
    once nothing uses them.
    """

    def __init__(self, lease_ms: int = 60_000, first_epoch: int = 1) -> None:
        """Make an empty table.

        Args:
            lease_ms: how long a grant lasts, >= 0.
            first_epoch: >= 1; seed it so that epochs grow over restarts.
        Raises: ValueError: out of range.
        """

    def try_lock(self, group: str, queue: str, owner: str, now_ms: int) -> int:
        """Grant or renew; return the epoch (>= 1), or 0 if another owner holds it live."""

    def try_lock_batch(
        self, group: str, queues: Sequence[str], owner: str, now_ms: int
    ) -> list[int]:
        """Try each queue, one after the other under one lock; return an epoch or 0 for each."""

    def unlock(self, group: str, queue: str, owner: str, epoch: int = 0) -> bool:
        """Delete the entry if it is this owner's, and of this epoch unless that is 0."""

    def unlock_batch(
        self,
        group: str,
        queues: Sequence[str],
        owner: str,
        epochs: Sequence[int] | None = None,
    ) -> list[bool]:
        """Unlock each queue as `unlock`; return whether each was deleted.

        Raises: ValueError: epochs is given and its length differs.
        """

    def holder(self, group: str, queue: str) -> tuple[str, int, int] | None:
        """Return (owner, epoch, granted_ms), of an expired entry too, or None."""

    def is_current(self, group: str, queue: str, owner: str, epoch: int, now_ms: int) -> bool:
        """Whether this owner holds the queue live in exactly this epoch (semantics 10.3)."""

    def is_all_expired(self, group: str, now_ms: int) -> bool:
        """Whether the group holds nothing live.  O(entries of the group)."""

    def sweep(self, now_ms: int) -> list[tuple[str, str, str, int]]:
        """Delete expired entries; return them as (group, queue, owner, epoch).  O(n)."""

    def snapshot(self) -> list[LockEntry]:
        """Return every entry, expired ones too, in no particular order.  O(n)."""

    def restore(self, entries: Iterable[LockEntry], next_epoch: int) -> None:
        """Replace every entry; next_epoch is raised to the given one, never lowered.

        Raises: ValueError: a queue comes twice, or an epoch is not in 1 .. next_epoch - 1;
            nothing was changed.
        """

    @property
    def lease_ms(self) -> int: ...

    @property
    def next_epoch(self) -> int:
        """The epoch that the next new holder gets."""

    def __len__(self) -> int: ...

    def _check(self) -> None:
        """Assert every invariant; for tests.  O(n)."""


class MessageIndex(Protocol):
    """Where the records of a pull body are: columns, one row a kept record.

    Columns are read-only memoryviews. They own their memory, and outlive the index; the
    body is not kept.
    """

    @property
    def offsets(self) -> memoryview:
        """Queue offsets, format q."""

    @property
    def positions(self) -> memoryview:
        """Bytes from the start of the body to each record, format I."""

    @property
    def body_positions(self) -> memoryview:
        """Bytes from the start of the pull body to each message body, format I."""

    @property
    def body_sizes(self) -> memoryview:
        """Bytes of each message body, format I."""

    @property
    def property_positions(self) -> memoryview:
        """Bytes from the start of the pull body to each property string, format I."""

    @property
    def property_sizes(self) -> memoryview:
        """Bytes of each property string, format I."""

    @property
    def last_offset(self) -> int:
        """Queue offset of the last record scanned, kept or not; -1 if there was none."""

    def __len__(self) -> int: ...


class IndexMessages(Protocol):
    """The type of `ordermq.core.index_messages`."""

    def __call__(self, body: ReadableBuffer, tags: Sequence[bytes] = ()) -> MessageIndex:
        """Index a concatenation of stored records (protocol 2.1) in one native call.

        Args:
            body: the pull body, up to 4 GiB - 1; v1 and v2 records, IPv4 and IPv6 hosts.
            tags: keep only records whose TAGS property is exactly one of these, UTF-8;
                () keeps all. The broker compares hashes only (protocol 2.4).
        Raises: ProtocolError: a record is malformed or cut; says which, where and how.
        """
