"""The lane map: the messages of one queue, in lanes by key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


# A str is the same key as its UTF-8 bytes. Only equal bytes are the same key, never equal hashes:
# parking one key must not hold back another.
LaneKey: TypeAlias = str | bytes


class LaneMap(Protocol):
    """The key lanes of one assigned message queue (docs/internals/semantics.md#key-lanes,
    docs/internals/semantics.md#failure-policies).

    Messages are delivered (`add`) in offset order, each with a key. The messages of one key
    are a lane: first in, first out, one in flight. Lanes run in parallel, at most
    `max_in_flight` messages at once, the lowest offset first. `take` puts a message in
    flight; `done` ends its flight, or `failed` puts it back at the head of its lane. The
    watermark is the lowest offset delivered and not done: what a consumer commits.

    A message without a key is, by option, a barrier (it waits for all earlier messages, runs
    alone, and blocks all later ones) or shares one lane with the others without a key.

    A parked key's messages are not taken; they wait, or are taken by `divert`. To retry a key
    later, park it until then.

    A lane exists while its key has a message that is not done, an old flight, or is parked.
    Any thread may call anything: one mutex of the map makes each operation atomic. Messages
    come in one of two shapes, fixed by the first add: objects (`add`, `take`, `divert`) or
    columns (the names with `_columns`). Mixing them raises StateError. Everything is O(log n) per
    message unless its docstring says otherwise, n = messages delivered since the watermark.
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
            keyless: a message without a key is a barrier, or shares one lane with its like.
        Raises: ValueError: an argument is out of its range.
        """

    def add(self, messages: Iterable[tuple[int, LaneKey | None, object]]) -> int:
        """Deliver (offset, key, message) triples; return how many were new.

        An offset below `next_offset` has been delivered: it is ignored and counted. So offsets
        ascend within a call, and from call to call except for redelivered ones.

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
        """Put at most n messages in flight; return (offset, message), ascending.

        Each is the head of a lane that is not parked and has none in flight. [] if there is
        none, or `max_in_flight` are in flight, or the next is too far above the watermark.
        Call again after `add`, `done`, `failed`, `unpark`.

        Raises: ValueError: n is below 1. StateError: the map holds columns.
        """

    def take_columns(self, n: int) -> tuple[memoryview, memoryview]:
        """Take from a map of columns; return offsets (format q) and tokens (format Q)."""

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
        """Release a parked key's messages, in order; return False if it was not parked."""

    def is_parked(self, key: LaneKey) -> bool:
        """Return whether a key is parked."""

    def divert(self, key: LaneKey, n: int) -> list[tuple[int, Any]]:
        """Put at most n messages of a parked key in flight, from its first one on; see `take`.

        For a parking topic or a dead letter: `done` says that the copy is durable. Several
        messages of the key may be in flight in this way, ascending. The result is [] if the key is
        not parked, or a message of it that was taken is still in flight; also, after one has
        failed, until all its flights have ended, so that none is overtaken. max_in_flight,
        max_ahead and barriers limit it as they do `take`.
        """

    def divert_columns(self, key: LaneKey, n: int) -> tuple[memoryview, memoryview]:
        """Divert from a map of columns; return offsets (format q) and tokens (format Q)."""

    def reset(self, next_offset: int) -> None:
        """Drop every message and expect `next_offset` next: a new lock epoch, or a seek.

        Messages in flight stay as old flights until they are `done` or `failed`: they count as in
        flight, and neither their keys nor their offsets are taken before. O(n).

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
        """The greatest offset delivered + 1, or the argument of a later `reset`."""

    @property
    def is_full(self) -> bool:
        """True if the last delivered offset is max_ahead or more above the watermark."""

    @property
    def message_count(self) -> int:
        """Number of messages that are not done, without old flights."""

    @property
    def in_flight_count(self) -> int:
        """Number of messages in flight, with old flights."""

    @property
    def old_flight_count(self) -> int:
        """Number of flights from before a reset that have not ended."""

    @property
    def ready_count(self) -> int:
        """Number of lanes whose first message may be taken, `max_in_flight`, `max_ahead` and
        barriers left out of account."""

    @property
    def key_count(self) -> int:
        """Number of keys that have a lane."""

    @property
    def parked_count(self) -> int:
        """Number of parked keys."""

    @property
    def duplicates_ignored(self) -> int:
        """Number of messages that adds have ignored since the map was made."""

    def _check(self) -> None:
        """Assert every invariant, with the state in the text; for tests.  O(n)."""
