"""Claims of popped batches in the user's database, so that effects are there exactly once
(docs/internals/semantics.md#effects-of-popped-batches)."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, cast

from ordermq.client.user_code import UserCode
from ordermq.consumer.offsets.offset_store import AnyOffsetStore, ClaimingStore
from ordermq.consumer.offsets.store_offsets import StoreOffsets
from ordermq.consumer.pop.leases import PopOffsets
from ordermq.consumer.pop.popped_batch import PoppedBatch
from ordermq.consumer.pop.transport import PopTransport
from ordermq.consumer.queue.statistics import EventRecorder
from ordermq.events import EventType
from ordermq.leases.lease import UNLOCKED, Lease
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue

_log = logging.getLogger("ordermq.consumer")


class ClaimedOffsets(StoreOffsets):
    """Offsets of a member that pops with a store of the user's; takes the place of `PopOffsets`.

    The broker decides where a batch begins, the store what of it had its effects already. What is
    done is stored first and then acknowledged, so the broker is never ahead.

    Args:
        store: it can claim.
        acknowledged: the offsets at the broker.
        group: as of `StoreOffsets`.
    """

    def __init__(
        self,
        store: AnyOffsetStore,
        acknowledged: PopOffsets,
        transport: PopTransport,
        group: str,
        recorder: EventRecorder,
        user_code: UserCode,
    ) -> None:
        super().__init__(store, acknowledged, group, recorder, user_code)
        self.stores_starts = acknowledged.stores_starts
        self._transport = transport
        # What this process knows: its last claim, the offset that the store surely had, and the
        # last batch, by whose messages a queue is known.
        self._epochs: dict[MessageQueue, int] = {}
        self._reached: dict[MessageQueue, int] = {}
        self._last: dict[MessageQueue, PoppedBatch] = {}

    async def take_over(self, queue: MessageQueue, lease: Lease) -> int | None:
        return await self._brokers.take_over(queue, lease)  # a queue is nobody's until it is popped

    async def read(self, queue: MessageQueue) -> int | None:
        return await self._brokers.read(queue)

    async def write(
        self, queue: MessageQueue, offset: int, lease: Lease = UNLOCKED, *, reset: bool = False
    ) -> None:
        if lease.is_lock:
            await super().write(queue, offset, lease)
            self._reached[queue] = max(offset, self._reached[queue])
        else:
            await self._brokers.write(queue, offset, lease, reset=reset)

    async def claim(self, batch: PoppedBatch) -> bool:
        """Make this member the owner of a batch in the store, and note there what of it is done.

        Returns: False: the broker was moved back to where the store is; the batch is to be given
            back.
        Raises: one of STORE_ERRORS: not claimed now.
        """
        queue = batch.queue
        before = self._epochs.get(queue)
        epoch, offset = await self._take(queue)
        if offset is not None and offset > batch.start:
            offset = await self._offset_in_this_life(batch, offset, epoch)
        elif offset is not None and offset < batch.start:
            # The store is never behind the broker, but where a filter left messages out.
            has_lost = before is not None and (epoch <= before or offset < self._reached[queue])
            if self.stores_starts and (before is None or has_lost):
                await self._move_back(batch, offset)
                self._epochs[queue], self._reached[queue] = epoch, offset
                return False
            if has_lost:
                self._tell_of_lost_effects(batch, offset)
        self._epochs[queue], self._last[queue] = epoch, batch
        self._reached[queue] = 0 if offset is None else offset
        batch.epoch, batch.is_claimed, batch.stored = epoch, True, offset
        return True

    async def _take(self, queue: MessageQueue) -> tuple[int, int | None]:
        store = cast("ClaimingStore", self._store)
        epoch, offset = await self._run(partial(store.claim, self._group, queue))
        return epoch, self._checked("claim", queue, offset)

    async def _restart(self, queue: MessageQueue, offset: int, epoch: int) -> None:
        write: Any = partial(self._store.write, is_reset=True)
        await self._run(partial(write, self._group, queue, offset, epoch))
        self._reached[queue] = offset

    async def _offset_in_this_life(self, batch: PoppedBatch, offset: int, epoch: int) -> int:
        """Return the store's offset, or where the queue began anew since."""
        queue = batch.queue
        life = await self._transport.new_life(batch, offset, self._last.get(queue))
        if life is None:
            _log.info(
                "%s: what is before offset %d had its effects already; acknowledged only",
                queue,
                min(offset, batch.end),
                extra=log_fields(queue, offset=batch.start),
            )
            return offset
        first = max(batch.start, life.first)
        await self._restart(queue, first, epoch)
        self._recorder.record(EventType.RESET, queue, epoch, off=first)
        _log.warning(
            "%s: the queue began anew: %s; its effects begin at offset %d",
            queue,
            life.reason,
            first,
            extra=log_fields(queue, offset=first),
        )
        return first

    async def _move_back(self, batch: PoppedBatch, offset: int) -> None:
        queue = batch.queue
        await self._brokers.write(queue, offset, UNLOCKED, reset=True)
        self._recorder.record(EventType.RESET, queue, 0, off=offset)
        _log.warning(
            "%s: the database has the effects before offset %d only, and the broker was at %d, as "
            "with a database that was restored; moved the group back",
            queue,
            offset,
            batch.start,
            extra=log_fields(queue, offset=offset),
        )

    def _tell_of_lost_effects(self, batch: PoppedBatch, offset: int) -> None:
        _log.error(
            "%s: the database lost the effects of offsets %d to %d, and a proxy moves no group "
            "back; stop the group's members and run `ordermq reset` at the brokers",
            batch.queue,
            offset,
            batch.start - 1,
            extra=log_fields(batch.queue, offset=offset),
        )
