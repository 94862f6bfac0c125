"""The contract of the core: the protocols that all three implementations fulfil.

The docstrings are here and nowhere else. Annotate with these protocols; create objects with the
classes of `ordermq.core`, which belong to the chosen implementation. Offsets are queue offsets,
0 .. 2**63 - 2. Times are milliseconds of whatever clock the caller uses throughout; the core never
reads a clock, but for the pull engine and the consume loop. Names and signatures are compared by
tests/architecture/test_declarations.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from ordermq.core.streams import RequestGap, StreamPlan


# ---- offset map ----


class OffsetMap(Protocol):
    """A sorted map of offset -> token (uint64), made for nearly contiguous ascending keys.

    Appending at the end and popping at the front are O(1), everything else O(log n) unless its
    docstring says otherwise. Any thread may call; a single operation is atomic.
    """

    # Tokens are numbers, not objects: C keeps them, and knows nothing of reference counts. A
    # caller with objects keeps a list of its own, and stores its indexes here.

    def put(self, offset: int, token: int) -> bool:
        """Store a token; return False if the offset was there and got the new token.

        Raises: ValueError: the offset or the token is out of range.
        """

    def __setitem__(self, offset: int, token: int, /) -> None:
        """Store a token as `put` does, without a result: the quickest way."""

    def __getitem__(self, offset: int, /) -> int:
        """Return the token at an offset.  Raises: KeyError: there is none."""

    def __delitem__(self, offset: int, /) -> None:
        """Delete an entry.  Raises: KeyError: there is none."""

    def put_columns(self, offsets: ReadableBuffer, tokens: ReadableBuffer) -> int:
        """Store a column of tokens in one native call; return how many offsets were absent.

        Args:
            offsets: int64, shape (n,), any order; if one occurs twice its last token stays.
            tokens: uint64, shape (n,).
        Raises: ValueError: an offset is out of range, or the lengths differ; nothing was
            stored. TypeError: not a contiguous buffer of the right type.
        """

    def remove_columns(self, offsets: ReadableBuffer) -> int:
        """Delete the entries of a column (int64, any order); return how many there were."""

    def columns(self, start: int = 0, n: int = 2**63 - 1) -> tuple[memoryview, memoryview]:
        """Return at most n offsets >= start, ascending (format q), and their tokens (format Q).

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

    # Not a snapshot: copying a large map to walk over a part of it would cost too much.
    def __iter__(self) -> Iterator[int]:
        """Yield the offsets, ascending; a change made meanwhile may or may not be seen."""

    def _check(self) -> None:
        """Assert every invariant; for tests.  O(n)."""


# ---- process queue ----

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

    def done_after(self, watermark: int) -> int:
        """Return `watermark` while a message is buffered, else the offset to pull next.

        One call, because another thread may put in between.
        """

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


# ---- pull engine ----


class FillLimits(Protocol):
    """Limits of filling a queue; see consumer/queue/receiver.py."""

    @property
    def fills_if_none_pending(self) -> bool: ...
    @property
    def messages(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def span(self) -> int: ...


class FrameStream(Protocol):
    """Bytes received from one socket, the frames they make, and the threads that wait for them.

    One of the threads that wait has the turn to read and wakes the others; while none waits, the
    owner reads, a loop with a thread of its own. Any thread may call `add` and the properties; the
    rest is the owner's. A frame stays until it is dropped.
    """

    def __init__(self, max_frame_bytes: int) -> None: ...

    @property
    def is_broken(self) -> bool:
        """True once `frame` has met lengths that no frame has; it returns no more frames."""

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that were received and not dropped."""

    @property
    def counts(self) -> tuple[int, int]:
        """Bytes received by threads that waited, and answers that were handed to them."""

    def attach(self, socket: int, gate: int) -> None:
        """Read this socket from now on; put it into `gate`, an epoll that the owner watches.

        Both stay open until `stop`. The gate is closed while a thread reads.
        Raises: OSError: the system refused it.
        """

    def trust(self) -> None:
        """Let threads that wait read: the peer's first bytes are of this protocol."""

    def begin(self) -> bool:
        """Take the turn to read; False if a thread has it, or after `stop`."""

    def receive(self) -> int:
        """Receive what is there, with the turn; return its length, 0 at the end, -1 for nothing.

        Raises: OSError: the connection broke.
        """

    def end(self, are_waiters_alone: bool) -> None:
        """Give the turn back.

        Args:
            are_waiters_alone: all that came was for threads that wait: one may read from now on.
        """

    def stop(self) -> bool:
        """Read no more; return whether a thread still does, whose wait ends with `STOPPED`."""

    def add(self, data: bytes) -> None:
        """Add bytes that somebody else has received."""

    def frame(self) -> tuple[int, bytes, bytes] | None:
        """Return the next whole frame that no thread waits for, again until `drop`.

        Returns: encoding of the header, header, body.
        """

    def drop(self) -> None:
        """Remove the frame that `frame` returned."""

    def rest(self) -> bytes:
        """Return what is buffered."""


class Outbox(Protocol):
    """Frames that threads write to one socket; `remoting/writing.py` has the contract."""

    def __init__(self, socket: int) -> None: ...

    def append(self, data: bytes, request: Any) -> bool:
        """Add the frame of a request and set its `is_asked`; False if nothing was done."""

    def flush(self) -> bool:
        """Write what waits, without the interpreter lock; False if the owner must take a rest.

        Raises: OSError: the connection broke.
        """

    def take(self) -> bytes:
        """Return what waits, for the owner to write it."""

    def close(self) -> None:
        """Drop what waits; no thread uses the socket any more."""


class AwaitedAnswer(Protocol):
    """The answer to one request, for the thread that wrote it: a success with a header in JSON.

    Args:
        event: an eventfd that ends the wait when it is set.
    """

    def __init__(self, stream: FrameStream, outbox: Outbox, opaque: int, event: int) -> None: ...

    def wait(self, timeout_ms: int) -> int:
        """Write what the outbox has, then wait, without the interpreter lock.

        Returns: an `AnswerWait`. Raises: whatever a signal handler raises.
        """

    @property
    def error(self) -> int:
        """The errno of a write that failed."""

    @property
    def stored(self) -> tuple[str, int, int] | None:
        """Fields that the receipts of a send are made of; None if not here, or not just them.

        Returns: the broker's ids of the messages, joined with commas, queue id, first offset.
        """

    @property
    def is_here(self) -> bool:
        """True once the answer is here."""

    @property
    def frame(self) -> tuple[int, bytes, bytes]:
        """The answer, as of `FrameStream.frame`; only if it is here."""


class SendRun(Protocol):
    """Plain sends at the beginning of received bytes, read without an object for each of them.

    It ends before the first frame that is not whole, or not a plain send
    (`ordermq/broker/processors/send_runs.py`) with a JSON header and an id. The sends of one queue
    are a part; their ids ascend and have one producer, or the run ends. One thread at a time.
    """

    def __init__(self, data: bytes, *, max_frame_bytes: int, max_body_bytes: int) -> None:
        """Read. O(bytes).

        Args:
            data: received bytes; kept.
            max_frame_bytes, max_body_bytes: a longer frame or message body ends the run.
        """

    def __len__(self) -> int: ...

    @property
    def size(self) -> int:
        """The number of bytes that its frames take."""

    def queues(self) -> list[tuple[str, int]]:
        """Return topic and queue id of each part, in the order of their first sends."""

    def unique_ids(self, part: int) -> list[str]:
        """Return the ids of a part's messages, ascending.

        Raises: ValueError: there is no such part.
        """

    def write(self, part: int, writer: RecordWriter, stored_ms: int) -> RecordBlock:
        """Write the records of a part, as `writer`, that of its queue, would write each. O(bytes).

        Raises: ValueError: there is no such part, or its records take over 2**32 - 1 bytes.
        """

    def requests(self) -> list[tuple[int, int]]:
        """Return opaque and flag of each request."""

    def answers(
        self, around: tuple[bytes, ...], store_host: bytes, offsets: list[tuple[int, int]]
    ) -> bytes:
        """Return the frames of the answers, in the order of the requests; one-way sends get none.

        Args:
            around: the five pieces of an answer's header around message id, queue id, queue offset
                and opaque.
            store_host: the beginning of message ids, in hexadecimal.
            offsets: queue offset and physical offset of the first message of each part.
        Raises: ValueError: not five pieces, not as many offsets as parts, or a negative one.
        """


class PullEngine(Protocol):
    """A native thread that pulls messages into process queues without the interpreter.

    It asks for more as long as each answer is messages, the queue has room and its permit is
    valid; any other answer ends a stream. One thread calls all methods but those of streams and the
    three for threads that consume.
    """

    def __init__(
        self,
        wake_read: int,
        wake_write: int,
        tell_write: int,
        clock_id: int,
        max_frame_bytes: int,
    ) -> None:
        """Start the thread.

        Args:
            wake_read, wake_write: the ends of a socket pair of its own, non-blocking; open until
                `close`, as the next.
            tell_write: a socket that gets a byte when there are events.
            clock_id: of the clock that times are on.
        """

    def collect(
        self,
    ) -> tuple[
        list[tuple[Any, int, int, bytes]],
        list[tuple[Any, int, bool, int, bytes]],
    ]:
        """Take all events: of connections (owner, `ConnectionEnd`, number, bytes), and of streams
        (owner, `StreamEnd`, whether the queue's dispatch flag was set, last offset, frame).
        """

    def take_ready(self) -> Any | None:
        """Take a stream of which nothing is new but that its queue must be submitted; its owner, or
        None.

        Any thread. There are events of such streams only while no thread waits for them, and none
        that has taken one is expected to come again: until it finds none, or for 2 ms.
        """

    def wait_ready(self) -> bool:
        """Wait, without the interpreter lock, until `take_ready` may return one, or for
        `interrupt`; one thread at a time. False: the engine is closed.
        """

    def interrupt(self) -> None:
        """End that wait, or the next one; any thread."""

    def rest(self) -> None:
        """Keep the thread from holding any mutex, of process queues too, until `resume`."""

    def resume(self) -> None: ...

    def close(self) -> None:
        """End every stream, every connection and the thread; their events can be collected."""


class Tls(Protocol):
    """TLS over buffers, after its handshake; `ssl` of the standard library fulfils the parts."""

    @property
    def incoming(self) -> Any:
        """An `ssl.MemoryBIO`: whole records, received."""

    @property
    def outgoing(self) -> Any:
        """Another, to be sent."""

    @property
    def ssl_object(self) -> Any:
        """The `ssl.SSLObject` of the two."""

    @property
    def wants_more(self) -> type[Exception]:
        """The exception of a read without bytes of the peer's program."""


class PullConnection(Protocol):
    """A connected socket that the engine alone reads and writes, and its owner closes.

    Attributes:
        tls_error: why it ended, if it ended with `ConnectionEnd.TLS`.
    """

    @property
    def tls_error(self) -> BaseException | None: ...

    def __init__(
        self, engine: PullEngine, descriptor: int, owner: object, tls: Tls | None = None
    ) -> None:
        """Give the socket to the engine.

        Args: tls: used by the engine's thread alone until the connection has ended; None speaks
            plainly.
        """

    def close(self) -> None:
        """End it and its streams soon."""


class PullStream(Protocol):
    """The pulls of one queue; any thread."""

    def __init__(
        self,
        connection: PullConnection,
        queue: ProcessQueue,
        owner: object,
        plan: StreamPlan,
    ) -> None: ...

    def permit(self) -> None:
        """Let it fill the process queue, until that is cleared, reset, or filled by another."""

    def forbid(self) -> None:
        """Take the permit back: when this returns, no further answer is buffered."""

    def start(self) -> None:
        """Send the first pull; called once."""

    def stop(self) -> None:
        """End it soon, if it runs."""

    def oldest_stored_ms(self) -> int | None:
        """Return when the broker stored the lowest buffered message of the queue, ms since 1970;
        None: none is buffered, or it was put in another way.
        """

    def lane_batch(self, number: int) -> MessageIndex:
        """Make the batch that tokens in the lanes name, number << 32 | row.

        Raises: StateError: all of its messages are done, or were dropped.
        """

    def limit(self, limits: FillLimits) -> None:
        """Use other limits from now on."""

    def take_counts(self) -> tuple[int, int, int, tuple[int, ...]]:
        """Return pulls with messages, these messages, ms that the pulls took, and pulls by that
        time, in the buckets of `DurationCounts`; since the last call.
        """

    @property
    def is_asking(self) -> bool:
        """True while a pull waits for its answer."""

    @property
    def asked_ms(self) -> int:
        """The time of the last pull; 0 before the first."""


# ---- lane map ----

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


# ---- lock table ----

# A queue is whatever names it: the broker uses MessageQueue tuples, tests use strings.
Queue = TypeVar("Queue", bound=Hashable)
# (group, queue, owner, epoch, granted_ms)
LockEntry: TypeAlias = tuple[str, Queue, str, int, int]


class LockTable(Protocol[Queue]):
    """The queue locks of consumer groups: holder, lease and epoch of each
    (docs/internals/semantics.md#broker-lock-table).

    A lock expires when now_ms - granted_ms > lease_ms. One mutex makes test and grant atomic, also
    of a whole batch; any thread may call anything. A new holder, and a grant after expiry, get a
    new epoch; a renewal keeps its own.

    A queue is named by anything hashable except None, and equal names are one queue: a string, a
    `MessageQueue`. Hash and equality of a name must not run Python code (those of strings, numbers
    and tuples do not), or a call may use an id that another thread's sweep has just forgotten. A
    name can be interned: its id then stands for it.
    """

    # Epochs are the broker's fence tokens: they only ever grow, so a write with an old one is
    # known to come from a member that lost the lock.

    def __init__(self, lease_ms: int = 60_000, first_epoch: int = 1) -> None:
        """Make an empty table.

        Args:
            lease_ms: how long a grant lasts, >= 0.
            first_epoch: >= 1; seed it so that epochs grow over restarts.
        Raises: ValueError: out of range.
        """

    def intern(self, name: Hashable) -> int:
        """Return the id of a group, a queue or an owner, and pin it once more.

        The id is valid until each intern had its `release`, and after that as long as a lock uses
        it: a `sweep` that finds neither pin nor lock forgets it. An id belongs to one table and is
        given out once. Groups, queues and owners share the ids: equal names have one id.

        Raises: TypeError: the name is None or cannot be hashed.
        """

    def release(self, number: int) -> None:
        """Take back one intern of an id.

        Raises: ValueError: the id is unknown, or it is not pinned.
        """

    def name_of(self, number: int) -> Hashable:
        """Return the name that an id stands for.

        Raises: ValueError: the id is unknown.
        """

    def try_lock(self, group: str, queue: Queue, owner: str, now_ms: int) -> int:
        """Grant or renew a lock; return its epoch (>= 1), or 0 if another owner holds it."""

    def try_lock_batch(
        self, group: str, queues: Sequence[Queue], owner: str, now_ms: int
    ) -> list[int]:
        """Try each queue, one after the other under one lock; return an epoch or 0 for each."""

    def try_lock_ids(
        self, group: int, queues: ReadableBuffer, owner: int, now_ms: int
    ) -> memoryview:
        """Try each queue of a column of interned ids, without an object per queue.  O(n).

        Args:
            queues: ids, a contiguous buffer of uint64 (Q or L).
        Returns: an epoch or 0 for each, a fresh memoryview of uint64 (Q).
        Raises:
            ValueError: an id is unknown; nothing was done.
            TypeError: `queues` is another kind of buffer.
        """

    def unlock(self, group: str, queue: Queue, owner: str, epoch: int = 0) -> bool:
        """Delete a lock if this owner holds it, in this epoch unless that is 0; return whether."""

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
        """Unlock each queue of a column of interned ids.  O(n).

        Args:
            queues: ids, a contiguous buffer of uint64 (Q or L).
            epochs: as many, uint64; 0 is any epoch.
        Returns: whether each was deleted, a fresh memoryview of bytes 0 and 1 (B).
        Raises:
            ValueError: an id is unknown, or the lengths differ; nothing was done.
            TypeError: `queues` or `epochs` is another kind of buffer.
        """

    def holder(self, group: str, queue: Queue) -> tuple[str, int, int] | None:
        """Return (owner, epoch, granted_ms) of a lock, expired or not; None if there is none."""

    def is_current(self, group: str, queue: Queue, owner: str, epoch: int, now_ms: int) -> bool:
        """Return whether this owner holds the queue in exactly this epoch, not expired
        (docs/internals/semantics.md#fencing)."""

    def is_all_expired(self, group: str, now_ms: int) -> bool:
        """Return whether every lock of the group has expired.  O(locks of the group)."""

    def sweep(self, now_ms: int) -> list[tuple[str, Queue, str, int]]:
        """Delete expired locks; return them as (group, queue, owner, epoch).

        Forgets each name that is not pinned and that no lock uses any more.
        O(groups + locks of the groups that may have an expired one + names that fell out of use).
        """

    def snapshot(self) -> list[LockEntry[Queue]]:
        """Return every lock, expired ones too, in no particular order.  O(n)."""

    def restore(self, entries: Iterable[LockEntry[Queue]], next_epoch: int) -> None:
        """Replace every lock; next_epoch is raised to the given one, never lowered.

        Pins stay as they are.

        Raises: ValueError: a queue occurs twice, or an epoch is not in 1 .. next_epoch - 1, or
            next_epoch is over 2**63 - 1; no lock was changed.
        """

    @property
    def lease_ms(self) -> int: ...

    @property
    def next_epoch(self) -> int:
        """The epoch that the next new holder gets."""

    def __len__(self) -> int: ...

    def _check(self) -> None:
        """Assert every invariant; for tests.  O(n)."""


# ---- message codec ----


class MessageIndex(Protocol):
    """The messages of a pull body: its bytes, and the place of each message. Made to be subclassed.

    It keeps the body and 8 bytes per message, 16 if there are inner batches: the place of the
    record, and the size of the body, so that a process queue need not read the bytes again. Every
    other field is read natively from the bytes when it is asked for. Any thread: nothing changes
    after construction, and `IdWindow.drop_copies`.

    Columns are read-only, contiguous memoryviews with one row per message. Each owns its
    memory, which lives as long as the view or an array over it: `numpy.asarray(column)` and
    `numpy.frombuffer(column, dtype)` copy nothing. Positions are bytes from the start of
    `body`.
    """

    def __init__(
        self,
        body: ReadableBuffer,
        tags: Sequence[bytes] = (),
        check_crc: bool = False,
        pulled: tuple[int, int, int] | None = None,
        max_decompressed_bytes: int = ...,
    ) -> None:
        """Index a concatenation of stored records (docs/internals/protocol.md#stored-message) in
        one native pass.

        Reads v1 and v2 records, IPv4 and IPv6 hosts. An inner batch
        (docs/internals/protocol.md#system-flags) becomes the messages it holds, with offsets that
        count up from its own. O(records), with tags
        O(property bytes), with check_crc O(size).

        Args:
            body: the pull body, up to 4 GiB - 1. Bytes are kept as they are, anything else
                is copied first.
            tags: keep only messages whose TAGS property is exactly one of these, UTF-8;
                () keeps all. The broker compares hashes only (docs/internals/protocol.md#tags).
            check_crc: compare each stored body with its record's checksum.
            pulled: the pull that the body answers: (queue id, -1 for any; the offset asked for;
                the next offset to ask for). Offsets must ascend between the two. Messages of an
                inner batch before the first are left out. None: any records.
            max_decompressed_bytes: the most bytes that a compressed body may become; default 4 MiB.
        Raises: ProtocolError: a record is malformed, truncated, damaged or no answer to the pull;
            the text says which record, at which byte, and why.
        """

    @property
    def body(self) -> bytes:
        """The pull body."""

    @property
    def last_offset(self) -> int:
        """Queue offset of the last message scanned, kept or not; -1 if there was none."""

    @property
    def max_decompressed_bytes(self) -> int:
        """The most bytes that a compressed body may become."""

    def __len__(self) -> int: ...

    @property
    def offsets(self) -> memoryview:
        """The column of that name, for `ProcessQueue.put_batch`; made at each call. O(n)."""

    @property
    def body_sizes(self) -> memoryview:
        """The column of that name, for `ProcessQueue.put_batch`; made at each call. O(n)."""

    def offset_at(self, row: int) -> int:
        """Return the queue offset of a message.

        Raises: IndexError: there is no such row.
        """

    def columns(self, *names: str) -> dict[str, memoryview]:
        """Read columns in one native pass. O(n), with tag_hashes O(property bytes).

        Args:
            names: int64 (format q): offsets, physical_offsets, born_timestamps,
                store_timestamps (ms since 1970); uint32 (I): positions (of the record, or
                of the entry in an inner batch), body_positions, body_sizes,
                property_positions, property_sizes (bytes); int32 (i): tag_hashes (Java's
                `String.hashCode` of TAGS, 0 without one: the broker filters by it),
                queue_ids, flags, sys_flags, reconsume_times.
        Raises: ValueError: no such column.
        """

    def property_columns(self, name: str) -> tuple[memoryview, memoryview]:
        """Find a property of every message: positions and sizes of its values, uint32.

        The size is 0 where a message has none. O(property bytes).
        """

    def property_entries(self) -> tuple[memoryview, memoryview, memoryview, memoryview]:
        """Find all properties: starts (int32), and uint32 name positions, name and value sizes.

        The properties of message i are starts[i] .. starts[i + 1] - 1, in the order of the text.
        If a name occurs twice only the last one is listed. A value starts one byte behind its name.
        O(property bytes), at worst times the properties of a message.
        """

    def gather(
        self, positions: ReadableBuffer, sizes: ReadableBuffer, is_text: bool = False
    ) -> tuple[memoryview, bytes]:
        """Join pieces of the body: the data and offsets of an Arrow string or binary column.

        Args:
            positions, sizes: uint32, as `columns`, `property_columns` and `property_entries`
                give them, or parts of these.
            is_text: raise if a piece is not UTF-8.
        Returns: starts, int32, one more than pieces, the last is the end; and the bytes.
        Raises: ProtocolError: a piece is not UTF-8; the text says which. ValueError: a piece
            reaches past the body, the total is over 2 GiB - 1, or the columns differ in length.
            O(bytes copied).
        """

    def views(self, kind: type[Any], first: int, count: int) -> Iterator[Any]:
        """Iterate over views of messages first .. first + count - 1.

        Args:
            kind: `MessageView` or a subclass. Its __init__ does not run and its __new__ gets no
                arguments: views are made per message.
        Raises: IndexError: there are no such rows. TypeError: not a class of views.
        """


class MessageView(Protocol):
    """One message of an index. Made to be subclassed.

    Fields are decoded natively from the record at each access; only `properties` and a
    decompressed body are kept. A view keeps its index alive, and so the bytes.

    A message of an inner batch has its own body, properties and flag; hosts, timestamps and
    physical offset are those of the record around it, and its reconsume times are 0, as in Java.
    """

    def __init__(self, index: MessageIndex, row: int) -> None:
        """Make a view of one message.

        Raises: IndexError: there is no such row.
        """

    @property
    def index(self) -> MessageIndex:
        """The index that the message belongs to."""

    @property
    def body(self) -> memoryview:
        """The body: a view of the pull body, or, if compressed, of a copy that is decompressed on
        first access and kept.

        Raises: ProtocolError, ConfigError: see `compression.decompress`.
        """

    @property
    def stored_body(self) -> memoryview:
        """The body as stored, compressed or not; not copied."""

    @property
    def properties(self) -> dict[str, str]:
        """All properties; one dict per view, made at first access. O(property bytes).

        Entries without a name or a value are left out; if a name occurs twice the last one counts.
        Raises: ProtocolError: the message's properties are not UTF-8; so do the next four.
        """

    def get_property(self, name: str) -> str | None:
        """Return one property or None, without making the dict. O(property bytes)."""

    @property
    def tags(self) -> str | None:
        """The property TAGS, None without one."""

    @property
    def keys(self) -> list[str]:
        """The words of the property KEYS, [] without one."""

    @property
    def sharding_key(self) -> str | None:
        """The property __SHARDINGKEY, None without one."""

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
        """Time at which the producer made the message, ms since 1970 on its clock."""

    @property
    def store_timestamp_ms(self) -> int:
        """Time at which the broker stored the message, ms since 1970 on its clock."""

    @property
    def reconsume_times(self) -> int:
        """Number of times the message had failed and been sent back before it was stored."""

    @property
    def prepared_transaction_offset(self) -> int:
        """Physical offset of the half message of a transactional message; else 0."""

    @property
    def born_host_bytes(self) -> bytes:
        """The producer: 4 or 16 bytes of address, 4 of port, big-endian."""

    @property
    def store_host_bytes(self) -> bytes:
        """The broker that stored it: 4 or 16 bytes of address, 4 of port, big-endian."""


class MessageRun(Protocol):
    """Neighbouring messages of one index, or of several. Made to be subclassed.

    A run keeps the indexes alive and makes no object per message. Any thread: nothing changes after
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
        """The segments: (index, first message, number of messages) each."""

    @property
    def first_offset(self) -> int:
        """The queue offset of the first message. Raises: IndexError: there is none."""

    @property
    def last_offset(self) -> int:
        """The queue offset of the last message. Raises: IndexError: there is none."""

    def offsets(self) -> list[int]:
        """Return the queue offsets, in order. O(n)."""

    def cut(self, kind: type[Any], size: int) -> Iterator[Any]:
        """Iterate over runs of `size` messages, the last one perhaps shorter. O(1) each.

        Args:
            kind: `MessageRun` or a subclass. Its __init__ does not run and its __new__ gets no
                arguments.
        Raises: ValueError: a size below 1. TypeError: not a class of runs.
        """

    def views(self, kind: type[Any]) -> Iterator[Any]:
        """Iterate over views of the messages; `kind` as in `MessageIndex.views`."""

    def view(self, kind: type[Any], position: int) -> Any:
        """Return a view of one message; `kind` as in `MessageIndex.views`.

        Raises: IndexError: a position below 0 or from the end on. O(segments).
        """


# ---- consume loop ----


class DurationCounts(Protocol):
    """A histogram of durations, in the buckets of `ordermq.metrics.instruments.BOUNDARIES`; any
    thread.
    """

    def add(self, ns: int) -> None:
        """Count a duration."""

    def add_many(self, buckets: Sequence[int], spent_ns: int) -> None:
        """Count durations that are counted already.

        Raises: ValueError: there are more buckets or fewer.
        """

    def read(self) -> tuple[tuple[int, ...], int]:
        """Return the number of durations in each bucket, not those below it, and their sum, ns."""


class TimedListener(Protocol):
    """A listener whose calls are timed, by the system's monotonic clock.

    Args:
        success, other_success: results of a call that is counted here, if it is the first attempt
            and has no `ack_index`.
        by_topic: the histograms of such calls, or others with an `add`. Of a topic that is missing
            a call is one of the others.
        on_other: called with messages, context, result, error and ns of each other call; the
            result of the call is its result, unless there was an error, which is raised again.
    """

    def __init__(
        self,
        listener: Callable[[Any, Any], Any],
        success: object,
        other_success: object,
        by_topic: dict[str, Any],
        on_other: Callable[..., Any],
    ) -> None: ...

    def __call__(self, messages: Any, context: Any) -> Any: ...


class CallContext(Protocol):
    """The values of one listener call; the base of the context that listeners get.

    It is made per call, so native code makes it without running `__init__`.
    """

    def __init__(self, assigned: Any, claim: Any, messages: MessageRun, attempt: int) -> None: ...

    @property
    def attempt(self) -> int: ...
    @property
    def claim(self) -> Any: ...
    @property
    def messages(self) -> Any: ...
    @property
    def suspend_ms(self) -> int:
        """-1 until a listener sets it."""

    @property
    def _ack_index(self) -> Any:
        """Of concurrent calls: None until a listener sets it."""

    @property
    def _delay_level(self) -> Any:
        """Of concurrent calls: 0 until a listener sets it."""


class Claim(Protocol):
    """The messages that a worker has claimed, and under what; never changed."""

    def __init__(self, messages: Any, lease: Any, generation: int) -> None: ...

    @property
    def messages(self) -> Any: ...
    @property
    def lease(self) -> Any: ...
    @property
    def generation(self) -> int: ...


class QueueFields(Protocol):
    """The fields of an assigned queue that are read or written at each listener call.

    Their meaning is in consumer/queue/assigned_queue.py; a subclass has more. Of the objects, all
    but `calling`, `_lease` and `_state` stay the same once they are set.
    """

    _lock: Any
    _lease: Any
    _state: Any
    _failed_ms: Any
    _paused: Any
    _room_below: Any
    _generation: int
    _done_offset: int
    _running: int

    @property
    def process_queue(self) -> Any: ...
    @property
    def attempts(self) -> Any: ...
    @property
    def calling(self) -> Any: ...
    @property
    def isolate_until(self) -> int: ...
    @property
    def last_claim_ms(self) -> int: ...
    @property
    def batches_per_claim(self) -> int: ...
    @property
    def internal_errors(self) -> int: ...
    @property
    def worker(self) -> int: ...
    @property
    def auto_commit(self) -> bool: ...
    @property
    def should_end_claim(self) -> bool: ...


class CallPlan(Protocol):
    """Values that all listener calls of a dispatcher share; made once."""

    def __init__(
        self,
        *,
        run: type,
        context: type,
        size: int,
        clock_ms: Callable[[], int],
        clock_id: int | None,
        is_judged: bool,
        success: object,
        other_success: object,
        on_start: Callable[[Any], object] | None,
        outcome_of: Callable[[object, Any], object],
        call_async: Callable[[Iterable[Any], Any], Any],
    ) -> None:
        """Make one.

        Args:
            run: class of the batches, derived from MessageRun.
            context: class of the contexts, derived from CallContext.
            size: maximum number of messages per batch.
            clock_id: of the system's clock that `clock_ms` reads; None: it must be asked.
            is_judged: every call ends `perform`.
            success, other_success: results that do not, if they need no judging.
            on_start: called with each context before its listener.
            outcome_of: makes the outcome of any other result; given the result and what waits
                for an awaitable one.
            call_async: `perform_async`, given the calls and the listener.
        """


class BatchCalls(Protocol):
    """Calls a listener for the batches of one claim; an iterator of their contexts.

    Asking for the next context says that the batch before is done. None begins once the queue's
    `should_end_claim` is set, after `until_ms` or after the lease; but the first does.
    """

    def __init__(self, plan: CallPlan, assigned: QueueFields, claim: Any, until_ms: int) -> None:
        """Make the calls of a claim, which has `messages` and `lease.deadline_ms`."""

    @property
    def batches(self) -> int:
        """Batches done so far."""

    @property
    def messages(self) -> int:
        """Messages done so far."""

    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...

    def perform(self, listener: Any, runtime: Any, awaited: Any) -> Any:
        """Call until a call does not simply succeed; return its context and outcome, or None.

        Performed again, it continues behind that call, which then counts as done.
        """

    def perform_async(self, listener: Any, runtime: Any) -> Any:
        """Return a coroutine that does the same with an `async def` listener."""


class RunPlan(Protocol):
    """Values that all runs of a dispatcher share; made once."""

    def __init__(
        self,
        *,
        calls: CallPlan,
        claim: type,
        active: object,
        draining: object,
        over: object,
        submit: object,
        most_ms: int,
        quick_ms: int,
        most_batches: int,
        perform_async: Callable[[Any, Any, Any], Any],
    ) -> None:
        """Make one.

        Args:
            claim: class of the claims, derived from Claim.
            active, draining: states of a queue.
            over, submit: ends of a run; see consumer/dispatch/orderly.py.
            most_ms: time after which a run claims no more.
            quick_ms: time after which a claim has no further batch, and the next claim has one.
            most_batches: largest number of batches per claim.
            perform_async: given the run, the listener and the runtime.
        """


class OrderlyRun(Protocol):
    """Claims of one queue, called and settled one after the other: the `ClaimRun` of
    consumer/dispatch/orderly.py, whose dispatcher does the same in Python.

    It asks the queue's own `begin_batch` and `end_batch` whenever they would do more than claim, or
    count everything as done.
    """

    def __init__(
        self, plan: RunPlan, assigned: QueueFields, goes_on: Callable[[int], bool]
    ) -> None: ...

    @property
    def assigned(self) -> Any: ...
    @property
    def is_running(self) -> bool: ...
    def begin(self) -> None: ...
    def rest(self) -> None: ...
    @property
    def is_open(self) -> bool: ...
    @is_open.setter
    def is_open(self, is_open: bool) -> None: ...
    @property
    def commits(self) -> bool: ...
    @commits.setter
    def commits(self, commits: bool) -> None: ...
    @property
    def end(self) -> Any: ...
    @property
    def calls(self) -> BatchCalls: ...
    @property
    def now_ms(self) -> int: ...
    def advance(self) -> bool: ...
    def count_failed(self, done: int) -> None: ...
    def take_counts(self) -> tuple[int, int, int]: ...
    def perform(self, listener: Any, runtime: Any, awaited: Any) -> Any: ...
    def perform_async(self, listener: Any, runtime: Any) -> Any: ...


class LanePlan(Protocol):
    """Values that all runs of a key-ordered dispatcher share; made once."""

    def __init__(
        self,
        *,
        calls: CallPlan,
        claim: type,
        running_call: Callable[[Any, Any, int, int], object],
        active: object,
        draining: object,
        over: object,
        submit: object,
        most_ms: int,
        hold_ns: int,
        is_closed: Callable[[], bool],
        outcome_raised: Callable[[BaseException], object],
        awaiting: Callable[[object], object],
    ) -> None:
        """Make one.

        Args:
            calls: of at most 64 messages each.
            claim: class of the claims, derived from Claim.
            running_call: makes what the queue keeps of a call in progress.
            active, draining: states of a queue.
            over, submit: ends of a run; see consumer/dispatch/orderly.py.
            most_ms: time after which a run claims no more.
            hold_ns: time after which a run lets other tasks of its event loop go on.
            is_closed: tells, behind each call of an `async def` listener, that its result is void.
            outcome_raised: makes the outcome of a call of such a listener that raised.
            awaiting: returns a coroutine that awaits a result, or a result that is not to be.
        """


class LaneRun(Protocol):
    """Calls for the keys of one queue, claimed and settled one after the other: the `LaneCalls` of
    consumer/dispatch/key_ordered.py, whose dispatcher does the same in Python.

    It asks the queue's own `begin_batch` and `end_batch` whenever they would do more than claim, or
    count everything as done.
    """

    def __init__(
        self,
        plan: LanePlan,
        assigned: QueueFields,
        goes_on: Callable[[int], bool],
        submit: Callable[[Any], object],
    ) -> None: ...

    @property
    def assigned(self) -> Any: ...
    @property
    def begun_ms(self) -> int: ...
    @property
    def claim(self) -> Any: ...
    @property
    def end(self) -> Any: ...
    def let_go(self) -> None: ...
    def take_counts(self) -> tuple[int, int, int]: ...
    def perform(self, listener: Any, runtime: Any, awaited: Any) -> Any: ...
    def perform_async(self, listener: Any, runtime: Any) -> Any: ...


class ConcurrentPlan(Protocol):
    """Values that all runs of a concurrent dispatcher share; made once."""

    def __init__(
        self,
        *,
        calls: CallPlan,
        claim: type,
        running_call: Callable[[Any, Any, int, int], object],
        active: object,
        draining: object,
        is_closed: Callable[[], bool],
        most_ms: int,
        most_messages: int,
    ) -> None:
        """Make one.

        Args:
            claim: class of the claims, derived from Claim.
            running_call: makes what is told of a call in progress.
            active, draining: states of a queue.
            is_closed: tells, behind each call of an `async def` listener, that its result is void.
            most_ms, most_messages: time, and messages, after which a run claims no more.
        """


class ConcurrentRun(Protocol):
    """Batches of one queue, each claimed, called and settled by itself: the `ConcurrentCalls` of
    consumer/dispatch/concurrent.py, whose dispatcher does the same in Python.

    Its first claim answers the dispatch flag; the further ones leave it alone. It asks the queue's
    own `begin_batch` whenever that would do more than claim. An iterator of contexts, for calls
    that are awaited.
    """

    def __init__(
        self, plan: ConcurrentPlan, assigned: QueueFields, submit: Callable[[Any], object]
    ) -> None: ...

    @property
    def assigned(self) -> Any: ...
    @property
    def calls(self) -> int: ...
    @property
    def call(self) -> Any: ...
    def take(self, messages: Any) -> Any: ...
    def let_go(self) -> None: ...
    def take_counts(self) -> tuple[int, int, int]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...
    def perform(self, listener: Any, runtime: Any, awaited: Any) -> Any: ...
    def perform_async(self, listener: Any, runtime: Any) -> Any: ...


# ---- id window ----


class IdWindow(Protocol):
    """The producers' ids (UNIQ_KEY) of the newest messages of one queue, to tell copies that were
    sent again (docs/internals/semantics.md#de-duplication).

    A copy is a message with the id of one that lies at most `size` offsets before it, noted by
    this window, and with a stored body of the same size and CRC-32. Ids are compared, not only
    their hashes. One thread at a time.
    """

    def __init__(self, size: int) -> None:
        """Make an empty window.

        Args: size: offsets, 1 .. 2**31 - 1; memory is taken as ids come, some 70 bytes each.
        Raises: ValueError: the size is out of range.
        """

    def drop_copies(self, index: MessageIndex, end: int = 2**63 - 1) -> int:
        """Note the messages of an index, and leave copies out of it; return how many.

        The one change that is made to an index: before anything else has seen it, for its rows
        move. Messages at or before the newest offset noted, and messages without an id, are kept
        and not noted. O(bytes).

        Args: end: messages from this offset on are kept and not noted.
        Raises: MemoryError: the window is empty again, and the index has the messages that were
            kept so far, and all behind.
        """

    def clear(self) -> None:
        """Forget everything.  O(n)."""

    @property
    def size(self) -> int:
        """Offsets that the window spans."""

    def __len__(self) -> int:
        """Return the number of ids: of messages less than `size` offsets before the newest."""

    def _check(self) -> None:
        """Assert every invariant; for tests.  O(n)."""


# ---- message writer ----


class RecordBlock(Protocol):
    """Stored records without their offsets yet, in one piece of memory; made by `RecordWriter`.

    Records are encoded by the threads that received them. Their two offsets are known only when
    the store's writer commits them, so they are written last.
    """

    def __len__(self) -> int: ...

    @property
    def tags(self) -> list[int]:
        """The tag of each record, as in `rows`; made at each call. O(n)."""

    def rows(self, queue_offset: int, physical_offset: int) -> list[tuple[int, int, bytearray]]:
        """Set consecutive offsets; return (queue offset, tag, record) per record.

        Each record is a copy, and a bytearray: sqlite3 binds one without looking for an adapter.
        O(bytes).

        Args: queue_offset, physical_offset: of the first record.
        Raises: OverflowError: an offset is no int64.
        """


class RecordWriter(Protocol):
    """A writer of stored records (docs/internals/protocol.md#stored-message) of one queue and one
    producer host.

    A topic over 127 bytes makes v2 records, a host of 20 bytes sets its bit of sysFlag. Any
    thread: nothing changes after construction.
    """

    def __init__(self, topic: str, queue_id: int, born_host: bytes, store_host: bytes) -> None:
        """Make a writer.

        Args:
            topic: the topic of the queue, at most 32767 bytes of UTF-8.
            born_host, store_host: 4 or 16 bytes of address, 4 of port, big-endian.
        Raises: ValueError: the topic is too long, or a host is malformed. OverflowError: queue_id
            is over 32 bits.
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
            properties: at most 32767 bytes.
            sys_flag: its two IPv6 bits are replaced by those of the hosts.
            tag: the tag of its row; None takes Java's `String.hashCode` of TAGS (0 without one).
        Raises: OverflowError: a number is over its 32 or 64 bits. ValueError: the properties are
            too long, or the record is over 2**31 - 1 bytes.
        """

    def write_batch(
        self, batch: bytes, *, sys_flag: int, born_ms: int, stored_ms: int
    ) -> RecordBlock:
        """Write the records of a batch body (docs/internals/protocol.md#batch-body), all of them
        or none. O(size).

        Raises: ProtocolError: a message is truncated, or has the property DELAY or TRAN_MSG, which
            no batch may carry; the text says which message, at which byte, and why.
            OverflowError: a number is over its 32 or 64 bits. ValueError: the records are over
            4 GiB - 1.
        """


class EncodeBatch(Protocol):
    """Type of `ordermq.core.encode_batch`."""

    def __call__(
        self, bodies: Sequence[bytes], properties: Sequence[str], flags: Sequence[int]
    ) -> bytes:
        """Write the batch body of SEND_BATCH_MESSAGE (docs/internals/protocol.md#batch-body).

        Pure, any thread. O(size).

        Args: bodies, properties, flags: one of each per message; a property text has at most
            32767 bytes of UTF-8, a flag 32 bits, signed.
        Raises: ValueError: the lengths differ, a property text is too long, or the total is over
            4 GiB - 1. OverflowError: a flag is over 32 bits.
        """


# A column of byte strings: int32 positions, one more than rows, and the bytes. Value i is
# bytes[positions[i] : positions[i + 1]], as in an Arrow string or binary array.
Texts: TypeAlias = "tuple[ReadableBuffer, ReadableBuffer]"


class OrderedRows(Protocol):
    """Type of `ordermq.core.ordered_rows`."""

    def __call__(
        self,
        offsets: ReadableBuffer,
        queue_ids: ReadableBuffer,
        names: Sequence[Texts],
        first: int,
        end: int,
    ) -> int:
        """Return where rows stop to be in the order of one message queue.

        Pure, any thread; releases the GIL for long columns. O(rows looked at).

        Args:
            offsets: queue offsets, int64, shape (n,).
            queue_ids: int32, shape (n,).
            names: further columns that identify a queue, as topic and broker; n rows each.
            first, end: rows to look at, first < end <= n.
        Returns: the first row behind `first` that is of another queue than the one before it,
            or whose offset is not greater; `end` if there is none.
        Raises: ValueError: rows are out of range, lengths differ, or a position is outside its
            bytes. TypeError: a column is not a contiguous buffer of the right type.
        """


class EncodeRows(Protocol):
    """Type of `ordermq.core.encode_rows`."""

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
            rows: the rows to send, in this order; uint32, shape (m,), m >= 1.
            fixed: properties of every message, in text form
                (docs/internals/protocol.md#stored-message).
            columns: property name and values: texts of n rows, or int64 of shape (n,). An empty
                text is left out. Texts of a column with an empty name are whole properties, and
                written as they are.
            unique: 16 bytes, a number; the UNIQ_KEY of message k is this number + k. Empty: the
                messages get none.
            most_bytes: the most bytes of the body, which has at least one message.
        Returns: the body, and how many of the rows are in it.
        Raises: ValueError: no rows, rows or positions out of range, or lengths that differ; or a
            row that no broker takes: an empty body, a value with U+0001 or U+0002 inside,
            properties over 32767 bytes, a message over 2**31 - 1 bytes. TypeError: a column is not
            a contiguous buffer of the right type.
        """


# ---- pending messages ----


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
    def is_done(self) -> bool:
        """True once it has its outcome."""

    def all_receipts(self) -> Sequence[Any]:
        """Return the receipts of messages that are done.

        Raises: the error that sending failed with. ValueError: they are not done.
        """

    def receipt(self) -> Any:
        """Return the receipt of a single message; raises as `all_receipts`."""

    def finish(self, receipts: Sequence[Any] | None, error: BaseException | None) -> None:
        """Set the outcome and call `on_done`; later outcomes change nothing."""

    def not_notified(self) -> None:
        """Handle an exception that `on_done` raised; it is the current one. A subclass logs it."""


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


# ---- frame codec ----

# code, language, version, opaque, flag, remark ("" for none), fields
Header: TypeAlias = tuple[int, int, int, int, int, str, dict[str, str]]


class ReadHeader(Protocol):
    """Type of `ordermq.core.read_header`."""

    def __call__(self, header: bytes) -> Header:
        """Read a command header in the binary ROCKETMQ serialisation
        (docs/internals/protocol.md#binary-header).

        Every length is checked before use. If a field occurs twice the last one counts.
        Pure, any thread. O(size).

        Raises: ProtocolError: the header is truncated, a length is out of bounds, or a text is not
            UTF-8; the text says at which byte.
        """


FRAME_VALUES_MOST = 8


class FrameTemplate(Protocol):
    """Frames (docs/internals/protocol.md#frame) with JSON headers that differ in a few values.

    Args:
        texts: of the header, 1 to 9; the values come between them.
    """

    def __init__(self, texts: Sequence[bytes]) -> None: ...

    def frame(self, values: tuple[int | str, ...], body: bytes) -> bytes:
        """Return a frame; of its values a str is written in quotes. O(size).

        Raises: ValueError: too few values, or too many. Else as `status.failure` says: the frame
            would be over 2 GiB, or its header of 16 MiB or more (ValueError).
        """


# ---- request templates ----

REQUEST_GAPS_MOST = 4


class RequestTemplate(Protocol):
    """Frames of a request of which the offset and the request id change, and with them its
    signature and the size of its fields.

    Immutable, any thread.

    Args:
        texts: of the header, one more than gaps; the gaps lie between them.
        gaps: at most four.
        is_binary: the header's encoding (docs/internals/protocol.md#binary-header).
        signing: the secret key, and what is signed before and after the offset's decimal; None
            for a request without signature.
    Raises: ValueError: too many gaps, or not one text more than gaps.
    """

    def __init__(
        self,
        texts: tuple[bytes, ...],
        gaps: tuple[RequestGap, ...],
        is_binary: bool,
        signing: tuple[bytes, bytes, bytes] | None,
    ) -> None: ...

    def frame(self, offset: int, request_id: int) -> bytes:
        """Return a frame without a body. O(size)."""


class JavaHash(Protocol):
    """Type of `ordermq.core.java_hash`."""

    def __call__(self, text: str) -> int:
        """Return Java's `String.hashCode`: 31 * h + unit over UTF-16 units, signed 32 bits
        (docs/internals/protocol.md#tags).

        Pure, any thread. O(n).

        Raises: UnicodeEncodeError: a surrogate without its pair, which no message can carry.
        """
