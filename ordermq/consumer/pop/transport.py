"""Transport of popped batches: receive, acknowledge, extend and give back
(docs/internals/semantics.md#pop)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from ordermq.client.session import ClientSession
from ordermq.config import PopConfig
from ordermq.errors import BrokerError, Fenced, ProtocolError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import wrapped
from ordermq.model.subscription import Subscription
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.pop import (
    ORDERED,
    BatchAck,
    ChangeInvisibleHeader,
    PopHandle,
    PopHeader,
    PopReplyHeader,
    acks_to_body,
    offsets_of_reply,
)

_FROM_FIRST, _FROM_LAST = 0, 1
_NEEDS_5 = "; consume_mode='pop' needs brokers of RocketMQ 5, use 'pull' with others"


class PoppedBatch:
    """The messages of one queue that a broker has leased to this member; on the I/O thread.

    Args:
        epoch: the broker's time of the pop; grows with each batch of the queue.
        start: the group's offset at the pop.
        offsets: of the messages, ascending; at least one.
        body: their records.
        is_fenced: the broker refuses what comes late.
        asked_ms: when the pop was sent, on the monotonic clock. A broker that held it counts the
            lease from a later time.
    Attributes:
        acknowledged: everything before this offset is.
        is_releasing: the last acknowledgement is on its way, and with it the queue to others.
    """

    def __init__(
        self,
        queue: MessageQueue,
        epoch: int,
        start: int,
        offsets: Sequence[int],
        body: bytes,
        is_fenced: bool,
        asked_ms: int,
    ) -> None:
        self.queue = queue
        self.epoch = epoch
        self.start = start
        self.offsets = offsets
        self.body = body
        self.is_fenced = is_fenced
        self.asked_ms = asked_ms
        self.acknowledged = start
        self.is_releasing = False

    @property
    def end(self) -> int:
        """The offset behind the last message."""
        return self.offsets[-1] + 1

    @property
    def is_acknowledged(self) -> bool:
        return self.acknowledged >= self.end

    def unacknowledged(self, end: int) -> list[int]:
        """Return the offsets before `end` that are not acknowledged yet."""
        return [offset for offset in self.offsets if self.acknowledged <= offset < end]


class PopTransport(Protocol):
    """Requests about popped batches; on the I/O thread.

    All but `receive` raise: Fenced: the batch is another member's. RemotingError, RouteError: it
    is not known whether the broker did it.
    """

    async def receive(
        self, queue: MessageQueue, subscription: Subscription, attempt_id: str
    ) -> PoppedBatch | None:
        """Wait for messages of a queue; None: there were none in the time of a poll.

        Args:
            attempt_id: the one of the last call if that had no answer: its messages come again.
        Raises: RemotingError, RouteError. ProtocolError: a malformed answer.
        """

    async def acknowledge(self, batch: PoppedBatch, end: int) -> None:
        """Acknowledge all messages before the offset `end`."""

    async def extend(self, batch: PoppedBatch) -> None:
        """Lease what is not acknowledged for the whole time again, from the receipt on."""

    async def give_back(self, batch: PoppedBatch) -> None:
        """End the lease of what is not acknowledged, for other members to take."""

    async def close(self) -> None:
        """Return once nothing is received any more; what came late is given back."""


class RemotingBatch(PoppedBatch):
    """A batch with the handle that names it to brokers."""

    def __init__(self, *given: Any, handle: PopHandle) -> None:
        super().__init__(*given)
        self.handle = handle


class RemotingPop:
    """POP over the protocol of brokers; fulfils `PopTransport`."""

    def __init__(
        self, client: ClientSession, group: str, config: PopConfig, *, from_first: bool
    ) -> None:
        self._client = client
        self._group = group
        self._config = config
        # Members store where a queue starts before they pop it; this is for a queue of a broker
        # that has lost that.
        self._init_mode = _FROM_FIRST if from_first else _FROM_LAST

    async def receive(
        self, queue: MessageQueue, subscription: Subscription, attempt_id: str
    ) -> PoppedBatch | None:
        config, clock = self._config, self._client.clock
        header = PopHeader(
            self._group,
            queue.topic,
            queue.queue_id,
            config.pop_batch_size,
            config.pop_invisible_ms,
            config.pop_poll_ms,
            clock.wall_ms(),
            self._init_mode,
            subscription.expression_type,
            subscription.expression,
            order=True,
            attempt_id=attempt_id,
            broker_name=queue.broker_name,
            fenced=True,
        )
        asked_ms = clock.now_ms()
        timeout_ms = config.pop_poll_ms + self._client.config.request_timeout_ms
        command = Command.request(RequestCode.POP_MESSAGE, header.to_ext())
        answer = await self._request(queue, command, timeout_ms)
        if answer.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND):
            return None
        if answer.code == ResponseCode.POLLING_FULL:
            await clock.sleep_ms(config.pop_poll_ms)
            return None
        self._check(answer, "broker refused the pop", queue)
        reply = PopReplyHeader.from_ext(answer.ext)
        parts = offsets_of_reply(reply)
        if len(parts) != 1 or parts[0].queue_id != queue.queue_id:
            raise ProtocolError(f"a pop of {queue} was answered with {len(parts)} queues' messages")
        if reply.revive_queue != ORDERED:
            raise ProtocolError(f"a pop of {queue} in order was answered as one without")
        part = parts[0]
        handle = PopHandle(
            part.start,
            reply.pop_ms,
            reply.invisible_ms,
            reply.revive_queue,
            "0",
            queue.broker_name,
            queue.queue_id,
        )
        return RemotingBatch(
            queue,
            reply.pop_ms,
            part.start,
            part.offsets,
            answer.body,
            bool(reply.fenced),
            asked_ms,
            handle=handle,
        )

    async def acknowledge(self, batch: PoppedBatch, end: int) -> None:
        assert isinstance(batch, RemotingBatch)
        offsets = batch.unacknowledged(end)
        if offsets:
            namespace = self._client.config.namespace  # names in this body are one letter each
            group, topic = wrapped(namespace, self._group), wrapped(namespace, batch.queue.topic)
            ack = BatchAck(group, topic, batch.handle, offsets)
            body = acks_to_body(batch.queue.broker_name, [ack])
            ext = {"omqFenced": "true", "bname": batch.queue.broker_name}
            command = Command.request(RequestCode.BATCH_ACK_MESSAGE, ext, body)
            answer = await self._request(batch.queue, command)
            self._check(answer, "broker did not take the acknowledgement", batch.queue, batch)
        batch.acknowledged = max(batch.acknowledged, end)

    async def extend(self, batch: PoppedBatch) -> None:
        # One message keeps the queue from all other members; the last one is acknowledged last.
        await self._change(batch, batch.offsets[-1], self._config.pop_invisible_ms)

    async def give_back(self, batch: PoppedBatch) -> None:
        # Each has a time of its own, and the queue is blocked until the last of them.
        left = batch.unacknowledged(batch.end)
        await asyncio.gather(*(self._change(batch, offset, 0) for offset in left))

    async def close(self) -> None:
        """Nothing: the fetcher waits for each pop."""

    async def _change(self, batch: PoppedBatch, offset: int, invisible_ms: int) -> None:
        assert isinstance(batch, RemotingBatch)
        header = ChangeInvisibleHeader(
            self._group,
            batch.queue.topic,
            batch.queue.queue_id,
            batch.handle.text(offset),
            offset,
            invisible_ms,
            batch.queue.broker_name,
            fenced=True,
        )
        command = Command.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext())
        answer = await self._request(batch.queue, command)
        self._check(answer, "broker did not change the lease", batch.queue, batch)

    async def _request(
        self, queue: MessageQueue, command: Command, timeout_ms: int | None = None
    ) -> Command:
        client = self._client
        address = client.routes.master_of(queue.broker_name)
        return await client.connections.request(
            address, command, timeout_ms or client.config.offset_timeout_ms
        )

    def _check(
        self, answer: Command, failure: str, queue: MessageQueue, batch: PoppedBatch | None = None
    ) -> None:
        if answer.code == ResponseCode.SUCCESS:
            return
        why = f"{failure}: {answer.remark}" if answer.remark else failure
        if answer.code == ResponseCode.OMQ_FENCED and batch is not None:
            raise Fenced(
                f"{why}: another member has the queue, and these messages again",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                group=self._group,
                offset=batch.acknowledged,
                epoch=batch.epoch,
            )
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            why += _NEEDS_5
        raise BrokerError(
            why,
            response_code=answer.code,
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            group=self._group,
        )
