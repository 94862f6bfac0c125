"""Process queues that hold a standing number of messages, a class a shape.

What was put is kept here, so that a queue that drops it frees only what it made itself: the
messages of every peer outlive the time that is taken, however deep they lay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from typing import Any, ClassVar

from bench import workloads
from bench.core.pull_bodies import TOPIC, pull_body
from ordermq.core import ProcessQueue
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue

FILL = workloads.CORE_BATCH
BODY_BYTES = 100
_OF = MessageQueue(TOPIC, "broker-a", 3)
_FILLED_AT_ONCE = 1_024  # batches made, then put


class Fill:
    """A batch of which nothing is read but its columns: fills a queue to its depth."""

    __slots__ = ("body_sizes", "offsets")

    def __init__(self, first: int, messages: int) -> None:
        self.offsets = array("q", range(first, first + messages))
        self.body_sizes = array("i", [BODY_BYTES]) * messages

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> int:
        return self.offsets[index]


class Standing(ABC):
    """A queue of one shape. Its loops contain one call per batch and nothing else."""

    shape: ClassVar[str]

    def __init__(self, depth: int = 0) -> None:
        self.queue = ProcessQueue()
        self.take: Any = self.queue.take_segments
        self.next = 0  # the offset that comes next
        self.kept: list[object] = []
        self.last: Any = None  # what the last take of a loop gave
        self.committed = -1  # what the last commit of a loop gave
        if depth:
            self.hold(depth)

    @abstractmethod
    def ready(self, count: int, batch: int) -> list[Any]:
        """Make the next `count` batches."""

    def filling(self, count: int, batch: int) -> list[Any]:
        """As `ready`, of batches that are only there to be many."""
        return self.ready(count, batch)

    @abstractmethod
    def put(self, ready: list[Any]) -> None: ...

    @abstractmethod
    def cycle(self, ready: list[Any], batch: int) -> None:
        """Put each batch, take as many messages, commit them."""

    @abstractmethod
    def last_offsets(self) -> list[int]:
        """The offsets of what the last take gave."""

    def hold(self, messages: int) -> None:
        """Take from the front, or put at the end, until so many are buffered, all pending."""
        self.queue.rollback()
        surplus = self.queue.message_count - messages
        if surplus > 0:
            self.take(surplus)
            self.queue.commit()
        while surplus < 0:
            count = min(_FILLED_AT_ONCE, -surplus // FILL)
            ready = self.filling(count, FILL) if count else self.filling(1, -surplus)
            self.put(ready)
            surplus += count * FILL if count else -surplus

    def take_each(self, count: int, batch: int) -> None:
        take = self.take
        for _ in range(count):
            last = take(batch)
        self.last = last

    def take_and_commit(self, count: int, batch: int) -> None:
        take, commit = self.take, self.queue.commit
        for _ in range(count):
            last = take(batch)
            committed = commit()
        self.last, self.committed = last, committed

    def take_and_roll_back(self, count: int, batch: int) -> None:
        take, rollback = self.take, self.queue.rollback
        for _ in range(count):
            last = take(batch)
            rollback()
        self.last = last

    def remove(self, parts: list[list[int]]) -> None:
        remove = self.queue.remove
        for part in parts:
            remove(part)


class Objects(Standing):
    """`put` of (offset, object) pairs, `take`."""

    shape = "objects"

    def __init__(self, depth: int = 0) -> None:
        self._sizes: list[int] = []
        super().__init__()
        self.take = self.queue.take
        self.hold(depth)

    def ready(self, count: int, batch: int) -> list[Any]:
        first = self.next
        self.next += count * batch
        self._sizes = [BODY_BYTES] * batch
        found = []
        for start in range(first, self.next, batch):
            messages = list(range(start, start + batch))  # an int each, of its own
            self.kept.append(messages)
            found.append(list(zip(range(start, start + batch), messages, strict=True)))
        return found

    def put(self, ready: list[Any]) -> None:
        put, sizes = self.queue.put, self._sizes
        for group in ready:
            put(group, sizes)

    def cycle(self, ready: list[Any], batch: int) -> None:
        put, take, commit, sizes = self.queue.put, self.take, self.queue.commit, self._sizes
        for group in ready:
            put(group, sizes)
            last = take(batch)
            committed = commit()
        self.last, self.committed = last, committed

    def last_offsets(self) -> list[int]:
        return list(self.last)


class Batches(Standing):
    """`put_batch` of batches whose columns are there, `take_segments`: no object a message."""

    shape = "batches"

    def ready(self, count: int, batch: int) -> list[Any]:
        first = self.next
        self.next += count * batch
        found: list[Any] = [Fill(start, batch) for start in range(first, self.next, batch)]
        self.kept += found
        return found

    def put(self, ready: list[Any]) -> None:
        put_batch = self.queue.put_batch
        for batch in ready:
            put_batch(batch)

    def cycle(self, ready: list[Any], batch: int) -> None:
        put_batch, take, commit = self.queue.put_batch, self.take, self.queue.commit
        for messages in ready:
            put_batch(messages)
            last = take(batch)
            committed = commit()
        self.last, self.committed = last, committed

    def last_offsets(self) -> list[int]:
        return [
            offset
            for batch, first, count in self.last
            for offset in batch.offsets[first : first + count]
        ]


class Received(Batches):
    """As `Batches`, of pull answers, which keep their bytes and no columns."""

    shape = "received"

    def ready(self, count: int, batch: int) -> list[Any]:
        first = self.next
        self.next += count * batch
        found: list[Any] = [
            MessageBatch(_OF, pull_body(batch, BODY_BYTES, start))
            for start in range(first, self.next, batch)
        ]
        self.kept += found
        return found

    def filling(self, count: int, batch: int) -> list[Any]:
        return super().ready(count, batch)

    def last_offsets(self) -> list[int]:
        return [
            message.queue_offset if isinstance(batch, MessageBatch) else message
            for batch, first, count in self.last
            for message in (batch[i] for i in range(first, first + count))
        ]


class Columns(Standing):
    """`put_columns`, `take_columns`: tokens of the caller's own."""

    shape = "columns"

    def __init__(self, depth: int = 0) -> None:
        self._sizes: array[int] = array("i")
        super().__init__()
        self.take = self.queue.take_columns
        self.hold(depth)

    def ready(self, count: int, batch: int) -> list[Any]:
        first = self.next
        self.next += count * batch
        self._sizes = array("i", [BODY_BYTES]) * batch
        return [
            (array("q", range(start, start + batch)), array("Q", range(start, start + batch)))
            for start in range(first, self.next, batch)
        ]

    def put(self, ready: list[Any]) -> None:
        put_columns, sizes = self.queue.put_columns, self._sizes
        for offsets, tokens in ready:
            put_columns(offsets, tokens, sizes)

    def cycle(self, ready: list[Any], batch: int) -> None:
        put_columns, take, commit = self.queue.put_columns, self.take, self.queue.commit
        sizes = self._sizes
        for offsets, tokens in ready:
            put_columns(offsets, tokens, sizes)
            last = take(batch)
            committed = commit()
        self.last, self.committed = last, committed

    def last_offsets(self) -> list[int]:
        offsets, tokens = self.last
        assert offsets.tolist() == tokens.tolist()
        return list(offsets)


SHAPES: dict[str, type[Standing]] = {
    kind.shape: kind for kind in (Objects, Batches, Received, Columns)
}
