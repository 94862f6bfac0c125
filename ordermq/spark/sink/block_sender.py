"""Sends encoded batches: one request a queue at a time, queues beside each other, all awaited."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Mapping, Sequence

from ordermq.client.session import ClientSession
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
from ordermq.spark.session import KeptClients

_log = logging.getLogger("ordermq.spark")

# Batch bodies of each queue, in the order they must be stored.
Blocks = Mapping[MessageQueue, Sequence[bytes]]


class BlockSender:
    """A producer of bodies that are batches already; kept for a worker process's life.

    Args:
        group: the producer group.
        selector: see `Producer`; only the queues that it would choose from are asked here.
    """

    def __init__(
        self, name_servers: str, config: ProducerConfig, group: str, selector: str
    ) -> None:
        self._group = group
        self._config = config.send
        self._client = ClientSession(name_servers, config.remoting, producer_groups=(group,))
        self._routing = QueueRouting(selector, config.send)

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic, sorted; those it will have if its first message makes it.

        Asked anew each time, once a task: between tasks nothing of a worker process runs.

        Raises: RouteError: no broker takes its messages. OrderingError: they changed.
        """
        routes = self._client.routes

        async def ask() -> tuple[MessageQueue, ...]:
            try:
                await routes.refresh(topic)
            except (RemotingError, RouteError) as error:
                if routes.known(topic) is None:
                    raise
                _log.warning("route of %s not refreshed, the last one serves: %s", topic, error)
            await self._routing.learn(routes, topic)
            return self._routing.queues(routes, topic)

        return self._client.call(ask())

    def begin(self, blocks: Blocks) -> concurrent.futures.Future[None]:
        """Send; the future is done when all is acknowledged, or fails with what failed first."""
        return self._client.submit(self._send_all(blocks))

    async def _send_all(self, blocks: Blocks) -> None:
        sends = [self._send_queue(queue, bodies) for queue, bodies in blocks.items()]
        for outcome in await asyncio.gather(*sends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _send_queue(self, queue: MessageQueue, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            await self._send(queue, body)

    async def _send(self, queue: MessageQueue, body: bytes) -> None:
        """One request, again to the same queue while its outcome is open
        (docs/internals/semantics.md#ordered-sends)."""
        tries, doubtful = 0, False
        while True:
            tries += 1
            header = SendHeader(
                producer_group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                sys_flag=0,
                born_timestamp_ms=self._client.clock.wall_ms(),
                default_topic=AUTO_CREATE_TOPIC,
                default_topic_queue_nums=self._config.default_topic_queue_nums,
                broker_name=queue.broker_name,
            )
            header.batch = True
            try:
                address = self._client.routes.master_of(queue.broker_name)
                await self._client.api.send(address, header, body, self._config.send_timeout_ms)
                return
            except OrderMQError as error:
                step = decide(error, tries, doubtful, self._config)
                doubtful = doubtful or is_outcome_unknown(error)
                if step is not AfterFailure.SEND_AGAIN:
                    raise
                _log.warning("%s: try %d failed, sending again: %s", queue, tries, error)
            await self._client.clock.sleep_ms(retry_delay_ms(tries, self._config))


_SENDERS = KeptClients(BlockSender)


def sender_of(name_servers: str, config: ProducerConfig, group: str, selector: str) -> BlockSender:
    """This process's sender for such options."""
    return _SENDERS.of(name_servers, config, group, selector)
