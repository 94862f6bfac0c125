"""Filters of copies: messages that a producer sent again because no answer had come
(docs/internals/semantics.md#de-duplication).

A copy has the producer's id (`UNIQ_KEY`), and the body, of a message at most N offsets before it.
The queue's log alone decides it, so that all members, before and after any take-over, drop the same
messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ordermq import core
from ordermq.client.broker_api import BrokerApi
from ordermq.config import PullConfig
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueState
from ordermq.consumer.queue.statistics import ConsumerStatistics, EventRecorder
from ordermq.core import IdWindow
from ordermq.events import EventType
from ordermq.model.log_fields import log_fields
from ordermq.model.message import MessageBatch
from ordermq.model.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from ordermq.remoting.codes import OFFSET_RESET, PullFlag, RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import PullHeader, PullReplyHeader

_log = logging.getLogger("ordermq.consumer")
# The largest that any broker answers; RocketMQ's sends 32 unless it is configured otherwise.
_FILL_BATCH = 1_024

# Buffers a pull answer, given (generation, batch, next offset), as `AssignedQueue.accept`.
Accept = Callable[[int, MessageBatch, int], bool]


class CopyFilter(Protocol):
    """Stands between the pull answers and the buffer of one queue; on the I/O thread.

    Attributes:
        accept: buffers what is no copy; otherwise `AssignedQueue.accept`.
    """

    accept: Accept

    @property
    def window(self) -> core.contract.IdWindow | None:
        """The ids by which the pull engine finds copies; None: it looks for none."""

    async def prepare(
        self, address: str, header: PullHeader, tags: tuple[bytes, ...]
    ) -> PullReplyHeader | None:
        """Get ready for the pulls of the present generation, which go to the same address.

        Returns: None; or the answer that sends the group elsewhere, because an admin has reset its
            offset. Brokers give it once.
        Raises: RemotingError, ProtocolError: as a pull.
        """

    def forget(self) -> None:
        """Start anew before the next pull loop: other messages of the queue are pulled."""


class NoCopyFilter:
    """Takes every message for the first one."""

    window = None

    def __init__(self, assigned: AssignedQueue) -> None:
        self.accept: Accept = assigned.accept

    async def prepare(
        self, address: str, header: PullHeader, tags: tuple[bytes, ...]
    ) -> PullReplyHeader | None:
        return None

    def forget(self) -> None:
        return None


class WindowFilter:
    """Drops messages with an id of the `size` messages before them.

    The window is filled from the log before the first pull of each generation of the queue: after
    an assignment, a lost lease, a seek. From then on every message that is pulled passes it.
    """

    def __init__(
        self,
        size: int,
        api: BrokerApi,
        timeout_ms: int,
        assigned: AssignedQueue,
        recorder: EventRecorder,
        statistics: ConsumerStatistics,
    ) -> None:
        self.window = IdWindow(size)
        self._api = api
        self._timeout_ms = timeout_ms
        self._assigned = assigned
        self._recorder = recorder
        self._statistics = statistics
        self._filled = -1  # the generation for which the window is right
        self._is_told = False
        self.accept: Accept = self._accept

    async def prepare(
        self, address: str, header: PullHeader, tags: tuple[bytes, ...]
    ) -> PullReplyHeader | None:
        assigned, window = self._assigned, self.window
        generation, end = assigned.generation, assigned.next_pull_offset
        if generation == self._filled:
            return None
        self._filled = -1
        window.clear()
        offset = first = max(end - window.size, 0)
        connection = await self._api.begin_pulls(address)
        flags = PullFlag(header.sys_flag & PullFlag.SUBSCRIPTION)  # never wait for a message
        while offset < end:
            if assigned.generation != generation or assigned.state is not QueueState.ACTIVE:
                return None  # what is read now is of no use to anybody
            pull = replace(
                header,
                queue_offset=offset,
                max_messages=min(end - offset, _FILL_BATCH),
                sys_flag=flags,
                suspend_timeout_ms=0,
            )
            command = Command.request(RequestCode.PULL_MESSAGE, pull.to_ext())
            answer = await connection.request(command, self._timeout_ms)
            code, reply, body = self._api.pulled(address, pull, answer)
            next_offset = reply.next_begin_offset
            if code == ResponseCode.PULL_OFFSET_MOVED and answer.remark == OFFSET_RESET:
                return reply
            if code == ResponseCode.SUCCESS:
                batch = self._api.batch(assigned.queue, body, tags, offset, next_offset)
                window.drop_copies(batch, end)
            if next_offset <= offset:
                break  # the broker has nothing from here on: its log was cut, or begins later
            offset = next_offset
        self._filled = generation
        _log.debug("%s: read %d ids of offsets %d-%d", assigned.queue, len(window), first, end)
        return None

    def forget(self) -> None:
        self._filled = -1

    def _accept(self, generation: int, batch: MessageBatch, next_offset: int) -> bool:
        offsets = batch.offsets if self._recorder.enabled else ()
        try:
            dropped = self.window.drop_copies(batch)
        except MemoryError:
            self._filled = -1  # the window is empty
            raise
        if dropped:
            self._note(generation, dropped, sorted({*offsets} - {*batch.offsets}))
        if len(batch):
            return self._assigned.accept(generation, batch, next_offset)
        self._assigned.skip_to(generation, next_offset)
        return False

    def _note(self, generation: int, dropped: int, offsets: list[int]) -> None:
        assigned = self._assigned
        if generation != assigned.generation:
            return  # this answer does not count; its messages are pulled again
        self._statistics.add("copies_dropped", dropped)
        # Once: a network that holds requests back makes copies of many.
        _log.log(
            logging.DEBUG if self._is_told else logging.WARNING,
            "%s: dropped %d copies that were sent again, from offset %d on (deduplicate=%d); "
            "further ones are counted in copies_dropped",
            assigned.queue,
            dropped,
            assigned.next_pull_offset,
            self.window.size,
            extra=log_fields(assigned.queue, offset=assigned.next_pull_offset),
        )
        self._is_told = True
        lease = assigned.lease
        if self._recorder.enabled and lease is not None:
            self._recorder.record(EventType.DROP, assigned.queue, lease.epoch, offs=offsets)


def copy_filter(
    config: PullConfig,
    api: BrokerApi,
    assigned: AssignedQueue,
    recorder: EventRecorder,
    statistics: ConsumerStatistics,
) -> CopyFilter:
    """Return the filter of a queue."""
    # A message that failed twice is twice in a retry or dead-letter topic, with the same id.
    is_of_failed = assigned.queue.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    if not config.deduplicate or is_of_failed:
        return NoCopyFilter(assigned)
    timeout_ms = config.pull_timeout_ms
    return WindowFilter(config.deduplicate, api, timeout_ms, assigned, recorder, statistics)
