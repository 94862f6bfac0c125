"""What an admin tool asks a lite pull consumer through the broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ordermq.client.session import ClientSession
from ordermq.consumer.group.admin_requests import Answers
from ordermq.consumer.queue.poll_buffer import PollBuffer, PulledQueue
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription


class LiteInquiries(Answers):
    """Answers for one lite pull consumer; on the I/O thread.

    Args:
        last_pull_ms: when a queue was last pulled, ms since 1970; 0 if not yet.
        seek: lets a queue go on from an offset.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        subscriptions: Callable[[], Sequence[Subscription]],
        buffer: PollBuffer,
        statistics: ConsumerStatistics,
        *,
        last_pull_ms: Callable[[MessageQueue], int],
        seek: Callable[[MessageQueue, int], None],
    ) -> None:
        super().__init__(
            client,
            group,
            subscriptions,
            statistics,
            consume_type="CONSUME_ACTIVELY",
            is_orderly=False,
            thread_count=0,
            last_pull_ms=last_pull_ms,
        )
        self._buffer = buffer
        self._seek = seek

    def _done_offsets(self) -> dict[MessageQueue, int]:
        return {pulled.queue: pulled.done for pulled in self._buffer.held()}

    def _queue_infos(self) -> dict[MessageQueue, dict[str, Any]]:
        return {pulled.queue: self._queue_info(pulled) for pulled in self._buffer.held()}

    def _queue_info(self, pulled: PulledQueue) -> dict[str, Any]:
        """Java's ProcessQueueInfo; "transaction" is what pollers have in their hands."""
        is_out = pulled.done < pulled.position
        return {
            "cachedMsgCount": pulled.count,
            "cachedMsgMaxOffset": max(pulled.pull_offset - 1, 0) if pulled.count else 0,
            "cachedMsgMinOffset": pulled.position if pulled.count else 0,
            "cachedMsgSizeInMiB": pulled.size_bytes >> 20,
            "commitOffset": pulled.committed or 0,
            "droped": not pulled.is_held,
            "lastConsumeTimestamp": self._started_ms,
            "lastLockTimestamp": 0,
            "lastPullTimestamp": self._last_pull_ms(pulled.queue),
            "locked": False,
            "transactionMsgCount": pulled.position - pulled.done if is_out else 0,
            "transactionMsgMaxOffset": pulled.position - 1 if is_out else 0,
            "transactionMsgMinOffset": pulled.done if is_out else 0,
            "tryUnlockTimes": 0,
        }

    def _go_on(self, offsets: dict[MessageQueue, int]) -> None:
        for pulled in self._buffer.held():
            if pulled.queue in offsets:
                self._seek(pulled.queue, offsets[pulled.queue])
