"""MessageFetcher: how a member gets the messages of its queues, by pulls or by pops."""

from __future__ import annotations

from typing import Protocol

from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription


class MessageFetcher(Protocol):
    """Fetches the queues of one member; on the I/O thread."""

    def begin(self, assigned: AssignedQueue, subscription: Subscription) -> None:
        """Fetch a queue that was just assigned."""

    def end(self, assigned: AssignedQueue) -> None:
        """Stop fetching a queue that was given up."""

    def wake(self, assigned: AssignedQueue) -> None:
        """Look at a queue now: there is room in its buffer again."""

    def wake_all(self) -> None:
        """End the pauses after errors: a broker is back."""

    def restart(self, assigned: AssignedQueue) -> None:
        """Fetch a queue from its current offset."""

    def pull_now(self, assigned: AssignedQueue) -> None:
        """Ask again if the broker holds a request: an admin's reset comes with the next."""

    def subscribe(self, subscription: Subscription) -> None:
        """Fetch a topic by another expression; what is buffered stays."""

    def last_pull_ms(self, queue: MessageQueue) -> int:
        """Return when a queue was last asked for, ms since 1970; 0 if not yet."""

    def is_pulling(self, queue: MessageQueue) -> bool:
        """Return whether a waiting request tells of every new message of the queue."""

    async def refresh(self, assigned: AssignedQueue) -> None:
        """Learn where the group is in a queue, if another member may have moved it.

        Raises: one of STORE_ERRORS.
        """

    def oldest_poll(self, now_ms: int) -> tuple[int, MessageQueue] | None:
        """Return the age of the oldest last poll, and its queue; None if none is due."""

    def refusals(self) -> list[str]:
        """Return why brokers refuse requests now, one text per reason and queue."""

    def doubt(self, topic: str) -> None:
        """Look at a topic's queues before they are asked for: its route has changed."""

    async def close(self) -> None:
        """End every request."""
