"""Offsets of a stream: pure functions over {queue: next offset}.

Spark keeps an offset as JSON text and compares the texts, so ours has one form: keys sorted,
plain ints. The key `@lease` carries the lease id of the run that made it (lease_identity.py);
it is no queue, for no topic is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ordermq.errors import DataLoss, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import queue_of, queue_text

_LEASE: Final = "@lease"
Offsets = dict[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a stream is.

    Args:
        queues: the next offset to read of each.
        lease: of the run that got here; None when no locks are held.
    """

    queues: Offsets
    lease: int | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> StreamOffset:
        """Read what `to_json` made.

        Raises: StateError: it is something else, as the checkpoint of another source.
        """
        try:
            queues = {queue_of(key): int(at) for key, at in told.items() if key != _LEASE}
            lease = told.get(_LEASE)
            return cls(queues, None if lease is None else int(lease))
        except (ValueError, TypeError) as error:
            raise StateError(
                f"the checkpoint holds no offset of this source: {error}; was it made by another "
                "query? Give this one a checkpointLocation of its own"
            ) from error

    def to_json(self) -> dict[str, int]:
        """What Spark keeps: the same text for the same offsets, whatever their order."""
        members = {queue_text(queue): int(at) for queue, at in self.queues.items()}
        if self.lease is not None:
            members[_LEASE] = self.lease
        return dict(sorted(members.items()))


def share_fairly(backlog: Mapping[MessageQueue, int], limit: int, turn: int) -> Offsets:
    """How many messages of each queue make up to `limit`: alike, what one lacks goes to others.

    Args:
        backlog: messages waiting, by queue.
        turn: who gets what does not divide; with one that moves on, nobody is passed over for ever.
    """
    shares = dict(backlog)
    left = limit
    hungry = sorted(backlog, key=lambda queue: (backlog[queue], queue))
    while hungry and backlog[hungry[0]] * len(hungry) <= left:
        left -= backlog[hungry.pop(0)]  # has no more than its part: gets all
    if hungry:
        each, rest = divmod(left, len(hungry))  # each of these has more than that
        hungry.sort()
        first = turn % len(hungry)
        for place, queue in enumerate(hungry[first:] + hungry[:first]):
            shares[queue] = each + (place < rest)
    return shares


def advance(start: Offsets, tails: Mapping[MessageQueue, int], limit: int | None) -> Offsets:
    """The next offsets: towards the tails, at most `limit` messages further altogether."""
    backlog = {queue: max(tails.get(queue, at) - at, 0) for queue, at in start.items()}
    steps = backlog if limit is None else share_fairly(backlog, limit, sum(start.values()))
    return {queue: at + steps[queue] for queue, at in start.items()}


def went_back(start: Offsets, tails: Mapping[MessageQueue, int]) -> DataLoss | None:
    """The error for a queue that ends before the stream's place in it; None if there is none.

    Spark takes an offset that goes back, or lacks a queue, without a word.
    """
    for queue, at in sorted(start.items()):
        tail = tails.get(queue)
        if tail is not None and tail < at:
            return DataLoss(
                f"the queue ends at offset {tail}, before the stream's place in it: the topic was "
                "made anew, or the broker lost messages. Begin with a new checkpoint, or set "
                "fail_on_data_loss=false to wait until the queue has got there again",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                offset=at,
            )
    return None
