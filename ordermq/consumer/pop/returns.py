"""Gives back what a member has popped and does not consume (docs/internals/semantics.md#pop)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from ordermq.client.session import ClientSession
from ordermq.clock import growing_pause_ms
from ordermq.config import PopConfig
from ordermq.consumer.pop.popped_batch import PoppedBatch
from ordermq.errors import Fenced, OrderMQError, RemotingError, RouteError

_FIRST_PAUSE_MS = 20  # nobody has the messages meanwhile
_LONGEST_PAUSE_MS = 1_000


class MembersEnd(Protocol):
    """The end of a member, as of `client.runtime.Shutdown`."""

    @property
    def is_late(self) -> bool:
        """True once a member that leaves waits no longer."""

    async def unless_hurried(self, work: Awaitable[object]) -> bool:
        """Do a part of the end; False if it took too long, or nobody waits any more."""


class Returns:
    """Ends leases before their time, again and again until the broker has heard of it.

    Args:
        end: of the member; once it is late nothing is repeated.
    """

    def __init__(self, client: ClientSession, config: PopConfig, end: MembersEnd) -> None:
        self._client = client
        self._life_ms = config.pop_invisible_ms
        self.end = end

    async def give_back(
        self, batch: PoppedBatch, end_lease: Callable[[int], Awaitable[None]]
    ) -> None:
        """Let others have what is not acknowledged of a batch; a failure is logged.

        Args: end_lease: ends the lease of the message at an offset.
        """
        clock, pause_ms = self._client.clock, _FIRST_PAUSE_MS
        # A broker that held the pop counts from a later time, but soon enough it ends by itself.
        end_ms = batch.asked_ms + self._life_ms
        while (failure := await self._try(batch, end_lease)) is not None:
            self._client.report_failure(batch.queue.broker_name, "give a batch back", failure)
            if (
                self.end.is_late
                or not self._client.routes.has_master(batch.queue.broker_name)
                or clock.now_ms() + pause_ms >= end_ms
            ):
                return
            self._client.doubt_route(batch.topic)
            await clock.sleep_ms(pause_ms)
            pause_ms = growing_pause_ms(pause_ms, 1, _LONGEST_PAUSE_MS)

    async def _try(
        self, batch: PoppedBatch, end_lease: Callable[[int], Awaitable[None]]
    ) -> OrderMQError | None:
        """Ask for each message once; return a failure."""
        failure: OrderMQError | None = None
        async with batch.turn:
            left = batch.unacknowledged(batch.end)
            # Each has a time of its own; in order the queue is blocked until the last of them.
            outcomes = await asyncio.gather(*map(end_lease, left), return_exceptions=True)
        for offset, outcome in zip(left, outcomes, strict=True):
            if outcome is None or isinstance(outcome, Fenced):
                batch.returned.add(offset)  # if fenced, others have it already
            elif isinstance(outcome, RemotingError | RouteError):
                failure = outcome
            else:
                raise outcome
        return failure
