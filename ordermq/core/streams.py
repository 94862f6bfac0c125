"""Values that native streams and their owners exchange; `contract/` has the contracts."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ordermq.core.contract import FillLimits, IdWindow, LaneMap, MessageIndex, RequestTemplate


class RequestGap(IntEnum):
    """Places in a request's header where each frame has something of its own."""

    OFFSET = 0  # in decimal; in a binary header its size before it
    REQUEST_ID = 1
    SIGNATURE = 2  # the HMAC-SHA1 in base64, 28 characters
    FIELDS_SIZE = 3  # of a binary header: the bytes of its fields, which are its last part


class StreamPlan(NamedTuple):
    """The pulls of one queue.

    Args:
        template: of the pulls.
        suggestion: the broker id that answers name while this replica is right.
        tags: keep only messages with one of these; empty keeps all.
        is_filtered: the broker passes messages over.
        offset: of the first pull.
        most_past_end: offsets that the next pull may lie behind the end of the queue.
        is_single: end after one answer.
        limits: of the process queue; None with an `AnswerQueue`, which has its own.
        new_batch: makes an empty MessageIndex, or one of a subclass; None with an `AnswerQueue`.
        max_decompressed_bytes: as of `MessageIndex`.
        window: end with the first answer that has copies of messages noted there; the others are
            noted. Nobody else may use it while the stream runs.
        lanes: put messages into the lanes of their keys, too; `AssignedQueue` has the
            batches that their tokens name.
    """

    template: RequestTemplate
    suggestion: bytes
    tags: tuple[bytes, ...]
    check_crc: bool
    is_filtered: bool
    queue_id: int
    offset: int
    timeout_ms: int
    most_past_end: int
    is_single: bool
    limits: FillLimits | None
    new_batch: Callable[[], MessageIndex] | None
    max_decompressed_bytes: int
    lanes: LaneMap | None = None
    window: IdWindow | None = None


class ColumnBuffer(IntEnum):
    """Buffers of `AnswerBlock.columns`; an optional text has three: validity, starts, bytes."""

    OFFSETS = 0
    SHARDING_KEY = 1
    KEYS = 4
    TAGS = 7
    MESSAGE_ID = 10  # starts, bytes
    BODY = 12  # starts, bytes
    SYS_FLAGS = 14  # with bodies
    PROPERTIES = 15  # starts of rows; starts and bytes of names; starts and bytes of values
    BORN = 20
    STORED = 21
    RECONSUME_TIMES = 22


class ConnectionEnd(IntEnum):
    """Reasons why a connection of the engine ended."""

    CLOSED = 0  # by its owner, or by the peer if the number is -1
    BROKEN = 1  # the number is an errno
    GARBAGE = 2  # no frame, or no header: the bytes are the first of it
    SILENT = 3  # not a byte came since a pull that timed out
    STUCK = 4  # a frame never became whole
    TLS = 5  # it failed: `PullConnection.tls_error` is the reason


class StreamEnd(IntEnum):
    """Reasons why a stream ended, and that it goes on."""

    GOES_ON = 0
    ENDED = 1  # no room, no permit, or stopped
    ANSWERED = 2  # by something else than messages: the bytes are the frame
    TIMED_OUT = 3
    LOST = 4  # with its connection


class AnswerWait(IntEnum):
    """Reasons why the wait for an answer ended."""

    ANSWERED = 0
    WOKEN = 1  # by its event, a signal or the time
    FOR_LOOP = 2  # the owner of the stream must look at what came
    STOPPED = 3  # the stream has ended, and nobody reads its socket any more
    NOT_WRITTEN = 4  # the owner must write the rest of a request
    BROKEN = 5  # writing the request failed: `error` is an errno
