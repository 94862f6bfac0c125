"""AsyncProducer: a producer for asyncio code; receipts and failures arrive on the caller's loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never, Self, Unpack

from ordermq.client.runtime import in_thread, shielded
from ordermq.clock import Clock
from ordermq.closing import AsyncStarting
from ordermq.config import ProducerConfig
from ordermq.config.checks import refuse_places, refuse_unknown
from ordermq.config.foreign_methods import ExplainsMethods
from ordermq.errors import ConfigError
from ordermq.model.codec import Codec
from ordermq.model.message import Message, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.receipts import SendReceipt
from ordermq.producer.hooks import SendCheck, SendHook
from ordermq.producer.pending_message import say_sent
from ordermq.producer.producer import Producer, no_pair
from ordermq.producer.queue_selector import QueueSelector, ShardingKey
from ordermq.producer.send_arguments import refuse_send, require_batch

if TYPE_CHECKING:
    from ordermq.config.settings import ProducerSettings
    from ordermq.health import ClientHealth
    from ordermq.model.message import MessageFields
    from ordermq.wall_time import Span

_CLOSE_TIMEOUT_S = 30.0
_FLUSH_TIMEOUT_S = 30.0


class AsyncProducer(ExplainsMethods, AsyncStarting):
    """A `Producer` whose sends are awaited, on any event loop of the process.

        async with AsyncProducer("shop", name_servers=...) as producer:
            receipt = await producer.send(Message("orders", b"paid"), sharding_key="o-17")

    Messages of one sharding key are stored in the order in which their sends began. A send whose
    caller is cancelled is not recalled: the message is sent all the same, and a failure is logged
    then, as nobody is left to raise it to.

    The arguments and settings are those of `Producer`.
    """

    _kind = "producer"

    def __init__(
        self,
        group: str | None = None,
        *misplaced: Never,
        name_servers: str | Sequence[str] | None = None,
        selector: str | QueueSelector = "java",
        instance_name: str | None = None,
        config: ProducerConfig | None = None,
        codec: Codec | None = None,
        clock: Clock | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        if misplaced:
            refuse_places(type(self), group, misplaced)
        self._producer = Producer(
            group,
            name_servers=name_servers,
            selector=selector,
            instance_name=instance_name,
            config=config,
            codec=codec,
            clock=clock,
            **settings,
        )
        self.group = self._producer.group
        self.client_id = self._producer.client_id
        self.config = self._producer.config

    def __repr__(self) -> str:
        return f"<AsyncProducer {self.group} {self.client_id}>"

    @property
    def blocking(self) -> Producer:
        """The producer inside, for metrics and for calls that are not here; most of them block."""
        return self._producer

    async def start(self) -> Self:
        """Start the client and return self; the first send connects to a server."""
        try:
            await shielded(in_thread(self._producer.start))
        except asyncio.CancelledError:
            await self.close(0.0)
            raise
        return self

    async def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Send what waits, for at most `timeout_s`, then disconnect.

        If the caller is cancelled, what waits fails and it disconnects all the same.
        """
        await shielded(in_thread(self._producer.close, timeout_s), self._producer.hurry_close)

    def add_hook(self, hook: SendHook) -> None:
        """Call `hook` around each send; only before `start`."""
        self._producer.add_hook(hook)

    def add_check(self, check: SendCheck) -> None:
        """Call `check(message)` before each send, as `Producer.add_check`."""
        self._producer.add_check(check)

    # Sending.

    def message(self, topic: str, value: Any, **fields: Unpack[MessageFields]) -> Message:
        """Return a message whose body is the codec's of `value`; as `Producer.message`."""
        return self._producer.message(topic, value, **fields)

    async def send(
        self,
        message: Message,
        *misplaced: Never,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> SendReceipt:
        """Send, and return when the broker has stored the message; raises as `Producer.send`.

        A caller that gives up, as by `asyncio.timeout`, does not know the outcome: the message is
        sent all the same. `send_nowait` keeps the receipt for later.
        """
        if misplaced or unknown or not isinstance(message, Message):
            refuse_send(AsyncProducer.send, message, misplaced, unknown)
        # Not by `asend`, which would be a second coroutine for each message.
        receipt: SendReceipt = await self._producer._handed_over(message, sharding_key, queue)
        return receipt

    async def send_batch(
        self,
        messages: Sequence[Message],
        *misplaced: Never,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> Sequence[SendReceipt]:
        """Send messages to one queue, all of them or none; as `Producer.send_batch`."""
        require_batch(AsyncProducer.send_batch, messages, misplaced, unknown)
        return await self._producer.asend_batch(messages, sharding_key=sharding_key, queue=queue)

    def send_nowait(
        self,
        message: Message,
        *misplaced: Never,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> asyncio.Future[SendReceipt]:
        """Hand a message over, and return a future of its receipt on the running loop.

        Messages of one key are stored in the order of the calls; `flush` waits for all of them.
        Nothing bounds how many wait in memory. Cancelling the future recalls no message:
        await `asyncio.shield(future)` to give up waiting and ask again later.

        Raises: ConfigError, StateError: as `send`, if that is known at once.
        """
        if misplaced or unknown or not isinstance(message, Message):
            refuse_send(AsyncProducer.send_nowait, message, misplaced, unknown)
        return self._producer.asend_nowait(message, sharding_key=sharding_key, queue=queue)

    async def send_many(
        self,
        events: Iterable[tuple[Message, ShardingKey | None]]
        | AsyncIterable[tuple[Message, ShardingKey | None]],
        *,
        max_in_flight: int = 256,
    ) -> list[SendReceipt]:
        """Send (message, sharding key) pairs, in order within a key, pipelined across keys.

        Args:
            events: plain or asynchronous; read no further ahead than `max_in_flight`.
            max_in_flight: messages sent ahead of the oldest one without receipt, 2..1000000.
        Returns: one receipt per message, in the order of `events`.
        Raises: as `send`, for the first message that failed; later ones may be stored. Else what
            `events` raised.
        """
        if not 2 <= max_in_flight <= 1_000_000:
            raise ConfigError(f"max_in_flight={max_in_flight}: expected 2..1000000")
        in_flight: deque[asyncio.Future[SendReceipt]] = deque()
        receipts: list[SendReceipt] = []
        source, refused = _each(events), None
        try:
            while True:
                if len(in_flight) == max_in_flight:
                    receipts.append(await in_flight.popleft())
                try:
                    in_flight.append(self._send_pair(await anext(source)))
                except StopAsyncIteration:
                    break
                except Exception as error:  # noqa: BLE001 - raised below
                    # The source's error, too: what was sent before it may have failed before.
                    refused = error
                    break
            while in_flight:
                receipts.append(await in_flight.popleft())
        except asyncio.CancelledError as error:
            say_sent(error)
            for receipt in in_flight:
                receipt.cancel()  # a failure is logged
            raise
        except BaseException:
            for receipt in in_flight:
                # Read, or asyncio reports each that fails as lost.
                receipt.add_done_callback(asyncio.Future.exception)
            raise
        if refused is not None:
            raise refused
        return receipts

    def _send_pair(self, event: tuple[Message, ShardingKey | None]) -> asyncio.Future[SendReceipt]:
        try:
            message, key = event
        except (TypeError, ValueError):
            raise no_pair(event) from None
        if not isinstance(message, Message):
            raise no_pair(event)
        return self.send_nowait(message, sharding_key=key)

    def send_oneway(
        self,
        message: Message,
        *misplaced: Never,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> None:
        """Send without waiting for the outcome, as `Producer.send_oneway`."""
        if misplaced or unknown or not isinstance(message, Message):
            refuse_send(AsyncProducer.send_oneway, message, misplaced, unknown)
        self._producer.send_oneway(message, sharding_key=sharding_key, queue=queue)

    async def flush(self, timeout_s: float = _FLUSH_TIMEOUT_S, **unknown: Never) -> None:
        """Wait until no message waits for its receipt; raises as `Producer.flush`."""
        if unknown:
            refuse_unknown(AsyncProducer.flush, unknown)
        await self._producer.aflush(timeout_s)

    # Requests and replies.

    async def request(
        self,
        message: Message,
        timeout_ms: Span = 3_000,
        *misplaced: Never,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> MessageView:
        """Send, and wait for the reply of a consumer of the topic; as `Producer.request`."""
        if misplaced or unknown or not isinstance(message, Message):
            refuse_send(AsyncProducer.request, message, misplaced, unknown)
        return await self._producer.arequest(
            message, timeout_ms, sharding_key=sharding_key, queue=queue
        )

    async def reply(
        self,
        request: MessageView,
        body: bytes,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> SendReceipt:
        """Reply to a request that was consumed; as `Producer.reply`."""
        return await self._producer.areply(
            request, body, tags=tags, keys=keys, properties=properties
        )

    # Other calls.

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues the selector chooses from, sorted; raises as `Producer.queues`."""
        return await in_thread(self._producer.queues, topic)

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Delete a timed message that is not due yet; as `Producer.recall`."""
        return await in_thread(self._producer.recall, topic, recall_handle)

    def resolve(self, topic: str, sharding_key: ShardingKey) -> bool:
        """Let a failed key go on; as `Producer.resolve`."""
        return self._producer.resolve(topic, sharding_key)

    async def health(self) -> ClientHealth:
        """Return what this producer can do at this moment, for a probe; never raises."""
        return await in_thread(self._producer.health)

    @property
    def hook_errors(self) -> int:
        """The number of exceptions that hooks raised; each is logged with its message."""
        return self._producer.hook_errors

    @property
    def oneway_failures(self) -> int:
        """The number of one-way messages that failed after their call returned; all are logged."""
        return self._producer.oneway_failures


async def _each(
    events: Iterable[tuple[Message, ShardingKey | None]]
    | AsyncIterable[tuple[Message, ShardingKey | None]],
) -> AsyncIterator[tuple[Message, ShardingKey | None]]:
    if isinstance(events, AsyncIterable):
        async for event in events:
            yield event
    else:
        for event in events:
            yield event
