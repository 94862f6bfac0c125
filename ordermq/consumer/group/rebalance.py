"""Which queues are mine: computed by each member alone, from the same lists
(docs/internals/semantics.md#rebalance)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ordermq.client.routes import subscribe_queues
from ordermq.client.runtime import cancelled, wait_until_set
from ordermq.client.session import ClientSession
from ordermq.config import ConsumerConfig, MessageModel
from ordermq.consumer.complaints import Complaints
from ordermq.consumer.group.allocation import allocate
from ordermq.consumer.group.queue_locks import Locks
from ordermq.consumer.group.revocation import HandOff
from ordermq.consumer.offsets.local_offsets import LocalOffsets
from ordermq.consumer.offsets.offset_store import Offsets
from ordermq.consumer.queue.assigned_queue import AssignedQueue, Lease, QueueState
from ordermq.consumer.unlocked import Unlocked
from ordermq.errors import ConfigError, OrderMQError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import RETRY_PREFIX
from ordermq.remoting.bodies import TopicRoute

_log = logging.getLogger("ordermq.consumer")
_UNKNOWN_TOPIC_RETRY_MS = 500
_NO_SUCH_TOPIC = (
    "no broker has this topic; we wait for it. Is the name right? Then create it (mqadmin "
    "updateTopic), or send to it where brokers create topics themselves"
)
_NOT_READABLE = (
    "no queue of this topic may be read, so nothing of it comes: have an admin allow it (mqadmin "
    "updateTopicPerm -p 6), or subscribe another"
)


def why_nothing_comes(topic: str, route: TopicRoute | None) -> str:
    """What to tell where a topic has no queue for anybody; empty where it has.

    A retry topic without queues is nothing to tell: brokers make it when they need it.
    """
    if topic.startswith(RETRY_PREFIX):
        return ""
    if route is None:
        return _NO_SUCH_TOPIC
    return "" if subscribe_queues(topic, route) else _NOT_READABLE


@dataclass(frozen=True, slots=True)
class Plan:
    """What turns the queues we hold into our share."""

    revoke: list[MessageQueue]
    acquire: list[MessageQueue]


def plan(held: Collection[MessageQueue], share: Collection[MessageQueue]) -> Plan:
    """Removals and additions, sorted; removals come first when acted on."""
    return Plan(sorted(set(held) - set(share)), sorted(set(share) - set(held)))


def share_of(
    config: ConsumerConfig,
    queues: Sequence[MessageQueue],
    member_ids: Sequence[str],
    own_id: str,
) -> list[MessageQueue] | None:
    """Our share of a topic; None, not an empty one, if the member list does not know us.

    Java then drops every queue (docs/internals/semantics.md#rebalance): one broker that has just
    forgotten us would
    stop the member. We keep what we hold, introduce ourselves again, and ask later.

    Raises: ConfigError: a strategy of the user's gave queues the topic does not have.
    """
    if config.message_model is MessageModel.BROADCASTING:
        return list(queues)
    if own_id not in member_ids:
        return None
    share = allocate(config.rebalance.allocation, queues, sorted(member_ids), own_id)
    if unknown := set(share).difference(queues):
        raise ConfigError(
            f"allocation={config.rebalance.allocation!r} gave {min(unknown)}, which is none of "
            f"the {len(queues)} queues it was asked to share"
        )
    return share


class Rebalancer:
    """Keeps what this member holds equal to its share; on the I/O thread.

    Args:
        topics: the subscribed topics at this moment, sorted; the group's retry topic too.
        make: builds an assigned queue under a lease, from an offset.
        on_assigned: called when a queue became ours, before its first pull.
        on_released: called when it is no longer ours.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        config: ConsumerConfig,
        topics: Callable[[], list[str]],
        locks: Locks | Unlocked,
        offsets: Offsets | LocalOffsets,
        hand_off: HandOff,
        make: Callable[[MessageQueue, Lease, int], AssignedQueue],
        on_assigned: Callable[[AssignedQueue], None],
        on_released: Callable[[AssignedQueue], None],
    ) -> None:
        self._client = client
        self._group = group
        self._config = config
        self._topics = topics
        self._locks = locks
        self._offsets = offsets
        self._hand_off = hand_off
        self._make = make
        self._on_assigned = on_assigned
        self._on_released = on_released
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._releases: dict[MessageQueue, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._closing = False
        self._is_out = False  # of the group, until `step_in`
        self._left_out: set[MessageQueue] = set()  # queues not to take until `take_in`
        self._complaints = Complaints()
        self._passing = asyncio.Lock()
        self._own_id = client.client_id
        self._next_pass_ms = config.rebalance.rebalance_interval_ms

    def assigned(self) -> list[AssignedQueue]:
        """What is ours or still being released, sorted by queue."""
        return [self._assigned[queue] for queue in sorted(self._assigned)]

    def find(self, queue: MessageQueue) -> AssignedQueue | None:
        """The assigned queue, if it is ours."""
        return self._assigned.get(queue)

    def wake(self) -> None:
        """Run a pass now: members, routes or locks may have changed."""
        self._wake.set()

    def leave_out(self, queue: MessageQueue) -> None:
        """Hand a queue over if it is ours, and do not take it until `take_in`."""
        self._left_out.add(queue)
        self.wake()

    def take_in(self, queue: MessageQueue) -> bool:
        """End `leave_out`; False if the queue was not left out."""
        if queue not in self._left_out:
            return False
        self._left_out.remove(queue)
        self.wake()
        return True

    def take_all_in(self) -> None:
        """End every `leave_out`."""
        self._left_out.clear()
        self.wake()

    def step_out(self) -> None:
        """Have no share at all until `step_in`; the caller leaves the group's member list."""
        self._is_out = True
        self.wake()

    def step_in(self) -> None:
        """End `step_out`."""
        self._is_out = False
        self.wake()

    async def released(self, topic: str) -> None:
        """Return when nothing of an unsubscribed topic is ours."""
        await self.pass_once()
        releases = [task for queue, task in self._releases.items() if queue.topic == topic]
        await asyncio.gather(*releases, return_exceptions=True)

    async def run(self) -> None:
        """Pass after pass, for ever."""
        clock, config = self._client.clock, self._config.rebalance
        while True:
            await self.pass_once()
            # A storm of notices makes one pass; a lone one hardly waits.
            await clock.sleep_ms(config.rebalance_min_interval_ms)
            await wait_until_set(self._wake, clock, self._next_pass_ms)

    async def pass_once(self) -> None:
        """Compare share and holdings of each topic once, and act on the difference."""
        async with self._passing:
            self._wake.clear()
            self._next_pass_ms = self._config.rebalance.rebalance_interval_ms
            try:
                await self._balance_all()
                self._complaints.note(self._group, "")
            except OrderMQError as error:
                self._try_again_in(self._config.lease.lock_retry_ms)
                self._complaints.note(self._group, f"queues not shared out: {error}")

    async def abandon(self) -> None:
        """Stop waiting for listeners: their queues' locks are left to run out at the broker."""
        await cancelled(*list(self._releases.values()))

    async def _balance_all(self) -> None:
        if self._is_out:
            for assigned in self.assigned():
                self._release(assigned)
            return
        topics = self._topics()
        for assigned in self.assigned():
            if assigned.queue.topic not in topics:
                self._release(assigned)
        routes = {topic: await self._client.routes.get(topic) for topic in topics}
        members = await self._member_ids()
        if self._closing or self._is_out:
            # We left while the list was on its way. Announcing ourselves now would make us a
            # member again, with a share that nobody else may take.
            return
        if self._own_id not in members and self._client.routes.masters():
            _log.info("group %s does not list us; announcing ourselves", self._group)
            await self._client.heartbeats.beat()
            self._try_again_in(self._config.lease.lock_retry_ms)
        if None in routes.values():
            self._try_again_in(_UNKNOWN_TOPIC_RETRY_MS)
        for topic, route in routes.items():
            self._complaints.note(topic, why_nothing_comes(topic, route))
        await asyncio.gather(
            *(
                self._balance(topic, share)
                for topic, route in routes.items()
                if route is not None and (share := self._share(topic, route, members)) is not None
            )
        )

    def _share(
        self, topic: str, route: TopicRoute, members: Sequence[str]
    ) -> list[MessageQueue] | None:
        share = share_of(self._config, subscribe_queues(topic, route), members, self._own_id)
        if share is None or not self._left_out:
            return share
        return [queue for queue in share if queue not in self._left_out]

    def stop_acquiring(self) -> None:
        """Take no queue any more, whatever passes find."""
        self._closing = True

    async def release_all(self) -> None:
        """Hand every queue over; returns when all are gone. After `stop_acquiring`."""
        async with self._passing:
            pass  # a pass under way may just be granted a lock; it must not be left behind
        for assigned in self.assigned():
            self._release(assigned)
        await asyncio.gather(*self._releases.values())

    async def _balance(self, topic: str, share: Sequence[MessageQueue]) -> None:
        held = [
            queue
            for queue, assigned in self._assigned.items()
            if queue.topic == topic and assigned.state is QueueState.ACTIVE
        ]
        todo = plan(held, share)
        for queue in todo.revoke:
            self._release(self._assigned[queue])
        # A queue still being released by us comes back with a later pass, which the end of
        # its release starts: two objects of one queue would run its listener twice.
        await self._acquire([queue for queue in todo.acquire if queue not in self._assigned])

    async def _member_ids(self) -> list[str]:
        if self._config.message_model is MessageModel.BROADCASTING:
            return [self._own_id]  # whoever else there is takes nothing away from us
        return await self._client.group_members(self._group)

    async def _acquire(self, queues: Sequence[MessageQueue]) -> None:
        if not queues or self._closing or self._is_out:
            return
        leases = await self._locks.acquire(queues)
        if len(leases) < len(queues):
            self._try_again_in(self._config.lease.lock_retry_ms)
        await asyncio.gather(*(self._take(queue, lease) for queue, lease in leases.items()))

    async def _take(self, queue: MessageQueue, lease: Lease) -> None:
        try:
            offset = await self._offsets.start_offset(queue, lease.epoch, lease.is_fenced)
        except OrderMQError as error:
            self._try_again_in(self._config.lease.lock_retry_ms)
            self._complaints.note(str(queue), f"locked, but its offset is not known: {error}")
            await self._locks.give_back(queue, lease)
            return
        self._complaints.note(str(queue), "")
        if queue.topic not in self._topics():  # unsubscribed while we asked
            await self._locks.give_back(queue, lease)
            return
        assigned = self._make(queue, lease, offset)
        self._assigned[queue] = assigned
        _log.info("%s: assigned, epoch %d, from offset %d", queue, lease.epoch, offset)
        self._on_assigned(assigned)
        # The consumer was closed, or told to give this queue up, while we asked.
        if self._closing or self._is_out or queue in self._left_out:
            self._release(assigned)

    def _release(self, assigned: AssignedQueue) -> None:
        if assigned.queue in self._releases:
            return
        self._releases[assigned.queue] = self._client.runtime.spawn(
            self._release_one(assigned), f"release {assigned.queue}"
        )

    async def _release_one(self, assigned: AssignedQueue) -> None:
        try:
            await self._hand_off.release(assigned)
        finally:
            self._assigned.pop(assigned.queue, None)
            self._releases.pop(assigned.queue, None)
            self._on_released(assigned)
            self.wake()

    def _try_again_in(self, delay_ms: int) -> None:
        self._next_pass_ms = min(self._next_pass_ms, delay_ms)
