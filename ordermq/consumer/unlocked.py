"""Queues held without the broker's locks: concurrent and broadcasting groups
(docs/internals/semantics.md#consumer-groups, docs/internals/semantics.md#concurrent-consumption).

As in Java. Nobody is kept out of a concurrent group's queues: around a rebalance the old and
the new owner may both call their listeners with the same messages. A lock would do worse than
that: brokers take a group that holds one for an ordered group, and give its failed messages up
at the first try (docs/internals/semantics.md#failures-and-dead-letters). A broadcasting member has
nobody to keep out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ordermq.consumer.queue.assigned_queue import UNLOCKED, AssignedQueue, Lease
from ordermq.model.message_queue import MessageQueue


class Unlocked:
    """Takes the place of `Locks`: every queue is granted at once, and for ever.

    Args:
        held: the queues that are ours now.
        on_regained: called with a queue that begins again, after an error of ours.
    """

    def __init__(
        self,
        held: Callable[[], Iterable[AssignedQueue]],
        on_regained: Callable[[AssignedQueue], None],
    ) -> None:
        self._held = held
        self._on_regained = on_regained

    async def acquire(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, Lease]:
        """All of them."""
        return dict.fromkeys(queues, UNLOCKED)

    async def release(self, assigned: AssignedQueue) -> None:
        """A drained queue is GONE."""
        assigned.discard()

    async def give_back(self, queue: MessageQueue, lease: Lease) -> None:
        """There is nothing to give."""

    def renew_soon(self) -> None:
        """A queue whose turn broke begins again at its committed offset."""
        for assigned in self._held():
            if assigned.lease is None and assigned.regain(UNLOCKED, assigned.committed_offset):
                self._on_regained(assigned)
