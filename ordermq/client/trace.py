"""Message traces: records of sends and deliveries, sent in the background to a trace topic."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Sequence
from functools import partial

from ordermq import core
from ordermq.client.routes import publish_queues
from ordermq.client.runtime import cancelled
from ordermq.client.session import ClientSession
from ordermq.clock import Clock, wait_until_set
from ordermq.config import RemotingConfig, TraceConfig
from ordermq.errors import OrderMQError, RouteError
from ordermq.forking import ProcessBound
from ordermq.model.identifiers import unique_message_id
from ordermq.model.log_fields import log_fields
from ordermq.model.message import Message
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import AUTO_CREATE_TOPIC
from ordermq.model.properties import split_keys
from ordermq.remoting.headers import SendHeader
from ordermq.threads import Lock

_log = logging.getLogger("ordermq.client")
_SEND_TIMEOUT_MS = 5_000
_ENOUGH = 1_000  # records that are sent before the interval is over


class TraceDispatcher(ProcessBound):
    """Collects trace records from any thread and sends them every `trace_interval_ms`, or sooner
    if there are many.

    It has a session of its own, so that traces never wait behind messages, nor messages behind
    traces. Records that do not fit into the buffer, or that no broker takes, are dropped and
    counted.

    Args:
        group: group of the producer or consumer whose messages are traced.
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
        # Filled by any thread.
        self.records = core.TraceRecords(
            config.trace_buffer_max, _ENOUGH, self._hurry, self._drop_for_lack_of_room
        )
        self._counting = Lock()  # of `_dropped` only: several threads count
        self._dropped = 0
        self._turns = itertools.count()
        self._client: ClientSession | None = None
        self._sending: asyncio.Task[None] | None = None  # the loop
        self._due = asyncio.Event()
        self._is_closing = False

    @property
    def dropped(self) -> int:
        """Number of records that were dropped."""
        return self._dropped

    def _hurry(self) -> None:
        if self._client is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nothing is sent any more
                self._client.runtime.post(self._due.set)

    def _drop_for_lack_of_room(self, count: int) -> None:
        self.drop(count, f"trace_buffer_max={self.config.trace_buffer_max} records wait")

    def start(self) -> None:
        """Connect and begin to send; from any thread but the I/O thread."""
        client = self._client = ClientSession(
            self._name_servers,
            self._remoting,
            clock=self._clock,
            producer_groups=(self._group,),
        )

        async def begin() -> None:
            self._sending = client.supervisor.start(
                "traces", partial(self._send_waiting, client), self._group
            )

        client.start(begin)

    # On the I/O thread. The end is a part of its owner's, which no exception can leave half done.

    async def flush(self) -> None:
        """Send the buffered records, for at most 5 s; call `end` next."""
        self._is_closing = True  # the loop sends once more, and ends
        self._due.set()
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=_SEND_TIMEOUT_MS / 1_000)

    async def end(self) -> None:
        """Disconnect; records that wait are dropped."""
        await cancelled(self._sending)
        while (left := self.records.take()) is not None:
            self.drop(left[2], "closed before they were sent")
        if self._client is not None:
            await self._client.end()

    async def _send_waiting(self, client: ClientSession) -> bool:
        """Send what has gathered after an interval; return False for the last time."""
        await wait_until_set(self._due, self._clock, self.config.trace_interval_ms)
        self._due.clear()
        is_last = self._is_closing
        # Records of one message may be split: tools find them by the keys of the trace message.
        while (taken := self.records.take()) is not None:
            await self._send(client, *taken)
        return not is_last

    async def _send(self, client: ClientSession, text: bytes, words: bytes, count: int) -> None:
        try:
            queue = await self._queue(client)
            keys = list(dict.fromkeys(split_keys(words.decode())))
            message = Message(queue.topic, text, keys=keys)
            header = SendHeader(
                producer_group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                born_timestamp_ms=self._clock.wall_ms(),
                properties=message.wire_properties(None, unique_message_id()),
                broker_name=queue.broker_name,
            )
            address = client.routes.master_of(queue.broker_name)
            await client.api.send(address, header, text, _SEND_TIMEOUT_MS)
        except OrderMQError as error:
            # No retry: a trace is worth less than the memory it waits in.
            self.drop(count, str(error))

    async def _queue(self, client: ClientSession) -> MessageQueue:
        """Return the next queue of the trace topic, in turn; its first message may create it."""
        topic = self.config.customized_trace_topic
        # RocketMQ creates the trace topic only with `traceTopicEnable=true`.
        route = await client.routes.get(topic) or await client.routes.get(AUTO_CREATE_TOPIC)
        queues = [] if route is None else publish_queues(topic, route)
        if not queues:
            raise RouteError(
                "trace topic not found on any broker: create it, or set enable_msg_trace=False",
                topic=topic,
            )
        return queues[next(self._turns) % len(queues)]

    def drop(self, count: int, reason: str) -> None:
        """Count records that are dropped; any thread."""
        with self._counting:
            is_first = not self._dropped
            self._dropped += count
        if is_first:  # one line per client; the count is in `dropped`
            _log.warning(
                "%s: dropping message traces: %s; the number is in traces_dropped",
                self._group,
                reason,
                extra=log_fields(group=self._group),
            )
