"""A popped batch (docs/internals/semantics.md#pop)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ordermq.model.message_queue import MessageQueue
from ordermq.model.stored_message import queue_offsets, split_records


class PoppedBatch:
    """The messages of one queue that a broker has leased to this member; on the I/O thread.

    Args:
        topic: that was popped; the queue of a batch of messages to repeat is of another one.
        epoch: the broker's time of the pop; grows with each batch of the queue.
        start: the group's offset at the pop.
        offsets: of the messages, ascending; at least one.
        body: their records.
        is_fenced: the broker refuses what comes late.
        asked_ms: when the pop was sent, or the last renewal that was answered, on the monotonic
            clock. A broker that held the pop counts the lease from a later time.
    Attributes:
        acknowledged: everything before this offset is.
        returned: offsets of messages that come again, to whoever pops them.
        is_releasing: the last acknowledgement is on its way, and with it the queue to others.
        turn: held by requests about its messages.
        is_claimed: the user's database has the epoch as that of the newest owner.
        stored: the next offset there, at the claim; None: it has none, or there is no database.
    """

    def __init__(
        self,
        queue: MessageQueue,
        topic: str,
        epoch: int,
        start: int,
        offsets: Sequence[int],
        body: bytes,
        is_fenced: bool,
        asked_ms: int,
    ) -> None:
        self.queue = queue
        self.topic = topic
        self.epoch = epoch
        self.start = start
        self.offsets = offsets
        self.body = body
        self.is_fenced = is_fenced
        self.asked_ms = asked_ms
        self.acknowledged = start
        self.returned: set[int] = set()
        self.is_releasing = False
        # A renewal replaces handles, so that no acknowledgement may be under way meanwhile.
        self.turn = asyncio.Lock()
        self.is_claimed = False
        self.stored: int | None = None

    @property
    def end(self) -> int:
        """The offset behind the last message."""
        return self.offsets[-1] + 1

    @property
    def first(self) -> int:
        """The offset to consume from: everything before it had its effects."""
        return min(max(self.start, self.stored or 0), self.end)

    @property
    def is_acknowledged(self) -> bool:
        return self.acknowledged >= self.end

    def records_from(self, offset: int) -> bytes:
        """Return the records of the messages from an offset on."""
        records = split_records(self.body)
        return b"".join(record for record in records if queue_offsets(record)[0] >= offset)

    def unacknowledged(self, end: int) -> list[int]:
        """Return the offsets before `end` that are not acknowledged yet."""
        return [
            offset
            for offset in self.offsets
            if self.acknowledged <= offset < end and offset not in self.returned
        ]
