"""The contract of the core: what all three implementations promise, and their docstrings.

Annotate with these protocols; create with the classes of `ordermq.core`, which are the
chosen implementation's. Offsets are queue offsets, 0 .. 2**63 - 2. Times are milliseconds
of whatever clock the caller uses throughout; the core never reads a clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OffsetMap(Protocol):
    """A sorted map of offset -> token (uint64), made for nearly contiguous ascending keys.

    Appending at the end and popping at the front are O(1), all else O(log n) unless said.
    Any thread may call; a single operation is atomic.
    """

    def put(self, offset: int, token: int) -> bool:
        """Store a token; return False if the offset was there and got the new token.

        Raises: ValueError: the offset or the token is out of range.
        """

    def __setitem__(self, offset: int, token: int, /) -> None:
        """Do as `put`, without an answer: the quickest way to store one token."""

    def __getitem__(self, offset: int, /) -> int:
        """Return the token at an offset.  Raises: KeyError: there is none."""

    def __delitem__(self, offset: int, /) -> None:
        """Delete an entry.  Raises: KeyError: there is none."""

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


# A str is the same key as its UTF-8 bytes. Only equal bytes are the same key: nothing is
# known by a hash alone.
LaneKey: TypeAlias = str | bytes

NO_KEY = 2**32 - 1  # in a column of key sizes: the message has no key


class LaneMap(Protocol):
    """The key lanes of one assigned message queue (docs/internals/semantics.md#key-lanes,
    docs/internals/semantics.md#failure-policies).

    Messages are delivered (`add`) in offset order, each with a key. The messages of one key
    are a lane: first in, first out, one in flight. Lanes run beside each other, at most
    `max_in_flight` messages at once, the lowest offset first. `take` puts a message in
    flight; `done` ends its flight, or `failed` puts it back at the head of its lane. The
    watermark is the lowest offset delivered and not done: what a consumer commits.

    A message without a key is, by option, a barrier (it waits until all before it is done,
    runs alone, and all behind it waits) or shares one lane with its like.

    A parked key's messages are not taken; they wait, or are taken by `divert`. Whoever wants
    to retry a key later parks it meanwhile.

    A lane exists while its key has a message that is not done, an old flight, or is parked.
    Any thread may call anything: one mutex of the map makes each operation atomic. Messages
    come in one of two shapes, fixed by the first add: objects (`add`, `take`, `divert`) or
    columns (the names with `_columns`). Mixing them raises StateError. All is O(log n) a
    message unless said otherwise, n = messages delivered since the watermark.
    """

    def __init__(
        self,
        name: str = "",
        *,
        max_in_flight: int = 20,
        max_ahead: int = 2_000,
        keyless: Literal["barrier", "lane"] = "barrier",
    ) -> None:
        """Make an empty map that expects offset 0 or any later one.

        Args:
            name: "topic@broker/queueId" or the like, for errors and repr.
            max_in_flight: messages of the queue in flight at once, 1 .. 2**31 - 1.
            max_ahead: offsets, 1 .. 2**63 - 1; no message further than this above the
                watermark is taken, so no more than this can be done above it.
            keyless: what a message without a key is.
        Raises: ValueError: an argument is out of its range.
        """

    def add(self, messages: Iterable[tuple[int, LaneKey | None, object]]) -> int:
        """Deliver (offset, key, message) triples; return how many were new.

        An offset below `next_offset` has been delivered: it is ignored and counted. So the
        offsets must ascend within a call, and from call to call but for what comes again.

        Raises: ValueError: an offset is out of range, or they do not ascend; nothing was
            added. TypeError: a key is neither str, bytes nor None. StateError: the map
            holds columns. MemoryError: a prefix was added, the call may be repeated.
        """

    def add_columns(
        self,
        offsets: ReadableBuffer,
        tokens: ReadableBuffer,
        keys: ReadableBuffer,
        key_positions: ReadableBuffer,
        key_sizes: ReadableBuffer,
    ) -> int:
        """Deliver messages that the caller keeps; return how many were new.

        Key i is `keys[key_positions[i] : key_positions[i] + key_sizes[i]]`: a pull body, the
        data of an Arrow string column, or a column of 8-byte ids serve as they are.

        Args:
            offsets: int64, shape (n,), ascending; copied, as all the others.
            tokens: uint64, shape (n,), what `take_columns` returns for them.
            keys: any contiguous buffer.
            key_positions: bytes from the start of `keys`, uint32 or int32, shape (n,).
            key_sizes: bytes, uint32 or int32, shape (n,); NO_KEY (int32: -1) for none.
        Raises: as `add`; ValueError also if the lengths differ or a key reaches past
            `keys`, TypeError if a column is not a contiguous buffer of the right type.
            Releases the GIL for long columns.
        """

    def take(self, n: int) -> list[tuple[int, Any]]:
        """Put up to n messages in flight; return (offset, message), ascending.

        Each is the head of a lane that is not parked and has none in flight. [] if there is
        none, or `max_in_flight` are in flight, or the next is too far above the watermark.
        Call again after `add`, `done`, `failed`, `unpark`.

        Raises: ValueError: n is below 1. StateError: the map holds columns.
        """

    def take_columns(self, n: int) -> tuple[memoryview, memoryview]:
        """Do as `take`, for columns: return offsets (format q) and tokens (format Q)."""

    def done(self, offset: int) -> bool:
        """End a flight for good; return False, with no effect, if none has this offset.

        An old flight, from before a reset, is ended first: until then the same offset
        cannot be in flight again.
        """

    def done_columns(self, offsets: ReadableBuffer) -> int:
        """End the flights of a column of offsets (int64); return how many there were.

        Raises: StateError: the map holds objects.
        """

    def failed(self, offset: int) -> bool:
        """End a flight: the message is at the head of its lane again.

        It may be taken at once. An old flight just ends. Returns as `done`.
        """

    def park(self, key: LaneKey) -> bool:
        """Hold a key's messages back, now and in future; return False if it was parked.

        One that is in flight may end. Other lanes go on, but the watermark stays below what
        is held. Parked keys outlive `reset`.
        """

    def unpark(self, key: LaneKey) -> bool:
        """Let a parked key's messages go on, in order; return False if it was not parked."""

    def is_parked(self, key: LaneKey) -> bool:
        """Whether a key is parked."""

    def divert(self, key: LaneKey, n: int) -> list[tuple[int, Any]]:
        """Put up to n messages at the head of a parked key in flight; as `take` returns them.

        For a parking topic or a dead letter: `done` says that the copy is durable. Several
        of the key may be in flight so, ascending. [] if the key is not parked, if a message
        of it that was in flight before is not ended, or, after one has failed, until all
        its flights are ended, so that none is overtaken. max_in_flight, max_ahead and
        barriers bound it as they do `take`.
        """

    def divert_columns(self, key: LaneKey, n: int) -> tuple[memoryview, memoryview]:
        """Do as `divert`, for columns."""

    def reset(self, next_offset: int) -> None:
        """Drop every message and expect `next_offset` next: a new lock epoch, or a seek.

        What is in flight stays as an old flight until it is `done` or `failed`: it counts
        as in flight, and its key, and its offset, wait for it (pc#843). O(n).

        Raises: ValueError: next_offset is out of range. MemoryError: nothing was done.
        """

    @property
    def name(self) -> str: ...

    @property
    def max_in_flight(self) -> int: ...

    @property
    def max_ahead(self) -> int: ...

    @property
    def watermark(self) -> int:
        """The lowest offset delivered and not done; `next_offset` if there is none.  O(1)."""

    @property
    def next_offset(self) -> int:
        """The greatest offset delivered + 1, or what `reset` said."""

    @property
    def is_full(self) -> bool:
        """Whether the last delivered offset is max_ahead or more above the watermark."""

    @property
    def message_count(self) -> int:
        """Messages that are not done, old flights left out."""

    @property
    def in_flight_count(self) -> int:
        """Messages in flight, with the old flights."""

    @property
    def old_flight_count(self) -> int:
        """Flights from before a reset that have not ended."""

    @property
    def ready_count(self) -> int:
        """Lanes whose head could be taken, but for `max_in_flight`, `max_ahead` and barriers."""

    @property
    def key_count(self) -> int:
        """Keys that have a lane."""

    @property
    def parked_count(self) -> int:
        """Keys that are parked."""

    @property
    def duplicates_ignored(self) -> int:
        """Messages that adds have ignored since the map was made."""

    def _check(self) -> None:
        """Assert every invariant, with the state in the text; for tests.  O(n)."""


Queue = TypeVar("Queue", bound=Hashable)
# (group, queue, owner, epoch, granted_ms)
LockEntry: TypeAlias = tuple[str, Queue, str, int, int]


class LockTable(Protocol[Queue]):
    """Which member of a group holds which queue, until when, in which epoch
    (docs/internals/semantics.md#broker-lock-table).

    A grant expires when now_ms - granted_ms > lease_ms. One mutex makes test and grant
    atomic, of a whole batch too; any thread may call anything. A new holder, and a grant after
    expiry, take a new epoch; a live renewal keeps its own.

    A queue is named by anything hashable but None, and equal names are one queue: a string, a
    `MessageQueue`. Its hash and equality must not run Python code of their own (those of
    strings, numbers and tuples do not), or a call may be refused an id that a sweep beside it
    took away. A name can be interned, and stand in as an id.
    """

    def __init__(self, lease_ms: int = 60_000, first_epoch: int = 1) -> None:
        """Make an empty table.

        Args:
            lease_ms: how long a grant lasts, >= 0.
            first_epoch: >= 1; seed it so that epochs grow over restarts.
        Raises: ValueError: out of range.
        """

    def intern(self, name: Hashable) -> int:
        """Return the id of a group, a queue or an owner, and pin it once more.

        The id is valid until each intern had its `release`, and beyond as long as a lock uses
        it: the `sweep` that finds neither pin nor lock forgets it. An id is of one table and
        is given out once. Groups, queues and owners share the ids: equal names are one.

        Raises: TypeError: the name is None or cannot be hashed.
        """

    def release(self, number: int) -> None:
        """Take back one intern of an id.

        Raises: ValueError: the id is unknown, or it is not pinned.
        """

    def name_of(self, number: int) -> Hashable:
        """Return what an id stands for.

        Raises: ValueError: the id is unknown.
        """

    def try_lock(self, group: str, queue: Queue, owner: str, now_ms: int) -> int:
        """Grant or renew; return the epoch (>= 1), or 0 if another owner holds it live."""

    def try_lock_batch(
        self, group: str, queues: Sequence[Queue], owner: str, now_ms: int
    ) -> list[int]:
        """Try each queue, one after the other under one lock; return an epoch or 0 for each."""

    def try_lock_ids(
        self, group: int, queues: ReadableBuffer, owner: int, now_ms: int
    ) -> memoryview:
        """Do `try_lock_batch` of interned ids, with no object a queue.  O(len(queues)).

        Args:
            queues: ids, a contiguous buffer of uint64 (Q or L).
        Returns: an epoch or 0 for each, a fresh memoryview of uint64 (Q).
        Raises:
            ValueError: an id is unknown; nothing was done.
            TypeError: `queues` is another kind of buffer.
        """

    def unlock(self, group: str, queue: Queue, owner: str, epoch: int = 0) -> bool:
        """Delete the entry if it is this owner's, and of this epoch unless that is 0."""

    def unlock_batch(
        self,
        group: str,
        queues: Sequence[Queue],
        owner: str,
        epochs: Sequence[int] | None = None,
    ) -> list[bool]:
        """Unlock each queue as `unlock`; return whether each was deleted.

        Raises: ValueError: epochs is given and its length differs.
        """

    def unlock_ids(
        self,
        group: int,
        queues: ReadableBuffer,
        owner: int,
        epochs: ReadableBuffer | None = None,
    ) -> memoryview:
        """Do `unlock_batch` of interned ids.  O(len(queues)).

        Args:
            queues: ids, a contiguous buffer of uint64 (Q or L).
            epochs: as many, uint64; 0 is any epoch.
        Returns: whether each was deleted, a fresh memoryview of bytes 0 and 1 (B).
        Raises:
            ValueError: an id is unknown, or the lengths differ; nothing was done.
            TypeError: `queues` or `epochs` is another kind of buffer.
        """

    def holder(self, group: str, queue: Queue) -> tuple[str, int, int] | None:
        """Return (owner, epoch, granted_ms), of an expired entry too, or None."""

    def is_current(self, group: str, queue: Queue, owner: str, epoch: int, now_ms: int) -> bool:
        """Whether this owner holds the queue live in exactly this epoch
        (docs/internals/semantics.md#fencing)."""

    def is_all_expired(self, group: str, now_ms: int) -> bool:
        """Whether the group holds nothing live.  O(entries of the group)."""

    def sweep(self, now_ms: int) -> list[tuple[str, Queue, str, int]]:
        """Delete expired entries; return them as (group, queue, owner, epoch).

        Forgets each name that is not pinned and that no lock uses any more.
        O(groups + entries of the groups that had one expired, or that were last swept a
        lease ago + names that fell out of use).
        """

    def snapshot(self) -> list[LockEntry[Queue]]:
        """Return every entry, expired ones too, in no particular order.  O(n)."""

    def restore(self, entries: Iterable[LockEntry[Queue]], next_epoch: int) -> None:
        """Replace every entry; next_epoch is raised to the given one, never lowered.

        Pins stay as they are.

        Raises: ValueError: a queue comes twice, or an epoch is not in 1 .. next_epoch - 1;
            no entry was changed.
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
    """The messages of a pull body: its bytes, and where each message is; a class to subclass.

    It keeps the body and 8 bytes a message, 16 where there are inner batches: where it is, and
    its body's size, so that a process queue need not touch the bytes again. Everything else is
    read natively from the bytes when somebody asks. Any thread: nothing changes
    after construction.

    Columns are read-only, contiguous memoryviews with one row a message. Each owns its
    memory, which lives as long as the view or an array over it: `numpy.asarray(column)` and
    `numpy.frombuffer(column, dtype)` copy nothing. Positions are bytes from the start of
    `body`.
    """

    def __init__(
        self, body: ReadableBuffer, tags: Sequence[bytes] = (), check_crc: bool = False
    ) -> None:
        """Index a concatenation of stored records (docs/internals/protocol.md#stored-message) in
        one native pass.

        v1 and v2 records, IPv4 and IPv6 hosts. An inner batch
        (docs/internals/protocol.md#system-flags) becomes the
        messages it holds, with offsets counted on from its own. O(records), with tags
        O(property bytes), with check_crc O(size).

        Args:
            body: the pull body, up to 4 GiB - 1. Bytes are kept as they are, anything else
                is copied first.
            tags: keep only messages whose TAGS property is exactly one of these, UTF-8;
                () keeps all. The broker compares hashes only (docs/internals/protocol.md#tags).
            check_crc: compare each stored body with its record's checksum.
        Raises: ProtocolError: a record is malformed, cut or damaged; says which, where and how.
        """

    @property
    def body(self) -> bytes:
        """The pull body."""

    @property
    def last_offset(self) -> int:
        """Queue offset of the last message scanned, kept or not; -1 if there was none."""

    def __len__(self) -> int: ...

    @property
    def offsets(self) -> memoryview:
        """The column of that name, for `ProcessQueue.put_batch`; made at each call. O(n)."""

    @property
    def body_sizes(self) -> memoryview:
        """The column of that name, for `ProcessQueue.put_batch`; made at each call. O(n)."""

    def offset_at(self, row: int) -> int:
        """The queue offset of a message.

        Raises: IndexError: there is no such row.
        """

    def columns(self, *names: str) -> dict[str, memoryview]:
        """Read columns in one native pass. O(n), with tag_hashes O(property bytes).

        Args:
            names: of int64 (format q) offsets, physical_offsets, born_timestamps,
                store_timestamps (ms since 1970); of uint32 (I) positions (of the record, or
                of the entry in an inner batch), body_positions, body_sizes,
                property_positions, property_sizes (bytes); of int32 (i) tag_hashes (Java's
                `String.hashCode` of TAGS, 0 without one: what the broker filters by),
                queue_ids, flags, sys_flags, reconsume_times.
        Raises: ValueError: no such column.
        """

    def property_columns(self, name: str) -> tuple[memoryview, memoryview]:
        """Find a property of every message: positions and sizes of its values, uint32.

        The size is 0 where a message has none. O(property bytes).
        """

    def property_entries(self) -> tuple[memoryview, memoryview, memoryview, memoryview]:
        """Find all properties: starts (int32), and uint32 name positions, name and value sizes.

        Those of message i are starts[i] .. starts[i + 1] - 1, in the order they stand in, but
        of a name that comes twice only the last; a value begins one byte behind its name.
        O(property bytes), at worst times the properties of a message.
        """

    def gather(
        self, positions: ReadableBuffer, sizes: ReadableBuffer, is_text: bool = False
    ) -> tuple[memoryview, bytes]:
        """Copy pieces of the body one behind the other: an Arrow string or binary column.

        Args:
            positions, sizes: uint32, as `columns`, `property_columns` and `property_entries`
                give them, or parts of these.
            is_text: refuse what is not UTF-8.
        Returns: starts, int32, one more than pieces, the last is the end; and the bytes.
        Raises: ProtocolError: a piece is not UTF-8; says which. ValueError: a piece reaches
            past the body, all are over 2 GiB - 1, or the columns differ in length.
            O(bytes copied).
        """

    def views(self, kind: type[Any], first: int, count: int) -> Iterator[Any]:
        """Iterate over views of messages first .. first + count - 1.

        Args:
            kind: `MessageView` or a subclass, which is not initialised: its __init__ does
                not run, its __new__ gets no arguments.
        Raises: IndexError: there are no such rows. TypeError: not a class of views.
        """


class MessageView(Protocol):
    """One message of an index; a class to subclass.

    Fields are decoded at each access, natively and straight from the record, but
    `properties` and a decompressed body, which are kept. It keeps the index alive, and so the
    bytes. A message of an inner batch has its own body, properties and flag; hosts,
    timestamps and physical offset are those of the record around it, and its reconsume times
    are 0, as in Java.
    """

    def __init__(self, index: MessageIndex, row: int) -> None:
        """Look at a message.

        Raises: IndexError: there is no such row.
        """

    @property
    def index(self) -> MessageIndex:
        """What it is of."""

    @property
    def body(self) -> memoryview:
        """The body: a view of the pull body, or, if compressed, of a decompressed copy.

        Raises: ProtocolError, ConfigError: see `compression.decompress`.
        """

    @property
    def stored_body(self) -> memoryview:
        """The body as stored, compressed or not; not copied."""

    @property
    def properties(self) -> dict[str, str]:
        """All properties; one dict for the view, made at first access. O(property bytes).

        What has no name or no value is left out; of a name that comes twice the last counts.
        Raises: ProtocolError: the message's properties are not UTF-8; so the next four.
        """

    def get_property(self, name: str) -> str | None:
        """One property, None if there is none, without making the dict. O(property bytes)."""

    @property
    def tags(self) -> str | None:
        """TAGS."""

    @property
    def keys(self) -> list[str]:
        """The words of KEYS."""

    @property
    def sharding_key(self) -> str | None:
        """__SHARDINGKEY."""

    @property
    def queue_offset(self) -> int:
        """Its offset in the queue."""

    @property
    def physical_offset(self) -> int:
        """Its position in the broker's store."""

    @property
    def queue_id(self) -> int:
        """The queue it is stored in."""

    @property
    def flag(self) -> int:
        """The producer's 32 bits, signed."""

    @property
    def sys_flag(self) -> int:
        """The protocol's bits (docs/internals/protocol.md#system-flags), signed."""

    @property
    def born_timestamp_ms(self) -> int:
        """When the producer made it, ms since 1970 on its clock."""

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored it, ms since 1970 on its clock."""

    @property
    def reconsume_times(self) -> int:
        """How often it failed before it was stored."""

    @property
    def prepared_transaction_offset(self) -> int:
        """Of a transactional message, the physical offset of its half; else 0."""

    @property
    def born_host_bytes(self) -> bytes:
        """The producer: 4 or 16 bytes of address, 4 of port, big-endian."""

    @property
    def store_host_bytes(self) -> bytes:
        """The broker that stored it, alike."""


class MessageRun(Protocol):
    """Neighbouring messages of one index, or of several; a class to subclass.

    It keeps the indexes alive and makes no object a message. Any thread: nothing changes after
    construction.
    """

    def __init__(self, segments: Sequence[tuple[MessageIndex, int, int]]) -> None:
        """Join segments, as `ProcessQueue.take_segments` returns them.

        Args:
            segments: (index, first message, messages >= 1), in order.
        Raises: IndexError: there are no such rows. TypeError: not of an index.
        """

    def __len__(self) -> int: ...

    @property
    def segments(self) -> Sequence[tuple[Any, int, int]]:
        """What it was made of."""

    @property
    def first_offset(self) -> int:
        """The queue offset of the first message. Raises: IndexError: there is none."""

    @property
    def last_offset(self) -> int:
        """The queue offset of the last message. Raises: IndexError: there is none."""

    def offsets(self) -> list[int]:
        """The queue offsets, in order. O(n)."""

    def cut(self, kind: type[Any], size: int) -> Iterator[Any]:
        """Iterate over runs of `size` messages, the last one perhaps shorter. O(1) each.

        Args:
            kind: `MessageRun` or a subclass, which is not initialised: its __init__ does not
                run, its __new__ gets no arguments.
        Raises: ValueError: a size below 1. TypeError: not a class of runs.
        """

    def views(self, kind: type[Any]) -> Iterator[Any]:
        """Iterate over views of the messages; `kind` as in `MessageIndex.views`."""

    def view(self, kind: type[Any], position: int) -> Any:
        """Look at one message; `kind` as in `MessageIndex.views`.

        Raises: IndexError: a position below 0 or from the end on. O(segments).
        """


class RecordBlock(Protocol):
    """Records that wait for their places, in one piece of memory.

    The places are known only when the store's writer comes to them, so the two offsets are
    written last. Made by `RecordWriter`.
    """

    def __len__(self) -> int: ...

    @property
    def tags(self) -> list[int]:
        """Of each record what `rows` gives as its tag; made at each call. O(n)."""

    def rows(self, queue_offset: int, physical_offset: int) -> list[tuple[int, int, bytearray]]:
        """Give the records consecutive places: (queue offset, tag, record) of each.

        Each record is a copy of its own, and a bytearray: sqlite3 binds one without asking
        whether it wants to be adapted. O(bytes).

        Args: queue_offset, physical_offset: of the first.
        Raises: OverflowError: an offset is no int64.
        """


class RecordWriter(Protocol):
    """Writes the stored records (docs/internals/protocol.md#stored-message) of one queue and one
    producer's host.

    A topic over 127 bytes makes v2 records, a host of 20 bytes sets its bit of sysFlag. Any
    thread: nothing changes after construction.
    """

    def __init__(self, topic: str, queue_id: int, born_host: bytes, store_host: bytes) -> None:
        """Make a writer.

        Args:
            topic: where the messages will lie, up to 32767 bytes of UTF-8.
            born_host, store_host: 4 or 16 bytes of address, 4 of port, big-endian.
        Raises: ValueError: a topic too long, a host that is none. OverflowError: a queue_id
            over 32 bits.
        """

    def write(
        self,
        body: bytes,
        properties: bytes,
        *,
        flag: int,
        sys_flag: int,
        born_ms: int,
        stored_ms: int,
        reconsume_times: int = 0,
        tag: int | None = None,
    ) -> RecordBlock:
        """Write one record. O(size).

        Args:
            properties: up to 32767 bytes.
            sys_flag: its two bits of hosts do not count.
            tag: what its row is found by, if not by Java's `String.hashCode` of TAGS (0
                without one).
        Raises: OverflowError: a number over its 32 or 64 bits. ValueError: properties too
            long, or the record over 2**31 - 1 bytes.
        """

    def write_batch(
        self, batch: bytes, *, sys_flag: int, born_ms: int, stored_ms: int
    ) -> RecordBlock:
        """Write the records of a batch body (docs/internals/protocol.md#batch-body), all of them
        or none. O(size).

        Raises: ProtocolError: a message is torn, or has the property DELAY or TRAN_MSG,
            which no batch may carry; says which, where and how. OverflowError: a number over
            its 32 or 64 bits. ValueError: the records are over 4 GiB - 1.
        """


class EncodeBatch(Protocol):
    """The type of `ordermq.core.encode_batch`."""

    def __call__(
        self, bodies: Sequence[bytes], properties: Sequence[str], flags: Sequence[int]
    ) -> bytes:
        """Write the batch body of SEND_BATCH_MESSAGE (docs/internals/protocol.md#batch-body).

        Pure, any thread. O(size).

        Args: bodies, properties, flags: one of each a message; a property text is up to
            32767 bytes of UTF-8, a flag 32 bits, signed.
        Raises: ValueError: lengths differ, a property text too long, or over 4 GiB - 1 in
            all. OverflowError: a flag over its 32 bits.
        """


# A column of byte strings: int32 positions, one more than rows, and the bytes. Value i is
# bytes[positions[i] : positions[i + 1]], as in an Arrow string or binary array.
Texts: TypeAlias = "tuple[ReadableBuffer, ReadableBuffer]"


class OrderedRows(Protocol):
    """The type of `ordermq.core.ordered_rows`."""

    def __call__(
        self,
        offsets: ReadableBuffer,
        queue_ids: ReadableBuffer,
        names: Sequence[Texts],
        first: int,
        end: int,
    ) -> int:
        """Tell how far rows go on in the order of one message queue.

        Pure, any thread; releases the GIL for long columns. O(rows looked at).

        Args:
            offsets: queue offsets, int64, shape (n,).
            queue_ids: int32, shape (n,).
            names: what else tells a queue from another, as topic and broker; of n rows each.
            first, end: rows to look at, first < end <= n.
        Returns: the first row behind `first` that is of another queue than the one before it,
            or whose offset is not greater; `end` if there is none.
        Raises: ValueError: rows out of range, lengths that differ, a position out of its
            bytes. TypeError: a column is not a contiguous buffer of the right type.
        """


class EncodeRows(Protocol):
    """The type of `ordermq.core.encode_rows`."""

    def __call__(
        self,
        bodies: Texts,
        rows: ReadableBuffer,
        *,
        fixed: bytes,
        columns: Sequence[tuple[bytes, Texts | ReadableBuffer]],
        unique: bytes,
        most_bytes: int,
    ) -> tuple[bytes, int]:
        """Write rows as the batch body of SEND_BATCH_MESSAGE
        (docs/internals/protocol.md#batch-body).

        Pure, any thread; releases the GIL for large bodies. O(bytes).

        Args:
            bodies: of n rows; none that is sent may be empty.
            rows: which of them, in this order; uint32, shape (m,), m >= 1.
            fixed: properties of every message, in text form
            (docs/internals/protocol.md#stored-message).
            columns: property name and its values, texts of n rows or int64 of shape (n,). An
                empty text is left out; of a nameless column each text is properties in text
                form already, and written as it is.
            unique: 16 bytes, a number; what the k-th message's UNIQ_KEY is, plus k. Empty:
                messages get none.
            most_bytes: at most so many, but at least one message.
        Returns: the body, and how many of the rows are in it.
        Raises: ValueError: no rows, rows or positions out of range, lengths that differ; or a
            row no broker takes: an empty body, a value with U+0001 or U+0002 inside,
            properties over 32767 bytes, a message over 2**31 - 1. TypeError: a column is not
            a contiguous buffer of the right type.
        """


# code, language, version, opaque, flag, remark ("" for none), fields
Header: TypeAlias = tuple[int, int, int, int, int, str, dict[str, str]]


class ReadHeader(Protocol):
    """The type of `ordermq.core.read_header`."""

    def __call__(self, header: bytes) -> Header:
        """Read a command header in the binary ROCKETMQ serialisation
        (docs/internals/protocol.md#binary-header).

        Every length is checked before use. Of a field that comes twice the last counts.
        Pure, any thread. O(size).

        Raises: ProtocolError: cut, a length out of bounds, text that is not UTF-8; says where.
        """


class JavaHash(Protocol):
    """The type of `ordermq.core.java_hash`."""

    def __call__(self, text: str) -> int:
        """Java's `String.hashCode`: 31 * h + unit over UTF-16 units, signed 32 bits
        (docs/internals/protocol.md#tags).

        Pure, any thread. O(n).

        Raises: UnicodeEncodeError: a surrogate without its pair, which no message can carry.
        """
