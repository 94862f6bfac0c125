"""A message an admin tool has a member consume directly
(docs/internals/semantics.md#admin-requests, docs/internals/protocol.md#requests-to-consumers).

Out of any order, without lock, offset or retry: so for concurrent groups only.
"""

from __future__ import annotations

import logging
from typing import Any

import orjson

from ordermq.client.session import ClientSession
from ordermq.consumer.queue.receiver import Receiver
from ordermq.errors import ProtocolError, StateError
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command

_log = logging.getLogger("ordermq.consumer")


class DirectConsumption:
    """Calls the receiver's listener for one message; on the I/O thread."""

    def __init__(self, client: ClientSession, receiver: Receiver[Any]) -> None:
        self._client = client
        self._receiver = receiver

    async def answer(self, request: Command) -> Command:
        """Answer CONSUME_MESSAGE_DIRECTLY with what the listener returned."""
        try:
            record = StoredMessage.read(bytes(request.body))
        except ProtocolError as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        broker = request.ext.get("brokerName", "")
        queue = MessageQueue(record.topic, broker, record.queue_id)
        batch = MessageBatch(queue, bytes(request.body), (), self._client.config.namespace)
        begun_ms = self._client.clock.now_ms()
        try:
            result, remark = await self._receiver.consume_directly(batch)
        except StateError as error:
            _log.warning("%s: request %d refused: %s", queue, request.code, error)
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        _log.warning(
            "%s: offset %d consumed directly, for an admin tool", queue, record.queue_offset
        )
        body = {
            "autoCommit": True,
            "consumeResult": result,
            "order": False,
            "remark": remark,
            "spentTimeMills": self._client.clock.now_ms() - begun_ms,
        }
        return request.reply(ResponseCode.SUCCESS, body=orjson.dumps(body))
