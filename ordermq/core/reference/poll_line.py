"""The line of queues that wait for pollers, as a deque and a dict."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ordermq.core.reference.assigned_queue import Claim
from ordermq.core.reference.message_codec import MessageRun
from ordermq.core.status import CLAIM_ALONE, CLAIM_SHARED, COUNTS, DISPATCH


class PolledRun(MessageRun):
    """See contract.PolledRun."""

    __slots__ = ("assigned", "claim", "next_offset", "settle", "thread")

    def __init__(
        self,
        segments: Sequence[tuple[Any, int, int]],
        next_offset: int,
        assigned: Any = None,
        claim: Any = None,
        settle: Any = None,
    ) -> None:
        super().__init__(segments)
        self.next_offset = next_offset
        self.assigned = assigned
        self.claim = claim
        self.settle = settle
        self.thread = threading.get_ident()


class PollLine:
    """See contract.PollLine."""

    def __init__(
        self,
        ready: deque[Any],
        out: dict[Hashable, Any],
        *,
        is_ordered: bool,
        settle: Callable[..., Any] | None,
    ) -> None:
        self._ready = ready
        self._out = out
        self._is_ordered = is_ordered
        self._settle = settle
        self._follows: list[tuple[Any, int]] = []
        self._polled = 0
        self._finished: dict[Any, tuple[int, int]] = {}

    @property
    def follows(self) -> list[tuple[Any, int]]:
        return self._follows

    def take(self, kind: type, poller: Hashable, limit: int, now_ms: int) -> Any:
        # First: in order, this may be what makes the poller's own queue ready again.
        self.end(poller, now_ms)
        while self._ready:
            assigned = self._ready.popleft()
            claim_kind = CLAIM_ALONE if self._is_ordered else CLAIM_SHARED
            claim, flags = assigned.claim(limit, now_ms, kind=claim_kind)
            self._note(assigned, flags & ~DISPATCH)
            # A queue in the line may have been paused, moved or lost since; it has left the line.
            if isinstance(claim, Claim):
                # In order, the queue has its next turn when this batch has ended.
                if flags & DISPATCH:
                    self._ready.append(assigned)
                return self._handed_out(kind, poller, assigned, claim)
        return None

    def _handed_out(self, kind: type, poller: Hashable, assigned: Any, claim: Claim) -> Any:
        run = claim.messages
        next_offset = assigned.position
        if assigned.generation != claim.generation:  # a seek came between
            next_offset = run.last_offset + 1
        batch = kind(run.segments, next_offset, assigned, claim, self._settle)
        self._out[poller] = batch
        self._polled += len(run)
        return batch

    def end(self, poller: Hashable, now_ms: int) -> None:
        batch = self._out.pop(poller, None)
        if batch is None:
            return
        assigned, claim = batch.assigned, batch.claim
        if not self._is_ordered:
            flags = assigned.finish_offsets(claim, claim.messages.offsets(), leaves=False)
        else:
            flags = assigned.settle(claim, len(batch), now_ms)
            if flags & COUNTS:
                calls, messages = self._finished.get(assigned, (0, 0))
                self._finished[assigned] = calls + 1, messages + len(batch)
                flags |= assigned.end_run()
                if flags & DISPATCH:
                    self._ready.append(assigned)
        self._note(assigned, flags & ~(COUNTS | DISPATCH))

    def _note(self, assigned: Any, flags: int) -> None:
        if flags:
            self._follows.append((assigned, flags))

    def take_counts(self) -> tuple[int, list[tuple[Any, int, int]]]:
        polled, finished = self._polled, self._finished
        self._polled, self._finished = 0, {}
        return polled, [(assigned, *counts) for assigned, counts in finished.items()]
