"""Message queue: the unit of ordering, allocation and locking."""

from __future__ import annotations

from typing import NamedTuple

from ordermq.core.status import MAX_OFFSET
from ordermq.errors import ConfigError

UNTOLD = -1  # the id of a queue that a proxy chooses and does not tell


class MessageQueue(NamedTuple):
    """One queue of a topic; sorted by topic, broker name and queue id, as in Java."""

    # A tuple, because it is the key of most tables: hash and equality run without Python code, in
    # a quarter of the time of a dataclass.

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}/{self.queue_id}"


def require_queue(queue: object, source: str) -> None:
    """Raise ConfigError for anything but a queue, such as the name of its topic.

    Args: source: the call that returns queues.
    """
    if not isinstance(queue, MessageQueue):
        raise ConfigError(f"queue {queue!r}: expected a MessageQueue, one of {source}")


def require_offset(offset: int, what: str) -> None:
    """Raise ConfigError unless a caller's offset is one that a queue may have."""
    if type(offset) is bool or not isinstance(offset, int) or not 0 <= offset <= MAX_OFFSET:
        raise ConfigError(f"{what}: offset {offset!r}: expected 0 or more, at most 2**63 - 2")
