"""Epochs of queue locks for brokers that have none: stored beside the group's offsets
(docs/internals/semantics.md#stored-epochs)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from ordermq.client.connections import is_busy
from ordermq.client.session import ClientSession
from ordermq.clock import Clock
from ordermq.errors import BrokerError, LockLost, RemotingError, RouteError
from ordermq.leases.lease import Lease
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue

_log = logging.getLogger("ordermq.consumer")
# Brokers keep an offset for any queue id. No topic has so many queues, so this one is never pulled,
# and tools that show offsets ask only for the ids a topic has.
_ID_OF_EPOCH = 1_000_000
_TRIES = 3  # until what was stored is read back; only a late write of a former owner prevents it
_MAX_EPOCH = 1 << 62  # a broker's offset has 63 bits: room for every clock's future


def queue_of_epoch(queue: MessageQueue) -> MessageQueue:
    """Return the queue, which no topic has, whose offset is the epoch of this one."""
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id + _ID_OF_EPOCH)


class EpochStorage(Protocol):
    """Storage of a group's offsets, each at the broker of its queue; on the I/O thread.

    Raises: RemotingError, RouteError: the broker could not be asked, or refused.
    """

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the stored offset, None if there is none."""

    async def write(self, queue: MessageQueue, offset: int) -> None:
        """Store an offset; returns once it is safe."""


class LockEpochs(Protocol):
    """Gives each grant of a broker without epochs an epoch; on the I/O thread."""

    async def begin(self, leases: Mapping[MessageQueue, Lease]) -> dict[MessageQueue, Lease]:
        """Return the leases under their epochs; those of a broker's own epochs are as they were.

        A lease is missing if it is not known whether its epoch is stored. It must not be used,
        nor its lock be released: the number may still arrive, and fall behind the next owner's.
        """

    async def keep(self, leases: Mapping[MessageQueue, Lease]) -> bool:
        """Store epochs once more, before queues are given up.

        Returns: False if it is not known whether one is stored, as for `begin`.
        """

    async def is_newest(self, queue: MessageQueue, lease: Lease) -> bool:
        """Return False if another member has taken an epoch since this lease began.

        Raises: RemotingError, RouteError: the broker could not be asked.
        """


class _Numbers:
    """The numbers that epochs are made of."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[MessageQueue, int] = {}
        self._ahead_ms = 0

    def next(self, queue: MessageQueue, stored: int) -> int:
        """Return an epoch above the stored one and all earlier ones of this process."""
        # The wall clock stands in for what a broker that crashed did not save. It follows the
        # fastest clock that ever left an epoch here; a queue that the owner of that clock had
        # since is then covered, too. The process's own last number holds whatever clocks say.
        wall_ms = self._clock.wall_ms()
        self._ahead_ms = max(self._ahead_ms, stored - wall_ms)
        epoch = max(stored + 1, self._last.get(queue, 0) + 1, wall_ms + self._ahead_ms)
        self._last[queue] = epoch
        return epoch


class LocalEpochs:
    """Epochs that tell the grants of one member apart, and fence nobody: nothing is stored."""

    def __init__(self, clock: Clock) -> None:
        self._numbers = _Numbers(clock)

    async def begin(self, leases: Mapping[MessageQueue, Lease]) -> dict[MessageQueue, Lease]:
        return {
            queue: lease
            if lease.is_fenced
            else lease._replace(
                epoch=self._numbers.next(queue, 0),
                token_problem="this broker has no lock epochs and store_epochs=False: leave it "
                "True to store them",
            )
            for queue, lease in leases.items()
        }

    async def keep(self, leases: Mapping[MessageQueue, Lease]) -> bool:
        return True

    async def is_newest(self, queue: MessageQueue, lease: Lease) -> bool:
        return True


class StoredEpochs:
    """Epochs that grow from owner to owner: each owner stores its own, above the one before.

    Only the holder of the queue's lock reads and writes them, so the next owner reads what the
    last one stored. Members of Java's client store nothing; the number before theirs stays.
    """

    def __init__(self, client: ClientSession, storage: EpochStorage) -> None:
        self._client = client
        self._storage = storage
        self._numbers = _Numbers(client.clock)
        self._refusals: dict[tuple[str, str], str] = {}  # by topic and broker, as logged

    async def begin(self, leases: Mapping[MessageQueue, Lease]) -> dict[MessageQueue, Lease]:
        # All at once: three round trips, however many queues there are.
        begun = await asyncio.gather(*(self._begin(*item) for item in leases.items()))
        return {queue: lease for queue, lease in zip(leases, begun, strict=True) if lease}

    async def keep(self, leases: Mapping[MessageQueue, Lease]) -> bool:
        # Heals what happened to the number since: an admin's command, a late write of a former
        # owner, the first offset of another member (`FirstOffsets`). Without it the next owner
        # would depend on clocks that agree.
        kept = await asyncio.gather(*(self._keep(*item) for item in leases.items()))
        return all(kept)

    async def is_newest(self, queue: MessageQueue, lease: Lease) -> bool:
        if lease.is_fenced or lease.token_problem:
            return True
        stored = await self._storage.read(queue_of_epoch(queue))
        # Less is fine: a restarted broker may have lost it.
        return stored is None or stored <= lease.epoch

    async def _begin(self, queue: MessageQueue, lease: Lease) -> Lease | None:
        if lease.is_fenced:
            return lease
        try:
            begun = await self._stored(queue, lease)
        except BrokerError as error:
            if is_busy(error):
                self._client.report_failure(queue.broker_name, "lock epoch", error)
                return None
            return self._without_token(queue, lease, f"the broker refused it, {error}")
        except (RemotingError, RouteError, LockLost) as error:
            self._client.report_failure(queue.broker_name, "lock epoch", error)
            return None
        if begun is None:
            return self._without_token(
                queue, lease, "the broker acknowledged it and then returned another number"
            )
        self._refusals.pop((queue.topic, queue.broker_name), None)
        return begun

    async def _stored(self, queue: MessageQueue, lease: Lease) -> Lease | None:
        place = queue_of_epoch(queue)
        for _ in range(_TRIES):
            before = await self._storage.read(place) or 0
            if before > _MAX_EPOCH:
                return None
            epoch = self._numbers.next(queue, before)
            # Checked on both sides of the write. A process that was frozen since it read must
            # not put its number over the next owner's; nor may it work under one that the next
            # owner, who read the same, may have as well.
            self._require_valid(queue, lease)
            await self._storage.write(place, epoch)
            now = await self._storage.read(place)
            self._require_valid(queue, lease)
            if now == epoch:
                return lease._replace(epoch=epoch)
        return None

    def _require_valid(self, queue: MessageQueue, lease: Lease) -> None:
        if not lease.is_valid(self._client.clock.now_ms()):
            raise LockLost(
                "lease ended before its epoch was stored; the lock is asked for again",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
            )

    def _without_token(self, queue: MessageQueue, lease: Lease, reason: str) -> Lease:
        # The queue is consumed all the same: the lease keeps other members out without it.
        place = queue.topic, queue.broker_name
        if self._refusals.get(place) != reason:
            self._refusals[place] = reason
            _log.warning(
                "%s: lock epoch not stored, %s; consuming goes on, but context.fence_token raises",
                queue,
                reason,
                extra=log_fields(queue, member=self._client.client_id),
            )
        problem = (
            f"its epoch could not be stored: {reason}. Let the group commit offsets on this broker"
        )
        return lease._replace(epoch=self._numbers.next(queue, 0), token_problem=problem)

    async def _keep(self, queue: MessageQueue, lease: Lease) -> bool:
        is_stored = not lease.is_fenced and not lease.token_problem
        if not is_stored or not lease.is_valid(self._client.clock.now_ms()):
            return True
        try:
            await self._storage.write(queue_of_epoch(queue), lease.epoch)
        except (RemotingError, RouteError) as error:
            self._client.report_failure(queue.broker_name, "lock epoch", error)
            return isinstance(error, BrokerError)  # a refusal: nothing is on its way any more
        return True
