"""The right to work a queue, and how long it lasts
(docs/internals/semantics.md#leases-and-renewal, docs/internals/semantics.md#fencing)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work a queue: an epoch and an end on the monotonic clock.

    Args:
        epoch: grows with each change of owner; the fence token's first half.
        deadline_ms: counted from the *send* of the granting request
        (docs/internals/semantics.md#leases-and-renewal).
        is_fenced: the broker knows epochs and refuses commits of older ones.
    """

    epoch: int
    deadline_ms: int
    is_fenced: bool

    def is_valid(self, now_ms: int) -> bool:
        return now_ms < self.deadline_ms

    @property
    def wire_epoch(self) -> int:
        """The epoch a request carries: 0 to a broker that knows none."""
        return self.epoch if self.is_fenced else 0

    @property
    def is_lock(self) -> bool:
        """A broker granted it; False for a queue held without a lock."""
        return self.epoch > 0


UNLOCKED = Lease(epoch=0, deadline_ms=1 << 62, is_fenced=False)  # no lock is ever epoch 0
