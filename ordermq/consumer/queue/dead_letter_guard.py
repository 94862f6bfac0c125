"""DeadLetterGuard: pauses a consumer whose listener, not its messages, seems to be broken
(docs/internals/semantics.md#the-stop)."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue

_log = logging.getLogger("ordermq.consumer")


class DeadLetterGuard:
    """Counts dead letters of a member and stops it when they are too many in too few messages.

    A typo in a listener would move a whole topic to the dead-letter topic, and sending it again
    puts it behind newer messages. On the I/O thread, so that a stop and its end are each one step
    for the other.

    Args:
        most: so many dead letters stop the consumer; 0: never.
        window: among so many messages of one topic; equal to `most`: all of them in a row; 0:
            twice as many.
        statistics: has the messages of each queue that were done.
    """

    def __init__(self, group: str, most: int, window: int, statistics: ConsumerStatistics) -> None:
        self._group = group
        self._most = most
        self._window = window or 2 * most
        self._statistics = statistics
        self._pause: Callable[[], object] = lambda: None
        # By topic: how many of its messages were done at each of its last dead letters. By topic,
        # as the messages of one that is well must not hide another one whose code is broken.
        self._letters: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=most))
        self._turn = asyncio.Lock()
        self._resumed_ms = -1
        self.reason = ""  # why the consumer is stopped; empty while it is not

    def follow(self, pause: Callable[[], object]) -> None:
        """Have `pause` called when the consumer is to stop."""
        self._pause = pause

    @asynccontextmanager
    async def moving(self, since_ms: int) -> AsyncIterator[bool]:
        """Let messages be moved one at a time; gives False if the consumer is stopped, or was when
        the call that failed began.

        Else a listener that fails at once would have a whole buffer on its way before the first of
        its letters is counted.

        Args: since_ms: start of that call, on the monotonic clock.
        """
        if not self._most:
            yield True
            return
        async with self._turn:
            # What failed before a stop says nothing about the listener that was mended meanwhile.
            yield not self.reason and since_ms > self._resumed_ms

    def note(self, queue: MessageQueue, cause: str) -> None:
        """Count a message that was moved to the dead-letter topic.

        Args: cause: what failed, for the log.
        """
        if not self._most or self.reason:
            return
        letters = self._letters[queue.topic]
        # What native code did in its present run is counted at its end, so the first letter may
        # see too few. Of the later ones each difference is right.
        letters.append(self._done(queue.topic))
        if len(letters) == self._most and letters[-1] - letters[0] + self._most <= self._window:
            self._stop(queue.topic, letters[-1] - letters[0], cause)

    def _done(self, topic: str) -> int:
        of_queues = self._statistics.of_queues()
        return sum(c.messages_done for queue, c in of_queues.items() if queue.topic == topic)

    def _stop(self, topic: str, done: int, cause: str) -> None:
        self.reason = (
            f"stopped after {self._most} dead letters among {self._most + done} messages of "
            f"{topic}, the last because {cause}: mend the listener, then call resume()"
        )
        self._statistics.add("dead_letter_stops")
        self._pause()
        _log.warning(
            "group %s: %s. Nothing is consumed until then, locks are kept. `ordermq dlq show %s` "
            "shows the letters; pause_after_dead_letters=0 turns this off",
            self._group,
            self.reason,
            self._group,
            extra=log_fields(group=self._group),
        )

    def resume(self, now_ms: int) -> None:
        """End the stop and count anew, from calls on that begin later."""
        self._resumed_ms = now_ms
        self._letters.clear()
        self.reason = ""
