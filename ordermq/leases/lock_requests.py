"""Lock and unlock requests of one client id, one at a time per broker
(docs/internals/semantics.md#leases-and-renewal)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from ordermq.client.broker_api import BrokerApi
from ordermq.client.session import ClientSession
from ordermq.config import LeaseConfig
from ordermq.leases.lease import Lease, LeaseTimes
from ordermq.model.message_queue import MessageQueue
from ordermq.value import Value


class Granted(Value):
    """Leases of the queues that a broker granted, as far as it was asked for them.

    Args:
        sent_ms: when the request was sent, on the monotonic clock; the leases count from it.
        losses: of connections, before it was sent.
        leases: under epoch 0 where the broker has none, which needs one of `LockEpochs`.
    """

    sent_ms: int
    losses: int
    leases: dict[MessageQueue, Lease]


class LockRequests:
    """Asks brokers for the queue locks of one client id, and gives them back; on the I/O thread.

    A renewal that overtakes an unlock, or is sent at the same time, would take the lock again for
    a queue that was given up, and the next owner would wait until it expires. So each broker has
    one request at a time.

    Args:
        api: of the client id that holds the locks; None for the session's own.
        on_times: called when a broker's lock time changes the times of the leases.

    Attributes:
        times: of the leases that are granted from now on.
        losses: of connections that may have carried grants. Of any broker: one grant asked for
            again costs less than to tell them apart.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        config: LeaseConfig,
        *,
        api: BrokerApi | None = None,
        on_times: Callable[[], None] = lambda: None,
    ) -> None:
        self.times = LeaseTimes.of(config, None)
        self.losses = 0
        self._client = client
        self._group = group
        self._config = config
        self._api = api or client.api
        self._on_times = on_times
        self._turn_of: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def note_loss(self) -> None:
        """Note that a connection is lost, or a broker's master is another one."""
        self.losses += 1

    def is_doubtful(self, losses: int) -> bool:
        """Return True if a broker may have forgotten what it granted after `losses`."""
        return losses != self.losses

    def turn(self, broker: str) -> asyncio.Lock:
        """Return what a request to the broker holds from its send to its answer."""
        return self._turn_of[broker]

    async def lock(
        self, broker: str, queues: Callable[[], Sequence[MessageQueue]]
    ) -> Granted | None:
        """Ask for locks, or renew them, when it is this request's turn.

        Args:
            queues: returns those to ask for, read only in the turn: an unlock may have been sent
                before.
        Returns: None if there is nothing to ask for any more. Act on it before anything else is
            awaited: who waits for the turn reads the leases next.
        Raises: RemotingError, RouteError: nothing was granted that is known.
        """
        async with self._turn_of[broker]:
            wanted = queues()
            if not wanted:
                return None
            address = self._client.routes.master_of(broker)
            # Before the send: the broker counts from the arrival, so this side stops first.
            sent_ms, losses = self._client.clock.now_ms(), self.losses
            # An attempt without an answer must leave time for another before the lease ends.
            answer = await self._api.lock(address, self._group, wanted, self.times.renew_ms)
        # The embedded broker says how long its locks live.
        times = LeaseTimes.of(self._config, answer.lease_ms)
        if times != self.times:
            self.times = times
            self._on_times()
        leases = {queue: times.lease(epoch, sent_ms) for queue, epoch in answer.granted.items()}
        return Granted(sent_ms, losses, leases)

    async def unlock(self, broker: str, leases: Callable[[], Mapping[MessageQueue, Lease]]) -> None:
        """Give locks back when it is this request's turn, and await the acknowledgement.

        Args:
            leases: returns those to give back, read only in the turn.
        Raises: RemotingError, RouteError: the broker may keep them until they expire.
        """
        async with self._turn_of[broker]:
            held = leases()
            if not held:
                return
            address = self._client.routes.master_of(broker)
            epochs = [lease.wire_epoch for lease in held.values()]
            await self._api.unlock(address, self._group, list(held), epochs)
