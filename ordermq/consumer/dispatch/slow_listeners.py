"""SlowListenerWatch: finds listener calls that do not return
(docs/internals/semantics.md#hung-listeners).

An ordered group only logs them, once per call with its stack. Their leases are still renewed:
taking the queue away from a running listener would break its order. A concurrent group has no
order to keep and sends such batches back to the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ordermq.client.runtime import repeat
from ordermq.clock import Clock
from ordermq.consumer.queue.assigned_queue import AssignedQueue, RunningCall

_log = logging.getLogger("ordermq.consumer")
_CHECKS_PER_TIMEOUT = 10  # so a call is found at most a tenth of its time-out late


class SlowListenerWatch:
    """Checks the running listener calls of a group; on the I/O thread.

    Args:
        timeout_ms: a call that runs longer is slow.
        calls: returns the calls in progress.
        consequence: what follows, for the log.
        stack_of: returns the stack of the listener that a thread runs for a queue.
        on_slow: called once per slow call.
    """

    def __init__(
        self,
        clock: Clock,
        timeout_ms: int,
        calls: Callable[[], Iterable[RunningCall]],
        consequence: str,
        stack_of: Callable[[AssignedQueue, int], str],
        on_slow: Callable[[RunningCall], None],
    ) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._calls = calls
        self._consequence = consequence
        self._stack_of = stack_of
        self._on_slow = on_slow
        self._notified: set[RunningCall] = set()

    async def run(self) -> None:
        """Check until cancelled."""
        interval_ms = max(self._timeout_ms // _CHECKS_PER_TIMEOUT, 1)
        await repeat(self.check, self._clock, lambda: interval_ms)

    async def check(self) -> None:
        """Log each call that has become slow since the last check."""
        now_ms = self._clock.now_ms()
        # A call is identified by all its fields: a retry of the same batch is another call.
        running = set(self._calls())
        for call in running - self._notified:
            if call.since_ms < now_ms - self._timeout_ms:
                self._notified.add(call)
                self._log(call, now_ms)
                self._on_slow(call)
        self._notified &= running  # the others have returned

    def _log(self, call: RunningCall, now_ms: int) -> None:
        # The stack distinguishes a deadlock from a slow database. It is taken here because the
        # call may return at any moment.
        _log.error(
            "%s: listener has not returned for %d ms at offsets %d-%d; %s. Its stack:\n%s",
            call.assigned.queue,
            now_ms - call.since_ms,
            call.messages.first_offset,
            call.messages.last_offset,
            self._consequence,
            self._stack_of(call.assigned, call.thread),
        )
