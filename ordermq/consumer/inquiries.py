"""What an admin tool asks a member of a group beside what it asks any consumer
(docs/internals/protocol.md#requests-to-consumers).

| request | what becomes of it |
|---|---|
| 309 CONSUME_MESSAGE_DIRECTLY | concurrent: consumed, and what came of it; orderly: refused |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ordermq.client.connections import Answer
from ordermq.client.session import ClientSession
from ordermq.consumer.direct import DirectConsumption
from ordermq.consumer.group.admin_requests import Answers
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueState
from ordermq.consumer.queue.receiver import Receiver
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command


class Inquiries(Answers):
    """Answers for one member; on the I/O thread.

    Args:
        receiver: consumes the single messages of request 309, or refuses.
        thread_count: of the worker pool, for the tool to print.
        assigned: our queues.
        last_pull_ms: when a queue was last pulled, ms since 1970; 0 if not yet.
        seek: lets a queue go on from an offset.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        subscriptions: Callable[[], Sequence[Subscription]],
        statistics: ConsumerStatistics,
        *,
        receiver: Receiver[Any],
        thread_count: int,
        assigned: Callable[[], list[AssignedQueue]],
        last_pull_ms: Callable[[MessageQueue], int],
        seek: Callable[[AssignedQueue, int], object],
    ) -> None:
        super().__init__(
            client,
            group,
            subscriptions,
            statistics,
            consume_type="CONSUME_PASSIVELY",
            is_orderly=receiver.is_ordered,
            thread_count=thread_count,
            last_pull_ms=last_pull_ms,
        )
        self._served[RequestCode.CONSUME_MESSAGE_DIRECTLY] = self._consume_directly
        self._direct = DirectConsumption(client, receiver)
        self._assigned = assigned
        self._seek = seek
        self._lapsed_ms: dict[MessageQueue, int] = {}

    def on_lease_lost(self, queue: MessageQueue) -> None:
        """A queue's lease was lost just now; any thread."""
        self._lapsed_ms[queue] = self._client.clock.wall_ms()

    def _consume_directly(self, request: Command) -> Answer:
        return self._client.runtime.spawn(self._direct.answer(request), "consume directly")

    def _done_offsets(self) -> dict[MessageQueue, int]:
        return {assigned.queue: assigned.done_offset for assigned in self._assigned()}

    def _queue_infos(self) -> dict[MessageQueue, dict[str, Any]]:
        return {assigned.queue: self._queue_info(assigned) for assigned in self._assigned()}

    def _queue_info(self, assigned: AssignedQueue) -> dict[str, Any]:
        """Java's ProcessQueueInfo; "transaction" is what has been handed to a listener."""
        buffered, now_ms = assigned.process_queue, self._client.clock.wall_ms()
        smallest = [n for n in (buffered.first_pending, buffered.first_consuming) if n >= 0]
        lease = assigned.lease
        claimed_ms = assigned.last_claim_ms
        idle_ms = self._client.clock.now_ms() - claimed_ms
        return {
            "cachedMsgCount": buffered.message_count,
            "cachedMsgMaxOffset": buffered.max_offset if smallest else 0,
            "cachedMsgMinOffset": min(smallest, default=0),
            "cachedMsgSizeInMiB": buffered.size_bytes >> 20,
            "commitOffset": assigned.committed_offset,
            "droped": assigned.state is not QueueState.ACTIVE,
            "lastConsumeTimestamp": self._started_ms if claimed_ms < 0 else now_ms - idle_ms,
            # When we last knew it to be ours: the tool prints how long that is ago.
            "lastLockTimestamp": now_ms if lease else self._lapsed_ms.get(assigned.queue, 0),
            "lastPullTimestamp": self._last_pull_ms(assigned.queue),
            "locked": lease is not None and lease.is_lock,
            "transactionMsgCount": buffered.consuming_count,
            "transactionMsgMaxOffset": max(buffered.last_consuming, 0),
            "transactionMsgMinOffset": max(buffered.first_consuming, 0),
            "tryUnlockTimes": 0,
        }

    def _go_on(self, offsets: dict[MessageQueue, int]) -> None:
        for assigned in self._assigned():
            if assigned.queue in offsets:
                self._seek(assigned, offsets[assigned.queue])
