"""CopyRefusals: copies of failed messages that brokers refuse to store, and why
(docs/internals/semantics.md#refusals)."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from ordermq.client.connections import is_busy
from ordermq.client.session import ClientSession
from ordermq.clock import growing_pause_ms
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.errors import BrokerError, Fenced, OrderMQError

WHOLE_QUEUE = -1  # in the place of an offset: nothing of the queue goes on
_LONGEST_PAUSE_MS = 10_000


class CopyRefusals:
    """Copies of failed messages that brokers refuse to store, and parked keys they do not tell.

    Changed on the I/O thread; workers ask, too.
    """

    def __init__(self, client: ClientSession) -> None:
        self._client = client
        # By queue: the last refusal, with what was tried; and by the offset of each message that
        # waits, how often in a row.
        self._refused: WeakKeyDictionary[AssignedQueue, tuple[str, dict[int, int]]]
        self._refused = WeakKeyDictionary()

    def failed(
        self, assigned: AssignedQueue, action: str, error: OrderMQError, offset: int = WHOLE_QUEUE
    ) -> None:
        """Note a failure, which is retried; log it as part of its broker's outage.

        Args: action: what failed, in a few words.
        """
        self._client.report_failure(assigned.queue.broker_name, action, error)
        # What has not reached a broker, is taken later, or is another member's, goes on by itself.
        if not isinstance(error, BrokerError) or isinstance(error, Fenced) or is_busy(error):
            self.ended(assigned, offset)
            return
        before, done = self._refused.get(assigned), assigned.done_offset
        times = {} if before is None else before[1]
        # A listener that was mended may have done some meanwhile.
        times = {each: count for each, count in times.items() if not 0 <= each < done}
        times[offset] = times.get(offset, 0) + 1
        self._refused[assigned] = (f"{action} is refused: {error}", times)

    def ended(self, assigned: AssignedQueue, offset: int = WHOLE_QUEUE) -> None:
        """Note that a copy was stored, or the parked keys of the queue were read."""
        refused = self._refused.get(assigned)
        if refused is not None:
            refused[1].pop(offset, None)

    def is_refused(self, assigned: AssignedQueue, offset: int) -> bool:
        """Return True if the last copy of a message was refused."""
        refused = self._refused.get(assigned)
        return refused is not None and offset in refused[1]

    def pause_ms(self, assigned: AssignedQueue, shortest_ms: int, offset: int = WHOLE_QUEUE) -> int:
        """Return the pause before the next try: longer with each refusal in a row."""
        refused = self._refused.get(assigned)
        times = 0 if refused is None else refused[1].get(offset, 0)
        # A broker says no until an admin has done something: there is no hurry.
        return growing_pause_ms(shortest_ms, max(times - 1, 0), _LONGEST_PAUSE_MS)

    def reasons(self, held: Iterable[AssignedQueue]) -> list[str]:
        """Return what is refused now, of the queues that are held."""
        found: dict[str, list[AssignedQueue]] = {}
        for assigned in held:
            refused, done = self._refused.get(assigned), assigned.done_offset
            if refused is not None and any(not 0 <= each < done for each in refused[1]):
                found.setdefault(refused[0], []).append(assigned)
        return [
            f"{len(queues)} queues wait, as {queues[0].queue}: {reason}"
            for reason, queues in found.items()
        ]
