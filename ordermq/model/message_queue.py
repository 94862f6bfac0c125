"""Message queue: the unit of ordering, allocation and locking."""

from __future__ import annotations

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """One queue of a topic; sorted by topic, broker name and queue id, as in Java."""

    # A tuple, because it is the key of most tables: hash and equality run without Python code, in
    # a quarter of the time of a dataclass.

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}/{self.queue_id}"
