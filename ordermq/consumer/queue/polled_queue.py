"""Polled queue: an assigned queue that waits for pollers, and the room it shares with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ordermq import core
from ordermq.config import PullConfig
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    FillPermit,
    Pause,
    QueueCallbacks,
    QueueState,
)
from ordermq.consumer.queue.receiver import FillLimits, Flow
from ordermq.core import status
from ordermq.leases.lease import Lease
from ordermq.model.message_queue import MessageQueue


class PolledQueue(AssignedQueue):
    """An assigned queue whose messages are polled.

    Args:
        is_ordered: one batch is out at a time, and a revocation waits for its end. Else many may
            be, and a revocation waits for none: what is not done is redelivered anyway.
        on_change: called after the queue was resumed, moved or given up.
    """

    def __init__(
        self,
        queue: MessageQueue,
        group: str,
        lease: Lease,
        start_offset: int,
        callbacks: QueueCallbacks,
        *,
        is_ordered: bool,
        on_change: Callable[[PolledQueue], None],
    ) -> None:
        super().__init__(queue, group, lease, start_offset, callbacks, counts_running=is_ordered)
        self._is_ordered = is_ordered
        self._on_change = on_change
        self._permit: FillPermit | None = None  # the last one

    def permit(self, generation: int, permit: FillPermit) -> bool:
        # Kept first: a pause that comes between finds it, or is found here.
        self._permit = permit
        if not super().permit(generation, permit):
            return False
        if self.is_paused:
            permit.forbid()
            return False
        return True

    def pause_for(self, reasons: int, *, ends_run: bool = False) -> None:
        """Claim nothing until each reason is ended, and buffer nothing."""
        super().pause_for(reasons, ends_run=ends_run)
        if (permit := self._permit) is not None:
            permit.forbid()

    def has_more(self) -> bool:
        """Return True if the queue has another turn at once; False clears the dispatch flag."""
        flags = self.end_run()
        self.follow(flags)
        return bool(flags & status.DISPATCH)

    def repair(self, held: Sequence[BatchClaim]) -> bool:
        """Make pending again what was taken and no poller has, after an exception in a poll.

        Args: held: the claims that pollers have.
        Returns: True if the caller must submit the queue, which may be in the line already.
        """
        known = {offset for claim in held for offset in claim.messages.offsets()}
        buffered = self.process_queue
        first, last = buffered.first_consuming, buffered.last_consuming
        if first >= 0:
            buffered.make_again([each for each in range(first, last + 1) if each not in known])
        flags = self.recount(len(held) if self._is_ordered else 0)
        self.follow(flags)
        return bool(flags & status.DISPATCH)

    def notify_room(self) -> None:
        """Let the fetcher look again."""
        self._on_room(self)

    def resume(self, by: Pause = Pause.USER) -> bool:
        submits = super().resume(by)
        self._on_change(self)
        return submits

    def reposition(self, generation: int, offset: int) -> bool:
        moved = super().reposition(generation, offset)
        self._on_change(self)
        return moved

    def discard(self) -> None:
        super().discard()
        self._on_change(self)


class PollRoom:
    """The queues of a poll buffer, and the room that they share; under the lock of the buffer.

    Args: threshold: messages buffered of all queues; pulling pauses above it.
    Attributes:
        queues: all that the consumer holds.
        waiting: those that were told to wait for room, each with its own thresholds.
    """

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._shared: core.contract.SharedRoom | None = None  # with the pull engine
        self.queues: set[PolledQueue] = set()
        self.waiting: dict[PolledQueue, PullConfig] = {}

    def flow(self, assigned: PolledQueue, config: PullConfig) -> Flow:
        """Decide whether to pull; see `Receiver.flow`."""
        if self._has_room(assigned, config, self._count()):
            self.waiting.pop(assigned, None)
            return Flow.PULL
        self.waiting[assigned] = config
        return Flow.WAIT_FOR_ROOM

    def share_with_engine(self) -> None:
        """Have the pull engine count what it buffers; before the first queue is assigned."""
        self._shared = core.SharedRoom(self._threshold)

    def limits(self, config: PullConfig) -> FillLimits:
        """Return the limits that `flow` keeps, for the pull engine."""
        return FillLimits(
            False,
            config.pull_threshold_for_queue,
            config.pull_threshold_size_for_queue_mib << 20,
            counts_pending=True,
            room=self._shared,
        )

    def notify(self) -> None:
        """Let those pull that wait and have room now."""
        # Summed once for all of them: a consumer of many queues has many that wait.
        count = self._count()
        for assigned, config in list(self.waiting.items()):
            if self._has_room(assigned, config, count):
                del self.waiting[assigned]
                assigned.notify_room()

    def changed(self, assigned: PolledQueue) -> None:
        """Look again after a queue was resumed, moved or given up."""
        if assigned.state is QueueState.GONE:
            self.queues.discard(assigned)
            self.waiting.pop(assigned, None)
        if self.waiting:
            self.notify()

    def _count(self) -> int:
        if self._shared is not None:
            return self._shared.pending
        # Summed when asked for, not kept: queues drop their messages under their own lock, in which
        # the lock of the buffer may not be taken.
        return sum(queue.process_queue.pending_count for queue in self.queues)

    def _has_room(self, assigned: PolledQueue, config: PullConfig, count: int) -> bool:
        buffered = assigned.process_queue
        return (
            not assigned.is_paused
            and buffered.pending_count <= config.pull_threshold_for_queue
            and buffered.size_bytes <= config.pull_threshold_size_for_queue_mib << 20
            and count <= self._threshold
        )

    def _check(self) -> None:
        """Assert that nobody waits in vain; for tests, as `PollBuffer._check`."""
        count = self._count()
        for queue, config in self.waiting.items():
            assert not self._has_room(queue, config, count)
