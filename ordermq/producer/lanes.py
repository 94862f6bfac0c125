"""One request of a queue at a time: what gathers meanwhile goes as one batch.

A key always goes to one queue, so one unacknowledged request a queue is at most one
unacknowledged send a key (semantics 8), and a batch is stored whole or not at all. The rule
costs little: under load the batches grow, as commits of a database do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ordermq import core
from ordermq.client.instance import ClientInstance
from ordermq.client.timers import cancelled
from ordermq.config import SendConfig
from ordermq.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    KeyFailed,
    OrderMQError,
    ProtocolError,
    RequestTimeout,
    StateError,
)
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import AUTO_CREATE_TOPIC
from ordermq.model.status import SendReceipt, SendStatus
from ordermq.producer.faults import Faults
from ordermq.producer.packing import packed
from ordermq.producer.selectors import ShardingKey
from ordermq.producer.send_retry import (
    AfterFailure,
    decide,
    delay_ms,
    is_doubtful,
    may_go_elsewhere,
)
from ordermq.remoting.codes import VERSION_WITH_TIMERS, ResponseCode
from ordermq.remoting.headers import SendHeader, SendReplyHeader

_log = logging.getLogger("ordermq.producer")
_STATUS = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


@dataclass(slots=True, eq=False)
class Entry:
    """A message on its way.

    Args:
        properties: its property text; `unique_id` is in there.
        key: the sharding key, None for unordered messages.
        on_done: called once, on the I/O thread, when `receipt` or `error` is set.
    """

    body: bytes
    properties: str
    unique_id: str
    flag: int
    key: ShardingKey | None
    is_alone: bool  # no batch may hold it: it is delayed, or half of a transaction
    on_done: Callable[[Entry], None] = field(repr=False)
    sys_flag: int = 0  # bits besides that of compression
    moves_left: int = 0  # how often it may yet go to another broker
    is_watched: bool = False  # hooks want to know what the broker said
    is_timed: bool = False  # old brokers would deliver it at once
    receipt: SendReceipt | None = None
    error: BaseException | None = None
    reply: SendReplyHeader | None = None  # of a watched one

    @property
    def is_done(self) -> bool:
        return self.receipt is not None or self.error is not None

    def outcome(self) -> SendReceipt:
        """The receipt of a message that is done.

        Raises: what its sending failed with.
        """
        if self.error is not None:
            raise self.error
        assert self.receipt is not None
        return self.receipt

    def finish(self, receipt: SendReceipt | None, error: BaseException | None) -> None:
        self.receipt, self.error = receipt, error
        self.on_done(self)


def batch_body(batch: Sequence[Entry]) -> bytes:
    """The body of SEND_BATCH_MESSAGE."""
    return core.encode_batch(
        [entry.body for entry in batch],
        [entry.properties for entry in batch],
        [entry.flag for entry in batch],
    )


def take_batch(waiting: deque[Entry], max_bytes: int) -> list[Entry]:
    """Remove the next entries that may go in one request, in order; at least one."""
    batch = [waiting.popleft()]
    size = len(batch[0].body) + len(batch[0].properties)
    while waiting and not batch[0].is_alone and not waiting[0].is_alone:
        size += len(waiting[0].body) + len(waiting[0].properties)
        if size > max_bytes:
            break
        batch.append(waiting.popleft())
    return batch


def _stay(queue: MessageQueue, entry: Entry) -> bool:
    return False


class QueueLane:
    """Sends the messages of one queue in the order they come; on the I/O thread.

    Args:
        detour: hands an entry that failed here to another broker's lane; False if it stays.
        faults: hears how long the broker took, if anybody wants to know.
    """

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        queue: MessageQueue,
        config: SendConfig,
        detour: Callable[[MessageQueue, Entry], bool] = _stay,
        faults: Faults | None = None,
    ) -> None:
        self.queue = queue
        self._client = client
        self._group = group
        self._config = config
        self._detour = detour
        self._faults = faults
        self._waiting: deque[Entry] = deque()
        self._failed: dict[ShardingKey, str] = {}
        self._sending: asyncio.Task[None] | None = None
        self._version: int | None = None  # of the broker, once somebody needs to know

    @property
    def is_idle(self) -> bool:
        return self._sending is None

    def put(self, entry: Entry) -> None:
        """Queue a message for sending; its `on_done` tells the outcome."""
        self._waiting.append(entry)
        if self._sending is None:
            self._begin()

    async def stop(self) -> None:
        """End what is under way; those who wait for it are told."""
        await cancelled(self._sending)

    def fail(self, key: ShardingKey, reason: str) -> None:
        """Let no later message of a key pass, until it is resolved."""
        self._failed.setdefault(key, reason)

    def resolve(self, key: ShardingKey) -> bool:
        """Let a failed key go on; False if it had not failed."""
        return self._failed.pop(key, None) is not None

    def _begin(self) -> None:
        self._sending = self._client.runtime.spawn(self._run(), f"send {self.queue}")
        self._sending.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._sending = None
        if task.cancelled() or task.exception() is not None:
            while self._waiting:
                self._waiting.popleft().finish(None, self._stopped("it was not sent"))
        elif self._waiting:  # put between the last look and the end of the task
            self._begin()

    async def _run(self) -> None:
        while self._waiting:
            batch = self._without_failed(take_batch(self._waiting, self._config.max_batch_bytes))
            if batch:
                await self._send(batch)

    def _without_failed(self, batch: list[Entry]) -> list[Entry]:
        if not self._failed:
            return batch
        passed = []
        for entry in batch:
            reason = self._failed.get(entry.key) if entry.key is not None else None
            if reason is None:
                passed.append(entry)
            else:
                entry.finish(None, self._key_failed(entry.key, reason))
        return passed

    def _key_failed(self, key: ShardingKey | None, reason: str) -> KeyFailed:
        return KeyFailed(
            f"sharding key {key!r}: an earlier send has an unknown outcome ({reason}); look "
            "whether it arrived, then call producer.resolve(topic, key)",
            topic=self.queue.topic,
            broker=self.queue.broker_name,
            queue_id=self.queue.queue_id,
        )

    async def _send(self, batch: list[Entry]) -> None:
        tries, doubtful = 0, False
        try:
            body, sys_flag = await self._body(batch)
            while True:
                tries += 1
                try:
                    receipts = await self._send_once(batch, body, sys_flag)
                    break
                except OrderMQError as error:
                    stayed = self._without_detours(batch, error)
                    if not stayed:
                        return
                    if len(stayed) < len(batch):
                        batch = stayed
                        body, sys_flag = await self._body(batch)
                    step = decide(error, tries, doubtful, self._config)
                    doubtful = doubtful or is_doubtful(error)
                    if step is not AfterFailure.SEND_AGAIN:
                        self._give_up(batch, error, step)
                        return
                    _log.warning("%s: try %d failed, sending again: %s", self.queue, tries, error)
                await self._client.clock.sleep_ms(delay_ms(tries, self._config))
        except BaseException as error:
            # Stopped, or a defect of ours: nobody may wait for this batch for ever.
            self._give_up(
                batch,
                self._stopped(f"whether it arrived is unknown ({error!r})"),
                AfterFailure.UNKNOWN,
            )
            raise
        for entry, receipt in zip(batch, receipts, strict=True):
            entry.finish(receipt, None)

    def _without_detours(self, batch: list[Entry], error: OrderMQError) -> list[Entry]:
        """What of a failed batch is tried here again; the rest is another broker's now."""
        if not any(entry.moves_left for entry in batch) or not may_go_elsewhere(error):
            return batch
        _log.warning("%s: unordered messages go to another broker: %s", self.queue, error)
        return [
            entry for entry in batch if not (entry.moves_left and self._detour(self.queue, entry))
        ]

    def _stopped(self, outcome: str) -> StateError:
        return StateError(
            f"the producer stopped sending before this message was acknowledged; {outcome}",
            topic=self.queue.topic,
            broker=self.queue.broker_name,
            queue_id=self.queue.queue_id,
        )

    def _give_up(self, batch: list[Entry], error: OrderMQError, step: AfterFailure) -> None:
        if step is AfterFailure.UNKNOWN:
            for entry in batch:
                if entry.key is not None:
                    self.fail(entry.key, str(error))
        for entry in batch:
            entry.finish(None, error)

    async def _body(self, batch: list[Entry]) -> tuple[bytes, int]:
        if len(batch) == 1:
            body, sys_flag = await packed(batch[0].body, self._config)
            return body, sys_flag | batch[0].sys_flag
        return batch_body(batch), 0  # brokers take no compressed batch

    async def _send_once(self, batch: list[Entry], body: bytes, sys_flag: int) -> list[SendReceipt]:
        queue, one = self.queue, batch[0]
        header = SendHeader(
            producer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            sys_flag=sys_flag,
            born_timestamp_ms=self._client.clock.wall_ms(),
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=self._config.default_topic_queue_nums,
            broker_name=queue.broker_name,
        )
        if len(batch) == 1:
            header.flag, header.properties = one.flag, one.properties
        else:
            header.batch = True
        address = self._client.routes.master_of(queue.broker_name)
        if one.is_timed:
            await self._require_timers(address)
        code, reply = await self._request(address, header, body)
        return self._receipts(batch, code, reply)

    async def _request(
        self, address: str, header: SendHeader, body: bytes
    ) -> tuple[int, SendReplyHeader]:
        timeout_ms = self._config.send_timeout_ms
        if self._faults is None:
            return await self._client.api.send(address, header, body, timeout_ms)
        started_ms = self._client.clock.now_ms()
        try:
            answer = await self._client.api.send(address, header, body, timeout_ms)
        except (RequestTimeout, ConnectionLost, ConnectFailed):
            self._faults.note_unanswered(self.queue.broker_name)
            raise
        self._faults.note(self.queue.broker_name, self._client.clock.now_ms() - started_ms)
        return answer

    async def _require_timers(self, address: str) -> None:
        """Raises: BrokerError: the broker would store the message, and deliver it at once."""
        if self._version is None:
            self._version = await self._client.heartbeats.version_of(address)
        if self._version < VERSION_WITH_TIMERS:
            raise BrokerError(
                f"the broker (protocol version {self._version}) is older than RocketMQ 5.0 and "
                "would deliver a timed message at once: use delay_level",
                response_code=ResponseCode.VERSION_NOT_SUPPORTED,
                topic=self.queue.topic,
                broker=self.queue.broker_name,
                address=address,
            )

    def _receipts(self, batch: list[Entry], code: int, reply: SendReplyHeader) -> list[SendReceipt]:
        ids = reply.message_id.split(",")
        if len(ids) != len(batch):
            raise ProtocolError(
                f"the broker acknowledged {len(ids)} messages of {len(batch)}",
                topic=self.queue.topic,
                broker=self.queue.broker_name,
            )
        if batch[0].is_watched:
            for entry in batch:
                entry.reply = reply
        queue = MessageQueue(self.queue.topic, self.queue.broker_name, reply.queue_id)
        status = _STATUS[ResponseCode(code)]
        return [
            SendReceipt(
                queue, reply.queue_offset + i, entry.unique_id, ids[i], status, reply.recall_handle
            )
            for i, entry in enumerate(batch)
        ]
