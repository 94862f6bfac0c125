"""Sends message traces, beside everything else: over connections of its own, never waited for."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import deque
from collections.abc import Sequence

from ordermq.client.routes import publish_queues
from ordermq.client.runtime import cancelled, wait_until_set
from ordermq.client.session import ClientSession
from ordermq.clock import Clock
from ordermq.config import RemotingConfig
from ordermq.config.trace import TraceConfig
from ordermq.errors import OrderMQError, RouteError
from ordermq.model.identifiers import unique_message_id
from ordermq.model.message import Message
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import AUTO_CREATE_TOPIC
from ordermq.remoting.headers import SendHeader
from ordermq.remoting.trace import TraceRecord, keys_of

_log = logging.getLogger("ordermq.client")
_SEND_TIMEOUT_MS = 5_000
_MOST_BYTES = 128_000  # of one message, about; as Java's
_MOST_KEY_BYTES = 16_000  # of one message, about: its keys must fit into its properties


class TraceDispatcher:
    """Takes records from any thread and sends them from time to time.

    What does not fit into the buffer, and what no broker takes, is dropped and counted.

    Args:
        group: whose messages these are.
    """

    def __init__(
        self,
        group: str,
        name_servers: Sequence[str],
        remoting: RemotingConfig,
        config: TraceConfig,
        clock: Clock,
    ) -> None:
        self.config = config
        self._group = f"_INNER_TRACE_PRODUCER-{group}"[:120]
        self._name_servers = tuple(name_servers)
        self._remoting = remoting
        self._clock = clock
        self._waiting: deque[TraceRecord] = deque()
        self._counting = threading.Lock()  # the counter alone: several threads drop
        self._dropped = 0
        self._turns = itertools.count()
        self._client: ClientSession | None = None
        self._sending: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    @property
    def dropped(self) -> int:
        """Records that nobody will see."""
        return self._dropped

    def append(self, records: Sequence[TraceRecord]) -> None:
        """Take records; returns at once, whatever becomes of them."""
        if len(self._waiting) + len(records) > self.config.trace_buffer_max:
            self._drop(
                len(records), f"trace_buffer_max={self.config.trace_buffer_max} wait already"
            )
        else:
            self._waiting.extend(records)

    def start(self) -> None:
        """Begin to send."""
        client = self._client = ClientSession(
            self._name_servers,
            self._remoting,
            clock=self._clock,
            producer_groups=(self._group,),
        )

        async def begin() -> None:
            self._sending = client.runtime.spawn(self._run(client), f"trace {self._group}")

        client.start(begin)

    def close(self) -> None:
        """Send what waits, and disconnect."""
        client, self._client = self._client, None
        if client is None:
            return

        async def end() -> None:
            self._closing.set()
            if self._sending is not None:
                await asyncio.wait([self._sending], timeout=_SEND_TIMEOUT_MS / 1_000)
            await cancelled(self._sending)

        client.call(end())
        client.close()

    # On the I/O thread.

    async def _run(self, client: ClientSession) -> None:
        is_last = False
        while not is_last:
            is_last = await wait_until_set(
                self._closing, self._clock, self.config.trace_interval_ms
            )
            while self._waiting:
                await self._send(client, *self._take())

    def _take(self) -> tuple[list[TraceRecord], str]:
        """What goes into one message: the records, and their text."""
        size = key_size = 0
        records: list[TraceRecord] = []
        parts: list[str] = []
        while self._waiting and size < _MOST_BYTES and key_size < _MOST_KEY_BYTES:
            record = self._waiting.popleft()
            records.append(record)
            parts.append(record.to_text())
            size += len(parts[-1])
            key_size += len(record.message_id) + len((record.keys or "").encode()) + 2
        return records, "".join(parts)

    async def _send(self, client: ClientSession, records: list[TraceRecord], text: str) -> None:
        try:
            queue = await self._queue(client)
            message = Message(queue.topic, text.encode(), keys=keys_of(records))
            header = SendHeader(
                producer_group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                born_timestamp_ms=self._clock.wall_ms(),
                properties=message.wire_properties(None, unique_message_id()),
                broker_name=queue.broker_name,
            )
            address = client.routes.master_of(queue.broker_name)
            await client.api.send(address, header, text.encode(), _SEND_TIMEOUT_MS)
        except OrderMQError as error:
            self._drop(len(records), str(error))

    async def _queue(self, client: ClientSession) -> MessageQueue:
        """The next of the trace topic, which its first message may create."""
        topic = self.config.customized_trace_topic
        route = await client.routes.get(topic) or await client.routes.get(AUTO_CREATE_TOPIC)
        queues = [] if route is None else publish_queues(topic, route)
        if not queues:
            raise RouteError("no broker takes message traces: create their topic", topic=topic)
        return queues[next(self._turns) % len(queues)]

    def _drop(self, count: int, reason: str) -> None:
        with self._counting:
            is_first = not self._dropped
            self._dropped += count
        if is_first:  # one line, not one a message
            _log.warning("%s: message traces are dropped from now on: %s", self._group, reason)
