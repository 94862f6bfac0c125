"""Offsets by time, which brokers answer roughly: the messages around an answer decide."""

from __future__ import annotations

from ordermq.client.connections import is_denied
from ordermq.client.session import ClientSession
from ordermq.errors import BrokerError, ProtocolError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import TOOLS_GROUP
from ordermq.model.subscription import EVERYTHING
from ordermq.remoting.codes import PullFlag, ResponseCode
from ordermq.remoting.headers import PullHeader, PullReplyHeader


async def offset_at_time(
    client: ClientSession, group: str, queue: MessageQueue, timestamp_ms: int
) -> int:
    """Return the offset of the first message of a queue stored at or after a time; its end if
    there is none (docs/internals/semantics.md#offsets-by-time).

    The route of the topic must be known. Asks the broker, and then for single messages: for two
    where its answer was right, else for O(log n).

    Args:
        group: named in the pulls where the account may not use `TOOLS_GROUP`.
        timestamp_ms: ms since 1970.
    Raises: RemotingError: refused, or not answered. RouteError: the broker is not known.
    """
    search = _Search(client, group, queue, timestamp_ms)
    return await search.run(await _hint(client, queue, timestamp_ms))


async def broker_wall_ms(client: ClientSession, broker_name: str) -> int | None:
    """Return the wall clock that a broker's store times are of, at most a second behind.

    Returns: None: the broker does not tell, or not this account.
    Raises: RemotingError: not answered. RouteError: the broker is not known.
    """
    from ordermq.remoting.admin_bodies import wall_ms_of_state  # few ask

    try:
        return wall_ms_of_state(await client.api.runtime_info(client.routes.master_of(broker_name)))
    except (BrokerError, ProtocolError):
        return None


async def _hint(client: ClientSession, queue: MessageQueue, timestamp_ms: int) -> int:
    address = client.routes.master_of(queue.broker_name)
    try:
        return max(await client.api.search_offset(address, queue, timestamp_ms), 0)
    except BrokerError as error:
        # RocketMQ 5 wants more of an account for this than for pulling, which finds it, too.
        if not is_denied(error.response_code, str(error)):
            raise
        return 0


class _Search:
    """Finds the first message stored at or after a time, by pulls of single messages.

    Store times do not decrease along a queue, unless its broker's clock was set back.
    """

    def __init__(
        self, client: ClientSession, group: str, queue: MessageQueue, timestamp_ms: int
    ) -> None:
        self._client = client
        # A member's own pull would take an admin's reset, which brokers tell of once.
        self._group = TOOLS_GROUP
        self._allowed_group = group
        self._queue = queue
        self._timestamp_ms = timestamp_ms
        self._first = self._end = 0  # of the queue, as the latest pull said

    async def run(self, hint: int) -> int:
        """Return the offset that is looked for, beginning near `hint`."""
        # All messages before `low` are older, those from `high` on are not.
        if await self._is_reached(hint):
            low, high = await self._older_before(min(hint, self._end))
        else:
            low, high = await self._reached_after(hint)
        while low < high:
            middle = (low + high) // 2
            if await self._is_reached(middle):
                high = middle
            else:
                low = middle + 1
        return max(low, self._first)

    async def _older_before(self, high: int) -> tuple[int, int]:
        # In steps that double: answers are a few messages off, queues have millions.
        step = 1
        while high > self._first:
            probe = max(high - step, self._first)
            if not await self._is_reached(probe):
                return probe + 1, high
            high, step = probe, step * 2
        return high, high

    async def _reached_after(self, older: int) -> tuple[int, int]:
        step = 1
        while older + step < self._end:
            if await self._is_reached(older + step):
                return older + 1, older + step
            older, step = older + step, step * 2
        return older + 1, max(self._end, older + 1)

    async def _is_reached(self, offset: int) -> bool:
        """Return True if no message was stored before the time, from `offset` on."""
        is_repeated = False
        while True:
            code, reply, body = await self._pull(offset)
            self._first, self._end = reply.min_offset, reply.max_offset
            following = reply.next_begin_offset
            if code == ResponseCode.SUCCESS:
                batch = self._client.api.batch(self._queue, body, (), offset, following)
                if len(batch):
                    return batch[0].store_timestamp_ms >= self._timestamp_ms
            is_held = self._first <= offset <= self._end
            if code == ResponseCode.PULL_OFFSET_MOVED and is_held and not is_repeated:
                is_repeated = True  # an admin's reset of the group, told once
            elif following <= offset:
                return True  # the queue ends here, or before
            else:
                offset, is_repeated = following, False  # nothing is at this offset any more

    async def _pull(self, offset: int) -> tuple[int, PullReplyHeader, bytes]:
        header = PullHeader(
            self._group, self._queue.topic, self._queue.queue_id, offset, 1,
            PullFlag.SUBSCRIPTION, subscription=EVERYTHING, expression_type="TAG",
            broker_name=self._queue.broker_name,
        )  # fmt: skip
        client = self._client
        address = client.routes.master_of(self._queue.broker_name)
        timeout_ms = client.config.offset_timeout_ms
        try:
            return await client.api.pull(address, header, timeout_ms)
        except BrokerError as error:
            is_refused = is_denied(error.response_code, str(error))
            if not is_refused or self._group == self._allowed_group:
                raise
            self._group = self._allowed_group
            return await self._pull(offset)
