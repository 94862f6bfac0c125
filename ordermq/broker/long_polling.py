"""Long polling: pulls that found no message are held until one arrives
(docs/internals/protocol.md#pulling).

The client sets for how long: its setting `broker_suspend_ms` comes with each pull. The broker has
no limit of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ordermq.broker.connection import BrokerConnection, RequestRefused
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Append
from ordermq.clock import Clock, wait_until_set
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command

QueueKey = tuple[str, int]
# Each takes about 2 KB. A consumer has one per queue; no honest client has so many.
MAX_HELD_PER_CONNECTION = 16_384
_MAX_HELD = 262_144


@dataclass(slots=True, eq=False)
class HeldPull:
    """One held pull."""

    connection: BrokerConnection
    request: Command
    deadline_ms: int  # from the pull's own suspend time
    tag_hashes: tuple[int, ...]  # empty: all tags


class LongPolling:
    """Held pulls by queue.

    A message with a matching tag ends the wait of its queue's pulls; a deadline that of one pull.
    The pull is then evaluated again and answered, also when there is still no message.

    Args:
        answer_held: answers a pull without holding it again.
        max_check_interval_ms: longest time between two checks of the deadlines.
    """

    def __init__(
        self,
        clock: Clock,
        max_check_interval_ms: int,
        statistics: BrokerStatistics,
        answer_held: Callable[[HeldPull], None],
    ) -> None:
        self._clock = clock
        self._max_check_interval_ms = max_check_interval_ms
        self._statistics = statistics
        self._answer_held = answer_held
        self._held: dict[QueueKey, list[HeldPull]] = {}
        self._held_of: Counter[BrokerConnection] = Counter()
        self._arrived: dict[QueueKey, set[int]] = {}  # tags of messages not yet announced
        self._next_check_ms = 0
        self._earlier_deadline = asyncio.Event()

    def hold(self, key: QueueKey, pull: HeldPull) -> None:
        """Hold a pull until a message arrives, its deadline, or the end of its connection.

        Raises: RequestRefused: too many are held.
        """
        own = self._held_of[pull.connection]
        if own >= MAX_HELD_PER_CONNECTION or self._statistics.held_pulls >= _MAX_HELD:
            self._statistics.pulls_refused += 1
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"{own} pulls of this connection wait for messages, and "
                f"{self._statistics.held_pulls} of all: expected at most {MAX_HELD_PER_CONNECTION} "
                f"and {_MAX_HELD}; pull again later, or without waiting",
            )
        self._held_of[pull.connection] = own + 1
        self._held.setdefault(key, []).append(pull)
        self._statistics.held_pulls += 1
        if pull.deadline_ms < self._next_check_ms:
            self._earlier_deadline.set()

    def on_append(self, append: Append) -> None:
        """Note a durable append, and answer the queue's pulls."""
        # Not at once: producers get their replies first, and one pull gets all messages of the
        # group commit instead of the first.
        key = append.log.topic, append.log.queue_id
        if key not in self._held:
            return
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._wake)
        self._arrived.setdefault(key, set()).update(append.records.tags)

    def answer_group(self, key: QueueKey, group: str) -> None:
        """Answer a group's pulls of a queue now: with the offset that an admin reset it to."""
        # The newest first: older ones may be of a member that had the queue before, which nobody
        # listens to any more, and only the first answer tells of the reset.
        held = self._take_matching(key, lambda pull: pull.request.ext["consumerGroup"] == group)
        for pull in reversed(held):
            self._answer_held(pull)

    def answer_topic(self, topic: str) -> None:
        """Answer all pulls of a topic that was deleted now."""
        for key in [key for key in self._held if key[0] == topic]:
            for pull in self._take_matching(key, lambda _: True):
                self._answer_held(pull)

    def disconnect(self, connection: BrokerConnection) -> None:
        """Drop the pulls of a closed connection."""
        if connection not in self._held_of:
            return  # most have none: the search below takes as long as all that are held
        # Not answered: there is nobody left to answer.
        for key in list(self._held):
            self._take_matching(key, lambda pull: pull.connection is connection)

    async def round(self) -> None:
        """Answer the pulls whose deadline has passed, and wait for the next deadline."""
        now_ms = self._clock.now_ms()
        for pull in self._overdue(now_ms):
            self._answer_held(pull)
        # One timer for all pulls: a timer per pull would be made and cancelled per message.
        deadlines = (pull.deadline_ms for pulls in self._held.values() for pull in pulls)
        self._next_check_ms = min(deadlines, default=now_ms + self._max_check_interval_ms)
        self._next_check_ms = min(self._next_check_ms, now_ms + self._max_check_interval_ms)
        self._earlier_deadline.clear()
        await wait_until_set(self._earlier_deadline, self._clock, self._next_check_ms - now_ms)

    def _wake(self) -> None:
        # Taken first: an answered pull may be held again, and waits for the next message then.
        arrived, self._arrived = self._arrived, {}
        for key, tags in arrived.items():
            for pull in self._take_matching(key, partial(_matches, tags)):
                self._answer_held(pull)

    def _overdue(self, now_ms: int) -> list[HeldPull]:
        return [
            pull
            for key in list(self._held)
            for pull in self._take_matching(key, lambda pull: pull.deadline_ms <= now_ms)
        ]

    def _take_matching(self, key: QueueKey, wanted: Callable[[HeldPull], bool]) -> list[HeldPull]:
        taken: list[HeldPull] = []
        kept: list[HeldPull] = []
        for pull in self._held.get(key, ()):
            (taken if wanted(pull) else kept).append(pull)
        if taken:
            self._statistics.held_pulls -= len(taken)
            for pull in taken:
                self._held_of[pull.connection] -= 1
                if not self._held_of[pull.connection]:
                    del self._held_of[pull.connection]
            if kept:
                self._held[key] = kept
            else:
                del self._held[key]
        return taken


def _matches(tags: set[int], pull: HeldPull) -> bool:
    # Hashes may collide: then the pull is answered "no matched message" and sent again.
    return not pull.tag_hashes or not tags.isdisjoint(pull.tag_hashes)
