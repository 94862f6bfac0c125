"""Pulls that found nothing and wait for a message (docs/internals/protocol.md#pulling)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ordermq.broker.group_commit import Append
from ordermq.broker.statistics import BrokerStatistics
from ordermq.clock import Clock
from ordermq.remoting.command import Command

if TYPE_CHECKING:
    from ordermq.broker.connection import BrokerConnection

QueueKey = tuple[str, int]


@dataclass(slots=True, eq=False)
class HeldPull:
    """One waiting pull."""

    connection: BrokerConnection
    request: Command
    deadline_ms: int
    tag_hashes: tuple[int, ...]  # empty takes everything


class HeldPulls:
    """Waiting pulls by queue.

    A message whose tag matches releases its queue's pulls, a passed deadline each its own.
    Released means: judged once more, and answered whatever is found.

    Args:
        release: answers a pull without holding it again.
        recheck_ms: the longest time between two looks at the deadlines.
    """

    def __init__(
        self,
        clock: Clock,
        recheck_ms: int,
        statistics: BrokerStatistics,
        release: Callable[[HeldPull], None],
    ) -> None:
        self._clock = clock
        self._recheck_ms = recheck_ms
        self._statistics = statistics
        self._release = release
        self._held: dict[QueueKey, list[HeldPull]] = {}
        self._arrived: dict[QueueKey, set[int]] = {}
        self._next_look_ms = 0
        self._sooner = asyncio.Event()

    def hold(self, key: QueueKey, pull: HeldPull) -> None:
        """Keep a pull until a message, its deadline, or the end of its connection."""
        self._held.setdefault(key, []).append(pull)
        self._statistics.held_pulls += 1
        if pull.deadline_ms < self._next_look_ms:
            self._sooner.set()

    def on_append(self, append: Append) -> None:
        """Note a durable append; pulls are released after the group's acknowledgements."""
        key = append.log.topic, append.log.queue_id
        if key not in self._held:
            return
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._wake)
        self._arrived.setdefault(key, set()).update(append.records.tags)

    def release_group(self, key: QueueKey, group: str) -> None:
        """Release a group's pulls of a queue now: something else than a message awaits them."""
        for pull in self._split(key, lambda pull: pull.request.ext["consumerGroup"] == group):
            self._release(pull)

    def disconnect(self, connection: BrokerConnection) -> None:
        """Drop the pulls of a closed connection."""
        for key in list(self._held):
            self._split(key, lambda pull: pull.connection is connection)

    async def run(self) -> None:
        """Release pulls whose time is up, until cancelled."""
        while True:
            now_ms = self._clock.now_ms()
            for pull in self._overdue(now_ms):
                self._release(pull)
            deadlines = (pull.deadline_ms for pulls in self._held.values() for pull in pulls)
            self._next_look_ms = min(deadlines, default=now_ms + self._recheck_ms)
            self._next_look_ms = min(self._next_look_ms, now_ms + self._recheck_ms)
            self._sooner.clear()
            await until_set_or_passed(self._sooner, self._clock, self._next_look_ms - now_ms)

    def _wake(self) -> None:
        arrived, self._arrived = self._arrived, {}
        for key, tags in arrived.items():
            for pull in self._split(key, partial(_matches, tags)):
                self._release(pull)

    def _overdue(self, now_ms: int) -> list[HeldPull]:
        return [
            pull
            for key in list(self._held)
            for pull in self._split(key, lambda pull: pull.deadline_ms <= now_ms)
        ]

    def _split(self, key: QueueKey, wanted: Callable[[HeldPull], bool]) -> list[HeldPull]:
        held = self._held.get(key, [])
        taken = [pull for pull in held if wanted(pull)]
        if taken:
            self._statistics.held_pulls -= len(taken)
            kept = [pull for pull in held if pull not in taken]
            if kept:
                self._held[key] = kept
            else:
                del self._held[key]
        return taken


def _matches(tags: set[int], pull: HeldPull) -> bool:
    return not pull.tag_hashes or not tags.isdisjoint(pull.tag_hashes)


async def until_set_or_passed(event: asyncio.Event, clock: Clock, delay_ms: int) -> None:
    """Return when the event is set, or `delay_ms` have passed on the clock."""
    sleep = asyncio.ensure_future(clock.sleep_ms(delay_ms))
    wake = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((sleep, wake), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sleep, wake):
            task.cancel()
        await asyncio.gather(sleep, wake, return_exceptions=True)
