"""Pulls and answers by native threads: the pull engine, and the streams of frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import ReadableBuffer

    from ordermq.core.contract.message_writer import RecordBlock, RecordWriter
    from ordermq.core.contract.process_queue import ProcessQueue
    from ordermq.core.streams import StreamPlan


class FillLimits(Protocol):
    """Limits of filling a queue; see consumer/queue/receiver.py."""

    @property
    def fills_if_none_pending(self) -> bool: ...
    @property
    def counts_pending(self) -> bool: ...
    @property
    def messages(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def span(self) -> int: ...
    @property
    def room(self) -> SharedRoom | None: ...


class SharedRoom(Protocol):
    """Room that queues share: above so many pending messages of all of them together, streams that
    fill one wait until half as many are pending. Any thread.

    A queue counts from its first stream with this room on, to its end.
    """

    def __init__(self, messages: int) -> None: ...

    @property
    def pending(self) -> int:
        """The messages that are pending in all of them."""


class FrameStream(Protocol):
    """Bytes received from one socket, the frames they make, and the threads that wait for them.

    One of the threads that wait has the turn to read and wakes the others; while none waits, the
    owner reads, a loop with a thread of its own. Any thread may call `add` and the properties; the
    rest is the owner's. A frame stays until it is dropped.
    """

    def __init__(self, max_frame_bytes: int, tls: Tls | None = None) -> None:
        """Make an empty one.

        Args: tls: what is received are its records, which whoever has the turn deciphers.
        """

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

    def receive(self, patience_s: float = 0.0) -> int:
        """Receive what is there, with the turn; return its length, 0 at the end, -1 for nothing.

        Args: patience_s: how long to wait for a thread that enciphers, with TLS.
        Raises: OSError: the connection broke, or its TLS failed.
        """

    @property
    def has_more(self) -> bool:
        """True if `receive` would do something even if nothing came, with TLS: decipher what
        came before, or tell of the end.
        """

    def end(self, are_waiters_alone: bool) -> None:
        """Give the turn back.

        Args:
            are_waiters_alone: all that came was for threads that wait: one may read from now on.
        """

    def stop(self) -> bool:
        """Read no more; return whether a thread still does, whose wait ends with `STOPPED`."""

    def add(self, data: bytes) -> None:
        """Add bytes that somebody else has received; with TLS before `attach`, for `receive`."""

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

    def append_sealed(self, data: bytes, request: Any, tls: Any) -> bool:
        """Add the records of a frame; with the lock of the session, a `Tls`, for which it waits."""

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
    (`ordermq/broker/processors/received_sends.py`) with a JSON header and an id. The sends of one
    queue are a part; their ids ascend and have one producer, or the run ends. One thread at a time.
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
    """A native thread that pulls messages without the interpreter, for members and Spark's tasks.

    A stream fills a `ProcessQueue` or an `AnswerQueue`. It asks for more as long as each answer is
    messages, the queue has room and a process queue's permit is valid; any other answer ends it.
    One thread calls all methods but those of streams and the three for threads that consume.
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
        """Keep the thread from holding any mutex, of queues too, until `resume`."""

    def resume(self) -> None: ...

    def close(self) -> None:
        """End every stream, every connection and the thread; their events can be collected."""


class Tls(Protocol):
    """TLS over buffers, after its handshake; `ssl` of the standard library fulfils the parts.

    Classes of exceptions are of `read`.
    """

    @property
    def incoming(self) -> Any:
        """An `ssl.MemoryBIO`: whole records, received."""

    @property
    def outgoing(self) -> Any:
        """Another, to be sent."""

    @property
    def read(self) -> Callable[..., Any]:
        """The `read` of an `ssl.SSLObject` of the two, by size and buffer."""

    @property
    def write(self) -> Callable[..., Any]:
        """Its `write`."""

    @property
    def lock(self) -> Any:
        """Held by whoever is in one of these, if several threads are."""

    @property
    def wants_more(self) -> type[Exception]:
        """There are no bytes of the peer's program."""

    @property
    def ended(self) -> type[Exception]:
        """The peer has ended the session, and so has this side."""

    @property
    def failed(self) -> type[Exception]:
        """The session is broken; of all the others the base."""


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


class AnswerQueue(Protocol):
    """Pulled messages of a part of one message queue, in order, between streams of the pull engine
    and one thread that reads them.

    One stream at a time fills it. Any thread may call.
    """

    def __init__(self, start: int, end: int, most_bytes: int, is_whole: bool) -> None:
        """Make an empty one.

        Args:
            start, end: offsets of the part, end exclusive; messages from `end` on are dropped.
            most_bytes: above them streams wait until half of them are left.
            is_whole: each of the offsets has a message: `lost` counts those that have none.
        """

    @property
    def next(self) -> int:
        """The offset at which the next pull begins; at least `end` once it is complete."""

    def put(
        self,
        body: bytes,
        tags: tuple[bytes, ...],
        check_crc: bool,
        queue_id: int,
        first: int,
        next: int,
    ) -> None:
        """Add the answer to a pull at `first`, as a stream does.

        Raises: ProtocolError: as `MessageIndex`; then nothing is added. StateError: it was ended,
            or `first` is not `next`.
        """

    def skip(self, next: int) -> None:
        """Continue at `next`: the offsets before it have no messages, and are not counted."""

    def end(self) -> None:
        """Let nothing more in; what is there can be taken."""

    def lost(self) -> tuple[int, int]:
        """Return how many offsets the answers passed over without a message, and the first one."""


class AnswerBlock(Protocol):
    """Messages of one or several answers that become columns together; one thread."""

    def __len__(self) -> int:
        """Return the number of messages."""

    def take(self, queue: AnswerQueue, most_rows: int, most_bytes: int) -> bool:
        """Move answers here until the block has so many rows or bytes; wait for them, without the
        interpreter lock.

        Returns: True: the queue has ended or is complete, and nothing is left in it.
        """

    def columns(
        self, wanted: int, left_out: tuple[bytes, ...], prefix: bytes
    ) -> tuple[ReadableBuffer, list[tuple[int, int]], int, bool] | None:
        """Write columns, laid out as Arrow does, into one block of memory.

        Args:
            wanted: bits of `ColumnBuffer`: of the first buffer of each column.
            left_out: names, ascending by length, of properties that their map goes without.
            prefix: of further such names; empty: there are none.
        Returns: the memory; start and size in it by `ColumnBuffer`; number of properties; whether
            a body is compressed. None: a text is not UTF-8, and `malformed` says where.
        Raises: StateError: more than Arrow's 31 bits can address. O(bytes).
        """

    def malformed(self) -> tuple[int, bytes]:
        """Return the offset and the properties of the message that is no text."""

    def clear(self) -> None:
        """Drop all messages."""


class PullStream(Protocol):
    """The pulls of one queue; any thread."""

    def __init__(
        self,
        connection: PullConnection,
        queue: ProcessQueue | AnswerQueue,
        owner: object,
        plan: StreamPlan,
    ) -> None: ...

    def permit(self) -> None:
        """Let it fill its process queue, until that is cleared, reset, or filled by another.

        An `AnswerQueue` is filled without it."""

    def forbid(self) -> None:
        """Take the permit back: when this returns, no further answer is buffered."""

    def start(self) -> None:
        """Send the first pull; called once."""

    def stop(self) -> None:
        """End it soon, if it runs."""

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
