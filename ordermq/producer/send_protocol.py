"""One queue as a place to send to: requests on the wire, and what their answers say."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ordermq.client.session import ClientSession
from ordermq.config import SendConfig
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
from ordermq.model.status import SendReceipts, SendStatus
from ordermq.producer.faults import Faults
from ordermq.producer.pending_message import Entry, is_single
from ordermq.remoting.codes import VERSION_WITH_TIMERS, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import SendHeader
from ordermq.remoting.response_futures import ResponseFuture

_log = logging.getLogger("ordermq.producer")

_STATUS: dict[int, SendStatus] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


class Destination:
    """On the I/O thread, one request at a time.

    Args:
        faults: hears how long the broker took, if anybody wants to know.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        queue: MessageQueue,
        config: SendConfig,
        faults: Faults | None = None,
    ) -> None:
        self.queue = queue
        self._client = client
        self._config = config
        self._faults = faults
        # The last request.
        self._header = SendHeader(
            producer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=config.default_topic_queue_nums,
            broker_name=queue.broker_name,
        )
        self._address = ""
        self._asked_ms = 0
        self._version: int | None = None  # of the broker, once somebody needs to know
        self._is_passed_by = False  # since its last answer, by messages that may go elsewhere

    def ask(
        self, batch: Sequence[Entry], body: bytes, sys_flag: int, waiting: ResponseFuture
    ) -> bool:
        """Put a request on the wire now; `waiting` is told what came of it.

        Returns: False if nothing was sent, for something must be awaited before: `ready`.
        Raises: RouteError: no route names the broker. BrokerError: it is too old for this.
        """
        client = self._client
        self._address = address = client.routes.master_of(self.queue.broker_name)
        if batch[0].is_timed and not self._has_timers(address):
            return False
        self._fill_header(batch, sys_flag)
        self._asked_ms = client.clock.now_ms()
        timeout_ms = self._config.send_timeout_ms
        return client.api.begin_send(address, self._header, body, timeout_ms, waiting)

    async def ready(self, batch: Sequence[Entry]) -> None:
        """Return once the broker can be asked to store these.

        Raises: ConnectFailed, StateError: it cannot be reached. RequestTimeout,
            ConnectionLost: it does not say its version. RouteError: no route names it.
        """
        address = self._client.routes.master_of(self.queue.broker_name)
        if batch[0].is_timed and self._version is None:
            self._version = await self._client.heartbeats.version_of(address)
        await self._client.api.writable(address)

    def receipts(
        self, batch: Sequence[Entry], body_bytes: int, answer: Command
    ) -> list[SendReceipts]:
        """What the answer to the last request says of each entry's messages.

        Raises: BrokerError: they were refused. ProtocolError: it is not an answer for these.
        """
        broker_name = self.queue.broker_name
        code, reply = self._client.api.stored(self._address, self._header, body_bytes, answer)
        self._is_passed_by = False
        if self._faults is not None:
            self._faults.note(broker_name, self._client.clock.now_ms() - self._asked_ms)
        places = reply.message_id.split(",")
        count = sum([len(entry.bodies) for entry in batch])
        if len(places) != count:
            raise ProtocolError(
                f"the broker acknowledged {len(places)} messages of {count}",
                topic=self.queue.topic,
                broker=broker_name,
            )
        queue = self.queue
        if reply.queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, broker_name, reply.queue_id)
        status, handle = _STATUS[code], reply.recall_handle
        receipts, at = [], 0
        for entry in batch:
            if entry.is_watched:
                entry.reply = reply
            end, ids = at + len(entry), entry.unique_ids
            receipts.append(
                SendReceipts(queue, reply.queue_offset + at, ids, places[at:end], status, handle)
            )
            at = end
        return receipts

    def note_failure(self, error: OrderMQError) -> None:
        """A try ended so; messages that may go to any broker shall pass by a silent one."""
        is_silent = isinstance(error, RequestTimeout | ConnectionLost | ConnectFailed)
        if self._faults is not None and is_silent:
            self._faults.note_unanswered(self.queue.broker_name)

    def note_detour(self, error: OrderMQError) -> None:
        """Unordered messages went to another broker; said once, until this one stores again."""
        if not self._is_passed_by:
            self._is_passed_by = True
            _log.warning("%s: unordered messages go to another broker: %s", self.queue, error)

    def _fill_header(self, batch: Sequence[Entry], sys_flag: int) -> None:
        header, one = self._header, batch[0]
        header.sys_flag = sys_flag
        header.born_timestamp_ms = self._client.clock.wall_ms()
        if is_single(batch):
            header.flag, header.properties, header.batch = one.flags[0], one.properties[0], None
        else:
            header.flag, header.properties, header.batch = 0, "", True

    def _has_timers(self, address: str) -> bool:
        """Whether the broker is known to hold timed messages; False if it has not said.

        Raises: BrokerError: it would store the message, and deliver it at once.
        """
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
