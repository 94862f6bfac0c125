"""Leases of queue locks: how long a grant is trusted, and when it is renewed
(docs/internals/semantics.md#leases-and-renewal)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ordermq.config import LeaseConfig
from ordermq.errors import StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.value import Value

LONG_WAIT_MS = 5_000  # whoever waits for locks says so then, once


class Lease(NamedTuple):
    """The right to consume a queue: an epoch, and a deadline on the monotonic clock.

    Args:
        epoch: grows with each change of owner; the first half of the fence token. 0 until it is
            known.
        deadline_ms: counted from the *send* of the request that was granted: the broker counts
            from its receipt, which is later (docs/internals/semantics.md#leases-and-renewal).
        is_fenced: the broker knows epochs and refuses commits of older ones.
        token_problem: why the epoch must not fence the user's writes, and what to do; empty where
            it may.
    """

    epoch: int
    deadline_ms: int
    is_fenced: bool
    token_problem: str = ""

    def is_valid(self, now_ms: int) -> bool:
        return now_ms < self.deadline_ms

    @property
    def wire_epoch(self) -> int:
        """The epoch to put into requests: 0 for a broker that knows none."""
        return self.epoch if self.is_fenced else 0

    @property
    def is_lock(self) -> bool:
        """True if a broker granted it; False for a queue that is held without a lock."""
        return self.epoch > 0

    def fence_epoch(self, queue: MessageQueue) -> int:
        """Return the epoch for conditional writes of the user's own.

        Raises: StateError: it would fence nobody; says why, and what to do.
        """
        if self.token_problem:
            raise StateError(
                f"there is no fence token: {self.token_problem}",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
            )
        return self.epoch


UNLOCKED = Lease(
    epoch=0,  # brokers start at epoch 1
    deadline_ms=1 << 62,
    is_fenced=False,
    token_problem="this consumer holds no queue locks, so nothing fences its members; use an "
    "orderly listener of a clustering group, or LitePullConsumer(ordered=True), where a late "
    "writer must be refused",
)


class LeaseTimes(Value):
    """Times of a lease: its life, the margin before its end, and the renewal interval."""

    duration_ms: int
    margin_ms: int
    renew_ms: int

    @classmethod
    def of_life(cls, duration_ms: int, config: LeaseConfig) -> LeaseTimes:
        """A third of a given life, for the reason below."""
        margin_ms = min(config.lease_margin_ms, duration_ms // 5)
        return cls(duration_ms, margin_ms, max(duration_ms // 3, 1))

    @classmethod
    def of(cls, config: LeaseConfig, broker_lease_ms: int | None) -> LeaseTimes:
        """Half of the broker's own time, renewed at a third of that; at most the configured ones.

        Java's 60:30 s is the first of these ratios: a client stops long before another may start.
        """
        # The embedded broker says how long its locks live; RocketMQ's do not, and keep theirs for
        # 60 s unless configured otherwise.
        duration_ms = config.lock_max_live_ms
        if broker_lease_ms:
            duration_ms = min(duration_ms, broker_lease_ms // 2)
        # A third of the lease, where Java takes two thirds: the margin leaves at least four
        # fifths of it, so a second renewal is due before the end even if the first is late by
        # the whole interval. Two thirds left 0.2 s for a renewal of a 3 s lock, and a machine
        # with two busy cores lost leases by that.
        renew_ms = max(min(config.lock_interval_ms, duration_ms // 3), 1)
        return cls(duration_ms, min(config.lease_margin_ms, duration_ms // 5), renew_ms)

    @property
    def retry_ms(self) -> int:
        """Longest pause after a failed renewal; with the interval, it bounds the requests."""
        return max(self.renew_ms // 10, 1)

    def pause_ms(self, deadlines_ms: Iterable[int], now_ms: int, retry_ms: int) -> int:
        """Return the time until the next renewal.

        Args:
            deadlines_ms: of the leases that must be renewed.
            retry_ms: the pause after a failed renewal, at most `self.retry_ms`.
        """
        oldest_ms = min(deadlines_ms, default=None)
        if oldest_ms is None:
            return self.renew_ms
        # Counted from the send of the request that was granted, so a late answer shortens the
        # pause. A lease that is due although it was just to be renewed tells that this failed.
        due_ms = self.due_ms(oldest_ms)
        if due_ms <= now_ms:
            return min(retry_ms, self.retry_ms)
        return min(due_ms - now_ms, self.renew_ms)

    def lease(self, epoch: int, sent_ms: int) -> Lease:
        """The lease a grant gives, counted from the send of its request.

        Args:
            epoch: the broker's; 0 from one without epochs.
        """
        return Lease(epoch, self.deadline_ms(sent_ms), is_fenced=epoch > 0)

    def deadline_ms(self, sent_ms: int) -> int:
        """Return the end of a lease by the send of its request, or of its last renewal."""
        return sent_ms + self.duration_ms - self.margin_ms

    def due_ms(self, deadline_ms: int) -> int:
        """Return when a lease must be renewed, by its end."""
        return deadline_ms - (self.duration_ms - self.margin_ms) + self.renew_ms
