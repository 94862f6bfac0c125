"""EngineLoop: the pull loop of one queue by the native engine
(docs/internals/architecture.md#pulls)."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, cast

from ordermq import core
from ordermq.client.broker_api import MAX_PAST_END
from ordermq.client.pull_connections import PullConnection, settle_end
from ordermq.client.session import ClientSession
from ordermq.clock import CLOCK_ID
from ordermq.config import PullConfig
from ordermq.consumer.fetch.pull_path import QueuePulls, RunningPulls
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.consumer.queue.receiver import FillLimits, Receiver
from ordermq.core.streams import StreamEnd, StreamPlan
from ordermq.model.message import MessageBatch
from ordermq.remoting.command import Command


class EngineLoop:
    """Starts a stream of the engine, and ends with it; the engine does all between.

    Args:
        limits: of the queue's buffer.
    """

    def __init__(
        self, client: ClientSession, connection: PullConnection, path: EnginePath, pulls: QueuePulls
    ) -> None:
        config, assigned = client.config, pulls.assigned
        self.assigned = assigned
        self._client = client
        self._connection = connection
        self._path = path
        self._target = pulls.target
        self._code = pulls.frames.code
        self._begun_ms = client.clock.now_ms()
        self._has_messages = False
        self.offset = pulls.offset
        self.ended: asyncio.Future[Command | None] = asyncio.get_running_loop().create_future()
        # Cancelled or not: an answer that comes later must not be buffered.
        self.ended.add_done_callback(self._end)
        self._stream = core.PullStream(
            connection.native,
            assigned.process_queue,
            self,
            StreamPlan(
                template=pulls.frames.template,
                suggestion=str(pulls.broker_id).encode(),
                tags=pulls.tags,
                check_crc=config.check_crcs,
                is_filtered=pulls.is_filtered,
                queue_id=assigned.queue.queue_id,
                offset=pulls.offset,
                timeout_ms=pulls.config.pull_timeout_ms,
                most_past_end=MAX_PAST_END,
                is_single=pulls.config.pull_interval_ms > 0,
                limits=path.limits(pulls.config),
                new_batch=partial(MessageBatch.unfilled, assigned.queue, config.namespace),
                max_decompressed_bytes=config.max_decompressed_bytes,
                lanes=assigned.lanes,
                window=pulls.window,
            ),
        )

    # RunningPulls

    @property
    def asked_ms(self) -> int:
        asked_ms = self._stream.asked_ms
        if not asked_ms:
            return self._begun_ms
        # The engine has the clock of the system, whatever this client has.
        age_ms = time.clock_gettime_ns(CLOCK_ID) // 1_000_000 - asked_ms
        return self._client.clock.now_ms() - age_ms

    @property
    def is_asking(self) -> bool:
        # The broker may hold the pull of a loop that has ended.
        return self._stream.is_asking and not self.ended.done()

    def start(self) -> None:
        if self._target.permit(self._stream):
            self._path.running.add(self)
            self._stream.start()
        else:
            self.ended.set_result(None)

    def configure(self, config: PullConfig) -> None:
        self._stream.limit(self._path.limits(config))

    def gather(self) -> None:
        """Count what the engine has pulled since the last time; any thread."""
        pulls, messages, spent_ms, buckets = self._stream.take_counts()
        if pulls:
            self._has_messages = True
            self._target.counted(pulls, messages, spent_ms, buckets)

    # StreamOwner

    def on_filled(self, is_dispatched: bool) -> None:
        # Also after the end of the loop: a set dispatch flag without a submitted queue would keep
        # the queue from ever being consumed.
        if is_dispatched or not self.ended.done():
            self._target.filled(is_dispatched)

    def on_end(self, end: StreamEnd, is_dispatched: bool, offset: int, frame: bytes) -> None:
        self.gather()
        self._path.running.discard(self)
        self.offset = offset
        if is_dispatched or (self._has_messages and not self.ended.done()):
            self._target.filled(is_dispatched)
        most = self._client.config.max_frame_bytes
        settle_end(self.ended, self._connection, end, frame, most)

    def _end(self, _: asyncio.Future[Command | None]) -> None:
        self._stream.forbid()
        self._stream.stop()


class EnginePath:
    """Pulls by the engine of a client; fulfils `PullPath`.

    Args:
        receiver: of its queues.
    Attributes:
        running: the loops with a stream.
    """

    def __init__(
        self,
        client: ClientSession,
        receiver: Receiver[object],  # type: ignore[type-var]
    ) -> None:
        self._client = client
        self._receiver = receiver
        self.running: set[EngineLoop] = set()

    async def connect(self, address: str) -> PullConnection:
        return await self._client.pulls.get(address)

    def begin(self, connection: PullConnection, pulls: QueuePulls) -> RunningPulls:
        return EngineLoop(self._client, connection, self, pulls)

    def limits(self, config: PullConfig) -> FillLimits:
        """Return the limits of one queue."""
        return self._receiver.fill_limits(config)

    # ReadyQueues

    def take(self, taken: list[Any]) -> AssignedQueue | None:
        pulls = self._client.pulls
        while (loop := cast(EngineLoop | None, pulls.take_ready(taken))) is not None:
            if not loop.assigned.internal_errors:
                return loop.assigned
            self._receiver.submit(loop.assigned)  # after a pause
            taken.remove(loop)
        return None

    def queue_of(self, taken: Any) -> AssignedQueue:
        return cast(EngineLoop, taken).assigned

    def wait(self) -> bool:
        return self._client.pulls.wait_ready()

    def interrupt(self) -> None:
        self._client.pulls.interrupt()

    def gather(self) -> None:
        """Count what all loops have pulled; any thread."""
        for loop in self.running.copy():  # one atomic call: the I/O thread changes it
            loop.gather()
