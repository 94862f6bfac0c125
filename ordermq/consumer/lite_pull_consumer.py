"""The lite pull consumer: what a user creates; the parts are wired in lite_member.py."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from ordermq.client.name_server_api import parse_name_servers
from ordermq.client.session import new_client_id
from ordermq.clock import Clock, SystemClock
from ordermq.closing import Starting
from ordermq.config import MessageModel
from ordermq.config.pull import LitePullConsumerConfig
from ordermq.consumer.fetch.single_pull import choice
from ordermq.consumer.lite_member import LiteMember, LiteSettings
from ordermq.consumer.membership import Membership
from ordermq.consumer.offsets.local_offsets import OffsetFile
from ordermq.consumer.polled_batch import NOTHING, PolledBatch
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.errors import ConfigError, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_group, check_topic
from ordermq.model.subscription import EVERYTHING, Subscription

_T = TypeVar("_T")


class LitePullConsumer(Starting):
    """A member of a consumer group that asks for messages, batch by batch.

    Messages are fetched ahead, in the background. With `subscribe` the topic's queues are
    shared with the group's other members; with `assign` they are the ones you say. Offsets are
    kept at the brokers; those of `message_model="broadcasting"`, whose every member gets
    everything, in a file. As in Java there is no lock: around a change of members the old and the
    new owner of a queue may both be handed messages behind the committed offset. Where order
    must hold across members, use `PushConsumer` and `@consumer.orderly`.

    All methods are safe from any thread; `apoll`, `acommit` and `async for` from any event loop.

    Args:
        group: the consumer group; all its members must subscribe alike.
        name_servers: `host:port`, several joined by `;` or in a list.
        instance_name: fixed part of the client id; default unique. With
            `message_model="broadcasting"` the offset file is found by it: default "DEFAULT", and
            each member of a host needs one of its own.
        config: all settings at once; else give them flat, as `auto_commit=False`.
        on_assigned, on_revoked: called with a queue when it became ours, before its first pull,
            and after it is not; not to close the consumer from.
        clock: time, as an argument; for tests.
        settings: any field of `LitePullConsumerConfig`'s groups.
    Raises: ConfigError: a name or setting no broker would take.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | list[str],
        instance_name: str | None = None,
        config: LitePullConsumerConfig | None = None,
        on_assigned: Callable[[MessageQueue], object] | None = None,
        on_revoked: Callable[[MessageQueue], object] | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.config = LitePullConsumerConfig.given(config, settings)
        self.group = check_group(group)
        self.name_servers = parse_name_servers(name_servers)
        self._is_broadcasting = self.config.message_model is MessageModel.BROADCASTING
        if self._is_broadcasting and instance_name is None:
            instance_name = "DEFAULT"  # it must find its offsets again, so it keeps its name
        self.client_id = new_client_id(self.config.remoting, self.name_servers, instance_name)
        self._membership = Membership(
            self.name_servers, self.config.remoting.namespace, self.group, self.client_id
        )
        self._clock = clock if clock is not None else SystemClock()
        self.statistics = ConsumerStatistics(self._clock)
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._subscriptions: dict[str, Subscription] = {}
        self._assigned: tuple[list[MessageQueue], list[Subscription]] | None = None
        self._watched: dict[str, Callable[[str, list[MessageQueue]], object]] = {}
        self._member: LiteMember | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<LitePullConsumer {self.group} {self.client_id}>"

    # Joining and leaving.

    def start(self) -> None:
        """Connect; with subscriptions, join the group and return with the present share.

        Raises: StateError: started before, or another member uses this broadcasting member's
            offset file. StoreError: that file cannot be used. RouteError: no name server answers.
            BrokerError: a broker denies us.
        """
        if self._member is not None or self._closed:
            raise StateError("a consumer starts once", group=self.group)
        if self._assigned is None:  # queues that are assigned by hand make no member of a group
            self._membership.claim()
        try:
            self._join()
        except BaseException:
            self._membership.give_up()
            raise

    def _join(self) -> None:
        offset_file = self._open_offsets()
        member = LiteMember(
            LiteSettings(
                group=self.group,
                client_id=self.client_id,
                name_servers=self.name_servers,
                config=self.config,
                on_assigned=self._on_assigned,
                on_revoked=self._on_revoked,
                offset_file=offset_file,
                clock=self._clock,
                statistics=self.statistics,
            )
        )

        async def begin() -> None:
            await member.join()
            for topic, listener in self._watched.items():
                await member.watch(topic, listener)
            if self._subscriptions:
                await member.subscribe(list(self._subscriptions.values()))
            if self._assigned is not None:
                await member.assign(*self._assigned)

        # Before it starts: `on_assigned` may be called, and seek, before `start` returns.
        self._member = member
        try:
            member.runtime.call(begin())
        except BaseException:
            self._member = None
            self._end(member)
            raise

    def _open_offsets(self) -> OffsetFile | None:
        if not self._is_broadcasting:
            return None
        folder = Path(self.config.local_offset_store_dir).expanduser()
        return OffsetFile(folder / self.client_id / self.group / "offsets.json")

    def _end(self, member: LiteMember) -> None:
        member.runtime.call(member.leave())
        member.close()
        self._membership.give_up()

    def close(self) -> None:
        """Leave the group and disconnect; a second call does nothing.

        With `auto_commit`, what pollers came back from is committed. The batch polled last is
        not, unless you `commit()` it: nobody else knows whether it is done.
        """
        member = self._member
        if member is None or self._closed:
            return
        self._closed = True
        self._end(member)

    def subscribe(
        self, topic: str, expression: str = EVERYTHING, *, sql: str | None = None
    ) -> None:
        """Share `topic` with the group; before the start or, joining at once, after it.

        Again for the same topic it changes the expression: what is buffered stays.

        Args:
            expression: `*`, or tags joined by `||`.
            sql: instead, a condition on message properties, as `a > 5 AND region = 'x'`; for
                brokers with enablePropertyFilter=true.
        Raises: ConfigError: an illegal topic or expression, or two of them. StateError: after
            `assign`. RouteError, BrokerError: as `start`, or a broker does not filter by `sql`.
        """
        if self._assigned is not None:
            raise StateError("subscribe or assign, not both", topic=topic, group=self.group)
        version = self._clock.wall_ms()
        subscription = choice(topic, expression, sql, version)
        if self._member is not None:
            member = self._live()
            member.runtime.call(member.subscribe([subscription]))
        self._subscriptions[topic] = subscription

    def unsubscribe(self, topic: str) -> None:
        """Give the topic's queues up; a topic not subscribed is ignored."""
        if self._subscriptions.pop(topic, None) is not None and self._member is not None:
            member = self._live()
            member.runtime.call(member.unsubscribe(topic))

    def assign(
        self,
        queues: Iterable[MessageQueue],
        expression: str = EVERYTHING,
        *,
        sql: str | None = None,
    ) -> None:
        """Hold exactly these queues, whatever other members do; replaces those of the call before.

        Args:
            queues: at least one; see `fetch_message_queues`.
            expression, sql: as for `subscribe`; for all of them.
        Raises: ConfigError: none, or one its topic does not have, an illegal expression.
            StateError: after `subscribe`. RouteError: no broker has a topic. BrokerError: a
            broker does not filter by `sql`.
        """
        if self._subscriptions:
            raise StateError("subscribe or assign, not both", group=self.group)
        wanted = _several(queues)
        if not wanted:
            raise ConfigError("assign needs at least one queue", group=self.group)
        version = self._clock.wall_ms()
        topics = {queue.topic for queue in wanted}
        choices = [choice(topic, expression, sql, version) for topic in sorted(topics)]
        if self._member is not None:
            member = self._live()
            member.runtime.call(member.assign(wanted, choices))
        self._assigned = wanted, choices

    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours now, sorted; [] before the start and after the close."""
        if self._member is None or self._closed:
            return []
        return [pulled.queue for pulled in self._member.buffer.held()]

    # Messages.

    def poll(self, timeout_ms: int | None = None) -> PolledBatch:
        """The next messages of one queue, as soon as there are some.

        With `auto_commit`, to poll is to say that the batch polled before, by the same thread,
        is done.

        Args:
            timeout_ms: how long to wait; default `poll_timeout_ms`. 0 only looks.
        Returns: at most `poll_batch_size` messages; an empty batch after the time-out, or when
            the consumer is closed meanwhile.
        """
        member = self._live()
        if member.runtime.is_io_thread:
            raise StateError("a blocking call on the I/O thread: use apoll there")
        return self._poll(member, self._deadline(timeout_ms))

    async def apoll(self, timeout_ms: int | None = None) -> PolledBatch:
        """`poll` for asyncio code, on any loop; a loop's tasks count as one poller."""
        return await self._apoll(self._live(), self._deadline(timeout_ms))

    def batches(self, timeout_ms: int | None = None) -> Batches:
        """Poll again and again: `for batch in consumer.batches()`, or `async for`.

        Args:
            timeout_ms: end when nothing came for so long; None goes on until `close`.
        """
        if timeout_ms is not None:
            self._deadline(timeout_ms)
        return Batches(self, timeout_ms)

    def _deadline(self, timeout_ms: int | None) -> float:
        wait_ms = self.config.lite.poll_timeout_ms if timeout_ms is None else timeout_ms
        if wait_ms < 0:
            raise ConfigError(f"timeout_ms={wait_ms}: expected 0 or more", group=self.group)
        return time.monotonic() + wait_ms / 1000

    def _poll(self, member: LiteMember, deadline: float | None) -> PolledBatch:
        with contextlib.closing(self._polling(member, deadline)) as polling:
            while True:
                try:
                    waiter, left_s = next(polling)
                except StopIteration as end:
                    return cast(PolledBatch, end.value)
                with contextlib.suppress(TimeoutError):
                    waiter.result(left_s)

    async def _apoll(self, member: LiteMember, deadline: float | None) -> PolledBatch:
        with contextlib.closing(self._polling(member, deadline)) as polling:
            while True:
                try:
                    waiter, left_s = next(polling)
                except StopIteration as end:
                    return cast(PolledBatch, end.value)
                await asyncio.wait((asyncio.wrap_future(waiter),), timeout=left_s)

    def _polling(
        self, member: LiteMember, deadline: float | None
    ) -> Generator[tuple[Future[None], float | None], None, PolledBatch]:
        """Take the next batch; yields what to wait for, and for how many seconds at most.

        Returns: the batch; an empty one after the deadline, which is looked at behind a last
            take: a message may have come in this very moment.
        """
        buffer, poller = member.buffer, threading.current_thread()
        while True:
            batch = buffer.take(poller, self.config.lite.poll_batch_size)
            if batch is not None:
                self.statistics.add("polled", len(batch))
                return batch
            left_s = None if deadline is None else deadline - time.monotonic()
            if buffer.is_closed or (left_s is not None and left_s <= 0):
                return NOTHING
            waiter = buffer.wait()
            if waiter is not None:
                try:
                    yield waiter, left_s
                finally:
                    buffer.give_up(waiter)

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Hand out nothing of these queues, and pull no more; what is buffered stays.

        Raises: StateError: one is not ours; none is paused.
        """
        self._live().buffer.pause(_several(queues))

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Go on with paused queues.

        Raises: StateError: one is not ours; none is resumed.
        """
        self._live().buffer.resume(_several(queues))

    # Offsets.

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store the group's offsets; returns when the brokers have acknowledged them.

        Args:
            offsets: of the next message to consume of each queue, as `batch.next_offset`; None
                commits everything polled, by any thread, of the queues that are still ours.
        Raises:
            StateError: a queue is not ours any more: its next owner goes on from the last
                commit. The others are committed.
            RemotingError, RouteError: a broker did not take it; commit again.
        """
        self._run(self._commit(offsets))

    async def acommit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """`commit` for asyncio code, on any loop."""
        await self._arun(self._commit(offsets))

    async def _commit(self, offsets: Mapping[MessageQueue, int] | None) -> None:
        if offsets is not None:
            for queue, offset in offsets.items():
                if offset < 0:
                    raise ConfigError(f"{queue}: offset {offset}: expected 0 or more")
        await self._live().commit(offsets)

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset of any queue as the broker has it; None if it has none."""

        async def ask() -> int | None:
            member = self._live()
            await member.address_of(queue)
            return await member.offsets.stored(queue)

        return self._run(ask())

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next message to be handed out.

        Raises: StateError: the queue is not ours.
        """
        return self._live().buffer.find(queue).position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on from `offset`, either way. It is stored with the next commit, auto commits too.

        Raises: StateError: the queue is not ours. ConfigError: the broker does not have it.
        """
        self._run(self._live().seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on from the oldest message the broker has; as `seek`."""
        self._run(self._live().seek(queue, None))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with the next message to be stored; as `seek`."""
        self._run(self._live().seek(queue, None, end=True))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset of any queue stored at or after a time; its end if all are older.

        RocketMQ 4.9 answers with the message stored nearest to it, or any one of that millisecond.

        Args:
            timestamp_ms: ms since 1970.
        """

        async def ask() -> int:
            member = self._live()
            address = await member.address_of(queue)
            return await member.client.api.search_offset(address, queue, timestamp_ms)

        return self._run(ask())

    # Topics.

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted.

        Raises: RouteError: no broker has the topic.
        """
        return self._run(self._live().queues_of(check_topic(topic)))

    def on_message_queues_changed(
        self, topic: str, listener: Callable[[str, list[MessageQueue]], object]
    ) -> None:
        """Call `listener(topic, queues)` whenever the topic's queues have changed.

        Looked at every `route_interval_ms`; a second listener of a topic replaces the first.
        """
        if self._member is not None:
            self._run(self._live().watch(check_topic(topic), listener))
        self._watched[check_topic(topic)] = listener

    def _live(self) -> LiteMember:
        if self._member is None or self._closed:
            raise StateError("the consumer is not running", group=self.group)
        return self._member

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._member is None or self._closed:
            work.close()
        return self._live().runtime.call(work)

    async def _arun(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._member is None or self._closed:
            work.close()
        return await self._live().client.acall(work)


class Batches:
    """What `LitePullConsumer.batches` returns; for `for` or for `async for`."""

    def __init__(self, consumer: LitePullConsumer, timeout_ms: int | None) -> None:
        self._consumer = consumer
        self._timeout_ms = timeout_ms

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PolledBatch:
        consumer = self._consumer
        if consumer._closed:
            raise StopIteration
        batch = consumer._poll(consumer._live(), self._deadline())
        if not batch:
            raise StopIteration
        return batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PolledBatch:
        consumer = self._consumer
        if consumer._closed:
            raise StopAsyncIteration
        batch = await consumer._apoll(consumer._live(), self._deadline())
        if not batch:
            raise StopAsyncIteration
        return batch

    def _deadline(self) -> float | None:
        return None if self._timeout_ms is None else self._consumer._deadline(self._timeout_ms)


def _several(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    # A queue is a tuple, so one alone would be taken for three of its fields.
    if isinstance(queues, MessageQueue):
        raise ConfigError(f"{queues}: expected a list of queues; give [queue] for one")
    return list(queues)
