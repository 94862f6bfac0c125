"""Poll receiver: fills the poll buffer of a lite pull consumer, as its member asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ordermq.clock import Clock
from ordermq.config import PullConfig
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueCallbacks
from ordermq.consumer.queue.poll_buffer import PollBuffer
from ordermq.consumer.queue.polled_queue import PolledQueue
from ordermq.consumer.queue.receiver import DirectResult, FillLimits, Flow, Loop, ReadyQueues
from ordermq.errors import StateError
from ordermq.leases.lease import Lease
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.supervisor import every

_WATCH_INTERVAL_MS = 1_000  # a thread that ended with a batch holds its queue's commits so long


class PollReceiver:
    """Gives a poll buffer its queues, and tells their fetchers when to pull; fulfils `Receiver`."""

    def __init__(self, clock: Clock, group: str, buffer: PollBuffer) -> None:
        self._clock = clock
        self._group = group
        self._buffer = buffer
        self.is_ordered = buffer.is_ordered

    def make_queue(
        self, queue: MessageQueue, lease: Lease, offset: int, callbacks: QueueCallbacks
    ) -> PolledQueue:
        assigned = PolledQueue(
            queue,
            self._group,
            lease,
            offset,
            callbacks,
            is_ordered=self.is_ordered,
            on_change=self._on_change,
        )
        with self._buffer.lock:
            self._buffer.room.queues.add(assigned)
        return assigned

    def _on_change(self, assigned: PolledQueue) -> None:
        with self._buffer.lock:
            self._buffer.room.changed(assigned)

    async def prepare(self, assigned: PolledQueue) -> None:
        """Nothing to prepare."""

    def flow(self, assigned: PolledQueue, config: PullConfig) -> Flow:
        with self._buffer.lock:
            return self._buffer.room.flow(assigned, config)

    def fill_limits(self, config: PullConfig) -> FillLimits:
        return self._buffer.room.limits(config)

    def submit(self, assigned: PolledQueue) -> None:
        self._buffer.submit(assigned)

    def take_from(self, ready: ReadyQueues) -> None:
        # Pollers need not look for those queues: what none of them takes is submitted.
        self._buffer.room.share_with_engine()

    def unpark(self, assigned: PolledQueue, key: bytes) -> bool:
        return False

    async def consume_directly(
        self, batch: MessageBatch, assigned: PolledQueue | None
    ) -> DirectResult:
        raise StateError(
            "a lite pull consumer has no listener: seek, or send the message again",
            group=self._group,
        )

    def loops(self, assigned: Callable[[], Sequence[AssignedQueue]]) -> Sequence[Loop]:
        return [("pollers", every(self._clock, _WATCH_INTERVAL_MS, self._buffer.watch))]

    def calls_from_here(self) -> bool:
        """No thread is the member's: batches are given back by the one that closes."""
        return False

    def resize(self, size: int) -> None:
        """The caller's threads poll: there are none to resize."""

    def close(self, timeout_s: float) -> bool:
        """End nothing: the caller's threads are its own."""
        return True
