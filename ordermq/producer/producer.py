"""The producer: messages of one sharding key are stored in the order they were sent."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ordermq.client.name_server_api import parse_name_servers
from ordermq.client.session import ClientSession, new_client_id
from ordermq.client.trace import TraceDispatcher
from ordermq.clock import Clock, SystemClock
from ordermq.config import ProducerConfig
from ordermq.core import compression
from ordermq.errors import ConfigError, OrderMQError, StateError
from ordermq.model.message import Message
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_group, unwrapped
from ordermq.model.recall_handle import RecallHandle
from ordermq.model.status import SendReceipt
from ordermq.producer.accumulator import Intake, Parcel
from ordermq.producer.asking import Asking
from ordermq.producer.entries import Entries
from ordermq.producer.faults import Faults
from ordermq.producer.hooks import SendCheck, SendHook, SendHooks, TraceSends
from ordermq.producer.packing import packed
from ordermq.producer.pending_message import Entry
from ordermq.producer.queue_selector import Targets
from ordermq.producer.queue_sender import QueueLane
from ordermq.producer.selectors import QueueSelector, ShardingKey, selector_of
from ordermq.producer.waiters import Awaited, SendWindow, Together
from ordermq.remoting.headers import RecallHeader, SendHeader

_log = logging.getLogger("ordermq.producer")
_FLUSH_TICK_MS = 5


class Producer(Asking):
    """Sends messages; those of one sharding key in order.

    Args:
        group: the producer group, for the broker's statistics and transactions.
        name_servers: `host:port`, several joined by `;` or in a list.
        selector: which queue a key goes to: "java" (the classic Java client's choice), "go",
            "sip", "sha256", or a function (queues, message, key) -> queue. All producers of
            an ordered topic must agree.
        instance_name: a name in the client id, for admins to read; the id is unique with and
            without it.
        config: all settings at once; else give them flat, as `send_timeout_ms=500`.
        clock: time, as an argument; for tests.
    Raises: ConfigError: a name or setting no broker would take.

    Any thread may send. Messages without a key go to the queues in turn.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | list[str],
        selector: str | QueueSelector = "java",
        instance_name: str | None = None,
        config: ProducerConfig | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.group = check_group(group)
        self.name_servers = parse_name_servers(name_servers)
        self.config = ProducerConfig.given(config, settings)
        self.client_id = new_client_id(
            self.config.remoting, self.name_servers, instance_name, is_producer=True
        )
        compression.require(self.config.send.compress_type)
        self._clock = clock if clock is not None else SystemClock()
        self._faults = Faults(self._clock) if self.config.send.send_latency_fault else None
        self._targets = Targets(selector_of(selector), self.config.send, self._faults)
        self._client: ClientSession | None = None
        self._closed = False
        self._lanes: dict[MessageQueue, QueueLane] = {}
        self._under_way: set[QueueLane] = set()
        self._intake: Intake | None = None
        self._hooks = SendHooks(self.group, self._clock)
        self._entries = Entries(self.config.send, self._hooks)
        self._traces: TraceDispatcher | None = None

    def __repr__(self) -> str:
        return f"<Producer {self.group} {self.client_id}>"

    def start(self) -> None:
        """Get ready; a server is first talked to by the first send."""
        if self._client is not None or self._closed:
            raise StateError("a producer starts once", group=self.group)
        client = self._client = ClientSession(
            self.name_servers,
            self.config.remoting,
            self.client_id,
            clock=self._clock,
            producer_groups=(self.group,),
            on_request=self._on_request,
        )
        client.start()
        self._intake = Intake(client, self._targets, self._lane, self._under_way)
        self._begin_asking(client, self._targets)
        if self.config.trace.enable_msg_trace:
            self._begin_traces(client)

    def _begin_traces(self, client: ClientSession) -> None:
        self._traces = TraceDispatcher(
            self.group, self.name_servers, self.config.remoting, self.config.trace, self._clock
        )
        self._traces.start()
        self._hooks.hooks.append(TraceSends(self._traces, client.routes.master_of))

    def add_hook(self, hook: SendHook) -> None:
        """Have `hook` called around each send; before `start`."""
        self._require_not_started("add_hook")
        self._hooks.hooks.append(hook)

    def add_check(self, check: SendCheck) -> None:
        """Have `check(message)` called before each send; what it raises is raised there.

        Nothing is sent then. Before `start`.
        """
        self._require_not_started("add_check")
        self._entries.checks.append(check)

    def _require_not_started(self, call: str) -> None:
        if self._client is not None or self._closed:
            raise StateError(f"{call} before the producer starts", group=self.group)

    @property
    def traces_dropped(self) -> int:
        """Trace records nobody will see: too many waited, or no broker took them."""
        return 0 if self._traces is None else self._traces.dropped

    @property
    def hook_errors(self) -> int:
        """How often a hook raised; each is logged with its message."""
        return self._hooks.errors

    def close(self, timeout_s: float = 30.0) -> None:
        """Send what is under way, at most `timeout_s`, then disconnect."""
        client = self._client
        if client is None or self._closed:
            return
        self._closed = True
        try:
            client.runtime.call(self._flush(), timeout_s)
        except TimeoutError:
            _log.error("closed after %.0f s with messages not acknowledged", timeout_s)
        client.runtime.call(self._leave(client))
        if self._traces is not None:
            self._traces.close()
        client.close()

    # Sending.

    def send(
        self,
        message: Message,
        *,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
    ) -> SendReceipt:
        """Send and wait until the broker has it.

        Args:
            sharding_key: messages of one key stay in order; goes through the selector.
            queue: send there, whatever the selector says.
        Raises:
            RequestTimeout, ConnectionLost: the outcome is unknown after all re-sends; the key
                fails until `resolve`.
            KeyFailed: an earlier send of this key ended so.
            BrokerError: the broker refused it; it is not stored.
            ConnectFailed: its broker is away, after all re-sends; it is not stored.
            RouteError: no broker has the topic.
        """
        return self._send_together([message], sharding_key, queue)[0]

    async def asend(
        self,
        message: Message,
        *,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
    ) -> SendReceipt:
        """`send` for asyncio code, on any loop; keep the order by awaiting in order."""
        awaited = Awaited()
        entry = self._entries.one(message, sharding_key, awaited.on_done)
        self._hand_in(Parcel(message, sharding_key, queue, [entry]))
        return await awaited.receipt

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
    ) -> Sequence[SendReceipt]:
        """Send messages of one topic to one queue, back to back, and all of them or none.

        Only those that one request cannot hold go in several, one after the other: more than
        `max_batch_bytes`, and delayed ones.

        Returns: a receipt a message; made when it is looked at.
        Raises: ConfigError: none, or of several topics; else as `send`.
        """
        if not messages:
            raise ConfigError("send_batch needs at least one message")
        if len({message.topic for message in messages}) > 1:
            raise ConfigError("send_batch takes messages of one topic only")
        return self._send_together(messages, sharding_key, queue)

    def send_many(
        self,
        events: Iterable[tuple[Message, ShardingKey | None]],
        *,
        max_in_flight: int = 256,
    ) -> Iterator[SendReceipt]:
        """Send (message, sharding key) pairs, in order within a key, pipelined across keys.

        Args:
            max_in_flight: messages sent ahead of the receipts handed out, 2..1000000.
        Yields: a receipt a message, in the order of `events`. It must be exhausted.
        Raises: as `send`, for the first message that failed; later ones may be stored, but
            none of the failed one's key after an unknown outcome.
        """
        if not 2 <= max_in_flight <= 1_000_000:
            raise ConfigError(f"max_in_flight={max_in_flight}: expected 2..1000000")
        self._live()
        window = SendWindow()
        under_way: deque[Entry] = deque()
        refused: Exception | None = None
        for message, key in events:
            try:
                entry = self._entries.one(message, key, window.on_done)
            except Exception as error:  # noqa: BLE001 - raised below
                refused = error  # after the receipts of those before it
                break
            under_way.append(entry)
            self._hand_in(Parcel(message, key, None, [entry]), is_awaited=False)
            while under_way and (len(under_way) >= max_in_flight or under_way[0].is_done):
                yield window.receipt(under_way.popleft())
        while under_way:
            yield window.receipt(under_way.popleft())
        if refused is not None:
            raise refused

    def _send_together(
        self,
        messages: Sequence[Message],
        key: ShardingKey | None,
        queue: MessageQueue | None,
    ) -> Sequence[SendReceipt]:
        if self._live().runtime.is_io_thread:
            raise StateError("a blocking send on the I/O thread: use `asend` there")
        together = Together(len(messages))
        entries = self._entries.together(messages, key, together.on_done)
        self._hand_in(Parcel(messages[0], key, queue, entries))
        together.wait()
        if len(entries) == 1:
            return entries[0].outcomes()
        return [receipt for entry in entries for receipt in entry.outcomes()]

    def _hand_in(self, parcel: Parcel, *, is_awaited: bool = True) -> None:
        self._live()
        if parcel.is_free:
            self._let_move(parcel.entries[0])
        assert self._intake is not None
        self._intake.hand_in(parcel, is_awaited=is_awaited)

    def send_oneway(
        self,
        message: Message,
        *,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
    ) -> None:
        """Send without an acknowledgement: it may be lost, and nobody is told."""
        client = self._live()
        entry = self._entries.one(message, sharding_key, _nothing)

        async def work() -> None:
            await self._targets.learn(client.routes, message.topic)
            target = self._targets.choose(client.routes, message, sharding_key, queue)
            body, sys_flag = await packed(entry.bodies[0], self.config.send)
            header = SendHeader(
                producer_group=self.group,
                topic=message.topic,
                queue_id=target.queue_id,
                sys_flag=sys_flag,
                born_timestamp_ms=self._clock.wall_ms(),
                flag=message.flag,
                properties=entry.properties[0],
                broker_name=target.broker_name,
            )
            address = client.routes.master_of(target.broker_name)
            await client.api.send_oneway(address, header, body)

        client.runtime.call(work())

    def recall(self, topic: str, recall_handle: str) -> str:
        """Take back a timed message that is not due yet.

        RocketMQ's brokers do it since 5.3.2, with `recallMessageEnable=true`. They say yes once
        they noted it, also for a message recalled before; the embedded one when it is gone.

        Args: recall_handle: that of its receipt.
        Returns: the message's id.
        Raises:
            ConfigError: no handle, or of another topic.
            BrokerError: too late, no such message, or the broker does not do it.
            RouteError: no broker has the topic.
        """
        client = self._live()
        handle = RecallHandle.of_text(recall_handle)
        if unwrapped(self.config.remoting.namespace, handle.topic) != topic:
            raise ConfigError(f"the recall handle is of topic {handle.topic!r}", topic=topic)

        async def work() -> str:
            await client.routes.get(topic)
            address = client.routes.master_of(handle.broker_name)
            header = RecallHeader(topic, recall_handle, self.group, handle.broker_name)
            return await client.api.recall(address, header, self.config.send.send_timeout_ms)

        return client.runtime.call(work())

    def resolve(self, topic: str, sharding_key: ShardingKey) -> bool:
        """Let a failed key go on, after you looked whether its message arrived.

        Returns: False if the key had not failed.
        """
        client = self._live()

        async def work() -> bool:
            # In every lane: if queues changed, the key may have failed in several.
            lanes = [lane for queue, lane in list(self._lanes.items()) if queue.topic == topic]
            return sum(lane.resolve(sharding_key) for lane in lanes) > 0

        return client.runtime.call(work())

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues the selector chooses from, sorted.

        Raises: RouteError: no broker has the topic.
        """
        client = self._live()

        async def work() -> list[MessageQueue]:
            await self._targets.learn(client.routes, topic)
            return list(self._targets.queues(client.routes, topic))

        return client.runtime.call(work())

    # On the I/O thread.

    def _lane(self, queue: MessageQueue) -> QueueLane:
        lane = self._lanes.get(queue)
        if lane is None:
            assert self._client is not None
            lane = QueueLane(
                self._client,
                self.group,
                queue,
                self.config.send,
                self._detour,
                self._faults,
                self._under_way,
            )
            lane = self._lanes.setdefault(queue, lane)  # two threads may want its first
        return lane

    def _detour(self, queue: MessageQueue, entry: Entry) -> bool:
        """Hand an unordered message that a broker did not take to another, if there is one."""
        if self._closed or self._client is None:
            return False
        try:
            target = self._targets.elsewhere(self._client.routes, queue)
        except OrderMQError:  # the topic's queues changed meanwhile: it stays, and is told so
            return False
        if target is None:
            return False
        entry.moves_left -= 1
        lane = self._lane(target)
        lane.put([entry])
        lane.begin()
        return True

    async def _flush(self) -> None:
        assert self._intake is not None
        while not (self._intake.is_empty and all(lane.is_idle for lane in [*self._lanes.values()])):
            await self._clock.sleep_ms(_FLUSH_TICK_MS)

    async def _leave(self, client: ClientSession) -> None:
        await client.stop_loops()
        self._stop_asking()
        assert self._intake is not None
        self._intake.close(self._not_running())
        await asyncio.gather(*(lane.stop() for lane in [*self._lanes.values()]))
        await client.leave(producer_group=self.group)
        await client.disconnect()

    def _live(self) -> ClientSession:
        if self._client is None or self._closed:
            raise self._not_running()
        return self._client

    def _not_running(self) -> StateError:
        return StateError(
            "the producer is not running: call start(), or use it in a `with` block",
            group=self.group,
        )


def _nothing(entry: Entry) -> None:
    return None
