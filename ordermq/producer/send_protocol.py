"""Send requests of one queue on the wire, and the receipts in their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ordermq.client.session import ClientSession
from ordermq.config import SendConfig
from ordermq.core import compression, receipts_of
from ordermq.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    OrderMQError,
    ProtocolError,
    RequestTimeout,
)
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import AUTO_CREATE_TOPIC
from ordermq.model.receipts import SendReceipt, SendReceipts
from ordermq.model.status import SendStatus
from ordermq.producer.pending_message import PendingMessage, is_single
from ordermq.producer.queue_selector import LatencyFaults
from ordermq.producer.retry_policy import AfterFailure, decide, is_outcome_unknown
from ordermq.remoting.codes import VERSION_WITH_TIMERS, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import SendHeader, SendReplyHeader
from ordermq.remoting.response_futures import ResponseFuture

if TYPE_CHECKING:
    from ordermq.producer.trace_sends import TraceSends


_STATUS: dict[int, SendStatus] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


def needs_compression(body: bytes, config: SendConfig) -> bool:
    """Return True if a body is compressed before it is sent; bodies of a batch never are."""
    return len(body) >= config.compress_msg_body_over_howmuch


async def compressed(body: bytes, config: SendConfig) -> tuple[bytes, int]:
    """Compress a body (docs/internals/protocol.md#system-flags).

    Returns: the body to send, and the sysFlag bits that name the compressor: the plain body and 0
        if compressing makes it no smaller, as with pictures. It could then be over the broker's
        limit, and would cost its readers time.
    """
    # Not on the I/O thread: 4 MiB take so long that queue locks would not be renewed in time.
    packed, sys_flag = await asyncio.to_thread(
        compression.compress, body, config.compress_type.value, config.compress_level
    )
    return (packed, sys_flag) if len(packed) < len(body) else (body, 0)


class SendProtocol:
    """Requests to one queue, one at a time."""

    def __init__(
        self,
        client: ClientSession,
        group: str,
        queue: MessageQueue,
        config: SendConfig,
        latency_faults: LatencyFaults | None = None,
        traces: TraceSends | None = None,
    ) -> None:
        self.queue = queue
        self._client = client
        self._config = config
        self._latency_faults = latency_faults  # records latencies; None measures nothing
        # The header of the last request; filled anew for each, because making one cost 2 us.
        self._header = SendHeader(
            producer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=config.default_topic_queue_nums,
            broker_name=queue.broker_name,
        )
        self._frames = client.api.send_frames(self._header)
        self._address = ""  # of the last request, for the errors of its answer
        self._sent_ms = 0
        self._version: int | None = None  # of the broker; asked for by the first timed message
        self._traces = traces
        # As the broker's last answer said, for traces.
        self._region: str | None = None
        self._is_trace_on = True

    def begin(
        self,
        batch: Sequence[PendingMessage],
        body: bytes,
        sys_flag: int,
        answer: ResponseFuture | None,
    ) -> bool:
        """Write a request to the socket; `answer` is notified of the outcome.

        Args:
            answer: None sends one-way: the broker does not answer.
        Returns: False if nothing was written; await `ready` on the I/O thread, then try again.
        Raises: RouteError: no route names the broker. BrokerError: it is too old for a timed
            message. OrderMQError: of the message's requirement.
        """
        client, first = self._client, batch[0]
        self._address = address = client.routes.master_of(self.queue.broker_name)
        if first.is_timed and not self._has_timers(address):
            return False
        self._fill_header(batch, sys_flag)
        # The last check before the write: what it allows is counted as sent.
        if first.requirement is not None and not first.requirement.is_met(address):
            return False
        if self._latency_faults is not None:
            self._sent_ms = client.clock.now_ms()
        return self._write(address, body, answer)

    def _write(self, address: str, body: bytes, answer: ResponseFuture | None) -> bool:
        timeout_ms = self._config.send_timeout_ms
        header, frames = self._header, self._frames
        return self._client.api.begin_send(address, header, frames, body, timeout_ms, answer)

    async def ready(self, batch: Sequence[PendingMessage]) -> None:
        """Return once the broker can be sent this batch.

        Raises: ConnectFailed, StateError: it cannot be reached, or does not tell its version.
            RouteError: no route names it. OrderMQError: of the message's requirement.
        """
        first = batch[0]
        address = self._client.routes.master_of(self.queue.broker_name)
        if first.is_timed and self._version is None:
            try:
                self._version = await self._client.heartbeats.version_of(address)
            except OrderMQError as error:
                if not is_outcome_unknown(error):
                    raise
                # That of the question: the message itself was not sent.
                raise ConnectFailed(
                    f"the broker does not tell its version, which a timed message needs: {error}",
                    address=address,
                ) from error
        if first.requirement is not None:
            await first.requirement.meet(address)
        await self._client.api.writable(address)

    def receipts(
        self, batch: Sequence[PendingMessage], body_bytes: int, answer: Command
    ) -> list[Sequence[SendReceipt]]:
        """Return the receipts of each message of the last request.

        Raises: BrokerError: the broker refused them. ProtocolError: the answer does not fit.
        """
        code, reply = self._read(body_bytes, answer)
        self._region = reply.region
        self._is_trace_on = reply.trace_on != "false"
        for message in batch:
            if message.is_watched:
                message.reply_header = reply
        place = reply.message_id, reply.queue_id, reply.queue_offset
        return self.stored(batch, *place, _STATUS[code], reply.recall_handle)

    def stored(
        self,
        batch: Sequence[PendingMessage],
        message_ids: str,
        queue_id: int,
        queue_offset: int,
        status: SendStatus = SendStatus.SEND_OK,
        recall_handle: str | None = None,
    ) -> list[Sequence[SendReceipt]]:
        """Return the receipts of each message of the last request, which the broker has stored.

        Args:
            message_ids: the broker's, joined with commas.
            queue_offset: of the first message.
        Raises: ProtocolError: there are more or fewer ids than messages.
        """
        broker_name = self.queue.broker_name
        if self._latency_faults is not None:
            latency_ms = self._client.clock.now_ms() - self._sent_ms
            self._latency_faults.record(broker_name, latency_ms)
        queue = self.queue
        if queue_id != queue.queue_id:  # the broker names the queue it chose
            queue = MessageQueue(queue.topic, broker_name, queue_id)
        receipts = receipts_of(
            batch, message_ids, SendReceipt, SendReceipts, queue, queue_offset, status,
            recall_handle,
        )  # fmt: skip
        if receipts is None:
            sent, told = sum(map(len, batch)), message_ids.count(",") + 1
            raise ProtocolError(
                f"the broker acknowledged {told} messages of {sent}",
                topic=self.queue.topic,
                broker=broker_name,
            )
        return receipts

    def trace(
        self, batch: Sequence[PendingMessage], receipts: Sequence[Sequence[SendReceipt]]
    ) -> None:
        """Record the traces of the last request's messages, which have these receipts."""
        if self._traces is not None and self._is_trace_on:
            topic = self.queue.topic
            self._traces.add_stored(batch, receipts, topic, self._address, self._region)

    def _read(self, body_bytes: int, answer: Command) -> tuple[int, SendReplyHeader]:
        return self._client.api.stored(self._address, self._header, body_bytes, answer)

    def after_failure(
        self, error: OrderMQError, attempts: int, outcome_unknown: bool
    ) -> tuple[AfterFailure, OrderMQError]:
        """Return the next step after a failed attempt, and the error to raise if it is the last."""
        return decide(error, attempts, outcome_unknown, self._config), error

    def record_failure(self, error: OrderMQError) -> None:
        """Record a failed attempt, so that unordered messages avoid a silent broker."""
        is_silent = isinstance(error, RequestTimeout | ConnectionLost | ConnectFailed)
        if self._latency_faults is not None and is_silent:
            self._latency_faults.record_unanswered(self.queue.broker_name)

    def _fill_header(self, batch: Sequence[PendingMessage], sys_flag: int) -> None:
        header, first = self._header, batch[0]
        header.sys_flag = sys_flag
        header.born_timestamp_ms = self._client.clock.wall_ms()
        if is_single(batch):
            header.flag, header.batch = first.flags[0], None
            header.properties = first.properties[0]
        else:  # the messages of a batch carry their own flags and properties
            header.flag, header.properties, header.batch = 0, "", True

    def _has_timers(self, address: str) -> bool:
        # False while the version is unknown. Brokers before 5.0 ignore the timer properties, so
        # a timed message would be delivered at once.
        if self._version is None:
            return False
        if self._version < VERSION_WITH_TIMERS:
            raise BrokerError(
                f"the broker (protocol version {self._version}) is older than RocketMQ 5.0 and "
                "would deliver a timed message at once: use delay_level",
                response_code=ResponseCode.VERSION_NOT_SUPPORTED,
                topic=self.queue.topic,
                broker=self.queue.broker_name,
                address=address,
            )
        return True
