"""Pull consumer: single pulls, where the caller says which queue, from where, and when."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack

from ordermq.client.name_server_api import parse_name_servers, refuse_proxies
from ordermq.client.routes import MASTER_ID, PullSource
from ordermq.client.session import ClientSession, new_client_id
from ordermq.client.store_times import offset_at_time
from ordermq.clock import Clock, SystemClock
from ordermq.closing import Starting, not_running
from ordermq.config import PullConsumerConfig
from ordermq.config.checks import refuse_places
from ordermq.config.foreign_methods import ExplainsMethods
from ordermq.consumer.dispatch.failure_policy import send_back
from ordermq.consumer.offsets.offset_committer import BrokerOffsets
from ordermq.core.status import MAX_OFFSET
from ordermq.errors import ConfigError, RemotingError, StateError
from ordermq.model.codec import Codec, require_codec
from ordermq.model.message import MessageBatch, MessageView
from ordermq.model.message_queue import MessageQueue, require_offset, require_queue
from ordermq.model.names import AUTO_CREATE_TOPIC, INNER_PRODUCER_GROUP, check_group, check_topic
from ordermq.model.subscription import Subscription
from ordermq.remoting.codes import PullFlag, ResponseCode
from ordermq.remoting.headers import PullHeader
from ordermq.value import Value
from ordermq.wall_time import moment_ms

if TYPE_CHECKING:
    from ordermq.config.settings import PullConsumerSettings
    from ordermq.wall_time import Moment

_T = TypeVar("_T")
_QUEUES = "fetch_subscribe_message_queues(topic)"


class PullStatus(StrEnum):
    """The end of a pull."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"  # the offset is the queue's end
    NO_MATCHED_MSG = "NO_MATCHED_MSG"  # other tags only, as far as the broker read: continue behind
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"  # the broker does not have this offset, or an admin moved it


# Codes of answers; every other code is an error and raises.
_STATUS = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


class PullResult(Value):
    """The answer to a pull.

    Args:
        next_begin_offset: the offset of the next pull of this queue, whatever the status.
        min_offset, max_offset: the oldest offset the broker had, and the next to be written.
        messages: ascending in offset; empty unless FOUND.
        suggested_broker_id: the replica to ask next, as the broker suggests; 0 is the master.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: MessageBatch
    suggested_broker_id: int = MASTER_ID


def _header_of_pull(
    group: str,
    queue: MessageQueue,
    subscription: Subscription,
    offset: int,
    max_messages: int,
    suspend_ms: int,
) -> PullHeader:
    """Return the header of a pull.

    Args: suspend_ms: time the broker may hold it until there is a message.
    """
    return PullHeader(
        group,
        queue.topic,
        queue.queue_id,
        offset,
        max_messages,
        # Not as LITE_PULL_MESSAGE, which Java's lite consumer uses from 5.0 on: 4.9 has none.
        PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if suspend_ms else 0),
        suspend_timeout_ms=suspend_ms,
        # Also of an SQL condition: brokers know those of heartbeats for subscribers only.
        subscription=subscription.expression,
        subscription_version=subscription.version if subscription.is_sql else 0,
        expression_type=subscription.expression_type,
        broker_name=queue.broker_name,
    )


async def _pull_once(
    client: ClientSession,
    source: PullSource,
    queue: MessageQueue,
    subscription: Subscription,
    header: PullHeader,
    timeout_ms: int,
) -> PullResult:
    """Pull once; on the I/O thread.

    Args:
        source: chooses the replica to ask.
        timeout_ms: wait for the answer; more than the broker may hold the pull.
    Raises: RemotingError: refused, or not answered. RouteError: the broker is not known.
    """
    _, address = source.choose()
    wanted = tuple(tag.encode() for tag in subscription.tags)
    try:
        code, reply, body = await client.api.pull(address, header, timeout_ms)
        status = _STATUS[ResponseCode(code)]
        records = body if status is PullStatus.FOUND else b""
        batch = client.api.batch(
            queue, records, wanted, header.queue_offset, reply.next_begin_offset
        )
    except RemotingError:
        # The next pull goes to another replica, if there is one: the caller decides when.
        await source.failed()
        raise
    if status is PullStatus.FOUND and len(batch) == 0:
        # The broker compares hashes only: these are other tags with the same one.
        status = PullStatus.NO_MATCHED_MSG
    return PullResult(
        status,
        reply.next_begin_offset,
        reply.min_offset,
        reply.max_offset,
        batch,
        reply.suggested_broker_id,
    )


class PullConsumer(ExplainsMethods, Starting):
    """Pulls from queues one by one, as `DefaultMQPullConsumer`: no sharing, no buffer, no loop.

    Every call asks the broker and returns with its answer; all are safe from any thread. The
    group only names where offsets are kept: this consumer is not listed as a member, where
    Java's is, for the group's members would leave it a share of their queues, which nobody reads.
    To share queues, see `LitePullConsumer`.

    Args:
        group: the consumer group, under which offsets are kept.
        name_servers: `host:port`, several joined by `;` or in a list; default those of `config`,
            or of the environment variable ORDERMQ_NAME_SERVERS.
        instance_name: a name in the client id, for admin tools; the id is unique with and
            without it.
        config: all settings at once; else give them flat, as `pull_timeout_ms=3000`.
        codec: makes the values of `message.value()`, as `JsonCodec()` (docs/codecs.md).
        clock: time, as an argument; for tests.
        settings: any field of `PullConsumerConfig`'s groups.
    Raises: ConfigError: a name or setting no broker would take.
    """

    _kind = "consumer"

    def __init__(
        self,
        group: str | None = None,
        *misplaced: Never,
        name_servers: str | Sequence[str] | None = None,
        instance_name: str | None = None,
        config: PullConsumerConfig | None = None,
        codec: Codec | None = None,
        clock: Clock | None = None,
        **settings: Unpack[PullConsumerSettings],
    ) -> None:
        if misplaced:
            refuse_places(type(self), group, misplaced)
        self.config = PullConsumerConfig.given(config, settings, type(self))
        self.group = check_group(self.config.group_or(group))
        self.name_servers = parse_name_servers(self.config.name_servers_or(name_servers))
        refuse_proxies(self.name_servers, self.group)
        self.client_id = new_client_id(self.config.remoting, self.name_servers, instance_name)
        self._codec = None if codec is None else require_codec(codec, self.group)
        self._clock = clock if clock is not None else SystemClock()
        self._client: ClientSession | None = None
        self._closed = False
        # Known offsets, as Java's client caches them; only `from_store=True` asks the broker.
        self._offsets: dict[MessageQueue, int] = {}
        self._sources: dict[MessageQueue, PullSource] = {}

    def __repr__(self) -> str:
        return f"<PullConsumer {self.group} {self.client_id}>"

    def start(self) -> Self:
        """Connect; return self.

        Raises: StateError: started before. RouteError: no name server answers. BrokerError: a
            broker denies access.
        """
        if self._client is not None or self._closed:
            raise StateError(
                "start() may be called only once; create a new PullConsumer", group=self.group
            )
        client = ClientSession(
            self.name_servers,
            self.config.remoting,
            self.client_id,
            clock=self._clock,
            # No consumer group: brokers would list this client, and members leave it a share.
            producer_groups=(INNER_PRODUCER_GROUP,),
        )

        async def join() -> None:
            # Every broker that creates topics has this one; the others become known with the
            # topics they hold.
            await client.routes.get(AUTO_CREATE_TOPIC)
            await client.heartbeats.register()

        self._client = client
        try:
            client.start(join)
        except BaseException:
            self._client = None
            client.close()  # an exception may have come behind its start
            raise
        return self

    def close(self) -> None:
        """Disconnect; a second call does nothing."""
        if self._client is None:
            return
        self._client.runtime.require_other_thread()
        self._closed = True
        self._client.close()

    # Messages.

    def pull(
        self,
        queue: MessageQueue,
        expression: str,
        offset: int,
        max_count: int,
        timeout_ms: int | None = None,
        *,
        sql: str | None = None,
    ) -> PullResult:
        """Pull what is there now.

        Args:
            expression: `*`, or tags joined by `||`.
            sql: with `*`, a condition on message properties, as `a > 5 AND region = 'x'`; for
                brokers with enablePropertyFilter=true.
            offset: of the first message wanted, 0 or more.
            max_count: messages at most, 1..1024; brokers may give fewer (RocketMQ's: 32).
            timeout_ms: how long to wait for the answer; default `pull_timeout_ms`.
        Raises:
            ConfigError: an argument out of its range, an illegal expression.
            RemotingError: the broker refused, or did not answer. RouteError: not known.
        """
        wanted = self._wanted(queue, expression, sql)
        return self._run(self._pull(queue, wanted, offset, max_count, timeout_ms))

    def pull_block_if_not_found(
        self,
        queue: MessageQueue,
        expression: str,
        offset: int,
        max_count: int,
        *,
        sql: str | None = None,
    ) -> PullResult:
        """`pull`, but at the queue's end wait for a message, `broker_suspend_ms` at most."""
        wanted = self._wanted(queue, expression, sql)
        return self._run(self._pull(queue, wanted, offset, max_count, None, is_waiting=True))

    async def apull(
        self,
        queue: MessageQueue,
        expression: str,
        offset: int,
        max_count: int,
        timeout_ms: int | None = None,
        *,
        sql: str | None = None,
    ) -> PullResult:
        """`pull` for asyncio code, on any loop."""
        wanted = self._wanted(queue, expression, sql)
        return await self._arun(self._pull(queue, wanted, offset, max_count, timeout_ms))

    async def apull_block_if_not_found(
        self,
        queue: MessageQueue,
        expression: str,
        offset: int,
        max_count: int,
        *,
        sql: str | None = None,
    ) -> PullResult:
        """`pull_block_if_not_found` for asyncio code, on any loop."""
        wanted = self._wanted(queue, expression, sql)
        return await self._arun(self._pull(queue, wanted, offset, max_count, None, is_waiting=True))

    def _wanted(self, queue: MessageQueue, expression: str, sql: str | None) -> Subscription:
        require_queue(queue, _QUEUES)
        return Subscription.of(queue.topic, expression, sql, self._clock.wall_ms())

    def send_back(self, message: MessageView, delay_level: int = 0) -> None:
        """Have the broker store a message again, in the group's retry topic, for later.

        Args:
            delay_level: 0 = longer with each try, 1..18 = the broker's levels, -1 = to the
                dead-letter topic now.
        Raises: RemotingError, RouteError: the broker did not confirm it; it may be stored or not.
        """
        max_retries = self.config.direct.max_reconsume_times
        client = self._live()

        async def work() -> None:
            await client.address_of(message.message_queue)
            await send_back(client, self.group, message, delay_level, max_retries)

        self._run(work())

    # Queues and their offsets.

    def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted.

        Raises: RouteError: no broker has the topic.
        """
        return self._run(self._live().queues(check_topic(topic)))

    def min_offset(self, queue: MessageQueue) -> int:
        """The oldest offset the broker still has."""
        require_queue(queue, _QUEUES)
        client = self._live()

        async def ask() -> int:
            return await client.api.min_offset(await client.address_of(queue), queue)

        return self._run(ask())

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset the next message of the queue will get."""
        require_queue(queue, _QUEUES)
        client = self._live()

        async def ask() -> int:
            return await client.api.max_offset(await client.address_of(queue), queue)

        return self._run(ask())

    def search_offset(self, queue: MessageQueue, timestamp_ms: Moment) -> int:
        """The first offset stored at or after a time; the queue's end if all are older.

        Brokers answer roughly, so the messages around their answer are looked at.

        Args:
            timestamp_ms: ms since 1970, a datetime (without a zone: local time), or an age, as
                "2h" or a timedelta.
        """
        require_queue(queue, _QUEUES)
        client = self._live()
        wanted_ms = moment_ms("timestamp_ms", timestamp_ms, client.clock.wall_ms())

        async def ask() -> int:
            await client.address_of(queue)  # its topic may be one never used before
            return await offset_at_time(client, self.group, queue, wanted_ms)

        return self._run(ask())

    def fetch_consume_offset(self, queue: MessageQueue, from_store: bool = False) -> int | None:
        """The group's offset of a queue, None if it has none.

        Args:
            from_store: ask the broker; else what this consumer last wrote or read, if anything.
        """
        require_queue(queue, _QUEUES)
        client = self._live()

        async def ask() -> int | None:
            known = self._offsets.get(queue)
            if known is not None and not from_store:
                return known
            await client.address_of(queue)
            stored = await BrokerOffsets(client, self.group).read(queue)
            if stored is not None:
                self._offsets[queue] = stored
            return stored

        return self._run(ask())

    def update_consume_offset(self, queue: MessageQueue, offset: int) -> None:
        """Store the group's offset of a queue, either way; returns when the broker has it.

        Args:
            offset: of the next message to consume, 0 or more.
        """
        require_queue(queue, _QUEUES)
        client = self._live()
        require_offset(offset, f"commit of {queue}")

        async def store() -> None:
            await client.address_of(queue)
            await BrokerOffsets(client, self.group).write(queue, offset)
            self._offsets[queue] = offset

        self._run(store())

    # On the I/O thread.

    async def _pull(
        self,
        queue: MessageQueue,
        wanted: Subscription,
        offset: int,
        max_count: int,
        timeout_ms: int | None,
        *,
        is_waiting: bool = False,
    ) -> PullResult:
        # A float's fraction would be dropped, and True be 1.
        are_whole = type(offset) is int and type(max_count) is int
        if not are_whole or not 0 <= offset <= MAX_OFFSET or not 1 <= max_count <= 1024:
            raise ConfigError(
                f"pull of {max_count!r} messages from offset {offset!r}: expected 1..1024, "
                "from 0 on, within 63 bits",
                topic=queue.topic,
            )
        # The queue may be of a topic never used before: its route says who its broker is.
        client, direct = self._live(), self.config.direct
        await client.address_of(queue)
        source = self._sources.get(queue)
        if source is None:
            # Remembered per queue: what one pull is told about replicas is for the next one.
            source = self._sources[queue] = PullSource(client.routes, queue)
        usual_ms = direct.suspended_pull_timeout_ms if is_waiting else direct.pull_timeout_ms
        suspend_ms = direct.broker_suspend_ms if is_waiting else 0
        header = _header_of_pull(self.group, queue, wanted, offset, max_count, suspend_ms)
        result = await _pull_once(
            client, source, queue, wanted, header, usual_ms if timeout_ms is None else timeout_ms
        )
        source.suggest(result.suggested_broker_id)
        if self._codec is not None:
            result.messages.codec = self._codec
        return result

    def _live(self) -> ClientSession:
        if self._client is None or self._closed:
            raise not_running("consumer", self.group, was_closed=self._closed)
        return self._client

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._client_or_close(work).call(work)

    async def _arun(self, work: Coroutine[Any, Any, _T]) -> _T:
        return await self._client_or_close(work).acall(work)

    def _client_or_close(self, work: Coroutine[Any, Any, Any]) -> ClientSession:
        try:
            return self._live()
        except StateError:
            work.close()  # else Python warns that it was never awaited
            raise
