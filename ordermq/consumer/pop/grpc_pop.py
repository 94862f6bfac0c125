"""POP through RocketMQ's proxy, over gRPC (docs/internals/semantics.md#pop-through-a-proxy).

A proxy pops whatever queue of a broker it likes, whichever queue the request names. So one *feed*
per topic and broker receives for all queues, and hands each queue's messages to whoever waits for
that queue. Without order any queue takes what comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

from ordermq import core
from ordermq.client.proxy import ProxyApi, check, problem_of
from ordermq.client.runtime import cancelled
from ordermq.client.session import ClientSession
from ordermq.config import PopConfig
from ordermq.consumer.pop.attempts import Attempts
from ordermq.consumer.pop.popped_batch import PoppedBatch
from ordermq.consumer.pop.returns import Returns
from ordermq.consumer.pop.transport import KeptBatches, with_origin
from ordermq.core.contract import ProxyMessage
from ordermq.errors import (
    BrokerError,
    ConnectFailed,
    Fenced,
    OrderMQError,
    ProtocolError,
    RequestTimeout,
    RouteError,
)
from ordermq.grpc.messages import (
    AckMessageRequest,
    AckMessageResponse,
    Broker,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    Code,
    Duration,
    FilterExpression,
    FilterType,
    ForwardToDeadLettersRequest,
    Queue,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    StatusResponse,
    acknowledged_entry,
)
from ordermq.grpc.protobuf import ProtoMessage
from ordermq.model.log_fields import log_fields
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.stored_message import StoredMessage
from ordermq.model.subscription import Subscription
from ordermq.remoting.pop import NORMAL, PopHandle, real_topic
from ordermq.remoting.time_limit import time_limit

_log = logging.getLogger("ordermq.consumer")
_SHORTEST_POLL_MS = 5_000  # a proxy refuses shorter ones
# A second poll finds what the first, parked one is not woken for: the messages behind an
# acknowledgement. More would take more batches into the hands of a member that was killed.
_MOST_POLLS = 2
_LEFT_BEHIND = (
    ". Members in order get them no more by themselves: once the group is an ordered one again, "
    "`ordermq reset` it to the first of these offsets"
)
_NO_MESSAGE = (Code.MESSAGE_NOT_FOUND, 40400)


class GrpcBatch(PoppedBatch):
    """A batch with the message id and the receipt handle of each message, by offset.

    Args: is_ordered: whether it was leased in order; None: its handles do not tell.
    """

    def __init__(
        self, *given: Any, receipts: dict[int, tuple[str, str]], is_ordered: bool | None
    ) -> None:
        super().__init__(*given)
        self.receipts = receipts
        self.is_ordered = is_ordered


class GrpcPop:
    """POP over gRPC; fulfils `PopTransport`. On the I/O thread.

    Attributes:
        poll_ms: how long a proxy may hold a receive.
        kept: where what comes for a queue that does not ask for it is kept.
    """

    kept: KeptBatches

    def __init__(
        self,
        client: ClientSession,
        proxy: ProxyApi,
        group: str,
        config: PopConfig,
        returns: Returns,
        *,
        is_ordered: bool,
    ) -> None:
        self._client = client
        self._returns = returns
        self._proxy = proxy
        self._group = group
        self._config = config
        self.poll_ms = max(config.pop_poll_ms, _SHORTEST_POLL_MS)
        self._feeds: dict[tuple[str, str], _Feed] = {}
        self._is_ordered = is_ordered
        self._polls: dict[tuple[str, str], asyncio.Semaphore] = {}  # without order
        self._batches: WeakSet[GrpcBatch] = WeakSet()  # for as long as somebody has them
        self._changed: set[str] = set()  # proxies that lease in the other way than this member's
        proxy.forward = self.forward
        proxy.needs_order = is_ordered

    async def turn(self, queue: MessageQueue) -> None:
        if not self._is_ordered:
            place = queue.topic, queue.broker_name
            await self._polls.setdefault(place, asyncio.Semaphore(_MOST_POLLS)).acquire()

    def skip(self, queue: MessageQueue) -> None:
        if not self._is_ordered:
            self._polls[queue.topic, queue.broker_name].release()

    def keep_in(self, kept: KeptBatches) -> None:
        self.kept = kept

    def take_expired(self, queue: MessageQueue) -> int:
        return 0  # proxies do not tell

    def leave(self, queue: MessageQueue) -> None:
        feed = self._feeds.get((queue.topic, queue.broker_name))
        if feed is not None:
            feed.leave(queue)

    async def receive(
        self, queue: MessageQueue, subscription: Subscription, attempt_id: str
    ) -> Sequence[PoppedBatch]:
        place = queue.topic, queue.broker_name
        if not self._is_ordered:
            try:
                return await self.receive_any(*place, subscription, attempt_id)
            finally:
                self._polls[place].release()
        feed = self._feeds.get(place)
        if feed is None:
            feed = self._feeds[place] = _Feed(self, self._client, self._returns, *place)
        batch = await feed.next_of(queue, subscription, self._config.pop_poll_ms)
        return () if batch is None else (batch,)

    async def receive_missed(
        self, queue: MessageQueue, subscription: Subscription, attempt_id: str
    ) -> Sequence[PoppedBatch]:
        return ()  # a feed's receives are none of a queue: see its `close`

    async def acknowledge(self, batch: PoppedBatch, end: int) -> None:
        assert isinstance(batch, GrpcBatch)
        async with batch.turn:
            offsets = batch.unacknowledged(end)
            if offsets:
                await self._acknowledge(batch, offsets)
            batch.acknowledged = max(batch.acknowledged, end)

    async def _acknowledge(self, batch: GrpcBatch, offsets: Sequence[int]) -> None:
        entries = [acknowledged_entry(*batch.receipts[offset]) for offset in offsets]
        request = AckMessageRequest(
            group=self._proxy.resource(self._group),
            topic=self._proxy.resource(batch.topic),
            entries=entries,
        )
        data = await self._ask(batch.queue, "AckMessage", request)
        if core.all_acknowledged(data):
            return
        answer = AckMessageResponse.from_bytes(data)
        failure = "the proxy did not take the acknowledgement"
        if not answer.entries:
            self._check(answer.status, failure, batch)
        for entry in answer.entries:
            self._check(entry.status, failure, batch)

    async def extend(self, batch: PoppedBatch) -> None:
        assert isinstance(batch, GrpcBatch)
        async with batch.turn:
            # Each handle runs out by itself at the proxy, so one renewal does not do for all.
            renew = partial(self._change_one, batch, invisible_ms=self._config.pop_invisible_ms)
            await asyncio.gather(*map(renew, batch.unacknowledged(batch.end)))

    async def give_back(self, batch: PoppedBatch) -> None:
        assert isinstance(batch, GrpcBatch)
        timeout_ms = self._client.config.lock_timeout_ms  # it may be repeated soon
        end_lease = partial(self._change_one, batch, invisible_ms=0, timeout_ms=timeout_ms)
        await self._returns.give_back(batch, end_lease)

    async def return_later(self, batch: PoppedBatch, offset: int, delay_ms: int) -> None:
        assert isinstance(batch, GrpcBatch)
        async with batch.turn:
            await self._change_one(batch, offset, delay_ms)

    async def forward(self, message: MessageView, group: str, attempts: int) -> None:
        """Move a message of the batch in progress to the group's dead letters.

        Raises: RemotingError: it is not known whether it was. Fenced: the batch is over.
        """
        queue, offset = message.message_queue, message.queue_offset
        having = [each for each in self._batches if each.queue == queue and offset in each.receipts]
        batch = max(having, key=lambda each: each.asked_ms, default=None)  # the last to have it
        if batch is None:
            raise BrokerError(
                "the batch of a message for the dead letters is over; it is delivered again",
                response_code=0,
                topic=queue.topic,
                group=group,
                offset=offset,
            )
        async with batch.turn:
            message_id, handle = batch.receipts[offset]
            request = ForwardToDeadLettersRequest(
                group=self._proxy.resource(group),
                topic=self._proxy.resource(batch.topic),
                receipt_handle=handle,
                message_id=message_id,
                delivery_attempt=attempts,
                max_delivery_attempts=max(attempts - 1, 1),
            )
            data = await self._ask(queue, "ForwardMessageToDeadLetterQueue", request)
            answer = StatusResponse.from_bytes(data)
            self._check(answer.status, "the proxy did not store the dead letter", batch)

    async def new_life(self, batch: PoppedBatch, at: int, last: PoppedBatch | None) -> None:
        return None  # a proxy shows no message that is not received

    async def close(self, late: Awaitable[object]) -> None:
        # Once nobody waits, what the proxy still holds comes again when its leases end.
        end = self._returns.end
        await end.unless_hurried(self._end_feeds(late))
        await end.unless_hurried(self._terminate())

    async def _terminate(self) -> None:
        for address in self._client.routes.masters():
            if not self._proxy.proxies.is_open(address):
                continue
            try:
                await self._proxy.terminate(address, self._group)
            except OrderMQError as error:
                self._client.outages.failed(address, "unregistration", error)

    async def _end_feeds(self, late: Awaitable[object]) -> None:
        await late
        await asyncio.gather(*(feed.close() for feed in self._feeds.values()))

    # For feeds.

    async def receive_any(
        self, topic: str, broker_name: str, subscription: Subscription, attempt_id: str
    ) -> list[GrpcBatch]:
        """Receive messages of any queues of a broker; [] if there are none for a while.

        Raises: RemotingError, RouteError. BrokerError: also where the group is not ordered as this
            member needs it, any more.
        """
        config, clock = self._config, self._client.clock
        timeout_ms = self.poll_ms + self._client.config.request_timeout_ms
        request = ReceiveMessageRequest(
            group=self._proxy.resource(self._group),
            message_queue=Queue(topic=self._proxy.resource(topic), broker=Broker(name=broker_name)),
            filter_expression=FilterExpression(
                type=FilterType.SQL if subscription.is_sql else FilterType.TAG,
                expression=subscription.expression,
            ),
            batch_size=config.pop_batch_size,
            invisible_duration=Duration.of_ms(config.pop_invisible_ms),
            auto_renew=False,
            long_polling_timeout=Duration.of_ms(self.poll_ms),
            attempt_id=attempt_id,
        )
        address = self._client.routes.master_of(broker_name)
        if address in self._changed:
            # Before it leases more: what is leased without order has left its place in the queue.
            await self._proxy.require_order(address)
            self._changed.discard(address)
        asked_ms = clock.now_ms()
        call = await self._proxy.proxies.begin(address, "ReceiveMessage", timeout_ms)
        messages: list[ProxyMessage] = []
        try:
            call.send(request.to_bytes(), is_last=True)
            async with time_limit(timeout_ms / 1_000 + 1.0):
                while (data := await call.receive()) is not None:
                    message = core.read_proxy_message(data, topic)
                    if message is not None:
                        messages.append(message)
                        continue
                    status = ReceiveMessageResponse.from_bytes(data).status
                    if status is not None and status.code not in _NO_MESSAGE:
                        check(status, "the proxy refused the pop", topic=topic)
        except TimeoutError as error:
            if isinstance(error, OrderMQError):
                raise
            raise RequestTimeout(f"ReceiveMessage: no answer in {timeout_ms} ms") from None
        finally:
            call.cancel()
        batches = self._batches_of(topic, broker_name, messages, asked_ms)
        self._refuse_other_order(batches, address)
        return batches

    def _refuse_other_order(self, batches: Sequence[GrpcBatch], address: str) -> None:
        """Raise BrokerError if a batch is ordered and its member is not, or the reverse."""
        refused = [each for each in batches if each.is_ordered not in (None, self._is_ordered)]
        if not refused:
            return
        self._changed.add(address)
        for batch in refused:
            _log.error(
                "%s: not consumed from offset %d to %d: the proxy leased them %s order%s",
                batch.queue,
                batch.start,
                batch.end - 1,
                "without" if self._is_ordered else "in",
                _LEFT_BEHIND if self._is_ordered else "",
                extra=log_fields(batch.queue, group=self._group, offset=batch.start),
            )
        raise self._proxy.order_problem(self._group, address)

    def _batches_of(
        self, topic: str, broker_name: str, messages: Sequence[ProxyMessage], asked_ms: int
    ) -> list[GrpcBatch]:
        by_queue: dict[tuple[str, int], dict[int, ProxyMessage]] = {}
        for message in messages:
            queue_id, offset, _, handle, _ = message
            if not handle:
                raise ProtocolError("the proxy sent a message without a receipt", topic=topic)
            named = None if self._is_ordered else _read_handle(handle)
            kind = NORMAL if named is None else named.topic_kind
            place = real_topic(topic, self._group, kind), queue_id
            by_queue.setdefault(place, {})[offset] = message
        batches = []
        for (source, queue_id), by_offset in by_queue.items():
            offsets = sorted(by_offset)
            receipts, records = {}, []
            named = _read_handle(by_offset[offsets[0]][3])
            for offset in offsets:
                _, _, message_id, handle, record = by_offset[offset]
                receipts[offset] = message_id, handle
                records.append(
                    record if source == topic else with_origin(StoredMessage.read(record))
                )
            batch = GrpcBatch(
                MessageQueue(source, broker_name, queue_id),
                topic,
                self._client.clock.wall_ms() if named is None else named.pop_ms,
                offsets[0],
                tuple(offsets),
                b"".join(records),
                False,
                asked_ms,
                receipts=receipts,
                is_ordered=None if named is None else named.is_ordered,
            )
            self._batches.add(batch)
            batches.append(batch)
        return batches

    async def _change_one(
        self, batch: GrpcBatch, offset: int, invisible_ms: int, timeout_ms: int | None = None
    ) -> None:
        message_id, handle = batch.receipts[offset]
        request = ChangeInvisibleDurationRequest(
            group=self._proxy.resource(self._group),
            topic=self._proxy.resource(batch.topic),
            receipt_handle=handle,
            invisible_duration=Duration.of_ms(invisible_ms),
            message_id=message_id,
        )
        data = await self._ask(batch.queue, "ChangeInvisibleDuration", request, timeout_ms)
        answer = ChangeInvisibleDurationResponse.from_bytes(data)
        self._check(answer.status, "the proxy did not change the lease", batch)
        if answer.receipt_handle:
            batch.receipts[offset] = message_id, answer.receipt_handle

    async def _ask(
        self,
        queue: MessageQueue,
        method: str,
        request: ProtoMessage,
        timeout_ms: int | None = None,
    ) -> bytes:
        address = self._client.routes.master_of(queue.broker_name)
        timeout_ms = timeout_ms or self._client.config.offset_timeout_ms
        return await self._proxy.proxies.ask_bytes(address, method, request.to_bytes(), timeout_ms)

    def _check(self, status: Any, failure: str, batch: GrpcBatch) -> None:
        if status is None or status.code == Code.OK:
            return
        queue = batch.queue
        place = {"topic": queue.topic, "broker": queue.broker_name, "group": self._group}
        if status.code == Code.INVALID_RECEIPT_HANDLE:
            raise Fenced(
                f"{failure}: the lease is over, {status.message}",
                **place,
                queue_id=queue.queue_id,
                offset=batch.acknowledged,
                epoch=batch.epoch,
            )
        problem = problem_of(status, failure, **place)
        if problem is not None:
            raise problem


class _Feed:
    """Receives for the queues of a topic at one broker that wait for messages."""

    def __init__(
        self, pop: GrpcPop, client: ClientSession, returns: Returns, topic: str, broker_name: str
    ) -> None:
        self._pop = pop
        self._client = client
        self._returns = returns
        self._topic = topic
        self._broker_name = broker_name
        self._subscription: Subscription | None = None
        self._waiting: dict[MessageQueue, asyncio.Future[PoppedBatch]] = {}
        self._served: set[MessageQueue] = set()  # queues that asked, and were not given up since
        self._polls: set[asyncio.Task[None]] = set()
        self._returning: set[asyncio.Task[None]] = set()
        self._attempts = Attempts(client.clock, pop.poll_ms)
        self._is_closed = False

    async def next_of(
        self, queue: MessageQueue, subscription: Subscription, wait_ms: int
    ) -> PoppedBatch | None:
        """Return the next batch of a queue; None if none comes in this time.

        Raises: OrderMQError: of a poll that failed meanwhile.
        """
        self._served.add(queue)
        batch = self._pop.kept.take_waiting(queue)
        if batch is not None:
            return batch
        self._subscription = subscription
        waiting: asyncio.Future[PoppedBatch] = asyncio.get_running_loop().create_future()
        self._waiting[queue] = waiting
        if len(self._polls) < _MOST_POLLS and not self._is_closed:
            self._begin_poll()
        pause = asyncio.ensure_future(self._client.clock.sleep_ms(wait_ms))
        both: list[asyncio.Future[Any]] = [waiting, pause]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(pause)
            if self._waiting.get(queue) is waiting:
                del self._waiting[queue]
            if not waiting.done():
                waiting.cancel()
        return None if waiting.cancelled() else waiting.result()

    def leave(self, queue: MessageQueue) -> None:
        """Receive for other queues only, until it is asked for again."""
        self._served.discard(queue)
        waiting = self._waiting.pop(queue, None)  # else it would have a further poll begun
        if waiting is not None and not waiting.done():
            waiting.cancel()
        if not self._served:
            self._give_back_kept()

    async def close(self) -> None:
        """Return once every poll has run out; what they bring is given back.

        A poll that is cancelled would take messages all the same: the broker holds it on.
        """
        self._is_closed = True
        self._give_back_kept()
        await asyncio.gather(*self._polls, return_exceptions=True)
        if not self._returns.end.is_late:
            # What those brought whose answers were lost: the proxy gives it again.
            for attempt_id in self._attempts.take_unanswered():
                self._begin_poll(attempt_id)
        await asyncio.gather(*self._polls, return_exceptions=True)
        while self._returning:
            await asyncio.gather(*self._returning, return_exceptions=True)

    def _begin_poll(self, attempt_id: str = "") -> None:
        work = self._poll(attempt_id or self._attempts.next_id())
        poll = self._client.runtime.spawn(work, f"pop {self._topic}@{self._broker_name}")
        self._polls.add(poll)
        poll.add_done_callback(self._polls.discard)

    async def _poll(self, attempt_id: str) -> None:
        assert self._subscription is not None
        asked_ms = self._client.clock.now_ms()
        try:
            batches = await self._pop.receive_any(
                self._topic, self._broker_name, self._subscription, attempt_id
            )
        except OrderMQError as error:
            if not isinstance(error, (ConnectFailed, RouteError)):  # then nothing was asked
                self._attempts.failed(attempt_id, asked_ms)
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(error)
            return
        for batch in batches:
            waiting_for = self._waiting.pop(batch.queue, None)
            if waiting_for is not None and not waiting_for.done():
                waiting_for.set_result(batch)
            elif self._is_closed or not self._served:
                self._return(self._pop.give_back(batch))
            else:
                # Given back it would come with one of the next receives, and again: a proxy moves
                # what it has delivered as often as the group allows to the dead letters.
                self._pop.kept.keep(batch.queue, (batch,))
                if batch.queue not in self._served:
                    self._client.doubt_route(self._topic)  # it may be new in there
        if self._waiting and not self._is_closed and len(self._polls) <= 1:
            self._begin_poll()

    def _give_back_kept(self) -> None:
        for batch in self._pop.kept.take_all_waiting(self._topic, self._broker_name):
            self._return(self._pop.give_back(batch))

    def _return(self, work: Any) -> None:
        task = self._client.runtime.spawn(work, f"give back {self._topic}@{self._broker_name}")
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)


def _read_handle(text: str) -> PopHandle | None:
    """Return what a handle says; None if it is of another form than RocketMQ's."""
    try:
        return PopHandle.of_text(text)
    except ProtocolError:
        return None
