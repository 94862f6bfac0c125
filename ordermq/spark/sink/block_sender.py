"""Sending of encoded batches: one request per queue at a time, several queues in parallel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from ordermq.config import ProducerConfig
from ordermq.errors import OrderMQError, RemotingError, RouteError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import AUTO_CREATE_TOPIC
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

# The encoded batches of each queue, in the order in which they must be stored.
Blocks = Mapping[MessageQueue, Sequence[bytes]]


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
        routes = self._session.routes
        # Asked once per task, not at an interval: between tasks Spark may freeze or kill a
        # worker, so no background refresh can be relied on.
        try:
            await routes.refresh(topic)
        except (RemotingError, RouteError) as error:
            if routes.known(topic) is None:
                raise
            _log.warning("route of %s not refreshed, using the last one: %s", topic, error)
        await self._routing.learn(routes, topic)
        return self._routing.queues(routes, topic)

    def send(self, blocks: Blocks) -> Future[None]:
        """Send the batches; the future is done when all are acknowledged, or holds an error."""
        return self._session.submit(self._send_all(blocks))

    async def _send_all(self, blocks: Blocks) -> None:
        sends = [self._send_queue(queue, bodies) for queue, bodies in blocks.items()]
        # Every queue is awaited before an error is raised: a request still on its way could be
        # stored after the retry of the whole task has begun.
        for outcome in await asyncio.gather(*sends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _send_queue(self, queue: MessageQueue, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            await self._send(queue, body)

    async def _send(self, queue: MessageQueue, body: bytes) -> None:
        """Send one request, and again to the same queue while its outcome is unknown
        (docs/internals/semantics.md#ordered-sends)."""
        tries, is_unknown = 0, False
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


_SENDERS = ProcessCache(BlockSender)


def block_sender(
    name_servers: str, config: ProducerConfig, group: str, selector: str
) -> BlockSender:
    """Return this process's sender for these options."""
    return _SENDERS.get(name_servers, config, group, selector)
