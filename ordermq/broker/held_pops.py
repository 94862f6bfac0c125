"""Pops that found nothing and wait for a message, or for a queue that is leased to another member
(docs/internals/protocol.md#pop)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.consumer_offsets import OffsetKey
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Append
from ordermq.clock import Clock, SteadyWall, wait_until_set
from ordermq.model.names import RETRY_PREFIX
from ordermq.remoting.command import Command
from ordermq.remoting.pop import ANY_QUEUE, RETRIES, PopHeader, real_topic

PopKey = tuple[str, str]  # group, topic
MAX_HELD_PER_GROUP = 1_024  # of one topic; RocketMQ's popPollingSize
_IDLE_MS = 1_000


@dataclass(slots=True, eq=False)
class HeldPop:
    """One waiting pop. Times are ms since 1970.

    Args:
        deadline_ms: when it is answered without a message.
        look_ms: when a queue it waits for may be popped, or the deadline.
        expired: messages that retention took from the group, as this pop found.
    """

    connection: BrokerConnection
    request: Command
    header: PopHeader
    tag_hashes: tuple[int, ...]
    deadline_ms: int
    look_ms: int
    expired: int = 0


class HeldPops:
    """Held pops by group and topic; used on the loop thread.

    Unlike RocketMQ's, the pops of a closed connection are dropped: they would take messages that
    nobody gets.

    Args:
        look: evaluates a held pop again; returns False if it must go on waiting. It may change
            `look_ms`.
    """

    def __init__(
        self,
        clock: Clock,
        steady: SteadyWall,
        statistics: BrokerStatistics,
        look: Callable[[HeldPop], bool],
    ) -> None:
        self._clock = clock
        self._steady = steady
        self._statistics = statistics
        self._look = look
        self._held: dict[PopKey, list[HeldPop]] = {}
        # To be looked at soon, in order, and for which of their queues.
        self._woken: dict[PopKey, set[int]] = {}
        self._next_look_ms = 0
        self._earlier = asyncio.Event()

    def hold(self, pop: HeldPop) -> bool:
        """Hold a pop; False if too many of its group wait already."""
        held = self._held.setdefault((pop.header.group, pop.header.topic), [])
        if len(held) >= MAX_HELD_PER_GROUP:
            return False
        held.append(pop)
        self._statistics.held_pops += 1
        self._note(pop.look_ms)
        return True

    def on_append(self, append: Append) -> None:
        """Look at the pops of a topic that got messages."""
        # After this iteration, as held pulls: producers get their replies first.
        topic, is_retry = append.log.topic, append.log.topic.startswith(RETRY_PREFIX)
        for key in self._held:
            if key[1] == topic or (is_retry and topic == real_topic(key[1], key[0], RETRIES)):
                self.wake(key, ANY_QUEUE if is_retry else append.log.queue_id)

    def wake_readers(self, queue: OffsetKey) -> None:
        """Look at the pops of a group that may get messages of a queue soon: it was changed."""
        group, topic, queue_id = queue
        self.wake((group, topic), queue_id)
        prefix = real_topic("", group, RETRIES)
        if topic.startswith(prefix):  # every pop of the topic itself looks into it
            self.wake((group, topic.removeprefix(prefix)))

    def wake(self, key: PopKey, queue_id: int = ANY_QUEUE) -> None:
        """Look at the pops of a queue of a group soon: it was changed.

        Args: queue_id: default all queues of the topic.
        """
        if key not in self._held:
            return
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._look_at_woken)
        self._woken.setdefault(key, set()).add(queue_id)

    def note_lease(self, key: PopKey, until_ms: int) -> None:
        """Look at the pops of a group when a lease of it ends."""
        for pop in self._held.get(key, ()):
            pop.look_ms = min(pop.look_ms, until_ms)
        if key in self._held:
            self._note(until_ms)

    def wake_topic(self, topic: str) -> None:
        """Look at all pops of a topic that was deleted."""
        for key in self._held:
            if key[1] == topic:
                self.wake(key)

    def disconnect(self, connection: BrokerConnection) -> None:
        """Drop the pops of a closed connection."""
        for key in list(self._held):
            self._keep(key, [pop for pop in self._held[key] if pop.connection is not connection])

    async def round(self) -> None:
        """Look at the pops whose time has come, and wait for the next time."""
        now_ms = self._steady.ms()
        for key, pops in list(self._held.items()):
            if any(pop.look_ms <= now_ms for pop in pops):
                self._look_at(key, lambda pop: pop.look_ms <= now_ms)
        times = [pop.look_ms for pops in self._held.values() for pop in pops]
        now_ms = self._steady.ms()
        self._next_look_ms = min(times, default=now_ms + _IDLE_MS)
        self._earlier.clear()
        await wait_until_set(self._earlier, self._clock, max(self._next_look_ms - now_ms, 1))

    def _note(self, look_ms: int) -> None:
        if look_ms < self._next_look_ms:
            self._earlier.set()

    def _look_at_woken(self) -> None:
        woken, self._woken = self._woken, {}
        for key, queues in woken.items():
            self._look_at(key, partial(_waits_for, queues))

    def _look_at(self, key: PopKey, is_meant: Callable[[HeldPop], bool]) -> None:
        pops = self._held.get(key, [])
        # One after the other, in the order of their arrival: each may take what the next one waits
        # for. None is held or dropped meanwhile, as nothing of this waits.
        self._keep(key, [pop for pop in pops if not is_meant(pop) or not self._look(pop)])

    def _keep(self, key: PopKey, kept: list[HeldPop]) -> None:
        self._statistics.held_pops -= len(self._held.get(key, ())) - len(kept)
        if kept:
            self._held[key] = kept
            self._note(min(pop.look_ms for pop in kept))
        else:
            self._held.pop(key, None)


def _waits_for(queues: set[int], pop: HeldPop) -> bool:
    wanted = pop.header.queue_id
    return wanted == ANY_QUEUE or ANY_QUEUE in queues or wanted in queues
