"""The unit of order, assignment and lock."""

from __future__ import annotations

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """One queue of a topic; ordered by (topic, broker name, queue id) as in Java.

    A tuple, because it is the key of most tables: hash and equality stay out of Python code,
    a quarter of what a dataclass's take.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}/{self.queue_id}"
