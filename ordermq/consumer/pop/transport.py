"""Transport of popped batches: receive, acknowledge, extend and give back
(docs/internals/semantics.md#pop)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ordermq.client.connections import is_denied
from ordermq.client.session import ClientSession
from ordermq.config import PopConfig
from ordermq.consumer.fetch.life_watch import QUIET_MS
from ordermq.consumer.pop.popped_batch import PoppedBatch
from ordermq.consumer.pop.returns import Returns
from ordermq.errors import BrokerError, Fenced, ProtocolError, RequestTimeout
from ordermq.model import properties as props
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import TOOLS_GROUP, wrapped
from ordermq.model.stored_message import StoredMessage, queue_offsets, split_records
from ordermq.model.subscription import Subscription
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.pop import (
    BROKERS_TIME,
    FROM_FIRST,
    FROM_LAST,
    NORMAL,
    ORDERED,
    BatchAck,
    ChangeInvisibleHeader,
    ChangeInvisibleReplyHeader,
    PopHandle,
    PopHeader,
    PoppedOffsets,
    PopReplyHeader,
    acks_to_body,
    offsets_of_reply,
    real_topic,
)

if TYPE_CHECKING:
    from ordermq.client.queue_life import NewLife

_NEEDS_5 = "; consume_mode='pop' needs brokers of RocketMQ 5, use 'pull' with others"


def _split(body: bytes, parts: Sequence[PoppedOffsets]) -> list[bytes]:
    """Return the records of each part of a pop's answer.

    Raises: ProtocolError: one is of none, or is missing.
    """
    found: dict[tuple[bool, int], list[bytes]] = {
        (part.kind == NORMAL, part.queue_id): [] for part in parts
    }
    wanted = {(place, at) for place, part in zip(found, parts, strict=True) for at in part.offsets}
    for record in split_records(body):
        message = StoredMessage.read(record)
        is_own = not props.has(message.properties, props.POP_HANDLE)
        if not is_own:
            record = with_origin(message)
        place = is_own, message.queue_id
        if (place, message.queue_offset) not in wanted:
            raise ProtocolError(f"offset {message.queue_offset} was popped, but not named")
        wanted.discard((place, message.queue_offset))
        found[place].append(record)
    if wanted or len(found) < len(parts):
        raise ProtocolError(f"{len(wanted)} messages were popped, and are not in the answer")
    for records in found.values():
        records.sort(key=_offset_of)
    return list(map(b"".join, found.values()))


def with_origin(message: StoredMessage) -> bytes:
    """Return the record of a repeated message, with its topic where views of such look for it."""
    # Servers give such a message its own topic; views expect the retry topic there.
    properties = props.with_default(message.properties, props.RETRY_TOPIC, message.topic)
    return message.rewritten(message.topic, properties)


def _offset_of(record: bytes) -> int:
    return queue_offsets(record)[0]


class KeptBatches(Protocol):
    """Batches that wait for their queues, and are renewed meanwhile, as of `PopLeases`."""

    def keep(self, queue: MessageQueue, batches: Iterable[PoppedBatch]) -> None:
        """Keep batches until the queue can take them."""

    def take_waiting(self, queue: MessageQueue) -> PoppedBatch | None:
        """Return the next batch that was kept; None: there is none."""

    def take_all_waiting(self, topic: str, broker_name: str) -> list[PoppedBatch]:
        """Return what is kept for all queues of a topic at a broker."""


class PopTransport(Protocol):
    """Requests about popped batches; on the I/O thread.

    `acknowledge`, `extend` and `return_later` raise: Fenced: the batch is another member's.
    RemotingError, RouteError: it is not known whether the broker did it.

    Attributes: poll_ms: how long a receive may be held while there are no messages.
    """

    poll_ms: int

    async def turn(self, queue: MessageQueue) -> None:
        """Wait until a queue may be asked for; a `receive` or `skip` must follow, and ends that."""

    def skip(self, queue: MessageQueue) -> None:
        """End the turn of a queue without a `receive`."""

    async def receive(
        self, queue: MessageQueue, subscription: Subscription, attempt_id: str
    ) -> Sequence[PoppedBatch]:
        """Wait for messages of a queue; nothing: there were none in the time of a poll.

        In order there is one batch, of the queue. Without, there may be several, also of messages
        to repeat, and through a proxy of any queues of the topic at the broker.

        Args:
            attempt_id: what the pop that brings messages is known by: one without an answer may be
                asked for again by it, once no server holds it any more.
        Raises: RemotingError, RouteError. ProtocolError: a malformed answer.
        """

    def take_expired(self, queue: MessageQueue) -> int:
        """Return how many messages expired unread, as the answers for a queue have told since the
        last call; 0 also where nobody tells."""

    async def receive_missed(
        self, queue: MessageQueue, subscription: Subscription, attempt_id: str
    ) -> Sequence[PoppedBatch]:
        """Return what the broker answered to a receive whose answer was lost; raises as `receive`.

        Without waiting, for a queue that is being given up; nothing once that is late.
        """

    def keep_in(self, kept: KeptBatches) -> None:
        """Say where what comes for a queue that does not ask for it is kept."""

    def leave(self, queue: MessageQueue) -> None:
        """Receive no more for a queue that is being given up, until it is asked for again."""

    async def acknowledge(self, batch: PoppedBatch, end: int) -> None:
        """Acknowledge all messages before the offset `end`."""

    async def extend(self, batch: PoppedBatch) -> None:
        """Lease what is not acknowledged for the whole time again, from the receipt on."""

    async def give_back(self, batch: PoppedBatch) -> None:
        """End the lease of what is not acknowledged, for other members to take; see `Returns`."""

    async def return_later(self, batch: PoppedBatch, offset: int, delay_ms: int) -> None:
        """Have one message of a batch without order delivered again after a while."""

    async def new_life(
        self, batch: PoppedBatch, at: int, last: PoppedBatch | None
    ) -> NewLife | None:
        """Return the life that a batch's queue began, if it did so since it was read up to `at`.

        None also where nobody can look.

        Args: last: an earlier batch of the queue, or the same; None: there is none.
        Raises: RemotingError, RouteError: it could not be found out.
        """

    async def close(self, late: Awaitable[object]) -> None:
        """Return once nothing is received any more and what came late is given back; or when
        nobody waits for that any more.

        Args: late: ends with the fetcher's own receives.
        """


class RemotingBatch(PoppedBatch):
    """A batch with the handle that names it to brokers.

    Attributes:
        looked_ms: when its messages were last known to be those of the topic.
        renewed: handles of messages that were renewed one by one, by offset.
    """

    def __init__(self, *given: Any, handle: PopHandle, looked_ms: int) -> None:
        super().__init__(*given)
        self.looked_ms = looked_ms
        self.handle = handle
        self.renewed: dict[int, PopHandle] = {}

    def handle_of(self, offset: int) -> PopHandle:
        return self.renewed.get(offset, self.handle)


class RemotingPop:
    """POP over the protocol of brokers; fulfils `PopTransport`."""

    def __init__(
        self,
        client: ClientSession,
        group: str,
        config: PopConfig,
        returns: Returns,
        *,
        is_ordered: bool,
        from_first: bool,
    ) -> None:
        self._client = client
        self._returns = returns
        self._group = group
        self._config = config
        self.poll_ms = config.pop_poll_ms
        self._is_ordered = is_ordered
        # Names in a batch's acknowledgement, and in the names of topics of messages to repeat, are
        # out of reach for the layer that adds namespaces.
        self._full_group = wrapped(client.config.namespace, group)
        # Members store where a queue starts before they pop it; this is for a queue of a broker
        # that has lost that.
        self._init_mode = FROM_FIRST if from_first else FROM_LAST
        # What brokers' clocks say, ms since 1970, less the monotonic time here.
        self._ahead_ms: dict[str, int] = {}
        self._expired: dict[MessageQueue, int] = {}

    async def turn(self, queue: MessageQueue) -> None:
        """Nothing: each queue is asked for by itself."""

    def skip(self, queue: MessageQueue) -> None:
        """Nothing: there are no turns."""

    def keep_in(self, kept: KeptBatches) -> None:
        """Nothing: a broker sends what a queue asks for."""

    def leave(self, queue: MessageQueue) -> None:
        """Nothing: the fetcher asks no more, and takes what a broker still sends."""

    async def receive(
        self, queue: MessageQueue, subscription: Subscription, attempt_id: str
    ) -> Sequence[PoppedBatch]:
        return await self._receive(queue, subscription, attempt_id, self.poll_ms)

    async def receive_missed(
        self, queue: MessageQueue, subscription: Subscription, attempt_id: str
    ) -> Sequence[PoppedBatch]:
        if not self._is_ordered or self._returns.end.is_late:
            return ()  # brokers know attempts of ordered pops only
        return await self._receive(queue, subscription, attempt_id, 0)

    async def _receive(
        self, queue: MessageQueue, subscription: Subscription, attempt_id: str, poll_ms: int
    ) -> Sequence[PoppedBatch]:
        clock = self._client.clock
        header = self._header_of_pop(queue, subscription, attempt_id, poll_ms)
        asked_ms = clock.now_ms()
        timeout_ms = poll_ms + self._client.config.request_timeout_ms
        command = Command.request(RequestCode.POP_MESSAGE, header.to_ext())
        try:
            answer = await self._request(queue, command, timeout_ms)
        except RequestTimeout:
            # A broker whose clock was set back holds a pop for as much longer.
            self._ahead_ms.pop(queue.broker_name, None)
            raise
        if answer.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND):
            told_ms = 0
            if answer.ext.get("popTime", "0") != "0":
                reply = PopReplyHeader.from_ext(answer.ext)
                told_ms = reply.pop_ms
                self._note_expired(queue, reply)
            self._note_time(queue.broker_name, told_ms)
            is_early = clock.now_ms() - asked_ms < poll_ms // 2
            if is_early and (told_ms or header.born_ms == BROKERS_TIME):
                await clock.sleep_ms(poll_ms)  # it cannot hold pops now, as while it ends
            return ()
        if answer.code == ResponseCode.POLLING_FULL:
            await clock.sleep_ms(poll_ms)
            return ()
        self._check(answer, "broker refused the pop", queue)
        reply = PopReplyHeader.from_ext(answer.ext)
        self._note_time(queue.broker_name, reply.pop_ms)
        self._note_expired(queue, reply)
        parts = self._checked_parts(queue, reply)
        is_whole = len(parts) == 1 and parts[0].kind == NORMAL
        bodies = [answer.body] if is_whole else _split(answer.body, parts)
        return [
            self._batch(queue, reply, part, body, asked_ms)
            for part, body in zip(parts, bodies, strict=True)
        ]

    def _note_expired(self, queue: MessageQueue, reply: PopReplyHeader) -> None:
        if reply.expired is not None and reply.expired > 0:
            self._expired[queue] = self._expired.get(queue, 0) + reply.expired

    def take_expired(self, queue: MessageQueue) -> int:
        return self._expired.pop(queue, 0)

    def _header_of_pop(
        self, queue: MessageQueue, subscription: Subscription, attempt_id: str, poll_ms: int
    ) -> PopHeader:
        config = self._config
        return PopHeader(
            self._group,
            queue.topic,
            queue.queue_id,
            config.pop_batch_size,
            config.pop_invisible_ms,
            poll_ms,
            self._born_ms(queue.broker_name),
            self._init_mode,
            subscription.expression_type,
            subscription.expression,
            order=self._is_ordered,
            attempt_id=attempt_id,
            broker_name=queue.broker_name,
            fenced=True if self._is_ordered else None,
        )

    def _checked_parts(self, queue: MessageQueue, reply: PopReplyHeader) -> list[PoppedOffsets]:
        """Return the batches of an answer, by queue.

        Raises: ProtocolError: they are not what was asked for.
        """
        parts = offsets_of_reply(reply)
        has_others = any(part.kind == NORMAL and part.queue_id != queue.queue_id for part in parts)
        if has_others or (self._is_ordered and len(parts) != 1):
            raise ProtocolError(f"a pop of {queue} was answered with {len(parts)} queues' messages")
        if (reply.revive_queue == ORDERED) != self._is_ordered:
            asked, answered = "without order", "in order"
            if self._is_ordered:
                asked, answered = answered, asked
            raise ProtocolError(f"a pop of {queue} {asked} was answered as one {answered}")
        return parts

    def _born_ms(self, broker_name: str) -> int:
        """Return the present time on the clock of a broker, which it compares with its own."""
        # This host's wall clock may be another one. The broker's keeps away what was under way for
        # long: it would lease messages to nobody.
        ahead_ms = self._ahead_ms.get(broker_name)
        return BROKERS_TIME if ahead_ms is None else self._client.clock.now_ms() + ahead_ms

    def _note_time(self, broker_name: str, pop_ms: int) -> None:
        """Note what the clock of a broker says; 0: nothing, as it took the pop for too old."""
        if pop_ms:
            self._ahead_ms[broker_name] = pop_ms - self._client.clock.now_ms()
        else:
            self._ahead_ms.pop(broker_name, None)  # the next pop goes by the broker's own clock

    def _batch(
        self,
        queue: MessageQueue,
        reply: PopReplyHeader,
        part: PoppedOffsets,
        body: bytes,
        asked_ms: int,
    ) -> RemotingBatch:
        handle = PopHandle(
            part.start,
            reply.pop_ms,
            reply.invisible_ms,
            reply.revive_queue,
            part.kind,
            queue.broker_name,
            part.queue_id,
        )
        source = real_topic(queue.topic, self._group, part.kind)
        return RemotingBatch(
            MessageQueue(source, queue.broker_name, part.queue_id),
            queue.topic,
            reply.pop_ms,
            part.start,
            part.offsets,
            body,
            bool(reply.fenced),
            asked_ms,
            handle=handle,
            looked_ms=self._client.clock.now_ms(),
        )

    async def acknowledge(self, batch: PoppedBatch, end: int) -> None:
        assert isinstance(batch, RemotingBatch)
        async with batch.turn:
            offsets = batch.unacknowledged(end)
            if offsets:
                if self._is_ordered and not batch.is_fenced:
                    await self._require_life(batch)
                await self._acknowledge(batch, offsets)
            batch.acknowledged = max(batch.acknowledged, end)

    async def _acknowledge(self, batch: RemotingBatch, offsets: Sequence[int]) -> None:
        by_handle: dict[PopHandle, list[int]] = {}
        for offset in offsets:
            by_handle.setdefault(batch.handle_of(offset), []).append(offset)
        topic = wrapped(self._client.config.namespace, batch.topic)
        acks = [
            BatchAck(self._full_group, topic, handle, those) for handle, those in by_handle.items()
        ]
        body = acks_to_body(batch.queue.broker_name, acks)
        ext = {"bname": batch.queue.broker_name}
        if self._is_ordered:
            ext["omqFenced"] = "true"
        command = Command.request(RequestCode.BATCH_ACK_MESSAGE, ext, body)
        answer = await self._request(batch.queue, command)
        self._check(answer, "broker did not take the acknowledgement", batch.queue, batch)

    async def _require_life(self, batch: RemotingBatch) -> None:
        """Look whether the queue still has the messages of a batch that took a while.

        If the topic was deleted and made again meanwhile, a broker of RocketMQ does not know the
        batch, and would move the group behind its offsets, over as many messages of the new topic.

        Raises: Fenced: another message is there.
        """
        now_ms = self._client.clock.now_ms()
        if now_ms - batch.looked_ms < QUIET_MS:
            return
        life = await self.new_life(batch, batch.end, batch)
        if life is not None:
            raise self._fenced(
                f"not acknowledged: the queue is not the one that was popped: {life.reason}", batch
            )
        batch.looked_ms = now_ms

    async def new_life(
        self, batch: PoppedBatch, at: int, last: PoppedBatch | None
    ) -> NewLife | None:
        from ordermq.client.queue_life import QueueMark, new_life  # long after the start

        client, queue, mark = self._client, batch.queue, None
        if last is not None:
            messages = client.api.batch(queue, last.body, (), last.start, last.end)
            mark = QueueMark.of(messages[len(messages) - 1])
        try:
            return await new_life(client, TOOLS_GROUP, queue, at, mark)
        except BrokerError as error:
            if not is_denied(error.response_code, str(error)):
                raise
            return None  # this account cannot look

    async def extend(self, batch: PoppedBatch) -> None:
        # In order one message keeps the queue from all other members; the last one is acknowledged
        # last. Without, each is leased by itself.
        left = batch.offsets[-1:] if self._is_ordered else batch.unacknowledged(batch.end)
        await self._change_all(batch, left, self._config.pop_invisible_ms)

    async def give_back(self, batch: PoppedBatch) -> None:
        assert isinstance(batch, RemotingBatch)
        timeout_ms = self._client.config.lock_timeout_ms  # it may be repeated soon
        end_lease = partial(self._change, batch, invisible_ms=0, timeout_ms=timeout_ms)
        await self._returns.give_back(batch, end_lease)

    async def return_later(self, batch: PoppedBatch, offset: int, delay_ms: int) -> None:
        await self._change_all(batch, [offset], delay_ms)

    async def close(self, late: Awaitable[object]) -> None:
        await self._returns.end.unless_hurried(late)

    async def _change_all(
        self, batch: PoppedBatch, offsets: Sequence[int], invisible_ms: int
    ) -> None:
        assert isinstance(batch, RemotingBatch)
        async with batch.turn:
            await asyncio.gather(*(self._change(batch, each, invisible_ms) for each in offsets))

    async def _change(
        self, batch: RemotingBatch, offset: int, invisible_ms: int, timeout_ms: int | None = None
    ) -> None:
        queue, handle = batch.queue, batch.handle_of(offset)
        topic = queue.topic
        if handle.topic_kind != NORMAL:
            topic = wrapped(self._client.config.namespace, batch.topic)
            topic = real_topic(topic, self._full_group, handle.topic_kind)
        header = ChangeInvisibleHeader(
            self._group,
            topic,
            queue.queue_id,
            handle.text(offset),
            offset,
            invisible_ms,
            queue.broker_name,
            fenced=True if self._is_ordered else None,
        )
        command = Command.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext())
        answer = await self._request(queue, command, timeout_ms)
        self._check(answer, "broker did not change the lease", queue, batch)
        if not self._is_ordered:
            # The broker has ended this lease and begun another one, of this message alone.
            reply = ChangeInvisibleReplyHeader.from_ext(answer.ext)
            batch.renewed[offset] = replace(
                handle,
                start=offset,
                pop_ms=reply.pop_ms,
                invisible_ms=reply.invisible_ms,
                revive_queue=reply.revive_queue,
            )

    async def _request(
        self, queue: MessageQueue, command: Command, timeout_ms: int | None = None
    ) -> Command:
        client = self._client
        address = client.routes.master_of(queue.broker_name)
        return await client.connections.request(
            address, command, timeout_ms or client.config.offset_timeout_ms
        )

    def _fenced(self, why: str, batch: PoppedBatch) -> Fenced:
        return Fenced(
            why,
            topic=batch.queue.topic,
            broker=batch.queue.broker_name,
            queue_id=batch.queue.queue_id,
            group=self._group,
            offset=batch.acknowledged,
            epoch=batch.epoch,
        )

    def _check(
        self, answer: Command, failure: str, queue: MessageQueue, batch: PoppedBatch | None = None
    ) -> None:
        if answer.code == ResponseCode.SUCCESS:
            return
        why = f"{failure}: {answer.remark}" if answer.remark else failure
        if answer.code == ResponseCode.OMQ_FENCED and batch is not None:
            raise self._fenced(
                f"{why}: another member has the queue, and these messages again", batch
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
