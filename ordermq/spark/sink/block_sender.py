"""Sending of encoded batches: one request per queue at a time, several queues in parallel."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ordermq.config import ProducerConfig
from ordermq.errors import OrderMQError, RemotingError, RouteError
from ordermq.model.identifiers import unique_message_id
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import AUTO_CREATE_TOPIC
from ordermq.model.properties import UNIQ_KEY, encode
from ordermq.producer.queue_selector import QueueRouting
from ordermq.producer.retry_policy import (
    AfterFailure,
    decide,
    is_outcome_unknown,
    retry_delay_ms,
)
from ordermq.remoting.headers import SendHeader
from ordermq.spark.session import ProcessCache, shared_session

_log = logging.getLogger("ordermq.spark")

_CALLS_AHEAD = 4  # of `BlockStream.send`: each has the encoded rows of one record batch
# Messages of one request: the number of those in a record has two bytes in its broker's index.
MOST_ROWS = 32_767


class Block(NamedTuple):
    """Rows encoded as the body of a request, and how many those are."""

    body: bytes
    rows: int


# The encoded batches of each queue, in the order in which they must be stored.
Blocks = Mapping[MessageQueue, Sequence[Block]]


class BlockSender:
    """A producer whose messages are encoded batches already; kept while the worker lives.

    `Producer` takes one message at a time and groups them itself; rows arrive here encoded per
    queue by the core, so only its retry policy and its choice of queues are shared.

    Args:
        group: the producer group.
        selector: see `Producer`; here it only lists the queues that it would choose from.
    """

    def __init__(
        self, name_servers: str, config: ProducerConfig, group: str, selector: str
    ) -> None:
        self._group = group
        self._config = config.send
        self._session = shared_session(name_servers, config.remoting)
        self._routing = QueueRouting(selector, config.send)

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic, sorted, or those it will have after its first message.

        Raises: RouteError: no broker accepts messages of the topic. OrderingError: the number of
            queues changed.
        """
        return self._session.call(self._ask_queues(topic))

    async def _ask_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        # Asked once per task, not at an interval: between tasks Spark may freeze or kill a
        # worker, so no background refresh can be relied on.
        routes, tries = self._session.routes, 0
        while True:
            try:
                await routes.refresh(topic)
                break
            except (RemotingError, RouteError) as error:
                if routes.known(topic) is not None:
                    _log.warning("route of %s not refreshed, using the last one: %s", topic, error)
                    break
                tries += 1
                # As a send, which it stands before: the name server may be restarting.
                if not isinstance(error, RouteError) or tries > self._config.retry_times:
                    raise
            await self._session.clock.sleep_ms(retry_delay_ms(tries, self._config))
        await self._routing.learn(routes, topic)
        return self._routing.queues(routes, topic)

    def stream(self, *, is_bulk: bool) -> BlockStream:
        """Return what sends the batches of one task.

        Args: is_bulk: no broker has to find one of the rows by a tag, a key or a property.
        """
        return BlockStream(self, self._config.max_batch_bytes, is_bulk=is_bulk)

    def submit(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Start work on the I/O thread; what is submitted first begins first."""
        return self._session.submit(work)

    async def stores_batches(self, queue: MessageQueue) -> bool:
        """Return True if a request is stored as one record; asks the broker."""
        session = self._session
        try:
            address = session.routes.master_of(queue.broker_name)
            return await session.api.stores_batches(address, queue.topic)
        except OrderMQError as error:
            # Not for this question alone: a broker that is older or a proxy does not know it, an
            # account may not be allowed to ask it, and the sends tell of a broker that is away.
            _log.debug("%s: rows are stored one by one: %s", queue, error, extra=log_fields(queue))
            return False

    async def send(self, queue: MessageQueue, body: bytes, *, as_record: bool) -> None:
        """Send one request, and again to the same queue while its outcome is unknown
        (docs/internals/semantics.md#ordered-sends).

        Args: as_record: the broker shall store it as one record.
        """
        tries, is_unknown = 0, False
        # The id of the record, by which brokers know that it is meant to be one.
        properties = encode({UNIQ_KEY: unique_message_id()}) if as_record else ""
        while True:
            tries += 1
            header = SendHeader(
                producer_group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                sys_flag=0,
                born_timestamp_ms=self._session.clock.wall_ms(),
                default_topic=AUTO_CREATE_TOPIC,
                default_topic_queue_nums=self._config.default_topic_queue_nums,
                broker_name=queue.broker_name,
                properties=properties,
            )
            header.batch = True
            try:
                # Looked up for each try: a failover may have given the queue a new master.
                address = self._session.routes.master_of(queue.broker_name)
                await self._session.api.send(address, header, body, self._config.send_timeout_ms)
                return
            except OrderMQError as error:
                step = decide(error, tries, is_unknown, self._config)
                is_unknown = is_unknown or is_outcome_unknown(error)
                if step is not AfterFailure.SEND_AGAIN:
                    raise
                self._session.report_failure(queue.broker_name, "send", error)
            await self._session.clock.sleep_ms(retry_delay_ms(tries, self._config))


@dataclass(slots=True)
class _Lane:
    """The batches that wait for a queue: of `added` ones `taken` are sent.

    Args: as_record: whether its broker stores each as one record; None: not asked yet.
    """

    as_record: bool | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: deque[Block] = field(default_factory=deque)
    added: int = 0
    taken: int = 0

    def take(self, most_bytes: int) -> bytes:
        """Return the next batch, joined with those behind it that fit into the same request."""
        body, rows = self.waiting.popleft()
        taken, size = [body], len(body)
        while self.waiting:
            body, more = self.waiting[0]
            if size + len(body) > most_bytes or rows + more > MOST_ROWS:
                break
            self.waiting.popleft()
            taken.append(body)
            size, rows = size + len(body), rows + more
        self.taken += len(taken)
        return b"".join(taken)


class BlockStream:
    """Sends the batches of one task: in each queue one after the other, queues independently.

    A queue does not wait for the others: with one broker slower than the rest, or one queue with
    more rows, all would wait for it at every record batch. What waits behind a request goes with
    the next one: brokers spend on a request as much as on a hundred rows.

    Args:
        most_bytes: of a request that is joined from several batches.
        is_bulk: see `BlockSender.stream`.
    """

    def __init__(self, sender: BlockSender, most_bytes: int, *, is_bulk: bool) -> None:
        self._sender = sender
        self._most_bytes = most_bytes
        self._is_bulk = is_bulk
        self._sending: deque[Future[None]] = deque()
        # On the I/O thread.
        self._lanes: defaultdict[MessageQueue, _Lane] = defaultdict(_Lane)
        self._has_failed = False

    def send(self, blocks: Blocks) -> None:
        """Send the batches, those of a queue behind those that it got before; wait while as many
        calls before are under way as memory is kept for.

        Raises: OrderMQError: a call before has failed; nothing of this one is sent.
        """
        if len(self._sending) == _CALLS_AHEAD:
            self._sending.popleft().result()
        self._sending.append(self._sender.submit(self._send_all(blocks)))

    def __enter__(self) -> BlockStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Return when all batches are acknowledged; raises as `send`."""
        # Whatever has failed, all end before the task does: a request still on its way could be
        # stored after the retry of the whole task has begun.
        wait(self._sending)
        if kind is None:
            for each in self._sending:
                each.result()

    async def _send_all(self, blocks: Blocks) -> None:
        sends = [self._send_queue(queue, bodies) for queue, bodies in blocks.items()]
        for outcome in await asyncio.gather(*sends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _send_queue(self, queue: MessageQueue, blocks: Sequence[Block]) -> None:
        lane = self._lanes[queue]
        lane.waiting.extend(blocks)
        lane.added += len(blocks)
        last = lane.added  # those behind are of later calls, which send what does not fit here
        # Waiters get an asyncio.Lock in the order in which they asked for it.
        async with lane.turn:
            if lane.as_record is None:
                # Once per task: a topic of this name may be another one in the next.
                lane.as_record = self._is_bulk and await self._sender.stores_batches(queue)
            while lane.taken < last:
                if self._has_failed:
                    return  # the call that failed says why
                body = lane.take(self._most_bytes)
                try:
                    await self._sender.send(queue, body, as_record=lane.as_record)
                except BaseException:
                    self._has_failed = True
                    raise


_SENDERS = ProcessCache(BlockSender)


def block_sender(
    name_servers: str, config: ProducerConfig, group: str, selector: str
) -> BlockSender:
    """Return this process's sender for these options."""
    return _SENDERS.get(name_servers, config, group, selector)
