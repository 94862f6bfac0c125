"""The start of a queue of which a group has stored no offset
(docs/internals/semantics.md#where-a-queue-starts)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from ordermq.client.connections import is_denied
from ordermq.client.store_times import broker_wall_ms, offset_at_time
from ordermq.config import ConsumeFromWhere, RebalanceConfig
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.errors import BrokerError
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import RETRY_PREFIX
from ordermq.wall_time import moment_ms

_HALF_AN_HOUR = "30m"
# By which a broker's clock may be behind this machine's, if it does not tell its time.
_SKEW_MS = 60_000

_log = logging.getLogger("ordermq.consumer")

# A moment on both clocks of this machine: ms since 1970, and of the clock that never jumps.
_Moment = tuple[int, int]


class StartRule:
    """Decides starts for one member, once for each queue; on the I/O thread.

    Decided again, a start could differ, and what lies between would be lost (rmq#10955). So it is
    kept until the group has stored an offset.
    """

    def __init__(self, member: MemberContext, config: RebalanceConfig) -> None:
        self._client = member.client
        self._group = member.group
        self._config = config
        self._decided: dict[MessageQueue, int] = {}
        self._joined = self._moment()
        self._subscribed: dict[str, _Moment] = {}  # topics that came later
        self._settled: set[str] = set()
        self._skipped: Counter[str] = Counter()  # messages by topic, not told of yet

    def subscribed(self, topic: str) -> None:
        """Note that the member consumes a topic from now on, or queues assigned by hand."""
        self._subscribed[topic] = self._moment()
        self._settled.discard(topic)

    def settle(self, topics: Iterable[str]) -> None:
        """Note that the caller who subscribed knows of it: what is sent from now on is its own."""
        self._settled.update(topics)

    def take_skipped(self) -> Counter[str]:
        """Return how many messages were left out since the last call, by topic."""
        skipped, self._skipped = +self._skipped, Counter()
        return skipped

    def forget(self, queue: MessageQueue) -> None:
        """Drop what was decided: the group has a stored offset."""
        self._decided.pop(queue, None)

    def is_by_time(self, queue: MessageQueue) -> bool:
        """Return True if the group starts at a time that was asked for, and so not where a broker
        lets new groups start."""
        where = self._config.consume_from_where
        return where is ConsumeFromWhere.TIMESTAMP and not queue.topic.startswith(RETRY_PREFIX)

    async def start_of(self, queue: MessageQueue, *, is_at_zero: bool) -> int:
        """Return where to start.

        Args:
            is_at_zero: the broker lets new groups start at 0.
        Raises: RemotingError, RouteError: the broker could not be asked.
        """
        if queue not in self._decided:
            if is_at_zero and self._config.consume_from_where is ConsumeFromWhere.LAST_OFFSET:
                _log.info(
                    "%s: group %s is new here, and the queue still has its first message: brokers "
                    "start a new group there, also with consume_from_where='last_offset'",
                    queue,
                    self._group,
                    extra=log_fields(queue, group=self._group, member=self._client.client_id),
                )
            self._decided[queue] = 0 if is_at_zero else await self._decide(queue)
        return self._decided[queue]

    async def _decide(self, queue: MessageQueue) -> int:
        where, api = self._config.consume_from_where, self._client.api
        address = self._client.routes.master_of(queue.broker_name)
        if queue.topic.startswith(RETRY_PREFIX):
            if where is not ConsumeFromWhere.TIMESTAMP:
                return 0
            return await api.max_offset(address, queue)  # what failed is older than any time asked
        if where is ConsumeFromWhere.FIRST_OFFSET:
            return await self._min_offset(address, queue)
        if where is ConsumeFromWhere.TIMESTAMP:
            # An age is counted back from when the member came, as Java's clients do: from now on,
            # a queue that is found an hour later would lose what was sent meanwhile.
            asked = self._config.consume_timestamp_ms or _HALF_AN_HOUR
            is_age = isinstance(asked, str)
            since_ms = await self._member_since_ms(queue) if is_age else 0
            asked_ms = moment_ms("consume_timestamp_ms", asked, since_ms)
            return await offset_at_time(self._client, self._group, queue, asked_ms)
        if queue.topic in self._settled:
            # Its broker was away, another member had the queue and stored nothing, or the queue is
            # new: whatever came since this member has subscribed is the group's.
            since_ms = await self._member_since_ms(queue)
            return await offset_at_time(self._client, self._group, queue, since_ms)
        end = await api.max_offset(address, queue)
        skipped = end - await self._min_offset(address, queue)
        self._skipped[queue.topic] += skipped  # no await in this line: other queues count, too
        return end

    async def _member_since_ms(self, queue: MessageQueue) -> int:
        """Return when the member subscribed, or a little earlier, by the clock of the queue's
        broker."""
        # Store times are of that clock. By this machine's, which may be ahead of it, what was
        # stored since would be taken for older, and skipped.
        since_wall_ms, since_now_ms = self._subscribed.get(queue.topic, self._joined)
        told_ms = await broker_wall_ms(self._client, queue.broker_name)
        if told_ms is None:
            return since_wall_ms - _SKEW_MS
        return told_ms - (self._client.clock.now_ms() - since_now_ms)

    def _moment(self) -> _Moment:
        clock = self._client.clock
        return clock.wall_ms(), clock.now_ms()

    async def _min_offset(self, address: str, queue: MessageQueue) -> int:
        try:
            return await self._client.api.min_offset(address, queue)
        except BrokerError as error:
            if not is_denied(error.response_code, str(error)):
                raise
            # RocketMQ 5 wants more of an account for this than for pulling. Java's clients begin
            # at 0 without asking: the first pull corrects it.
            return 0
