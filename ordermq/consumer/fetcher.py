"""The pull loop of one queue of a lite pull consumer, one request in flight."""

from __future__ import annotations

import asyncio
import logging

from ordermq.client.routes import MASTER_ID, PullSource
from ordermq.client.runtime import wait_until_set
from ordermq.client.session import ClientSession
from ordermq.config.pull import LitePullConfig
from ordermq.consumer.fetch.single_pull import PullResult, PullStatus, pull_once
from ordermq.consumer.queue.poll_buffer import PollBuffer, PulledQueue
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.errors import BrokerError, OrderMQError, RemotingError, RouteError
from ordermq.model.subscription import Subscription
from ordermq.remoting.codes import ResponseCode

_log = logging.getLogger("ordermq.consumer")
_FLOW_CONTROL_DELAY_MS = 20
_ROOM_RECHECK_MS = 1_000
_RESTART_DELAY_MS = 1_000


class Fetcher:
    """Fills the buffer with one queue's messages; on the I/O thread."""

    def __init__(
        self,
        client: ClientSession,
        group: str,
        config: LitePullConfig,
        buffer: PollBuffer,
        pulled: PulledQueue,
        subscription: Subscription,
        statistics: ConsumerStatistics,
    ) -> None:
        self._client = client
        self._group = group
        self._config = config
        self._buffer = buffer
        self.pulled = pulled
        self.subscription = subscription
        self._statistics = statistics
        self._source = PullSource(client.routes, pulled.queue)
        self._nudge = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.last_pull_ms = 0  # since 1970

    def start(self) -> None:
        """Begin to pull."""
        self._task = self._client.runtime.spawn(
            self._keep_running(), f"fetch {self.pulled.queue} {self._group}"
        )

    def restart(self) -> None:
        """Pull from where the queue is now; a pull under way, from elsewhere, is given up."""
        if self._task is not None:
            self._task.cancel()
            self.start()

    def stop(self) -> None:
        """Pull no more."""
        if self._task is not None:
            self._task.cancel()

    def nudge(self) -> None:
        """There is room again, or a broker: look now."""
        self._nudge.set()

    async def _keep_running(self) -> None:
        pulled = self.pulled
        while pulled.is_held:
            try:
                self._nudge.clear()
                if self._buffer.may_pull(pulled):
                    await self._pull()
                else:
                    await wait_until_set(self._nudge, self._client.clock, _ROOM_RECHECK_MS)
            except Exception:  # noqa: BLE001 - a defect of ours stops no consumer: logged, counted
                self._statistics.add("internal_errors")
                _log.exception("%s: fetching failed by an error of ours; going on", pulled.queue)
                await self._client.clock.sleep_ms(_RESTART_DELAY_MS)

    async def _pull(self) -> None:
        pulled, config = self.pulled, self._config
        generation, offset = pulled.generation, pulled.pull_offset
        self.last_pull_ms, asked_ms = self._client.clock.wall_ms(), self._client.clock.now_ms()
        try:
            is_from_slave = self._source.choose()[0] != MASTER_ID
            result = await pull_once(
                self._client,
                self._source,
                self._group,
                pulled.queue,
                self.subscription,
                offset,
                config.pull_batch_size,
                timeout_ms=config.pull_timeout_ms,
                suspend_ms=config.broker_suspend_ms,
                max_bytes=config.pull_batch_bytes,
            )
        except (RemotingError, RouteError) as error:
            await self._pause_after(error)
            return
        if result.status is PullStatus.FOUND:
            self._statistics.pulled(pulled.queue.topic, len(result.messages), asked_ms)
        else:
            self._statistics.add("pulls")
        self._statistics.add("pulls_from_slaves", is_from_slave)
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self._go_where_told(generation, offset, result)
        else:
            self._buffer.accept(pulled, generation, result.messages, result.next_begin_offset)
        is_elsewhere = self._source.suggest(result.suggested_broker_id)
        is_stuck = result.status is PullStatus.NO_MATCHED_MSG and result.next_begin_offset <= offset
        if is_stuck and not is_elsewhere:
            # A slave that sends us to a master that is away, or has less than we have read.
            await wait_until_set(self._nudge, self._client.clock, config.pull_delay_on_error_ms)

    def _go_where_told(self, generation: int, offset: int, result: PullResult) -> None:
        """The broker does not have our offset, or an admin moved the group."""
        pulled, target = self.pulled, result.next_begin_offset
        if not pulled.is_held or pulled.generation != generation:
            return
        _log.warning(
            "%s: the broker has offsets %d..%d, and for %d it sends us to %d",
            pulled.queue,
            result.min_offset,
            result.max_offset,
            offset,
            target,
        )
        self._statistics.add("skipped", max(target - offset, 0))
        if target < pulled.position:
            self._buffer.seek(pulled.queue, target)
        else:  # what is buffered is still handed out first
            self._buffer.accept(pulled, generation, result.messages, target)

    async def _pause_after(self, error: OrderMQError) -> None:
        clock = self._client.clock
        if isinstance(error, BrokerError) and error.response_code == ResponseCode.FLOW_CONTROL:
            await clock.sleep_ms(_FLOW_CONTROL_DELAY_MS)
            return
        self._statistics.add("pull_errors")
        _log.warning("%s: pull failed: %s", self.pulled.queue, error)
        # A nudge, as after a reconnect, ends the pause early.
        await wait_until_set(self._nudge, clock, self._config.pull_delay_on_error_ms)
