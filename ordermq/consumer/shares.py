"""Which queues a lite pull consumer holds: its share of what it subscribes, or what it was told.

A broadcasting member holds every queue of what it subscribes. There are no locks
(docs/internals/semantics.md#consumer-groups): a
queue is taken at once, and around a change of members the old and the new owner may both be handed
messages behind the committed offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from ordermq.client.routes import subscribe_queues
from ordermq.client.runtime import wait_until_set
from ordermq.client.session import ClientSession
from ordermq.config import MessageModel
from ordermq.config.pull import LitePullConsumerConfig
from ordermq.consumer.complaints import Complaints
from ordermq.consumer.group.allocation import allocate
from ordermq.consumer.group.rebalance import plan, why_nothing_comes
from ordermq.errors import ConfigError, OrderMQError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import TopicRoute

_RETRY_MS = 500


class Shares:
    """Keeps what is held equal to what should be; on the I/O thread.

    Args:
        held: what we hold now.
        take: makes a queue ours; raises if its broker cannot be asked.
        release: gives a queue up.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        config: LitePullConsumerConfig,
        held: Callable[[], Collection[MessageQueue]],
        take: Callable[[MessageQueue], Awaitable[None]],
        release: Callable[[MessageQueue], Awaitable[None]],
    ) -> None:
        self._client = client
        self._group = group
        self._config = config.rebalance
        self._is_broadcasting = config.message_model is MessageModel.BROADCASTING
        self._held = held
        self._take = take
        self._release = release
        self.topics: set[str] = set()  # subscribed: shared with the group
        self.assigned: set[MessageQueue] = set()  # told: ours alone to decide
        self._wake = asyncio.Event()
        self._passing = asyncio.Lock()
        self._is_closing = False
        self._next_pass_ms = self._config.rebalance_interval_ms
        self._complaints = Complaints()

    def wake(self) -> None:
        """Run a pass now: members or routes may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Pass after pass, for ever; the first one after the first wake-up or interval."""
        clock, config = self._client.clock, self._config
        while True:
            await wait_until_set(self._wake, clock, self._next_pass_ms)
            await self.pass_once()
            # A storm of notices makes one pass; a lone one hardly waits.
            await clock.sleep_ms(config.rebalance_min_interval_ms)

    async def pass_once(self) -> None:
        """Compare what is held with what should be once, and act on the difference."""
        async with self._passing:
            self._wake.clear()
            self._next_pass_ms = self._config.rebalance_interval_ms
            try:
                await self._balance()
                self._complaints.note(f"group {self._group}", "")
            except OrderMQError as error:
                self._next_pass_ms = _RETRY_MS
                self._complaints.note(f"group {self._group}", f"queues not shared out: {error}")

    async def close(self) -> None:
        """Release everything; no pass takes anything any more."""
        self._is_closing = True
        async with self._passing:
            await asyncio.gather(*(self._release(queue) for queue in sorted(self._held())))

    async def _balance(self) -> None:
        should = set(self.assigned)
        if self.topics:
            should |= await self._share()
        if self._is_closing:
            return
        todo = plan(self._held(), should)
        # Both at once: a broker that does not answer holds up its own queues only.
        outcomes = await asyncio.gather(
            *(self._release(queue) for queue in todo.revoke),
            *(self._take(queue) for queue in todo.acquire),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _share(self) -> set[MessageQueue]:
        routes = {topic: await self._client.routes.get(topic) for topic in sorted(self.topics)}
        for topic, route in routes.items():
            self._complaints.note(topic, why_nothing_comes(topic, route))
        members = await self._member_ids()
        if self._client.client_id not in members:
            # We keep what we hold, introduce ourselves again, and ask later: one broker that
            # has just forgotten us must not stop the member
            # (docs/internals/semantics.md#rebalance).
            await self._client.heartbeats.beat()
            self._next_pass_ms = _RETRY_MS
            return {queue for queue in self._held() if queue.topic in self.topics}
        share: set[MessageQueue] = set()
        for topic, route in routes.items():
            if route is None:
                self._next_pass_ms = _RETRY_MS
            else:
                share.update(self._share_of(topic, route, members))
        return share

    def _share_of(
        self, topic: str, route: TopicRoute, members: Sequence[str]
    ) -> list[MessageQueue]:
        queues, allocation = subscribe_queues(topic, route), self._config.allocation
        if self._is_broadcasting:
            return queues
        share = allocate(allocation, queues, sorted(members), self._client.client_id)
        if unknown := set(share).difference(queues):
            raise ConfigError(
                f"allocation={allocation!r} gave {min(unknown)}, which is none of the "
                f"{len(queues)} queues it was asked to share"
            )
        return share

    async def _member_ids(self) -> list[str]:
        if self._is_broadcasting:
            return [self._client.client_id]  # whoever else there is takes nothing away from us
        return await self._client.group_members(self._group)
