"""Listeners that do not return are told of, once each; nothing is taken from them
(docs/internals/semantics.md#hung-listeners).

Their queues' leases go on being renewed: who forces a listener breaks the order. A concurrent
group sends such batches back instead (concurrently.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ordermq.client.runtime import repeat
from ordermq.clock import Clock
from ordermq.consumer.queue.assigned_queue import AssignedQueue, RunningCall
from ordermq.consumer.queue.statistics import ConsumerStatistics

_log = logging.getLogger("ordermq.consumer")
_LOOKS_A_TIMEOUT = 10  # how often a timeout the running calls are looked at


class SlowListenerWatch:
    """Looks after the listeners of an orderly group; on the I/O thread.

    Args:
        assigned: our queues.
        stack_of: what a call is at.
        timeout_ms: a call that runs longer is told of.
    """

    def __init__(
        self,
        clock: Clock,
        assigned: Callable[[], Sequence[AssignedQueue]],
        stack_of: Callable[[AssignedQueue, RunningCall], str],
        timeout_ms: int,
        statistics: ConsumerStatistics,
    ) -> None:
        self._clock = clock
        self._assigned = assigned
        self._stack_of = stack_of
        self._timeout_ms = timeout_ms
        self._statistics = statistics
        self._told: set[RunningCall] = set()

    async def run(self) -> None:
        """Look, for ever."""
        interval_ms = max(self._timeout_ms // _LOOKS_A_TIMEOUT, 1)
        await repeat(self.look, self._clock, lambda: interval_ms)

    async def look(self) -> None:
        """Tell of each call that has come to run too long since the last look."""
        oldest_ms = self._clock.now_ms() - self._timeout_ms
        running: set[RunningCall] = set()
        for assigned in self._assigned():
            for call in assigned.running_calls():
                running.add(call)
                if call.since_ms < oldest_ms and call not in self._told:
                    self._told.add(call)
                    self._tell(assigned, call)
        self._told &= running

    def _tell(self, assigned: AssignedQueue, call: RunningCall) -> None:
        self._statistics.add("slow_listeners")
        _log.error(
            "%s: the listener has not returned for %d ms at offsets %d..%d; its queue waits for "
            "it, and keeps its lock. It is at:\n%s",
            assigned.queue,
            self._clock.now_ms() - call.since_ms,
            call.messages.first_offset,
            call.messages.last_offset,
            self._stack_of(assigned, call),
        )
