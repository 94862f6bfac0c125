"""Queues held without the broker's locks: concurrent groups, as in Java (semantics 1, 5).

Nobody is kept out: around a rebalance the old and the new owner may both call their listeners
with the same messages. A lock would do worse than that: brokers take a group that holds one
for an ordered group, and give its failed messages up at the first try (semantics 4.5).
"""

from __future__ import annotations

from collections.abc import Sequence

from ordermq.consumer.assigned_queue import UNLOCKED, AssignedQueue, Lease
from ordermq.model.message_queue import MessageQueue


class Unlocked:
    """Takes the place of `Locks`: every queue is granted at once, and for ever."""

    async def acquire(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, Lease]:
        """All of them."""
        return dict.fromkeys(queues, UNLOCKED)

    async def release(self, assigned: AssignedQueue) -> None:
        """A drained queue is GONE."""
        assigned.discard()

    async def give_back(self, queue: MessageQueue, lease: Lease) -> None:
        """There is nothing to give."""

    def renew_soon(self) -> None:
        """There is nothing to renew."""
