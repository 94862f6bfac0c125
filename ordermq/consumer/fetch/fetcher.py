"""Fetching messages of one queue, one request in flight (docs/internals/semantics.md#pull-loop)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

from ordermq.client.routes import MASTER_ID, PullSource
from ordermq.client.runtime import wait_until_set
from ordermq.client.session import ClientSession
from ordermq.config import PullConfig
from ordermq.consumer.offsets.local_offsets import LocalOffsets
from ordermq.consumer.offsets.offset_store import Offsets
from ordermq.consumer.pull_streak import PullStreak
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueState
from ordermq.consumer.queue.receiver import Flow, Receiver
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.errors import BrokerError, OrderMQError, RemotingError, RouteError
from ordermq.model.message import MessageBatch
from ordermq.model.subscription import Subscription
from ordermq.remoting.codes import PullFlag, ResponseCode
from ordermq.remoting.framing import PullFrames
from ordermq.remoting.headers import PullHeader, PullReplyHeader

_log = logging.getLogger("ordermq.consumer")
_FLOW_CONTROL_DELAY_MS = 20
_ROOM_RECHECK_MS = 1_000
_SIZE_RECHECK_MS = 50


class Puller:
    """The pull loop of one assigned queue; on the I/O thread."""

    def __init__(
        self,
        client: ClientSession,
        group: str,
        config: PullConfig,
        assigned: AssignedQueue,
        subscription: Subscription,
        offsets: Offsets | LocalOffsets,
        receiver: Receiver[Any],
        statistics: ConsumerStatistics,
    ) -> None:
        self._client = client
        self._config = config
        self.assigned = assigned
        self._group = group
        self._offsets = offsets
        self._receiver = receiver
        self._statistics = statistics
        self._source = PullSource(client.routes, assigned.queue)
        self._is_from_slave = False
        self._nudge = asyncio.Event()
        self._streak: PullStreak | None = None
        self.subscribe(subscription)

    @property
    def last_pull_ms(self) -> int:
        """When it last asked, ms since 1970; 0 if not yet."""
        if self._streak is None:
            return 0
        clock = self._client.clock
        return clock.wall_ms() - (clock.now_ms() - self._streak.asked_ms)

    def subscribe(self, subscription: Subscription) -> None:
        """Ask for these messages of the topic from the next streak of pulls on."""
        config, queue, is_sql = self._config, self.assigned.queue, subscription.is_sql
        self._tags = tuple(tag.encode() for tag in subscription.tags)
        self._header = PullHeader(
            self._group,
            queue.topic,
            queue.queue_id,
            0,
            config.pull_batch_size,
            # A condition in SQL was compiled by the broker when our heartbeat told it.
            PullFlag.SUSPEND if is_sql else PullFlag.SUSPEND | PullFlag.SUBSCRIPTION,
            suspend_timeout_ms=config.broker_suspend_ms,
            subscription=None if is_sql else subscription.expression,
            subscription_version=subscription.version,
            expression_type=subscription.expression_type,
            max_bytes=config.pull_batch_bytes,
            broker_name=queue.broker_name,
        )
        self._frames = PullFrames(self._header)

    def configure(self, config: PullConfig) -> None:
        """Keep to other thresholds from now on."""
        self._config = config
        self.nudge()

    def nudge(self) -> None:
        """There is room again, or a lease: look now."""
        self._nudge.set()

    async def run(self) -> None:
        """Pull until the queue is no longer ours."""
        assigned = self.assigned
        while assigned.state is QueueState.ACTIVE:
            self._nudge.clear()
            if assigned.lease is None:
                await wait_until_set(self._nudge, self._client.clock, _ROOM_RECHECK_MS)
            elif not await self._wait_for_room():
                await self._pull_on()

    async def _wait_for_room(self) -> bool:
        flow = self._flow()
        if flow is Flow.PULL:
            return False
        if flow is Flow.WAIT:
            # Nobody tells when bytes or the span have shrunk.
            await wait_until_set(self._nudge, self._client.clock, _SIZE_RECHECK_MS)
            return True
        # Half empty before going on: waking for each message costs more than it gives.
        if self.assigned.wait_for_room(self._config.pull_threshold_for_queue // 2 + 1):
            await wait_until_set(self._nudge, self._client.clock, _ROOM_RECHECK_MS)
        return True

    def _flow(self) -> Flow:
        return self._receiver.flow(self.assigned, self._config)

    async def _pull_on(self) -> None:
        """Pull until something but messages comes, or there is no room for more."""
        assigned = self.assigned
        generation, offset = assigned.generation, assigned.next_pull_offset
        try:
            broker_id, address = self._source.choose()
            self._is_from_slave = broker_id != MASTER_ID
            connection = await self._client.api.begin_pulls(address)
            self._streak = streak = PullStreak(
                connection,
                self._frames,
                self._config.pull_timeout_ms,
                assigned,
                generation,
                offset,
                self._tags,
                self._source.wanted,
                self._count,
                self._receiver.submit,
                self._goes_on,
            )
            streak.start()
            answer = await streak.ended
            if answer is not None:
                header = replace(self._header, queue_offset=streak.offset)
                code, reply, body = self._client.api.pulled(address, header, answer)
                if code != ResponseCode.SUCCESS:
                    self._statistics.add("pulls")
                    self._statistics.add("pulls_from_slaves", self._is_from_slave)
                await self._take(generation, streak.offset, code, reply, body)
            if self._config.pull_interval_ms and generation == assigned.generation:
                await self._client.clock.sleep_ms(self._config.pull_interval_ms)
        except (RemotingError, RouteError) as error:
            await self._pause_after(error)

    def _goes_on(self) -> bool:
        return not self._config.pull_interval_ms and self._flow() is Flow.PULL

    def _count(self, messages: int) -> None:
        """Count a pull with messages, at its answer."""
        assert self._streak is not None
        self._statistics.pulled(self.assigned.queue.topic, messages, self._streak.asked_ms)
        if self._is_from_slave:
            self._statistics.add("pulls_from_slaves")

    async def _take(
        self, generation: int, offset: int, code: int, reply: PullReplyHeader, body: bytes
    ) -> None:
        assigned = self.assigned
        if code == ResponseCode.SUCCESS:
            batch = MessageBatch(assigned.queue, body, self._tags, self._client.config.namespace)
            self._count(len(batch))
            if len(batch) == 0:
                assigned.skip_to(generation, reply.next_begin_offset)
            elif assigned.accept(generation, batch, reply.next_begin_offset):
                self._receiver.submit(assigned)
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            await self._go_where_told(generation, offset, reply)
        else:
            assigned.skip_to(generation, reply.next_begin_offset)
        is_elsewhere = self._source.suggest(reply.suggested_broker_id)
        if (
            code == ResponseCode.PULL_RETRY_IMMEDIATELY
            and reply.next_begin_offset <= offset
            and not is_elsewhere
        ):
            # A slave that sends us to a master that is away, or has less than we have read.
            await wait_until_set(
                self._nudge, self._client.clock, self._config.pull_delay_on_error_ms
            )

    async def _go_where_told(self, generation: int, offset: int, reply: PullReplyHeader) -> None:
        """The broker does not have our offset; finish what is buffered, then move."""
        assigned, target = self.assigned, reply.next_begin_offset
        while assigned.generation == generation and assigned.wait_for_room(1):
            await wait_until_set(self._nudge, self._client.clock, _ROOM_RECHECK_MS)
            self._nudge.clear()
        if assigned.generation != generation or assigned.state is not QueueState.ACTIVE:
            return
        _log.warning(
            "%s: the broker has offsets %d..%d, not %d; going on from %d%s",
            assigned.queue,
            reply.min_offset,
            reply.max_offset,
            offset,
            target,
            f", {target - offset} messages expired unread" if target > offset else "",
        )
        self._statistics.add("skipped", max(target - offset, 0))
        await self._offsets.reset(assigned, generation, target)

    async def _pause_after(self, error: OrderMQError) -> None:
        if isinstance(error, BrokerError) and error.response_code == ResponseCode.FLOW_CONTROL:
            await self._client.clock.sleep_ms(_FLOW_CONTROL_DELAY_MS)
            return
        self._statistics.add("pull_errors")
        _log.warning("%s: pull failed: %s", self.assigned.queue, error)
        await self._source.failed()
        # A nudge, as after a reconnect, ends the pause early.
        await wait_until_set(self._nudge, self._client.clock, self._config.pull_delay_on_error_ms)
