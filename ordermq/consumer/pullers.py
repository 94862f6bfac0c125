"""The pull loops of a member, one a queue that is ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ordermq.client.runtime import cancelled
from ordermq.client.session import ClientSession
from ordermq.config import PullConfig
from ordermq.consumer.fetch.fetcher import Puller
from ordermq.consumer.offsets.local_offsets import LocalOffsets
from ordermq.consumer.offsets.offset_store import Offsets
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.consumer.queue.receiver import Receiver
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription


class Pullers:
    """Begins, ends and changes pull loops; on the I/O thread.

    Args:
        before_first: awaited before the first pull of a queue.
        keep_running: runs a loop until it ends by itself, whatever goes wrong in it.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        config: PullConfig,
        offsets: Offsets | LocalOffsets,
        receiver: Receiver[Any],
        statistics: ConsumerStatistics,
        *,
        before_first: Callable[[MessageQueue], Awaitable[None]],
        keep_running: Callable[[Callable[[], Awaitable[None]], str], Awaitable[None]],
    ) -> None:
        self._client = client
        self._group = group
        self._config = config
        self._offsets = offsets
        self._receiver = receiver
        self._statistics = statistics
        self._before_first = before_first
        self._keep_running = keep_running
        self._running: dict[MessageQueue, tuple[Puller, asyncio.Task[None]]] = {}

    def begin(self, assigned: AssignedQueue, subscription: Subscription) -> None:
        """A queue became ours."""
        puller = Puller(
            self._client,
            self._group,
            self._config,
            assigned,
            subscription,
            self._offsets,
            self._receiver,
            self._statistics,
        )
        self._running[assigned.queue] = (
            puller,
            self._spawn(assigned.queue, self._first(assigned.queue, puller)),
        )
        self._divide(assigned.queue.topic)

    def end(self, assigned: AssignedQueue) -> None:
        """A queue is no longer ours."""
        _, task = self._running.pop(assigned.queue)
        task.cancel()
        self._divide(assigned.queue.topic)

    def nudge(self, assigned: AssignedQueue) -> None:
        """There is room in a queue's buffer again."""
        found = self._running.get(assigned.queue)
        if found is not None:
            found[0].nudge()

    def nudge_all(self) -> None:
        """A broker is back: end the pauses after errors."""
        for puller, _ in self._running.values():
            puller.nudge()

    def pull_anew(self, assigned: AssignedQueue) -> None:
        """A queue's offset has changed: the broker may hold the pull at the old one for long."""
        self._begin_again(assigned.queue)

    def subscribe(self, subscription: Subscription) -> None:
        """Pull a topic by another expression; what is buffered stays."""
        for queue, (puller, _) in list(self._running.items()):
            if queue.topic == subscription.topic:
                puller.subscribe(subscription)
                self._begin_again(queue)

    def last_pull_ms(self, queue: MessageQueue) -> int:
        """When a queue was last pulled, since 1970; 0 if not yet."""
        found = self._running.get(queue)
        return 0 if found is None else found[0].last_pull_ms

    async def close(self) -> None:
        """End every loop."""
        await cancelled(*(task for _, task in self._running.values()))

    def _divide(self, topic: str) -> None:
        """Share the thresholds of a topic among its queues
        (docs/internals/semantics.md#pull-loop)."""
        pullers = [puller for queue, (puller, _) in self._running.items() if queue.topic == topic]
        for puller in pullers:
            puller.configure(self._config.for_one_of(len(pullers)))

    def _begin_again(self, queue: MessageQueue) -> None:
        found = self._running.get(queue)
        if found is None or found[0].last_pull_ms == 0:
            return  # the first pull is still to come
        puller, task = found
        task.cancel()
        self._running[queue] = puller, self._spawn(queue, self._loop(queue, puller))

    async def _first(self, queue: MessageQueue, puller: Puller) -> None:
        await self._before_first(queue)
        await self._loop(queue, puller)

    async def _loop(self, queue: MessageQueue, puller: Puller) -> None:
        await self._receiver.prepare(puller.assigned)
        await self._keep_running(puller.run, f"pull {queue}")

    def _spawn(self, queue: MessageQueue, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._client.runtime.spawn(work, f"pull {queue} {self._group}")
