"""A running lite pull consumer: its parts, and what happens between them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from weakref import WeakSet

from ordermq.client.connections import Answer
from ordermq.client.routes import subscribe_queues
from ordermq.client.runtime import cancelled, repeat
from ordermq.client.session import ClientSession
from ordermq.clock import Clock
from ordermq.config import ConsumeFromWhere
from ordermq.config.pull import LitePullConsumerConfig
from ordermq.consumer.agreement import Agreement
from ordermq.consumer.fetcher import Fetcher
from ordermq.consumer.group.subscriptions import Subscriptions
from ordermq.consumer.lite_inquiries import LiteInquiries
from ordermq.consumer.lite_offsets import BrokerStore, FileStore, LiteOffsets, OffsetStore
from ordermq.consumer.offsets.local_offsets import OffsetFile
from ordermq.consumer.queue.poll_buffer import PollBuffer, PulledQueue
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.consumer.shares import Shares
from ordermq.errors import ConfigError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import AUTO_CREATE_TOPIC
from ordermq.model.subscription import Subscription
from ordermq.remoting.bodies import ConsumerData, Heartbeat
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command

_log = logging.getLogger("ordermq.consumer")
_RESTART_DELAY_MS = 1_000


async def _no_change(topic: str) -> None:
    return None


QueueCallback = Callable[[MessageQueue], object]
TopicCallback = Callable[[str, list[MessageQueue]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteSettings:
    """What a lite pull consumer was told."""

    group: str
    client_id: str
    name_servers: Sequence[str]
    config: LitePullConsumerConfig
    on_assigned: QueueCallback | None
    on_revoked: QueueCallback | None
    offset_file: OffsetFile | None  # of a broadcasting member
    clock: Clock
    statistics: ConsumerStatistics


class LiteMember:
    """Joins on `join`, leaves on `leave`; made on any thread, its coroutines on the I/O thread."""

    def __init__(self, settings: LiteSettings) -> None:
        self._settings = settings
        self._config = config = settings.config
        self._group = group = settings.group
        self.client = client = ClientSession(
            settings.name_servers,
            config.remoting,
            settings.client_id,
            clock=settings.clock,
            describe=self._describe,
            on_request=self._on_request,
            on_broker_back=self._on_broker_back,
            on_route_change=self._on_route_change,
        )
        self.runtime = client.runtime
        self.buffer = PollBuffer(config.lite, self._on_room)
        store: OffsetStore = BrokerStore(client, group)
        if settings.offset_file is not None:
            store = FileStore(settings.offset_file)
        self.offsets = LiteOffsets(
            client, store, config.rebalance, self.buffer, settings.statistics
        )
        self._shares = Shares(client, group, config, self._held, self._take, self._release)
        self._inquiries = LiteInquiries(
            client,
            group,
            lambda: tuple(self._wanted.values()),
            self.buffer,
            settings.statistics,
            last_pull_ms=lambda queue: self._fetchers[queue].last_pull_ms,
            seek=self._go_to,
        )
        self._agreement = Agreement(
            client, group, lambda: tuple(self._wanted.values()), is_orderly=False
        )
        self._is_agreeing = False
        self._wanted: dict[str, Subscription] = {}
        self._fetchers: dict[MessageQueue, Fetcher] = {}
        self._watched: dict[str, tuple[TopicCallback, list[MessageQueue]]] = {}
        self._loops: list[asyncio.Task[object]] = []
        self._callbacks: set[asyncio.Task[None]] = set()
        self._mourned: WeakSet[Thread] = WeakSet()

    # What the consumer asks for.

    async def join(self) -> None:
        """Connect, and begin; the group hears of us with the first topic.

        Raises: RouteError: no name server answers. BrokerError: a broker denies us.
        """
        # The brokers that create topics are known by this one; others come with their topics.
        await self.client.routes.get(AUTO_CREATE_TOPIC)
        await self.client.heartbeats.register()
        self.client.start_loops()
        spawn, lite = self.runtime.spawn, self._config.lite
        self._loops = [spawn(self._keep_running(self._shares.run), f"shares {self._group}")]
        if lite.auto_commit:

            def commits() -> Awaitable[None]:
                clock = self.client.clock
                return repeat(self._auto_commit, clock, lambda: lite.auto_commit_interval_ms)

            self._loops.append(spawn(self._keep_running(commits), f"commits {self._group}"))

    async def leave(self) -> None:
        """Give every queue up, tell the brokers, disconnect."""
        self.buffer.close()
        await cancelled(*self._loops)
        await self._shares.close()
        await self.client.leave(consumer_group=self._group)
        await asyncio.gather(*self._callbacks, return_exceptions=True)
        await self.client.disconnect()

    def close(self) -> None:
        """Let the thread and the offset file go, after `leave`; not on the I/O thread."""
        if self._settings.offset_file is not None:
            self._settings.offset_file.close()
        self.client.close()

    async def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """Share these topics, too, with the group; returns with our present share.

        Raises: RouteError: no name server answers. BrokerError: a broker denies us, or does not
            filter by SQL.
        """
        await self._check(subscriptions)
        for subscription in subscriptions:
            await self.client.routes.get(subscription.topic)
            self._wanted[subscription.topic] = subscription
        self._apply_wanted()
        self._shares.topics = set(self._wanted)
        await self.client.heartbeats.register()
        await self._shares.pass_once()
        self._agree()

    def _agree(self) -> None:
        """Compare us with the group, from the first topic on."""
        if self._is_agreeing:
            self._agreement.wake()
            return
        self._is_agreeing = True
        work = self._keep_running(self._agreement.run)
        self._loops.append(self.runtime.spawn(work, f"agreement {self._group}"))

    async def unsubscribe(self, topic: str) -> None:
        """Give the topic's queues up."""
        self._wanted.pop(topic, None)
        self._shares.topics = set(self._wanted)
        await self._shares.pass_once()
        if self._wanted:
            await self.client.heartbeats.beat()
        else:
            await self.client.unregister(consumer_group=self._group)

    async def assign(
        self, queues: Collection[MessageQueue], choices: Sequence[Subscription]
    ) -> None:
        """Hold exactly these queues, whatever the group's others do.

        Raises: RouteError: no broker has a topic. ConfigError: a topic has no such queue.
            BrokerError: a broker does not filter by SQL.
        """
        for queue in queues:
            if queue not in await self.queues_of(queue.topic):
                raise ConfigError(f"{queue}: the topic has no such queue", topic=queue.topic)
        await self._check(choices)
        self._wanted = {item.topic: item for item in choices}
        self._apply_wanted()
        self._shares.assigned = set(queues)
        await self._shares.pass_once()

    async def seek(self, queue: MessageQueue, offset: int | None, *, end: bool = False) -> None:
        """Go on elsewhere.

        Args:
            offset: None for the oldest the broker has, or with `end` for the queue's end.
        Raises: StateError: the queue is not ours. ConfigError: the broker does not have the
            offset. RemotingError, RouteError: it could not be asked.
        """
        self.buffer.find(queue)
        address = self.client.routes.master_of(queue.broker_name)
        lowest, highest = await asyncio.gather(
            self.client.api.min_offset(address, queue), self.client.api.max_offset(address, queue)
        )
        target = (highest if end else lowest) if offset is None else offset
        if not lowest <= target <= highest:
            raise ConfigError(
                f"{queue}: seek to offset {target}: the broker has {lowest}..{highest}",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                offset=target,
            )
        self._go_to(queue, target)

    def _go_to(self, queue: MessageQueue, offset: int) -> None:
        self.buffer.seek(queue, offset)
        self._fetchers[queue].restart()

    async def commit(self, offsets: Mapping[MessageQueue, int] | None) -> None:
        """Commit these offsets, or everything polled; returns when the brokers have it.

        Raises: StateError: a queue is not ours, after the others were committed. RemotingError,
            RouteError: a broker did not take it.
        """
        if offsets is None:
            await self.offsets.commit(self.buffer.polled())
            return
        held = {pulled.queue: pulled for pulled in self.buffer.held()}
        await self.offsets.commit(
            (held[queue], offset) for queue, offset in offsets.items() if queue in held
        )
        for queue in offsets:
            self.buffer.find(queue)

    async def queues_of(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted.

        Raises: RouteError: no broker has the topic.
        """
        return await self.client.queues(topic)

    async def address_of(self, queue: MessageQueue) -> str:
        """The master that has the queue, also if we do not hold it."""
        return await self.client.address_of(queue)

    async def watch(self, topic: str, callback: TopicCallback) -> None:
        """Call back whenever the topic's queues differ from those known before."""
        route = await self.client.routes.get(topic)
        known = [] if route is None else subscribe_queues(topic, route)
        self._watched[topic] = callback, known

    async def _check(self, subscriptions: Sequence[Subscription]) -> None:
        wanted = Subscriptions(self.client, self._group, subscriptions, on_change=_no_change)
        await wanted.check()

    # What the parts tell us; on the I/O thread unless said otherwise.

    def _held(self) -> set[MessageQueue]:
        return set(self._fetchers)

    async def _take(self, queue: MessageQueue) -> None:
        offset = await self.offsets.start(queue)
        subscription = self._wanted.get(queue.topic)
        if subscription is None:
            return  # unsubscribed while we asked; the pass after this one is on its way
        pulled = self.buffer.hold(queue, offset, offset)
        self._fetchers[queue] = fetcher = Fetcher(
            self.client,
            self._group,
            self._config.lite,
            self.buffer,
            pulled,
            subscription,
            self._settings.statistics,
        )
        _log.info("%s: assigned to %s, from offset %d", queue, self._group, offset)
        self._call_back(self._settings.on_assigned, queue, then=fetcher.start)

    def _apply_wanted(self) -> None:
        """Pull by the newest expressions; what is buffered already stays."""
        for queue, fetcher in self._fetchers.items():
            wanted = self._wanted.get(queue.topic)
            now = fetcher.subscription
            if wanted is not None and (wanted.expression, wanted.expression_type) != (
                now.expression,
                now.expression_type,
            ):
                fetcher.subscription = wanted
                fetcher.restart()

    async def _release(self, queue: MessageQueue) -> None:
        fetcher = self._fetchers.pop(queue)
        fetcher.stop()
        pulled = fetcher.pulled
        done = self.buffer.drop(pulled)
        if self._config.lite.auto_commit:
            await self.offsets.commit_last(pulled, done)
        await self.offsets.settled(pulled)
        self._settings.statistics.add("hand_offs")
        _log.info("%s: released by %s", queue, self._group)
        self._call_back(self._settings.on_revoked, queue)

    def _on_room(self, pulled: PulledQueue) -> None:
        # Any thread.
        self.runtime.post(self._nudge, pulled)

    def _nudge(self, pulled: PulledQueue) -> None:
        fetcher = self._fetchers.get(pulled.queue)
        if fetcher is not None:
            fetcher.nudge()

    def _on_broker_back(self) -> None:
        self._shares.wake()
        for fetcher in self._fetchers.values():
            fetcher.nudge()

    def _on_request(self, address: str, command: Command) -> Answer:
        if command.code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            return self._inquiries.answer(command)
        self._shares.wake()
        self._agreement.wake()
        return command.reply(ResponseCode.SUCCESS)

    def _on_route_change(self, topic: str) -> None:
        self._shares.wake()
        if topic in self._watched:
            self.runtime.spawn(self._compare(topic), f"queues of {topic}")

    async def _compare(self, topic: str) -> None:
        callback, known = self._watched[topic]
        queues = await self.queues_of(topic)
        if queues != known:
            self._watched[topic] = callback, queues
            self._call_back(callback, topic, list(queues))

    def _describe(self) -> Heartbeat:
        if not self._shares.topics:
            # Whoever the brokers list gets a share in the eyes of the others; we want none, or
            # none yet, or have queues assigned by hand.
            return Heartbeat(self.client.client_id, (), ("CLIENT_INNER_PRODUCER",))
        # No retry topic: nothing is sent back by itself (docs/internals/protocol.md#membership).
        data = ConsumerData(
            self._group,
            tuple(self._wanted.values()),
            consume_type="CONSUME_ACTIVELY",
            message_model=self._config.message_model.name,
            consume_from_where=_FROM_WHERE[self._config.rebalance.consume_from_where],
        )
        return Heartbeat(self.client.client_id, (data,), ("CLIENT_INNER_PRODUCER",))

    async def _auto_commit(self) -> None:
        await self.offsets.commit_done()
        for poller, queue in self.buffer.unfinished():
            if isinstance(poller, Thread) and not poller.is_alive() and poller not in self._mourned:
                self._mourned.add(poller)
                _log.warning(
                    "%s: thread %s ended without polling again: nobody knows whether its last "
                    "batch is done, and no offset behind it is committed before commit() or seek()",
                    queue,
                    poller.name,
                )

    def _call_back(
        self,
        callback: Callable[..., object] | None,
        *arguments: object,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Call the user on a thread of its own; what it raises is logged, the queue goes on."""

        async def work() -> None:
            if callback is not None:
                try:
                    await asyncio.to_thread(callback, *arguments)
                except Exception:  # noqa: BLE001 - the user's; logged and counted
                    self._settings.statistics.add("callback_errors")
                    _log.exception("%s: the callback raised", arguments[0])
            if then is not None:
                then()

        task = self.runtime.spawn(work(), f"callback of {self._group}")
        self._callbacks.add(task)
        task.add_done_callback(self._callbacks.discard)

    async def _keep_running(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run one of our loops for ever; a defect in it stops no consumer."""
        while True:
            try:
                await work()
            except Exception:  # noqa: BLE001 - logged, counted, begun again
                self._settings.statistics.add("internal_errors")
                _log.exception("group %s: a loop failed by an error of ours", self._group)
                await self.client.clock.sleep_ms(_RESTART_DELAY_MS)


_FROM_WHERE = {
    ConsumeFromWhere.LAST_OFFSET: "CONSUME_FROM_LAST_OFFSET",
    ConsumeFromWhere.FIRST_OFFSET: "CONSUME_FROM_FIRST_OFFSET",
    ConsumeFromWhere.TIMESTAMP: "CONSUME_FROM_TIMESTAMP",
}
