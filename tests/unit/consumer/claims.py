"""Claims of a queue step by step, where a test has no dispatcher to make them."""

from __future__ import annotations

from enum import Enum

from ordermq.consumer.queue.assigned_queue import AssignedQueue, BatchClaim
from ordermq.core import status


class NotClaimed(Enum):
    """Reasons why a queue hands out no batch; each leaves the dispatch flag cleared."""

    EMPTY = status.CLAIM_EMPTY
    REVOKED = status.CLAIM_REVOKED
    PAUSED = status.CLAIM_PAUSED
    LEASE_LOST = status.CLAIM_LEASE_LOST


def begin_batch(assigned: AssignedQueue, limit: int, now_ms: int) -> BatchClaim | NotClaimed:
    """Claim the next messages, as a run does; see `claim`."""
    claim, flags = assigned.claim(limit, now_ms)
    if flags & status.LEASE_OVER:
        assigned.follow(flags)
    return claim if isinstance(claim, BatchClaim) else NotClaimed(claim)


def has_more(assigned: AssignedQueue) -> bool:
    """End a run; True if the queue must be submitted again, False clears the dispatch flag."""
    flags = assigned.end_run()
    assigned.follow(flags)
    return bool(flags & status.DISPATCH)
