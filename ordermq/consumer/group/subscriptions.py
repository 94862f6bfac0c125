"""What a running member is subscribed to, and changing it
(docs/internals/protocol.md#membership)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from ordermq.client.session import ClientSession
from ordermq.errors import BrokerError
from ordermq.model.subscription import Subscription

_log = logging.getLogger("ordermq.consumer")


class Subscriptions:
    """The topics of a member; on the I/O thread.

    Args:
        on_change: a topic was added, its expression changed, or it is gone; returns when it is
            no longer consumed in the old way.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        wanted: Iterable[Subscription],
        on_change: Callable[[str], Awaitable[None]],
    ) -> None:
        self._client = client
        self._group = group
        self._wanted = {item.topic: item for item in wanted}
        self._on_change = on_change

    def topics(self) -> list[str]:
        """Sorted."""
        return sorted(self._wanted)

    def all(self) -> tuple[Subscription, ...]:
        """Sorted by topic."""
        return tuple(self._wanted[topic] for topic in sorted(self._wanted))

    def of(self, topic: str) -> Subscription | None:
        """What we want of a topic, None if nothing."""
        return self._wanted.get(topic)

    async def check(self) -> None:
        """Ask the brokers whether they filter by what we are subscribed with.

        Raises: BrokerError: one does not.
        """
        for subscription in self.all():
            await self._check(subscription)

    async def put(self, subscription: Subscription) -> None:
        """Add a topic, or change its expression.

        The brokers hear of it before a pull uses it, or they would refuse that.

        Raises: RouteError: no name server answers. BrokerError: see `check`.
        """
        await self._client.routes.get(subscription.topic)
        await self._check(subscription)
        self._wanted[subscription.topic] = subscription
        await self._client.heartbeats.beat()
        await self._on_change(subscription.topic)

    async def remove(self, topic: str) -> None:
        """Hand the topic's queues over, then tell the brokers
        (docs/internals/semantics.md#rebalance)."""
        del self._wanted[topic]
        await self._on_change(topic)
        await self._client.heartbeats.beat()

    async def _check(self, subscription: Subscription) -> None:
        if not subscription.is_sql:
            return
        route = await self._client.routes.get(subscription.topic)
        for broker in route.brokers if route is not None else ():
            if not broker.master:
                continue
            try:
                await self._client.api.check_subscription(broker.master, self._group, subscription)
            except BrokerError as error:
                raise BrokerError(
                    f"{error}; sql={subscription.expression!r} is for brokers of RocketMQ with "
                    "enablePropertyFilter=true in their broker.conf, others filter by tags only",
                    response_code=error.response_code,
                    topic=subscription.topic,
                    group=self._group,
                    broker=broker.broker_name,
                ) from error
